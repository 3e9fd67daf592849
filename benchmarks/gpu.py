"""App C on a GPU, with models of the size of the paper's: a 7B Llama on vLLM, bge-large and bge-reranker-large.

    python benchmarks/gpu.py                the tables of the figure teola-real, in the seconds of this GPU
    python benchmarks/gpu.py --divide 32    widths and depths divided by that, which a CPU can do, too

Weights are random, so nothing is downloaded: shapes and kernels are true, and what is written is noise, which hangs on
the whole prompt. Every text is made as long as the template says, and all ways are asked the same. The vocabulary is
the small one of the tiny model, so an LLM of 7B has 6.5 billion weights.

Sums of half precision hang on what else is in a batch, and so do answers, of any pipeline. VLLM_BATCH_INVARIANT=1 has
vLLM, and here the encoders too, compute each row alike in all batches.

What is measured is told on stderr as it comes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from papers.figures import Figure, Result, Setting
from papers.making import make
from papers.report import lines
from papers.teola.real import Models, Scale, compared
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel, LlamaConfig

from teola_plugin.demo.parts import QUERIES
from teola_plugin.demo.tiny_model import tiny_cross_encoder, tiny_model
from teola_plugin.engines import Engine
from teola_plugin.runtime.engines.chroma_documents import ChromaDocumentsEngine
from teola_plugin.runtime.engines.embedding import EmbeddingEngine
from teola_plugin.runtime.engines.reranking import RerankingEngine
from teola_plugin.runtime.engines.vllm import VllmEngine

if os.environ.get("VLLM_BATCH_INVARIANT") == "1" and torch.cuda.is_available():
    os.environ |= {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}  # no sum is split, as in vLLM
    torch.backends.cuda.preferred_blas_library("cublaslt")
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

SPREAD = 0.02
"""Of random weights, as transformers has it. vLLM's own dummy weights are within 0.001, and so is what of a prompt but
its last word comes to the answer."""

STARTED_S = time.perf_counter()

MAX_TOKENS = 4096
"""Of a prompt and what is written to it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a transformer, by the names that its configuration has for it."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int

    def divided(self, by: int) -> Shape:
        """Shallower, and thinner by fewer heads; one layer and one head at least."""
        head = self.hidden_size // self.num_attention_heads
        heads = max(1, self.num_attention_heads // by)
        return Shape(max(1, self.num_hidden_layers // by), heads * head, heads, max(head, self.intermediate_size // by))


LLAMA_7B = Shape(32, 4096, 32, 11008)
"""Llama 2, arXiv 2307.09288."""

BERT_LARGE = Shape(24, 1024, 16, 4096)
"""bge-large-en-v1.5 and, but for its vocabulary, bge-reranker-large (model cards of BAAI)."""


def main(
    divide: Annotated[int, typer.Option(min=1, help="Models so many times as thin and as shallow.")] = 1,
    memory: Annotated[float, typer.Option(min=0.1, max=0.9, help="Share of the GPU's memory for the LLM.")] = 0.7,
    rounds: Annotated[int, typer.Option(min=1)] = 6,
    burst: Annotated[int, typer.Option(min=2, help="Queries at once.")] = 32,
    count: Annotated[int, typer.Option(min=2, help="Queries at each rate.")] = 60,
    chunks: Annotated[int, typer.Option(min=1, help="Of a document, 256 tokens each.")] = 48,
    shares: Annotated[str, typer.Option(help="Rates, as shares of what the best way does at once.")] = "0.3,0.6,0.9",
    quick_start: Annotated[
        bool, typer.Option(help="CUDA graphs of decoding, but nothing compiled: a minute less.")
    ] = False,
    limit: Annotated[float, typer.Option(help="Seconds after which no further round is begun.")] = 3600,
) -> None:
    """Print the tables."""
    if not torch.cuda.is_available() and divide == 1:
        raise typer.BadParameter("there is no GPU here: see nvidia-smi, or take smaller models by --divide 32")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "the CPU, no GPU"
    parts = tuple(float(share) for share in shares.split(",") if share)
    scale = Scale(rounds, 2, burst, chunks, 256, 30, parts, count, limit)

    def tables(setting: Setting) -> Result:
        with tempfile.TemporaryDirectory() as folder:
            return compared(models(Path(folder), divide, memory, quick_start=quick_start), scale, device, told=_told)

    title = f"App C, models divided by {divide}"
    for line in lines(make(Figure("gpu", title, "Ayo, figure 8, row 3", tables, is_real=True), Setting())):
        print(line)
    import vllm

    print(f"device: {device}; torch {torch.__version__}; vLLM {vllm.__version__}")


def _told(line: str) -> None:
    print(f"{time.perf_counter() - STARTED_S:6.1f} s  {line}", file=sys.stderr, flush=True)


def models(folder: Path, divide: int, memory: float, *, quick_start: bool = False) -> Models:
    """The engines, which load their models at first use; those of the encoders, now."""
    large = BERT_LARGE.divided(divide)
    engines: dict[str, Engine] = {
        "llm": llm(folder / "llm", LLAMA_7B.divided(divide), memory, quick_start=quick_start),
        "embedder": EmbeddingEngine(_embedder(folder / "embedder", large)),
        "reranker": RerankingEngine(_reranker(folder / "reranker", large)),
        "store": ChromaDocumentsEngine(),
    }
    return Models(engines, QUERIES, {"temperature": 0.0, "ignore_eos": True})


def llm(folder: Path, shape: Shape, memory: float, *, quick_start: bool = False, **engine_args: Any) -> VllmEngine:
    """Of random weights, on vLLM. `engine_args` are vLLM's own."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model())
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer), num_key_value_heads=shape.num_attention_heads, max_position_embeddings=MAX_TOKENS,
        bos_token_id=0, eos_token_id=1, architectures=["LlamaForCausalLM"], **asdict(shape),
    )  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    more: dict[str, Any] = {"gpu_memory_utilization": memory} if torch.cuda.is_available() else {}
    if more and quick_start:
        more["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": SIZES}
    given = {"dtype": "bfloat16", "max_model_len": MAX_TOKENS, **more, **engine_args}
    return VllmEngine(folder, load_format=random_weights(), **given)


SIZES = [1, 2, 4, 8, 16, 24, 32, 48, 64]


def random_weights() -> str:
    """The name of a loader, which vLLM's core finds too: where it is spawned, it imports this script anew."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    @register_model_loader("random")
    class Random(BaseModelLoader):
        def download_model(self, model_config: Any) -> None: ...

        @torch.no_grad()
        def load_weights(self, model: Any, model_config: Any) -> None:
            torch.manual_seed(0)
            for weights in model.parameters():
                if weights.ndim > 1:  # the others are factors of norms, and 1
                    weights.normal_(0.0, SPREAD)

    return "random"


def _embedder(folder: Path, shape: Shape) -> SentenceTransformer:
    _save(BertModel(_bert(shape)), folder)
    # It takes the mean of the tokens, which costs what bge's first token does.
    return SentenceTransformer(str(folder), model_kwargs=_dtype())


def _reranker(folder: Path, shape: Shape) -> CrossEncoder:
    _save(BertForSequenceClassification(_bert(shape, num_labels=1)), folder)
    return CrossEncoder(str(folder), model_kwargs=_dtype())


def _bert(shape: Shape, **more: Any) -> BertConfig:
    tokenizer = AutoTokenizer.from_pretrained(tiny_cross_encoder())
    return BertConfig(vocab_size=len(tokenizer), max_position_embeddings=512, **asdict(shape), **more)


def _save(model: Any, folder: Path) -> None:
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_cross_encoder()).save_pretrained(folder)


def _dtype() -> dict[str, Any]:
    """Half precision where there are units for it."""
    return {"dtype": "float16" if torch.cuda.is_available() else "float32"}


if __name__ == "__main__":
    typer.run(main)
elif __name__ == "__mp_main__":
    random_weights()

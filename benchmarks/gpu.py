"""App C on a GPU, with models of the size of the paper's: a 7B Llama on vLLM, bge-large and bge-reranker-large.

    python benchmarks/gpu.py                the tables of the figure teola-real, in the seconds of this GPU
    python benchmarks/gpu.py --divide 32    widths and depths divided by that, which a CPU can do, too

Weights are random, so nothing is downloaded: shapes and kernels are true, and what is written is noise. Every text is
made as long as the template says, and all ways are asked the same. The vocabulary is the small one of the tiny model,
so an LLM of 7B has 6.5 billion weights.
"""

from __future__ import annotations

import json
import tempfile
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
) -> None:
    """Print the tables."""
    if not torch.cuda.is_available() and divide == 1:
        raise typer.BadParameter("there is no GPU here: see nvidia-smi, or take smaller models by --divide 32")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "the CPU, no GPU"
    scale = Scale(rounds, 2, burst, chunks, 256, 30, (0.3, 0.6, 0.9), count)

    def tables(setting: Setting) -> Result:
        with tempfile.TemporaryDirectory() as folder:
            return compared(_models(Path(folder), divide, memory), scale, device)

    title = f"App C, models divided by {divide}"
    for line in lines(make(Figure("gpu", title, "Ayo, figure 8, row 3", tables, is_real=True), Setting())):
        print(line)
    print(f"device: {device}; torch {torch.__version__}")


def _models(folder: Path, divide: int, memory: float) -> Models:
    large = BERT_LARGE.divided(divide)
    engines: dict[str, Engine] = {
        "llm": _llm(folder / "llm", LLAMA_7B.divided(divide), memory),
        "embedder": EmbeddingEngine(_embedder(folder / "embedder", large)),
        "reranker": RerankingEngine(_reranker(folder / "reranker", large)),
        "store": ChromaDocumentsEngine(),
    }
    return Models(engines, QUERIES, {"temperature": 0.0, "ignore_eos": True})


def _llm(folder: Path, shape: Shape, memory: float) -> VllmEngine:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model())
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer), num_key_value_heads=shape.num_attention_heads, max_position_embeddings=MAX_TOKENS,
        bos_token_id=0, eos_token_id=1, architectures=["LlamaForCausalLM"], **asdict(shape),
    )  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    more: dict[str, Any] = {"gpu_memory_utilization": memory} if torch.cuda.is_available() else {}
    return VllmEngine(folder, load_format="dummy", dtype="bfloat16", max_model_len=MAX_TOKENS, **more)


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

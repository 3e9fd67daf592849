"""Which model an engine is: equal for the same files in any process, another after one changed number."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from teola_plugin.demo.tiny_model import minilm_path, tiny_cross_encoder, tiny_model
from teola_plugin.errors import EngineError
from teola_plugin.profile import PAPER, PAPER_LLM
from teola_plugin.registry import EngineConfig
from teola_plugin.runtime.engines.build import build
from teola_plugin.runtime.engines.chroma import ChromaEngine
from teola_plugin.runtime.engines.embedding import EmbeddingEngine
from teola_plugin.runtime.engines.identity import describe, identity
from teola_plugin.runtime.engines.python import PythonEngine
from teola_plugin.runtime.engines.reranking import RerankingEngine
from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM, ProfileReranker
from teola_plugin.runtime.engines.vllm import VllmEngine
from tests.support.real_models import collection, cross_encoder, minilm, values

ROOT = Path(__file__).parents[3]


def load() -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(minilm_path()), device="cpu")


def in_another_process(*configs: EngineConfig | None) -> list[str]:
    """The identities of the engines that another process makes of the descriptions."""
    code = (
        "import json, sys; from teola_plugin.registry import EngineConfig;"
        "from teola_plugin.runtime.engines.build import build;"
        "from teola_plugin.runtime.engines.identity import identity;"
        "print(*(identity(build(EngineConfig.from_json(said))) for said in json.loads(sys.argv[1])))"
    )
    said = json.dumps([config.to_json() | {"identity": ""} for config in configs if config])
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, said], capture_output=True, text=True, check=True, cwd="/", env=environment
    )
    return done.stdout.split()


# --- models of this process ---------------------------------------------------------------------------------


@pytest.mark.real
def test_the_same_files_are_the_same_model_also_elsewhere_and_after_use(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    first, second = load(), load()
    before = identity(first)
    first.encode(["one", "two " * 400])
    assert identity(first) == identity(second) == before
    assert identity(EmbeddingEngine(first)) == before, "an engine is its model"
    copied = shutil.copytree(tiny_cross_encoder(), tmp_path / "copied")
    assert identity(CrossEncoder(str(copied), device="cpu")) == identity(cross_encoder()) != before


@pytest.mark.real
def test_another_process_finds_the_same() -> None:
    things = [minilm(), cross_encoder(), VllmEngine(tiny_model(), max_model_len=512)]
    assert in_another_process(*map(describe, things)) == list(map(identity, things))


def _change_weight(model: Any) -> None:
    import torch

    with torch.no_grad():
        model[0].auto_model.encoder.layer[3].output.dense.weight[7, 9] += 1e-6


def _train(model: Any) -> None:
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    tokens = model[0].tokenizer(["a cat"], return_tensors="pt")
    model[0].auto_model(**tokens).last_hidden_state.square().sum().backward()
    optimizer.step()


def _change_buffer(model: Any) -> None:
    model[0].auto_model.embeddings.position_ids[0, 500] = 3


def _halve(model: Any) -> None:
    model.half()


def _add_token(model: Any) -> None:
    model[0].tokenizer.add_tokens(["teola"])


def _set(name: str, value: Any) -> Callable[[Any], None]:
    return lambda model: setattr(model, name, value)


@pytest.mark.real
@pytest.mark.parametrize(
    "change",
    [
        _change_weight, _train, _change_buffer, _halve, _add_token, _set("max_seq_length", 100),
        _set("prompts", {"query": "q: "}), _set("default_prompt_name", "query"), _set("truncate_dim", 64),
        lambda model: setattr(model[1], "pooling_mode", "cls"), lambda model: model.pop(2),
    ],
    ids=["weight", "training", "buffer", "dtype", "token", "length", "prompts", "prompt", "dim", "pooling", "module"],
)  # fmt: skip
def test_what_changes_answers_changes_the_identity(change: Callable[[Any], None]) -> None:
    model = copy.deepcopy(minilm())
    before = identity(model)
    change(model)
    assert identity(model) != before


@pytest.mark.real
def test_swapped_rows_are_seen() -> None:
    """The sum of all bits stays."""
    import torch

    model = copy.deepcopy(minilm())
    with torch.no_grad():
        weight = model[0].auto_model.encoder.layer[0].output.dense.weight
        weight.copy_(weight.flip(0))
    assert identity(model) != identity(minilm())


@pytest.mark.real
def test_a_description_makes_an_equal_engine() -> None:
    engine = EmbeddingEngine(minilm(), name="mine", max_items=5, profile=PAPER["embedding"])
    found = describe(engine)
    assert found
    assert (found.name, found.kind, found.model) == ("mine", "embedding", str(minilm_path().resolve()))
    assert (found.max_items, found.profile, found.num_gpus) == (5, PAPER["embedding"], 0)
    made = build(found)
    assert (values(made, "embedding", ["a b"])[0] == values(engine, "embedding", ["a b"])[0]).all()
    reranker = describe(RerankingEngine(cross_encoder()))
    assert reranker
    assert reranker.model == str(tiny_cross_encoder().resolve())
    assert identity(build(reranker)) == reranker.identity
    asyncio.run(made.close())


@pytest.mark.real
def test_settings_made_after_loading_are_described() -> None:
    model = load()
    model.max_seq_length, model.truncate_dim, model.prompts = 20, 8, {"query": "q: "}
    found = describe(model)
    assert found
    assert identity(build(found)) == identity(model)


@pytest.mark.real
def test_a_trained_model_is_not_taken_for_its_folder() -> None:
    model = load()
    _change_weight(model)
    found = describe(model)
    assert found
    with pytest.raises(EngineError, match="is not the model that was meant: its identity is"):
        build(found)


@pytest.mark.real
def test_models_that_are_only_here_have_no_description() -> None:
    from sentence_transformers import SentenceTransformer

    class Own(SentenceTransformer):  # type: ignore[misc]
        pass

    hooked, homeless = load(), load()
    hooked.register_forward_hook(lambda *_: None)
    homeless[0].auto_model.config._name_or_path = ""
    assert describe(hooked) is None
    assert describe(homeless) is None
    assert describe(Own(str(minilm_path()), device="cpu")) is None
    assert describe(collection()) is None
    assert describe(ChromaEngine(collection())) is None
    assert describe(object()) is None


def test_a_store_is_its_collection() -> None:
    first, second = collection(), collection()
    assert identity(ChromaEngine(first)) == identity(first) != identity(second)


# --- vLLM ---------------------------------------------------------------------------------------------------


def test_a_model_on_vllm_is_its_files(tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(tiny_model(), copied)
    before = identity(VllmEngine(tiny_model()))
    assert identity(VllmEngine(copied)) == before
    assert identity(VllmEngine(copied, max_num_seqs=3, gpu_memory_utilization=0.5)) == before, "only faster"
    assert identity(VllmEngine(copied, dtype="float16")) != before
    assert identity(VllmEngine(copied, max_model_len=64)) != before
    weights = copied / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    assert identity(VllmEngine(copied)) != before


def test_vllm_described() -> None:
    engine = VllmEngine(tiny_model(), name="llm", max_model_len=512, start_method="spawn", profile=PAPER_LLM["7b"])
    found = describe(engine)
    assert found
    made = build(EngineConfig.from_json(found.to_json()))
    assert isinstance(made, VllmEngine)
    assert (made.name, made._args, made._start_method) == ("llm", engine._args, "spawn")
    assert made.profile == PAPER_LLM["7b"]
    assert identity(made) == found.identity
    assert describe(VllmEngine(tiny_model(), quantization_config=object())) is None, "an object does not travel"


# --- engines that wait --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "engine",
    [
        ProfileLLM("llm", PAPER_LLM["7b"], max_items=3, max_prefill_tokens=100),
        ProfileEmbedding(16, PAPER["embedding"], max_items=5),
        ProfileReranker(PAPER["reranking"], name="ranks"),
    ],
)
def test_engines_that_wait_are_described(engine: Any) -> None:
    found = describe(engine)
    assert found
    made: Any = build(EngineConfig.from_json(json.loads(json.dumps(found.to_json()))))
    assert type(made) is type(engine)
    assert (made.name, made.profile, made.capabilities) == (engine.name, engine.profile, engine.capabilities)
    assert identity(made) == found.identity == identity(engine)


def test_what_only_python_can_say_is_not_described() -> None:
    assert describe(ProfileLLM("llm", PAPER_LLM["7b"], reply=lambda prompt, settings: "yes")) is None
    assert describe(ProfileLLM("llm", PAPER_LLM["7b"], fail_on=lambda payload: None)) is None
    assert describe(ProfileEmbedding(16, PAPER["embedding"], sleep=lambda seconds: asyncio.sleep(0))) is None
    assert identity(ProfileEmbedding(16, PAPER["embedding"])) != identity(ProfileEmbedding(8, PAPER["embedding"]))


def test_others_are_what_they_say() -> None:
    first, second = SimpleNamespace(model="a"), SimpleNamespace(model="b")
    assert identity(first) != identity(second)
    with pytest.raises(EngineError, match="no telling which model a PythonEngine is"):
        identity(PythonEngine(name="python"))

"""Declared engines: fields, TOML files, the registry of the process, and the engines that are built of them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from teola_plugin.demo.tiny_model import minilm_path, tiny_cross_encoder, tiny_model
from teola_plugin.engines import Engine
from teola_plugin.errors import EngineError, EngineUnavailable, ProfileError
from teola_plugin.profile import PAPER, PAPER_LLM, save
from teola_plugin.registry import (
    KINDS,
    MODEL_KINDS,
    POLICIES,
    EngineConfig,
    load_engines,
    object_named,
    register,
    registered,
    unregister,
)
from teola_plugin.runtime.engines.build import build
from teola_plugin.runtime.engines.chroma import ChromaEngine
from teola_plugin.runtime.engines.embedding import EmbeddingEngine
from teola_plugin.runtime.engines.identity import identity
from teola_plugin.runtime.engines.reranking import RerankingEngine
from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM, ProfileReranker
from teola_plugin.runtime.engines.vllm import VllmEngine
from teola_plugin.runtime.scheduler.policies import PolicyName
from tests.support.fakes import FakeEngine
from tests.support.real_models import values

EMBEDDER = EngineConfig("embedder", "embedding", model=str(minilm_path()), config={"device": "cpu"})
SIMULATED = EngineConfig("waits", "profile_embedding", profile=PAPER["embedding"])
LLM = EngineConfig("waits", "profile_llm", profile=PAPER_LLM["7b"])


def simulated(**more: Any) -> EngineConfig:
    return replace(SIMULATED, **more)


# --- fields -------------------------------------------------------------------------------------------------


def test_a_declaration_stays_as_it_was_made() -> None:
    given: dict[str, Any] = {"config": {"sleep": False}, "resources": {"far": 1.0}}
    config = simulated(**given)
    given["config"]["sleep"] = True
    given["resources"].clear()
    assert (config.config, config.resources) == ({"sleep": False}, {"far": 1.0})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": ""}, "engine '': name: expected a name"),
        ({"kind": "embeding"}, "engine 'waits': kind: .* did you mean 'embedding'"),
        ({"config": {"sleep": print}}, "config: .* JSON"),
        ({"config": {1: "a"}}, "config: .* JSON"),
        ({"config": {"nan": float("nan")}}, "config: .* JSON"),
        ({"config": {"infinity": float("inf")}}, "config: .* JSON"),
        ({"num_cpus": -1}, "num_cpus: expected a number >= 0, got -1"),
        ({"num_gpus": "1"}, "num_gpus: expected a number >= 0, got '1'"),
        ({"num_gpus": True}, "num_gpus"),
        ({"resources": {"tpu": -1}}, "resources: expected numbers"),
        ({"instances": 0}, "instances: expected a whole number >= 1, got 0"),
        ({"instances": 1.5}, "instances"),
        ({"max_items": 0}, "max_items"),
        ({"policy": "topologi"}, "policy: .* did you mean 'topology'"),
        ({"executable": "a.b:c"}, "executable: expected nothing, unless the kind is 'custom'"),
        ({"kind": "custom"}, "executable: expected package.module:callable, got ''"),
        ({"kind": "custom", "executable": "a.b"}, "executable: expected package.module:callable, got 'a.b'"),
        ({"kind": "vllm", "profile": None}, "model: expected what an engine of kind 'vllm' is to load"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(EngineError, match=said):
        simulated(**fields)


def test_a_profile_must_be_there_and_fit_the_kind(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"'waits': profile: .* 'profile_embedding' needs one"):
        simulated(profile=None)
    with pytest.raises(ProfileError, match="'waits': profile: expected one of batches"):
        simulated(profile=PAPER_LLM["7b"])
    path = tmp_path / "p.json"
    save(path, {"waits": PAPER_LLM["7b"], "other": PAPER["embedding"]})
    with pytest.raises(ProfileError, match="'waits': profile: expected one of batches"):
        simulated(profile=str(path)).latency_profile()
    with pytest.raises(ProfileError, match=r"'third': profile: .*p\.json has none of that name, but: waits, other"):
        simulated(name="third", profile=str(path)).latency_profile()
    assert simulated(name="other", profile=str(path)).latency_profile() == PAPER["embedding"]
    with pytest.raises(ProfileError, match=r"'waits': profile: cannot read .*none\.json"):
        simulated(profile=str(tmp_path / "none.json")).latency_profile()


def test_the_policies_are_those_of_the_runtime() -> None:
    assert get_args(PolicyName) == POLICIES


@pytest.mark.parametrize(
    "config",
    [
        EMBEDDER,
        LLM,
        simulated(instances=2, resources={"tpu": 0.5}, policy="to", max_items=4, config={"dim": 8}),
        EngineConfig("own", "custom", executable="a.b:C.make", config={"a": [1, {"b": None}]}, profile="p.json"),
    ],
)
def test_a_declaration_travels_as_json(config: EngineConfig) -> None:
    sent = json.dumps(config.to_json())
    assert EngineConfig.from_json(json.loads(sent)) == config
    assert hash(config) == hash(EngineConfig.from_json(json.loads(sent)))


def test_json_of_something_else_is_refused() -> None:
    with pytest.raises(EngineError, match="'a': modle: no such field; did you mean 'model'"):
        EngineConfig.from_json({"name": "a", "kind": "embedding", "modle": "m"})
    with pytest.raises(EngineError, match="'a': kind: missing; expected one of vllm"):
        EngineConfig.from_json({"name": "a"})
    with pytest.raises(ProfileError, match=r"'a': profile\.points"):
        EngineConfig.from_json({"name": "a", "kind": "profile_reranking", "profile": {"token_s": 1}})


# --- files --------------------------------------------------------------------------------------------------


def toml(folder: Path, text: str) -> Path:
    (folder / "engines.toml").write_text(text)
    return folder / "engines.toml"


def test_a_file_of_engines(tmp_path: Path) -> None:
    (tmp_path / "models" / "mini").mkdir(parents=True)
    found = load_engines(
        toml(
            tmp_path,
            """
            [engines.embedder]
            kind = "embedding"
            model = "models/mini"
            profile = "profiles.json"
            num_cpus = 2
            [engines.hub]
            kind = "embedding"
            model = "sentence-transformers/all-MiniLM-L6-v2"
            [engines.llm]
            kind = "openai"
            model = "models/mini"
            config = { base_url = "http://localhost:8000/v1" }
            [engines.store]
            kind = "chroma"
            model = "store"
            [engines.server]
            kind = "chroma"
            model = "http://localhost:8000"
            [engines.waits]
            kind = "profile_reranking"
            [engines.waits.profile]
            points = [[1, 0.5]]
            """,
        )
    )
    assert found["embedder"] == EngineConfig(
        "embedder",
        "embedding",
        model=str(tmp_path / "models/mini"),
        num_cpus=2,
        profile=str(tmp_path / "profiles.json"),
    )
    assert found["hub"].model == "sentence-transformers/all-MiniLM-L6-v2"
    assert found["llm"].model == "models/mini", "a name at a server, whatever lies here"
    assert found["store"].model == str(tmp_path / "store")
    assert found["server"].model == "http://localhost:8000"
    assert found["waits"].latency_profile().predict_s(1) == 0.5  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[engines", "no TOML"),
        ("", r"expected tables \[engines.NAME\], found none"),
        ("engines = 3", "expected tables"),
        ("[engines]\na = 3", r"engine 'a': expected a table \[engines.a\], got 3"),
        ("[engine.a]\nkind = 'vllm'", "engine: expected tables .* did you mean 'engines'"),
        ("[engines.a]\nkind = 'embedding'\nmodle = 'm'", "engine 'a': modle: no such field; did you mean 'model'"),
        ("[engines.a]\nmodel = 'm'", "engine 'a': kind: missing"),
        ("[engines.a]\nkind = 'embedding'\nmodel = 'm'\ninstances = '2'", "engine 'a': instances: expected a whole"),
        ("[engines.a]\nkind = 'embedding'\nmodel = 'm'\nname = 'b'", "engine 'a': name: the table says it"),
    ],
)
def test_a_wrong_file_names_itself_the_engine_and_the_field(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=rf"engines\.toml: {said}"):
        load_engines(toml(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"cannot read .*none\.toml"):
        load_engines(tmp_path / "none.toml")
    with pytest.raises(EngineError, match="cannot read"):
        load_engines(tmp_path)


# --- the registry -------------------------------------------------------------------------------------------


@pytest.fixture
def _nothing_registered() -> Iterator[None]:
    yield
    for name in registered():
        unregister(name)


@pytest.mark.usefixtures("_nothing_registered")
def test_a_name_stands_for_one_engine() -> None:
    seen = registered()
    assert register(SIMULATED) is SIMULATED
    register(replace(SIMULATED))
    assert dict(registered()) == {"waits": SIMULATED}
    assert not seen, "what was handed out does not change"
    with pytest.raises(EngineError, match="'waits' is registered with other settings"):
        register(simulated(instances=2))
    with pytest.raises(EngineError, match="'wait' is not registered; did you mean 'waits'"):
        unregister("wait")
    unregister("waits")
    register(simulated(instances=2))


# --- building -----------------------------------------------------------------------------------------------


def make_fake(text: str = "", *, name: str = "fake") -> FakeEngine:
    return FakeEngine(lambda payload: text + payload, name=name)


def make_nothing() -> int:
    return 3


def test_engines_that_wait() -> None:
    llm = build(replace(LLM, max_items=3, config={"max_prefill_tokens": 100}))
    assert isinstance(llm, ProfileLLM)
    assert (llm.name, llm.profile, llm.capabilities.max_items) == ("waits", PAPER_LLM["7b"], 3)
    embedding = build(simulated(config={"dim": 8}, profile=PAPER["embedding"]))
    assert isinstance(embedding, ProfileEmbedding)
    assert embedding._dim == 8
    reranker = build(simulated(kind="profile_reranking"))
    assert isinstance(reranker, ProfileReranker)
    assert reranker.profile == PAPER["embedding"]


def test_an_engine_of_the_users_own() -> None:
    config = EngineConfig(
        "mine", "custom", executable="tests.test_registry:make_fake", config={"text": ">"}, max_items=2,
        profile=PAPER["reranking"],
    )  # fmt: skip
    engine: Any = build(config)
    assert (engine.name, engine.capabilities.max_items, engine.profile) == ("mine", 2, PAPER["reranking"])
    assert values(engine, "embedding", ["a"]) == [">a"]


@pytest.mark.parametrize(
    ("executable", "config", "said"),
    [
        ("tests.nowhere:make", {}, "executable: there is no module 'tests.nowhere'"),
        ("tests.test_registry:nothing", {}, "executable: 'tests.test_registry' has no 'nothing'"),
        ("tests.test_registry:make_nothing", {}, "gave a int, not an Engine"),
        ("tests.test_registry:make_fake", {"txet": ""}, "config.txet: no argument of make_fake; did you mean 'text'"),
        ("tests.test_registry:make_fake", {"name": "a"}, "config.name: it is a field of the engine"),
    ],
)
def test_what_is_wrong_with_an_own_engine(executable: str, config: dict[str, Any], said: str) -> None:
    with pytest.raises(EngineError, match=f"engine 'own': .*{said}"):
        build(EngineConfig("own", "custom", executable=executable, config=config))


def test_a_module_that_lacks_another_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_of_mine.py").write_text("import nothing_of_the_kind")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="nothing_of_the_kind"):
        object_named("module_of_mine:make")


@pytest.mark.parametrize("kind", ["vllm", "embedding", "reranking", "chroma"])
def test_a_missing_folder_is_named(kind: str) -> None:
    config = {"collection": "docs"} if kind == "chroma" else {}
    with pytest.raises(EngineUnavailable, match="engine 'a': model: there is no /nowhere/at/all"):
        build(EngineConfig("a", kind, model="/nowhere/at/all", config=config))


@pytest.mark.parametrize(
    ("kind", "package", "extra"),
    [
        ("embedding", "sentence_transformers", "embeddings"),
        ("reranking", "sentence_transformers", "embeddings"),
        ("chroma", "chromadb", "chroma"),
        ("vllm", "vllm", "vllm"),
    ],
)
def test_a_missing_package_names_the_extra(
    kind: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EngineUnavailable, match=rf"engine 'a' .* {package}: install teola-plugin\[{extra}\]"):
        build(EngineConfig("a", kind, model="m", config={"collection": "docs"} if kind == "chroma" else {}))


def test_every_kind_can_be_built() -> None:
    from teola_plugin.runtime.engines.build import _MAKERS

    assert set(_MAKERS) == set(KINDS)
    assert set(MODEL_KINDS) < set(KINDS)


def test_vllm_is_not_loaded_before_its_first_use() -> None:
    config = EngineConfig("llm", "vllm", model=str(tiny_model()), max_items=3, config={"max_model_len": 512})
    engine = build(replace(config, profile=PAPER_LLM["7b"]))
    assert isinstance(engine, VllmEngine)
    assert (engine.capabilities.max_items, engine.profile) == (3, PAPER_LLM["7b"])
    with pytest.raises(EngineError, match=r"'llm': config.name: it is a field"):
        build(replace(config, config={"name": "other"}))


def test_a_server_is_not_asked_before_its_first_use() -> None:
    pytest.importorskip("openai")
    config = EngineConfig("gpt", "openai", model="m", config={"base_url": "http://127.0.0.1:9/v1"}, max_items=3)
    engine: Any = build(replace(config, profile=PAPER_LLM["7b"]))
    assert (engine.name, engine.model, engine.profile) == ("gpt", "m", PAPER_LLM["7b"])
    assert engine.capabilities.max_items == 3
    assert identity(engine) != identity(build(replace(config, config={"base_url": "http://127.0.0.1:8/v1"})))
    with pytest.raises(EngineError, match=r"config.base_ulr: .* did you mean 'base_url'"):
        build(replace(config, config={"base_ulr": ""}))


@pytest.mark.real
def test_models_of_sentence_transformers() -> None:
    embedder = build(replace(EMBEDDER, max_items=7, profile=PAPER["embedding"], config={"max_seq_length": 16}))
    assert isinstance(embedder, EmbeddingEngine)
    assert (embedder.capabilities.max_items, embedder.profile) == (7, PAPER["embedding"])
    assert embedder._model().max_seq_length == 16
    assert values(embedder, "embedding", ["a"])[0].shape == (384,)
    config = EngineConfig("reranker", "reranking", model=str(tiny_cross_encoder()), config={"device": "cpu"})
    plain = build(config)
    raw = build(replace(config, config={"activation_fn": "torch.nn.modules.linear.Identity"}))
    assert isinstance(plain, RerankingEngine)
    pair = [("cat", "a cat")]
    assert values(plain, "reranking", pair) != values(raw, "reranking", pair)
    for engine in (embedder, plain, raw):
        asyncio.run(engine.close())


@pytest.mark.real
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"config": {"devise": "cpu"}}, "config.devise: no argument of SentenceTransformer; did you mean 'device'"),
        ({"config": {"device": "abacus"}}, "cannot load .*abacus"),
        ({"kind": "reranking", "config": {"activation_fn": "os.system"}}, "expected a class of torch.nn"),
        ({"identity": "0123"}, "is not the model that was meant: its identity is [0-9a-f]{24}, expected 0123"),
    ],
)
def test_what_is_wrong_with_a_model(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(EngineError, match=f"engine 'embedder': .*{said}"):
        build(replace(EMBEDDER, **changes))


@pytest.mark.real
def test_a_folder_that_is_no_model_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EngineUnavailable, match=f"engine 'embedder': cannot load '{tmp_path}'"):
        build(replace(EMBEDDER, model=str(tmp_path)))


@pytest.mark.real
def test_a_store(tmp_path: Path) -> None:
    config = EngineConfig(
        "store", "chroma", model=str(tmp_path / "store"), config={"collection": "docs", "create": True}
    )
    engine: Engine = build(config)
    assert isinstance(engine, ChromaEngine)
    engine._collection().add(ids=["1"], embeddings=[[1.0, 0.0]], documents=["one"])
    again = build(replace(config, config={"collection": "docs"}, identity=identity(engine)))
    vector = engine._collection().get(include=["embeddings"])["embeddings"][0]
    assert values(again, "searching", [vector], top_k=1)[0]["documents"] == ["one"]
    with pytest.raises(EngineUnavailable, match=r"has no collection 'dogs'; did you mean 'docs'.* there are: docs"):
        build(replace(config, config={"collection": "dogs"}))
    with pytest.raises(EngineError, match=r"config.collection: expected the collection's name"):
        build(replace(config, config={}))
    with pytest.raises(EngineError, match=r"config.collecton: no argument of a chroma engine; did you mean"):
        build(replace(config, config={"collecton": "docs"}))
    with pytest.raises(EngineUnavailable, match=r"no Chroma at http://127.0.0.1:9"):
        build(replace(config, model="http://127.0.0.1:9"))
    with pytest.raises(EngineError, match="model: expected http://host:port, got 'ftp://a'"):
        build(replace(config, model="ftp://a"))

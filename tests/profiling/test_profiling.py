"""Measuring engines: in virtual time the profile that an engine waits by comes back; files, the command, Ctrl-C.

A profile engine waits by `sleep`, which adds to a clock, and the measurement reads that clock.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from teola_plugin import profiling
from teola_plugin.cli import app
from teola_plugin.demo.tiny_model import minilm_path
from teola_plugin.engines import Batch, Capabilities, Delta, Done, Emit, Failed
from teola_plugin.errors import EngineError, ProfileError
from teola_plugin.profile import PAPER, PAPER_LLM, LlmProfile, Profile, Sample, load, save
from teola_plugin.profiling import batches, llm, measure, measured, measuring, report, store
from teola_plugin.profiling.steps import Budget, fitted, is_past_knee, steady
from teola_plugin.registry import EngineConfig, load_engines
from teola_plugin.runtime.engines.chroma import ChromaEngine
from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM, ProfileReranker
from tests.support.fakes import FakeEngine
from tests.support.real_models import collection

LONG_S = 1e6
BENT = Profile(points=((0, 0.010), (8, 0.012), (16, 0.040), (32, 0.100)), token_s=1e-5)


class Clock:
    """Virtual time. `noise`: the share by which each wait is longer or shorter at random."""

    def __init__(self, noise: float = 0.0) -> None:
        self.now_s = 0.0
        self._noise = noise
        self._random = random.Random(7)

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds * (1 + self._random.uniform(-self._noise, self._noise))
        await asyncio.sleep(0)


def measured_profile(truth: Profile, clock: Clock, **options: Any) -> Profile:
    engine = ProfileEmbedding(8, truth, max_items=truth.max_items, sleep=clock.sleep)
    found = measure(engine, clock=clock, **{"budget_s": LONG_S, **options})
    assert isinstance(found, Profile)
    return found


# --- what comes back ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "truth",
    [
        Profile.affine(0.05, 0.002, 1e-4, max_items=32),
        Profile.affine(0.05, 0.02, max_items=16),
        Profile.affine(0.02, token_s=3e-4, max_items=24),
        BENT,
    ],
    ids=["affine", "items", "tokens", "bent"],
)
def test_the_profile_that_an_engine_waits_by_is_found(truth: Profile) -> None:
    found = measured_profile(truth, Clock())
    for items, tokens in [(1, 16), (3, 200), (8, 512), (13, 1300), (16, 256)]:
        assert found.predict_s(items, tokens) == pytest.approx(truth.predict_s(items, tokens), rel=0.03)
    assert found.knee() == truth.knee(found.item_tokens)
    assert found.max_items == truth.max_items
    assert found.source.startswith("measured: embedder, ")


def test_noise_does_not_lead_far_astray() -> None:
    truth = Profile.affine(0.05, 0.002, 1e-4, max_items=32)
    found = measured_profile(truth, Clock(noise=0.2))
    for items, tokens in [(1, 64), (8, 512), (32, 2048)]:
        assert found.predict_s(items, tokens) == pytest.approx(truth.predict_s(items, tokens), rel=0.1)


def test_a_reranker_is_measured_by_pairs() -> None:
    clock, truth = Clock(), Profile.affine(0.01, 0.001, 2e-5, max_items=8)
    found = measure(ProfileReranker(truth, max_items=8, sleep=clock.sleep), clock=clock, budget_s=LONG_S)
    assert found.predict_s(4, 400) == pytest.approx(truth.predict_s(4, 400), rel=0.01)


def test_prefills_and_steps_of_an_llm() -> None:
    clock = Clock()
    truth = LlmProfile(
        prefill=Profile.affine(0.03, 0.004, token_s=2e-4),
        step=Profile(points=((0, 0.026), (8, 0.028), (16, 0.060)), max_items=16),
    )
    llm = ProfileLLM("llm", truth, max_items=16, sleep=clock.sleep)
    found = measure(llm, clock=clock, budget_s=LONG_S)
    assert isinstance(found, LlmProfile)
    for tokens, items in [(100, 1), (1000, 1), (1000, 4)]:
        assert found.prefill_s(tokens, items=items) == pytest.approx(truth.prefill_s(tokens, items=items), rel=0.02)
    assert [found.step_s(n) for n in (1, 8, 12, 16)] == pytest.approx([truth.step_s(n) for n in (1, 8, 12, 16)])
    assert found.knee_items == truth.knee_items == 8
    assert llm.stats.cached_tokens == 0, "no prompt was answered from the prefix cache"


class Writer:
    """An LLM of four slots in virtual time, the last of which is slow. Some servers know no `ignore_eos`."""

    name = "writer"
    capabilities = Capabilities(max_items=4, concurrent=True)

    def __init__(self, clock: Clock, *, tokens: int = 100, knows_ignore_eos: bool = True) -> None:
        self.clock = clock
        self.tokens = tokens
        self.knows_ignore_eos = knows_ignore_eos

    async def run(self, batch: Batch, emit: Emit) -> None:
        began_s = self.clock.now_s
        for at in range(len(batch.items)):
            if "ignore_eos" in batch.settings and not self.knows_ignore_eos:
                emit(at, Failed(EngineError("what is ignore_eos?")))
                continue
            for token in range(min(self.tokens, batch.settings["max_tokens"])):
                self.clock.now_s = began_s + 1.0 + token * (0.9 if at == 3 else 0.1)
                emit(at, Delta("a "))
            emit(at, Done("a"))

    async def close(self) -> None: ...


def measured_writer(**options: Any) -> LlmProfile:
    clock = Clock()
    found = measure(Writer(clock, **options), op="decoding", clock=clock, budget_s=LONG_S)
    assert isinstance(found, LlmProfile)
    return found


@pytest.mark.parametrize("knows_ignore_eos", [True, False])
def test_a_step_is_that_of_most_sequences(knows_ignore_eos: bool) -> None:
    found = measured_writer(knows_ignore_eos=knows_ignore_eos)
    assert [found.step_s(n) for n in (1, 2, 4)] == pytest.approx([0.1] * 3)


def test_answers_that_are_too_short_tell_nothing_of_steps() -> None:
    with pytest.raises(EngineError, match="'writer' wrote fewer than two tokens"):
        measured_writer(tokens=1)


def test_prompts_are_no_longer_than_the_model_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "longest_tokens", lambda engine: 60)
    clock = Clock()
    engine = ProfileLLM("llm", PAPER_LLM["7b"], max_items=2, sleep=clock.sleep)
    found = measured(engine, clock=clock, budget_s=LONG_S, lengths=[20, 256])
    prompts = {sample.tokens // sample.items for sample in found.parts[0].samples}
    assert prompts == {20, 60 - llm.STEP_TOKENS}


def test_texts_have_as_many_tokens_as_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an engine for which each word is two."""
    monkeypatch.setattr(batches, "count_tokens", lambda engine, text: 2 * len(text.split()))
    assert len(batches.Texts(FakeEngine()).make(40).split()) == 20


def test_a_profile_that_was_measured_can_be_measured_again() -> None:
    """What `teola profile` finds, an engine of kind profile_embedding waits by."""
    first = measured_profile(BENT, Clock())
    second = measured_profile(first, Clock())
    assert [second.predict_s(n, 64 * n) for n in (1, 8, 16, 32)] == pytest.approx(
        [first.predict_s(n, 64 * n) for n in (1, 8, 16, 32)], rel=1e-3
    )


# --- when it ends -------------------------------------------------------------------------------------------


def sizes(found: profiling.Measured) -> list[int]:
    return sorted({sample.items for sample in found.parts[0].samples})


def test_it_stops_when_the_knee_is_passed() -> None:
    clock = Clock()
    engine = ProfileEmbedding(8, Profile.affine(0.0, 0.01), max_items=64, sleep=clock.sleep)
    found = measured(engine, clock=clock, budget_s=LONG_S)
    assert sizes(found) == [1, 2, 4, 8, 16], "one item costs what it costs in any batch"
    assert found.parts[0].is_complete


def test_a_late_knee_is_not_missed() -> None:
    truth = Profile(points=((0, 1.0), (64, 1.01), (128, 3.0)), max_items=128)
    assert measured_profile(truth, Clock()).knee() == truth.knee() > 50


def test_it_ends_when_its_time_is_up() -> None:
    clock = Clock()
    engine = ProfileEmbedding(8, Profile.affine(1.0, 0.1), max_items=64, sleep=clock.sleep)
    found = measured(engine, clock=clock, budget_s=5.0, lengths=[16])
    assert not found.parts[0].is_complete
    assert 1 < max(sizes(found)) < 64
    assert clock.now_s < 5.0 + 2 * 1.0 + 2 * 6.4
    assert "time was up after" in report.verdict(found.parts[0], found.parts[0].profile)


def test_a_part_of_a_budget_is_no_longer_than_what_is_left() -> None:
    clock = Clock()
    budget = Budget(10.0, clock)
    clock.now_s = 4.0
    assert [budget.until(seconds).seconds for seconds in (5.0, 100.0)] == [5.0, 6.0]


def test_whatever_the_budget_one_size_is_measured() -> None:
    clock = Clock()
    engine = ProfileEmbedding(8, Profile.affine(1.0, 0.1), max_items=64, sleep=clock.sleep)
    found = measured(engine, clock=clock, budget_s=1e-6)
    assert sizes(found) == [1]
    assert found.parts[0].profile.predict_s(1) > 0


def test_max_items_and_lengths_are_as_asked() -> None:
    clock = Clock()
    engine = ProfileEmbedding(8, Profile.affine(1.0, 0.01), max_items=64, sleep=clock.sleep)
    found = measured(engine, clock=clock, budget_s=LONG_S, max_items=12, lengths=[40, 5])
    assert sizes(found) == [1, 2, 4, 8, 12]
    assert [sample.tokens for sample in found.parts[0].samples[:4]] == [5, 40, 10, 80]
    assert found.parts[0].profile.max_items == 12


@pytest.mark.parametrize(
    ("options", "said"),
    [({"max_items": 0}, "max_items"), ({"lengths": []}, "lengths"), ({"lengths": [0]}, "lengths"),
     ({"budget_s": 0.0}, "budget_s"), ({"budget_s": float("nan")}, "budget_s")],
)  # fmt: skip
def test_options_that_make_no_sense(options: dict[str, Any], said: str) -> None:
    with pytest.raises(EngineError, match=said):
        measure(FakeEngine(), op="embedding", **options)


async def test_repeats_go_on_until_they_agree() -> None:
    async def run(seconds: list[float]) -> Sample:
        return Sample(1, 10, seconds.pop(0))

    async def repeated(*seconds: float) -> tuple[float, int]:
        left = list(seconds)
        found = await steady(lambda: run(left), Budget(LONG_S, lambda: 0.0))
        return found.seconds, len(seconds) - len(left)

    assert await repeated(9.0, 1.0, 1.0, 1.0, 5.0) == (1.0, 4), "the warm-up does not count"
    assert await repeated(9.0, 1.0, 2.0, 3.0, 2.0, 2.0, 2.0, 2.0, 2.0) == (2.0, 6)


def test_is_past_knee_wants_every_length_to_gain_nothing() -> None:
    def samples(*rates: float, items: int = 16) -> Sequence[Sample]:
        return [Sample(items, 1, items / rate) for rate in rates]

    assert is_past_knee(samples(10, 1, 10, 1, 10, 1), lengths=2)
    assert not is_past_knee(samples(10, 1, 10, 1, 10, 2), lengths=2)
    assert not is_past_knee(samples(10, 1, 10, 1), lengths=2)
    assert not is_past_knee(samples(10, 1, 10, 1, 10, 1, items=8), lengths=2)


def test_a_line_is_enough_where_it_fits() -> None:
    line = [Sample(n, 10 * n, 0.01 + 0.001 * n) for n in (1, 2, 4, 8, 16)]
    assert len(fitted(line, 16, "").points) == 2
    bent = [Sample(n, 10 * n, 0.01 if n < 8 else 0.002 * n) for n in (1, 2, 4, 8, 16)]
    assert len(fitted(bent, 16, "").points) > 2


def test_who_made_an_engine_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given, made = FakeEngine(len), FakeEngine(len)
    monkeypatch.setattr("teola_plugin.runtime.engines.build.build", lambda config: made)
    measure(given, op="embedding", budget_s=0.01)
    measure(EngineConfig("made", "profile_embedding", profile=BENT), op="embedding", budget_s=0.01)
    assert (given.is_closed, made.is_closed) == (False, True)


def test_who_is_interrupted_waits_until_all_is_cleared_up(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, cleared = threading.Event(), list[bool]()
    submit = asyncio.run_coroutine_threadsafe

    async def work() -> None:
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            cleared.append(True)

    def interrupted(coroutine: Any, loop: asyncio.AbstractEventLoop) -> Any:
        future = submit(coroutine, loop)

        def result() -> None:
            assert begun.wait(20)
            raise KeyboardInterrupt

        future.result = result  # type: ignore[method-assign, assignment]
        return future

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measuring._on_host(work())
    assert cleared == [True]


# --- engines that do not answer -----------------------------------------------------------------------------


def test_an_engine_that_fails_is_named() -> None:
    engine = ProfileEmbedding(8, Profile.affine(1e-6), fail_on=lambda payload: ValueError("no room"))
    with pytest.raises(EngineError, match="engine 'embedder' failed while it was measured: no room"):
        measure(engine)


def test_an_engine_of_another_kind_needs_an_operation() -> None:
    with pytest.raises(EngineError, match="engine 'fake' is a FakeEngine: say what to measure with op="):
        measure(FakeEngine())
    found = measure(FakeEngine(len), op="embedding", budget_s=0.05)
    assert isinstance(found, Profile)


# --- real ones: only that something plausible comes out -----------------------------------------------------


@pytest.mark.real
def test_minilm() -> None:
    config = EngineConfig("mini", "embedding", model=str(minilm_path()), config={"device": "cpu"})
    found = measured(config, max_items=4, lengths=[8, 32], budget_s=1.0)
    part = found.parts[0]
    assert [s.items for s in part.samples[:2]] == [1, 1]
    assert part.samples[0].tokens == pytest.approx(8, abs=3)
    assert part.samples[1].tokens == pytest.approx(32, abs=6)
    assert all(s.seconds > 0 for s in part.samples)
    assert found.profiles == {"mini": part.profile}


@pytest.mark.real
def test_a_store_is_added_to_beside_its_collections(tmp_path: Path) -> None:
    config = EngineConfig(
        "store", "chroma", model=str(tmp_path / "store"), config={"collection": "docs", "create": True}
    )
    found = measured(config, max_items=2, budget_s=0.2)
    assert list(found.profiles) == ["store.ingestion"]
    assert "the collection is empty" in found.notes[0]
    docs = collection(rows=6)
    engine = ChromaEngine(docs, name="docs")
    searched = measured(engine, max_items=4, budget_s=0.2)
    assert list(searched.profiles) == ["docs"], "nothing is written where nobody asked for it"
    assert isinstance(measure(engine, op="ingestion", max_items=2, budget_s=0.2), Profile)
    assert docs.count() == 6
    import chromadb

    assert not [c.name for c in chromadb.EphemeralClient().list_collections() if c.name.startswith("teola-profile")]
    with pytest.raises(EngineError, match="its collection is empty"):
        measure(ChromaEngine(collection(rows=0)))


# --- files --------------------------------------------------------------------------------------------------


def test_profiles_are_put_beside_those_of_others(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    store(path, {"a": PAPER["embedding"], "b": PAPER["embedding"]})
    assert store(path, {"b": BENT}) == load(path) == {"a": PAPER["embedding"], "b": BENT}
    assert [p.name for p in tmp_path.iterdir()] == ["p.json"]


def test_who_reads_a_file_meanwhile_sees_all_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    save(path, {"a": PAPER["embedding"]})
    before = path.read_text()
    with path.open() as reader:
        store(path, {"a": BENT})
        assert reader.read() == before


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.json"
    save(path, {"a": BENT})

    def fails(path: Path, profiles: object) -> None:
        path.write_text("{ha")
        raise OSError("no room")

    monkeypatch.setattr("teola_plugin.profiling.measuring.save", fails)
    with pytest.raises(ProfileError, match=r"cannot write .*p\.json: no room"):
        store(path, {"b": BENT})
    assert load(path) == {"a": BENT}
    assert [p.name for p in tmp_path.iterdir()] == ["p.json"]


# --- the command --------------------------------------------------------------------------------------------

TOML = """
[engines.embedder]
kind = "profile_embedding"
max_items = 4
[engines.embedder.profile]
points = [[1, 0.0005]]
[engines.llm]
kind = "profile_llm"
max_items = 2
[engines.llm.profile.prefill]
points = [[1, 0.0005]]
[engines.llm.profile.step]
points = [[1, 0.0001]]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "engines.toml").write_text(TOML)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def teola(*args: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, ["profile", *args])


def test_the_command_measures_the_engines_of_a_file(folder: Path) -> None:
    save(folder / "p.json", {"other": BENT})
    done = teola("engines.toml", "--budget", "0.3", "-o", "p.json")
    assert done.exit_code == 0, done.output
    for said in ("items/s", "embedding: knee at", "prefill: knee at", "decode step: knee at", "(embedder, llm)"):
        assert said in done.output
    assert max(len(line) for line in done.output.splitlines() if ": " not in line) <= 80, "the table"
    found = load(folder / "p.json")
    assert set(found) == {"other", "embedder", "llm"}
    assert isinstance(found["llm"], LlmProfile)
    (folder / "again.toml").write_text('[engines.embedder]\nkind = "profile_embedding"\nprofile = "p.json"')
    assert load_engines("again.toml")["embedder"].latency_profile() == found["embedder"]


@pytest.mark.usefixtures("folder")
def test_the_command_measures_some_of_them_or_one_without_a_file() -> None:
    assert teola("engines.toml", "--engine", "embedder", "--budget", "0.1").exit_code == 0
    assert list(load(Path("profiles.json"))) == ["embedder"]
    config = json.dumps({"concurrent": True})
    done = teola(
        "--kind", "custom", "--executable", "tests.support.fakes:FakeEngine", "--config", config, "--op", "embedding",
        "--name", "own", "--budget", "0.1", "--tokens", "4,8", "--max-items", "2",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert list(load(Path("profiles.json"))) == ["embedder", "own"]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        ([], 2, "give a file of engines, or --kind"),
        (["engines.toml", "--kind", "embedding"], 2, "give a file of engines, or --kind"),
        (["engines.toml", "--tokens", "a"], 2, "--tokens"),
        (["engines.toml", "-o", "none/p.json"], 2, "there is no folder"),
        (["engines.toml", "--engine", "embeder"], 1, "engines.toml has no engine 'embeder'; there are embedder, llm"),
        (["none.toml"], 1, "cannot read none.toml"),
        (["--kind", "embeding", "--model", "m"], 1, "did you mean 'embedding'"),
        (["--kind", "embedding", "--model", "./none"], 1, "there is no ./none"),
        (["engines.toml", "-o", "corrupt.json"], 1, "corrupt.json: embedder.token_s"),
    ],
)
def test_the_command_says_what_is_wrong(args: list[str], status: int, said: str) -> None:
    Path("corrupt.json").write_text('{"embedder": {"points": [[1, 0.5]], "token_s": "fast"}}')
    done = teola(*args)
    assert done.exit_code == status, done.output
    assert said in " ".join(done.output.replace("│", " ").split())
    assert "Traceback" not in done.output


def test_a_corrupt_file_is_told_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.json"
    path.write_text("{")
    monkeypatch.setattr(report, "measured", lambda *_, **__: pytest.fail("it was measured"))
    config = EngineConfig("a", "profile_embedding", profile=BENT)
    with pytest.raises(ProfileError, match=r"p\.json: no JSON"):
        report.profile_engines([config], path, Console(quiet=True), lambda text: None)


def test_an_engine_that_fails_does_not_stop_the_others(folder: Path) -> None:
    bad = '[engines.bad]\nkind = "custom"\nexecutable = "tests.nowhere:make"\n'
    (folder / "engines.toml").write_text(bad + TOML)
    done = teola("engines.toml", "--budget", "0.1")
    assert done.exit_code == 1
    assert "bad: engine 'bad': executable: there is no module 'tests.nowhere'" in done.output
    assert set(load(folder / "profiles.json")) == {"embedder", "llm"}


def test_ctrl_c_keeps_what_is_done_and_says_so(folder: Path) -> None:
    """In a process of its own: signals are real. The second engine takes for ever."""
    (folder / "engines.toml").write_text(
        TOML.split("[engines.llm]")[0]
        + '[engines.slow]\nkind = "profile_embedding"\n[engines.slow.profile]\npoints = [[1, 1000.0]]'
    )
    process = subprocess.Popen(
        [
            sys.executable, "-c",
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
            "from teola_plugin.cli import app; app()",
            "profile", "engines.toml", "--budget", "0.1",
        ],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    while not (folder / "profiles.json").exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "slow: not finished, so not kept\nkept in profiles.json: embedder\n" in out
    assert list(load(folder / "profiles.json")) == ["embedder"]


def test_ctrl_c_before_anything_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(*_: object, **__: object) -> profiling.Measured:
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "measured", stops)
    config = EngineConfig("a", "profile_embedding", profile=BENT)
    with (tmp_path / "out").open("w") as out, pytest.raises(KeyboardInterrupt):
        report.profile_engines([config], tmp_path / "p.json", Console(file=out), lambda text: None)
    assert f"nothing was written to {tmp_path / 'p.json'}" in (tmp_path / "out").read_text()

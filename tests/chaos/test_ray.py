"""Engines on Ray under fire: processes that are killed and frozen, drivers that come and go, and bad input."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from teola_plugin import runtime
from teola_plugin.cli import app
from teola_plugin.engines import EngineSpec, Failed
from teola_plugin.errors import DeadlineExceeded, EngineError, Poisoned, TeolaError
from teola_plugin.profile import Profile
from teola_plugin.registry import EngineConfig
from teola_plugin.runtime.hosts.local import Query
from teola_plugin.runtime.hosts.ray import engines as rays
from teola_plugin.runtime.hosts.ray.cluster import connect
from teola_plugin.runtime.hosts.remote.client import RemoteEngine
from teola_plugin.seams import Reply
from teola_plugin.tenancy import Terms
from tests.chaos.apps import IS_FULL
from tests.chaos.ray_nodes import alive, far_node, lose
from tests.chaos.ray_world import (
    CONFIGS,
    answer,
    ask,
    expected,
    idle,
    prepared,
    processes_in,
    stats,
    wait_for,
)
from tests.chaos.reaper import Reaper

QUERIES_A_SECOND = 20 if IS_FULL else 10
SECONDS = 60 if IS_FULL else 8
DEADLINE_S = 30.0
CANCELS = 500 if IS_FULL else 100
LATE_S = 8 if IS_FULL else 3

CPUS = 2
"""Of the cluster, which starts a process for each beforehand. An engine here takes a tenth of one."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_health_check_period_ms", "500")  # it is asked five times whether a node is lost
        ray = connect(num_cpus=CPUS)
    yield ray
    runtime.host.close()
    ray.shutdown()
    os.environ.pop("RAY_ADDRESS", None)


CHAIN = """
inputs(question)
kv = prefilling(question) @ llm
text = decoding(kv, max_tokens=8, temperature=0) @ llm
vector = embedding(text) @ embedder
outputs(text, vector)
"""
DRIVER = """
import json, sys
from teola_plugin import runtime
from teola_plugin.runtime.hosts.ray.engines import attach
from teola_plugin.seams import Reply

engine = attach("shared")
print("ready", flush=True)
sys.stdin.readline()
replies = [Reply() for _ in range(8)]
runtime.host.submit(engine, "embedding", [f"driver {i}" for i in range(8)], {}, replies)
print(json.dumps([r.result().tolist() for r in replies]), flush=True)
runtime.host.close()
"""


def test_two_drivers_share_an_engine_and_its_batches(cluster: Any, tmp_path: Path) -> None:
    shared = replace(CONFIGS["embedder"], name="shared", profile=Profile.affine(0.5), max_items=64)
    engine = rays.start(shared)
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(DRIVER))
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        first = ask(engine, ["warm"])  # half a second, in which the others come together
        time.sleep(0.1)
        driver.stdin.write("go\n")
        driver.stdin.flush()
        mine = ask(engine, [f"driver {i}" for i in range(8)])
        theirs = json.loads(driver.stdout.readline())
        assert [r.result().tolist() for r in mine] == theirs
        assert first[0].result() is not None
        driver.wait(30)
    assert stats(cluster, "shared")["done"] + stats(cluster, "shared")["joined"] == 17
    assert stats(cluster, "shared")["joined"] > 0, "what two drivers ask for at the same time is computed once"


def test_an_engine_of_another_model_is_refused(cluster: Any) -> None:
    rays.start(replace(CONFIGS["embedder"], name="taken"))
    other = replace(CONFIGS["embedder"], name="taken", identity="0123456789")
    with pytest.raises(EngineError, match=r"'taken' exists with another identity.*teola engines stop taken"):
        rays.start(other)
    with pytest.raises(EngineError, match="exists with another kind"):
        rays.start(replace(CONFIGS["reranker"], name="taken"))


def test_what_cannot_be_placed_says_what_is_missing(cluster: Any) -> None:
    with pytest.raises(EngineError, match=r"1 instances of .*1 GPU each do not fit.*has .*0 GPU"):
        rays.start(replace(CONFIGS["embedder"], name="wants-gpu", num_gpus=1))
    with pytest.raises(EngineError, match="50 CPU each do not fit"):
        rays.start(replace(CONFIGS["embedder"], name="wants-much", num_cpus=50, instances=2))
    with pytest.raises(EngineError, match="no engine 'nobody'"):
        rays.attach("nobody")


def test_an_engine_that_cannot_be_built_says_why(cluster: Any) -> None:
    with pytest.raises(TeolaError, match="/nowhere"):
        rays.start(EngineConfig("broken", "embedding", model="/nowhere", num_cpus=0.1))
    assert "broken" not in [each.name for each in rays.engines() if each.hello]


def test_a_dead_address_is_told_from_a_missing_one() -> None:
    addresses = ["127.0.0.1:1", "ray://127.0.0.1:1", "nonsense"]
    code = (
        "from teola_plugin.runtime.hosts.ray.cluster import connect\n"
        "from teola_plugin.errors import EngineError\n"
        f"for address in {addresses}:\n"
        "    try:\n        connect(address)\n    except EngineError as e:\n        print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    said = done.stdout.splitlines()
    assert len(said) == len(addresses)
    assert all(repr(address) in line and "Ray" in line for address, line in zip(addresses, said, strict=True))


@pytest.mark.parametrize(
    ("set_to", "said"), [("", r"'[\d.]+:1'"), ("ray://127.0.0.1:2", "'ray://127.0.0.1:2'")], ids=["noted", "set"]
)
def test_a_cluster_that_died_is_not_waited_for(set_to: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    code = (
        "import functools, ray._private.services\n"
        "from teola_plugin.runtime.hosts.ray.cluster import connect\n"
        "ray._private.services.find_gcs_addresses = functools.cache(set)  # not those of other tests\n"
        "connect('auto')"
    )
    environment = {**os.environ, "RAY_TMPDIR": str(tmp_path), "RAY_ADDRESS": set_to}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert re.search(f"EngineError: there is no Ray at {said}", done.stderr), done.stderr


def test_instances_are_added_and_taken_away_under_load(cluster: Any) -> None:
    engine = rays.start(
        replace(CONFIGS["embedder"], name="scaled", instances=2, profile=Profile.affine(0.05), max_items=4)
    )
    load = ask(engine, [f"text {i}" for i in range(100)])
    assert rays.scale("scaled", 3) == 3
    load += ask(engine, [f"text {i}" for i in range(100, 200)])
    assert rays.scale("scaled", 1) == 1
    load += ask(engine, [f"text {i}" for i in range(200, 220)])
    assert len({r.result().tobytes() for r in load}) == 220
    assert idle(cluster, "scaled")
    assert rays.stop("scaled") == 0
    assert "scaled" not in [each.name for each in rays.engines()]


GONE_S = 30


def one_of(most: int, folder: Path, instances: int) -> EngineConfig:
    """An engine whose instances tell their processes; only `most` of them can be built."""
    return EngineConfig(
        f"counted-{folder.name}", "custom", executable="tests.chaos.ray_world:make_one_of", num_cpus=0.1,
        instances=instances, config={"most": most, "folder": str(folder)},
    )  # fmt: skip


@pytest.mark.real
def test_no_process_is_left_of_instances_that_were_taken_away(cluster: Any, tmp_path: Path) -> None:
    config = one_of(9, tmp_path, instances=3)
    engine = rays.start(config)
    before = processes_in(tmp_path)
    assert len(before) == 3
    assert rays.scale(config.name, 1) == 1
    until_s = time.monotonic() + GONE_S
    while len(left := processes_in(tmp_path)) > 1 and time.monotonic() < until_s:
        time.sleep(0.05)
    assert len(left) == 1
    assert ask(engine, ["still there"])[0].result() == "still there"
    rays.stop(config.name)
    assert not psutil.wait_procs(left, timeout=GONE_S)[1]


@pytest.mark.real
def test_instances_that_are_taken_away_end_their_work_first(cluster: Any) -> None:
    slow = replace(CONFIGS["embedder"], name="leaving", instances=3, profile=Profile.affine(1.0), max_items=1)
    engine = rays.start(slow)
    load = ask(engine, [f"text {i}" for i in range(3)])
    while stats(cluster, "leaving")["running"] < 3:
        time.sleep(0.02)
    assert rays.scale("leaving", 1) == 1
    assert len({reply.result().tobytes() for reply in load}) == 3
    assert stats(cluster, "leaving")["repeated"] == 0
    rays.stop("leaving")


@pytest.mark.real
def test_no_process_is_left_of_a_start_that_failed(cluster: Any, tmp_path: Path) -> None:
    """The first two of three can be built. Their actor lives on, as it does when somebody else has made it."""
    config = one_of(2, tmp_path, instances=3)
    actor = cluster.remote(rays.EngineActor).options(num_cpus=0, max_concurrency=9).remote(config.to_json())
    with pytest.raises(TeolaError, match="there are 2 already"):
        cluster.get(actor.hello.remote(), timeout=120)
    assert len(list(tmp_path.iterdir())) == 2
    assert not psutil.wait_procs(processes_in(tmp_path), timeout=GONE_S)[1]
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(TeolaError, match="there are 2 already"):  # it tries again, and finds the room it had
        cluster.get(actor.hello.remote(), timeout=120)
    assert len(list(tmp_path.iterdir())) == 2
    assert not psutil.wait_procs(processes_in(tmp_path), timeout=GONE_S)[1]
    cluster.kill(actor)


@pytest.mark.real
def test_what_failed_to_start_is_not_there_any_more(cluster: Any, tmp_path: Path) -> None:
    config = one_of(0, tmp_path, instances=1)
    with pytest.raises(TeolaError, match="there are 0 already"):
        rays.start(config)
    with pytest.raises(EngineError, match="no engine"):
        rays.attach(config.name)


def test_a_poisoned_item_fails_alone_wherever_it_crashes_its_process(cluster: Any) -> None:
    engine = rays.start(
        EngineConfig("fragile", "custom", executable="tests.chaos.ray_world:make_fragile", num_cpus=0.1)
    )
    replies = ask(engine, ["a", "b", "bad", "c", "d"])
    wait_for(replies, 120)
    assert [type(r.outcome.error) for r in replies if isinstance(r.outcome, Failed)] == [Poisoned]
    assert [r.result() for i, r in enumerate(replies) if i != 2] == ["a", "b", "c", "d"]
    assert ask(engine, ["after"])[0].result() == "after"


def test_cancels_at_random_moments_leave_the_engine_idle(cluster: Any) -> None:
    engine = rays.start(replace(CONFIGS["llm"], name="cancelled"))
    drawn = random.Random(5)
    replies = []
    for i in range(CANCELS):
        (reply,) = ask(engine, [f"prompt {i}"], "decoding", max_tokens=200, temperature=0.0)
        threading.Timer(drawn.random(), reply.cancel_unless_ended).start()
        replies.append(reply)
        time.sleep(0.005)
    wait_for(replies, 60)
    assert idle(cluster, "cancelled")
    assert runtime.host.load(engine) == (0, 0)


def test_a_node_that_is_lost_takes_nobody_down_with_it(cluster: Any) -> None:
    (head,) = alive(cluster)
    embedder = replace(CONFIGS["embedder"], profile=Profile.affine(0.01))
    with far_node(cluster) as node:
        near = rays.start(replace(embedder, name="near", resources={"node:__internal_head__": 0.1}))
        far = rays.start(replace(embedder, name="far", resources={"far": 1}, instances=2))
        assert far.hello.instances == 2
        assert rays.nodes_of("near") == [head]
        assert {*rays.nodes_of("far")} == {*alive(cluster)} - {head}
        texts = [f"text {i}" for i in range(20)]
        vectors = [[reply.result().tobytes() for reply in ask(engine, texts)] for engine in (near, far)]
        assert vectors[0] == vectors[1]
        with pytest.raises(EngineError, match="do not fit"):
            rays.start(replace(embedder, name="nowhere", resources={"far": 3}, instances=2))
        lose(node)
    while len(alive(cluster)) > 1:
        time.sleep(0.05)
    now_s = time.monotonic()
    late = Reply()
    runtime.host.submit(far, "embedding", ["late"], {}, [late], query=Query(1, Terms("", now_s + LATE_S), now_s))
    with pytest.raises(DeadlineExceeded):
        late.result()
    assert ask(near, ["again"])[0].result().shape == (16,)
    cluster.kill(cluster.get_actor(rays.PREFIX + "far", namespace="teola"))  # it waits for its node


def test_nothing_is_lost_doubled_or_wrong_while_engines_are_killed(cluster: Any) -> None:
    engines = {name: rays.start(config) for name, config in CONFIGS.items()}
    graph = prepared(engines)
    questions = [f"question {i} about {i * 7 % 31}" for i in range(QUERIES_A_SECOND * SECONDS)]
    known = expected(questions)
    reaper = Reaper(engines)
    reaper.start()
    asked: list[tuple[int, Future[str], float]] = []
    latencies: dict[int, float] = {}
    began_s = time.monotonic()
    drawn = random.Random(3)
    due_s = 0.0
    for i, question in enumerate(questions):
        due_s += drawn.expovariate(QUERIES_A_SECOND)
        time.sleep(max(0.0, began_s + due_s - time.monotonic()))
        future = asyncio.run_coroutine_threadsafe(answer(graph, question, DEADLINE_S), runtime.host.loop)
        at_s = time.monotonic()
        future.add_done_callback(lambda _, i=i, at_s=at_s: latencies.__setitem__(i, time.monotonic() - at_s))
        asked.append((i, future, at_s))
    wait([future for _, future, _ in asked], timeout=DEADLINE_S + 30)
    reaper.over.set()
    reaper.join()
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for i, future, _ in asked:
        if not future.done():
            outcomes["lost"] += 1
        elif error := future.exception():
            outcomes[type(error).__name__] += 1
            if not isinstance(error, TeolaError):
                wrong.append(repr(error))
        else:
            outcomes["done"] += 1
            if future.result() != known[i]:
                wrong.append(f"{questions[i]}: {future.result()!r}")
    times = sorted(latencies.values())
    print(
        f"\n{len(asked)} queries, {dict(reaper.did)}: {dict(outcomes)}; P50 {times[len(times) // 2]:.2f} s, "
        f"P99 {times[int(len(times) * 0.99)]:.2f} s, worst {times[-1]:.2f} s"
    )
    assert wrong == []
    assert outcomes["lost"] == 0
    assert outcomes["done"] >= 0.99 * len(asked)
    assert reaper.did["kill"] > 0
    for name, engine in engines.items():
        assert idle(cluster, name)
        assert runtime.host.load(engine) == (0, 0)
        counts = runtime.host.counts(engine)
        assert (counts.open, counts.lost) == (0, 0)


ENGINES = """
[engines.declared]
kind = "profile_embedding"
config = { dim = 8 }
instances = 2
num_cpus = 0.1
policy = "to"
profile = { points = [[0, 0.001], [1, 0.001]] }
"""


def teola(*arguments: str) -> str:
    """In a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "teola_plugin.cli", "engines", *arguments],
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    return f"{done.returncode} {done.stdout}{done.stderr}"


def teola_here(*arguments: str) -> str:
    """In this process, which is connected already."""
    done = CliRunner().invoke(app, ["engines", *arguments], env={"COLUMNS": "200"})
    return f"{done.exit_code} {done.output}"


def test_the_command_starts_lists_scales_and_stops(cluster: Any, tmp_path: Path) -> None:
    path = tmp_path / "engines.toml"
    path.write_text(ENGINES)
    assert teola("start", str(path)).startswith("0 declared: profile_embedding")
    engine = rays.attach("declared")
    assert ask(engine, ["still there, although its starter has gone"])[0].result().shape == (8,)
    assert teola_here("scale", "declared", "3") == "0 declared: 3 instances\n"
    listed = next(line for line in teola_here("list").splitlines() if "declared" in line)
    assert [cell.strip() for cell in listed.split("│")[2:5]] == ["profile_embedding", "", "3"]
    assert teola("stop", "declared") == "0 declared: stopped\n"
    assert "no engine 'declared'" in teola_here("stop", "declared")
    assert teola_here("start", str(path), "--engine", "another").startswith("1 teola: ")


def test_a_pipeline_moves_to_ray_but_for_what_only_this_process_has(cluster: Any) -> None:
    import torch
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate
    from sentence_transformers import SentenceTransformer

    from teola_plugin import compare, explain, optimize
    from teola_plugin.demo.tiny_model import minilm_path
    from teola_plugin.models.langchain import EngineChatModel
    from teola_plugin.runtime.engines import engine_for
    from teola_plugin.runtime.engines.build import build
    from teola_plugin.runtime.hosts.selection import place

    llm = EngineChatModel(engine=build(replace(CONFIGS["llm"], name="pipeline-llm")), max_tokens=8, temperature=0.0)
    say = llm | StrOutputParser()
    chain = {
        "a": ChatPromptTemplate.from_template("one {x}") | say,
        "b": ChatPromptTemplate.from_template("two {x}") | say,
    } | ChatPromptTemplate.from_template("{a} and {b}")
    fast = optimize(chain, runtime="ray")
    compared = compare(chain, [{"x": "tree"}], optimized=fast, repeats=2)
    assert compared.equal
    assert compared.hits > 0
    there = engine_for(EngineSpec("engine", llm.engine))
    assert isinstance(there, RemoteEngine)
    assert there._transport._near, "on one machine it is called by its socket"  # type: ignore[attr-defined]
    changed = SentenceTransformer(str(minilm_path()), device="cpu")
    with torch.no_grad():
        next(changed.parameters()).add_(0.5)
    staying = place({"embedder": EngineSpec("sentence_transformer", changed, "embedder")}, "ray")
    assert "changed after it was loaded" in staying["embedder"]
    assert place({"embedder": EngineSpec("python", object(), "other")}, "ray")["embedder"].startswith("a store or")
    assert "llm" in explain(fast)
    optimize(chain, runtime="local")
    assert not isinstance(engine_for(EngineSpec("engine", llm.engine)), RemoteEngine)

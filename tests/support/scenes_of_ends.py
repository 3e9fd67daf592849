"""Scenes of one engine: that work comes to its end, whatever holds it up, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from typing import Any

from teola_plugin.engines import WRITES, Done
from teola_plugin.errors import DeadlineExceeded, EngineClosed, EngineError
from teola_plugin.runtime.scheduler.work_table import ROOM
from teola_plugin.runtime.scheduler.worker import Rules
from tests.support.faulty_engines import Faults, Instance, Restartable
from tests.support.scene import LLM, Scene, error_of
from tests.support.simulated_requests import GREEDY, SAMPLED


async def far_deadlines_leave_nothing() -> list[str]:
    scene = Scene()
    stays = scene.ask("ok:stays", deadline_s=1e6)
    scene.engine.instances[0]._faults.hang = 0.0
    for n in range(300):
        scene.ask(f"ok:{n}a", f"ok:{n}b", deadline_s=1e6)
        await asyncio.sleep(0.12)
    kept = len(scene.worker._table._deadlines)
    scene.expect(kept <= 2 * len(scene.worker._table.open()) + ROOM + 1, f"{kept} deadlines of items that ended")
    await scene.until_all_ended()
    scene.expect(stays[0].outcome is not None and scene.worker.is_clear, "something is kept")
    return scene.problems


async def late_ones_end_in_any_state() -> list[str]:
    """Queued, running, hanging, and where the engine cannot even be told."""

    class Deaf(Instance):
        def abort(self, ids: Any) -> None:
            raise RuntimeError("cannot")

    scene = Scene(LLM, Faults(hang=1.0), kind=Deaf)
    for n in range(12):
        scene.ask(f"ok:{n}", op="decoding", settings=SAMPLED, deadline_s=1 + n / 10)
    before = scene.ask("ok:before", op="decoding", settings=GREEDY, deadline_s=0.0)
    await asyncio.sleep(5)
    for n, reply in enumerate(scene.replies[:12]):
        scene.expect(isinstance(error_of(reply), DeadlineExceeded), f"{reply.outcome}")
        scene.expect(reply.ended_s <= 1 + n / 10 + 1e-6, f"ended {reply.ended_s - 1 - n / 10} s too late")
    scene.expect(isinstance(error_of(before[0]), DeadlineExceeded), "what came too late was taken in")
    scene.expect("ok:before" not in scene.served(), "what came too late reached the engine")
    return scene.problems


async def what_hangs_is_ended_though_nobody_waits() -> list[str]:
    """Or it would keep its slots for ever."""
    problems: list[str] = []
    for kind in (Instance, Restartable):
        scene = Scene(faults=Faults(hang=1.0), kind=kind, rules=Rules(stall_s=5.0))
        scene.ask("ok:1", "ok:2", deadline_s=1.0)
        await asyncio.sleep(2)
        after = scene.ask("ok:after", deadline_s=scene.loop.time() + 60)
        await scene.until_all_ended()
        scene.expect(isinstance(after[0].outcome, Done), f"{kind.__name__}: after a hang {after[0].outcome}")
        problems += scene.problems
    return problems


async def a_process_in_which_several_hang_is_ended_once() -> list[str]:
    """What it is ended for hears of it a while later; meanwhile others have been silent for too long."""

    class Slow(Restartable):
        restarts = 0

        def restart(self) -> None:
            Slow.restarts += 1
            asyncio.get_running_loop().call_later(3.0, self.crash, "was ended")

    scene = Scene(LLM, Faults(hang=1.0), kind=Slow, rules=Rules(stall_s=5.0))
    for n in range(2):
        scene.ask(f"ok:{n}a", f"ok:{n}b", op="decoding", settings=SAMPLED)
        await asyncio.sleep(1)
    await asyncio.sleep(4.5)
    scene.expect(scene.worker.counts.stalls == 2, f"{scene.worker.counts.stalls} stalls")
    scene.expect(Slow.restarts == 1, f"its process was ended {Slow.restarts} times")
    scene.engine.instances[0]._faults.hang = 0.0
    await scene.until_all_ended()
    return scene.problems


async def an_engine_that_never_recovers_keeps_nobody() -> list[str]:
    scene = Scene(faults=Faults(never_recovers=True))
    scene.ask("crasher:1", "ok:1", deadline_s=30.0)
    await scene.until_all_ended()
    scene.expect(
        all(isinstance(error_of(r), DeadlineExceeded) and r.ended_s <= 30.0 for r in scene.replies), "not by then"
    )
    gone = Scene(faults=Faults(bad_recoveries=1))
    gone.ask("crasher:1", "ok:1")
    await gone.until_all_ended()
    again = gone.ask("ok:2")
    await gone.until_all_ended()
    gone.expect(isinstance(again[0].outcome, Done), f"the next request: {again[0].outcome}")
    await scene.host.aclose()
    return scene.problems + gone.problems


async def an_answer_before_its_time() -> list[str]:
    """`run` returns, and says only then what it has."""

    class Hasty(Instance):
        async def run(self, batch: Any, emit: Any) -> None:
            for at, item in enumerate(batch.items):
                asyncio.get_running_loop().call_later(1.0, emit, at, Done(f"late {item.payload}"))

    scene = Scene(kind=Hasty)
    scene.ask("ok:1")
    scene.ask("ok:2", op=next(iter(WRITES)))
    await scene.until_all_ended()
    scene.expect(all(isinstance(error_of(reply), EngineError) for reply in scene.replies), "a stale answer was told")
    await asyncio.sleep(5)
    scene.expect(scene.worker.counts.late == 3 and scene.worker.counts.open == 0, f"{scene.worker.counts}")
    return scene.problems


async def closing_in_the_middle() -> list[str]:
    scene = Scene(LLM)
    for n in range(12):
        scene.ask(f"ok:{n}", op="decoding", settings=GREEDY)
    await asyncio.sleep(0.2)
    worker = scene.worker
    await scene.host.aclose()
    after = scene.ask("ok:after", op="decoding", settings=GREEDY)
    await scene.until_all_ended()
    scene.expect(all(isinstance(error_of(reply), EngineClosed) for reply in scene.replies[1:]), "another end")
    scene.expect(
        isinstance(error_of(after[0]), EngineClosed) and worker.is_clear, f"something is left: {worker.counts}"
    )
    return scene.problems


SCENES = (
    far_deadlines_leave_nothing,
    late_ones_end_in_any_state,
    what_hangs_is_ended_though_nobody_waits,
    a_process_in_which_several_hang_is_ended_once,
    an_engine_that_never_recovers_keeps_nobody,
    an_answer_before_its_time,
    closing_in_the_middle,
)

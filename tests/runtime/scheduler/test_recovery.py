"""An instance that crashed is taken to work again, sooner or later (runtime/scheduler/recovery.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from teola_plugin.engines import Batch, Capabilities
from teola_plugin.runtime.hosts.virtual_time import VirtualLoop
from teola_plugin.runtime.scheduler.batching import EngineScheduler
from teola_plugin.runtime.scheduler.policies import POLICIES
from teola_plugin.runtime.scheduler.recovery import AGAIN_S, Recovery
from teola_plugin.runtime.scheduler.work_item import Attempt
from teola_plugin.runtime.scheduler.work_table import Counts


class Stubborn:
    """Comes back after it has failed to so many times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    async def recovered(self) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise OSError("no")


def attempt(instance: Any, at: int) -> Attempt:
    made = Attempt(Batch("embedding", {}, (), at), (), 0.0, 0.0)
    made.engine = instance
    return made


@pytest.mark.parametrize(
    ("failures", "others", "expected"),
    [
        (0, 1, (0.0, True, [])),
        (2, 1, (sum(AGAIN_S[:2]), True, [])),
        (99, 1, (sum(AGAIN_S), True, [])),  # whoever is sent there next finds out
        (99, 0, (0.0, True, ["no"])),
    ],
    ids=["at once", "later", "never", "alone"],
)
def test_an_instance_that_could_not_recover_is_tried_again_while_others_work(
    failures: int, others: int, expected: tuple[float, bool, list[str]]
) -> None:
    async def crashed() -> tuple[float, bool, list[str]]:
        scheduler = EngineScheduler(POLICIES["to"], Capabilities(), replicas=1 + others)
        tasks: list[asyncio.Task[None]] = []
        gone: list[str] = []
        loop = asyncio.get_running_loop()

        def spawn(work: Any) -> None:
            tasks.append(loop.create_task(work))

        recovery = Recovery(
            "engine", scheduler, Counts(), None, spawn=spawn, back=lambda: None, gone=lambda e: gone.append(str(e))
        )
        instance: Any = Stubborn(failures)
        recovery.crashed(attempt(instance, 0))
        assert not scheduler.replicas.is_up(0)
        await asyncio.gather(*tasks)
        return loop.time(), scheduler.replicas.is_up(0), gone

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(crashed()) == expected


def test_an_instance_that_has_left_does_not_speak_for_the_one_in_its_place() -> None:
    class Slow:
        def __init__(self, takes_s: float) -> None:
            self.takes_s = takes_s

        async def recovered(self) -> None:
            await asyncio.sleep(self.takes_s)

    async def crashed() -> None:
        scheduler = EngineScheduler(POLICIES["to"], Capabilities(), replicas=2)
        tasks: list[asyncio.Task[None]] = []

        def spawn(work: Any) -> None:
            tasks.append(asyncio.get_running_loop().create_task(work))

        recovery = Recovery("engine", scheduler, Counts(), None, spawn=spawn, back=lambda: None, gone=lambda e: None)
        one, other = Slow(1.0), Slow(2.0)
        recovery.crashed(attempt(one, 1))
        scheduler.resize(1)
        scheduler.resize(2)
        assert scheduler.replicas.is_up(1)
        recovery.crashed(attempt(other, 1))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert not scheduler.replicas.is_up(1)
        await asyncio.gather(*tasks)
        assert scheduler.replicas.is_up(1)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(crashed())

"""Whole lives of engines and their clients, drawn from a seed and run in virtual time.

    problems = simulate(seed)        # the same each time; [] if the contract of the runtime held

What a world is, and what happens in it: simulated_world.py. What each reply has to come to: simulated_ends.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from teola_plugin.runtime.hosts.virtual_time import Stuck, VirtualLoop
from tests.support.simulated_ends import judge, judge_rest
from tests.support.simulated_world import World

MOST_STEPS = 1_000_000


def simulate(seed: int) -> list[str]:
    """Run the world of this seed. What was wrong in it."""
    problems: list[str] = []

    async def main() -> None:
        world = World(seed)
        problems.append("did not come to its end")
        await world.live()
        judge(world)
        await world.host.aclose()
        await asyncio.sleep(10)  # late replies
        judge_rest(world)
        problems[:] = world.problems

    return [*in_virtual_time(main), *problems]


class _Bounded(VirtualLoop):
    """A loop in which nothing goes on for ever without end, as a fault might."""

    steps = 0

    def time(self) -> float:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Stuck("it goes on for ever")
        return super().time()


def in_virtual_time(main: Callable[[], Coroutine[Any, Any, None]]) -> list[str]:
    """Run it. What the event loop had to complain of."""
    logging.getLogger("teola_plugin.runtime").setLevel(logging.CRITICAL)
    problems: list[str] = []
    try:
        with asyncio.Runner(loop_factory=_Bounded) as runner:
            runner.get_loop().set_exception_handler(lambda loop, told: problems.append(f"loop: {told}"))
            runner.run(main())
    except Exception as e:  # a problem, whatever it is
        problems.append(f"{type(e).__name__}: {e}")
    return problems

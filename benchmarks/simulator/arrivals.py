"""Many queries that arrive at random, such as graphs without a framework (runtime/session/graph_runner.py).

    arrivals = poisson(2.0, {"rag": 3, "chat": 1}, count=200, seed=7)
    ended = await drive(arrivals, lambda a: run_query(host, apps[a.app], {"question": f"question {a.number}"}))

On a virtual loop (runtime/hosts/virtual_time.py) it is a simulation: the host of real runs on profile engines, or on
the simulator's, in virtual time, the same each time. On an ordinary loop it takes as long as it says. All seconds are
of the loop's clock.

The load is open: a query comes when it comes, whether those before it have ended or not. Gaps are drawn in units of the
mean gap, so that with one seed the same queries come in the same order at every rate, only closer together.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrival:
    """A query of `app` that comes `at_s` seconds after the first could; `number` tells it from all others."""

    number: int
    app: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of it: `error` is the exception that it raised, if it did."""

    arrival: Arrival
    latency_s: float
    error: BaseException | None = None


def poisson(rate: float, mix: Mapping[str, float], *, count: int, seed: int) -> list[Arrival]:
    """`count` queries at `rate` a second on average, of apps by their weights.

    >>> [(a.app, round(a.at_s, 2)) for a in poisson(2.0, {"rag": 3, "chat": 1}, count=3, seed=1)]
    [('chat', 0.07), ('rag', 0.79), ('rag', 1.13)]
    """
    drawn = random.Random(seed)
    at_s, arrivals = 0.0, []
    for number in range(count):
        at_s += drawn.expovariate(1.0) / rate
        arrivals.append(Arrival(number, drawn.choices([*mix], [*mix.values()])[0], at_s))
    return arrivals


async def drive(arrivals: Sequence[Arrival], run: Callable[[Arrival], Awaitable[object]]) -> list[Ended]:
    """How each query ended, in the order of the arrivals; `run` runs one."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()

    async def one(arrival: Arrival) -> Ended:
        due_s = began_s + arrival.at_s
        await asyncio.sleep(due_s - loop.time())
        error: BaseException | None = None
        try:
            await run(arrival)
        except Exception as e:  # of one query, which the others have no part in; it is counted
            error = e
        return Ended(arrival, loop.time() - due_s, error)

    return await asyncio.gather(*map(one, arrivals))

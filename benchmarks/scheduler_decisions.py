"""What a decision of an engine's scheduler costs, by how much waits: microseconds for each batch and for each request.

    python benchmarks/scheduler_decisions.py

An LLM with 8 slots is busy; one text ends, and the scheduler chooses what follows, again and again, while as many new
requests come as end. The first number is the median of `next_batch`, the second the mean of a request that comes, both
in CPU time and the best of several rounds. Queries have 1 or 4 requests of several depths and lengths, or all requests
are of one query.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Annotated

import typer

from teola_plugin.engines import Capabilities, Item
from teola_plugin.runtime.scheduler.batching import EngineScheduler
from teola_plugin.runtime.scheduler.policies import POLICIES, Policy
from teola_plugin.runtime.scheduler.work_item import Request, WorkItem

WAITING = (64, 1_024, 4_096, 16_384)
OF_A_QUERY = (1, 4, 1_000_000)
ROW = "{:16}{:>12}" + "{:>20}" * len(WAITING)


def main(
    decisions: Annotated[int, typer.Option(min=10)] = 500, rounds: Annotated[int, typer.Option(min=1)] = 3
) -> None:
    """Print one row for each policy and number of requests of a query."""
    print(ROW.format("policy", "of a query", *(f"{n} wait" for n in WAITING)))
    for policy, size in itertools.product(POLICIES.values(), OF_A_QUERY):
        cells = []
        for waiting in WAITING:
            costs = [_costs_us(policy, waiting, size, decisions) for _ in range(rounds)]
            cells.append(_cell(*map(min, zip(*costs, strict=True))))
        print(ROW.format(policy.name, size if size < OF_A_QUERY[-1] else "all", *cells))


def _cell(decide_us: float, submit_us: float) -> str:
    return f"{decide_us:.0f}, submit {submit_us:.0f}"


def _costs_us(policy: Policy, waiting: int, of_a_query: int, decisions: int) -> tuple[float, float]:
    scheduler = EngineScheduler(policy, Capabilities(8, concurrent=True, prefix=True))
    numbers = itertools.count(1)

    def submit() -> float:
        number = next(numbers)
        query = number // of_a_query
        request = Request(
            "decoding", {"max_tokens": 10}, [], query, depth=number % 3, remaining_s=float(number % 7),
            begun_s=query * 0.01, own_s=1.0,
        )  # fmt: skip
        request.items = [WorkItem(Item(f"text {number}", query, id=number), request)]
        started_s = time.process_time()
        scheduler.submit(request)
        return time.process_time() - started_s

    submitted = [submit() for _ in range(waiting)]
    first = scheduler.next_batch()
    assert first is not None
    running = list(first.works)
    decided = []
    for _ in range(decisions):
        scheduler.finish([running.pop(0)])
        started_s = time.process_time()
        attempt = scheduler.next_batch()
        decided.append(time.process_time() - started_s)
        assert attempt is not None
        running += attempt.works
        submitted.append(submit())
    return 1e6 * statistics.median(decided), 1e6 * statistics.mean(submitted)


if __name__ == "__main__":
    typer.run(main)

"""A scene: one engine in virtual time, what is asked of it, and what has to come of that."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

from teola_plugin.engines import Capabilities, Failed, Taker, Urgency
from teola_plugin.runtime.hosts.local import LocalHost, Query
from teola_plugin.runtime.scheduler.worker import Rules
from teola_plugin.tenancy import Terms
from tests.support.faulty_engines import Faults, Instance, Record, Several
from tests.support.simulated_requests import Watched

BATCHES = Capabilities(max_items=4)
LLM = Capabilities(max_items=4, concurrent=True, abort=True)


class Scene:
    """One engine, made of `kind`, and what is asked of it. An item takes about a tenth of a second."""

    def __init__(
        self, capabilities: Capabilities = BATCHES, faults: Faults | None = None, *, policy: str = "topology",
        kind: type[Instance] = Instance, rules: Rules | None = None, instances: int = 1,
    ) -> None:  # fmt: skip
        self.loop = asyncio.get_running_loop()
        self.problems: list[str] = []
        self.record = Record(self.problems.append)
        each = [
            kind(f"engine{n}", capabilities, faults or Faults(), self.record, random.Random(n))
            for n in range(instances)
        ]
        self.engine = Several(each)
        self.host = LocalHost(policy, rules or Rules(), loop=self.loop)  # type: ignore[arg-type]
        self.replies: list[Watched] = []

    def ask(
        self, *payloads: str, op: str = "embedding", settings: dict[str, Any] | None = None, tenant: str = "",
        deadline_s: float = math.inf, owner: int = 1, depth: int = 0, remaining_s: float = 0.0,
        taker: Taker | None = None,
    ) -> list[Watched]:  # fmt: skip
        replies = [Watched() for _ in payloads]
        self.replies += replies
        self.host.submit(
            self.engine, op, payloads, settings or {}, replies,  # type: ignore[arg-type]
            query=Query(owner, Terms(tenant, deadline_s), self.loop.time()),
            urgency=Urgency(depth, remaining_s, taker=taker),
        )  # fmt: skip
        return replies

    @property
    def worker(self) -> Any:
        return self.host._workers[self.engine]

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.problems.append(what)

    async def until_all_ended(self, within_s: float = 1000.0) -> None:
        until_s = self.loop.time() + within_s
        while any(reply.outcome is None for reply in self.replies) and self.loop.time() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        never = sum(reply.outcome is None for reply in self.replies)
        self.expect(not never, f"{never} replies never ended")
        self.expect(all(reply.puts <= 1 for reply in self.replies), "a reply was told two ends")

    def served(self) -> list[str]:
        """All payloads, in the order in which the engine got them."""
        return [payload for batch in self.record.batches for payload in batch]


def error_of(reply: Watched) -> BaseException | None:
    return reply.outcome.error if isinstance(reply.outcome, Failed) else None

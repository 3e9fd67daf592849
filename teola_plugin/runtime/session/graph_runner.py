"""The run of a graph without a framework: the e-graph runs ahead, and only the caller takes the outputs.

The query ends when all started work has ended, or at the first error, which is raised as the engine or function raised
it. Then waiting and running work is cancelled, and engines release the state of the query.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from teola_plugin.engines import Delta, EngineSpec, Failed, Outcome, Urgency
from teola_plugin.errors import Cancelled, DeadlineExceeded, TeolaError
from teola_plugin.runtime.engines import engine_for
from teola_plugin.runtime.hosts.local import LocalHost, Query
from teola_plugin.runtime.hosts.virtual_time import VirtualLoop
from teola_plugin.runtime.session.plan_executor import PlanExecutor, Prepared
from teola_plugin.runtime.session.slots import Since
from teola_plugin.seams import Reply
from teola_plugin.tenancy import ANYBODY, Terms
from teola_plugin.trace import Function
from teola_plugin.value_keys import snapshot

GRACE_S = 0.01
"""The time after the deadline in which a late engine may report the timeout, with the name of the engine."""


async def run_query(
    host: LocalHost, prepared: Prepared, inputs: Mapping[str, Any], *, terms: Terms = ANYBODY,
    streamed: Sequence[str] = (), tell: Callable[[str], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the outputs, without skipped outputs. `tell` receives the text of the `streamed` decodings.

    Must run on the host's own loop. On a virtual loop the functions of the graph take no time.

    Raises: the first error of an engine or function; DeadlineExceeded; TeolaError for a graph that needs a framework
    (primitives @ pipeline, functions that ask models).
    """
    loop = asyncio.get_running_loop()
    urgencies = [prepared.plan.remaining[name] for name in streamed]
    direct = _Direct(host, prepared, Query(host.new_id(), terms, loop.time()), asyncio.Event(), loop, urgencies, tell)
    is_virtual = isinstance(loop, VirtualLoop)
    late = loop.call_at(terms.deadline_s + GRACE_S, direct.expire) if terms.deadline_s < math.inf else None
    ahead = PlanExecutor(direct.noting_all(prepared, is_virtual), inputs, direct, lambda ran: None, direct.over.set)
    try:
        ahead.start()
        await direct.over.wait()
        outputs = None if direct.errors else ahead.outputs()
        if outputs is None:
            raise next(iter((*direct.errors, *direct.cancelled)), TeolaError("an output waits for a framework's run"))
        return outputs
    finally:
        if late is not None:
            late.cancel()
        ahead.stop()
        direct.close()


@dataclass(slots=True)
class _Direct:
    """Implements `plan_executor.Ahead`. `over`: set at the end, or on a failure. `open`: replies in flight.

    `guessed`: replies of undecided speculative requests, whose errors are dropped.
    """

    host: LocalHost
    prepared: Prepared
    query: Query
    over: asyncio.Event
    loop: asyncio.AbstractEventLoop
    streamed: Sequence[Urgency]
    tell: Callable[[str], None] | None
    open: dict[Reply, None] = field(default_factory=dict)
    errors: list[BaseException] = field(default_factory=list)
    cancelled: list[BaseException] = field(default_factory=list)
    guessed: set[Reply] = field(default_factory=set)
    callers_loop: asyncio.AbstractEventLoop | None = None
    is_retiring_busy: bool = False

    def submit_ahead(
        self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any], urgency: Urgency,
        since: Since | None = None,
    ) -> list[Reply]:  # fmt: skip
        replies = self._submit(spec, op, payloads, settings, urgency)
        if self.streamed and any(urgency is each for each in self.streamed):  # each primitive has an object of its own
            for reply in replies:
                reply.listen(self._hear)
        return replies

    def guess(
        self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any], urgency: Urgency,
        since: Since | None = None,
    ) -> list[Reply] | None:  # fmt: skip
        engine = engine_for(spec)
        if engine.capabilities.is_scheduled and not self.host.begins_at_once(engine, len(payloads)):
            return None  # for other engines the worker decides
        return self._submit(spec, op, payloads, settings, urgency, is_guess=True)

    def settle(self, replies: Sequence[Reply], *, is_wanted: bool) -> None:
        for reply in replies if not is_wanted else ():
            reply.cancel_unless_ended()
        self.guessed.difference_update(replies)

    def prefill(self, spec: EngineSpec, text: Any, settings: Mapping[str, Any], urgency: Urgency) -> None:
        engine = engine_for(spec)
        if engine.capabilities.prefix and isinstance(text, str) and not self.host.is_saturated(engine):
            self._submit(spec, "partial_prefilling", [text], settings, urgency)

    def asking(self, urgency: Urgency, since: Since | None = None) -> NoReturn:
        raise TeolaError("a function that asks models itself needs the session of a framework's call")

    def fell_back(self, error: BaseException) -> None:
        self._fail(error)

    def expire(self) -> None:
        """Fail the query: the deadline has passed."""
        self._fail(DeadlineExceeded("the query had not ended before its deadline"))

    def noting_all(self, prepared: Prepared, at_once: bool) -> Prepared:
        """Return a copy whose functions report errors to the query."""
        functions = {name: self.noting(function, at_once) for name, function in prepared.functions.items()}
        rounds = {
            name: replace(each, each=self.noting_all(each.each, at_once)) for name, each in prepared.rounds.items()
        }
        return replace(prepared, functions=functions, rounds=rounds)

    def noting(self, function: Function, at_once: bool) -> Function:
        """Return a copy of the function that reports errors to the query."""

        def call(*args: Any) -> Any:
            try:
                return function.call(*args)
            except Exception as e:  # around the user's function: raised where the query's result is requested
                self._fail(e)
                raise

        return Function(call, is_glue=(function.is_glue or at_once) and not function.asks, asks=function.asks)

    def close(self) -> None:
        """Cancel the open replies and release the query."""
        for reply in list(self.open):
            reply.cancel_unless_ended()
        self.host.release(self.query.owner)

    def _submit(
        self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any], urgency: Urgency,
        *, is_guess: bool = False,
    ) -> list[Reply]:  # fmt: skip
        replies = [Reply() for _ in payloads]
        if is_guess:
            self.guessed.update(replies)
        for reply in replies:
            self.open[reply] = None
            reply.when_ended(lambda reply=reply: self._ended(reply, op))  # type: ignore[misc]
        engine = engine_for(spec)
        self.host.submit(
            engine, op, snapshot(list(payloads)), settings, replies,
            query=self.query, urgency=urgency,
            gives_way=(lambda: self.guessed.issuperset(replies)) if is_guess else None,
        )  # fmt: skip
        return replies

    def _ended(self, reply: Reply, op: str) -> None:
        self.open.pop(reply, None)
        if isinstance(reply.outcome, Failed) and op != "partial_prefilling" and reply not in self.guessed:
            error = reply.outcome.error
            if isinstance(error, Cancelled):  # a text is stopped once all wanted items are there
                self.cancelled.append(error)
            else:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.errors.append(error)
        self.loop.call_soon_threadsafe(self.over.set)

    def _hear(self, outcome: Outcome) -> None:
        if isinstance(outcome, Delta) and self.tell:
            self.tell(outcome.text)

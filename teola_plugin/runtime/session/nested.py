"""Nested sessions: requests of a function running ahead land in the slots of the surrounding call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from teola_plugin.effects import Assumed
from teola_plugin.engines import EngineSpec, Urgency
from teola_plugin.failures import Withheld
from teola_plugin.runtime.session.slots import Since
from teola_plugin.seams import Reply, Session
from teola_plugin.trace import Mark


class Call(Protocol):
    """The part of `session.Session` that a nested session uses."""

    assumed: Assumed

    def submit_ahead(
        self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any], urgency: Urgency, *,
        since: Since | None, mark: Mark | None,
    ) -> list[Reply]: ...  # fmt: skip

    def claim_ahead(
        self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any], since: Since | None,
        mark: Mark | None,
    ) -> tuple[Reply, bool]: ...  # fmt: skip

    def give_up(self, reply: Reply) -> None: ...

    def withholds(self, spec: EngineSpec) -> bool: ...


class AskedAhead(Session):
    """The session of a function running ahead, whose requests land in the slots of the call.

    `since`: when the function began; by default each request counts as work that begins now. `mark`: see
    `trace.Asides.request`.
    """

    is_unheard = True  # and never closed: the function must not go on to the models themselves

    def __init__(self, call: Call, urgency: Urgency, since: Since | None = None, mark: Mark | None = None) -> None:
        self.assumed = call.assumed
        self.asides = call  # where to go on when the function has ended
        self._call = call
        self._urgency = urgency
        self._since = since
        self._mark = mark

    def ask(self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any]) -> list[Reply]:
        require_asking(self._call, spec)
        theirs = self._call.submit_ahead(
            spec, op, payloads, settings, self._urgency, since=self._since, mark=self._mark
        )
        mine = [Reply() for _ in theirs]
        pass_on(self._call, theirs, mine)
        return mine

    def claim(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        return self._call.claim_ahead(spec, op, payload, settings, self._since, self._mark)


def require_asking(call: Call, spec: EngineSpec) -> None:
    """Check that requests may run ahead at an engine.

    Raises: Withheld if not, since the function would wait until the framework's run has asked.
    """
    if call.withholds(spec):
        raise withheld(spec)


def withheld(spec: EngineSpec) -> Withheld:
    """Return the error that ends a function running ahead where the function would ask this engine."""
    return Withheld(f"{spec.name or spec.kind} is not asked ahead: its provider has failed, or not answered yet")


def pass_on(call: Call, theirs: Sequence[Reply], mine: Sequence[Reply]) -> None:
    """Forward the call's replies to replies of a function running ahead, which cannot cancel for the call."""
    for reply, source in zip(mine, theirs, strict=True):
        reply.cancel = partial(call.give_up, source)
        reply.queued = source.queued
        source.listen(reply.put)

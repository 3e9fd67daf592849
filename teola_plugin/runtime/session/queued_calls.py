"""Calls to foreign models while they wait in the queue of the engine.

The engine makes a bounded number of calls at once, and a call may run a pipeline that waits for more calls. If such
calls waited for a free slot, as many calls as there are slots could wait for each other forever. So no caller waits for
a call that the engine has not begun: the caller takes the call over and makes it in the thread or coroutine where the
framework would have made it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from teola_plugin.engines import First, Foreign, Outcome
from teola_plugin.seams import Reply

HEAD_START_S = 0.02
"""The time that a streamed call, for a list whose items are used separately, is left to the engine. If the call were
taken over, all items would come at once. With a free slot an engine begins within about 0.1 ms."""


@dataclass(eq=False, slots=True)
class QueuedCall:
    """A queued call. `reply` gets the outcome, from the engine or from the caller that took the call over."""

    reply: Reply
    call: Foreign
    _asked: Reply = field(default_factory=Reply)
    """The reply that the engine answers."""

    _taker: First = field(default_factory=First)
    """The caller that took the call over; the framework's run and a function running ahead may both come to it."""

    def take(self) -> bool:
        """Whether the caller is to make the call, and to `put` the outcome in `reply`. True for at most one caller."""
        if self.reply.outcome is not None or (self.call.is_streamed and self.call.first.wait(HEAD_START_S)):
            return False
        if not self.call.first.is_me(self._taker):
            return False
        if not self._taker.is_me(object()):  # another caller is making it
            return False
        self._asked.cancel_unless_ended()
        return True

    def hear(self, outcome: Outcome) -> None:
        """Forward the engine's outcome, unless the call was taken over."""
        if self.call.first.who is not self._taker:
            self.reply.put(outcome)


def queued(payload: Any, reply: Reply) -> tuple[Any, Reply]:
    """Return the payload and the reply to submit to an engine; a model call can be taken over from now on."""
    if not isinstance(payload, Foreign):
        return payload, reply
    mine = QueuedCall(reply, replace(payload, first=First()))
    reply.queued = mine
    reply.cancel = mine._asked.cancel_unless_ended
    reply.withdraw = lambda agrees: mine._asked.withdraw(agrees)  # set by the host when the item is taken in
    mine._asked.listen(mine.hear)
    return mine.call, mine._asked


def taken_over(reply: Reply) -> Reply | None:
    """Return the reply for the outcome, if the caller is to make the call that `reply` waits for."""
    call = reply.queued
    return call.reply if call is not None and call.take() else None

"""Calls to models that we do not run, while they wait in the queue of their engine.

The engine makes a bounded number of calls at once, and a call may run a pipeline of its own that waits for more calls.
If those waited for a free slot, as many calls as there are slots could wait for one another for ever. So nobody waits
for a call that no engine has begun: whoever needs its value takes it over and makes it, in the thread or coroutine
where the framework would have made it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from teola_plugin.engines import First, Foreign, Outcome
from teola_plugin.seams import Reply

HEAD_START_S = 0.02
"""How long a call that is to be streamed, for a list whose items are used one by one, is left to its engine: if taken
over, its items would come all at once. With a free slot an engine begins within some 0.1 ms."""


@dataclass(eq=False, slots=True)
class QueuedCall:
    """One call. `reply` gets the outcome, from the engine or from who took the call over."""

    reply: Reply
    call: Foreign
    _asked: Reply = field(default_factory=Reply)
    """What the engine answers to."""

    def take(self) -> bool:
        """Whether the caller is to make the call, and to `put` the outcome in `reply`. At most one caller is."""
        if self.reply.outcome is not None or (self.call.is_streamed and self.call.first.wait(HEAD_START_S)):
            return False
        if not self.call.first.is_me(self):
            return False
        self._asked.cancel_unless_ended()
        return True

    def hear(self, outcome: Outcome) -> None:
        """Pass on what the engine says, unless the call was taken over."""
        if self.call.first.who is not self:
            self.reply.put(outcome)


def queued(payload: Any, reply: Reply) -> tuple[Any, Reply]:
    """The payload and the reply to submit to an engine; a call of a model can be taken over from now on."""
    if not isinstance(payload, Foreign):
        return payload, reply
    mine = QueuedCall(reply, replace(payload, first=First()))
    reply.queued = mine
    reply.cancel = mine._asked.cancel_unless_ended
    reply.withdraw = lambda agrees: mine._asked.withdraw(agrees)  # which the host sets when it takes the item in
    mine._asked.listen(mine.hear)
    return mine.call, mine._asked


def taken_over(reply: Reply) -> Reply | None:
    """The reply to put the outcome in, if the caller is to make the call that `reply` waits for."""
    call = reply.queued
    return call.reply if call is not None and call.take() else None

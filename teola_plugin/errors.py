"""Every error teola_plugin raises on its own account.

TeolaError
+- GraphError              a graph that cannot be read or does not hold together
+- PassError               a pass broke the graph (names the pass and the passes before it)
+- EngineError             an engine could not be found, loaded or run
|  +- EngineUnavailable    the package or model behind an engine is missing (names the extra)
|  +- EngineClosed         work was handed to an engine or host that is shut down
|  +- ModelMismatch        what was loaded is not the model that was meant
|  +- EngineCrashed        the process behind an engine ended with work in it
|  +- EngineLoopBlocked    a synchronous call on the engines' own event loop, which would wait for itself
|  +- Poisoned             an item brought its engine down each time, so it is not tried again
+- ProfileError            a latency profile cannot be read or makes no sense (names the field)
+- ItemsError              a text has no items in the grammar that was expected of it
+- Cancelled               the work was cancelled before it ended
+- DeadlineExceeded        it did not end in time
+- Overloaded              it was not taken in, for too much waits already (says when to try again)

The frameworks' own exceptions are never wrapped: they reach the caller as the same object. None of ours derives from
ValueError or TypeError, which LlamaIndex's synthesizers turn into an empty answer; `optimize(strict=True)` on an object
we do not know raises a plain TypeError, because that is a mistake of the caller.
"""

from __future__ import annotations


class TeolaError(Exception):
    """Root of all errors of this package."""


class GraphError(TeolaError):
    """A graph does not parse or does not validate; the message names the primitive."""


class PassError(TeolaError):
    """A pass produced an invalid graph."""


class EngineError(TeolaError):
    """An engine could not be found, loaded or run."""


class EngineUnavailable(EngineError):
    """What an engine stands on is not installed or cannot be loaded."""


class EngineClosed(EngineError):
    """The engine or its host was shut down."""


class ModelMismatch(EngineError):
    """What was loaded is not the model that was meant: it was trained or replaced since."""


class EngineCrashed(EngineError):
    """The process behind an engine ended, or stopped answering, with work in it. Pure work is retried elsewhere."""


class EngineLoopBlocked(EngineError):
    """A synchronous call on the event loop of the engines: it would wait for what only that loop can do."""


class Poisoned(EngineError):
    """An item was with its engine each time it crashed, the last time alone; it is not tried again."""


class ProfileError(TeolaError):
    """A latency profile cannot be read or makes no sense; the message names the field."""


class ItemsError(TeolaError):
    """A text, now complete, does not hold the items that its grammar promises."""


class Cancelled(TeolaError):
    """The work was cancelled before it ended."""


class DeadlineExceeded(TeolaError):
    """The work did not end before its deadline; the engine was told to stop it."""


class Overloaded(TeolaError):
    """The work was not taken in. `retry_after_s`: by when what waits now should be done."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.retry_after_s)

"""The errors of teola_plugin.

TeolaError
+- GraphError              a graph that cannot be read or does not hold together
+- PassError               a pass broke the graph (names the pass and the passes before it)
+- EngineError             an engine could not be found, loaded or run
|  +- EngineUnavailable    the package or model behind an engine is missing (names the extra)
|  +- EngineClosed         work was handed to an engine or host that is shut down
|  +- ModelMismatch        the loaded model is not the expected model
|  +- EngineCrashed        the process behind an engine ended with work in it
|  +- EngineLoopBlocked    a synchronous call on the engines' event loop, which would deadlock
|  +- Poisoned             an item crashed the engine each time, and is not retried
+- ProfileError            a latency profile cannot be read or makes no sense (names the field)
+- ItemsError              a text has no items in the expected grammar
+- Cancelled               the work was cancelled before its end
+- DeadlineExceeded        the work did not end in time
+- Overloaded              the work was rejected: the queue is full (says when to try again)

The frameworks' own exceptions are never wrapped: the same object reaches the caller. No error of the package derives
from ValueError or TypeError, which LlamaIndex's synthesizers turn into an empty answer. `optimize(strict=True)` raises
a plain TypeError for an unknown object, a mistake of the caller.
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
    """The package or model behind an engine is not installed or cannot be loaded."""


class EngineClosed(EngineError):
    """The engine or its host was shut down."""


class ModelMismatch(EngineError):
    """The loaded model is not the expected model: trained or replaced since."""


class EngineCrashed(EngineError):
    """The process behind an engine ended, or stopped answering, with work in it. Pure work is retried elsewhere."""


class EngineLoopBlocked(EngineError):
    """A synchronous call on the event loop of the engines would deadlock: only the blocked loop can finish the work."""


class Poisoned(EngineError):
    """An item took part in each crash of an engine, the last time alone; the item is not retried."""


class ProfileError(TeolaError):
    """A latency profile cannot be read or makes no sense; the message names the field."""


class ItemsError(TeolaError):
    """A complete text does not hold the items of the expected grammar."""


class Cancelled(TeolaError):
    """The work was cancelled before it ended."""


class DeadlineExceeded(TeolaError):
    """The work did not end before its deadline; the engine was told to stop it."""


class Overloaded(TeolaError):
    """The work was rejected. `retry_after_s`: seconds until the waiting work should be done."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.retry_after_s)

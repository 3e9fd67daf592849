"""Every error teola_plugin raises on its own account.

TeolaError
+- GraphError              a graph that cannot be read or does not hold together
+- PassError               a pass broke the graph (names the pass and the passes before it)
+- EngineError             an engine could not be found, loaded or run
|  +- EngineUnavailable    the package or model behind an engine is missing (names the extra)
|  +- EngineClosed         work was handed to an engine or host that is shut down
+- ProfileError            a latency profile cannot be read or makes no sense (names the field)
+- ItemsError              a text has no items in the grammar that was expected of it
+- Cancelled               the work was cancelled before it ended

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


class ProfileError(TeolaError):
    """A latency profile cannot be read or makes no sense; the message names the field."""


class ItemsError(TeolaError):
    """A text, now complete, does not hold the items that its grammar promises."""


class Cancelled(TeolaError):
    """The work was cancelled before it ended."""

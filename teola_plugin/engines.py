"""What an engine is: it takes a batch of items and tells the outcome of each.

An engine knows batches and nothing of queries or graphs. Work is counted in *items*: one text to embed, one pair to
rerank, one vector to search, one prompt to complete. Each item has a key; two items with equal keys, operation and
settings ask for the same thing.

    batch = Batch("embedding", settings, items)        # all items share operation and settings
    await engine.run(batch, emit)                      # emit(position, Delta(...) | Done(value) | Failed(error))

Every position gets exactly one `Done` or `Failed`, in any order, before `run` returns; an error that `run` raises
counts as `Failed` for each item still open. An item of an LLM may emit `Delta`s first.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from teola_plugin.providers import ProviderCall

Settings = tuple[tuple[str, Hashable], ...]

WRITES = frozenset({"ingestion", "tool"})
"""Operations with effects. What became of one whose engine crashed nobody knows, so it is not run again."""

REPEATABLE = frozenset({"embedding", "reranking", "searching", "partial_prefilling"})
"""Operations that come to the same each time, whatever their settings."""


def is_repeatable(op: str, settings: Mapping[str, Any]) -> bool:
    """Running it twice gives the same. Of generations only the greedy ones: without `temperature` an LLM samples."""
    return op in REPEATABLE or (op == "decoding" and settings.get("temperature") == 0)


class Completion(str):
    """The text an LLM wrote, with what the engine knows about it. It is a `str`: prompts and parsers take it as it is.

    `pieces` are the deltas in the order they were streamed (one per token); `raw` is the framework's own reply where
    the engine is a foreign model. `output_tokens`: how many they are, also where a server told no more than that.
    """

    token_ids: tuple[int, ...]
    pieces: tuple[str, ...]
    finish_reason: str
    prompt_tokens: int
    output_tokens: int
    raw: Any

    def __new__(
        cls, text: str, *, token_ids: Sequence[int] = (), pieces: Sequence[str] = (), finish_reason: str = "stop",
        prompt_tokens: int = 0, output_tokens: int | None = None, raw: Any = None,
    ) -> Completion:  # fmt: skip
        self = super().__new__(cls, text)
        self.token_ids = tuple(token_ids)
        self.pieces = tuple(pieces)
        self.finish_reason = finish_reason
        self.prompt_tokens = prompt_tokens
        self.output_tokens = len(self.token_ids) if output_tokens is None else output_tokens
        self.raw = raw
        return self

    def own_raw(self) -> Any:
        """A copy of `raw` for one taker: frameworks and users write to replies, and the run-ahead goes on with them."""
        try:
            return copy.deepcopy(self.raw)
        except Exception:  # the reply holds an object of a client's that cannot be copied
            return self.raw


class Taker(NamedTuple):
    """Seconds that an engine takes which gets values one by one: for a batch of them, and for each value in it."""

    batch_s: float
    item_s: float


class Urgency(NamedTuple):
    """How far it is from a request to the output of its query, in requests and predicted seconds; itself included.

    `objective`: `latency` or `throughput` where somebody has deduced it (passes/deduce_objectives.py). `own_s`: of the
    seconds, those that it takes itself. `taker`: what follows it, if that can begin with each of its values.
    """

    depth: int = 0
    remaining_s: float = 0.0
    objective: str = ""
    own_s: float = 0.0
    taker: Taker | None = None


NOT_URGENT = Urgency()


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of work. `owner` is the query it belongs to (an engine may keep state per owner: an open prefill)."""

    payload: Any
    owner: Hashable = 0
    priority: int = 0
    """Lower is more urgent; for engines that order their own queue (vLLM)."""

    id: int = 0
    """Unique in the process; what `abort` names."""

    tenant: str = ""
    """Nothing computed for one tenant is given to another, the prefix cache included."""

    deadline_s: float = math.inf
    """On the clock of the event loop that runs the engine."""

    tokens: int = 0
    """Of KV cache that an LLM may need for it, as far as the engine can tell (`kv_tokens`)."""

    urgency: Urgency = NOT_URGENT
    begun_s: float = 0.0
    """When its query began, on that clock too."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Items that share operation and settings; the engine runs them as one call, on one of its instances."""

    op: str
    settings: Mapping[str, Any]
    items: tuple[Item, ...]
    instance: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """Text an LLM has just produced (one token's worth, possibly empty)."""

    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """The value of an item."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """The item failed; `error` is the engine's own exception object.

    `traceback`: what led to it in the engine. Whoever raises the error adds to its own, and more than one may.
    """

    error: BaseException
    traceback: TracebackType | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "traceback", self.error.__traceback__)


Outcome = Delta | Done | Failed
Emit = Callable[[int, Outcome], None]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the scheduler may rely on.

    `max_items`: the largest batch. `max_tokens`: how much KV cache an instance has. `concurrent`: items of several
    batches run side by side (continuous batching), so slots free up item by item. `prefix`: the engine reuses a
    prefilled prefix, so `partial_prefilling` pays. `prefix_at_end`: it does so once all of the prefix is computed;
    prompts that come together each compute what they have in common. `abort`: it can end an item that it has begun.
    `remote`: items are requests to a service, and side by side do not slow one another down. `is_scheduled`: it has a
    scheduler of its own, where the requests of several processes meet; this process hands on everything at once.
    `early_beside`: beside how many texts in work on an instance a prefix is still prefilled early. It holds up what
    decodes, on a GPU a little, on a CPU by all that it takes. `pads`: a batch takes as long as if all its items were as
    long as the longest.
    """

    max_items: int = 32
    max_tokens: int | None = None
    concurrent: bool = False
    prefix: bool = False
    abort: bool = False
    remote: bool = False
    is_scheduled: bool = False
    prefix_at_end: bool = False
    early_beside: int = 1
    pads: bool = False


@runtime_checkable
class Engine(Protocol):
    """One engine. `ops` are the operations it understands, named after graph kinds.

    - embedding engines: `embedding`, payload `str`, value float32 array of shape (dim,)
    - rerankers: `reranking`, payload `(query, passage)`, value `float`
    - vector stores: `searching`, payload float32 array of shape (dim,), value a mapping of the store's own columns
    - LLMs: `decoding`, payload `str`, value `Completion`; `partial_prefilling`, payload `str`, value
      how many tokens were prefilled

    An engine may also have:

    - `profile`: its latency profile, for passes and policies (`profiles`: by operation, where they differ)
    - `model`: what it serves, for the cache keys of frameworks
    - `stamp()`: the version of what it reads: a result computed under another one is not used
    - `release(owner)`: the query is over
    - `is_per_query`: what it answers hangs on what that query gave it before; two queries never share an answer
    - `render_chat(messages[, tools])`: the prompt of a chat
    - `kv_tokens(op, payload, settings)`: see `Item.tokens`
    - `provider`: of a `remote` one, the service that it asks (`EngineSpec.provider`)
    - `policy`: by which its batches are made, in place of the host's
    - `instances`: engines that share its work; it runs none itself
    - `recovered()`: a coroutine that returns once it works again after an EngineCrashed
    - `restart()`: it hangs: end its process
    """

    name: str

    @property
    def capabilities(self) -> Capabilities:
        """What the scheduler may rely on. Another object once they change."""
        ...

    async def run(self, batch: Batch, emit: Emit) -> None: ...

    def abort(self, ids: Sequence[int]) -> None: ...

    async def close(self) -> None: ...


class First:
    """Which of several comes first: `is_me` is true for one of them alone, each time it asks."""

    def __init__(self) -> None:
        self._first: dict[str, object] = {}
        self._found = threading.Event()

    def is_me(self, who: object) -> bool:
        """Whether `who` is the first, now or before."""
        is_first = self._first.setdefault("who", who) is who  # atomic, and takes no lock
        self._found.set()
        return is_first

    @property
    def who(self) -> object | None:
        """The first, None while there is none."""
        return self._first.get("who")

    def wait(self, timeout_s: float) -> bool:
        """Whether somebody is the first by then."""
        return self._found.wait(timeout_s)


@dataclass(frozen=True, slots=True)
class Foreign:
    """A call to a model we do not run: the payload of operation `decoding` on a `python` engine.

    `key` tells calls apart: model, method, normalised messages, arguments, and whether it streams. `call` makes the
    call and returns its value, or a coroutine (`is_async`) which is run on `loop`, the event loop that the model's
    client belongs to. `stream`, where there is one, does the same and tells the text as it is written; what it calls
    for that may raise, when nobody listens any more. It is used in place of `call` if `is_streamed`. `first`: who makes
    the call, which is made once. `provider_call`: what it is to the provider of the model, while it runs ahead.
    """

    key: Hashable
    call: Callable[[], Any] = field(compare=False)
    is_async: bool = False
    loop: Any = field(default=None, compare=False)
    stream: Callable[[Callable[[str], None]], Any] | None = field(default=None, compare=False)
    is_streamed: bool = field(default=False, compare=False)
    first: First = field(default_factory=First, compare=False)
    provider_call: ProviderCall | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Which engine a component stands on: the kind and the user's own object (its identity is the engine's).

    `provider`: the service outside this process's own engines that it is, or is a client of (a hosted model, a store on
    a server, a tool), equal for all clients of it: somebody else sees the text and may charge for it, so the run-ahead
    asks only for what the pipeline will ask for.
    """

    kind: str
    resource: Any = field(compare=False)
    name: str = ""
    provider: Hashable = field(default=None, compare=False)

    @property
    def is_outside(self) -> bool:
        """Whether a request leaves this process's own engines."""
        return self.provider is not None

    @property
    def key(self) -> tuple[str, int]:
        """Equal for two components that share the object."""
        return (self.kind, id(self.resource))

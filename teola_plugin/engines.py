"""The engine protocol: an engine takes a batch of items and emits an outcome for each.

An engine knows batches, but no queries or graphs. Work is counted in *items*: a text to embed, a pair to rerank, a
vector to search, a prompt to complete. Two items with equal keys, operation and settings are the same request.

    batch = Batch("embedding", settings, items)        # all items share operation and settings
    await engine.run(batch, emit)                      # emit(position, Delta(...) | Done(value) | Failed(error))

Every position gets exactly one `Done` or `Failed`, in any order, before `run` returns; an error raised by `run` counts
as `Failed` for each item still open. An item of an LLM may emit `Delta`s first.
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
"""Operations with effects. If the engine crashes, the effect is unknown, so the operation is not run again."""

REPEATABLE = frozenset({"embedding", "reranking", "searching", "partial_prefilling"})
"""Operations with the same result each time, whatever the settings."""


def is_repeatable(op: str, settings: Mapping[str, Any]) -> bool:
    """Whether a repeated operation gives the same result.

    Generations do only if greedy: without `temperature` an LLM samples.
    """
    return op in REPEATABLE or (op == "decoding" and settings.get("temperature") == 0)


class Completion(str):
    """A text written by an LLM, with facts from the engine. Prompts and parsers use the text as a `str`.

    `pieces`: the deltas in streaming order (one per token). `raw`: the framework's own reply, where the engine is a
    foreign model. `output_tokens`: the number of tokens, also where a server told nothing more.
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
        """Return a copy of `raw` for one consumer: callers may change a reply still in use by the run-ahead."""
        try:
            return copy.deepcopy(self.raw)
        except Exception:  # the reply holds a client's object which cannot be copied
            return self.raw


class Taker(NamedTuple):
    """The cost of a consumer of single values: seconds for a batch of values, and per value in the batch."""

    batch_s: float
    item_s: float


class Urgency(NamedTuple):
    """The distance of a request, itself included, to the query's output, in requests and predicted seconds.

    `objective`: `latency` or `throughput` if deduced (passes/deduce_objectives.py). `own_s`: the seconds of the request
    alone. `taker`: the consumer, if it can begin with each single value.
    """

    depth: int = 0
    remaining_s: float = 0.0
    objective: str = ""
    own_s: float = 0.0
    taker: Taker | None = None


NOT_URGENT = Urgency()


@dataclass(frozen=True, slots=True)
class Item:
    """One item of work.

    `owner`: the query of the item (an engine may keep state per owner, such as an open prefill).
    """

    payload: Any
    owner: Hashable = 0
    priority: int = 0
    """Lower is more urgent; for engines with a queue of their own (vLLM)."""

    id: int = 0
    """Unique in the process; the argument of `abort`."""

    tenant: str = ""
    """The tenant. Results, and the prefix cache, are never shared between tenants."""

    deadline_s: float = math.inf
    """Deadline on the clock of the event loop which runs the engine."""

    tokens: int = 0
    """Tokens of KV cache which an LLM may need for the item, as far as the engine can tell (`kv_tokens`)."""

    urgency: Urgency = NOT_URGENT
    begun_s: float = 0.0
    """Start of the query, on the clock of `deadline_s`."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Items with the same operation and settings; the engine runs all items as a single call, on a single instance."""

    op: str
    settings: Mapping[str, Any]
    items: tuple[Item, ...]
    instance: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """Text just produced by an LLM (one token's worth, possibly empty)."""

    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """The value of an item."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """The failure of an item; `error` is the engine's own exception object.

    `traceback`: the traceback inside the engine. Each raise of the error extends the error's own traceback, and several
    callers may raise the same error.
    """

    error: BaseException
    traceback: TracebackType | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "traceback", self.error.__traceback__)


Outcome = Delta | Done | Failed
Emit = Callable[[int, Outcome], None]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Properties of an engine, for the scheduler.

    - `max_items`: the largest batch.
    - `max_tokens`: the KV cache of an instance, in tokens.
    - `concurrent`: items of several batches run side by side (continuous batching), so slots free up item by item.
    - `prefix`: the engine reuses a prefilled prefix, so `partial_prefilling` pays.
    - `prefix_at_end`: a prefix is reused once it is computed as a whole; prompts which come together each compute the
      common part.
    - `abort`: the engine can end a running item.
    - `remote`: items are requests to a service, and do not slow one another down.
    - `is_scheduled`: the engine has its own scheduler, shared by several processes; the worker hands on everything at
      once.
    - `early_beside`: the number of running texts on an instance beside which a prefix is still prefilled early. The
      prefill delays running decodes: on a GPU a little, on a CPU by the full time of the prefill.
    - `pads`: a batch takes as long as if all items had the length of the longest.
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
    """One engine. `ops`: the supported operations, named after graph kinds.

    - embedding engines: `embedding`, payload `str`, value float32 array of shape (dim,)
    - rerankers: `reranking`, payload `(query, passage)`, value `float`
    - vector stores: `searching`, payload float32 array of shape (dim,), value a mapping of the store's own columns
    - LLMs: `decoding`, payload `str`, value `Completion`; `partial_prefilling`, payload `str`, value the number of
      prefilled tokens

    An engine may also have:

    - `profile`: the latency profile, for passes and policies (`profiles`: by operation, where they differ)
    - `model`: the served model, for the cache keys of frameworks
    - `stamp()`: the version of the data read; a result computed under another version is not used
    - `release(owner)`: the query is over
    - `is_per_query`: answers depend on earlier requests of the query; two queries never share an answer
    - `render_chat(messages[, tools])`: the prompt of a chat
    - `kv_tokens(op, payload, settings)`: see `Item.tokens`
    - `provider`: the service behind a `remote` engine (`EngineSpec.provider`)
    - `policy`: the batching policy of the engine, in place of the host's
    - `instances`: engines which share the work; the engine itself runs none
    - `recovered()`: a coroutine which returns once the engine works again after an EngineCrashed
    - `restart()`: end the process of a hanging engine
    """

    name: str

    @property
    def capabilities(self) -> Capabilities:
        """The properties of the engine for the scheduler; a new object whenever they change."""
        ...

    async def run(self, batch: Batch, emit: Emit) -> None: ...

    def abort(self, ids: Sequence[int]) -> None: ...

    async def close(self) -> None: ...


class First:
    """The first of several callers: `is_me` is true for one caller alone, however often each calls."""

    def __init__(self) -> None:
        self._first: dict[str, object] = {}
        self._found = threading.Event()

    def is_me(self, who: object) -> bool:
        """Whether `who` is the first caller, now or before."""
        is_first = self._first.setdefault("who", who) is who  # atomic, and takes no lock
        self._found.set()
        return is_first

    @property
    def who(self) -> object | None:
        """The first caller; None if there is none yet."""
        return self._first.get("who")

    def wait(self, timeout_s: float) -> bool:
        """Wait, and return whether there is a first caller by then."""
        return self._found.wait(timeout_s)


@dataclass(frozen=True, slots=True)
class Foreign:
    """A call of a model which is not one of our engines: the payload of operation `decoding` on a `python` engine.

    `key` identifies the call: model, method, normalised messages, arguments, and whether the call streams. `call` makes
    the call and returns the value, or a coroutine (`is_async`) to run on `loop`, the event loop of the model's client.
    `stream`, if present, makes the same call and passes the text on as it is written; the callback may raise if there
    is no listener left. `stream` replaces `call` if `is_streamed`. `first`: the caller to make the call, which is made
    once. `provider_call`: the provider's record of the call, while running ahead.
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
    """The engine of a component: the kind and the user's own object (whose identity is the engine's).

    `provider`: the outside service which the object is, or is a client of (a hosted model, a store on a server, a
    tool), equal for all clients of the service. The service sees the text and may charge for the request, so the
    run-ahead sends only requests which the pipeline will make.
    """

    kind: str
    resource: Any = field(compare=False)
    name: str = ""
    provider: Hashable = field(default=None, compare=False)

    @property
    def is_outside(self) -> bool:
        """Whether a request leaves the engines of the process."""
        return self.provider is not None

    @property
    def key(self) -> tuple[str, int]:
        """A key equal for two components with the same object."""
        return (self.kind, id(self.resource))

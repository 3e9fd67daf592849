"""What is simulated: workloads, and the engines that serve them.

    system = System({"embedder": BatchServer({"embedding": PAPER["embedding"]}), "llm": LlmServer(PAPER_LLM["7b"])})
    check({"rag": workload}, system)

Plain data. What a graph needs and a system lacks is refused here, before anything runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from simulator.prefix_cache import BLOCK_TOKENS
from simulator.values import Count
from teola_plugin.engines import Capabilities
from teola_plugin.errors import EngineError, TeolaError
from teola_plugin.graph import DECODES, PIPELINE, PREFILLS, Primitive
from teola_plugin.plan import Plan, is_request
from teola_plugin.profile import LlmProfile, Profile
from teola_plugin.runtime.scheduler.batching import Limits
from teola_plugin.runtime.scheduler.policies import PolicyName
from teola_plugin.runtime.session.plan_executor import PreparedRounds

Answers = Callable[[str, Any, Mapping[str, Any]], Any]
"""What an engine says: of operation, payload and settings, as for `interpret`."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Queries of one kind. `functions`, `rounds`: what `fn=` stands for. `inputs`: of query number n.

    `round_trip_s`: somebody elsewhere asks for each request by himself, and this is how long it takes there and back
    over the network, drawn anew for each.
    """

    plan: Plan
    functions: Mapping[str, Callable[..., Any]]
    inputs: Callable[[int], Mapping[str, Any]]
    round_trip_s: Callable[[random.Random], float] | None = None
    rounds: Mapping[str, PreparedRounds] = field(default_factory=dict)

    def each_round(self, name: str) -> Workload:
        """One of these rounds as a query of its own, with no inputs yet."""
        each = self.rounds[name].each
        functions = {name: function.call for name, function in each.functions.items()}
        return Workload(each.plan, functions, lambda _: {}, self.round_trip_s, each.rounds)


@dataclass(frozen=True, slots=True)
class BatchServer:
    """Instances that run one batch at a time, which takes what the profile of its operation says.

    `texts`: what a search finds its documents among. `answers`: says the values in place of `values.py`. `count`: its
    tokens of a text, in place of those of `simulate`. `demand`: as many of the system's cores it uses at work.
    """

    profiles: Mapping[str, Profile]
    instances: int = 1
    max_items: int = 64
    texts: Sequence[str] = ()
    answers: Answers | None = None
    count: Count | None = None
    demand: float = 1.0

    @property
    def ops(self) -> tuple[str, ...]:
        """What it can do."""
        return tuple(self.profiles)

    def capabilities(self, *, bundles: bool) -> Capabilities:
        """What the scheduler may rely on."""
        return Capabilities(self.max_items)


@dataclass(frozen=True, slots=True)
class LlmServer:
    """Instances that batch continuously (llm_server.py).

    `max_prefill_tokens`: what one prefill takes at most, but at least one prompt. `kv_tokens`: what the KV cache of an
    instance holds, prompts that nobody uses any more included. `prefix_cache`: of a prompt that begins like an earlier
    one the common pieces are not computed again; `instruction`: only of the literals that it begins with. They count as
    soon as they are being computed, or, if `prefix_at_end`, once they are, and in whole blocks of `block_tokens`.
    `answers`, `count` and `demand` as of `BatchServer`. `mixes_prefills`: what runs writes a token during a prefill
    too, as in vLLM with chunked prefills.
    """

    profile: LlmProfile
    instances: int = 1
    max_items: int = 32
    max_prefill_tokens: int | None = None
    kv_tokens: int | None = None
    prefix_cache: Literal["full", "instruction", "none"] = "full"
    answers: Answers | None = None
    prefix_at_end: bool = False
    block_tokens: int = BLOCK_TOKENS
    count: Count | None = None
    mixes_prefills: bool = False
    demand: float = 1.0

    @property
    def ops(self) -> tuple[str, ...]:
        """What it can do."""
        return (*DECODES, *PREFILLS)

    def capabilities(self, *, bundles: bool) -> Capabilities:
        """What the scheduler may rely on."""
        return Capabilities(
            self.max_items, self.kv_tokens, concurrent=not bundles, prefix=self.prefix_cache == "full", abort=True,
            prefix_at_end=self.prefix_at_end,
        )  # fmt: skip


Server = BatchServer | LlmServer


@dataclass(frozen=True, slots=True)
class System:
    """Engines by the names that the graphs have for them.

    `bundles`: per-invocation orientation as Teola's baseline has it: the requests of one primitive of one query that
    are ready at the same time are one batch, which an instance runs alone, an LLM too. `hop_s`: what each request and
    each reply takes between scheduler and engine. `prefix_tolerance_s`: see `engine_scheduler.Limits`.
    `cores`: what all engines run on together (cores.py); None where each has its own machine.
    """

    servers: Mapping[str, Server]
    policy: PolicyName = "critical_path"
    bundles: bool = False
    hop_s: float = 0.0
    prefix_tolerance_s: float = Limits().prefix_tolerance_s
    cores: float | None = None


FINDS = ("searching", "websearch")


def check(workloads: Mapping[str, Workload], system: System) -> None:
    """Raises: EngineError for an engine or operation that is missing, TeolaError for what no simulation can run."""
    for name, workload in workloads.items():
        for p in workload.plan.graph:
            for error in _faults(p, workload, system):
                raise type(error)(f"workload {name!r}: {p.name} = {p.kind}(...): {error}")
        check({f"{name}, {each}": workload.each_round(each) for each in workload.rounds}, system)


def _faults(p: Primitive, workload: Workload, system: System) -> Iterator[TeolaError]:
    if p.engine == PIPELINE:
        yield TeolaError("only a framework's own run computes what is @ pipeline")
    elif p.kind in ("call", "condition", "chunking", "aggregate"):
        if is_request(p):
            yield TeolaError(f"a function that asks {p.engine!r} itself needs the session of a framework's call")
        elif (fn := p.setting("fn")) is not None and fn not in {*workload.functions, *workload.rounds}:
            yield TeolaError(f"there is no function {fn!r}; there are {_listed(workload.functions)}")
    elif (server := system.servers.get(p.engine)) is None:
        yield EngineError(f"the system has no engine {p.engine!r}; it has {_listed(system.servers)}")
    elif p.kind not in server.ops:
        yield EngineError(f"engine {p.engine!r} cannot do {p.kind!r}; it can do {_listed(server.ops)}")
    elif p.kind in FINDS and isinstance(server, BatchServer) and not (server.texts or server.answers):
        yield EngineError(f"engine {p.engine!r} has no texts= that a search could find documents among")


def _listed(names: Mapping[str, Any] | Sequence[str]) -> str:
    return ", ".join(sorted(names)) or "none"

"""The contract of a pass: a function from a graph and facts about the engines to a graph and the reasons.

    new_graph, records = split_prefilling(graph, context)

A pass is pure. A pass keeps the graph's inputs and outputs, the values of the outputs and the final state of the
engines, however the scheduler orders the work. A second run changes nothing. For each examined place the pass returns a
`Record`, also where nothing changed: the code says what was decided, the number why.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from teola_plugin.codes import CODES
from teola_plugin.engines import Capabilities
from teola_plugin.graph import Graph
from teola_plugin.profile import LlmProfile, Profile


@dataclass(frozen=True, slots=True)
class Record:
    """A decision of a pass about a primitive; `number` decided, in the unit that `reason` names."""

    code: str
    pass_name: str
    primitive: str
    applied: bool
    reason: str
    number: float | None = None

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise KeyError(f"{self.code} is not registered in codes.py")

    def __str__(self) -> str:
        return f"{self.code} {'+' if self.applied else '-'} {self.primitive}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Context:
    """The facts that passes may use: engines by their names in the graph, and expected sizes.

    `expected_items`: of a list of unknown length (the paper's 48 requests). `expected_tokens`: of a value that is put
    into a prompt, or written by an LLM. `split_tax`: the extra compute of a split prefill, relative to the unsplit
    prefill (the paper's Table 3: 0.03 to 0.12). `long_prefix_tokens`: a shared prefix of this length is worth
    prefilling although the prefix cache may hold it. `overhead_s`: of a further request. `allow_early_stop`: only the
    graph sees the text of a decoding, and only the graph makes the requests (a framework's own run does both).
    `streams_lists`: hosted models are asked for a stream where a stream pays. `pure`: functions (`fn`) without effects,
    which may be called, and fail, for nothing.
    """

    profiles: Mapping[str, Profile | LlmProfile] = field(default_factory=dict)
    capabilities: Mapping[str, Capabilities] = field(default_factory=dict)
    expected_items: int = 48
    expected_tokens: int = 128
    split_tax: float = 0.12
    long_prefix_tokens: int = 2048
    overhead_s: float = 0.001
    allow_early_stop: bool = False
    streams_lists: bool = False
    pure: frozenset[str] = frozenset()


class Pass(Protocol):
    """A function, or a frozen dataclass with `__call__` if the pass has settings."""

    def __call__(self, graph: Graph, context: Context, /) -> tuple[Graph, Iterable[Record]]: ...


def free_name(name: str, taken: Collection[str]) -> str:
    """Return the name, or a similar name that is not taken."""
    while name in taken:
        name += "_"
    return name

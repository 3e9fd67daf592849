"""What a pass is: a function from a graph and what is known of the engines to a graph and the reasons.

    new_graph, records = split_prefilling(graph, context)

A pass is pure. It keeps the graph's inputs and outputs, the values of the outputs and what is left behind in
the engines, however the scheduler orders the work. Running it twice changes nothing more than running it
once. For each place that it looked at it leaves a `Record`, also where it did nothing: the code says what was
decided, the number what decided it.
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
    """One decision of a pass about one primitive; `number` decided it, in the unit that `reason` names."""

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
    """What passes may know: engines by the name they have in the graph, and what to expect of sizes.

    `expected_items`: of a list whose length nothing tells (the paper's 48 requests). `expected_tokens`: of a
    value that is put into a prompt, or written by an LLM. `split_tax`: a split prefill computes that much
    more, relative to the unsplit one (the paper's Table 3: 0.03 to 0.12). `long_prefix_tokens`: a shared
    prefix of that length is worth prefilling although the prefix cache may hold it. `overhead_s`: of one more
    request. `allow_early_stop`: nobody but the graph sees the text of a decoding, or asks for what it asks for (the
    framework's own run does). `streams_lists`: models elsewhere are asked for a stream where that pays. `pure`:
    functions (`fn`) without effects, which may be called, and fail, for nothing.
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
    """A function, or a frozen dataclass with `__call__` if it has settings of its own."""

    def __call__(self, graph: Graph, context: Context, /) -> tuple[Graph, Iterable[Record]]: ...


def free_name(name: str, taken: Collection[str]) -> str:
    """The name, or one like it that is not taken."""
    while name in taken:
        name += "_"
    return name

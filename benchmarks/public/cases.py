"""The applications of the gate: where each is from, how it is called, what its parsers want."""

from __future__ import annotations

from public.architecture_cases import ARCHITECTURES
from public.author_cases import AUTHORS
from public.case import Case
from public.chain_cases import CHAINS
from public.graph_cases import GRAPHS

CASES: dict[str, Case] = {case.name: case for case in (*GRAPHS, *CHAINS, *ARCHITECTURES, *AUTHORS)}

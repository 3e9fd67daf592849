"""All figures, in the order of the report."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from papers import alto
from papers.figures import Figure
from papers.parrot import mixed, sharing, summaries
from papers.sglang import figure as sglang
from papers.teola import catalog as teola
from teola_plugin.errors import TeolaError

FIGURES: tuple[Figure, ...] = (
    *teola.FIGURES,
    *summaries.FIGURES,
    *sharing.FIGURES,
    *mixed.FIGURES,
    *alto.FIGURES,
    *sglang.FIGURES,
)


def chosen(names: Sequence[str], *, simulated: bool = False) -> list[Figure]:
    """Those with these names, or whose names begin with one and a hyphen; all without names.

    `simulated`: without those that take real time.

    Raises: TeolaError for a name that nothing has, with those there are; and if nothing is left.
    """
    for name in names:
        if not any(_is_meant(figure, name) for figure in FIGURES):
            raise TeolaError(_unknown(name))
    meant = [figure for figure in FIGURES if not names or any(_is_meant(figure, name) for name in names)]
    left = [figure for figure in meant if not (simulated and figure.is_real)]
    if not left:
        raise TeolaError(f"{', '.join(figure.name for figure in meant)}: nothing of this is simulated")
    return left


def _is_meant(figure: Figure, name: str) -> bool:
    return figure.name == name or figure.name.startswith(f"{name}-")


def _unknown(name: str) -> str:
    known = [figure.name for figure in FIGURES]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"there is no figure {name!r}{hint}; there are {', '.join(known)}"

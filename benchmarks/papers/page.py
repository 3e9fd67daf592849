"""Figures as one HTML page without scripts and outside resources, light or dark as the reader's system is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jinja2 import Environment, PackageLoader

from papers.drawing import draw
from papers.making import Made
from papers.report import ABOUT, TITLE, Head


def page(made: Sequence[Made], head: Head) -> str:
    """The page. Each figure has its name as anchor: papers.html#teola-c."""
    environment = Environment(loader=PackageLoader("papers", ""), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.get_template("page.html.j2")
    return template.render(title=TITLE, about=ABOUT, head=head.rows, made=made, papers=_by_paper(made), draw=draw)


def _by_paper(made: Sequence[Made]) -> Mapping[str, Sequence[Made]]:
    papers: dict[str, list[Made]] = {}
    for each in made:
        papers.setdefault(each.figure.source.split(",")[0], []).append(each)
    return papers

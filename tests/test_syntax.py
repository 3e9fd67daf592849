"""Parsing goes on where CPython loses count."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from teola_plugin import syntax


def test_a_miscount_of_cpython_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    real, tries = ast.parse, []

    def miscounted(*args: Any) -> ast.Module:
        tries.append(args)
        if len(tries) < 3:
            raise SystemError("AST constructor recursion depth mismatch (before=141, after=195)")
        return real(*args)

    monkeypatch.setattr(ast, "parse", miscounted)
    assert ast.unparse(syntax.parse("a = 1")) == "a = 1"
    tries.clear()
    with pytest.raises(SyntaxError):
        syntax.parse("a =")


def test_all_text_is_parsed_so() -> None:
    package = Path(syntax.__file__).parent
    others = [each for each in package.rglob("*.py") if "ast.parse(" in each.read_text() and each.name != "syntax.py"]
    assert not others


def test_what_fails_each_time_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any) -> ast.Module:
        raise SystemError("out of order")

    monkeypatch.setattr(ast, "parse", failing)
    with pytest.raises(SystemError, match="out of order"):
        syntax.parse("a = 1")

"""Parrot's applications as graphs.

Texts are four characters a token, as the simulator counts them; what they say plays no part, but who has which piece in
common does. Source: the workloads of Parrot's artifact, whose sizes are in summaries.py and sharing.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.graph import Graph, parse
from teola_plugin.profile import TOKEN_CHARACTERS


@dataclass(frozen=True, slots=True)
class App:
    """A graph, its functions, and what query number n asks."""

    graph: Graph
    inputs: Callable[[int], Mapping[str, Any]]
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


def text(name: str, tokens: int) -> str:
    """A text of so many tokens that no other name has.

    >>> text("a", 2), len(text("part 3", 100))
    ('a ......', 400)
    """
    return f"{name} ".ljust(TOKEN_CHARACTERS * tokens, ".")


def chain(chunks: int, chunk_tokens: int, output_tokens: int) -> App:
    """A summary that is refined with one chunk after the other."""
    names = [f"chunk_{n}" for n in range(chunks)]

    def lines() -> Iterator[str]:
        yield f"inputs({', '.join(names)})"
        yield "kv_0 = prefilling('Sum up in a few words: ', chunk_0, ' The summary: ') @ llm"
        yield f"summary_0 = decoding(kv_0, max_tokens={output_tokens}) @ llm"
        for n in range(1, chunks):
            pieces = f"'This is the summary so far: ', summary_{n - 1}, ' Refine it with this part: ', chunk_{n}"
            yield f"kv_{n} = prefilling({pieces}, ' The summary: ') @ llm"
            yield f"summary_{n} = decoding(kv_{n}, max_tokens={output_tokens}) @ llm"
        yield f"outputs(summary_{chunks - 1})"

    def inputs(number: int) -> Mapping[str, Any]:
        return {name: text(f"{number} {name}", chunk_tokens) for name in names}

    return App(parse("\n".join(lines())), inputs)


def background(prompt_tokens: int, output_tokens: int) -> App:
    """One call, as of somebody else."""
    graph = f"""
inputs(question)
kv = prefilling(question) @ llm
answer = decoding(kv, max_tokens={output_tokens}) @ llm
outputs(answer)
"""
    return App(parse(graph), lambda number: {"question": text(f"question {number}", prompt_tokens)})


def map_reduce(chunks: int, chunk_tokens: int, output_tokens: int, most_tokens: int) -> App:
    """A summary of each chunk, and one of the summaries, as far as a prompt of `most_tokens` holds them."""
    graph = f"""
inputs(chunks=[])
kvs: [] = prefilling('Sum up in one sentence: ', *chunks, ' The summary: ') @ llm
notes: [] = decoding(*kvs, max_tokens={output_tokens}) @ llm
listed = call(notes, fn='listed') @ python
kv = prefilling('These are summaries: ', listed, ' The main themes: ') @ llm
answer = decoding(kv, max_tokens={output_tokens}) @ llm
outputs(answer)
"""

    def inputs(number: int) -> Mapping[str, Any]:
        return {"chunks": [text(f"{number} chunk {n}", chunk_tokens) for n in range(chunks)]}

    def listed(notes: Sequence[str]) -> str:
        return "\n".join(notes)[: TOKEN_CHARACTERS * most_tokens]

    return App(parse(graph), inputs, {"listed": listed})


def assistant(name: str, system_tokens: int, question_tokens: int, output_tokens: int) -> App:
    """One call behind a system prompt that is the same in each."""
    system = text(f"You are {name}.", system_tokens)
    graph = f"""
inputs(question)
kv = prefilling({system!r}, question) @ llm
answer = decoding(kv, max_tokens={output_tokens}) @ llm
outputs(answer)
"""
    return App(parse(graph), lambda number: {"question": text(f"{number}", question_tokens)})


@dataclass(frozen=True, slots=True)
class Turn:
    """All programmers write, or all reviewers comment: what they read in common, what each reads alone, and writes."""

    what: str
    shared_tokens: int
    own_tokens: int
    output_tokens: Sequence[int]


def team(files: int, design_tokens: int, turns: Sequence[Turn]) -> App:
    """Agents that write a program of so many files, turn after turn.

    What a turn's agents read in common is made of what the turn before wrote: the design, then all code, then all
    comments. It exists only at run time. The n-th agent writes as much as the n-th file (after the last, the first).
    """
    functions: dict[str, Callable[..., str]] = {}

    def lines() -> Iterator[str]:
        yield "inputs(task)"
        yield "kv = prefilling('You are the architect of a program. ', task, ' The design: ') @ llm"
        yield f"design = decoding(kv, max_tokens={design_tokens}) @ llm"
        written = ["design"]
        for at, turn in enumerate(turns):
            functions[f"read_{at}"] = _reading(turn.shared_tokens)
            yield f"project_{at} = call({', '.join(written)}, fn='read_{at}') @ python"
            written = [f"{turn.what}_{at}_{n}" for n in range(files)]
            for n, name in enumerate(written):
                own = text(f" You {turn.what} file {n}.", turn.own_tokens)
                tokens = turn.output_tokens[n % len(turn.output_tokens)]
                yield f"kv_{name} = prefilling('You are one of a team. ', project_{at}, {own!r}) @ llm"
                yield f"{name} = decoding(kv_{name}, max_tokens={tokens}) @ llm"
        yield f"outputs({', '.join(written)})"

    return App(parse("\n".join(lines())), lambda number: {"task": text(f"{number}", 200)}, functions)


def _reading(tokens: int) -> Callable[..., str]:
    """What is made of texts, as long as it was in the run that the sizes are from."""
    return lambda *texts: text(" ".join(each[:12] for each in texts), tokens)

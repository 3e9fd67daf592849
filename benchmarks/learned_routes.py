"""What learned routes gain and waste: an adaptive RAG (learned_app.py) beside a service that sleeps.

    python benchmarks/learned_routes.py                     every workload
    python benchmarks/learned_routes.py --only steady       one of: steady, changing, mixed, strict

Each question is asked of the original, of `optimize(app)` and of `optimize(app, speculate="learned")`, in turns. The
workloads differ in where the router sends a question, and whether a grader refuses pages:

    steady      always to the manual, every page is relevant
    changing    to the manual, from the middle on to the web
    mixed       to the web for 3 of 10 questions, in no order
    strict      to the manual; of four pages one is refused for every other question

`requests` is what one call asks the service on average, `wasted` how many more than the original, over all questions,
and `reported` what the reports of the calls say. Answers are compared.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import httpx
import typer
import uvicorn
from public.replies import Script, encoding, prompt_of
from public.server import Service

OURS = Script(
    fields={
        "Source.source": ("manual",), "Relevance.relevant": ("yes",), "Grounding.grounded": ("yes",),
        "Usefulness.useful": ("yes",),
    }
)  # fmt: skip
WEB = replace(OURS, fields={**OURS.fields, "Source.source": ("web",)})
REFUSED = replace(OURS, fields={**OURS.fields, "Relevance.relevant": ("no",)})
ROW = "{:10}{:>12}{:>9}{:>9}{:>8}{:>10}{:>8}{:>10}  {}"


class Routing(Service):
    """Replies as the question says."""

    def script_of(self, body: dict[str, Any]) -> Script:
        prompt = prompt_of(body)
        if "on the web" in prompt and "[web]" in prompt:
            return WEB
        return REFUSED if "Page 2" in prompt and "[strict]" in prompt else OURS


def questions(workload: str, calls: int) -> list[str]:
    chance = random.Random(7)
    tags: dict[str, Callable[[int], str]] = {
        "steady": lambda n: "",
        "changing": lambda n: " [web]" if n >= calls // 2 else "",
        "mixed": lambda n: " [web]" if chance.random() < 0.3 else "",
        "strict": lambda n: " [strict]" if n % 2 else "",
    }
    return [f"Question {n} of {workload}{tags[workload](n)}" for n in range(calls)]


def main(
    only: Annotated[str, typer.Option(help="One workload.")] = "",
    calls: Annotated[int, typer.Option(help="Questions of a workload.")] = 40,
    chat_ms: Annotated[float, typer.Option()] = 250,
    serve: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Print a row for each workload and way to run it; medians leave out the first ten calls, which learn."""
    if serve:
        _serve()
        return
    service = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert service.stdout
        url = service.stdout.readline().strip()
        os.environ.update(OPENAI_BASE_URL=url + "/v1", OPENAI_API_KEY="none", SEARCH_URL=url + "/search")
        control = httpx.Client(base_url=url, timeout=60)
        print(ROW.format("workload", "", "median", "ratio", "p90", "requests", "wasted", "reported", "answers"))
        for workload in [only] if only else ["steady", "changing", "mixed", "strict"]:
            _compare(workload, calls, control, chat_ms / 1000)
    finally:
        service.terminate()
        service.wait()


def _compare(workload: str, calls: int, control: httpx.Client, chat_s: float) -> None:
    encoding()  # where its table lies: nothing is downloaded
    from learned_app import app

    from teola_plugin import optimize, optimized

    ways = {"original": app, "certain": optimize(app), "learned": optimize(app, speculate="learned")}
    delays_s = {"chat": chat_s, "embed": chat_s / 4, "search": chat_s}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    asked: dict[str, list[int]] = {way: [] for way in ways}
    answers: dict[str, list[str]] = {way: [] for way in ways}
    for question in questions(workload, calls):
        for way, pipeline in ways.items():
            control.post("/control", json={"delays_s": delays_s})
            started_s = time.perf_counter()
            with contextlib.redirect_stdout(io.StringIO()):
                answers[way].append(pipeline.invoke({"question": question})["answer"])
            seconds[way].append(time.perf_counter() - started_s)
            time.sleep(0.02)  # what is cancelled has arrived or never will
            asked[way].append(len(control.post("/control", json={}).json()))
    late = {way: sorted(each[10:]) for way, each in seconds.items()}
    for way in ways:
        median, slow = statistics.median(late[way]), late[way][int(0.9 * len(late[way]))]
        more = sum(asked[way]) - sum(asked["original"])
        reported = sum(r.wasted for r in optimized(ways[way]).reports) if way != "original" else 0
        print(ROW.format(
            workload, way, f"{1000 * median:.0f} ms", f"{statistics.median(late['original']) / median:.2f}",
            f"{1000 * slow:.0f}", f"{statistics.fmean(asked[way]):.1f}", more, reported,
            "equal" if answers[way] == answers["original"] else "DIFFERENT",
        ), flush=True)  # fmt: skip


def _serve() -> None:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        print(f"http://127.0.0.1:{door.getsockname()[1]}", flush=True)
        config = uvicorn.Config(Routing(OURS).app(), log_config=None, lifespan="off", ws="none")
        uvicorn.Server(config).run(sockets=[door])


if __name__ == "__main__":
    typer.run(main)

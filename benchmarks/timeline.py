"""The picture of the README: one chain, original and optimized, as the service behind its model saw the requests.

    python benchmarks/timeline.py docs/timeline.svg

The model is a `ChatOpenAI` on a service on loopback that sleeps before each reply. Both runs are real ones; the first
call of each is left out (imports, connections, and a provider that has not answered yet is not asked ahead).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_openai import ChatOpenAI

from teola_plugin import optimize

GRADE_S, ANSWER_S = 0.4, 1.0
QUESTION = "How do bees tell where flowers are?"
DOCS = ["Bees dance in the hive.", "A hive has one queen.", "The dance tells the way.", "Honey keeps for years."]
Ran = tuple[str, float, float]
"""A request: what it was for, and when it began and ended, in seconds."""


class Service(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 32

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ran: list[Ran] = []


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        began_s = time.perf_counter()
        prompt = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"][-1]["content"]
        is_grade = prompt.startswith("Does")
        time.sleep(GRADE_S if is_grade else ANSWER_S)
        name = f"grade {1 + DOCS.index(prompt.partition(': ')[2])}" if is_grade else "answer"
        self.server.ran.append((name, began_s, time.perf_counter()))
        text = ("yes" if "dance" in prompt else "no") if is_grade else "They dance."
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        said = json.dumps({"id": "1", "object": "chat.completion", "model": "m", "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(said)))
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *args: Any) -> None:
        pass


def chain_on(llm: ChatOpenAI) -> Any:
    """The chain of the README."""

    def relevant(given: dict[str, Any]) -> list[str]:
        kept = []
        for doc in given["docs"]:
            if "yes" in llm.invoke(f"Does this help with {given['question']!r}: {doc}").content:
                kept.append(doc)  # noqa: PERF401  as people write it
        return kept

    prompt = ChatPromptTemplate.from_template("{docs}\n\n{question}")
    return RunnablePassthrough.assign(docs=relevant) | prompt | llm | StrOutputParser()


def run(act: Callable[[Any], Any], service: Service) -> tuple[list[Ran], float]:
    """The requests of one call, from its begin on, and how long it took."""
    given = {"question": QUESTION, "docs": DOCS}
    act(given)
    service.ran.clear()
    began_s = time.perf_counter()
    assert act(given) == "They dance."
    seconds = time.perf_counter() - began_s
    return sorted((name, at - began_s, end - began_s) for name, at, end in service.ran), seconds


# --- drawing ---------------------------------------------------------------------------------------------------------

WIDTH, LEFT, BAR, GAP = 760, 96, 22, 5
COLOURS = {"grade": "#4078c0", "answer": "#2f8f5b"}
GREY = "#768390"  # legible on white and on black


def rows_of(ran: list[Ran]) -> list[list[Ran]]:
    """Requests that overlap stand in rows of their own."""
    rows: list[list[Ran]] = []
    for one in sorted(ran, key=lambda each: (round(each[1], 1), each[0])):
        row = next((row for row in rows if row[-1][2] <= one[1] + 0.02), None)
        rows.append([one]) if row is None else row.append(one)
    return rows


def drawn(runs: dict[str, tuple[list[Ran], float]]) -> str:
    scale = (WIDTH - LEFT - 50) / max(seconds for _, seconds in runs.values())
    parts: list[str] = []
    y = 8
    for name, (ran, seconds) in runs.items():
        rows = rows_of(ran)
        parts.append(f'<text x="0" y="{y + 15}" fill="{GREY}">{name}</text>')
        for at, row in enumerate(rows):
            top = y + at * (BAR + GAP)
            for what, began_s, ended_s in row:
                x, width = LEFT + began_s * scale, (ended_s - began_s) * scale - 2
                colour = COLOURS[what.split()[0]]
                parts.append(f'<rect x="{x:.0f}" y="{top}" width="{width:.0f}" height="{BAR}" rx="3" fill="{colour}"/>')
                middle = x + width / 2
                parts.append(f'<text x="{middle:.0f}" y="{top + 15}" text-anchor="middle" fill="#fff">{what}</text>')
        parts.append(f'<text x="{LEFT + seconds * scale + 6:.0f}" y="{y + 15}" fill="{GREY}">{seconds:.1f} s</text>')
        y += len(rows) * (BAR + GAP) + 14
    title = "; ".join(f"{name}: {seconds:.1f} s" for name, (_, seconds) in runs.items())
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" role="img"'
    style = 'font-family="-apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="13"'
    return "\n".join([f"{head} {style}>", f"<title>{title}</title>", *parts, "</svg>", ""])


def main(path: str) -> None:
    service = Service()
    threading.Thread(target=service.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{service.server_address[1]}/v1"
    chain = chain_on(ChatOpenAI(model="m", base_url=address, api_key="none"))  # type: ignore[arg-type]
    runs = {"original": run(chain.invoke, service), "optimized": run(optimize(chain).invoke, service)}
    Path(path).write_text(drawn(runs))
    print(", ".join(f"{name} {seconds:.2f} s" for name, (_, seconds) in runs.items()))


if __name__ == "__main__":
    main(sys.argv[1])

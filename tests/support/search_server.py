"""A search endpoint of one's own: a small server on loopback over a text corpus, ranked by BM25.

    with search_server() as server:
        SearchEngine(server.endpoint)            # http://127.0.0.1:PORT/search, as SearXNG answers

    python -m tests.support.search_server                # until Ctrl-C

    GET /search?q=...&count=10    {"query": ..., "results": [{"title", "url", "content", "score"}]}, best first
    GET /pages/3                  the third text as a page

Source of the ranking: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009.
"""

from __future__ import annotations

import html
import json
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import typer

from teola_plugin.demo.corpus import Passage, passages

PASSAGES = 256
COUNT = 10
"""Of results, unless `count` says otherwise; SearXNG's too."""

SATURATION, LENGTH_SHARE = 1.5, 0.75
"""k1 and b of BM25, the usual ones."""

SNIPPET_CHARACTERS = 160

_WORD = re.compile(r"\w+")


class Index:
    """Ranks texts by the words that they share with a query."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._counts = [Counter(_words(text)) for text in texts]
        self._lengths = [counts.total() for counts in self._counts]
        self._mean_length = sum(self._lengths) / max(1, len(texts))
        self._holders = Counter(word for counts in self._counts for word in counts)

    def search(self, query: str, count: int) -> list[tuple[int, float]]:
        """The best texts with a word of the query, as (place, score); of equal scores the first."""
        asked = dict.fromkeys(_words(query))
        scores = [(place, sum(self._weight(word, place) for word in asked)) for place in range(len(self._counts))]
        found = [(place, score) for place, score in scores if score > 0]
        return sorted(found, key=lambda each: -each[1])[:count]

    def _weight(self, word: str, place: int) -> float:
        times, holders = self._counts[place][word], self._holders[word]
        rarity = math.log(1 + (len(self._counts) - holders + 0.5) / (holders + 0.5))
        length = 1 - LENGTH_SHARE + LENGTH_SHARE * self._lengths[place] / self._mean_length
        return rarity * times * (SATURATION + 1) / (times + SATURATION * length)


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


@dataclass(frozen=True, slots=True)
class SearchServer:
    """Where it answers."""

    url: str

    @property
    def endpoint(self) -> str:
        return f"{self.url}/search"


@contextmanager
def search_server(
    texts: Sequence[Passage] | None = None, *, port: int = 0, delay_s: float = 0.0
) -> Iterator[SearchServer]:  # fmt: skip
    """The server, answering until the end of the block; on any free port if none is given.

    `delay_s`: how much longer each answer takes, as if it came from afar.
    """
    corpus = passages(PASSAGES) if texts is None else texts
    server = ThreadingHTTPServer(("127.0.0.1", port), _handler(corpus, delay_s))
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="search-server")
    thread.start()
    try:
        yield SearchServer(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(corpus: Sequence[Passage], delay_s: float) -> type[BaseHTTPRequestHandler]:
    index = Index([passage.text for passage in corpus])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet
        timeout = 60.0

        def do_GET(self) -> None:
            time.sleep(delay_s)
            parts = urlsplit(self.path)
            asked = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            folder, _, number = parts.path[1:].partition("/")
            if parts.path == "/search" and asked.get("q") and asked.get("count", "1").isdecimal():
                self._send(200, "application/json", json.dumps(self._found(asked)))
            elif parts.path == "/search":
                self._send(400, "text/plain", "expected /search?q=WORDS&count=NUMBER")
            elif folder == "pages" and number.isdecimal() and int(number) < len(corpus):
                self._send(200, "text/html", page_of(corpus[int(number)]))
            else:
                self._send(404, "text/plain", "there are /search?q=WORDS and /pages/NUMBER")

        def _found(self, asked: dict[str, str]) -> dict[str, object]:
            host = f"http://127.0.0.1:{self.connection.getsockname()[1]}"
            results = [
                {
                    "title": corpus[place].source,
                    "url": f"{host}/pages/{place}",
                    "content": corpus[place].text[:SNIPPET_CHARACTERS],
                    "score": round(score, 4),
                }
                for place, score in index.search(asked["q"], int(asked.get("count", COUNT)))
            ]
            return {"query": asked["q"], "results": results}

        def _send(self, status: int, content_type: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{content_type}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Not on the screen of whoever runs it."""

    return Handler


def page_of(passage: Passage) -> str:
    """A passage as HTML."""
    paragraphs = "".join(f"<p>{html.escape(part)}</p>" for part in passage.text.split("\n\n"))
    return f"<!doctype html><title>{html.escape(passage.source)}</title><body>{paragraphs}</body>"


def main(port: int = 8888) -> None:
    """Answer searches until Ctrl-C."""
    with search_server(port=port) as server:
        typer.echo(f"{server.endpoint}?q=largest+items")
        threading.Event().wait()


if __name__ == "__main__":
    typer.run(main)

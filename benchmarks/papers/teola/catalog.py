"""The figures of Teola / Ayo (arXiv 2407.00326, ASPLOS'25)."""

from __future__ import annotations

from functools import partial

from papers.figures import Figure
from papers.teola.ablations import batching_ablation, figure_3, graph_ablation, split_prefill
from papers.teola.batches import figure_4, figure_7
from papers.teola.latencies import app_result
from papers.teola.overhead import overhead
from papers.teola.real import real
from papers.teola.sizes import by_size, together


def _app(app: str, title: str, source: str, published: float | None, *, has_embedder: bool) -> Figure:
    return Figure(
        f"teola-{app.lower()}", f"App {app}: {title}", source, partial(app_result, app, published, has_embedder)
    )


FIGURES = (
    _app("A", "search-engine generation", "Ayo, figure 8, row 1", 1.79, has_embedder=False),
    _app("B", "naive RAG on an uploaded document", "Ayo, figure 8, row 2", 1.62, has_embedder=True),
    _app("C", "advanced RAG on an uploaded document", "Ayo, figure 8, row 3", 2.09, has_embedder=True),
    _app("D", "contextual retrieval", "Ayo, figure 8, row 4", 1.59, has_embedder=False),
    _app("E", "agent with function calls", "Ayo, figure 2b; nothing measured there", None, has_embedder=False),
    Figure("teola-sizes", "Core LLMs of three sizes", "Ayo, figure 8", by_size),
    Figure("teola-together", "Apps B and C on the same engines", "Ayo, figure 9", together),
    Figure("teola-graph", "Graph optimization, part by part", "Ayo, figure 10", graph_ablation),
    Figure("teola-batching", "Topology-aware batching", "Ayo, figure 11", batching_ablation),
    Figure("teola-figure3", "One query of advanced RAG", "Ayo, figure 3", figure_3),
    Figure("teola-figure4", "Batches of one application", "Ayo, figure 4", figure_4),
    Figure("teola-figure7", "Two queries in one queue", "Ayo, figure 7", figure_7),
    Figure("teola-overhead", "What optimizing and communication take", "Ayo, figure 12", overhead),
    Figure("teola-split", "Split prefills", "Ayo, table 3", split_prefill),
    Figure("teola-real", "App C on real engines of this machine", "Ayo, figure 8, row 3", real, is_real=True),
)

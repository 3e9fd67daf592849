"""Measures the latency profile of an engine: seconds per batch, and the size from which on a larger batch gains
nothing.

    profile = measure(engine)                  # a Profile, of an LLM an LlmProfile
    profile = measure(load_engines("engines.toml")["embedder"], budget_s=30)

Batches of 1, 2, 4, ... items of several lengths, each after a warm-up, repeated until the times agree, until twice as
many items gain nothing or there is no time left (steps.py, batches.py). An LLM is measured twice: prefills against
tokens, decode steps against running sequences (llm.py). Nothing else should use the engine or the machine meanwhile.
"""

from __future__ import annotations

from teola_plugin.profiling.measuring import INGESTION, Measured, measure, measured, store
from teola_plugin.profiling.steps import Part

__all__ = ["INGESTION", "Measured", "Part", "measure", "measured", "store"]

"""Measures the latency profile of an engine: how long a batch takes, and from which size on a larger one gains nothing.

    profile = measure(engine)                  # a Profile, of an LLM an LlmProfile
    profile = measure(load_engines("engines.toml")["embedder"], budget_s=30)

Batches of 1, 2, 4, ... items of several lengths, each after a warm-up, repeated until the times agree, until twice as
many items gain nothing or there is no time left (steps.py, batches.py). An LLM is measured twice: prefills against
tokens, decode steps against the sequences that run (llm.py). Nobody else should use the engine or machine meanwhile.
"""

from __future__ import annotations

from teola_plugin.profiling.measuring import INGESTION, Measured, measure, measured, store
from teola_plugin.profiling.steps import Part

__all__ = ["INGESTION", "Measured", "Part", "measure", "measured", "store"]

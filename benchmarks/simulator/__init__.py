"""The simulator: queries on modelled engines, by the schedulers, policies and plans of real ones.

    system = System({"llm": LlmServer(PAPER_LLM["7b"]), "embedder": BatchServer({"embedding": PAPER["embedding"]})})
    arrivals = poisson(2.0, {"rag": 1}, count=500, seed=1)
    simulation = simulate(arrivals, {"rag": Workload(plan, functions, inputs)}, system)
    statistics.fmean(each.latency_s for each in simulation.ended)

    arrivals --> Query: GraphScheduler --requests--> Lane: EngineScheduler --batches--> LlmInstance | BatchInstance
                       ^------------------------------- values ------------------------------'

One heap of events (clock.py). Only the engines are modelled: batch engines by their latency profiles, LLMs step by step
(llm_server.py) with prefix cache and KV capacity. arrivals.py can drive the real host in virtual time instead: ten
times slower, and with everything that guards against faults. `benchmarks/simulator_check.py` has both side by side, and
says how fast this is.
"""

from __future__ import annotations

from simulator.arrivals import Arrival, Ended, poisson
from simulator.many import simulate_many
from simulator.simulate import simulate
from simulator.systems import BatchServer, LlmServer, System, Workload
from simulator.usage import EngineUse, Simulation, Span
from simulator.values import tokens_of

__all__ = [
    "Arrival", "BatchServer", "Ended", "EngineUse", "LlmServer", "Simulation", "Span", "System", "Workload", "poisson",
    "simulate", "simulate_many", "tokens_of",
]  # fmt: skip

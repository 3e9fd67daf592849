"""The simulator: queries on the real host in virtual time, where only the engines are modelled.

    system = System({"llm": LlmServer(PAPER_LLM["7b"]), "embedder": BatchServer({"embedding": PAPER["embedding"]})})
    arrivals = poisson(2.0, {"rag": 1}, count=500, seed=1)
    simulation = simulate(arrivals, {"rag": Workload(plan, functions, inputs)}, system)
    statistics.fmean(each.latency_s for each in simulation.ended)

    arrivals --> run_query: PlanExecutor --requests--> LocalHost: EngineWorker --batches--> LlmEngine | BatchEngine
                       ^------------------------------- outcomes ---------------------------'

Queries run as graphs without a framework do (runtime/session/graph_runner.py), on an event loop whose clock jumps
(runtime/hosts/virtual_time.py). Batch engines are modelled by their latency profiles, LLMs step by step (llm_server.py)
with prefix cache and KV capacity; many steps are one event. `benchmarks/simulator_check.py` has the simulator beside
profile engines and real ones, and says how fast it is.
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

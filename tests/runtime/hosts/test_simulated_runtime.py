"""The contract of the runtime, in seeded lives of faulty engines (simulation.py), contests of tenants
(simulated_tenants.py) and scenes (scenarios.py).

TEOLA_TEST_SIMULATIONS: how many seeds. A failing one is named, and TEOLA_TEST_SEED=<seed> runs it alone.
"""

from __future__ import annotations

import os

import pytest

from tests.support.scenarios import SCENARIOS, play
from tests.support.simulated_tenants import contend
from tests.support.simulation import simulate

SIMULATIONS = int(os.environ.get("TEOLA_TEST_SIMULATIONS", "300"))
CHUNK = 25
SEED = os.environ.get("TEOLA_TEST_SEED")
CHUNKS = (
    [range(int(SEED), int(SEED) + 1)]
    if SEED
    else [range(at, min(at + CHUNK, SIMULATIONS)) for at in range(0, SIMULATIONS, CHUNK)]
)


@pytest.mark.parametrize("seeds", CHUNKS, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_seeds(seeds: range) -> None:
    for seed in seeds:
        problems = simulate(seed)
        assert not problems, f"TEOLA_TEST_SEED={seed}: " + "\n".join(problems[:10])


@pytest.mark.parametrize("seeds", CHUNKS[:2], ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_tenants_have_their_shares_and_deadlines_are_kept(seeds: range) -> None:
    for seed in seeds:
        problems = contend(seed)
        assert not problems, f"TEOLA_TEST_SEED={seed}: " + "\n".join(problems[:10])


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    assert play(SCENARIOS[name]) == []


def test_a_seed_is_the_same_life_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.faulty_engines import Instance

    lives: list[list[str]] = []
    run = Instance.run

    async def told(self: Instance, batch, emit) -> None:  # type: ignore[no-untyped-def]
        lives[-1].append(f"{self.name} {[item.payload for item in batch.items]}")
        await run(self, batch, emit)

    monkeypatch.setattr(Instance, "run", told)
    for _ in range(2):
        lives.append([])
        simulate(11)
    assert lives[0] == lives[1]
    assert len(lives[0]) > 10

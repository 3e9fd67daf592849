"""Short lives of one engine, each about one promise of the runtime, in virtual time.

    problems = play(SCENARIOS["old ones first"])      # [] if it was kept

What simulation.py draws from seeds finds what nobody thought of; here is what had to be thought of.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.support import scenes_of_ends, scenes_of_failures, scenes_of_turns
from tests.support.simulation import in_virtual_time

Scenario = Callable[[], Awaitable[list[str]]]

SCENARIOS: dict[str, Scenario] = {
    scene.__name__.replace("_", " "): scene
    for scene in (*scenes_of_turns.SCENES, *scenes_of_failures.SCENES, *scenes_of_ends.SCENES)
}


def play(scenario: Scenario) -> list[str]:
    """What was wrong in it."""
    problems: list[str] = []

    async def main() -> None:
        problems.extend(await scenario())

    return [*in_virtual_time(main), *problems]

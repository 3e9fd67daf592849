"""An agent with two tools that only read: the first call runs while the model still writes the second.

    python examples/langchain_agent.py

The engine prefills what is known of the next prompt while the slower tool works. A tool that nobody vouches for
(here: `book`) starts when the agent comes to it, as ever.
"""

import time
from collections.abc import Mapping
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool

from teola_plugin import compare, explain, optimize, reads
from teola_plugin.models.langchain import EngineChatModel
from teola_plugin.profile import PAPER_LLM
from teola_plugin.runtime.engines.simulated import ProfileLLM

CALLS = """<tool_call>{"name": "trains", "arguments": {"start": "Zurich", "end": "Milan"}}</tool_call>
<tool_call>{"name": "weather", "arguments": {"city": "Milan", "day": "tomorrow"}}</tool_call>"""


def reply(prompt: str, settings: Mapping[str, Any]) -> str:
    """What a model would write; the engine only takes its time for it. VllmEngine(...) is a real one."""
    return "Take the train at 9:10, and a coat." if "Tool: " in prompt else CALLS


@tool
@reads("timetable")
def trains(start: str, end: str) -> str:
    """Trains between cities."""
    time.sleep(0.8)
    return f"{start} 9:10 - {end} 12:37"


@tool
@reads("forecast")
def weather(city: str, day: str) -> str:
    """The weather in a city."""
    time.sleep(0.2)
    return f"Rain in {city} {day}."


@tool
def book(train: str) -> str:
    """Book a seat."""
    print("Booked:", train)
    return f"A seat in {train}."


model = EngineChatModel(engine=ProfileLLM("llm", PAPER_LLM["7b"], reply=reply))
agent = create_agent(model, [trains, weather, book], system_prompt="You plan journeys.")

if __name__ == "__main__":
    print(explain(optimize(agent)))
    print(compare(agent, [{"messages": [HumanMessage("To Milan tomorrow?", id="1")]}], repeats=2))

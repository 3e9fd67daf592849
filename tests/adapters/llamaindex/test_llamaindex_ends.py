"""What is optimized is not kept alive: neither the optimized object nor the user's own."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step

import teola_plugin
from tests.support.llamaindex_comparing import Stage


class Asking(Workflow):
    """A step that is read."""

    llm: Any = None

    @step
    async def ask(self, ev: StartEvent) -> StopEvent:
        one, other = await self.llm.acomplete("one"), await self.llm.acomplete("other")
        return StopEvent(result=one.text + other.text)


if not hasattr(Asking.ask, "_step_config"):
    pytest.skip("steps are read from llama-index-workflows 2 on", allow_module_level=True)


def test_an_optimized_workflow_ends_with_its_last_use() -> None:
    own: Any = Asking()
    own.llm = Stage().engines.model
    twin: Any = teola_plugin.optimize(own)
    assert twin is not own
    held = weakref.ref(own)
    del own
    gc.collect()
    assert held() is not None
    del twin
    gc.collect()
    assert held() is None

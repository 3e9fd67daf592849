"""LangChain's standard tests of a chat model, on ours as it is and optimized. The engine is a simulated one."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from teola_plugin import optimize
from teola_plugin.models.langchain import EngineChatModel
from teola_plugin.profile import LlmProfile, Profile
from teola_plugin.runtime.engines.simulated import ProfileLLM

PROFILE = LlmProfile(prefill=Profile(((0, 0.0),)), step=Profile(((0, 0.0),)))


class _Ours:
    """What LangChain's suites ask of a model's own tests."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return EngineChatModel

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"engine": ProfileLLM("llm", PROFILE)}

    @property
    def supports_model_override(self) -> bool:
        return False


class _Unwitting(_Ours):
    @property
    def has_tool_calling(self) -> bool:
        return False  # a simulated engine does not know when to call which

    @property
    def has_structured_output(self) -> bool:
        return False


class _Optimized(_Ours):
    @pytest.fixture
    def model(self, request: Any) -> BaseChatModel:
        made = {**self.standard_chat_model_params, **self.chat_model_params, **getattr(request, "param", {})}
        return optimize(self.chat_model_class(**made))


class TestUnit(_Ours, ChatModelUnitTests):
    """As it is."""


class TestIntegration(_Unwitting, ChatModelIntegrationTests):
    """As it is."""


class TestOptimizedUnit(_Optimized, ChatModelUnitTests):
    """Its twin."""


class TestOptimizedIntegration(_Optimized, _Unwitting, ChatModelIntegrationTests):
    """Its twin."""

"""Our models for users' pipelines: components of each framework that stand on an engine.

    teola_plugin.models.langchain      EngineChatModel  EngineLLM  EngineEmbeddings  EngineReranker
    teola_plugin.models.llamaindex     EngineLLM  EngineEmbedding  EngineRerank

They work like any other component. In an optimized pipeline they find in the session what ran ahead. Each has
`spec`, the engine it stands on, and `request_for(...)`, the payload and settings of one item: the model asks
with them, and a tracer foresees with them, so both always name the same slot.
"""

from __future__ import annotations

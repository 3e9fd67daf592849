"""Our models for users' pipelines: components of each framework which run on an engine.

    teola_plugin.models.langchain      EngineChatModel  EngineLLM  EngineEmbeddings  EngineReranker
    teola_plugin.models.llamaindex     EngineLLM  EngineEmbedding  EngineRerank

The models work like any other component. In an optimized pipeline, each takes its early requests from the session. Each
has `spec`, the engine, and `request_for(...)`, the payload and settings of one item: both the model and the tracer use
`request_for`, so both always name the same slot.
"""

from __future__ import annotations

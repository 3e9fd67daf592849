"""`TeolaCallbackHandler`: what a run of a pipeline came to, or what `optimize` would make of it.

handler = TeolaCallbackHandler()
optimize(chain).invoke(question, config={"callbacks": [handler]})
print(handler)                                  what ran ahead, the waits, the critical path, the bound, the breaks
chain.invoke(question, config={"callbacks": [handler]})
print(handler)                                  what that run took, and what it could take at best
query_engine.callback_manager.add_handler(handler)      the same for LlamaIndex
"""

from __future__ import annotations

from teola_plugin.callbacks.handler import TeolaCallbackHandler
from teola_plugin.callbacks.prediction import Leaf, Prediction
from teola_plugin.callbacks.run_report import RunReport

__all__ = ["Leaf", "Prediction", "RunReport", "TeolaCallbackHandler"]

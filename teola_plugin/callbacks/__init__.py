"""`TeolaCallbackHandler`: a report of each optimized run, or a prediction of the gain by `optimize`.

handler = TeolaCallbackHandler()
optimize(chain).invoke(question, config={"callbacks": [handler]})
print(handler)                                  the early requests, the waits, the critical path, the bound, the breaks
chain.invoke(question, config={"callbacks": [handler]})
print(handler)                                  the time of the run, and the best possible time
query_engine.callback_manager.add_handler(handler)      the same for LlamaIndex
"""

from __future__ import annotations

from teola_plugin.callbacks.handler import TeolaCallbackHandler
from teola_plugin.callbacks.prediction import Leaf, Prediction
from teola_plugin.callbacks.run_report import RunReport

__all__ = ["Leaf", "Prediction", "RunReport", "TeolaCallbackHandler"]

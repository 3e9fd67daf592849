"""The stable codes of everything that is decided on the user's behalf, with their meaning. A code is never reused.

TR: a pass rewrote the graph or refused to. TB: a break, something was left to the framework. TF: a run-ahead fell back
at run time.
"""

from __future__ import annotations

CODES = {
    # passes
    "TR001": "the pass raised or broke the graph; its changes were dropped",
    "TR101": "an order edge went: no effect asks for it",
    "TR102": "an order edge stayed: its ends touch the same resource",
    "TR103": "an order edge was drawn between two ends that edges through a third one kept apart",
    "TR104": "a primitive went: nobody uses its value and no engine is asked",
    "TR201": "the items go to the engine in stages",
    "TR202": "no stages: the engine has no latency profile",
    "TR203": "no stages: nothing behind works item by item on another engine",
    "TR204": "no stages: all items are sure to fit one",
    "TR205": "no stages: the predicted gain is less than the overhead",
    "TR301": "the leading pieces of a prompt are prefilled early",
    "TR302": "no early prefill: the predicted gain is less than what splitting costs",
    "TR303": "no early prefill: what is early is the same in every call, and so in the prefix cache",
    "TR304": "no early prefill: all pieces are ready at once",
    "TR305": "no early prefill: the engine does not reuse a prefix",
    "TR401": "items of a text are handed on while it is written",
    "TR402": "items wait for the whole text: nobody takes them one by one",
    "TR403": "the generation ends with the last wanted item",
    "TR404": "the generation runs to its own end: the whole text is seen",
    "TR405": "items wait for the whole text: their own prefills would hold up its decoding",
    # breaks
    "TB001": "not a pipeline we know; returned as it is",
    "TB101": "this function may have effects, so only the framework's own run calls it",
    "TB102": "this kind of runnable is not read",
    "TB103": "a cache, a rate limiter or a stream stands before the model",
    "TB104": "the model is not known to keep no state between calls",
    "TB105": "this retriever is not an embedding followed by one query of a store we know",
    "TB106": "inside a map nobody can tell which item a run of this component belongs to",
    "TB107": "the same component stands in the pipeline twice; only the first run tells its value",
    "TB108": "what it takes of its input is not there when the pipeline is read",
    "TB109": "the prompt template is not a stock one, or holds functions with effects",
    "TB110": "the arguments bound to it are not understood",
    "TB111": "a branch inside a map is left to the framework",
    "TB112": "its configuration chooses among components, or limits how much runs at once",
    "TB113": "what the chain makes of the answers to all documents is its own run's affair",
    "TB114": "the reply may call tools: it runs ahead, and the model's own run makes a message of it",
    "TB120": "nothing is known of a key of the state that it reads",
    "TB121": "this graph inside another one is left to its own run",
    "TB130": "calls of this tool start when the agent comes to them",
    "TB200": "this query engine is not read; what is inside it is only batched",
    "TB201": "this retriever is not a stock one; its own run tells its nodes",
    "TB202": "this postprocessor is not known to be pure; its own run tells its nodes",
    "TB203": "nodes may lead to other retrievers or to a document store elsewhere",
    "TB204": "the embedding model is not one we can foresee",
    "TB205": "a cache or a rate limiter stands before the model",
    "TB206": "the vector store is not one we can foresee",
    "TB207": "this search is not an embedding followed by one query",
    "TB208": "the LLM is not one we can foresee, or has a parser, a rate limiter or prompt functions with effects",
    "TB209": "this response synthesizer is not a stock one",
    "TB210": "a stream of a model that is not ours does not run ahead",
    "TB211": "structured or multimodal answers are left to the framework",
    "TB212": "a prompt template holds functions, a parser, or is not a stock one",
    "TB213": "the framework's own code raised while the pipeline was read",
    "TB214": "refinements after the first wait for the answer before them, and are the framework's own",
    "TB215": "coroutines of a model that is not ours run ahead only of a call from a coroutine, on its event loop",
    # run time
    "TF001": "the run-ahead failed for a reason of its own; the framework computed everything",
    "TF002": "nothing ran ahead, for that had gained nothing in the calls before",
}

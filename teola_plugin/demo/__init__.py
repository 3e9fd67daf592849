"""The demo: two RAG pipelines in two frameworks on real engines, answered by the original and by `optimize(...)`.

corpus.py                            real text that is on every machine
langchain_rag.py llamaindex_rag.py   the pipelines, as a user writes them
parts.py                             the models and stores they stand on, real or by latency profile
run.py                               the comparisons
"""

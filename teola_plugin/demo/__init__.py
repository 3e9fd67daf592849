"""The demo: two RAG pipelines in two frameworks on real engines, answered by the original and by `optimize(...)`.

corpus.py                            real text found on every machine
langchain_rag.py llamaindex_rag.py   the pipelines, as a user writes them
parts.py                             models and stores of the pipelines, real or by latency profile
run.py                               the comparisons
"""

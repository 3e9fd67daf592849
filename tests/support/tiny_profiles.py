"""Latency profiles of the small real models of the tests, as measured on one CPU thread."""

from __future__ import annotations

from teola_plugin.profile import LlmProfile, Profile

TINY_CPU: dict[str, Profile] = {
    # MiniLM on one CPU thread: 16-token texts 57/s at batch 1, 238/s at 16; 256-token texts 13-15/s at any
    "embedding": Profile.affine(0.0135, token_s=0.00021, item_tokens=16, source="MiniLM, one CPU thread"),
    # a small cross-encoder likewise; the base from its knees, 4 at 64 tokens and 1 at 256
    "reranking": Profile.affine(0.006, token_s=0.00021, item_tokens=64, source="cross-encoder, one CPU thread"),
}
TINY_CPU_LLM: dict[str, LlmProfile] = {
    # vLLM with a Llama of 5 M parameters: 659 tokens 0.2 s, from the prefix cache 0.02 s; steps as measured
    "tiny": LlmProfile(
        prefill=Profile.affine(0.02, token_s=0.00027, source="tiny Llama, one CPU thread"),
        step=Profile(((1, 0.007), (4, 0.010), (16, 0.017), (32, 0.026)), max_items=32, source="tiny Llama"),
    ),
}

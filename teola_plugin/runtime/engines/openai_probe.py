"""Detection of an OpenAI-compatible server's kind.

    /v1/models                  its models, the longest prompt, and the owner of a model, which hints at the kind

Then routes of the server's own show whether the kind is right, and whether the server keeps prefixes:

    /version, /metrics          vLLM
    /get_server_info            SGLang
    /props                      llama.cpp

A server that answers such a route is surely run by its user, so that computing a prefix ahead costs no money. Any other
server is unknown, and may be a paid service. Which of the two endpoints a model has is seen on the first request: a
hosted server may have both, and refuse either for a model.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["vllm", "sglang", "llama.cpp", "unknown"]
KINDS: tuple[Kind, ...] = ("vllm", "sglang", "llama.cpp")
OWNERS: Mapping[str, Kind] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}
"""The kind of server by the owner of a model in /v1/models."""

PROBE_TIMEOUT_S = 10.0
SHOWN_MODELS = 5


@dataclass(frozen=True, slots=True)
class Server:
    """The facts found out about a server. `models` is empty if the server does not list models."""

    kind: Kind = "unknown"
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    keeps_prefixes: bool = False

    def misses(self, model: str) -> str:
        """Return an error text for a model that the server does not list; empty if listed, or without a list."""
        if not self.models or model in self.models:
            return ""
        near = difflib.get_close_matches(model, self.models, SHOWN_MODELS, 0.3) or self.models[:SHOWN_MODELS]
        more = f" and {len(self.models) - len(near)} more" if len(self.models) > len(near) else ""
        return f"it has no model {model!r}; it has {', '.join(map(repr, near))}{more}"


async def probe(client: Any, model: str, kind: Kind | None = None) -> Server:
    """Detect the server of an `AsyncOpenAI`. `kind`: the kind that the user declared.

    Raises: errors of `openai`, if the server is absent, refuses the key, or cannot answer now.
    """
    cards = await _cards(client)
    card = next((card for card in cards if card.get("id") == model), cards[0] if cards else {})
    names = tuple(str(card["id"]) for card in cards if "id" in card)
    length = _length(card.get("max_model_len")) or _length(_mapping(card.get("meta")).get("n_ctx"))
    owner = OWNERS.get(str(card.get("owned_by", "")).lower())
    for candidate in (kind,) if kind else (owner,) if owner else KINDS:
        found = await _own_word(client, candidate)
        if found is not None:
            keeps, told_length = found
            return Server(candidate, names, length or told_length, keeps)
    return Server(kind or "unknown", names, length)


async def _cards(client: Any) -> list[Mapping[str, Any]]:
    import openai

    try:
        response = await _get(client, "/models")
    except (openai.NotFoundError, openai.BadRequestError):
        return []
    except openai.APIStatusError as e:
        if e.status_code in (405, 501):
            return []
        raise
    told = _json(response)
    cards = told.get("data") if isinstance(told, Mapping) else told  # some servers answer with the bare list
    return [card for card in cards if isinstance(card, Mapping)] if isinstance(cards, list) else []


async def _own_word(client: Any, kind: Kind) -> tuple[bool, int | None] | None:
    """Return whether a server of this kind keeps prefixes, and the longest prompt; None for another kind."""
    root = str(client.base_url).rstrip("/").removesuffix("/v1")
    match kind:
        case "vllm":
            if "version" not in await _told(client, f"{root}/version"):
                return None
            metrics = await _text(client, f"{root}/metrics")
            return re.search(r'enable_prefix_caching="True"', metrics) is not None, None
        case "sglang":
            info = await _told(client, f"{root}/get_server_info")
            if "model_path" not in (info or await _told(client, f"{root}/get_model_info")):
                return None
            return info.get("disable_radix_cache") is False, None
        case "llama.cpp":
            props = await _told(client, f"{root}/props")
            if "default_generation_settings" not in props:
                return None
            return True, _length(_mapping(props["default_generation_settings"]).get("n_ctx"))
        case _:
            return None


async def _told(client: Any, url: str) -> Mapping[str, Any]:
    return _mapping(_json(await _text(client, url)))


async def _text(client: Any, url: str) -> str:
    import openai

    try:
        return await _get(client, url)
    except openai.APIError:  # the server has no such route
        return ""


async def _get(client: Any, url: str) -> str:
    import httpx

    response = await client.get(url, cast_to=httpx.Response, options={"timeout": PROBE_TIMEOUT_S})
    return str(response.text)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _mapping(told: Any) -> Mapping[str, Any]:
    return told if isinstance(told, Mapping) else {}


def _length(told: Any) -> int | None:
    return told if type(told) is int and told > 0 else None

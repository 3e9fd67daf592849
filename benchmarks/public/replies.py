"""Replies that depend on nothing but the request: the same question always gets the same answer.

Each reply carries marks such as `z1f3a9c07`, which occur in no other reply. A later request that contains a mark was
made from that reply, so the data paths of an application can be read off the requests that it made.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken

MARK = re.compile(r"z[0-9a-f]{8}")
DIMENSIONS = 256
_WORDS = [
    "agents",
    "plan",
    "tools",
    "memory",
    "search",
    "prompts",
    "context",
    "model",
    "answer",
    "steps",
    "evidence",
    "query",
    "result",
    "method",
    "data",
]

Text = str | Callable[[str, str], str]
"""A reply's text: a template whose `@1`, `@2`, ... become marks, or a function of the prompt and a hash."""


@dataclass(frozen=True)
class Script:
    """What the replies to one application look like where its parsers want more than plain text.

    `texts`: the first whose marker is in the prompt. `fields`: values of a schema's field, chosen by hash, by its name
    or by the schema's name and its own. `lengths`: of a schema's lists by name. `tools`: how many rounds of tool calls
    an agent makes, by hash; `last`: the tool that ends them where it must call one.
    """

    texts: tuple[tuple[str, Text], ...] = ()
    fields: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    lengths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    tools: tuple[int, ...] = (1, 2)
    last: str = ""


def digest(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def choose(choices: Any, seed: str) -> Any:
    return choices[int(digest(seed)[:8], 16) % len(choices)]


def mark(seed: str) -> str:
    return "z" + digest(seed)[:8]


def message(script: Script, body: Mapping[str, Any]) -> dict[str, Any]:
    """The assistant's message that answers the body of a chat request."""
    prompt, seed = prompt_of(body), digest(identity(body))
    schema = (body.get("response_format") or {}).get("json_schema")
    if schema:
        root = {**schema["schema"], "title": schema["name"]}
        return {"role": "assistant", "content": json.dumps(filled(script, root, root, seed, ""))}
    if calls := _calls(script, body, prompt, seed):
        return {"role": "assistant", "content": None, "tool_calls": calls}
    if legacy := _function(script, body, seed):
        return {"role": "assistant", "content": None, "function_call": legacy}
    return {"role": "assistant", "content": text(script, prompt, seed)}


def identity(body: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a request that its reply depends on: how it is sent is no part of it, nor are ids of tool calls."""
    told = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
    return json.loads(re.sub(r"call_[0-9a-z]+", "call", json.dumps(told)))  # type: ignore[no-any-return]


def prompt_of(body: Mapping[str, Any]) -> str:
    """All texts that a request holds: of messages, names of tools and of the schema."""
    parts = [json.dumps(body["tools"])] if body.get("tools") else []
    parts += (
        [body["response_format"]["json_schema"]["name"]] if "json_schema" in (body.get("response_format") or {}) else []
    )
    for said in body.get("messages", ()):
        content = said.get("content")
        parts += [content] if isinstance(content, str) else [str(p.get("text", "")) for p in content or ()]
        parts += [call["function"]["arguments"] for call in said.get("tool_calls") or ()]
    return "\n".join(parts)


def text(script: Script, prompt: str, seed: str) -> str:
    for marker, reply in script.texts:
        if marker in prompt:
            if not isinstance(reply, str):
                return reply(prompt, seed)
            return re.sub(r"@(\d)", lambda found: mark(seed + found[1]), reply)
    words = " ".join(choose(_WORDS, f"{seed}{n}") for n in range(8))
    return f"{words.capitalize()} {mark(seed)}."


def _calls(script: Script, body: Mapping[str, Any], prompt: str, seed: str) -> list[dict[str, Any]]:
    tools = [tool["function"] for tool in body.get("tools") or () if tool.get("type") == "function"]
    wanted = body.get("tool_choice", "auto")
    if not tools or wanted == "none":
        return []
    if isinstance(wanted, dict):
        tools = [tool for tool in tools if tool["name"] == wanted["function"]["name"]]
    elif wanted == "auto" or script.last:
        messages = body["messages"]
        asked = max((n for n, each in enumerate(messages) if each["role"] == "user"), default=0)
        rounds = sum(bool(each.get("tool_calls")) for each in messages[asked:])
        if rounds >= choose(script.tools, prompt_of({"messages": messages[asked : asked + 1]})):
            tools = [tool for tool in tools if tool["name"] == script.last]
        else:
            tools = [tool for tool in tools if tool["name"] != script.last]
    if not tools:
        return []
    picked = choose(tools, seed)
    arguments = filled(script, picked["parameters"], picked["parameters"], seed, "")
    return [_call(picked["name"], arguments, seed)]


def _call(name: str, arguments: Any, seed: str) -> dict[str, Any]:
    told = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": "call_" + digest(seed + "call")[:24], "type": "function", "function": told}


def _function(script: Script, body: Mapping[str, Any], seed: str) -> dict[str, Any] | None:
    wanted = body.get("function_call")
    for function in body.get("functions") or ():
        if wanted is None or (isinstance(wanted, dict) and wanted.get("name") == function["name"]):
            arguments = filled(script, function["parameters"], function["parameters"], seed, "")
            return {"name": function["name"], "arguments": json.dumps(arguments)}
    return None


def filled(script: Script, schema: Mapping[str, Any], root: Mapping[str, Any], seed: str, name: str) -> Any:
    """A value that the schema allows."""
    while "$ref" in schema:
        kept = schema
        schema = root
        for part in kept["$ref"].removeprefix("#/").split("/"):
            schema = schema[part]
    for field_name in (f"{root.get('title')}.{name}", name):
        if field_name not in script.fields:
            continue
        chosen = choose(script.fields[field_name], seed + name)
        return (
            re.sub(r"@(\d)", lambda found: mark(seed + name + found[1]), chosen) if isinstance(chosen, str) else chosen
        )
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            options = [each for each in schema[key] if each.get("type") != "null"]
            return filled(script, choose(options, seed + name), root, seed, name)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return choose(schema["enum"], seed + name)
    return _typed(script, schema, root, seed, name)


def _typed(script: Script, schema: Mapping[str, Any], root: Mapping[str, Any], seed: str, name: str) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            fields = schema.get("properties", {})
            return {key: filled(script, fields[key], root, f"{seed}.{key}", key) for key in fields}
        case "array":
            count = choose(script.lengths.get(name, (3,)), seed + name)
            count = min(max(count, schema.get("minItems", 0)), schema.get("maxItems", count))
            return [filled(script, schema.get("items", {}), root, f"{seed}.{n}", name + "[]") for n in range(count)]
        case "boolean":
            return choose((True, True, True, False), seed + name)
        case "integer":
            return choose(range(schema.get("minimum", 1), schema.get("maximum", 5) + 1), seed + name)
        case "number":
            return choose((0.2, 0.4, 0.6, 0.8, 0.9), seed + name)
    if schema.get("format") == "date-time":
        return choose(("2024-05-01T10:00:00Z", "2024-06-02T09:30:00Z", "soon"), seed + name)
    told = f"{name} {schema.get('description', '')}".lower()
    if ("'yes'" in told and "'no'" in told) or re.search(r"\byes\b.{0,6}\bno\b", told):
        return choose(("yes", "yes", "yes", "yes", "no"), seed + name)
    return f"{choose(_WORDS, seed + name)} {mark(seed + name)}"


@cache
def encoding() -> tiktoken.Encoding:
    """How `OpenAIEmbeddings` cuts texts; llama-index brings the table along, so nothing is downloaded."""
    if core := importlib.util.find_spec("llama_index.core"):
        tables = Path(str(core.origin)).parent / "_static" / "tiktoken_cache"
        os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(tables))
    return tiktoken.get_encoding("cl100k_base")


def embedded_text(item: str | list[int]) -> str:
    return item if isinstance(item, str) else encoding().decode(item)


def vector(text: str) -> list[float]:
    """A unit vector of the text's words: texts that share words are near each other."""
    sums = np.zeros(DIMENSIONS)
    for word in re.findall(r"[a-z0-9]{3,}", text.lower()):
        at = int(digest(word)[:8], 16)
        sums[at % DIMENSIONS] += 1 if at & 256 else -1
    sums[0] += 0.01
    return [round(float(each), 6) for each in sums / np.linalg.norm(sums)]


HOSTS = 64
"""Addresses of this machine where the service answers: found pages lie on many hosts."""


def found(query: str, address: str) -> dict[str, Any]:
    """What the web search finds; its pages are at that address, on one host or another."""
    results = [
        {"url": _page(address, f"{query}{n}"), "title": f"Page {n}", "score": 0.9 - n / 10,
         "content": f"{choose(_WORDS, f'{query}{n}')} of page {n}: {mark(f'{query}{n}')}", "raw_content": None}
        for n in range(3)
    ]  # fmt: skip
    return {"query": query, "results": results, "images": [], "answer": None, "response_time": 0.1}


def _page(address: str, name: str) -> str:
    host = address.replace("127.0.0.1:", f"127.0.0.{1 + int(digest(name)[:8], 16) % HOSTS}:")
    return f"{host}/page/{mark(name)}.org"

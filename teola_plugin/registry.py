"""The registry of engines, declared by name with model, resources and latency profile.

    EngineConfig("embedder", "embedding", model="/models/minilm", num_cpus=2, instances=2, profile="profiles.json")

    [engines.embedder]                 # the same in a TOML file, for load_engines
    kind = "embedding"
    model = "models/minilm"            # paths are relative to the file
    num_cpus = 2
    instances = 2
    profile = "profiles.json"          # written by `teola profile`

No engine is loaded here. A declaration is plain data and can be sent to another process as JSON (`to_json`), where
`runtime/engines/build.py` builds the engine. Source: arXiv 2407.00326, section 3.2, engine registration.
"""

from __future__ import annotations

import difflib
import importlib
import json
import math
import os
import threading
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from teola_plugin import shown
from teola_plugin.errors import EngineError, ProfileError, TeolaError
from teola_plugin.profile import LlmProfile, Profile, load, parse

KINDS = {
    "vllm": "an LLM in this process",
    "openai": "an LLM behind an OpenAI-compatible server",
    "embedding": "a SentenceTransformer",
    "reranking": "a CrossEncoder",
    "chroma": "a Chroma collection",
    "search": "web searches behind an HTTP endpoint",
    "profile_llm": "waits as an LLM would",
    "profile_embedding": "waits as an embedding model would",
    "profile_reranking": "waits as a reranker would",
    "custom": "what `executable` makes",
}
LLM_KINDS = ("vllm", "openai", "profile_llm")
MODEL_KINDS = ("vllm", "openai", "embedding", "reranking", "chroma", "search")
FOLDER_KINDS = ("vllm", "embedding", "reranking", "chroma")
"""Kinds whose model may be a path."""

POLICIES = ("po", "to", "topology", "critical_path")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The declaration of one engine.

    `model`: a folder or hub name; for `openai` the model's name at the server; for `chroma` the folder of the store, or
    the address of a server ("http://host:8000"); for `search` the endpoint. `executable`, for a `custom` engine:
    "package.module:callable", called with `config` and returning an `Engine`. `config`: keyword arguments of the
    engine, JSON only. `num_cpus`, `num_gpus` and `resources` (custom resources of Ray) count for each of `instances`.
    `profile`: a latency profile, or the path of a file written by `teola profile`, with a profile under the engine's
    name. `identity`: the expected `runtime.engines.identity` of the built engine; empty: any.
    """

    name: str
    kind: str
    model: str = ""
    executable: str = ""
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    num_cpus: float = 1
    num_gpus: float = 0
    resources: Mapping[str, float] = field(default_factory=dict, hash=False)
    instances: int = 1
    max_items: int | None = None
    policy: str | None = None
    profile: str | Profile | LlmProfile | None = None
    identity: str = ""

    def __repr__(self) -> str:
        said = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        said["model"] = shown.address(self.model)
        return f"EngineConfig({', '.join(f'{name}={shown.outline(value)}' for name, value in said.items() if value)})"

    def __post_init__(self) -> None:
        for name, (is_right, expected) in _FIELDS.items():
            if not is_right(value := getattr(self, name)):
                raise _error(self.name, name, expected, value)
        object.__setattr__(self, "config", dict(self.config))
        object.__setattr__(self, "resources", dict(self.resources))
        self._check_kind()

    def _check_kind(self) -> None:
        if self.kind in MODEL_KINDS and not self.model:
            raise _error(self.name, "model", f"what an engine of kind {self.kind!r} is to load", self.model)
        if (self.kind == "custom") != bool(self.executable):
            expected = "package.module:callable" if self.kind == "custom" else "nothing, unless the kind is 'custom'"
            raise _error(self.name, "executable", expected, self.executable)
        if self.kind.startswith("profile_") and self.profile is None:
            raise ProfileError(f"engine {self.name!r}: profile: an engine of kind {self.kind!r} needs one")
        if isinstance(self.profile, Profile | LlmProfile):
            self._check_shape(self.profile)

    def _check_shape(self, profile: Profile | LlmProfile) -> None:
        if self.kind != "custom" and isinstance(profile, LlmProfile) != (self.kind in LLM_KINDS):
            expected = "of an LLM (prefill and step)" if self.kind in LLM_KINDS else "of batches (points)"
            raise ProfileError(f"engine {self.name!r}: profile: expected one {expected}, for kind {self.kind!r}")

    def latency_profile(self) -> Profile | LlmProfile | None:
        """Return the profile, read from the file if need be. Raises: ProfileError, naming file and engine."""
        if not isinstance(self.profile, str):
            return self.profile
        try:
            found = load(Path(self.profile))
        except (OSError, UnicodeDecodeError) as e:
            raise ProfileError(f"engine {self.name!r}: profile: cannot read {self.profile}: {e}") from e
        if self.name not in found:
            there = ", ".join(found) or "none"
            raise ProfileError(f"engine {self.name!r}: profile: {self.profile} has none of that name, but: {there}")
        self._check_shape(found[self.name])
        return found[self.name]

    def to_json(self) -> dict[str, Any]:
        """Return all fields, as `json.dumps` takes them; `from_json` returns an equal declaration."""
        said = {f.name: getattr(self, f.name) for f in fields(self)}
        if isinstance(self.profile, Profile | LlmProfile):
            said["profile"] = asdict(self.profile)
        decoded: dict[str, Any] = json.loads(json.dumps(said))
        return decoded

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> EngineConfig:
        """Return the declaration from the JSON of `to_json`, a TOML table or a dict by hand.

        Raises: EngineError, ProfileError.
        """
        name = str(said.get("name", ""))
        known = [f.name for f in fields(cls)]
        for key in said:
            if key not in known:
                raise EngineError(f"engine {name!r}: {key}: no such field{_hint(key, known)}")
        for f in fields(cls):
            if f.default is MISSING and f.default_factory is MISSING and f.name not in said:
                raise EngineError(f"engine {name!r}: {f.name}: missing{_choice(f.name)}")
        given = dict(said)
        if isinstance(given.get("profile"), Mapping):
            try:
                given["profile"] = parse(given["profile"])
            except ProfileError as e:
                raise ProfileError(f"engine {name!r}: profile.{e}") from e
        return cls(**given)


# --- what may stand in a field ------------------------------------------------------------------------------


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_executable(value: object) -> bool:
    return value == "" or (isinstance(value, str) and _names_object(value))


def _is_json(value: object) -> bool:
    """Whether the value comes back from JSON unchanged, except for tuples."""
    try:
        return isinstance(value, Mapping) and _lists(value) == json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError):
        return False


def _lists(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _lists(v) for key, v in value.items()}
    return [_lists(v) for v in value] if isinstance(value, list | tuple) else value


def _are_resources(value: object) -> bool:
    return isinstance(value, Mapping) and all(_is_text(k) and _is_number(v) for k, v in value.items())


_FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "name": (lambda v: isinstance(v, str) and v.strip() == v != "", "a name"),
    "kind": (lambda v: isinstance(v, str) and v in KINDS, f"one of {', '.join(KINDS)}"),
    "model": (_is_text, "a path or name"),
    "executable": (_is_executable, "package.module:callable"),
    "config": (_is_json, "keyword arguments that JSON can hold (texts, numbers, lists, dicts with texts as keys)"),
    "num_cpus": (_is_number, "a number >= 0"),
    "num_gpus": (_is_number, "a number >= 0"),
    "resources": (_are_resources, "numbers >= 0 by the names of Ray resources"),
    "instances": (_is_count, "a whole number >= 1"),
    "max_items": (lambda v: v is None or _is_count(v), "a whole number >= 1"),
    "policy": (lambda v: v is None or v in POLICIES, f"one of {', '.join(POLICIES)}"),
    "profile": (
        lambda v: v is None or (isinstance(v, str) and v != "") or isinstance(v, Profile | LlmProfile),
        "the path of a file of profiles, or a profile",
    ),
    "identity": (_is_text, "what identity() says of the engine"),
}


def _error(engine: str, name: str, expected: str, got: object) -> EngineError:
    choices = KINDS if name == "kind" else POLICIES if name == "policy" else ()
    return EngineError(f"engine {engine!r}: {name}: expected {expected}, got {_shown(got)}{_hint(got, choices)}")


def _shown(got: object) -> str:
    return repr(shown.address(got)) if isinstance(got, str) else shown.outline(got)


def _hint(got: object, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(got), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _choice(name: str) -> str:
    return f"; expected {_FIELDS[name][1]}"


# --- objects by name ----------------------------------------------------------------------------------------


def object_named(text: str) -> Any:
    """Import the module and return the object named "package.module:object".

    Raises: TeolaError if there is no such object.
    """
    if not _names_object(text):
        raise TeolaError(f"{text!r} is not MODULE:OBJECT, such as app:chain")
    module, _, path = text.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as e:
        if not e.name or not f"{module}.".startswith(f"{e.name}."):  # one that the module imports
            raise
        raise TeolaError(f"there is no module {module!r}, installed or in {os.getcwd()}") from e
    for name in path.split("."):
        if not hasattr(found, name):
            raise TeolaError(f"{module!r} has no {path!r}")
        found = getattr(found, name)
    return found


def _names_object(text: str) -> bool:
    module, _, path = text.partition(":")
    return all(name.isidentifier() for name in [*module.split("."), *path.split(".")])


# --- files --------------------------------------------------------------------------------------------------


def load_engines(path: str | Path) -> dict[str, EngineConfig]:
    """Return the engines of a TOML file, by name: one for each table `[engines.NAME]`.

    Raises: EngineError or ProfileError, naming file, engine and field.
    """
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as e:
        raise EngineError(f"cannot read {path}: {e}") from e
    except tomllib.TOMLDecodeError as e:
        raise EngineError(f"{path}: no TOML ({e})") from e
    for key in content:
        if key != "engines":
            raise EngineError(f"{path}: {key}: expected tables [engines.NAME]{_hint(key, ['engines'])}")
    tables = content.get("engines", {})
    if not isinstance(tables, dict) or not tables:
        raise EngineError(f"{path}: expected tables [engines.NAME], found none")
    return {name: _from_table(path, name, table) for name, table in tables.items()}


def _from_table(path: Path, name: str, table: object) -> EngineConfig:
    if not isinstance(table, dict):
        raise EngineError(f"{path}: engine {name!r}: expected a table [engines.{name}], got {shown.brief(table)}")
    if table.get("name", name) != name:
        raise EngineError(f"{path}: engine {name!r}: name: the table says it already, got {table['name']!r}")
    given = {**table, "name": name}
    if isinstance(given.get("profile"), str) and given["profile"]:
        given["profile"] = str(_beside(path, given["profile"]))
    if given.get("kind") in FOLDER_KINDS and isinstance(given.get("model"), str) and given["model"]:
        given["model"] = _model(path, given["model"], given["kind"])
    try:
        return EngineConfig.from_json(given)
    except EngineError as e:
        raise EngineError(f"{path}: {e}") from e
    except ProfileError as e:
        raise ProfileError(f"{path}: {e}") from e


def _model(path: Path, model: str, kind: str) -> str:
    """Return the path beside the file; a server address, or a missing path (a hub model), is unchanged."""
    if "://" in model:
        return model
    found = _beside(path, model)
    is_path = kind == "chroma" or model.startswith((".", "/", "~")) or found.exists()
    return str(found) if is_path else model


def _beside(path: Path, name: str) -> Path:
    return (path.parent / Path(name).expanduser()).resolve()


# --- the engines of this process ----------------------------------------------------------------------------

_registered: dict[str, EngineConfig] = {}
_registering = threading.Lock()


def register(config: EngineConfig) -> EngineConfig:
    """Register an engine by name. Raises: EngineError if the name belongs to a different engine."""
    with _registering:
        if _registered.setdefault(config.name, config) != config:
            raise EngineError(f"engine {config.name!r} is registered with other settings; unregister it first")
    return config


def registered() -> Mapping[str, EngineConfig]:
    """Return the registered engines, by name."""
    with _registering:
        return MappingProxyType(dict(_registered))


def unregister(name: str) -> None:
    """Remove an engine from the registry; running engines go on. Raises: EngineError for an unknown name."""
    with _registering:
        if name not in _registered:
            raise EngineError(f"engine {name!r} is not registered{_hint(name, _registered)}")
        del _registered[name]

"""Engines on Ray: named actors that all processes of a cluster share.

    start(EngineConfig("embedder", "embedding", model="..."))   # or the running engine, if the same
    attach("embedder")                                          # by name, from any process

The contents of an actor: actor.py. `ray.cancel` is not used, because it leaves work running; items are aborted by a
call of this package.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from teola_plugin import loops, runtime, shown
from teola_plugin.errors import EngineError, TeolaError
from teola_plugin.registry import EngineConfig
from teola_plugin.runtime.engines.build import build
from teola_plugin.runtime.hosts.ray.actor import VERSION, EngineActor
from teola_plugin.runtime.hosts.ray.cluster import NAMESPACE, connect
from teola_plugin.runtime.hosts.ray.transport import PREFIX, Lifetime, RayTransport, forget
from teola_plugin.runtime.hosts.remote.client import RemoteEngine
from teola_plugin.runtime.hosts.remote.messages import PROTOCOL, EngineInfo

log = logging.getLogger(__name__)

ANSWER_S = 30.0
"""The time in which an engine answers an operator, in seconds; a slower engine hangs."""

PATIENT_S = 20.0
"""The time after which the log says why an engine has not started, in seconds."""

GONE_S = 5.0
"""The time that Ray may keep the name of an ended engine, in seconds."""

START_S = 600.0
"""The time to start an engine, in seconds: a large model takes minutes to load."""


@dataclass(frozen=True, slots=True)
class Running:
    """An engine of the cluster, as `teola engines` lists it. `stats` is empty for an engine that does not answer."""

    name: str
    hello: EngineInfo | None
    stats: Mapping[str, Any]


def start(config: EngineConfig, *, lifetime: Lifetime = "owned", address: str | None = None) -> RemoteEngine:
    """Return the engine of the config's name on Ray, started if not there. The model must be the same.

    `lifetime`: an "owned" engine ends with the process that started it, a "detached" engine with `stop`.

    Raises: EngineError if the engine cannot be started, or another model runs under the name.
    """
    connect(address)
    return _attached(RayTransport(EngineActor, config, lifetime=lifetime), config)


def attach(name: str, *, address: str | None = None) -> RemoteEngine:
    """Return the engine of a name, started by another process. Raises: EngineError if there is none."""
    connect(address)
    return _attached(RayTransport(EngineActor, None, name=name), None)


def _attached(transport: RayTransport, config: EngineConfig | None) -> RemoteEngine:
    try:
        hello = _greeted(transport, config)
    except Exception as e:  # any error of building the engine
        transport.undo()
        raise _ours(e, transport.name, "could not be started" if config else "could not be reached") from e
    _check(hello, config)
    return RemoteEngine(transport, hello, _prompting(hello))


def _greeted(transport: RayTransport, config: EngineConfig | None) -> EngineInfo:
    """Return the description of a running engine. After a long wait the log says which resources are missing."""
    loops.check_may_wait()
    answer = asyncio.run_coroutine_threadsafe(transport.hello(), runtime.host.loop)
    try:
        return answer.result(PATIENT_S)
    except TimeoutError:
        if answer.done():
            raise
    asked = {"CPU": config.num_cpus, "GPU": config.num_gpus, **config.resources} if config else {}
    free = connect().available_resources()
    short = [f"{n:g} {kind}" for kind, n in asked.items() if n > free.get(kind, 0)]
    why = f"the cluster has no {' and no '.join(short)} free for it" if short else "it is still being started"
    log.warning("waiting for the engine %r: %s", transport.name, why)
    return answer.result(START_S)


def _ours(error: Exception, name: str, what: str) -> TeolaError:
    """Return the remote TeolaError. Ray wraps the error in an error of both classes, with another text."""
    cause = getattr(error, "cause", None) or error
    return cause if isinstance(cause, TeolaError) else EngineError(f"engine {name!r} {what}: {cause}")


def _check(hello: EngineInfo, config: EngineConfig | None) -> None:
    """Check that an engine fits. Raises: EngineError, which says what does not fit and what to do."""
    if (hello.protocol, hello.version) != (PROTOCOL, VERSION):
        raise EngineError(
            f"engine {hello.name!r} runs teola-plugin {hello.version} with protocol {hello.protocol}, this process"
            f" {VERSION} with {PROTOCOL}: install one version everywhere, then `teola engines stop {hello.name}`"
        )
    if config is None:
        return
    for field in ("kind", "model", "identity"):
        wanted, found = getattr(config, field), getattr(hello, field)
        if wanted and wanted != found:
            raise EngineError(
                f"engine {hello.name!r} exists with another {field}: {shown.address(found)!r}, not"
                f" {shown.address(wanted)!r}; choose another name, or"
                f" `teola engines stop {hello.name}`"
            )


def _prompting(hello: EngineInfo) -> Any:
    """Return an unstarted engine of the same model, if prompts need the engine's tokenizer or template."""
    if hello.kind not in ("vllm", "openai"):
        return None
    return build(replace(EngineConfig.from_json(hello.config), instances=1, identity=""))


def engines(*, address: str | None = None) -> list[Running]:
    """Return the engines of the cluster, by name."""
    ray = connect(address)
    return [_running(ray, name) for name in _names(ray) if "/" not in name]


def _running(ray: Any, name: str) -> Running:
    try:
        actor = ray.get_actor(PREFIX + name, namespace=NAMESPACE)
        hello, stats = ray.get([actor.hello.remote(), actor.stats.remote()], timeout=10)
    except Exception:  # it is starting, restarting, hanging or gone: that is what the list is to show
        return Running(name, None, {})
    return Running(name, hello, stats)


def nodes_of(name: str, *, address: str | None = None) -> list[str]:
    """Return the ids of the nodes of an engine's instances. Raises: EngineError if there is no such engine."""
    ray = connect(address)
    found: list[str] = _asked(ray, name, "nodes")
    return found


def scale(name: str, instances: int, *, address: str | None = None) -> int:
    """Set the number of instances. Raises: EngineError if the only instance runs beside the scheduler."""
    ray = connect(address)
    return int(_asked(ray, name, "scale", instances))


def stop(name: str, *, drain_s: float = 30.0, address: str | None = None) -> int:
    """End an engine once all requested work is done. Returns how many items had not ended in time."""
    ray = connect(address)
    actor = _actor(ray, name)
    left = 0
    with contextlib.suppress(ray.exceptions.GetTimeoutError):  # a hanging engine is ended all the same
        left = int(_asked(ray, name, "drain", drain_s, timeout_s=drain_s + ANSWER_S))
        _asked(ray, name, "close", timeout_s=ANSWER_S)
    forget(name)
    ray.kill(actor)
    until_s = time.monotonic() + GONE_S
    while name in _names(ray) and time.monotonic() < until_s:
        time.sleep(0.02)
    return left


def _names(ray: Any) -> list[str]:
    named = ray.util.list_named_actors(all_namespaces=True)
    return sorted(each["name"].removeprefix(PREFIX) for each in named if each["namespace"] == NAMESPACE)


def _actor(ray: Any, name: str) -> Any:
    try:
        return ray.get_actor(PREFIX + name, namespace=NAMESPACE)
    except ValueError as e:
        raise EngineError(f"there is no engine {name!r} on this Ray cluster: see `teola engines`") from e


def _asked(ray: Any, name: str, method: str, *args: Any, timeout_s: float | None = None) -> Any:
    actor = _actor(ray, name)
    try:
        return ray.get(getattr(actor, method).remote(*args), timeout=timeout_s)
    except ray.exceptions.GetTimeoutError:
        raise
    except ray.exceptions.RayError as e:
        raise _ours(e, name, f"could not {method}") from e

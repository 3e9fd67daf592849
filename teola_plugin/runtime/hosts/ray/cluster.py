"""The connection to a Ray cluster: an existing cluster, or a cluster that this package starts on this machine.

A started cluster asks for a token (by default, Ray lets anyone on the network run code, CVE-2025-62593), has no
dashboard, and sends no usage reports. The address and the token are put into the environment of this process, so that
child processes find the cluster.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
from typing import Any
from urllib.parse import urlsplit

from teola_plugin.errors import EngineError, EngineUnavailable

NAMESPACE = "teola"
CONNECT_S = 3.0
START_TRIES = 3
"""The number of attempts to start Ray, which may fail on a busy machine."""

OBJECT_STORE_BYTES = 256 * 1024 * 1024
"""The object store size of a started cluster. The payloads are prompts and vectors."""

_ours = ""
"""The address of the cluster that this process has started; the cluster ends with the connection."""

HOW_TO_START = "start one with `ray start --head`, or leave the address out to have one on this machine"


def import_ray() -> Any:
    """Return the package ray. Raises: EngineUnavailable."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of a coming change of the default
    try:
        import ray
    except ModuleNotFoundError as e:
        raise EngineUnavailable("runtime='ray' needs the package ray: install teola-plugin[ray]") from e
    return ray


def is_connected() -> bool:
    """Whether this process has a connection to a Ray cluster. Does not import Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def connect(address: str | None = None, *, num_cpus: float | None = None) -> Any:
    """Return the package ray, connected.

    `address`: "host:port", "ray://host:port", or None for RAY_ADDRESS or else a new cluster on this machine, with
    `num_cpus` (by default all CPUs). An existing connection is used.

    Raises: EngineUnavailable without Ray; EngineError if no cluster answers at the address.
    """
    if _ours and not is_connected() and os.environ.get("RAY_ADDRESS") == _ours:
        del os.environ["RAY_ADDRESS"]
    if not address or address == "auto":  # as for Ray
        address = os.environ.get("RAY_ADDRESS") or address or None
    if address is None or address == "local":
        _ask_for_token()
    ray = import_ray()
    if ray.is_initialized():
        return ray
    if address is None or address == "local":
        return _start(ray, num_cpus)
    if address == "auto":
        address = _meant_by_auto()
    if address != "auto":
        _check_port(address)
    try:
        ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as e:  # Ray raises nearly anything here: ConnectionError, RuntimeError, RaySystemError, ...
        raise EngineError(f"could not connect to Ray at {address!r}: {e} ({HOW_TO_START})") from e
    return ray


def is_far(ray: Any, node: str) -> bool:
    """Whether a node is not the node of this process. Always true for a `ray://` client, whose node is unknown."""
    return bool(ray.util.client.ray.is_connected()) or node != ray.get_runtime_context().get_node_id()


def _ask_for_token() -> None:
    """Set a token, which Ray reads on import. If imported before, Ray 2.60 and later use a token anyway."""
    if "ray" not in sys.modules and not any(name.startswith("RAY_AUTH_") for name in os.environ):
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _start(ray: Any, num_cpus: float | None) -> Any:
    for left in reversed(range(START_TRIES)):
        try:
            context = ray.init(
                "local", namespace=NAMESPACE, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
                num_cpus=num_cpus, object_store_memory=OBJECT_STORE_BYTES,
            )  # fmt: skip
            break
        except Exception as e:  # Ray raises a plain Exception where its processes take more than 30 s
            ray.shutdown()
            if not left:
                raise EngineError(f"could not start Ray on this machine: {e}") from e
    global _ours
    _ours = os.environ["RAY_ADDRESS"] = context.address_info["address"]
    return ray


def _meant_by_auto() -> str:
    """Return the address that Ray would choose: a running cluster, else the last noted, which may be dead."""
    try:
        from ray._private.services import canonicalize_bootstrap_address

        return canonicalize_bootstrap_address("auto") or "auto"
    except (ImportError, ConnectionError, ValueError):  # another release, or no cluster: Ray reports the error
        return "auto"


def _check_port(address: str) -> None:
    """Check the port first, since Ray would try for minutes."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    if not parts.hostname or not parts.port:
        raise EngineError(f"{address!r} is no address of Ray: expected host:port or ray://host:port")
    try:
        socket.create_connection((parts.hostname, parts.port), CONNECT_S).close()
    except OSError as e:
        raise EngineError(f"there is no Ray at {address!r} ({e}): {HOW_TO_START}") from e


def check_room(ray: Any, name: str, wanted: dict[str, float], instances: int) -> None:
    """Check that some node could ever hold an instance. Raises: EngineError, which says what is missing."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fitting = sum(min(int(node.get(kind, 0) // n) for kind, n in wanted.items() if n) for node in nodes) if any(
        wanted.values()
    ) else instances  # fmt: skip
    if fitting >= instances:
        return
    most = {kind: max((node.get(kind, 0) for node in nodes), default=0) for kind in wanted}
    asked = ", ".join(f"{n:g} {kind}" for kind, n in wanted.items() if n)
    found = ", ".join(f"{most[kind]:g} {kind}" for kind in most)
    raise EngineError(
        f"engine {name!r}: {instances} instances of {asked} each do not fit into the Ray cluster, whose largest node"
        f" has {found}; ask for less (num_cpus, num_gpus, resources) or add nodes"
    )

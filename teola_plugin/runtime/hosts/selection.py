"""Host selection: whether the engines of a pipeline run in this process, or shared on Ray.

    local    in this process
    ray      on Ray, started there if necessary (in a cluster on this machine if there is no other)
    auto     on Ray where this process is connected to Ray and an engine of the same model runs there; else here

The engine moves, not the user's object: another process loads the model from the same place as the user's, and is used
only if the model turns out to be the same (`identity`). A model that exists only in this process stays here, and so do
stores of this process and hosted models. Engines are placed by model: two pipelines with the same model share the
placement.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from teola_plugin.engines import EngineSpec
from teola_plugin.errors import EngineError, ModelMismatch
from teola_plugin.registry import EngineConfig, registered
from teola_plugin.runtime.engines import is_hosted, run_here, run_on
from teola_plugin.runtime.hosts.ray import cluster

Runtime = Literal["auto", "local", "ray"]
MOVABLE = ("engine", "sentence_transformer", "cross_encoder")
"""The kinds of engines that may move. A store stays where writes are seen: a search made before a write of this process
must not count after the write."""

log = logging.getLogger(__name__)

NOT_MOVABLE = "a store or a model of others is asked from where it is used"
NOT_LOADABLE = "the model cannot be loaded anew by another process"

_placing = threading.Lock()


def place(specs: Mapping[str, EngineSpec], runtime: Runtime) -> dict[str, str]:
    """Ensure that engines run at `runtime`. Returns the reasons of engines that stay here, by name.

    With `auto`, the reasons why engines on Ray are not used.

    Raises: EngineError if an engine cannot be started on Ray; EngineUnavailable without the package.
    """
    if runtime == "local":
        for spec in specs.values():
            run_here(spec)
        return {}
    if runtime == "auto" and not cluster.is_connected():
        return {}
    with _placing:
        return dict(_placed(specs, is_asked=runtime == "ray"))


def _placed(specs: Mapping[str, EngineSpec], *, is_asked: bool) -> Iterable[tuple[str, str]]:
    cluster.connect()
    from teola_plugin.runtime.engines.identity import describe
    from teola_plugin.runtime.hosts.ray.engines import attach, engines, start

    running = None
    for name, spec in specs.items():
        if is_hosted(spec):
            continue
        config = describe(spec.resource) if spec.kind in MOVABLE else None
        if config is None:
            if is_asked:
                yield name, NOT_MOVABLE if spec.kind not in MOVABLE else NOT_LOADABLE
        elif is_asked:
            try:
                run_on(spec, start(_declared(config)))
            except ModelMismatch:
                yield name, "the model was changed after it was loaded: another process would load another one"
        else:
            running = engines() if running is None else running
            found = [each.name for each in running if each.hello and each.hello.identity == config.identity]
            try:
                if found:
                    run_on(spec, attach(found[0]))
            except EngineError as e:  # of another version, or gone meanwhile: the user did not ask for Ray
                log.warning("the engine %r on Ray is not used: %s", found[0], e)
                yield name, f"{found[0]!r}: {e}"


def _declared(config: EngineConfig) -> EngineConfig:
    """Return the engine that was registered for the model, else a new engine with a name of its own."""
    for other in registered().values():
        if other.kind == config.kind and (other.identity or other.model) in (config.identity, config.model):
            return replace(other, identity=config.identity)
    # No CPU is reserved for an undeclared engine, or a small machine would wait forever for its third engine.
    return replace(config, name=f"{config.kind}-{config.identity[:12]}", num_cpus=0)

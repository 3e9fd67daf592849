"""What a program shows with rich: the framework's run shows everything, once; a reading tries what may raise.

    console.print("[bold]two[/bold]")      tried on a console that nobody sees: raises nothing
    console.print(reply.content)           may raise a MarkupError, as the reply may have a "[/b]" too many
    table = Table(title="Sources")         a stand-in: a table of rich's own, which only the reading has
    table.add_row(reply.content)           tried on the stand-in, with another text; may raise a MarkupError

Objects with code of the program may raise, as for `print`. So may a console with parts of the program's own. A console
that keeps what is shown, or writes to a file of the program's, ends the reading.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import io
import operator
import sys
import threading
import types
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from teola_plugin.adapters.reader import foreign, operators, outlets
from teola_plugin.adapters.reader.table import is_text, kind_of, unknown_number, words
from teola_plugin.adapters.reader.values import (
    Arguments,
    Barrier,
    Callee,
    Handler,
    Lazy,
    Opaque,
    Stale,
    Unknown,
)

_SHOWING = words("print log out rule line print_json clear bell status")
_METHODS = words(
    "add_column add_row add_section add append append_text stylize add_task update advance reset "
    "from_markup assemble fit left center right"
)
_AT_TIMES = words("start stop refresh")
"""Methods that begin and end what is shown for some time, which are not tried."""

_LIVE = words("Status Live Progress")
_PARTS = words("Live Progress Column Style Box")
"""Classes of objects that are not shown by themselves, beside the columns of a `Progress`."""

_WITHOUT_MARKUP = words("Text Markdown Syntax append")
"""What takes any text as the first argument."""

_ABOUT_CALLERS = words("log_locals _stack_offset")
_LONG = 200
"""The length of texts, for which a short one stands when a call is tried; the largest number tried, as of lines."""


class OfRich(Stale):
    """What rich has made for the program, of which nothing is read but calls; see `_sample_of`."""

    def __init__(self, sample: Any) -> None:
        object.__setattr__(self, "sample", sample)


def _sample_of(value: Any) -> Any:
    """Return the stand-in for what rich has made, with other texts where these are not known; None for other values."""
    held = value.held if type(value) is Opaque else None
    return object.__getattribute__(held, "sample") if type(held) is OfRich else None


def native_of(function: types.FunctionType) -> Handler | None:
    """Return the handler of a function of rich's that shows something, or makes what is shown."""
    name, own = function.__code__.co_name, function.__globals__
    if not (module := _module_of(own.get("__name__"))) or module is not own:
        return None
    if own.get(name) is function:
        return _FUNCTIONS.get(f"{own['__name__']}.{name}")
    cls = own.get(function.__qualname__.rpartition(".")[0])
    found = foreign.namespace_of(cls).get(name) if cls is not None and foreign.is_class(cls) else None
    if type(found) is classmethod and found.__func__ is function:
        return partial(_made_by, cls, name) if name in _METHODS else None
    if found is not function or cls is not _console_class():
        return None
    return partial(_shown, name) if name in _SHOWING else partial(_used_otherwise, name)


def making_of(cls: Any) -> Handler | None:
    """Return the handler for making an object of a class of rich's."""
    if not _is_of_rich(cls) or foreign.module_of(cls) in _LOOKING or foreign.name_of_class(cls)[0] == "_":
        return None
    if cls is _console_class():
        return _make_console
    is_part = foreign.name_of_class(cls) in _PARTS or foreign.module_of(cls) == "rich.progress"
    return partial(_make, cls) if is_part or _is_shown(cls) else None


def attribute(value: Opaque, name: str) -> Callee | None:
    """Return a method of what rich has made; None for all other objects. Raises: AttributeError, Barrier."""
    if (sample := _sample_of(value)) is None:
        return None
    if name != "track" and name not in (*_AT_TIMES, *_METHODS):
        raise Barrier(f"it uses {name} of what rich has made")
    method = getattr(sample, name)
    if name == "track":
        return Callee(_tracked, name)
    if name in _AT_TIMES:
        return Callee(_at_times, name)
    any_texts = 1 if name in _WITHOUT_MARKUP else 0

    def call(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        found = _tried(run, method, args, kwargs, any_texts=any_texts, shown=sample)
        return value if _sample_of(found) is sample else found

    return Callee(call, name)


def is_live(value: Any) -> bool:
    """Whether a value is what rich shows as long as the body of a `with` statement runs."""
    return foreign.name_of_class(type(_sample_of(value))) in _LIVE


# --- classes of rich -------------------------------------------------------------------------------------------------


def _module_of(name: Any) -> dict[str, Any] | None:
    """Return the names of a loaded module of rich."""
    module = sys.modules.get(name) if type(name) is str and name.partition(".")[0] == "rich" else None
    return vars(module) if type(module) is types.ModuleType else None


def _module(name: str) -> dict[str, Any]:
    return _module_of(name) or {}


def _console_class() -> Any:
    return _module("rich.console").get("Console")


def _is_of_rich(cls: Any) -> bool:
    """Whether a class is rich's own, as published."""
    if not foreign.is_class(cls):
        return False
    is_own = _module(foreign.module_of(cls)).get(foreign.name_of_class(cls)) is cls
    return is_own and foreign.has_known_classes(cls) and all(map(_is_published, _own_mro(cls)))


_LOOKING = ("rich.logging", "rich.pretty", "rich.prompt", "rich.traceback", "rich._inspect")
"""Modules whose objects read from the terminal, look at errors, or at objects of any kind."""


def _own_mro(cls: Any) -> list[type]:
    return [each for each in foreign.mro_of(cls) if foreign.module_of(each).partition(".")[0] == "rich"]


def _is_published(cls: type) -> bool:
    """Whether the functions of a class are those of the package."""
    functions = [each for each in foreign.namespace_of(cls).values() if type(each) is types.FunctionType]
    names = [str(each.__globals__.get("__name__")) for each in functions]
    return all(name.partition(".")[0] in ("rich", *_GENERATING) for name in names)


_GENERATING = ("collections", "contextlib", "dataclasses", "enum", "typing")
"""Modules that make functions of classes."""


def _is_shown(cls: type) -> bool:
    return any(foreign.in_mro(cls, name) is not foreign.MISSING for name in ("__rich_console__", "__rich__"))


def _is_plain(*values: Any) -> bool:
    """Whether values consist of plain data and objects of rich's alone."""
    todo, seen = list(values), set[int]()
    for each in todo:
        kind = each if foreign.is_class(each) else type(each)
        if foreign.is_atom(each) or id(each) in seen or foreign.is_one_of(kind, _LEAVES):
            continue
        if kind is types.FunctionType and _module_of(each.__globals__.get("__name__")) is each.__globals__:
            continue
        if len(todo) > _MOST_PARTS or not (foreign.is_one_of(kind, _HOLDERS) or _is_of_rich(kind)):
            return False
        seen.add(id(each))
        todo += [] if kind is each else gc.get_referents(each)
    return True


_LEAVES = (types.BuiltinFunctionType, type(threading.RLock()))
_HOLDERS = (list, tuple, dict, set, frozenset, deque)
_MOST_PARTS = 2_000


# --- consoles --------------------------------------------------------------------------------------------------------


def _make_console(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Opaque:
    run.require_known(*args, *kwargs.values())
    run.environment()
    if args or not all(map(foreign.is_atom, kwargs.values())):
        raise Barrier("it makes a Console in an unusual way")
    return Opaque(_console_class()(**kwargs), is_own=True)


def _checked(run: Any, value: Any) -> dict[str, Any] | None:
    """Return what a console of the program's holds; None if showing texts on the console may raise, as is noted.

    Raises: Barrier for a console that keeps what is shown.
    """
    held = value.held if type(value) is Opaque else None
    own = foreign.own_attributes(held) if type(held) is _console_class() else None
    if own is None or not own.keys() >= {*_COPIED, *_LOOKED_AT}:
        raise Barrier("it shows on what is no Console of rich's")
    stream = {True: sys.stderr, False: sys.stdout}[own["stderr"] is True] if own["_file"] is None else own["_file"]
    is_of_system = foreign.is_one_of(stream, (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__))
    if own["record"] is not False or not is_of_system:
        raise Barrier("it shows on a Console that keeps what is shown")
    if _is_usual(type(held), own) and outlets.accepts(stream, [None]):
        return own
    run.raises()
    return None


def _is_usual(cls: type, own: dict[str, Any]) -> bool:
    """Whether a console shows by code of rich's alone, and all that is shown beside is rich's and plain."""
    is_own = _is_of_rich(cls) and own.keys().isdisjoint(vars(cls))
    if not is_own or any(own[name] is not False for name in ("is_jupyter", "legacy_windows")):
        return False
    if not all(type(own[name]) is types.BuiltinFunctionType for name in ("get_time", "get_datetime")):
        return False
    parts = (own[name] for name in (*_COPIED, "_log_render"))
    beside = map(_beside, own["_render_hooks"])
    return _is_plain(*parts, *beside) and _are_styles(own["_thread_locals"].theme_stack._entries[-1])


def _are_styles(styles: dict[str, Any]) -> bool:
    """Whether styles are rich's, and none is missing by which rich shows its own objects."""
    is_whole = _module("rich.default_styles")["DEFAULT_STYLES"].keys() <= styles.keys()
    return is_whole and all(map(partial(operator.is_, _module("rich.style")["Style"]), map(type, styles.values())))


def _beside(hook: Any) -> Any:
    """Return what a hook of a console shows beside other output; the hook if unknown."""
    if not _is_of_rich(type(hook)) or foreign.name_of_class(type(hook)) != "Live":
        return hook
    own = vars(hook)
    if (get := own["_get_renderable"]) is None:
        return own["_renderable"]
    of = vars(get.__self__) if type(get) is types.MethodType and _is_of_rich(type(get.__self__)) else {}
    return (of["columns"], of["_tasks"]) if "_tasks" in of else hook


def _screen(own: dict[str, Any] | None = None) -> Any:
    """Return a console that nobody sees, set up like a console of the program's."""
    found = _console_class()(file=io.StringIO(), width=80)
    if own is not None:
        vars(found).update((name, own[name]) for name in _COPIED)
        found._thread_locals.theme_stack = own["_thread_locals"].theme_stack
    return found


_LOOKED_AT = (
    "_file", "stderr", "record", "is_jupyter", "legacy_windows", "get_time", "get_datetime", "_log_render",
    "_render_hooks", "_thread_locals",
)  # fmt: skip
_COPIED = ("_markup", "_emoji", "_emoji_variant", "_highlight", "soft_wrap", "style", "highlighter")


def _shown(name: str, run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Handle a method of a console that shows something."""
    args, own = args[1:], _checked(run, args[0] if args else None)
    if not _ABOUT_CALLERS.isdisjoint(kwargs):
        raise Barrier(f"it calls {name} of a Console in an unusual way")
    has_markup = kwargs.get("markup")
    if has_markup is None:
        has_markup = own is None or own["_markup"]
    is_any_text = name == "out" or (name in ("print", "log", "rule") and has_markup is False)
    if name in ("print", "log", "out"):
        args = tuple([0 if type(each) is Unknown and _is_number(each) else each for each in args])
        if not kwargs and all(type(each) in _SIMPLE for each in args):
            for each in args:  # which no trial is needed for
                _sample(run, each, not is_any_text, False)
            return None
    screen = _screen(own)
    if name == "status":
        _require_several(run, screen)
    any_texts = len(args) if is_any_text else 0
    return _tried(run, getattr(screen, name), args, kwargs, any_texts=any_texts, is_in_parts=False)


_SIMPLE = (str, int, float, bool, type(None), Unknown)


def _require_several(run: Any, screen: Any) -> None:
    """Note that a second live display at the same time is an error, as in older releases."""
    if not hasattr(screen, "_live_stack"):
        run.raises()


def _used_otherwise(name: str, run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    raise Barrier(f"it calls {name} of a Console")


def _global_console() -> Opaque:
    held = _module("rich").get("_console")
    return Opaque(_console_class()() if held is None else held)


def _print(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Handle `rich.print`."""
    if kwargs.get("file") is not None:
        raise Barrier("it prints to something else than the terminal")
    named = {name: each for name, each in kwargs.items() if name not in ("file", "flush")}
    return _shown("print", run, (_global_console(), *args), named)


# --- what is shown ---------------------------------------------------------------------------------------------------


def _make(cls: Any, run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    name = foreign.name_of_class(cls)
    if name in _LIVE:
        screen = _screen_of(run, kwargs)
        _require_several(run, screen)
        kwargs = {**kwargs, "console": Opaque(OfRich(screen))}
    return _tried(run, cls, args, kwargs, any_texts=1 if name in _WITHOUT_MARKUP else 0)


def _screen_of(run: Any, kwargs: dict[str, Any]) -> Any:
    """Return a screen for the console in the arguments, or for the one that rich has for all."""
    console = kwargs.get("console")
    return _screen(_checked(run, _global_console() if console is None else console))


def _made_by(cls: Any, name: str, run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Handle a class method that makes an object, such as `Text.from_markup`."""
    if type(args[0]) is not Opaque or args[0].held is not cls or not _is_of_rich(cls):
        raise Barrier(f"it calls {name} of a class with code of its own")
    return _tried(run, getattr(cls, name), args[1:], kwargs)


def _tracked(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Iterate a progress bar, which yields the elements of the first argument."""
    if len(args) not in (1, 2) or not kwargs.keys() <= {"description", "total", "transient", "console"}:
        raise Barrier("it gives a progress bar more than a label")
    screen = _screen_of(run, kwargs)
    run.lives += 1  # until the end, as the loop may be left
    label = kwargs.get("description", args[1] if len(args) == 2 else "")
    _tried(run, screen.print, (label,), {})
    if kwargs.get("total") is not None and type(kwargs["total"]) not in (int, float):
        run.raises()
    return run.unknown(args[0]) if run.is_unknown(args[0]) else Lazy(run, iter(operators.iterated(run, args[0])))


def _at_times(run: Any, args: Arguments, kwargs: dict[str, Any]) -> None:
    run.lives += 1  # until the end: who begins by hand may also end by hand, or not
    if args or kwargs:
        raise Barrier("it begins or ends in an unusual way what is shown")


_FUNCTIONS: dict[str, Handler] = {"rich.print": _print, "rich.progress.track": _tracked}


def _tried(
    run: Any, call: Callable[..., Any], args: Arguments, kwargs: dict[str, Any], *, any_texts: int = 0,
    is_in_parts: bool = True, shown: Any = None,
) -> Any:  # fmt: skip
    """Try a call on objects that nobody sees; return what stands for the result. Raises: Barrier where rich raises.

    `any_texts`: the number of arguments whose texts are no markup. `is_in_parts`: whether texts in lists are markup.
    `shown`: what the call may have changed.
    """
    given = [_sample(run, each, at >= any_texts, is_in_parts) for at, each in enumerate(args)]
    named = {name: _sample(run, each, True, is_in_parts) for name, each in kwargs.items()}
    run.tick(_OF_A_TRIAL)
    try:
        found = call(*given, **named)
        for each in (shown, found):
            if each is not None and _is_shown(type(each)):
                _screen().print(each)
    except Exception as e:  # of rich's
        raise Barrier(f"it shows with rich what raises {foreign.name_of_class(type(e))}") from e
    return None if found is None else Opaque(OfRich(found), is_own=True)


_OF_A_TRIAL = 50
"""Operations, of the reader's budget, for a call that is tried."""


def _sample(run: Any, value: Any, is_markup: bool, is_in_parts: bool, depth: int = 0) -> Any:
    """Return a value to try a call with, and note if showing the program's value may raise. Raises: Barrier."""
    kind = type(value)
    if kind is str:
        _require_sound(run, value, is_markup)
        return value if len(value) < _LONG else "a"
    if kind is int:
        return max(-_LONG, min(value, _LONG))
    if kind is Unknown:
        if is_markup or not is_text(value):
            run.raises(run.sources(value))
        return 0 if _is_number(value) else "a"
    if foreign.is_atom(value):
        return value
    if foreign.is_one_of(kind, (list, tuple, set, dict)) and depth < _MOST_DEPTH:
        if run.is_tainted(value):
            run.raises(run.sources(value))
        part = partial(_sample, run, is_markup=is_markup and is_in_parts, is_in_parts=is_in_parts, depth=depth + 1)
        return {part(key): part(each) for key, each in value.items()} if kind is dict else kind(map(part, value))
    if (held := _sample_of(value)) is not None:
        return held
    if kind is Opaque and _is_of_rich(type(value.held)) and _is_plain(value.held):
        with contextlib.suppress(Exception):  # what holds a lock, say
            return copy.deepcopy(value.held)
    run.raises()
    return "a"


def _is_number(value: Any) -> bool:
    """Whether an unknown value is a number, which is printed as any value, but refused in most other places."""
    return unknown_number(value) or kind_of(value) == "bool"


def _require_sound(run: Any, text: str, is_markup: bool) -> None:
    if not outlets.is_encoded(text, "utf-8"):
        run.raises()
    if is_markup and "[" in text:
        run.tick(1 + len(text) // 20)
        if not _is_sound(text):
            raise Barrier("it shows a text whose markup raises an error")


_MOST_DEPTH = 5


@functools.lru_cache(maxsize=512)
def _is_sound(text: str) -> bool:
    """Whether showing a text with markup raises nothing."""
    try:
        _screen().print(text)
    except Exception:  # of rich's
        return False
    return True

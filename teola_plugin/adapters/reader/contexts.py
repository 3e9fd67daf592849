"""Contexts of `with` statements: those that are read, and a few without effects that the program can see.

Semaphores are not read: with semaphores, or locks held during requests, the user limits concurrent requests.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from teola_plugin.adapters.reader import foreign, natives_files, natives_rich, operators
from teola_plugin.adapters.reader.attributes import attribute
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.facts import facts_of
from teola_plugin.adapters.reader.heap import RUN, Frame
from teola_plugin.adapters.reader.natives_async import awaited
from teola_plugin.adapters.reader.scopes import own_nodes
from teola_plugin.adapters.reader.source import verified_node
from teola_plugin.adapters.reader.values import (
    Arguments,
    Barrier,
    Managed,
    Opaque,
    Pending,
    Stalled,
    Undecided,
    Unknown,
    isinstance_of,
)

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_ASYNC_LOCKS = (asyncio.Lock,)


def inside(frame: Frame, context: Any, within: Callable[[Any], Any], *, is_async: bool) -> Any:
    """Evaluate the body of a `with` statement (`within`) in a context; `within` takes the value of `as`.

    Returns how the body ended. Raises: errors of the body and of the context; Barrier, Stalled.
    """
    within = _all_read(frame[RUN], within)
    if type(context) is Managed and context.is_async in (is_async, None):
        return context.around(within)
    run, name = frame[RUN], "__aenter__" if is_async else "__enter__"
    known = run.asker.attribute(run, context, name) if _is_made(context) else None
    if type(known) is Managed:
        return known.around(within)
    enter = _method(context, name)
    leave = _method(context, "__aexit__" if is_async else "__exit__")
    if enter is not None and leave is not None:
        return _between(frame, context, enter, leave, within, is_async=is_async)
    locks, lives = run.locks, run.lives
    try:
        return within(_entered(run, context))
    finally:
        run.locks, run.lives = locks, lives
        if type(context) is Opaque and type(context.held) is natives_files.Output:
            natives_files.leave(run, context)


def _is_made(context: Any) -> bool:
    """Whether the reader has made an object of a class."""
    return type(context) is Opaque and context.is_own and not isinstance_of(context.held, Opaque)


def _all_read(run: Any, within: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function for the body of a `with` statement. Raises: Barrier at the end of a body not read whole.

    An unread statement may have changed what the context uses at the end.
    """

    def body(value: Any) -> Any:
        skipped = len(run.skipped)
        try:
            return within(value)
        finally:
            if len(run.skipped) > skipped:
                raise Barrier("it leaves a context, the body of which is not read whole") from None

    return body


def null(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Managed:
    """Return the context that `contextlib.nullcontext(...)` makes."""
    given = (*args, *kwargs.values())
    if len(given) > 1 or not kwargs.keys() <= {"enter_result"}:
        raise TypeError("nullcontext takes one argument")
    return Managed(lambda within: within(*given or (None,)), given, is_async=None)


def once(value: Any) -> Managed:
    """Return a context without effects for one use, which gives a value."""
    is_used: list[bool] = []

    def around(within: Callable[[Any], Any]) -> Any:
        if is_used:
            raise Barrier("it enters a context for the second time")
        is_used.append(True)
        return within(value)

    return Managed(around, [value], is_async=False)


@contextlib.contextmanager
def suppressing(*errors: type[BaseException]) -> Iterator[None]:
    """Suppress errors as `contextlib.suppress` does, in Python for the reader."""
    try:
        yield
    except errors:
        return


def entirely(run: Any, within: Callable[[Any], Any], value: Any) -> Any:
    """Evaluate the body of a `with` statement where all of its paths meet at the end. Raises: Stalled."""
    leaves = run.leaves
    try:
        ended = within(value)
    except Exception as error:  # of the program that is read
        if run.leaves > leaves:
            raise Stalled("it may leave before it raises") from error
        raise
    if run.leaves > leaves:
        raise Stalled("some paths have left, by way of a with statement")
    return ended


def _method(context: Any, name: str) -> types.FunctionType | None:
    """Return a method of the user's in the class of a context."""
    kind = type(context.held) if type(context) is Opaque else type(context)
    found = foreign.in_mro(kind, name) if name in facts_of(kind).user_names else None
    return found if type(found) is types.FunctionType else None


def _may_swallow(leave: types.FunctionType) -> bool:
    """Whether `__exit__` returns anything but None or False somewhere."""
    node = verified_node(leave)
    returns = [each for part in getattr(node, "body", ()) for each in own_nodes(part) if isinstance(each, ast.Return)]
    return node is None or any(each.value is not None and not _is_false(each.value) for each in returns)


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in (None, False)


def _between(
    frame: Frame, context: Any, enter: types.FunctionType, leave: types.FunctionType, within: Callable[[Any], Any], *,
    is_async: bool,
) -> Any:  # fmt: skip
    """Evaluate a body between two methods of the user's."""
    run = frame[RUN]

    def asked(method: types.FunctionType, *args: Any) -> Any:
        found = call(run, run.load(method), (context, *args), {})
        if is_async and type(found) is not Pending:
            raise Barrier("it awaits something else than a coroutine")
        return awaited(run, found) if is_async else found

    def left(_: Frame) -> None:
        asked(leave, None, None, None)

    def failed(_: Frame) -> None:
        if asked(leave, *[run.unknown(is_safe=True) for _ in range(3)]) not in (None, False):
            raise Barrier("a context may swallow an error")

    value = asked(enter)
    beginning = run.begin()
    try:
        ended = entirely(run, within, value)
    except Exception as error:  # of the program that is read
        if run.raised > beginning.raised:
            raise Stalled("it may raise before it raises") from error
        try:
            is_swallowed = operators.truth(run, asked(leave, Opaque(type(error)), error, Unknown()))
        except Undecided as e:
            raise Stalled from e
        if is_swallowed:
            return None
        raise
    finally:
        run.end(beginning)
    if run.raised > beginning.raised and (beginning.around or _may_swallow(leave)):
        run.pass_through(frame, beginning, left, failed)
    else:
        left(frame)
    return ended


def _entered(run: Any, context: Any) -> Any:
    """Return the value of `name` in `with context as name`. Raises: Barrier if leaving the context has effects.

    A lock is held until `run.locks` is put back, and a display of rich's shown until `run.lives` is.
    """
    held = context.held if type(context) is Opaque else None
    if held is None or isinstance_of(held, Opaque):
        raise Barrier("it uses a with statement")
    if natives_rich.is_live(context):
        run.lives += 1
        return context
    kind = type(held)
    if any(kind is each for each in _LOCKS):
        run.locks += 1
        return True
    if any(kind is each for each in _ASYNC_LOCKS):
        run.locks += 1
        return None
    if kind is contextlib.nullcontext:
        return attribute(run, context, "enter_result")
    if kind is natives_files.Output:
        natives_files.flush(run, context)
        return context
    raise Barrier(f"it uses a with statement on {foreign.describe(context)}")

"""Handlers of `asyncio`: coroutines are evaluated at the await, in sequence."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.companions import beside
from teola_plugin.adapters.reader.table import known, register, require_no_wait
from teola_plugin.adapters.reader.values import TIMED, Arguments, Barrier, Pending, Stalled, Undecided, Unknown


def once(pending: Pending) -> Pending:
    """Return a task, which is evaluated once however often it is awaited."""
    done: list[Any] = []

    def force() -> Any:
        if not done:
            try:
                done.append((pending.force(), None))
            except Exception as e:  # of the program that is read
                done.append((None, e))
        value, error = done[0]
        if error is not None:
            raise error
        return value

    return Pending(force, pending.given, is_of_tasks=pending.is_of_tasks)


def _coroutine(value: Any) -> Pending:
    if type(value) is Unknown:
        raise Undecided
    if type(value) is not Pending:
        raise Barrier("it hands asyncio something else than a coroutine")
    return value


def gather(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Handle `asyncio.gather`."""
    if kwargs.keys() - {"return_exceptions"}:
        raise TypeError("gather takes no such argument")
    back = kwargs.get("return_exceptions", False)
    known(run, *args, back)
    parts = [_coroutine(each) for each in args]
    back = bool(back)

    def force() -> Any:
        run.tasks = [each for each in run.tasks if not _is_among(each, parts)]
        if run.tasks:
            raise Barrier("a task runs beside what it awaits")
        found, errors = evaluated_beside(run, parts, returns_errors=back)
        if errors and not back:
            if len({type(e) for e in errors}) > 1:
                raise Barrier("it gathers coroutines of which several raise")
            raise errors[0]
        return found

    return once(Pending(force, is_of_tasks=True))


def evaluated_beside(
    run: Any, parts: Sequence[Pending], *, returns_errors: bool = False
) -> tuple[list[Any], list[Exception]]:
    """Evaluate coroutines that run beside each other, each to its end. Returns the values or errors, and the errors.

    `returns_errors`: an error does not end the function that waits for the coroutines, and with it the others. Raises:
    Barrier if a coroutine changes what another coroutine may read: how far the reading coroutine has come by then is
    not known, so no request found in the coroutines is certain.
    """
    with beside(run, [[part] for part in parts], are_cancelled=not returns_errors) as companions:
        found, errors, stopped = list[Any](), list[Exception](), None
        before = after = run.gates
        around, mark = run.is_beside, run.mark
        last = mark
        for part in parts:
            run.gates -= TIMED - before  # all are begun before any of them has waited
            run.is_beside, run.mark = around or len(parts) > 1, mark
            try:
                with companions.one():
                    found.append(part.force())
            except Exception as e:  # of the program that is read: the rest goes on
                found.append(e)
                errors.append(e)
            except (Stalled, Undecided) as e:
                stopped = stopped or e
            finally:
                last = last if run.mark is mark else run.mark
                run.is_beside, run.mark = around, last
            after |= run.gates
    run.gates = after
    if stopped is not None:
        raise stopped
    return found, errors


def _is_among(pending: Pending, others: Sequence[Pending]) -> bool:
    return any(pending is each for each in others)


def awaited(run: Any, pending: Pending) -> Any:
    """Return the value of what is awaited, maybe while tasks have been made that nothing has awaited yet."""
    if not run.tasks:
        return pending.force()
    if _is_among(pending, run.tasks):
        tasks, run.tasks = run.tasks, []
        evaluated_beside(run, tasks)
    elif not pending.is_of_tasks:
        raise Barrier("a task runs beside what it awaits")
    return pending.force()


def _task(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) != 1:
        raise Barrier("it makes a task in an unusual way")
    task = once(_coroutine(args[0]))
    run.tasks.append(task)
    return task


def _wait_for(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    timeout = args[1] if len(args) > 1 else kwargs.get("timeout")
    part = _coroutine(args[0] if args else kwargs.get("fut"))

    def force() -> Any:
        if timeout is None:
            return part.force()
        if type(timeout) not in (int, float) or timeout <= 0:
            raise Barrier("it waits for a time that is not known, or for none")
        run.limits += 1
        try:
            return part.force()
        finally:
            run.limits -= 1
            run.raises(TIMED, error=TimeoutError)

    return Pending(force)


def _to_thread(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if not args:
        raise TypeError("to_thread takes a function")
    return Pending(lambda: call(run, args[0], args[1:], kwargs))


def _sleep(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    result = args[1] if len(args) > 1 else kwargs.get("result")

    def wait() -> Any:
        require_no_wait(run, args[0] if args else kwargs.get("delay"))
        return result

    return Pending(wait)


def _run(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if run.is_in_coroutine:
        raise Barrier("it begins an event loop where one may be running")
    return _coroutine(args[0] if args else None).force()


def _register() -> None:
    register(gather, asyncio.gather)
    register(_task, asyncio.create_task, asyncio.ensure_future, asyncio.shield)
    register(_wait_for, asyncio.wait_for)
    register(_to_thread, asyncio.to_thread)
    register(_sleep, asyncio.sleep)
    register(_run, asyncio.run)


_register()

"""What was wrong in a simulated world: how each reply ended, what each engine saw, and what is left.

A value that is not the payload's own is wrong, and so is an error that nothing in this world accounts for.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from typing import Any

from teola_plugin.engines import WRITES, Done
from teola_plugin.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineClosed,
    EngineCrashed,
    EngineError,
    Overloaded,
    Poisoned,
)
from teola_plugin.runtime.scheduler.recovery import ALONE_AFTER
from teola_plugin.runtime.scheduler.work_table import Counts
from teola_plugin.runtime.scheduler.worker import EngineWorker
from tests.support.faulty_engines import BatchError, GoneError, Hiccup, ItemError, nature_of, text_of, value_of
from tests.support.simulated_requests import GREEDY, SAMPLED, Asked
from tests.support.simulated_world import AGING_S, Served, World

UNFAIR = 10
"""So many times its fair share of time nobody may wait."""


def judge(world: World) -> None:
    """Each reply, each engine."""
    for served in world.all:
        nonces: Counter[str] = Counter()
        for asked in served.asked:
            if problem := problem_of(world, served, asked):
                world.complain(f"{served.engine.name} {asked.op} {asked.payload!r} of {asked.tenant}: {problem}")
            if asked.op == "decoding" and asked.settings is SAMPLED and isinstance(asked.reply.outcome, Done):
                nonces[str(asked.reply.outcome.value)] += 1
        for text, times in nonces.items():
            if times > 1:
                world.complain(f"{times} replies share the sampled text {text!r}")
        for written, times in served.record.writes.items():
            if times > 1:
                world.complain(f"{written} was written {times} times")
        for item, times in served.record.crashes.items():
            if times > ALONE_AFTER + 1:
                world.complain(f"item {item} was in {times} crashes")
        if served.worker:
            _judge_lane(world, served.engine.name, served.worker)


def _judge_lane(world: World, name: str, worker: EngineWorker) -> None:
    counts: Counts = worker.counts
    if counts.open or counts.lost:
        world.complain(f"{name}: counts do not add up: {counts}")
    if not worker.is_clear:
        scheduler, table = worker.scheduler, vars(worker._table)
        world.complain(f"{name}: left: {scheduler.queued_items=} {scheduler.running_items=} {table}")
    if worker.held is not None or worker.has_open_items:
        world.complain(f"{name}: the engine is still held")
    if worker._tasks and not world.never_recovers:
        world.complain(f"{name}: tasks go on: {worker._tasks}")


def judge_rest(world: World) -> None:
    """What goes on though the host was closed."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        world.complain(f"tasks are left: {left}")
    timers = [handle for handle in world.loop._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
    if timers:
        world.complain(f"timers are left: {timers}")


def problem_of(world: World, served: Served, asked: Asked) -> str:
    """What is wrong with how it ended, or nothing."""
    reply = asked.reply
    if reply.outcome is None:
        return "never ended"
    if reply.puts > 1:
        return f"was told {reply.puts} ends"
    if reply.ended_s > max(asked.deadline_s, asked.asked_s) + 1e-6:
        return f"ended at {reply.ended_s}, though it had until {asked.deadline_s}"
    if reply.text and not _is_prefix(asked):
        return f"streamed {reply.text!r}"
    if isinstance(reply.outcome, Done):
        return _wrong_value(asked, reply.outcome.value) or (_unfair(world, served, asked) if world.is_calm else "")
    error = reply.outcome.error
    return "" if _is_accounted_for(world, served, asked, error) else f"failed with {error!r} for no reason"


def _is_prefix(asked: Asked) -> bool:
    whole = text_of(asked.payload, GREEDY, 0)
    text = asked.reply.text
    return whole.startswith(text[: len(whole)]) and (asked.settings is SAMPLED or len(text) <= len(whole))


def _wrong_value(asked: Asked, value: Any) -> str:
    if asked.op == "decoding":
        whole = text_of(asked.payload, GREEDY, 0)
        right = value == whole if asked.settings is GREEDY else str(value).startswith(whole)
        if right and asked.reply.text and asked.reply.text != value:
            return f"told {asked.reply.text!r}, and then {value!r}"
    else:
        expected = value_of(asked.op, asked.payload, asked.tenant)
        right = value == expected or (isinstance(value, dict) and replace_notes(value) == expected)
        if asked.op == "searching" and isinstance(value, dict) and len(value["notes"]) > 1:
            return "shares its value with another"
    return "" if right else f"came to {value!r}"


def _is_accounted_for(world: World, served: Served, asked: Asked, error: BaseException) -> bool:
    """Something in this world explains the error."""
    key = (asked.op, asked.payload, asked.tenant)
    is_final = asked.op in WRITES or (asked.settings is SAMPLED and bool(asked.reply.text))
    nature = nature_of(asked.payload)
    match error:
        case DeadlineExceeded():
            return asked.reply.ended_s >= asked.deadline_s - 1e-6
        case Cancelled():
            return asked.reply.by_itself
        case Overloaded():
            return served.limits.max_queued_items is not None and 0 < error.retry_after_s < 1e6
        case EngineClosed():
            return asked.reply.ended_s >= world.is_closed_s
        case Poisoned():
            return nature == "crasher"
        case EngineCrashed():
            return is_final
        case ItemError():
            return nature == "fails" and error.args == (asked.payload,)
        case BatchError():
            return is_final or (nature == "poison" and error.args == (asked.payload,))
        case Hiccup():
            return is_final
        case GoneError():
            return served.record.is_gone
        case EngineError():
            return served.record.lost[key] >= (1 if is_final else 2)
    return False


def _unfair(world: World, served: Served, asked: Asked) -> str:
    """It waited for much longer than its share of the engine would have needed for its tenant's items."""
    began_s = served.record.began_s.get((asked.payload, asked.tenant), math.inf)
    item_s = 0.15 if served is not world.llm else 2.0
    fair_s = (asked.ahead + 1) * len(world.tenants) * item_s
    waited_s = began_s - asked.asked_s
    limit_s = UNFAIR * fair_s + AGING_S
    return f"waited {waited_s:.1f} s, of which {limit_s:.1f} were fair" if waited_s > limit_s else ""


def replace_notes(value: dict[str, Any]) -> dict[str, Any]:
    """As it was before its waiter wrote in it."""
    return {**value, "notes": []}

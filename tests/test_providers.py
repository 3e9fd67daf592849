"""Providers: when they are asked ahead, whose errors stand, and which models are clients of one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from langchain_openai import ChatOpenAI, OpenAI
from llama_index.llms.openai_like import OpenAILike

from teola_plugin import providers
from teola_plugin.adapters import service as services
from teola_plugin.adapters.service import hold_retries, service_of
from teola_plugin.engines import Done, EngineSpec, Failed, Foreign, Urgency
from teola_plugin.errors import Cancelled, EngineClosed
from teola_plugin.failures import Withheld, is_of_service, is_outage, may_come_of_company, status_of
from teola_plugin.providers import ENOUGH, FEW, FIRST_PAUSE_S, LONGEST_PAUSE_S, Breaker, ProviderCall
from teola_plugin.runtime.engines.openai import OpenAIEngine
from teola_plugin.runtime.engines.python import MAX_ITEMS
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.session.provider_calls import OURS, Outside, provider_of
from teola_plugin.runtime.session.session import Session
from teola_plugin.runtime.session.slots import Slots
from teola_plugin.seams import REPEATS, Reply, active, ashare, share
from tests.support.fakes import FakeEngine

# --- the breaker -----------------------------------------------------------------------------------------------------

GOOD, OUTAGE, BAD = "+", "!", "-"


class Leaving:
    """A call that gives up every slot."""

    def leave(self, reply: Reply) -> bool:
        return True


LEAVING = Leaving()


def breaker(*ends: tuple[float, str]) -> Breaker:
    """A breaker that heard of a success and then of these ends, at these times."""
    made = Breaker()
    made.succeeded()
    for now_s, ended in ends:
        if ended == GOOD:
            made.succeeded()
        else:
            made.failed(now_s, is_outage=ended == OUTAGE)
    return made


@pytest.mark.parametrize(
    ("ends", "now_s", "may_ask"),
    [
        ([], 0, True),
        ([(0, OUTAGE)], 0, False),
        ([(0, OUTAGE)], 1e6, False),  # half open: a request of the framework's own is the probe
        ([(0, OUTAGE), (0, GOOD)], FIRST_PAUSE_S - 0.1, False),
        ([(0, OUTAGE), (0, GOOD)], FIRST_PAUSE_S, True),
        ([(0, OUTAGE), *[(0, GOOD)] * (ENOUGH - 1)], 1, False),
        ([(0, OUTAGE), *[(0, GOOD)] * ENOUGH], 1, True),
        ([(0, OUTAGE), (4, OUTAGE), (4, GOOD)], FIRST_PAUSE_S, False),  # the outage went on
        ([(0, OUTAGE), (4, OUTAGE), (4, GOOD)], 4 + FIRST_PAUSE_S, True),
        ([(0, BAD)] * (FEW - 1), 0, True),
        ([(0, BAD)] * FEW, 0, False),
        ([*[(0, BAD)] * (FEW - 1), (0, GOOD), (0, BAD)], 0, True),
        ([(0, OUTAGE), (5, GOOD), (6, OUTAGE), (6, GOOD)], 6 + FIRST_PAUSE_S, False),  # twice as long
        ([(0, OUTAGE), (5, GOOD), (6, OUTAGE), (6, GOOD)], 6 + 2 * FIRST_PAUSE_S, True),
        ([(0, OUTAGE), (5, GOOD), (6, BAD)], 6, True),  # it had closed, and one such failure opens nothing
        ([(0, OUTAGE), *[(0, GOOD)] * ENOUGH, (6, OUTAGE), (6, GOOD)], 6 + FIRST_PAUSE_S, True),  # as if it were new
    ],
)
def test_when_a_provider_is_asked_ahead(ends: Sequence[tuple[float, str]], now_s: float, may_ask: bool) -> None:
    assert breaker(*ends).may_ask(now_s) is may_ask


def test_a_provider_that_has_not_answered_yet_is_not_asked_ahead() -> None:
    made, failing = Breaker(), Breaker()
    assert not made.may_ask(1e6)
    made.succeeded()
    assert made.may_ask(0)
    made.failed(0, is_outage=False)  # as of any provider that answers
    assert made.may_ask(0)

    failing.failed(0, is_outage=True)
    failing.failed(7, is_outage=True)
    failing.succeeded()
    assert not failing.may_ask(7)
    assert failing.may_ask(7 + FIRST_PAUSE_S)


def test_a_pause_grows_to_a_bound() -> None:
    made, now_s = breaker(), 0.0
    for _ in range(20):
        made.failed(now_s, is_outage=True)
        made.succeeded()
        assert made.until_s - now_s <= LONGEST_PAUSE_S
        now_s = made.until_s
    assert made.until_s - now_s == 0
    made.failed(now_s, is_outage=True)
    assert made.until_s - now_s == LONGEST_PAUSE_S


# --- errors ----------------------------------------------------------------------------------------------------------


def of_status(status: int, text: str = "no") -> Exception:
    response = httpx.Response(status, request=httpx.Request("POST", "http://x"))
    return openai.APIStatusError(text, response=response, body=None)


class ThrottlingException(Exception):
    status_code = 400


class Wordless(Exception):
    status_code = 404

    def __str__(self) -> str:
        raise AttributeError("no text")


def of_response(status: int) -> Exception:
    return httpx.HTTPStatusError(
        "no", request=httpx.Request("POST", "http://x"), response=httpx.Response(status)
    )  # as in requests


def caused_by(error: Exception) -> Exception:
    told = openai.APIConnectionError(request=httpx.Request("POST", "http://x"))
    told.__cause__ = error
    return told


@pytest.mark.parametrize(
    ("error", "of_service", "of_company", "outage"),
    [
        *((of_status(status), True, True, True) for status in (408, 409, 425, 429, 502, 503, 504, 529)),
        *((of_response(status), True, True, True) for status in (429, 503)),
        *((of_status(status), True, False, True) for status in (500, 501, 599)),
        *((of_status(status), True, False, False) for status in (400, 401, 403, 404, 422)),
        *(
            (of_status(status, text), True, True, True)
            for status, text in (
                (400, "Too many concurrent requests"),
                (402, "quota exceeded"),
                (403, "rateLimitExceeded"),
                (418, "Rate limit reached"),
                (500, "The server is overloaded"),
            )
        ),
        (of_status(400, "The context has too few tokens"), True, False, False),
        (ThrottlingException("no"), True, True, True),
        (caused_by(ThrottlingException("no")), True, True, True),
        (ValueError("Too many values"), False, False, False),
        (Wordless(), True, False, False),
        (caused_by(httpx.ConnectError("refused")), True, True, True),
        (caused_by(httpx.PoolTimeout("full")), True, True, True),
        (ConnectionResetError(), True, True, True),
        (TimeoutError(), True, True, True),
        (ValueError({"code": 429, "message": "busy"}), True, True, True),  # told in a reply
        (ValueError({"code": 402, "message": "no funds"}), True, False, False),
        (ValueError({"message": "busy"}), True, True, False),
        (ValueError({"word": "busy"}), False, False, False),
        (ValueError("no"), False, False, False),
        (AttributeError("run_manager"), False, False, False),
        (FileNotFoundError(404, "nothing there"), False, False, False),
        (Cancelled("as planned"), False, False, False),
        (KeyboardInterrupt(), False, False, False),
        (SystemExit(429), False, False, False),
    ],
    ids=repr,
)
def test_what_an_error_says(error: BaseException, of_service: bool, of_company: bool, outage: bool) -> None:
    assert (is_of_service(error), may_come_of_company(error), is_outage(error)) == (of_service, of_company, outage)


def test_what_was_withheld_speaks_of_the_outage_and_is_no_answer() -> None:
    error = Withheld("not again")
    error.__cause__ = of_status(500)
    assert is_outage(error)
    assert status_of(error) == 500
    assert not is_of_service(error)


def test_a_circle_of_causes_ends() -> None:
    one, other = ValueError(), ValueError()
    one.__cause__, other.__cause__ = other, one
    assert not is_of_service(one)


# --- whose error stands ----------------------------------------------------------------------------------------------


def ended(call: ProviderCall, *, is_taken: bool, beside: Sequence[ProviderCall] = ()) -> ProviderCall:
    """The call, when it has ended beside these."""
    for other in beside:
        call.provider.begin(other)
    with call:
        call.is_taken = call.is_taken or is_taken
    for other in beside:
        call.provider.end(other)
    call.is_taken = True  # by the framework's run, at last
    return call


@pytest.mark.parametrize("is_own", [True, False])
def test_an_error_stands_if_the_framework_would_have_got_it_itself(is_own: bool) -> None:
    provider = providers.Provider()
    crowd, fault, wrong, odd = of_status(429), of_status(500), of_status(400), ValueError()

    def stands(is_taken: bool, *beside: ProviderCall) -> list[bool]:
        call = ended(ProviderCall(provider, is_own=is_own), is_taken=is_taken, beside=beside)
        return [call.stands(error) for error in (crowd, fault, wrong, odd)]

    ahead, own = (lambda: ProviderCall(provider, is_own=False)), (lambda: ProviderCall(provider, is_own=True))
    assert stands(True) == [True, True, True, is_own]
    assert stands(True, ahead()) == [False, True, True, is_own]
    assert stands(True, own()) == ([True, True, True, True] if is_own else [False, True, True, False])
    assert stands(False) == [is_own, True, True, is_own]


def test_those_that_the_framework_waits_for_at_once_are_no_company() -> None:
    provider = providers.Provider()
    first, second, ahead = (ProviderCall(provider, is_own=False) for _ in range(3))
    with first, second:
        for call in (first, second):
            provider.take(call)
        assert (first.in_company(), second.in_company()) == ([], [])
        with ahead:
            assert first.in_company() == [ahead]
    assert second.in_company() == [ahead]
    provider.take(ahead)  # the others are over: it had been asked beside them, and the original would not have
    assert ahead.in_company() in ([first, second], [second, first])


def test_own_requests_are_company_of_early_ones_alone() -> None:
    provider = providers.Provider()
    first, second, third = (ProviderCall(provider, is_own=True) for _ in range(3))
    ahead = ProviderCall(provider, is_own=False)
    provider.heard(None, 0.0)
    with first:
        with ahead, second:
            assert (first.in_company(), second.in_company()) == ([ahead], [ahead])
            assert sorted(map(id, ahead.in_company())) == sorted(map(id, [first, second]))
        with third:
            assert third.in_company() == []


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("spoiled", [1, 2, 3])
def test_what_early_requests_spoil_is_asked_again_after_them(spoiled: int, is_async: bool) -> None:
    reply, provider, tried = Reply(), providers.Provider(), []
    reply.provider_call = ProviderCall(provider, is_own=True)

    def compute() -> str:
        tried.append(len(provider._under_way))
        if len(tried) <= spoiled:
            with ProviderCall(provider, is_own=False):
                raise httpx.ConnectError("one at a time")
        return "answer"

    async def acompute() -> str:
        return compute()

    provider.heard(None, 0.0)
    claimed = (reply, True)
    if spoiled > REPEATS:
        with pytest.raises(httpx.ConnectError):
            _ = asyncio.run(ashare(claimed, acompute)) if is_async else share(claimed, compute)
    else:
        assert (asyncio.run(ashare(claimed, acompute)) if is_async else share(claimed, compute)) == "answer"
    assert tried == [1] * (1 + min(spoiled, REPEATS))


def test_a_request_that_is_closed_in_another_context_has_ended() -> None:
    """Python closes an abandoned coroutine in any context."""
    provider = providers.Provider()
    call = ProviderCall(provider, is_own=True)
    copy_context().run(call.__enter__)
    with pytest.raises(ValueError, match="different Context"):
        call.__exit__()
    later = ProviderCall(provider, is_own=False)
    provider.begin(later)
    assert (call.has_ended, later.in_company()) == (True, [])


def test_an_error_of_a_reply_that_came_stands() -> None:
    call, missed = (ProviderCall(providers.Provider(), is_own=False) for _ in range(2))
    with call:
        providers.reply_came()
    with missed:
        pass
    assert call.stands(ValueError("no JSON"))
    assert not missed.stands(ValueError("no run manager"))
    assert not call.stands(EngineClosed("ours"))


def retry_after(error: Exception) -> None:
    """What the client of an SDK does."""
    try:
        raise error
    except openai.APIStatusError:
        providers.hold_retry()


def test_nothing_begins_ahead_once_an_attempt_has_failed() -> None:
    provider = providers.Provider()
    waited_for, late, own = (ProviderCall(provider, is_own=is_own) for is_own in (True, False, True))
    with waited_for:
        retry_after(of_status(500))
        with pytest.raises(Withheld), late:
            pytest.fail("it was made")
        with own:
            assert not own.company


def test_company_is_judged_by_the_last_attempt() -> None:
    provider = providers.Provider()
    call, other = (ProviderCall(provider, is_own=False) for _ in range(2))
    with call:
        with other:
            assert (call.in_company(), other.in_company()) == ([other], [call])
        call.is_taken = True
        providers.hold_retry()
        assert call.company == []
    assert call.stands(of_status(429))


def test_a_request_that_runs_ahead_is_repeated_only_if_it_is_waited_for() -> None:
    call = ProviderCall(providers.Provider(), is_own=False)
    providers.hold_retry()  # nothing runs ahead here
    with call:
        error = of_status(500)
        with pytest.raises(Withheld) as raised:
            retry_after(error)
        assert raised.value.__cause__ is error
        call.is_taken = True
        providers.hold_retry()


# --- which are one provider ------------------------------------------------------------------------------------------


def chat(url: str, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(model="m", api_key="none", base_url=url, **more)  # type: ignore[arg-type,call-arg]


def test_what_was_withheld_is_asked_again_by_who_came_a_moment_later() -> None:
    call = ProviderCall(providers.Provider(), is_own=False)
    with call:
        with pytest.raises(Withheld) as raised:
            retry_after(of_status(429))
        call.is_taken = True
    assert not call.stands(raised.value)


def test_clients_of_one_server_are_one_provider() -> None:
    server = [
        chat("http://host:8000/v1"), chat("http://HOST:8000/other", temperature=1.0),
        OpenAI(model="m", api_key="none", base_url="http://host:8000/v1"),  # type: ignore[arg-type,call-arg]
        OpenAILike(model="m", api_key="none", api_base="http://host:8000/v1"),
    ]  # fmt: skip
    assert {service_of(model) for model in server} == {("http", "host", 8000)}
    assert OpenAIEngine("m", "http://host:8000").provider == ("http", "host", 8000)
    assert service_of(chat("https://host/v1")) == service_of(chat("https://host:443/v1")) == ("https", "host", 443)
    assert len({*map(service_of, map(chat, ("http://host:8001", "http://host", "https://host", "http://h:8000")))}) == 4
    assert service_of(Reply()) == "teola_plugin.seams.Reply"
    assert providers.provider("a") is providers.provider("a") is not providers.provider("b")


def test_own_engines_have_none() -> None:
    engine = FakeEngine()
    assert provider_of(EngineSpec("engine", engine)) is None
    service = OpenAIEngine("m", "http://host:8000")
    assert provider_of(EngineSpec("engine", service)) is providers.provider(("http", "host", 8000))
    assert provider_of(EngineSpec("python", engine, "m", "here")) is providers.provider("here")
    assert provider_of(EngineSpec("python", engine)) is not provider_of(EngineSpec("python", service))


@pytest.mark.cold
def test_a_new_provider_has_not_answered() -> None:
    assert not providers.provider("a").may_ask(1e6)
    providers.provider("a").heard(None, 0)
    assert providers.provider("a").may_ask(0)
    assert not providers.provider("b").may_ask(0)
    providers.forget()
    assert not providers.provider("a").may_ask(0)


def test_only_the_providers_used_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "MAX_PROVIDERS", 2)
    first, second = providers.provider(1), providers.provider(2)
    assert providers.provider(1) is first
    providers.provider(3)
    assert providers.provider(1) is first
    assert providers.provider(2) is not second


# --- slots that are left to the framework's run ----------------------------------------------------------------------


def test_what_is_not_asked_ahead_is_asked_by_the_framework_and_shared() -> None:
    slots = Slots()
    ahead = slots.ahead("k", asks=False)
    assert ahead.outcome == "left"
    taken = slots.retire("k")
    assert (taken.outcome, taken.reply) == ("miss", ahead.reply)
    assert slots.ahead("k", asks=False).outcome == "left"
    left, wasted, shared = slots.clear()
    assert (len(left), wasted, shared) == (1, 0, 1)


def test_what_was_left_may_be_asked_after_all_until_the_framework_comes_there() -> None:
    slots = Slots()
    first, second, third = (slots.ahead(key, asks=False).reply for key in "abc")
    assert slots.retire("a").outcome == "miss"
    assert slots.give_up(third)
    assert [slots.ask_after_all(reply) for reply in (first, second, third)] == [False, True, False]
    assert not slots.ask_after_all(second)
    assert slots.retire("b")[:2] == (second, "hit")


def test_what_is_there_is_used_even_if_nothing_may_be_asked() -> None:
    slots = Slots()
    mine = slots.retire("k").reply
    assert slots.ahead("k", asks=False)[:2] == (mine, "hit")
    given_up = slots.ahead("k").reply
    assert slots.give_up(given_up)
    again = slots.ahead("k", asks=False)
    assert (again.outcome, again.reply is given_up) == ("left", False)
    assert slots.retire("k")[:2] == (again.reply, "miss")


# --- one call --------------------------------------------------------------------------------------------------------


@pytest.fixture
def host() -> Iterator[LocalHost]:
    host = LocalHost()
    yield host
    host.close()


class Model:
    """Stands for a client; each call waits to be let go."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.begun: list[int] = []
        self.may_end = [threading.Event() for _ in range(MAX_ITEMS + 5)]
        self.spec = EngineSpec("python", self, "m", "there")

    def payload(self, n: int) -> Foreign:
        def call() -> int:
            self.begun.append(n)
            assert self.may_end[n].wait(20)
            if self.error and n == 0:
                raise self.error
            return n

        return Foreign(n, call)


def test_after_a_failure_what_has_not_begun_is_withdrawn(host: LocalHost) -> None:
    model, session = Model(of_status(500)), Session(host)
    payloads = [model.payload(n) for n in range(MAX_ITEMS + 3)]
    replies = session.submit_ahead(model.spec, "decoding", payloads, {}, Urgency())
    kept, is_mine = session.claim(model.spec, "decoding", payloads[-1], {})
    assert (kept, is_mine) == (replies[-1], True)  # it waited in the queue: the framework's run makes the call
    model.may_end[0].set()
    for reply in replies[MAX_ITEMS:-1]:
        with pytest.raises(Cancelled):
            reply.result()
    for event in model.may_end:
        event.set()
    assert [reply.result() for reply in replies[1:MAX_ITEMS]] == [*range(1, MAX_ITEMS)]
    assert sorted(model.begun) == [*range(MAX_ITEMS)]
    with active(session):
        assert share((kept, is_mine), lambda: "taken over") == "taken over"
    assert replies[-1].result() == "taken over"

    (later,) = session.submit_ahead(model.spec, "decoding", [model.payload(99)], {}, Urgency())
    reply, is_mine = session.claim(model.spec, "decoding", payloads[MAX_ITEMS], {})
    assert is_mine
    with active(session):
        assert share((reply, is_mine), lambda: "asked in place") == "asked in place"
        claimed = session.claim(model.spec, "decoding", model.payload(99), {})
        assert share(claimed, lambda: "shared") == "shared"
    assert later.result() == "shared"
    assert session.withholds(model.spec)
    session.close()


def test_a_function_that_runs_ahead_ends_where_it_may_not_ask(host: LocalHost) -> None:
    model, session = Model(of_status(500)), Session(host)
    (reply,) = session.submit_ahead(model.spec, "decoding", [model.payload(0)], {}, Urgency())
    model.may_end[0].set()
    with pytest.raises(openai.APIStatusError):
        reply.result()
    for asked in (session, Session(host)):  # this call, and the next one
        inner = asked.asking(Urgency())
        with pytest.raises(Withheld):
            inner.claim(model.spec, "decoding", model.payload(1), {})
        with pytest.raises(Withheld):
            inner.ask(model.spec, "decoding", [model.payload(1)], {})
        assert asked.guess(model.spec, "decoding", [model.payload(1)], {}, Urgency()) is None
        asked.close()
    assert model.begun == [0]


def end_ahead(call: Outside, at: providers.Provider, error: BaseException) -> None:
    reply = Reply()
    call.ask(at, reply, is_own=False)
    reply.put(Failed(error))


def test_after_one_failure_a_call_asks_nothing_more_ahead_there_and_others_do() -> None:
    there, elsewhere = providers.Provider(), providers.Provider()
    call, other = (Outside(LEAVING.leave, lambda act: act()) for _ in range(2))
    end_ahead(call, there, of_status(400))
    assert not call.may_ask(there)
    assert call.may_ask(elsewhere)
    assert other.may_ask(there)


@pytest.mark.cold
def test_what_waits_for_a_provider_is_asked_after_an_answer_to_any_call() -> None:
    there, asked = providers.Provider(), list[str]()
    call, other = (Outside(LEAVING.leave, lambda act: act()) for _ in range(2))
    call.when_answered(there, lambda: asked.append("call"))
    assert asked == []
    reply = Reply()
    other.ask(there, reply, is_own=True)
    reply.put(Done(1))
    assert asked == ["call"]
    there.heard(None, 1.0)
    assert asked == ["call"]


@pytest.mark.cold
def test_what_waits_for_a_provider_waits_on_after_an_error() -> None:
    there, asked = providers.Provider(), list[int]()
    call = Outside(LEAVING.leave, lambda act: act())
    call.when_answered(there, lambda: asked.append(1))
    there.heard(of_status(503), -1e6)
    assert asked == []
    there.heard(None, 0.0)  # the pause is over
    there.heard(None, 0.0)
    assert asked == [1]


def test_a_provider_that_has_answered_often_still_hears_of_failures() -> None:
    there = providers.Provider()
    for _ in range(2 * ENOUGH):
        there.heard(None, 0.0)
    assert there.may_ask(0.0)
    for _ in range(FEW):
        there.heard(of_status(500), 1.0)
    assert not there.may_ask(1.0)


def test_who_comes_to_wait_for_a_provider_that_has_answered_meanwhile_does_not_wait() -> None:
    """The answer may come between the question whether it may be asked and this."""
    asked = list[int]()
    call = Outside(LEAVING.leave, lambda act: act())
    call.when_answered(providers.provider("there"), lambda: asked.append(1))
    assert asked == [1]


@pytest.mark.parametrize("ours", OURS)
def test_our_own_errors_say_nothing_of_a_provider(ours: type[BaseException]) -> None:
    there, call = providers.Provider(), Outside(LEAVING.leave, lambda act: act())
    for _ in range(FEW):
        end_ahead(call, there, ours("of ours"))
    assert call.may_ask(there)
    assert there.may_ask(0.0)


def test_what_the_framework_s_run_waits_for_is_noted() -> None:
    call, reply = Outside(LEAVING.leave, lambda act: act()), Reply()
    call.ask(providers.Provider(), reply, is_own=False)
    assert reply.provider_call
    assert not reply.provider_call.is_taken
    call.take(reply)
    assert reply.provider_call.is_taken


def test_an_answer_of_the_framework_s_own_request_closes_the_breaker(host: LocalHost) -> None:
    model = Model()
    there = providers.provider("there")
    there.heard(of_status(503), -1e6)  # the pause is over
    session = Session(host)
    assert session.withholds(model.spec)
    claimed = session.claim(model.spec, "decoding", model.payload(1), {})
    assert share(claimed, lambda: 1) == 1
    assert not session.withholds(model.spec)
    session.close()


def test_an_error_raised_twice_has_the_same_traceback() -> None:
    def depth() -> int:
        with pytest.raises(ValueError, match="no") as raised:
            reply.result()
        return len(raised.traceback)

    reply = Reply()
    reply.put(Failed(ValueError("no")))
    assert depth() == depth() == depth()


def test_company_ends_before_the_framework_asks_again() -> None:
    """A service that takes one request at a time refuses what came first; the run-ahead's is under way until then."""
    provider = providers.Provider()
    reply, other = Reply(), ProviderCall(provider, is_own=False)
    reply.provider_call = ProviderCall(provider, is_own=True)
    seen: list[bool] = []
    provider.begin(other)

    def compute() -> str:
        seen.append(other.has_ended)
        if not seen[-1]:
            threading.Timer(0.05, provider.end, [other]).start()
            raise of_status(429)
        return "answer"

    assert share((reply, True), compute) == "answer"
    assert seen == [False, True]
    assert reply.outcome != Done("answer")


async def test_company_ends_before_a_coroutine_of_the_framework_asks_again() -> None:
    provider, reply = providers.Provider(), Reply()
    other = ProviderCall(provider, is_own=False)
    reply.provider_call = ProviderCall(provider, is_own=True)
    seen: list[bool] = []
    provider.begin(other)

    async def compute() -> str:
        seen.append(other.has_ended)
        if not seen[-1]:
            asyncio.get_running_loop().call_later(0.05, provider.end, other)
            raise of_status(429)
        return "answer"

    assert await ashare((reply, True), compute) == "answer"
    assert seen == [False, True]


def test_an_error_that_was_handled_before_is_no_cause() -> None:
    later = ValueError("no text")
    later.__context__ = of_status(429)
    assert not is_of_service(later)
    later.__cause__ = later.__context__
    assert is_of_service(later)


def test_clients_are_found_while_another_thread_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    class Name(str):
        def endswith(self, *given: Any) -> bool:
            loaded[f"late {len(loaded)}"] = None  # what another thread imports meanwhile
            return super().endswith(*given)

    loaded: dict[str, Any] = {Name(f"m{number}"): None for number in range(3)}
    monkeypatch.setattr(services, "sys", SimpleNamespace(modules=loaded))
    monkeypatch.setattr(services, "_seen", [0])
    hold_retries()
    assert len(loaded) == 6

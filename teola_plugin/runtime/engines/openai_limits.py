"""Rate limits of a service: requests and tokens a minute, and when a refused request may be made again.

    10 a minute   .. 0 s: 8 requests | 5 s: 2 | 5 s: the next must wait until 60 s, when the first 8 are a minute old

**Budget.** No interval of 60 s, wherever the interval begins, holds more than is allowed. (The usual token bucket
allows twice as much in the first minute: a full bucket, and the refill.) The tokens of a request are known only at its
end, so a request first takes the possible maximum and later gives back the difference. Pure: the caller reads the
clock.

**Retries.** After 408, 409, 429, 5xx and broken connections; after the time that the service names (`Retry-After`),
otherwise after a random time that doubles. Not after an exhausted quota, which no waiting restores. Only the refused
request waits: the refusal may concern only the caller or the size, and the service answers other requests separately.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar

from teola_plugin.errors import TeolaError

if TYPE_CHECKING:
    from tenacity import RetryCallState

T = TypeVar("T")

PERIOD_S = 60.0
BYTES_PER_TOKEN = 3
"""The bytes of UTF-8 per token. English has 4 or more, code about 3, Chinese and Japanese 2 to 3: an overestimate is
better than an excess."""

MAX_ATTEMPTS = 6
FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 30.0
"""The longest backoff. With six attempts, at most 15 s are waited in all, unless the service names a later time."""

LONGEST_RETRY_AFTER_S = 120.0
"""The longest wait that is honoured; as in the SDK of OpenAI (`MAX_RETRY_AFTER_DELAY`)."""

TRANSIENT = (408, 409, 429)
USED_UP = "insufficient_quota"


def likely_tokens(text: str) -> int:
    """Return an upper estimate of the tokens of a text."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


@dataclass(slots=True)
class Ticket:
    """The tokens that a request took, and when."""

    at_s: float
    tokens: int


@dataclass(slots=True)
class Budget:
    """The requests and tokens of the last minute. None: without limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    _tickets: deque[Ticket] = field(default_factory=deque)

    def delay_s(self, now_s: float, tokens: int) -> float:
        """Return how long a request of `tokens` must wait from now on. Infinite if larger than the budget."""
        while self._tickets and self._tickets[0].at_s <= now_s - PERIOD_S:
            self._tickets.popleft()
        requests, used = len(self._tickets), sum(ticket.tokens for ticket in self._tickets)
        if self._fits(requests, used, tokens):
            return 0.0
        for ticket in self._tickets:
            requests, used = requests - 1, used - ticket.tokens
            if self._fits(requests, used, tokens):
                return max(0.0, ticket.at_s + PERIOD_S - now_s)
        return math.inf

    def take(self, now_s: float, tokens: int) -> Ticket:
        """Charge a request. Returns a ticket with the charged tokens."""
        self._tickets.append(Ticket(now_s, tokens))
        return self._tickets[-1]

    def settle(self, ticket: Ticket, tokens: int) -> None:
        """Correct the ticket of a request that has ended to the tokens used."""
        ticket.tokens = tokens

    def _fits(self, requests: int, used: int, tokens: int) -> bool:
        if self.requests_per_minute is not None and requests >= self.requests_per_minute:
            return False
        return self.tokens_per_minute is None or used + tokens <= self.tokens_per_minute


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed a little later."""
    if isinstance(error, TeolaError):  # for example, the client is not installed
        return False
    import httpx
    import openai

    match error:
        case openai.APIStatusError():
            passes = error.status_code in TRANSIENT or error.status_code >= 500
            return passes and error.status_code != 501 and error.code != USED_UP
        case openai.APIConnectionError():
            return isinstance(error.__cause__, httpx.TransportError | None)  # else: redirects, errors of unpacking
        case httpx.TransportError():
            return True
        case openai.APIError():  # told within the stream
            code = error.body.get("code") if isinstance(error.body, Mapping) else None
            return isinstance(code, int) and (code in TRANSIENT or code >= 500)
        case _:
            return False


def retry_after_s(error: BaseException | None, wall_clock: Callable[[], float] = time.time) -> float | None:
    """Return the wait that the service asked for, in seconds or as a date; None if invalid or too long."""
    headers = getattr(getattr(error, "response", None), "headers", {})
    for name, seconds in (("retry-after-ms", _milliseconds), ("retry-after", float), ("retry-after", _until)):
        with contextlib.suppress(KeyError, ValueError, TypeError, OverflowError, OSError):
            wait_s = seconds(headers[name]) - (wall_clock() if seconds is _until else 0.0)
            return wait_s if 0 < wait_s <= LONGEST_RETRY_AFTER_S else None  # nan is neither
    return None


def _milliseconds(text: str) -> float:
    return float(text) / 1000


def _until(date: str) -> float:
    return parsedate_to_datetime(date).timestamp()


def backoff_s(state: RetryCallState) -> float:
    """Return the wait before the next attempt, in seconds."""
    from tenacity import wait_random_exponential

    asked = retry_after_s(state.outcome.exception() if state.outcome else None)
    if asked is not None:
        return asked
    wait: Any = wait_random_exponential(multiplier=FIRST_BACKOFF_S, max=LONGEST_BACKOFF_S)
    return float(wait(state))


async def retried(
    attempt: Callable[[], Awaitable[T]], may_again: Callable[[BaseException], bool], *, deadline_s: float,
    max_attempts: int, sleep: Callable[[float], Awaitable[None]], tell: Callable[[str], None],
) -> T:  # fmt: skip
    """Return the result of the first successful attempt; none begins after the deadline.

    `tell` receives the reason of each retry.

    Raises: the error of the last attempt.
    """
    import tenacity

    now_s = asyncio.get_running_loop().time

    def told(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        tell(f"{getattr(error, 'status_code', type(error).__name__)}; again in {state.upcoming_sleep:.1f} s")

    def is_over(state: RetryCallState) -> bool:
        return state.attempt_number >= max_attempts or now_s() + state.upcoming_sleep >= deadline_s

    async def once() -> T:  # tenacity awaits only functions recognised as coroutine functions
        return await attempt()

    return await tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(may_again), stop=is_over, wait=backoff_s, sleep=sleep, before_sleep=told,
        reraise=True,
    )(once)  # fmt: skip

"""No request leaves the origin that its address names, whatever the server there says."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from teola_plugin.errors import EngineError
from teola_plugin.runtime.engines.redirects import MAX_REDIRECTS, origin, stays_there
from tests.runtime.engines.test_openai_engine import TEXT, Clock, decode, opened
from tests.support.openai_service import Raw, Service, served

STATUSES = [301, 302, 303, 307, 308]


def moved(location: str, status: int = 307) -> Raw:
    return Raw(status=status, headers={"Location": location})


@pytest.fixture
def here() -> Iterator[Service]:
    with served(Service("hosted", endpoints=("completions", "other/completions"))) as service:
        yield service


@pytest.fixture
def elsewhere() -> Iterator[Service]:
    with served(Service("hosted")) as service:
        yield service


@pytest.mark.parametrize("status", STATUSES)
async def test_a_prompt_does_not_follow_to_another_origin(status: int, here: Service, elsewhere: Service) -> None:
    clock = Clock()
    here.faults.append(moved(f"{elsewhere.url}/completions?key=s3cret", status))
    async with opened(here.url, api_key="sk-key", clock=clock, sleep=clock.sleep) as engine:
        with pytest.raises(EngineError, match=rf"redirects to {elsewhere.url}/completions: give that") as raised:
            await decode(engine, "Who?")
        assert "s3cret" not in str(raised.value)
        assert (elsewhere.seen, elsewhere.probed, elsewhere.headers) == ([], [], [])
        assert (len(here.seen), clock.slept) == (1, [])  # and nothing is tried again
        assert await decode(engine, "Who?") == TEXT


async def test_a_key_does_not_follow_to_another_origin(here: Service, elsewhere: Service) -> None:
    here.moved_to = elsewhere.url.removesuffix("/v1")
    async with opened(here.url, api_key="sk-key") as engine:
        with pytest.raises(EngineError, match=rf"redirects to {elsewhere.url}/models: give that"):
            await decode(engine, "Who?")
    assert elsewhere.headers == []


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_redirect_within_the_origin_is_followed(status: int, is_whole: bool, here: Service) -> None:
    path = "/v1/other/completions"
    here.faults.append(moved(here.url.removesuffix("/v1") + path if is_whole else path, status))
    async with opened(here.url, api_key="sk-key") as engine:
        assert await decode(engine, "Who?") == TEXT
    assert [seen[0] for seen in here.seen] == ["completions", "other/completions"]


async def test_redirects_in_a_circle_end_and_are_not_tried_again(here: Service) -> None:
    clock = Clock()
    here.check = lambda path, body: None
    here.faults.extend([moved("/v1/completions")] * 50)
    async with opened(here.url, clock=clock, sleep=clock.sleep) as engine:
        with pytest.raises(EngineError, match="redirects"):
            await decode(engine, "Who?")
    assert (len(here.seen), clock.slept) == (MAX_REDIRECTS + 1, [])


@pytest.mark.parametrize("location", ["http://[", "http://a:b/", "https://", "javascript:alert(1)", "ftp://127.0.0.1/"])
async def test_a_redirect_to_what_is_no_address_is_said(location: str, here: Service) -> None:
    here.faults.append(moved(location))
    async with opened(here.url) as engine:
        with pytest.raises(EngineError, match="redirects to"):
            await decode(engine, "Who?")
    assert len(here.seen) == 1


@pytest.mark.parametrize(
    ("to", "is_followed"),
    [
        ("https://llm.test/x", True),
        ("https://llm.test:443/x", True),
        ("https://LLM.test/x", True),
        ("/x", True),
        ("http://llm.test/x", False),
        ("http://llm.test:443/x", False),
        ("https://llm.test:8443/x", False),
        ("https://other.test/x", False),
        ("https://llm.test.other.test/x", False),
        ("//other.test/x", False),
    ],
)
async def test_an_origin_is_scheme_host_and_port(to: str, is_followed: bool) -> None:
    asked: list[httpx.URL] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url)
        return httpx.Response(307, headers={"Location": to}) if len(asked) == 1 else httpx.Response(200)

    hooks = {"response": [stays_there("it")]}
    async with httpx.AsyncClient(
        transport=httpx.MockTransport(answer), follow_redirects=True, event_hooks=hooks
    ) as client:
        if is_followed:
            assert (await client.post("https://llm.test/v1", content=b"prompt")).status_code == 200
        else:
            with pytest.raises(EngineError, match="it redirects to"):
                await client.post("https://llm.test/v1", content=b"prompt")
    assert len({origin(url) for url in asked}) == 1

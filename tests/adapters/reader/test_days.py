"""The present day is known while an hour of it is left; the time of day is not."""

from __future__ import annotations

import datetime
import time
from datetime import date, timedelta
from typing import Any

import pytest

from teola_plugin.adapters.reader import days
from tests.adapters.reader.langchain_reading import check, hosted, read

LLM = hosted()
UTC = datetime.timezone.utc  # noqa: UP017  as programs write it


@pytest.fixture
def in_the_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(days, "LEFT_S", -1)


DAYS = {
    "strftime": lambda: datetime.datetime.now().strftime("%A, %B %-d, %Y"),
    "in a zone": lambda: datetime.datetime.now(UTC).strftime("%d/%m/%y, week %V, day %j of the year: 100 %%"),
    "utcnow": lambda: datetime.datetime.utcnow().strftime("%Y-%m-%d"),
    "today": lambda: datetime.datetime.today().strftime("%Y-%m-%d"),
    "f-string": lambda: f"{datetime.datetime.now():%Y-%m-%d}",
    "a date": lambda: f"{date.today()} {date.today().isoformat()} {datetime.datetime.now().date()}",
    "fields": lambda: f"{datetime.datetime.now().year} {date.today().month} {datetime.datetime.now().weekday()}",
    "the week before": lambda: (datetime.datetime.now() - timedelta(days=7)).strftime("%F"),
    "tomorrow": lambda: str(date.today() + timedelta(days=1)),
    "time": lambda: time.strftime("%Y-%m-%d"),
}


@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow")
@pytest.mark.usefixtures("in_the_day")
@pytest.mark.parametrize("name", DAYS)
def test_a_prompt_may_show_the_day(name: str) -> None:
    day = DAYS[name]
    found = check(lambda x: [LLM.invoke(f"{day()} {x}").content, LLM.invoke(x).content], "a")
    assert found.shown == [2]


TIMES = {
    "isoformat": lambda: datetime.datetime.now().isoformat(),
    "hour": lambda: datetime.datetime.now().strftime("%Y-%m-%d %H"),
    "all": lambda: str(datetime.datetime.now()),
    "f-string": lambda: f"{datetime.datetime.now():%c}",
    "a field": lambda: str(datetime.datetime.now().hour),
    "a part of a day before": lambda: (datetime.datetime.now() - timedelta(hours=7)).strftime("%F"),
    "time": lambda: time.strftime("%X"),
    "another time": lambda: time.strftime("%Y-%m-%d", time.gmtime()),
}


@pytest.mark.usefixtures("in_the_day")
@pytest.mark.parametrize("name", TIMES)
def test_the_time_of_day_is_not_known(name: str) -> None:
    clock = TIMES[name]
    assert read(lambda x: [LLM.invoke(f"{clock()} {x}").content, LLM.invoke(x).content], "a").shown == [1]


@pytest.mark.parametrize("name", DAYS)
@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow")
def test_the_day_is_not_known_shortly_before_it_ends(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(days, "LEFT_S", 24 * 3600)
    day = DAYS[name]
    assert read(lambda x: [LLM.invoke(f"{day()} {x}").content, LLM.invoke(x).content], "a").shown == [1]


@pytest.mark.usefixtures("in_the_day")
@pytest.mark.parametrize("hours", [-23, 23])
def test_the_day_is_that_of_the_zone(hours: int) -> None:
    zone = datetime.timezone(timedelta(hours=hours))
    assert check(lambda x: LLM.invoke(f"{datetime.datetime.now(zone):%F} {x}").content, "a").shown == [1]


@pytest.mark.parametrize("rounds", [3, 90])
def test_days_may_be_added_until_no_calendar_goes_so_far(rounds: int) -> None:
    def back(x: str) -> Any:
        when = datetime.datetime.now() - timedelta(hours=1)
        reply = LLM.invoke(x).content
        for _ in range(rounds):
            when = when - timedelta(days=3000 if rounds == 3 else 9999)
        return f"{reply}{LLM.invoke('next').content}{when}"

    assert read(back, "a").certain[0] == [True, rounds == 3]

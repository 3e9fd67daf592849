"""The present day, which a program shows in its prompts: known where no time of day is shown, and the day is not over.

datetime.now().strftime("%B %d, %Y")       known
date.today() - timedelta(days=7)           known
datetime.now().isoformat()                 not known: the function itself will show a later time
"""

from __future__ import annotations

import datetime
import re
from typing import Any, NamedTuple

from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.values import Unknown

LEFT_S = 3600
"""What has to be left of a day, in seconds: a call that goes on longer than that asks again for what shows the day."""

_DAY = datetime.timedelta(days=1)
_SMALL = datetime.timedelta(days=10_000)
_OF_DAYS = re.compile(r"(?:[^%\0]|%%|%-?[aAwdbBmyYjUWuGVF])*")
"""Formats that show no time of day."""

MISSING = foreign.MISSING

_METHODS = frozenset({"date", "weekday", "isoweekday", "isocalendar", "toordinal"})
_FIELDS = frozenset({"year", "month", "day"})


class Present(NamedTuple):
    """The present time in a zone, with some time added; see `values.Unknown.of`."""

    zone: datetime.timezone | None
    by: datetime.timedelta


def present(value: Unknown, zone: datetime.timezone | None) -> Unknown:
    """Let an unknown time be the present time in a zone; without a zone, that of this machine."""
    value.of = Present(zone, datetime.timedelta())
    return value


def shifted(value: Unknown, by: datetime.timedelta) -> Present | None:
    """Return an unknown time with some time added; None if the result may be out of range."""
    if type(value.of) is not Present or abs(by) >= _SMALL or abs(value.of.by + by) >= _SMALL:
        return None
    return Present(value.of.zone, value.of.by + by)


def today(zone: datetime.timezone | None = None) -> datetime.datetime | None:
    """Return the present time if enough of the day is left."""
    now = datetime.datetime.now(zone)
    end = datetime.datetime.combine(now.date() + _DAY, datetime.time(), now.tzinfo)
    return now if (end - now).total_seconds() > LEFT_S else None


def shown(value: Unknown, spec: Any) -> str | None:
    """Return the text of an unknown time in a format; None if the text is not known."""
    time = _time(value) if type(spec) is str and spec and _OF_DAYS.fullmatch(spec) else None
    return time.strftime(spec) if time is not None else None


def method(value: Unknown, name: str, args: Any, kwargs: Any) -> Any:
    """Return the result of a method of an unknown time; MISSING if the result is not known."""
    if name == "strftime" and len(args) == 1 and not kwargs and (text := shown(value, args[0])) is not None:
        return text
    time = _time(value) if name in _METHODS and not (args or kwargs) else None
    return getattr(time, name)() if time is not None else MISSING


def field(value: Unknown, name: str) -> Any:
    """Return a field of an unknown time; MISSING if the field is not known."""
    time = _time(value) if name in _FIELDS else None
    return getattr(time, name) if time is not None else MISSING


def _time(value: Unknown) -> datetime.datetime | None:
    if type(value.of) is not Present or value.of.by % _DAY:
        return None
    now = today(value.of.zone)
    return now + value.of.by if now is not None else None

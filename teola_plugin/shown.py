"""The printable part of settings for messages, logs and `repr`: nothing which could be a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping

_HARMLESS = (bool, int, float, type(None))


def address(text: str) -> str:
    """Return an address without user, password and query. Any other text, such as the name of a model, is unchanged.

    >>> address("https://me:secret@api.example/search?key=secret")
    'https://api.example/search'
    """
    scheme, is_address, rest = text.partition("://")
    if not is_address:
        return text
    host, slash, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def outline(value: object) -> str:
    """Return the `repr` of a value; for a mapping the keys, with numbers unchanged and dots for possible secrets.

    >>> outline({"api_key": "secret", "top_k": 3, "headers": {"Authorization": "secret"}})
    "{'api_key': ..., 'top_k': 3, 'headers': ...}"
    """
    if not isinstance(value, Mapping):
        return repr(value)
    said = ", ".join(f"{key!r}: {_number(each) or '...'}" for key, each in value.items())
    return f"{{{said}}}"


def brief(value: object) -> str:
    """Return a number unchanged; for any other value, which may be a secret, the type.

    >>> brief(3), brief("secret")
    ('3', 'a str')
    """
    return _number(value) or f"a {type(value).__name__}"


def _number(value: object) -> str:
    return repr(value) if isinstance(value, _HARMLESS) else ""

"""Ways to parse a reply, with the errors that a handler around may name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from enum import Enum
from typing import Any

Parse = Callable[[str], Any]
KINDS = ["a", "b", "7"]


class Kind(Enum):
    YES = "yes"
    SEVEN = "7"


class Lenient(Enum):
    YES = "yes"

    @classmethod
    def _missing_(cls, value: object) -> Any:
        raise KeyError(value)


class Odd:
    def __eq__(self, other: object) -> bool:
        raise KeyError(other)

    __hash__ = None  # type: ignore[assignment]


def of_pairs(text: str) -> dict[str, str]:
    found = {}
    for each in text.split("\n"):
        try:
            key, value = each.split(":", 1)
            found[key.strip()] = value.strip()
        except ValueError:
            continue
    return found


def numbers_of(text: str) -> list[int]:
    found = []
    for each in text.split("\n"):
        try:
            number = int(each.split(" ")[1].strip())
        except (IndexError, ValueError):
            continue
        if number <= 2:
            found.append(number)
    return [int(x) - 1 for x in found]


def first_marked(text: str) -> str:
    for line in text.split("\n"):
        if line.startswith("a:"):
            return line[2:].strip()
    return text


def first_number(text: str) -> int:
    for each in text.split():
        try:
            return int(each)
        except ValueError:
            continue
    return 0


def first_repeated(text: str) -> str:
    seen = []
    for line in text.split("\n"):
        for other in seen:
            if other == line:
                return f"{len(seen)}: {line}"
        seen.append(line)
    return f"none of {len(seen)}"


def before_the_last(text: str) -> str:
    last = other = "none"
    for line in text.split("\n"):
        if "stop" in line:
            return line
        other = last
        last = line
    return other


def kept_back(text: str) -> str:
    kept = ["none", "none"]

    def look() -> str:
        for line in text.split("\n"):
            if "stop" in line:
                return line
            kept[1] = kept[0]
            kept[0] = line
        return "end"

    look()
    return kept[1]


def whole_or_broken(text: str) -> str:
    for line in text.split("\n"):
        if "a" in line:
            found = "broken"
            break
    else:
        found = "whole"
    return found


def told_apart(text: str) -> str:
    for line in text.split("\n"):
        if line == "a":
            return "first"
        if line.startswith("b"):
            return "second"
        if line.endswith("c"):
            return "third"
        if "d" in line:
            return "fourth"
        if len(line) > 9:
            return "long"
        if line == line.upper():
            return "loud"
    return "none"


def first_of_all(text: str) -> str:
    for line in text.split("\n"):
        if not line:
            continue
        return line
    return ""


def letters_alone(text: str) -> str:
    found = ""
    for each in text:
        if each.isalpha():
            found += each
    return found + "".join(each for each in text if each.upper() in "ABC")


def first_score(text: str) -> int:
    for line in text.split("\n"):
        if ":" in line:
            return int(line.split(":", 1)[1])
    return 0


def checked(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 10:
        raise ValueError("out of range")
    return number


def looked_up(text: str) -> str:
    if "no" in text:
        raise LookupError(text)
    return text


def stated(text: str) -> str:
    assert text.strip(), "nothing said"
    assert "no" not in text
    return text


def stated_by_a_number(text: str) -> str:
    assert text.strip(), 1 // len(text)
    return text


def both(text: str) -> str:
    one, *others = text.split(":")
    return one + "".join(others)


def pair_of_json(text: str) -> Any:
    one, other = json.loads(text)
    return one, other


def letters(text: str) -> str:
    a, b, c, d = text
    return d + c + b + a


def popped(text: str) -> str:
    parts = text.split()
    return parts.pop(0) + parts.pop()


def one_of_them(text: str) -> tuple[str, str]:
    kind = Kind(text.strip())
    return kind.name.lower(), kind.value.upper()


NAMED: list[tuple[Parse, tuple[type[Exception], ...]]] = [
    (of_pairs, ()),
    (numbers_of, ()),
    (first_marked, ()),
    (first_number, ()),
    (first_repeated, ()),
    (before_the_last, ()),
    (told_apart, ()),
    (kept_back, ()),
    (first_of_all, ()),
    (letters_alone, ()),
    (first_score, (ValueError,)),
    (checked, (ValueError,)),
    (looked_up, (LookupError,)),
    (stated, (AssertionError,)),
    (both, (ValueError,)),
    (letters, (ValueError,)),
    (popped, (IndexError,)),
    (one_of_them, (ValueError,)),
    (lambda text: text.split(":")[1], (IndexError,)),
    (lambda text: text.split("\n")[1][2], (IndexError,)),
    (lambda text: KINDS[int(text)], (IndexError, ValueError)),
    (lambda text: KINDS[int(text.split()[1]) - 1], (IndexError, ValueError)),
    (lambda text: KINDS.index(text), (ValueError,)),
    (lambda text: re.search(r"(\w) (\d)", text).group(2), (AttributeError,)),  # type: ignore[union-attr]
    (lambda text: json.loads(text)["a"], (KeyError, TypeError, ValueError)),
    (lambda text: json.loads(text)[0], (LookupError, TypeError, ValueError)),
    (lambda text: json.loads(text).get("a", 1), (AttributeError, ValueError)),
    (lambda text: int(float(text)), (ValueError, OverflowError)),
    (lambda text: round(float(text)), (ValueError, OverflowError)),
]

OTHERS: list[tuple[Parse, tuple[type[Exception], ...]]] = [
    (whole_or_broken, ()),
    (first_score, (IndexError,)),
    (lambda text: json.loads(text)["a"], (KeyError, ValueError)),
    (lambda text: json.loads(text)["a"], (TypeError, ValueError)),
    (lambda text: json.loads(text)[0], (IndexError, TypeError, ValueError)),
    (lambda text: json.loads(text)[0], (KeyError, TypeError, ValueError)),
    (lambda text: json.loads(text).get("a", 1), (TypeError, ValueError)),
    (lambda text: json.loads(text).get([], 1), (AttributeError, ValueError)),
    (checked, (IndexError,)),
    (looked_up, (ValueError,)),
    (stated, (ValueError,)),
    (stated_by_a_number, (AssertionError,)),
    (both, (IndexError,)),
    (pair_of_json, (ValueError,)),
    (lambda text: json.loads(text)[0], (IndexError, ValueError)),
    (popped, (ValueError,)),
    (one_of_them, (KeyError,)),
    (lambda text: Lenient(text).value, (ValueError,)),
    (lambda text: text.split(":")[1], (ValueError,)),
    (lambda text: {"yes": 1}[text], (IndexError,)),
    (lambda text: KINDS[int(text)], (IndexError,)),
    (lambda text: KINDS[text], (IndexError,)),  # type: ignore[call-overload]
    (lambda text: [Odd(), "a"].index(text), (ValueError,)),
    (lambda text: re.search(r"(\w) (\d)", text).group(2), (ValueError,)),  # type: ignore[union-attr]
    (lambda text: int(float(text)), (ValueError,)),
    (lambda text: round(float(text)), (OverflowError,)),
]

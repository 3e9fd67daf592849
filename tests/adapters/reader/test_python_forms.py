"""Everyday Python over values to come: what cannot raise ends no certainty, and what may raise does."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from tests.adapters.reader.world import Model, ModelAsker, read, same_as_original

Form = Callable[[Any, Any, list[str]], Any]
"""Gets a model, a text to come and its lines, of which there may be none."""

TEXTS = ["hive 1\nhive 2\nhive 1", "", "yes", "7", "a: b\n\n c", "abab"]


def lines_of(text: Any) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def certain_behind(form: Form) -> bool:
    """Whether a request behind the form is certain. What is read is compared with CPython, for several replies."""

    def program(m: Any) -> Any:
        text = m.ask("text")
        found = form(m, text, lines_of(text))
        m.ask("behind")
        return found

    for said in TEXTS:
        same_as_original(program, lambda *_, said=said: said)
    return "behind" in read(program, Model(lambda *_: "")).certain


# --- numbers ---------------------------------------------------------------------------------------------------------


def real(text: Any) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def total_in_a_loop(xs: list[str]) -> int:
    total = 0
    for x in xs:
        total += len(x)
    return total


NUMBERS: list[Form] = [
    lambda m, text, xs: len(text) + len(xs) - len(text.split()),
    lambda m, text, xs: 0.3 * real(text) + 0.7 * real(text.strip()),
    lambda m, text, xs: real(text) + real(text.strip()) / 2,
    lambda m, text, xs: sum(len(x) for x in xs) / len(xs) if xs else 0,
    lambda m, text, xs: sum(map(len, xs)) / max(len(xs), 1),
    lambda m, text, xs: len(text) / (len(xs) + 1),
    lambda m, text, xs: 1.5 + len(text) * len(xs),
    lambda m, text, xs: f"{round(len(text) / 4, 2)} {int(len(text) * 1.3)} {len(text) // 4 % 3}",
    lambda m, text, xs: f"{len(text) / 3:.2f} {len(xs):>4}",
    lambda m, text, xs: "n: %d of %.1f" % (len(text), real(text)) if text != "7" else "%d" % len(xs),  # noqa: UP031
    lambda m, text, xs: max(0.0, min(1.0, real(text))),
    lambda m, text, xs: 0 < len(text) < 50,
    lambda m, text, xs: abs(len(text) - len(xs)) * -len(xs),
    lambda m, text, xs: total_in_a_loop(xs) + 1,
    lambda m, text, xs: sum(x.startswith("h") for x in xs) + sum(1 for x in xs if "a" in x),
    lambda m, text, xs: max((len(x) for x in xs), default=0),
    lambda m, text, xs: hash(text) - hash(text),
    lambda m, text, xs: json.dumps({"a": text, "b": len(text), "c": len(xs) / 2}),
    lambda m, text, xs: [text[at : at + 2] for at in range(0, len(text), 2)],
    lambda m, text, xs: text[text.find("{") : text.rfind("}") + 1],
]

# --- texts, conditions -----------------------------------------------------------------------------------------------


def first_of(xs: list[str]) -> str:
    if not xs:
        return "none"
    return xs[0]


def filled_if_none(xs: list[str]) -> str:
    if not xs:
        xs = ["none"]
    return xs[0]


def until_the_first(xs: list[str]) -> str:
    found = ""
    for x in xs:
        if "2" in x:
            found = x
            break
    return found


def matched(text: str) -> str:
    match = re.search(r"(\w+) (\d)", text)
    return match.group(1).upper() + match.group() if match is not None else text


def all_matched(text: str) -> str:
    match = re.match(r"(.+?) - (.+?)( - .*)?$", text)
    if match:
        one, two, rest = match.groups()
        return one.strip() + two.upper() + str(rest)
    return text


def if_matched(text: str) -> str:
    match = re.search(r"```(?P<code>.*?)```", text, re.DOTALL)
    if not match:
        return text
    return match.group("code").strip()


CONDITIONS: list[Form] = [
    lambda m, text, xs: xs[0].lower() if xs else "",
    lambda m, text, xs: xs[-1].lower() if len(xs) > 0 else "",
    lambda m, text, xs: "" if not xs else xs[0].lower(),
    lambda m, text, xs: (xs or ["none"])[0].lower(),
    lambda m, text, xs: [x[0] for x in xs if x],
    lambda m, text, xs: first_of(xs).lower(),
    lambda m, text, xs: filled_if_none(xs).lower(),
    lambda m, text, xs: until_the_first(xs).lower(),
    lambda m, text, xs: text.split("Answer:")[-1].strip() + text.split("\n")[0] + text.rsplit(":", 1)[-1],
    lambda m, text, xs: [part.strip() for part in text.partition(":")],
    lambda m, text, xs: matched(text).strip(),
    lambda m, text, xs: if_matched(text).strip(),
    lambda m, text, xs: all_matched(text).strip(),
    lambda m, text, xs: any("a" in x for x in xs) or all(x for x in xs if x.strip()),
    lambda m, text, xs: next((x for x in xs if "a" in x), "none").strip(),
    lambda m, text, xs: max(xs, key=len, default="").strip(),
]

# --- what goes over lists and dicts ----------------------------------------------------------------------------------


def counted(xs: list[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for x in xs:
        counts[x] = counts.get(x, 0) + 1
    return counts


def counted_if_in(xs: list[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for x in xs:
        if x in counts:
            counts[x] += 1
        else:
            counts[x] = 1
    return counts


def counted_by_default(xs: list[str], counts: dict[str, int]) -> dict[str, int]:
    for x in xs:
        counts[x] += 1
    return counts


def fused(*ways: list[str]) -> list[str]:
    scores: dict[str, float] = {}
    for way in ways:
        for rank, x in enumerate(way):
            scores[x] = scores.get(x, 0.0) + 1 / (rank + 60)
    return [x for x, score in sorted(scores.items(), key=lambda item: item[1], reverse=True)][:2]


def fused_if_new(*ways: list[str]) -> list[tuple[str, float]]:
    scores: dict[str, float] = {}
    for way in ways:
        for rank, x in enumerate(way):
            if x not in scores:
                scores[x] = 0
            scores[x] += 1 / (rank + 60)
    return [(x, score) for x, score in sorted(scores.items(), key=lambda item: item[1], reverse=True)]


def kept(text: str) -> str:
    cache: dict[str, str] = {}
    for each in (text, text.strip(), text):
        if each not in cache:
            cache[each] = each.upper()
    return ", ".join(f"{key}: {value}" for key, value in cache.items())


ITEMS: list[Form] = [
    lambda m, text, xs: counted(xs),
    lambda m, text, xs: counted_if_in(xs),
    lambda m, text, xs: sorted(counted_by_default(xs, defaultdict(int)).items()),
    lambda m, text, xs: sum(counted_by_default(xs, Counter()).values()),
    lambda m, text, xs: [f"{x}: {count + 1}" for x, count in Counter(xs).most_common(2)],
    lambda m, text, xs: fused(xs, xs[::-1]),
    lambda m, text, xs: fused_if_new(xs, xs[::-1]),
    lambda m, text, xs: kept(text),
    lambda m, text, xs: [key.upper() for key in dict(zip(xs, map(len, xs), strict=False))],
    lambda m, text, xs: ", ".join(map(str.strip, xs)) + ", ".join(map(str, map(len, xs))),
    lambda m, text, xs: ", ".join(filter(None, map(lambda x: x.strip(), text.split("\n")))),  # noqa: C417
    lambda m, text, xs: ", ".join(filter(lambda x: "a" in x, xs)),
    lambda m, text, xs: sorted(xs, key=lambda x: (len(x) + 1) / 2, reverse=True)[:2],
    lambda m, text, xs: sorted(counted(xs).items(), key=lambda item: (-item[1], item[0])),
    lambda m, text, xs: sorted(set(text.split()) & set(xs)) + sorted({"a"} | set(xs)),
    lambda m, text, xs: {"yes": 1, "no": 0}.get(text.strip(), 0) + 1,
]


def line(form: Form) -> str:
    return f"line {form.__code__.co_firstlineno}"


@pytest.mark.parametrize("form", [*NUMBERS, *CONDITIONS, *ITEMS], ids=line)
def test_what_cannot_raise_ends_no_certainty(form: Form) -> None:
    assert certain_behind(form)


# --- what may raise --------------------------------------------------------------------------------------------------


def emptied(xs: list[str]) -> str:
    if xs:
        xs.pop()
        return xs[0]
    return ""


def emptied_parts(text: str) -> str:
    parts = text.split("\n")
    parts.clear()
    return parts[0]


def counted_before(xs: list[str]) -> str:
    count = len(xs)
    xs.clear()
    return xs[0] if count else ""


def emptied_by_a_round(xs: list[str]) -> str:
    found = ""
    if xs:
        for each in xs[:]:
            found = xs[0] + each
            xs.clear()
    return found


def emptied_word_by_word(text: str) -> str:
    words, found = set(text.split("\n")), ""
    if words:
        for each in text.split():
            found = max(words) + each
            words.discard(each)
    return found


def emptied_by_a_map(xs: list[str], ys: list[str]) -> list[str]:
    return list(map(lambda y: xs[0] + y * (len(xs) + len(str(xs.clear()))), ys)) if xs else []  # noqa: C417


def lost(xs: list[str]) -> int:
    counts = counted(xs)
    is_in = "yes" in counts
    counts.clear()
    return counts["yes"] if is_in else 0


def lost_at_once(xs: list[str]) -> int:
    counts = counted(xs)
    if "yes" in counts:
        counts.pop("yes")
        return counts["yes"]
    return 0


def on_one_path(xs: list[str]) -> int:
    counts = counted(xs)
    if "7" in xs:
        counts["yes"] = 1
    return counts["yes"]


def doubled(text: str) -> float:
    count = len(text) + 10
    for _ in text:
        count = count * count
    return count / 3


def doubled_in_a_list(text: str) -> float:
    counts = [len(text) + 10]
    for _ in text:
        counts.append(counts[-1] * counts[-1])
    return sum(counts) / 3


def changed_while_it_is_walked(xs: list[str]) -> int:
    counts = counted(xs)
    for x, count in counts.items():
        counts[x + "!"] = count
        if len(counts) > 9:
            break
    return 0


def changed_behind_a_map(text: str) -> None:
    words: list[Any] = text.split("\n")
    for at, word in enumerate(map(lambda x: x.strip(), words)):  # noqa: C417
        words.append(at)
        if word == "yes":
            break


def changed_on_the_way(xs: list[Any]) -> list[str]:
    stripped = map(lambda x: x.strip(), xs)  # noqa: C417
    xs.append(5)
    return list(stripped)


def other_values(xs: list[Any]) -> list[str]:
    counts: dict[str, Any] = counted(xs)
    pairs = counts.items()
    counts[xs[0] if xs else "a"] = "b"
    return sorted(pairs, key=lambda item: item[1])  # type: ignore[return-value]


def changed_behind_a_view(xs: list[str]) -> Any:
    found = counted(xs)
    sizes = map(len, found.keys())
    found["new"] = 1
    return list(sizes)


def changed_behind_a_generator(xs: list[str]) -> Any:
    found = counted(xs)
    sizes = (len(x) for x, _ in found.items())
    found["new"] = 1
    return list(sizes)


def changed_behind_two(xs: list[str]) -> Any:
    found = counted(xs)
    pairs = zip(found.keys(), found.values(), strict=False)
    found["new"] = 1
    return list(enumerate(pairs))


def sorted_before(xs: list[str]) -> Any:
    mark: str | None = None
    found = sorted(((x, mark) for x in xs), key=lambda x: x[0])
    mark = "a"
    return [x[1].upper() for x in found]  # type: ignore[union-attr]


def zipped(xs: list[str]) -> Any:
    return list(zip(map(int, xs), xs, strict=False))


UNSAFE: list[Form] = [
    lambda m, text, xs: xs[0],
    lambda m, text, xs: xs[1] if xs else "",
    lambda m, text, xs: xs[0] if not xs else "",
    lambda m, text, xs: more[1] if (more := [*xs, *text.split("\n")]) else "",
    lambda m, text, xs: re.search("a", text).group(),  # type: ignore[union-attr]
    lambda m, text, xs: text.split("a")[1],
    lambda m, text, xs: text.split()[0],
    lambda m, text, xs: text.splitlines()[0],
    lambda m, text, xs: len(text) / len(xs),
    lambda m, text, xs: len(text) // len(xs) if text else 0,
    lambda m, text, xs: 1 / (text.find("a") + 1),
    lambda m, text, xs: 1 / (len(text) - 1),
    lambda m, text, xs: int(text),
    lambda m, text, xs: (int(text) if text == "7" else 1) / 2,
    lambda m, text, xs: int(real(text)),
    lambda m, text, xs: "%d" % real(text),  # noqa: UP031
    lambda m, text, xs: f"{len(text) / 2:d}",
    lambda m, text, xs: "%.2f" % (10**400 * len(text)),
    lambda m, text, xs: range(0, len(text), len(xs)),
    lambda m, text, xs: text[:: len(xs)],
    lambda m, text, xs: re.search("(a)(b)?", text).group(1),  # type: ignore[union-attr]
    lambda m, text, xs: a.group(2).upper() if (a := re.search("(a)(c)?", text)) else "",
    lambda m, text, xs: a.groups()[1].upper() if (a := re.search("(a)(c)?", text)) else "",
    lambda m, text, xs: re.search("(a)", text).groups(),  # type: ignore[union-attr]
    lambda m, text, xs: a.group(3) if (a := re.search("(a)(c)?", text)) else "",  # type: ignore[attr-defined]
    lambda m, text, xs: max(xs),
    lambda m, text, xs: max(xs, key=int, default=""),
    lambda m, text, xs: sorted(xs, key=lambda x: x[0] if x != "yes" else 0),
    lambda m, text, xs: sorted(xs, key=lambda x: (len(x), None)),
    lambda m, text, xs: list(map(int, xs)),
    lambda m, text, xs: list(filter(int, xs)),
    lambda m, text, xs: any(int(x) for x in xs),
    lambda m, text, xs: any(x for x in xs if int(x)),
    lambda m, text, xs: [x for x in xs if x != "a" if int(x)],
    lambda m, text, xs: next(x for x in xs if x),
    lambda m, text, xs: {"7": 1}[text],
    lambda m, text, xs: counted(xs)["7"],
    lambda m, text, xs: {**counted(xs)}[text],
    lambda m, text, xs: dict(map(lambda x: x.split(), xs)),  # type: ignore[arg-type]
    lambda m, text, xs: 0 < len(text) < int(text),
    lambda m, text, xs: 10**400 * len(text) + 0.5,
    lambda m, text, xs: emptied(xs),
    lambda m, text, xs: emptied_parts(text),
    lambda m, text, xs: counted_before(xs),
    lambda m, text, xs: emptied_by_a_round(xs),
    lambda m, text, xs: emptied_word_by_word(text),
    lambda m, text, xs: emptied_by_a_map(xs, text.split("\n")),
    lambda m, text, xs: lost(xs),
    lambda m, text, xs: lost_at_once(xs),
    lambda m, text, xs: on_one_path(xs),
    lambda m, text, xs: doubled(text),
    lambda m, text, xs: doubled_in_a_list(text),
    lambda m, text, xs: changed_while_it_is_walked(xs),
    lambda m, text, xs: changed_behind_a_map(text),
    lambda m, text, xs: changed_on_the_way(xs),
    lambda m, text, xs: other_values(xs),
    lambda m, text, xs: changed_behind_a_view(xs),
    lambda m, text, xs: changed_behind_a_generator(xs),
    lambda m, text, xs: changed_behind_two(xs),
    lambda m, text, xs: sorted_before(xs),
    lambda m, text, xs: zipped(xs),
    lambda m, text, xs: f"{text.find('zz'):c}",
    lambda m, text, xs: "%c" % text.find("zz"),  # noqa: UP031
]


@pytest.mark.parametrize("form", UNSAFE, ids=line)
def test_what_may_raise_ends_certainty(form: Form) -> None:
    assert not certain_behind(form)


def test_a_condition_behind_an_unknown_one_may_be_evaluated() -> None:
    def program(m: Any) -> Any:
        return [x for x in ("a", "b") if m.ask(x) == "yes" if m.ask(f"{x}?") == "yes"]

    found = read(program, Model(lambda *_: ""))
    assert (found.certain, found.possible) == (["a", "b"], ["a?", "b?"])


def test_an_item_behind_a_condition_is_asked_for_where_both_hold() -> None:
    def program(m: Any) -> Any:
        return [m.ask("item") for x in ("a", "b") if m.ask(x) == "yes" if x == "c"], m.ask("behind")

    found = read(program, Model(lambda *_: ""))
    assert (found.certain, found.possible) == (["a", "b", "behind"], [])


def test_a_key_that_a_defaultdict_may_gain_is_counted() -> None:
    def program(m: Any) -> Any:
        found: dict[str, int] = defaultdict(int)
        found[m.ask("key")]
        return m.ask(f"{len(found)} keys")

    assert read(program, Model(lambda *_: ""), asker=ModelAsker()).certain == ["key"]


def test_what_a_coroutine_beside_takes_away_may_be_missing() -> None:
    async def first(m: Any, xs: list[str]) -> str:
        if not xs:
            return ""
        await m.aask("first")
        return xs[0]

    async def second(m: Any, xs: list[str]) -> str:
        xs.clear()
        return str(await m.aask("second"))

    async def program(m: Any) -> Any:
        xs = lines_of(await m.aask("text"))
        await asyncio.gather(first(m, xs), second(m, xs))
        return await m.aask("behind")

    assert "behind" not in read(program, Model(lambda *_: "")).certain


def test_what_a_generator_asks_of_perhaps_no_items_is_not_certain() -> None:
    def program(m: Any) -> Any:
        found = lines_of(m.ask("text"))
        all(m.ask("all") for _ in found)
        next((m.ask("next") for _ in found), "")
        all(map(lambda _: m.ask("map"), found))  # noqa: C417
        return {*map(lambda _: m.ask("star"), found)}, m.ask("behind")  # noqa: C417

    assert read(program, Model(lambda *_: "")).certain == ["text", "behind"]


def test_the_else_of_a_loop_that_may_break_is_not_certain() -> None:
    def program(m: Any) -> Any:
        for x in m.ask("text").split("\n"):
            if x == "a":
                break
        else:
            m.ask("else")
        return m.ask("behind")

    assert "else" not in read(program, Model(lambda *_: "")).certain


def test_what_is_sorted_is_made_at_once() -> None:
    def program(m: Any) -> Any:
        mark = last = "a"
        found = sorted(((x, mark) for x in lines_of(m.ask("text"))), key=len)
        mark = last = "b"
        for x in found:
            last = x[1]
        return m.ask(last), mark

    assert read(program, Model(lambda *_: "")).certain == ["text"]


def set_behind_the_first(made: Any) -> None:
    found = ["a", "b"]
    found[1:] = made


USED_UP: list[Callable[[Any, list[str]], Any]] = [
    lambda made, xs: "a" in made,
    lambda made, xs: list(zip(made, xs, strict=False)),
    lambda made, xs: list(enumerate(made)),
    lambda made, xs: set_behind_the_first(made),
    lambda made, xs: [*made],
    lambda made, xs: statistics.mode(made),
]


@pytest.mark.parametrize("is_map", [True, False])
@pytest.mark.parametrize("use", USED_UP, ids=line)
def test_what_uses_up_an_iterator_calls_the_functions_that_make_its_items(use: Any, is_map: bool) -> None:
    def program(m: Any) -> Any:
        seen: list[str] = []
        xs = lines_of(m.ask("text"))
        made = map(lambda x: seen.append(x) or x, xs) if is_map else (seen.append(x) or x for x in xs)  # type: ignore[func-returns-value]  # noqa: C417
        try:
            use(made, xs)
        except Exception:
            m.ask("caught")
        return m.ask(f"{len(seen)} seen")

    assert "0 seen" not in read(program, Model(lambda *_: "")).certain

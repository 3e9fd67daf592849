"""What is certain, possible and not known in programs that ask a model, before anybody has answered."""

from __future__ import annotations

import copy
import datetime
import io
import json
import random
import re
import secrets
import sys
import time
import traceback
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage

from teola_plugin.adapters.reader.run import Answer
from tests.adapters.reader.world import Model, ModelAsker, predicted, read


def asked_in_an_arm_and_behind_it(m: Any) -> Any:
    if m.ask("a") == "yes":
        m.ask("x")
    m.ask("x")


def asked_in_both_arms(m: Any) -> Any:
    if m.ask("a") == "yes":
        m.ask("x")
    else:
        m.ask("x")
    m.ask("x")


def asked_in_one_arm(m: Any) -> Any:
    if m.ask("a") == "yes":
        m.ask("x")
    m.ask("b")


def asked_in_one_arm_behind_what_may_raise(m: Any) -> Any:
    if m.ask("a") == "yes":
        m.ask("x")
    else:
        int(m.ask("q"))
        m.ask("x")


def updated_by_comprehensions(m: Any) -> Any:
    words, found = str(m.ask("a")).split(), {"x": 0}
    found.update({f"b{word}": 1 for word in words})
    found.update({f"c{word}": 2 for word in words})
    m.ask("b")


def updated_by_a_reply(m: Any) -> Any:
    found: Any = {}
    found.update(m.ask("a"))
    m.ask("b")


def updated_by_a_comprehension_or_a_reply(m: Any) -> Any:
    reply, found = m.ask("a"), {"x": 0}
    other = {f"b{word}": 1 for word in str(reply).split()}
    if reply == "yes":
        other = reply
    found.update(other)
    m.ask("b")


def left_perhaps(m: Any) -> Any:
    if m.ask("a") == "yes":
        return 1
    return m.ask("b")


def returned_in_a_helper(m: Any) -> Any:
    def inner() -> int:
        if m.ask("a") == "yes":
            return 1
        return 2

    m.ask("b")
    m.ask(f"got {inner()}")


def raised_in_a_helper_behind_a_return(m: Any) -> Any:
    def inner() -> int:
        if m.ask("a") == "yes":
            return 1
        raise ValueError("no")

    inner()
    m.ask("b")


def raised_perhaps(m: Any) -> Any:
    if m.ask("a") == "yes":
        raise ValueError("no")
    m.ask("b")


def raised_in_both_arms(m: Any) -> Any:
    if m.ask("a") == "yes":
        raise ValueError("no")
    else:  # noqa: RET506
        raise KeyError("no")
    m.ask("b")


def may_raise_in_one_arm(m: Any) -> Any:
    if m.ask("a") == "yes":
        int(m.ask("c"))
    m.ask("b")


def not_bound_perhaps(m: Any) -> Any:
    if m.ask("a") == "yes":
        found = 1
    str(found)
    m.ask("b")


def caught_in_the_state_in_which_it_raised(m: Any) -> Any:
    n = 0
    try:
        n = 1
        int(m.ask("a"))
        n = 2
    except ValueError:
        m.ask(f"{n}")


def made_a_generator(m: Any) -> Any:
    def inner() -> Any:
        m.ask("a")
        yield 1

    inner()


def copied_twice(m: Any) -> Any:
    inner = [m.ask("a")]
    one, two = copy.deepcopy([inner, inner])
    m.ask(f"{one is two} {one is inner} {len(one)}")


def metadata_of_its_own(m: Any) -> Any:
    given = {"k": m.ask("a")}
    document = Document("p", metadata=given)
    document.metadata["x"] = "y"
    m.ask(f"{'x' in given}")


def fields_that_are_perhaps_given(m: Any) -> Any:
    message = HumanMessage("x")
    if m.ask("a") == "yes":
        message.name = "n"
    m.ask(str(sorted(message.model_fields_set)))


def caught_by_every_handler(m: Any) -> Any:
    try:
        int(m.ask("a"))
    except Exception:
        m.ask("b")
    m.ask("c")


def caught_by_the_handler_of_another(m: Any) -> Any:
    try:
        int(m.ask("a"))
    except KeyError:
        m.ask("b")
    m.ask("c")


def caught_in_one_of_two_states(m: Any) -> Any:
    n = 0
    try:
        int(m.ask("a"))
        n = 1
        int(m.ask("b"))
    except ValueError:
        m.ask(f"{n}")


def caught_by_its_handler(m: Any) -> Any:
    try:
        int(m.ask("a"))
    except ValueError:
        m.ask("b")
    m.ask("c")


def parsed_or_left(m: Any) -> Any:
    try:
        found = json.loads(m.ask("a"))
    except json.JSONDecodeError:
        found = {}
    m.ask("b")
    found.get("c")
    m.ask("d")


def counted_in_a_handler(m: Any) -> Any:
    good = bad = 0
    for d in "pqrs":
        try:
            text = m.ask(d)
            if "yes" in text:
                good += 1
            elif "no" not in text:
                raise ValueError(text)
        except Exception:
            bad += 1
    m.ask("behind")
    return good, bad


def set_in_a_handler(m: Any) -> Any:
    try:
        if "yes" not in m.ask("a"):
            raise ValueError("no")
    except Exception:
        found = 5
    m.ask("b")
    found += 1
    m.ask("c")


def asked_twice_in_rounds(m: Any) -> Any:
    int(m.ask("before"))
    for d in "pq":
        int(m.ask(d))
        m.ask(f"then {d}")
    m.ask("behind")


def asked_in_rounds_of_rounds(m: Any) -> Any:
    for d in "pq":
        for e in "xy":
            m.ask(f"{d}{e}")
            int(m.ask(f"no {d}{e}"))
        m.ask(f"behind {d}")


def asked_twice_in_a_comprehension(m: Any) -> Any:
    found = [(m.ask(d), int(m.ask(f"then {d}"))) for d in "pq"]
    m.ask(f"behind {len(found)}")


def checked_in_rounds(m: Any) -> Any:
    limit = m.ask("limit")
    for d in "pq":
        m.ask(d)
        int(limit)


def asked_while_an_item_is_made(m: Any) -> Any:
    for _ in (int(m.ask(each)) for each in "pq"):
        m.ask(f"then {m.ask('of it')}")


def asked_twice_in_each_round(m: Any) -> Any:
    for d in "pq":
        int(m.ask(d))
        m.ask(f"then {d}")
    m.ask("behind")


def asked_in_a_while_loop(m: Any) -> Any:
    left = ["q", "p"]
    while left:
        int(m.ask(left.pop()))
    m.ask("behind")


def asked_in_rounds_of_a_while_loop(m: Any) -> Any:
    left = ["q", "p"]
    while left:
        word = left.pop()
        for d in "xy":
            m.ask(word + d)
            int(m.ask("no " + word + d))


def asked_for_what_is_kept(m: Any) -> Any:
    return [m.ask("g" + d) for d in "pq" if m.ask(d) == "yes"]


def grown_perhaps(m: Any) -> Any:
    keep: list[str] = []
    if m.ask("a") == "yes":
        keep.append("x")
    m.ask(", ".join(keep))


def grown_perhaps_in_an_arm(m: Any) -> Any:
    keep: list[str] = []
    if m.ask("a") == "yes":
        keep += []
        if m.ask("b") == "yes":
            keep.append("x")
    m.ask(str(keep))


def grown_perhaps_and_chosen(m: Any) -> Any:
    one: list[str] = []
    if m.ask("a") == "yes":
        one.append("x")
    chosen = one if m.ask("b") == "yes" else []
    m.ask(str(chosen))


def chosen_where_it_grows(m: Any) -> Any:
    one, chosen = [1], [1]
    if m.ask("a") == "yes":
        chosen = one
        one.append(2)
    m.ask(str(chosen))


def dicts_in_another_order(m: Any) -> Any:
    chosen = {"a": 1, "b": 2} if m.ask("a") == "yes" else {"b": 2, "a": 1}
    m.ask(str(chosen))


def sets_of_one_and_true(m: Any) -> Any:
    found: set[Any] = set()
    if m.ask("a") == "yes":
        found.add(1)
    else:
        found.add(True)
    m.ask(str(found))


def sets_of_one_size(m: Any) -> Any:
    found: set[Any] = set()
    if m.ask("a") == "yes":
        found.add("x")
    else:
        found.add("y")
    m.ask(str(sorted(found)))


def left_in_a_round_with_a_change(m: Any) -> Any:
    count, names = 0, ["n"]
    for d in "pq":
        names[0] = d
        if m.ask(d) == "yes":
            if m.ask("really " + d) == "yes":
                count += 1
            continue
        count += 1
    m.ask(f"{count}")
    m.ask(names[0] + "!")


def left_before_it_was_put_right(m: Any) -> Any:
    names = ["n"]
    for d in "p":
        if m.ask(d) == "yes":
            names[0] = "x"
            if m.ask("b") == "yes":
                continue
            names[0] = "n"
    m.ask(names[0])


def told_of_a_reply(m: Any) -> Any:
    m.ask({"k": [m.ask("a")]})
    m.ask("b")


def formatted_as_a_number(m: Any) -> Any:
    print(f"{m.ask('a'):d}")
    m.ask("b")


def formatted_in_a_width(m: Any) -> Any:
    print(f"{m.ask('a'):>5}")
    m.ask("b")


def spread_in_a_dict(m: Any) -> Any:
    {**m.ask("a")}
    m.ask("b")


def given_to_who_knows_how_many(m: Any) -> Any:
    print(*m.ask("a").split())
    m.ask("b")


def compared_with_what_is_perhaps_asked(m: Any) -> Any:
    return m.ask("a") < "m" < m.ask("x")


def taken_from_an_iterator_perhaps(m: Any) -> Any:
    numbers = iter([1, 2])
    if m.ask("a") == "yes":
        next(numbers)
    m.ask(f"{next(numbers)}")


def replaced_where_nothing_is_to_be_replaced(m: Any) -> Any:
    m.ask("no such".replace("{x}", m.ask("a")))


def sliced_by_steps_of_nothing(m: Any) -> Any:
    m.ask("a")[::0]
    m.ask("b")


def joined_with_a_number(m: Any) -> Any:
    " ".join(["x", int(m.ask("a"))])  # type: ignore[list-item]
    m.ask("b")


def found_in_a_list_of_replies(m: Any) -> Any:
    return m.ask("b") if "yes" in [m.ask("a"), "no"] else m.ask("c")


def matched_by_a_pattern(m: Any) -> Any:
    match m.ask("a"):
        case "yes":
            m.ask("b")
    m.ask("c")


def looped_while_it_says_so(m: Any) -> Any:
    while m.ask("a") == "yes":
        m.ask("b")
    m.ask("c")


def returned_on_the_way_of_a_try(m: Any) -> Any:
    try:
        return int(m.ask("a"))
    except ValueError:
        return m.ask("b")


def raised_behind_what_may_raise(m: Any) -> Any:
    try:
        int(m.ask("a"))
        raise KeyError("k")
    except KeyError:
        m.ask("b")
    except ValueError:
        m.ask("c")


def sorted_by_what_changes_something(m: Any) -> Any:
    seen: list[Any] = []
    list(map(lambda x: seen.append(x), m.ask("a").split()))  # noqa: C417
    m.ask(str(seen))


def stored_in_an_arm(m: Any) -> Any:
    state = {"n": 0}
    if m.ask("a") == "yes":
        state["n"] += 1
    m.ask(f"{state['n']}")


def stored_by_an_inner_function(m: Any) -> Any:
    count = 0

    def more() -> None:
        nonlocal count
        count += 1

    if m.ask("a") == "yes":
        more()
    m.ask(f"{count}")


def deleted_in_an_arm(m: Any) -> Any:
    found = "x"
    if m.ask("a") == "yes":
        del found
    else:
        m.ask(found)


def formatted_by_what_is_not_known(m: Any) -> Any:
    print(f"{5:{m.ask('a')}}")
    m.ask("b")


def formatted_as_a_number_by_a_method(m: Any) -> Any:
    print("{:d}".format(m.ask("a")))
    m.ask("b")


def asked_as_often_as_is_not_known(m: Any) -> Any:
    [m.ask(word) for word in m.ask("a").split()]
    m.ask("b")


def called_without_being_known(m: Any) -> Any:
    m.ask("a")("x")
    m.ask("b")


def shown_though_it_is_of_others(m: Any) -> Any:
    print(m)
    m.ask("b")


def looked_for_attributes(m: Any) -> Any:
    return m.ask("b") if hasattr(m.ask("a"), "nothing") else m.ask("c")


def drawn_from_nothing(m: Any) -> Any:
    random.randint(5, 1)
    m.ask("b")


def drawn_from_something(m: Any) -> Any:
    random.randint(1, 5)
    m.ask("b")


def written_with_keys_that_cannot_be(m: Any) -> Any:
    json.dumps({(1, 2): m.ask("a")})
    m.ask("b")


def written_with_keys(m: Any) -> Any:
    json.dumps({"k": [m.ask("a")]})
    m.ask("b")


def compared_with_a_time_without_a_zone(m: Any) -> Any:
    print(datetime.datetime.now(datetime.timezone.utc) - datetime.datetime.now())  # noqa: UP017
    m.ask("b")


def substituted_by_groups(m: Any) -> Any:
    re.sub("(a)|b", r"\2", m.ask("a"))
    m.ask("b")


def compared_with_a_list_of_another_length(m: Any) -> Any:
    if [m.ask("a")] == []:
        m.ask("b")
    m.ask("c")


def grown_by_more_than_texts(m: Any) -> Any:
    words = same = m.ask("a").split()
    words += [1]
    m.ask(f"{isinstance(same[-1], str)}")


def one_more_than_a_text(m: Any) -> Any:
    words = m.ask("a").split()
    words.append(1)
    " ".join(words)
    m.ask("b")


def shown_as_an_error_of_others(m: Any) -> Any:
    try:
        int("x")
    except ValueError as e:
        m.ask(str(e))


def not_sorted_to_the_end(m: Any) -> Any:
    items: list[Any] = [3, 1, "x", 2]
    try:
        items.sort()
    except TypeError:
        m.ask(str(items))


def used_up_in_part(m: Any) -> Any:
    numbers = iter([1, 2, 3])
    next(filter(lambda n: m.ask("a"), numbers))
    m.ask(f"{next(numbers)}")


def sorted_by_what_is_not_known(m: Any) -> Any:
    one = [1]
    if m.ask("a") == "yes":
        one.append(2)
    m.ask(str(sorted([one, [1, 1]])[1]))


def kept_in_the_order_of_a_chosen_list(m: Any) -> Any:
    first, *rest = ["x", m.ask("a"), "z"]
    m.ask(first + rest[-1])


def left_in_states_that_differ_in_what_a_comprehension_holds(m: Any) -> Any:
    try:
        rows = json.loads(m.ask("a"))
        found = [row for row in rows if any(word in row["link"] for word in ("org", "edu", "gov", "net", "int"))]
    except Exception:
        found = []
    m.ask("b")
    m.ask(str(found))


def left_in_states_that_differ_in_what_is_counted(m: Any) -> Any:
    count = 0
    try:
        row = json.loads(m.ask("a"))
        count += sum([(count := n) * row[n] for n in range(12)])
    except Exception:
        m.ask("b")
    m.ask(str(count))


def left_in_states_that_a_callback_has_changed(m: Any) -> Any:
    seen: list[int] = []

    def note(n: int) -> int:
        seen.append(n)
        return n

    try:
        row = json.loads(m.ask("a"))
        _ = [note(n) * row[n] for n in range(12)]
    except Exception:
        m.ask("b")
    m.ask(str(seen))


def left_in_states_that_differ_in_what_a_function_holds(m: Any) -> Any:
    def score(row: Any) -> int:
        found = 0
        if "org" in row["link"]:
            found += 1
        if "edu" in row["link"]:
            found += 1
        if "gov" in row["link"]:
            found += 1
        if "net" in row["link"]:
            found += 1
        return found

    told: list[Any] = []
    try:
        told += [row for row in json.loads(m.ask("a")) if score(row) > 0]
    except Exception as e:
        told.append(str(e))
    m.ask("b")
    m.ask(str(told))


def left_in_states_that_a_kept_function_shows(m: Any) -> Any:
    kept: list[Any] = []

    def look(row: Any) -> None:
        number = 0
        kept.append(lambda: number)
        for _ in range(4):
            row["link"]
        number = 1
        row["link"]
        number = 0

    row = json.loads(m.ask("a"))
    try:
        look(row)
    except Exception:
        m.ask("b")
    m.ask(str(kept[0]()))


def left_with_a_list_that_only_a_display_holds(m: Any) -> Any:
    number, held = m.ask("a"), [[1]]

    def look(mine: list[int]) -> None:
        for _ in range(4):
            int(number)
        mine.append(2)
        int(number)
        mine.pop()

    def looked() -> int:
        try:
            look(held.pop())
        except ValueError:
            return 0
        return 0

    m.ask(str([held[0], looked()]))


def left_where_it_was_true(m: Any) -> Any:
    number, found = m.ask("a"), 1
    try:
        if number:
            int(number)
        else:
            int(number)
    except ValueError:
        if not number:
            found = 2
    m.ask(str(found))


def left_where_a_flag_no_longer_holds(m: Any) -> Any:
    words, number, last, found = m.ask("a").split(), m.ask("b"), m.ask("c"), 1
    flag = bool(words)
    try:
        int(number)
        words.pop()
        int(last)
    except ValueError:
        if flag:
            found = 1 if words else 2
    m.ask(str(found))


def left_with_another_number_that_is_equal(m: Any) -> Any:
    number, zero, below = m.ask("a"), 0.0, -0.0
    found = zero
    try:
        for _ in range(4):
            int(number)
        found = below
        int(number)
        found = zero
    except ValueError:
        pass
    m.ask(f"found {found}")


def left_with_another_list(m: Any) -> Any:
    number = m.ask("a")
    first: list[str] = []
    second = first
    try:
        for _ in range(4):
            int(number)
        second = []
        int(number)
        second = first
    except ValueError:
        pass
    m.ask("same" if second is first else "other")


def left_with_another_text(m: Any) -> Any:
    number, reply = m.ask("a"), m.ask("b")
    text = reply
    try:
        for _ in range(4):
            int(number)
        text = reply.upper()
        int(number)
        text = reply
    except ValueError:
        pass
    m.ask("same" if text == reply else "other")


def left_with_other_items(m: Any) -> Any:
    number, reply = m.ask("a"), m.ask("b")
    row = {"k": "1", "x": ""} if reply == "yes" else {"k": "1", "z": ""}
    kept = row
    try:
        for _ in range(4):
            int(number)
        row = {"k": "2", "x": ""} if reply == "yes" else {"k": "2", "z": ""}
        int(number)
        row = kept
    except ValueError:
        pass
    m.ask(row["k"])


def repeated_with_another_text(m: Any) -> Any:
    reply = m.ask("a")
    for _ in reply.split():
        pass
    last, found = reply, "same"
    for _ in reply.split():
        if last != reply:
            found = "other"
        last = reply.upper()
    m.ask(found)


def repeated_with_another_list(m: Any) -> Any:
    reply = m.ask("a")
    for _ in reply.split():
        pass
    first, found = [1], "same"
    last = first
    for _ in reply.split():
        if last is not first:
            found = "other"
        last = [1]
    m.ask(found)


def repeated_with_other_items(m: Any) -> Any:
    reply, found = m.ask("a"), "1"
    row = {"k": "1", "x": ""} if reply == "yes" else {"k": "1", "z": ""}
    for _ in reply.split():
        pass
    for _ in reply.split():
        found = row["k"]
        row = {"k": "2", "x": ""} if reply == "yes" else {"k": "2", "z": ""}
    m.ask(found)


def asked_for_what_has_a_label(m: Any) -> Any:
    def labelled(what: str) -> str:
        try:
            return f"Source: {m.ask(what)}"
        except Exception:
            return ""

    return [m.ask(f"{each}!") for each in "ab" if labelled(each)]


def asked_where_it_is_true_already(m: Any) -> Any:
    words = m.ask("a").split(",")
    if words:
        m.ask("b")
    if not f"{words}.":
        m.ask("c")


def emptied_by_a_special_method(m: Any) -> Any:
    words = m.ask("a").split(",")
    for _ in range(2):
        try:
            words.__delitem__(0)
        except Exception:
            continue
    if words:
        m.ask("b")


def emptied_where_it_is_true(m: Any) -> Any:
    words = m.ask("a").split()
    same = words
    if words:
        same.clear()
        m.ask("b" if words else "c")
    else:
        m.ask("b")


Case = tuple[Callable[..., Any], list[Any], list[Any]]
CASES: list[Case] = [
    (asked_in_an_arm_and_behind_it, ["a", "x"], []),
    (asked_in_both_arms, ["a", "x", "x"], []),
    (asked_in_one_arm, ["a", "b"], ["x"]),
    (asked_in_one_arm_behind_what_may_raise, ["a"], ["x", "q"]),
    (left_perhaps, ["a"], ["b"]),
    (returned_in_a_helper, ["b", "a"], []),
    (raised_in_a_helper_behind_a_return, ["a"], ["b"]),
    (raised_perhaps, ["a"], ["b"]),
    (raised_in_both_arms, ["a"], []),
    (may_raise_in_one_arm, ["a"], ["c", "b"]),
    (updated_by_comprehensions, ["a", "b"], []),
    (updated_by_a_reply, ["a"], ["b"]),
    (updated_by_a_comprehension_or_a_reply, ["a"], ["b"]),
    (not_bound_perhaps, ["a"], ["b"]),
    (caught_in_the_state_in_which_it_raised, ["a"], ["1"]),
    (made_a_generator, [], []),
    (copied_twice, ["a", "True False 1"], []),
    (metadata_of_its_own, ["a", "False"], []),
    (fields_that_are_perhaps_given, ["a"], []),
    (caught_by_every_handler, ["a", "c"], ["b"]),
    (caught_by_its_handler, ["a", "c"], ["b"]),
    (caught_by_the_handler_of_another, ["a"], ["b", "c"]),
    (caught_in_one_of_two_states, ["a"], ["b"]),
    (parsed_or_left, ["a", "b"], ["d"]),
    (counted_in_a_handler, ["p", "q", "r", "s", "behind"], []),
    (set_in_a_handler, ["a", "b"], ["c"]),
    (asked_twice_in_rounds, ["before"], ["p", "then p", "q", "then q", "behind"]),
    (
        asked_in_rounds_of_rounds,
        ["px", "no px", "py", "no py", "qx", "no qx", "qy", "no qy"],
        ["behind p", "behind q"],
    ),
    (asked_twice_in_a_comprehension, ["p", "then p", "q", "then q"], ["behind 2"]),
    (checked_in_rounds, ["limit", "p"], ["q"]),
    (asked_while_an_item_is_made, ["p", "q"], ["of it", "of it"]),
    (asked_twice_in_each_round, ["p", "q"], ["then p", "then q", "behind"]),
    (asked_in_a_while_loop, ["p", "q"], ["behind"]),
    (asked_in_rounds_of_a_while_loop, ["px", "no px", "py", "no py", "no qx", "no qy"], ["qx", "qy"]),
    (asked_for_what_is_kept, ["p", "q"], ["gp", "gq"]),
    (grown_perhaps, ["a"], []),
    (grown_perhaps_in_an_arm, ["a"], ["b"]),
    (grown_perhaps_and_chosen, ["a", "b"], []),
    (chosen_where_it_grows, ["a"], []),
    (dicts_in_another_order, ["a"], []),
    (sets_of_one_and_true, ["a"], []),
    (sets_of_one_size, ["a"], []),
    (left_in_a_round_with_a_change, ["p", "q", "q!"], ["really p", "really q"]),
    (left_before_it_was_put_right, ["p"], ["b"]),
    (told_of_a_reply, ["a", "b"], []),
    (formatted_as_a_number, ["a"], ["b"]),
    (formatted_in_a_width, ["a", "b"], []),
    (spread_in_a_dict, ["a"], ["b"]),
    (given_to_who_knows_how_many, ["a"], []),
    (compared_with_what_is_perhaps_asked, ["a"], ["x"]),
    (taken_from_an_iterator_perhaps, ["a"], []),
    (replaced_where_nothing_is_to_be_replaced, ["a", "no such"], []),
    (sliced_by_steps_of_nothing, ["a"], ["b"]),
    (joined_with_a_number, ["a"], ["b"]),
    (found_in_a_list_of_replies, ["a"], ["b", "c"]),
    (matched_by_a_pattern, ["a"], []),
    (looped_while_it_says_so, ["a"], []),
    (returned_on_the_way_of_a_try, ["a"], ["b"]),
    (raised_behind_what_may_raise, ["a"], []),
    (sorted_by_what_changes_something, ["a"], []),
    (stored_in_an_arm, ["a"], []),
    (stored_by_an_inner_function, ["a"], []),
    (deleted_in_an_arm, ["a"], ["x"]),
    (formatted_by_what_is_not_known, ["a"], ["b"]),
    (formatted_as_a_number_by_a_method, ["a"], ["b"]),
    (asked_as_often_as_is_not_known, ["a", "b"], []),
    (called_without_being_known, ["a"], ["b"]),
    (shown_though_it_is_of_others, [], ["b"]),
    (looked_for_attributes, ["a"], ["b", "c"]),
    (drawn_from_nothing, [], ["b"]),
    (drawn_from_something, ["b"], []),
    (written_with_keys_that_cannot_be, ["a"], ["b"]),
    (written_with_keys, ["a", "b"], []),
    (compared_with_a_time_without_a_zone, [], ["b"]),
    (substituted_by_groups, ["a"], ["b"]),
    (compared_with_a_list_of_another_length, ["a", "c"], []),
    (grown_by_more_than_texts, ["a"], []),
    (one_more_than_a_text, ["a"], ["b"]),
    (shown_as_an_error_of_others, [], []),
    (not_sorted_to_the_end, [], []),
    (used_up_in_part, ["a"], []),
    (sorted_by_what_is_not_known, ["a"], []),
    (kept_in_the_order_of_a_chosen_list, ["a", "xz"], []),
    (left_in_states_that_differ_in_what_a_comprehension_holds, ["a", "b"], []),
    (left_in_states_that_differ_in_what_is_counted, ["a"], []),
    (left_in_states_that_a_callback_has_changed, ["a"], []),
    (left_in_states_that_differ_in_what_a_function_holds, ["a", "b"], []),
    (left_in_states_that_a_kept_function_shows, ["a"], ["b"]),
    (left_with_a_list_that_only_a_display_holds, ["a"], []),
    (left_where_it_was_true, ["a"], []),
    (left_where_a_flag_no_longer_holds, ["a", "b", "c"], []),
    (left_with_another_number_that_is_equal, ["a"], []),
    (left_with_another_list, ["a"], []),
    (left_with_another_text, ["a", "b"], []),
    (left_with_other_items, ["a", "b"], []),
    (repeated_with_another_text, ["a"], []),
    (repeated_with_another_list, ["a"], []),
    (repeated_with_other_items, ["a"], []),
    (asked_for_what_has_a_label, ["a", "a!", "b", "b!"], []),
    (asked_where_it_is_true_already, ["a", "b"], []),
    (emptied_by_a_special_method, ["a"], ["b"]),
    (emptied_where_it_is_true, ["a"], ["b"]),
]


@pytest.mark.parametrize(("program", "certain", "possible"), CASES, ids=lambda each: getattr(each, "__name__", ""))
def test_what_is_certain(program: Callable[..., Any], certain: list[Any], possible: list[Any]) -> None:
    found = read(program, Model(lambda question, number: ""))
    assert (sorted(found.certain), sorted(found.possible)) == (sorted(certain), sorted(possible))


def test_a_value_that_stands_for_two_objects_is_not_changed() -> None:
    def program(m: Any) -> Any:
        one, two = [1], [1]
        chosen = one if m.ask("a") == "yes" else two
        chosen.append(2)
        m.ask(str(one))

    found = read(program, Model(lambda question, number: ""))
    assert found.barrier is not None
    assert found.certain == ["a"]


def test_an_error_that_an_engine_gave_is_raised_where_the_program_asks() -> None:
    def program(m: Any) -> Any:
        try:
            return m.ask("a")
        except KeyError:
            return "caught"

    model = Model(lambda question, number: "")
    asks = read(program, model, asker=ModelAsker(may_raise=True)).asks
    assert read(program, model, answers={ask.key: Answer(error=KeyError()) for ask in asks}).value == "caught"


def test_replies_to_calls_in_two_places_may_raise_by_themselves() -> None:
    def program(m: Any) -> Any:
        m.ask("a")
        return m.ask("b")

    def by_a_helper(m: Any) -> Any:
        def one(text: str) -> Any:
            return m.ask(text)

        one("a")
        return one("b")

    for each in (program, by_a_helper):
        found = read(each, Model(lambda question, number: ""), asker=ModelAsker(may_raise=True))
        assert (found.certain, found.possible) == (["a"], ["b"])


def test_two_equal_requests_have_two_replies() -> None:
    def program(m: Any) -> Any:
        return [m.ask("a"), m.ask("a")]

    model = Model(lambda question, number: str(number))
    assert predicted(program, model)[0].value == ["0", "1"]


# --- limits ----------------------------------------------------------------------------------------------------------


def test_no_more_paths_are_told_apart_than_are_kept() -> None:
    def program(m: Any) -> Any:
        for each in range(60):
            if m.ask(each) == "no":
                return each
        return None

    assert len(read(program, Model(lambda question, number: "")).asks) == 41


def endless() -> Any:
    while True:
        pass


def deep(n: int) -> Any:
    return deep(n + 1) if n < 100 else n


@pytest.mark.parametrize(("program", "why"), [(lambda: endless(), "too long"), (lambda: deep(0), "too deeply")])
def test_a_program_that_takes_long_is_left(program: Callable[[], Any], why: str) -> None:
    barrier = read(program).barrier
    assert barrier is not None
    assert why in barrier.what


def test_what_loops_of_unknown_rounds_change_is_found_among_much_else() -> None:
    def program(m: Any, rows: list[list[int]]) -> Any:
        for n in range(10):
            lines = [line.strip() for line in m.ask(n).splitlines()]
        return len(lines) < 0 or len(rows)

    found = read(program, Model(lambda question, number: ""), [[n] for n in range(2500)])
    assert found.barrier is None
    assert len(found.asks) == 10


# --- how a handler shows the error ------------------------------------------------------------------------------------


def by_the_name_of_its_class(m: Any) -> Any:
    told = []
    try:
        int(m.ask("a"))
    except Exception as e:
        told.append(f"{type(e).__name__}: {e}")
    m.ask("z")


def by_the_traceback(m: Any) -> Any:
    text = ""
    try:
        int(m.ask("a"))
    except Exception:
        text = traceback.format_exc()
        traceback.print_exc()
    m.ask("z")
    m.ask(text[-5:])


def by_the_traceback_in_a_file(m: Any) -> Any:
    try:
        int(m.ask("a"))
    except Exception:
        traceback.print_exc(file=io.StringIO())
    m.ask("z")


def by_a_type_of_its_own(m: Any) -> Any:
    def type(each: Any) -> Any:
        raise RuntimeError

    try:
        int(m.ask("a"))
    except Exception as e:
        type(e).__name__  # noqa: B018
    m.ask("z")


SHOWN: list[tuple[Any, list[str]]] = [
    (by_the_name_of_its_class, ["a", "z"]),
    (by_the_traceback, ["a", "z"]),
    (by_the_traceback_in_a_file, ["a"]),
    (by_a_type_of_its_own, ["a"]),
]


@pytest.mark.parametrize(("program", "certain"), SHOWN)
def test_a_handler_that_shows_the_error_holds_nothing_back(program: Any, certain: list[str]) -> None:
    assert read(program, Model(lambda question, number: "y")).certain == certain


def test_a_stream_of_ones_own_may_raise_as_an_error_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream(io.StringIO):
        pass

    monkeypatch.setattr(sys, "stderr", Stream())
    assert read(by_the_traceback, Model(lambda question, number: "y")).certain == ["a"]


def shows_the_classes_of_texts(m: Any) -> Any:
    def noted(*args: Any) -> str:
        return args[0].__class__.__name__ if args and hasattr(args[0], "__class__") else "none"

    said = m.ask(noted("text"))
    m.ask([noted(said), noted("text"), noted(3), noted(m)])


def test_the_name_of_a_text_s_class_is_a_text() -> None:
    """A text may be of a class of LangChain's, which has a name as well."""
    found = read(shows_the_classes_of_texts, Model(lambda question, number: "y"))
    assert found.barrier is None
    asked = read(lambda m: [m.ask("a" + "x".__class__.__name__), m.ask("b")], Model(lambda question, number: "y"))
    assert asked.certain == ["b"] or asked.certain == ["astr", "b"]


# --- any and all -----------------------------------------------------------------------------------------------------


def asks_until_one_says_yes(model: Model) -> Any:
    return any(model.ask(each) == "yes" for each in ["a", "b"])


def asks_behind_what_may_be_no_text(model: Model) -> Any:
    reply = model.ask("first")
    found = all(each not in reply for each in ["x", None])
    return model.ask("second"), found


def asks_with_the_number_of_looks(model: Model) -> Any:
    reply, looks = model.ask("first"), []
    any((looks.append(each), each in reply)[1] for each in ["x", "y"])
    return model.ask("second"), model.ask(len(looks))


def asks_behind_a_sure_item(model: Model) -> Any:
    return model.ask("second") if any(each in ("x", model.ask("first")) for each in ["y", "x"]) else model.ask("third")


@pytest.mark.parametrize(
    ("program", "certain"),
    [
        (asks_until_one_says_yes, ["a"]),
        (asks_behind_what_may_be_no_text, ["first"]),
        (asks_with_the_number_of_looks, ["first", "second"]),
        (asks_behind_a_sure_item, ["first", "second"]),
    ],
)
def test_items_behind_an_unknown_one_may_not_be_looked_at(program: Any, certain: list[Any]) -> None:
    assert read(program, Model(lambda question, number: "yes")).certain == certain


@pytest.mark.parametrize(
    ("draw", "args", "is_certain"),
    [
        (random.sample, ([1, 2], 2), True),
        (random.sample, ([1, 2], 3), False),
        (random.sample, ({1, 2}, 1), False),
        (random.choices, ([1, 2],), True),
        (random.choices, ([],), False),
        (random.choices, ([1, 2], [1]), False),
        (random.gauss, (0, 1), True),
        (random.uniform, ("0", 1), False),
        (random.seed, (7,), True),
        (random.seed, ([7],), False),
        (time.strftime, ("%Y",), True),
        (time.strftime, (5,), False),
        (time.localtime, ("now",), False),
        (secrets.token_hex, (), True),
        (secrets.token_hex, (-1,), False),
        (uuid.uuid4, (), True),
    ],
)
def test_what_is_drawn_at_random_may_raise(draw: Callable[..., Any], args: tuple[Any, ...], is_certain: bool) -> None:
    def program(m: Any) -> Any:
        draw(*args)
        m.ask("a")

    assert read(program, Model(lambda question, number: "")).certain == ["a"] * is_certain


@pytest.mark.parametrize(("count", "is_certain"), [(2, True), (3, False)])
def test_a_sample_by_name_may_raise(count: int, is_certain: bool) -> None:
    def program(m: Any) -> Any:
        random.sample([1, 2], k=count)
        m.ask("a")

    assert read(program, Model(lambda question, number: "")).certain == ["a"] * is_certain


def test_a_sample_of_a_list_of_unknown_length_may_raise() -> None:
    def program(m: Any) -> Any:
        random.sample(m.ask("a").split(), 2)
        m.ask("b")

    assert read(program, Model(lambda question, number: "")).certain == ["a"]

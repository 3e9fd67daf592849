"""Random programs that fill sets, change the sets on some paths and walk them; see random_lists.py."""

from __future__ import annotations

from tests.adapters.reader import random_lists

FILLS = [
    "for x in <list>: seen.add(x)",
    "for x in <list>:\n    other.add(x)\n    if len(other) > 6: other.discard(<item>)",
    "seen = set()\nfor x in <list>: seen.add(x)",
    "other = set(<list>)",
    "for x in <list>:\n    if x not in seen:\n        seen.add(x)\n        xs.append(x)",
    "for x in <list>:\n    third = set()\n    third.update(<list>)\n    xs.append(m.ask(','.join(map(str, third))))",
    "for x in <list>:\n    if jb.ask(str(x)): break\n    other.add(x)",
    "for x in <list>:\n    if jb.ask(str(x)): continue\n    third = set()\n    third |= {<item>, x, 'zz'}\n"
    "    xs.append(m.ask(str(list(third))))",
    "for x in w.ask('a'): third.add(x)",
    "seen = {x for x in <list>}",
    "for x in <list>:\n    try:\n        third = {x, <item>}\n        third.add(m.ask('b'))\n"
    "    except TypeError: seen.add(x)",
]
CHANGES = [
    "seen.add(<item>)", "other.add(<item>)", "seen.discard(<item>)", "other.remove(<item>)", "seen.update(<list>)",
    "other.update(seen)", "seen |= other", "seen -= set(<list>)", "other &= seen", "other ^= set(<list>)",
    "seen.difference_update(<list>)", "other.intersection_update(<list>)", "other.symmetric_difference_update(seen)",
    "seen.clear()", "other.clear()", "seen = other", "other = seen.copy()", "other = set(seen)", "seen = seen | other",
    "other = seen - {<item>}", "other = seen & set(<list>)", "other = seen.union(<list>)", "xs.append(seen.pop())",
    "seen = set()", "other = set()", "if jb.ask('c'): seen.add(<item>)",
    "if jb.ask('e'): other.update(<list>)\nelse: other.update(<list>)",
    "if jb.ask('f'):\n    seen.add('a')\n    seen.add('i')\nelse:\n    seen.add('i')\n    seen.add('a')",
    "try:\n    other.add(<item>)\n    int(m.ask('g'))\nexcept ValueError: other.add(<item>)",
    "try:\n    int(m.ask('h'))\n    seen.add(<item>)\nexcept ValueError: seen.add(<item>)",
    "seen.add(Color.RED)", "seen.discard(Color.RED)", "other |= {tidy}", "other -= {tidy}",
    "seen.difference_update([tidy])", "seen.add(m.ask('j'))", "seen.add([])", "third = frozenset(seen)",
    "for x in <list>:\n    if jb.ask('k'): seen.discard(x)\n    seen.add(x)",
]  # fmt: skip
STIRS = [
    "if jb.ask('d'): stir(seen)",
    "if jb.ask('d'): pass\nelse: stir(seen)",
    "stir(seen)",
    "stir(seen)\nif jb.ask('m'):\n    seen.add('ll')\n    return list(seen)\nm.ask(str(list(seen)))",
    "if jb.ask('n'): pass\nelse:\n    stir(other)\n    return list(other)",
    "stir(seen)\nfor x in range(1):\n    if jb.ask('o'):\n        stir(seen)\n        continue\n"
    "    m.ask(str(list(seen)))",
    "try:\n    stir(other)\n    int(m.ask('p'))\nexcept ValueError: m.ask(str(list(other)))",
    "try:\n    int(m.ask('q'))\n    stir(seen)\n    int(m.ask('r'))\nexcept ValueError: m.ask('no')",
]
"""Changes of the order alone."""

LISTS = [
    "'abcdefghijkl'", "'ihgfe'", "range(0, 40, 8)", "['a', 'i', 'q', 'y']", "words", "[8, 0, 16, 32]", "list(seen)",
    "other", "sorted(other, key=str)", "seen", "xs", "[]", "(f'{x}{x}' for x in 'abcde')", "dict.fromkeys('caeb')",
    "third", "[1, True, 1.0, 'a']", "list(range(9))", "[('a', 1), ('b', 2), ('a', 1)]", "list(other)[:3]", "docs",
]  # fmt: skip
ITEMS = ["'a'", "'i'", "8", "0", "'b'", "('a', 1)", "True", "None", "words[0]", "x", "'ll'", "m.ask('l')", "-1", "-2"]
NUMBERS = ["len(seen)", "len(other)"]
USES = [
    "m.ask('next')", "m.ask(str(list(seen)))", "m.ask(str(list(other)))", "m.ask(','.join(map(str, seen)))",
    "for x in seen: m.ask(str(x))", "for x in other: xs.append(m.ask(str(x)))", "m.ask(str(sorted(other, key=str)))",
    "m.ask(str(list(<list>)))", "m.ask(str(<number>))", "[m.ask(str(x)) for x in other]", "xs = list(seen)[:4]",
    "m.ask(str(next(iter(seen), 0)))", "m.ask(str(<item> in seen))", "m.ask(str(list(third)))",
    "m.ask(str(list(seen | other)))", "m.ask(str(seen == other))",
]  # fmt: skip
FORMS = random_lists.Forms(
    "def stir(s):\n        for y in 'stuvwxyz': s.add(y)\n        for y in 'stuvwxyz': s.discard(y)\n"
    "    xs, seen, other, third, x = [], {'c', 'b', words[0], 'a'}, {7, 15, words[0]}, set(), 'x'",
    "return xs, list(seen), list(other)",
    FILLS, CHANGES + 4 * STIRS, USES, LISTS, ITEMS, NUMBERS,
)  # fmt: skip

"""Random programs with lists and sets that loops over replies fill, as source text."""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.adapters.reader.random_programs import HEADER, INPUTS, MODELS

FILLS = [
    "for x in w.ask('a'): xs.append(x)",
    "for x in w.ask('b'):\n    if x.strip(): ys.append(x)",
    "for x in m.ask('c').split():\n    if x != 'no': xs.append(x)\n    else: ys.append(len(xs))",
    "for x in m.ask('d').split(): seen.add(x)",
    "for x in m.ask('e').split():\n    if x not in seen:\n        seen.add(x)\n        xs.append(x)",
    "for x in w.ask('f'):\n    if jb.ask('g'): xs.append(x)\n    elif x == 'a': break\n    else: ys = xs",
    "for x in xs:\n    ys.append(x)\n    if len(xs) < 4: xs.append(n.ask('h'))",
    "for i, x in enumerate(ys, 1): xs.append(f'{i}: {x}')",
    "for x, y in zip(xs, ys): xs = xs + [x, y]",
    "for x in w.ask('i'):\n    try: seen |= {int(x)}\n    except ValueError: seen.add(x)",
    "for x in w.ask('o'): d[x] = d.get(x, 0) + 1",
    "for x in xs:\n    if x in d: d[x] += 1\n    else: d[x] = 1",
    "for at, x in enumerate(ys):\n    if x not in d: d[x] = 0\n    d[x] += 1 / (at + 60)",
    "for x in w.ask('p'): e[x] += len(x)",
    "for x in xs:\n    if x.strip(): break\n    ys.append(x)",
    "for k, v in d.items():\n    ys.append(k)\n    if jb.ask('r'): d.pop(k); break",
    "for k in d:\n    if k not in seen: xs.append(k)",
    "for x in w.ask('wa'):\n    if x == 'a': return xs, x",
    "for x in xs:\n    if x == 'no': continue\n    return m.ask(str(x)), ys",
    "def first(xs):\n    for x in xs:\n        if str(x).strip(): return x\n    return 'none'\n"
    "m.ask(str(first(<list>)))",
    "def grown(xs):\n    for x in xs:\n        ys.append(x)\n        if x == 'a': return len(ys)\n    else: return ys\n"
    "m.ask(str(grown(<list>)))",
    "def tried(xs):\n    try:\n        for x in xs:\n            if jb.ask(str(x)): return int(x)\n"
    "            seen.add(str(x))\n    except ValueError: return 'bad'\n    finally: ys.append('end')\n"
    "    return m.ask('none')\nxs.append(tried(<list>))",
    "def reached(xs, n=0):\n    for x in xs:\n        n += len(str(x))\n        if n > 2: return n\n    return -n\n"
    "t = reached(<list>)\nm.ask(str(t))",
    "def pair(xs, zs):\n    for x in xs:\n        for z in zs:\n            if x == z: return x, z\n"
    "            d[str(z)] = 1\nm.ask(str(pair(<list>, <list>)))",
    "def asked(xs):\n    for x in xs:\n        if x == 'a': break\n        if m.ask(str(x)) == 'yes': return x\n"
    "    return xs\nys = [asked(<list>)]",
    "for x in m.ask('wb'):\n    if x != 'a': ys.append(x)",
    "d = dict(json.loads(m.ask('wc')) or {})",
]
CHANGES = [
    "xs.append(<item>)", "ys.append(<item>)", "xs += <list>", "ys.extend(<list>)", "xs = ys", "ys = <list>",
    "xs = <list>", "seen.add(<item>)", "seen.update(<list>)", "seen = set(<list>)", "xs.sort()", "ys.sort(key=len)",
    "xs.insert(0, <item>)", "xs.reverse()", "xs.clear()", "ys *= 2", "xs[0] = <item>", "del ys[0]", "xs[1:] = <list>",
    "xs.remove('a')", "seen.discard(<item>)", "it = enumerate(<list>)", "it = zip(<list>, ys)", "it = reversed(xs)",
    "it = iter(ys)", "xs.extend(it)", "ys = tuple(<list>)", "seen -= {'a'}", "d[<item>] = len(xs)",
    "d = dict.fromkeys(<list>, 0)", "d.pop('a', None)", "d.clear()", "d.update({'a': 1})", "e['a'] += 1",
    "e[m.ask('s')] += <number>", "d = dict(e)", "d = {x: len(str(x)) for x in <list>}", "it = map(str, <list>)",
    "it = map(lambda x: x + 'a', xs)", "it = filter(None, <list>)", "it = filter(lambda x: x != 'a', ys)",
    "it = (x.strip() for x in xs)", "it = d.items()", "it = d.values()", "d['a'] = <item>", "e = Counter(<list>)",
    "d = dict(zip(xs, ys))", "seen = seen & set(<list>)", "seen |= set(<list>)",
    "d.setdefault(xs[0] if xs else 'a', 1)", "xs = xs or ['z']", "if not ys: ys = ['b']", "t = <number>",
    "t += <number>", "t = t + t", "t = t * 2", "it = map(lambda x: ys.append(x) or x, xs)",
    "it = (seen.add(str(x)) or x for x in xs)", "it = zip(d.keys(), <list>)", "it = enumerate(d.items())",
    "it = map(str, d.values())", "it = (k for k, v in d.items())", "it = enumerate(it)", "it = zip(it, <list>)",
    "it = sorted(((x, t) for x in xs), key=lambda x: str(x[0]))", "it = sorted(map(lambda x: (str(x), t), ys))",
    "it = sorted(d.items())", "it = e.most_common()", "it = iter(d)", "it = filter(lambda x: seen.add(x), xs)",
]  # fmt: skip
LISTS = [
    "xs", "ys", "xs[:2]", "xs[::-1]", "list(set(xs))", "list(ys)", "sorted(xs)", "sorted(seen)", "list(seen)",
    "ys.copy()", "[x.strip() for x in xs]", "[x for x in ys if x]", "list({x.strip() for x in xs})", "[*xs, *ys]",
    "[*seen, 1]", "list(enumerate(xs))", "list(zip(xs, ys))", "list(dict.fromkeys(xs))", "w.ask('j')",
    "m.ask('k').split()", "[1, 'a']", "list(it)", "xs + ys", "list(x for x in xs)", "[x for x in words if jb.ask(x)]",
    "sorted(ys, key=str.lower)", "list(tuple(xs))", "list(frozenset(xs))", "[str(x) for x in seen]",
    "list(map(str, xs))", "list(map(len, xs))", "list(filter(None, ys))", "[x for x in xs if x if x.strip()]",
    "list(d)", "list(d.values())", "[k for k, v in sorted(d.items(), key=lambda x: x[1], reverse=True)]",
    "sorted(d, key=d.get)", "sorted(xs, key=lambda x: len(x))", "[x[0] for x in xs if x]", "m.ask('t').split('a')",
    "list(range(len(xs)))", "xs[:len(ys)]", "[a for a, b in zip(xs, map(len, xs))]", "list(e)", "e.most_common(2)",
    "re.findall('a|b', m.ask('u'))", "[text[i:i + 2] for i in range(0, len(m.ask('v')), 2)]", "list(seen & set(ys))",
    "list(set(xs) | seen)",
]  # fmt: skip
ITEMS = [
    "'a'", "3", "None", "m.ask('l')", "n.ask('m')", "q.ask('n')", "xs[0]", "ys[-1]", "xs.pop()", "len(xs)", "[1]",
    "(1, xs)", "<number>", "xs[0] if xs else 'a'", "ys[-1] if len(ys) > 0 else 'b'", "m.ask('w').split('a')[0]",
    "m.ask('x').partition('a')[2]", "max(xs, default='a')", "max(d, key=d.get, default='a')", "next(iter(xs), 'a')",
    "next((x for x in xs if x), 'b')", "(re.search('(a)(b)?', m.ask('y')) or re.search('c', 'c')).group()",
]  # fmt: skip
NUMBERS = [
    "len(xs)", "len(<list>) + len(xs)", "sum(map(len, <list>))", "sum(len(x) for x in xs)", "len(xs) / 4",
    "1 / (len(ys) + 1)", "sum(d.values())", "d.get(m.ask('z'), 0)", "e[m.ask('z')]", "n.ask('aa')",
    "n.ask('bb') + n.ask('cc')", "len(xs) / len(ys)", "len(xs) / len(ys) if ys else 0",
    "sum(t for x in xs) / len(xs) if xs else t", "max(len(xs), 1)", "len(ys) / max(len(xs), 1)",
    "round(len(xs) / 3, 1)", "int(len(xs) * 1.3)", "min(t, 5)", "t", "abs(t - len(xs))", "m.ask('dd').count('a')",
    "m.ask('ee').find('a')", "t // 2", "t % 3", "max((len(x) for x in ys), default=0)", "sum(x == 'a' for x in xs)",
    "sum(1 for x in ys if x)", "-t", "float(len(xs))", "len(set(xs) & seen)",
]  # fmt: skip
USES = [
    "m.ask('next')", "m.ask(', '.join(<list>))", 'm.ask(f"{len(<list>)}")', "m.ask(str('a' in seen))",
    "m.ask(str(sorted(<list>)))", "m.ask(str(<list>))", "m.ask(str(len(set(<list>))))", "int(xs[0])",
    "m.ask(' '.join(f'{i}{x}' for i, x in enumerate(<list>)))", "m.ask(str(<list> == <list>))",
    "m.ask(str('a' in xs))", "[x.upper() for x in <list>]", "m.ask('none' if not xs else 'some')",
    "m.ask(str([i + 1 for i, x in it]))", "m.ask('{}'.format(<number>))", "m.ask(format(<number>, '.2f'))",
    "m.ask('%d' % <number>)", "m.ask(str(<number> > 0.5))", "m.ask(str(d))", "m.ask(str(sorted(e.items())))",
    "m.ask(str(any(x for x in <list>)))", "m.ask(str(all(map(len, xs))))", "m.ask(str(0 < <number> < 5))",
    "m.ask(next(it))", "m.ask(','.join(it))", "m.ask(str(d[xs[0]] if xs and xs[0] in d else 0))",
    "m.ask(re.search('(a+)(b)?', m.ask('gg')).group(1))",
    "z = re.search('(a+)(b)?', m.ask('hh'))\nif z: m.ask(z.group(1).upper())",
    "z = re.search('(a+)(b)?', m.ask('ii'))\nif z is not None: m.ask(z.group(2).upper())",
    "z = len(xs)\nxs.clear()\nif z > 0: m.ask(xs[0])", "z = 'a' in d\nd.clear()\nif z: m.ask(str(d['a']))",
    "if xs:\n    m.ask('has')\n    m.ask(xs[0])", "if not xs: m.ask('none')\nelse: m.ask(xs[-1])",
    "if xs:\n    xs.pop()\n    m.ask(xs[0])", "m.ask(str(sum(<list>)))", "m.ask(str(max(<list>)))",
    "'a' in it", "m.ask(str('a' in it))", "for z in it: t = z[1]", "m.ask(str(t))", "xs[1:] = it", "list(it)",
    "m.ask(str([z[1] for z in it]))", "m.ask(format(<number>, 'c'))", "m.ask(str(len(ys)))", "t = sum(map(len, it))",
    "m.ask(str(len(seen)))",
    "m.ask(json.dumps({'a': <list>, 'b': <number>}))", "m.ask(str(len(d) + len(e)))", "m.ask(str(m.ask('jj')[:t]))",
    "z, t = m.ask('kk').split()", "z, *ys = <list>", "z, t = <list>", "z, t = d", "a, b = it", "a, b, c = m.ask('ll')",
    "m.ask(<list>[1])", "m.ask(words[len(xs)])", "m.ask(words[n.ask('mm')])", "m.ask(m.ask('nn').split('a')[1])",
    "m.ask(words[int(m.ask('oo'))])", "t = words.index(m.ask('pp'))", "t = xs.index(<item>)", "m.ask(d[m.ask('qq')])",
    "t = int(float(m.ask('rr')))", "t = round(float(m.ask('ss')))", "if t > 1: raise ValueError(t)", "assert <list>",
    "if xs:\n    xs.clear()\n    raise IndexError(t)", "if 'a' in xs: raise KeyError(m.ask('tt'))", "assert t, <item>",
    "m.ask('uu').split('a', 1).pop(1)", "m.ask(str(json.loads(m.ask('ww'))['a']))",
    "m.ask(json.loads(m.ask('xx'))[0])", "m.ask(re.search('a', m.ask('vv')).group(0))", "m.ask(xs.pop(1))",
]  # fmt: skip


ERRORS = [
    "TypeError", "IndexError", "Exception", "(ValueError, AttributeError)", "ValueError", "LookupError",
    "AssertionError", "(ValueError, IndexError)", "(OverflowError, ValueError)",
]  # fmt: skip


class Forms(NamedTuple):
    """What programs are made of. `start` and `end`: the first and the last line."""

    start: str
    end: str
    fills: list[str]
    changes: list[str]
    uses: list[str]
    lists: list[str]
    items: list[str]
    numbers: list[str]


FORMS = Forms(
    "xs, ys, seen, it, d, e, t = [], [], set(), (), {}, defaultdict(int), 0", "return xs, ys, seen, d, e, t",
    FILLS, CHANGES, USES, LISTS, ITEMS, NUMBERS,
)  # fmt: skip


def source(seed: int, count: int, forms: Forms = FORMS) -> str:
    """A module with so many functions, `program_0` and so on."""
    rnd = random.Random(seed)
    return HEADER + "".join(_program(rnd, number, forms) for number in range(count))


def _program(rnd: random.Random, number: int, forms: Forms) -> str:
    lines = [f"\n\ndef program_{number}({', '.join([*MODELS, *INPUTS])}):", f"    {forms.start}"]
    for _ in range(rnd.randint(3, 8)):
        lines += ["    " + line for line in _statement(rnd, 2, forms)]
    return "\n".join([*lines, f"    {forms.end}"])


def _statement(rnd: random.Random, depth: int, forms: Forms) -> list[str]:
    way = rnd.random()
    if depth and way < 0.12:
        inner = [f"    {line}" for line in _statement(rnd, depth - 1, forms)]
        return [f"if {rnd.choice(['jb.ask(str(len(xs)))', 'xs', 'seen', 'jb.ask(1)'])}:", *inner]
    if depth and way < 0.3:
        both = _statement(rnd, depth - 1, forms) + _statement(rnd, depth - 1, forms)
        inner = [f"    {line}" for line in both]
        error = rnd.choice(ERRORS)
        return ["try:", *inner, f"except {error}:", "    m.ask('caught')"]
    if depth and way < 0.37:
        inner = [f"    {line}" for line in _statement(rnd, depth - 1, forms)]
        return [f"for z in {rnd.choice(['words[:2]', 'w.ask(2)', 'range(2)', 'xs[:2]'])}:", *inner]
    text = rnd.choice(forms.fills if way < 0.6 else forms.changes if way < 0.8 else forms.uses)
    while any(each in text for each in ("<list>", "<item>", "<number>")):
        text = text.replace("<list>", rnd.choice(forms.lists), 1).replace("<item>", rnd.choice(forms.items), 1)
        text = text.replace("<number>", rnd.choice(forms.numbers), 1)
    return text.split("\n")


HELPERS = """

def ask_each(m, xs, mark=""):
    return [m.ask(f"{x}{mark}") for x in xs]


def ask_grown(m, xs, *more):
    xs.append("z")
    return [m.ask(str(x)) for x in (*xs, *more)]


def ask_late(m, xs, n=1, **named):
    xs = [*xs, len(named)]
    for x in xs:
        n = n + 1
        m.ask(f"{x} {n} {len(xs)}")
    return n


def ask_twice(m, xs):
    one = ask_each(m, xs)
    return ask_each(m, unread(lambda: one[:1] + xs), mark="!")


def ask_if(m, xs):
    if m.ask(str(len(xs))) == "yes":
        return ask_each(m, xs)
    return [m.ask(str(x)) for x in xs]


class Asks:
    count = 0

    def each(self, m, xs):
        self.count += 1
        return [m.ask(f"{x} {self.count}") for x in xs]


ASKS = Asks()
"""
UNREAD = ["xs", "ys", "xs + ['n']", "xs.append('h') or xs", "ys.append(len(xs)) or ['i']", "[m.ask('inner'), *xs]",
          "ask_each(m, ['j'])", "list(text)[:2]", "m.ask('k').split()", "ys.clear() or ys"]  # fmt: skip
CALLS = [
    "ask_each(m, <unread>)", "ask_each(m, <unread>, <mark>)", "ask_each(m, mark=<mark>, xs=<unread>)",
    "ask_grown(m, <unread>)", "ask_grown(m, ys, <mark>, *<unread>)", "ask_late(m, <unread>)",
    "ask_late(m, <unread>, k=<mark>)", "ask_twice(m, <unread>)", "ask_if(m, <unread>)", "ASKS.each(m, <unread>)",
    "ASKS.each(m, xs=<unread>)", "ask_each(m, ask_each(m, <unread>))", "ask_each(*<both>)",
    "(ask_each if jb.ask('w') else ask_grown)(m, <unread>)", "[ask_each(m, <unread>), xs]",
]  # fmt: skip
BESIDE = ["xs = ys", "xs = [*ys, 'o']", "ys.append(m.ask('p'))", "xs.append(str(ASKS.count))", "ys = ask_each(m, xs)",
          "if m.ask('q') == 'yes': xs.append('r')", "xs = unread(lambda: [*xs, 's'])", "zs = (xs, ys)"]  # fmt: skip


def source_of_calls(seed: int, count: int) -> str:
    """A module with so many functions, `program_0` and so on, whose calls have arguments that are not read."""
    rnd = random.Random(seed)
    return HEADER + HELPERS + "".join(_calls(rnd, number) for number in range(count))


def _calls(rnd: random.Random, number: int) -> str:
    lines = [
        f"\n\ndef program_{number}({', '.join([*MODELS, *INPUTS])}):",
        "    xs, ys, zs, got = ['a'], ['b'], None, None",
    ]
    for _ in range(rnd.randint(2, 6)):
        if rnd.random() < 0.4:
            lines.append(f"    {rnd.choice(BESIDE)}")
            continue
        text = rnd.choice(CALLS).replace("<mark>", rnd.choice(["'!'", "text", "str(len(xs))", "m.ask('t')"]))
        text = text.replace("<unread>", f"unread(lambda: {rnd.choice(UNREAD)})")
        text = text.replace("<both>", f"(m, unread(lambda: {rnd.choice(UNREAD)}))")
        before = rnd.choice(["got = ", "", "xs = ", "if ys: got = ", "for z in ('u', 'v'): "])
        lines.append(f"    {before}{text}")
    return "\n".join([*lines, "    return xs, ys, zs, got"])

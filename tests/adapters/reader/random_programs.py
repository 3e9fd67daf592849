"""Random programs that ask models, as source text, and random inputs for them.

    text = source(seed, count)        a module with that many functions, `program_0` and so on
    make = inputs(seed)               makes equal arguments each time it is called

An expression is made from a grammar: `<s>` stands for an expression of the kind "s" (a text; see `KINDS`). A rule of
the form "s:: ..." binds a fresh variable of that kind, `$` in the rule; `<^ls>` is evaluated outside of it.
"""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Callable
from typing import Any

KINDS = ("s", "i", "f", "b", "ls", "li", "ds", "dl", "ss", "t", "P", "Q", "D", "M", "any")
"""Text, int, float, bool, lists of these, dict of ints, dict of lists, set of texts, tuple of text and int, a
dataclass, a pydantic model, a document, a message, anything."""

MODELS = {"m": "text", "q": "any", "jb": "bool", "n": "number", "w": "texts", "c": "message"}
"""The models that a program is given, and what they reply."""

INPUTS = {
    "text": "s", "label": "s", "count": "i", "ratio": "f", "flag": "b", "docs": "ls", "words": "ls", "nums": "li",
    "table": "ds", "deep": "dl", "names": "ss", "pair": "t", "person": "P", "model": "Q", "doc": "D", "message": "M",
}  # fmt: skip

HEADER = """
import asyncio
import copy
import dataclasses
import functools
import itertools
import json
import random
import re
from collections import Counter, defaultdict, deque, OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage

from tests.adapters.reader.random_classes import Color, Failure, Note, Pair, Person, State
from tests.adapters.reader.random_contexts import (
    Asked, Noted, choosing, hesitating, noting, sifting, swallowing, telling, turning,
)

LIMIT = 2
NAMES = ["a", "b", "yes"]
RULES = {"a": 1, "yes": 2}


def tidy(x, *rest, sep="-"):
    return sep.join([str(x).strip(), *map(str, rest)])


def first_of(xs, default=None):
    for x in xs:
        return x
    return default


def ask_all(m, xs):
    out = []
    for x in xs:
        out.append(m.ask(x))
    return out


def push(xs, x):
    xs.append(x)
    return xs


def parts(xs, size=2):
    for at in range(0, len(xs), size):
        yield xs[at : at + size]


def kept(xs, x):
    'Texts beside others.'
    least = len(x)
    for at, each in enumerate(xs):
        if at >= LIMIT or len(each) > least:
            low = each.lower()
            if low:
                yield low + x


def checked(x):
    if x == "no":
        raise Failure("no", 1)
    return x


def judged(m, x, limit=LIMIT):
    if limit <= 0:
        return None
    reply = m.ask(x)
    return x if reply == "yes" else judged(m, reply, limit - 1)
"""

LITERALS = {
    "s": ["'a'", "'yes'", "'no'", "''", "'a b'", "'7'", "'Yes '", "'{\"k\": 1}'"],
    "i": ["0", "1", "2", "-1", "3", "LIMIT"],
    "f": ["0.5", "1.0", "-0.0", "2.5"],
    "b": ["True", "False"],
    "ls": ["[]", "['a', 'no']", "NAMES[:]"],
    "li": ["[]", "[2, 0, 1]", "list(range(3))"],
    "ds": ["{}", "{'a': 1, 'b': 0}", "dict(RULES)"],
    "dl": ["{}", "{'a': ['x'], 'yes': []}"],
    "ss": ["set()", "{'a', 'yes'}"],
    "t": ["('a', 1)", "('yes', 0)"],
    "P": ["Person('a', 1)"],
    "Q": ["Note(title='a')"],
    "D": ["Document(page_content='a')"],
    "M": ["HumanMessage('a')", "AIMessage('yes')"],
    "any": ["None", "[]", "Color.RED"],
}

GRAMMAR: dict[str, list[str]] = {
    "s": [
        "m.ask(<s>)", "m.ask(<s>)", "m.ask(<s>)", "m.ask(f'{<V>} {<V>}')", "m.ask(', '.join(<ls>))",
        "c.ask(<s>).content", "<s> + <s>", "<s>.strip().lower()", "<s>.upper()", "f'{<V>}: {<V>}'",
        "f'{<Vi>:>4}|{<Vs>!r}'",
        "<s>[:<i>]", "<s>[<i>]", "<ls>[<i>]", "<s>.replace(<s>, <s>)", "' '.join(<ls>)",
        "', '.join(s:: <s> for $ in <^ls>)", "', '.join(s:: <s> for $ in <^ls> if <b>)", "str(<any>)", "str(<i>)",
        "repr(<s>)", "<P>.name", "<Q>.title", "<D>.page_content", "<M>.content", "<t>[0]", "(<s> if <b> else <s>)",
        "(<s> or <s>)", "(<s> and <s>)", "tidy(<s>, <i>)", "tidy(*<ls>)", "tidy(<s>, sep=<s>)", "checked(<s>)",
        "first_of(<ls>, <s>)", "max(<ls>, key=len)", "min(<ls>, default=<s>)", "json.dumps(<ds>)", "<s>.title()",
        "re.sub('[ab]', <s>, <s>)", "<s>.split('a')[0]", "(lambda x, y=<s>: x + y)(<s>)", "next(iter(<ls>), <s>)",
        "<ls>.pop()", "<s>.partition(' ')[2]", "'%s and %s' % (<s>, <i>)", "'{} {}'.format(<s>, <any>)",
        "(<W> := <s>)", "<dl>.get(<s>, [<s>])[0]", "Color.RED.value", "<s> * 2", "type(<any>).__name__", "str(<ls>)",
        "f'{<Vf>:.2f}'", "next((s:: $ for $ in <^ls> if <b>), <s>)", "getattr(<P>, 'name', <s>)", "<P>.greet(<s>)",
        "dict(zip(<ls>, <ls>)).get(<s>, <s>)", "sorted(<ls>)[0]", "w.ask(<s>)[0]", "Counter(<ls>).most_common(1)[0][0]",
    ],
    "i": [
        "n.ask(<s>)", "n.ask(<s>)", "len(<s>)", "len(<ls>)", "len(<ss>)", "<i> + <i>", "<i> - <i>", "<i> * 2",
        "<i> // 2",
        "<i> % 3", "int(<s>)", "int(m.ask(<s>))", "sum(<li>)", "max(<li>)", "min(<li>, default=0)", "<s>.count('a')",
        "<s>.find(<s>)", "<ls>.index(<s>)", "<ls>.count(<s>)", "<ds>[<s>]", "<ds>.get(<s>, 0)", "<P>.score", "<Q>.rank",
        "<t>[1]", "(<i> if <b> else <i>)", "sum(s:: <i> for $ in <^ls>)", "sum(s:: 1 for $ in <^ls> if <b>)",
        "abs(<i>)",
        "int(<b>)", "<ds>.setdefault(<s>, <i>)", "<ds>.pop(<s>, 0)", "-<i>", "round(<f>)", "<li>[<i>]",
        "divmod(<i>, 2)[1]",
        "functools.reduce(lambda x, y: x + y, <li>, 0)", "(<V0i> := <i>)", "max(<i>, <i>)", "len(<any>)", "ord(<s>[0])",
        "Counter(<ls>)[<s>]", "next(i:: $ for $ in <^li> if <b>)", "len({s:: <s> for $ in <^ls>})", "hash(<i>)",
    ],
    "f": ["float(<i>)", "<i> / 2", "<f> + <i>", "<f> * 0.5", "float(<s>)", "round(<f>, 1)", "sum(<li>) / len(<li>)",
    "<i> / <i>"],
    "b": [
        "jb.ask(<s>)", "jb.ask(<s>)", "m.ask(<s>) == 'yes'", "m.ask(<s>) == 'yes'", "'yes' in m.ask(<s>).lower()",
        "<s> == <s>", "<s> != <s>", "<s> in <ls>", "<s> not in <ls>", "<s> in <ds>", "<s> in <ss>", "<s> in <s>",
        "<i> > <i>",
        "0 <= <i> < <i>", "<s> < <s>", "not <b>", "(<b> and <b>)", "(<b> or <b>)", "bool(<ls>)", "bool(<s>)",
        "<any> is None",
        "<any> is not None", "isinstance(<any>, str)", "isinstance(<any>, (list, dict))", "any(s:: <b> for $ in <^ls>)",
        "all(s:: <b> for $ in <^ls>)", "<s>.startswith(<s>)", "<ls> == <ls>", "<any> == <any>", "<s>.isdigit()",
        "hasattr(<any>, 'name')", "callable(<any>)", "<li> < <li>", "<ss> <= <ss>", "q.ask(<s>)", "<P> == <P>",
        "<any> in <ls>",
        "<ls> is <ls>", "<D> is <D>", "any(<ls>)",
        "any(m.ask(x) == <s> for x in <ls>)", "all(x in m.ask(<s>) for x in <ls>)", "<P>.is_good",
        "isinstance(<P>, Person)", "<i> == <f>",
        "(<b> if <b> else <b>)",
    ],
    "ls": [
        "[<s>, <s>]", "[s:: <s> for $ in <^ls>]", "[s:: <s> for $ in <^ls> if <b>]",
        "[s:: $ for $ in <^ls> if m.ask($) == 'yes']",
        "[s:: m.ask($) for $ in <^ls>]", "[i:: <s> for $ in <^li>]", "<s>.split()", "<s>.split(<s>)", "<ls> + <ls>",
        "<ls>[:<i>]",
        "<ls>[::-1]", "sorted(<ls>)", "sorted(<ls>, key=s:: lambda $: <i>)", "sorted(<ss>)",
        "list(map(s:: lambda $: <s>, <^ls>))",
        "list(filter(s:: lambda $: <b>, <^ls>))", "list(<ds>)", "list(<ds>.keys())", "list(reversed(<ls>))",
        "w.ask(<s>)",
        "list(dict.fromkeys(<ls>))", "<P>.tags", "<Q>.notes", "<dl>.get(<s>, <ls>)", "<dl>[<s>]",
        "<dl>.setdefault(<s>, <ls>)",
        "[*<ls>, <s>]", "(<ls> if <b> else <ls>)", "(<ls> or <ls>)", "push(<ls>, <s>)", "ask_all(m, <ls>)",
        "list(kept(<ls>, <s>))", "[x for p in parts(<ls>) for x in p]", "next(parts(<ls>, <i>), [])",
        "list(<ls>)", "<ls>.copy()",
        "copy.deepcopy(<ls>)", "[f'{i}{x}' for i, x in enumerate(<ls>)]", "[x + y for x, y in zip(<ls>, <ls>)]",
        "<ls> * 2",
        "list(itertools.chain(<ls>, <ls>))", "re.findall('[a-z]', <s>)", "[x for xs in <dl>.values() for x in xs]",
        "list(itertools.islice(<ls>, 2))", "[x for x in <s> if x != 'a']", "sum([<ls>, <ls>], [])", "list(<ss>)",
        "m.ask(<s>).splitlines()",
        "list(itertools.takewhile(s:: lambda $: <b>, <^ls>))", "[y for x in <ls> if (y := m.ask(x)) != 'no']",
        "list(Counter(<ls>))", "sorted(<dl>, key=lambda k: len(<dl>[k]))",
    ],
    "li": [
        "[i:: <i> for $ in <^li>]", "[s:: <i> for $ in <^ls>]", "[i:: $ for $ in <^li> if <b>]",
        "sorted(<li>, reverse=<b>)",
        "<li> + <li>", "list(<ds>.values())", "[<i>, <i>]", "list(range(<i> % 4))", "list(map(len, <ls>))",
        "<li>[<i>:]",
        "[i for i, x in enumerate(<ls>) if m.ask(x) == 'yes']", "list(itertools.accumulate(<li>))",
        "sorted(<li>, key=lambda v: -v)",
    ],
    "ds": [
        "{<s>: <i>}", "{s:: <s>: <i> for $ in <^ls>}", "{**<ds>, <s>: <i>}", "<ds> | <ds>", "dict(zip(<ls>, <li>))",
        "dict(<ds>)",
        "{s:: $: m.ask($) == 'yes' for $ in <^ls>}", "<ds>.copy()", "dict(Counter(<ls>))",
        "{k: v for k, v in <ds>.items() if v}",
        "dict(sorted(<ds>.items()))", "dict(a=<i>, **{<s>: <i>})", "(<ds> if <b> else <ds>)",
    ],
    "dl": ["{<s>: <ls>}", "{**<dl>, <s>: <ls>}", "{s:: $: <ls> for $ in <^ls>}", "{'a': <ls>, 'b': <ls>}",
    "dict(<dl>)", "<dl>.copy()", "{k: v[:1] for k, v in <dl>.items()}"],
    "ss": ["set(<ls>)", "{<s>, <s>}", "<ss> | <ss>", "<ss> - <ss>", "<ss> & set(<ls>)", "{s:: <s> for $ in <^ls>}",
    "<ss>.copy()"],
    "t": ["(<s>, <i>)", "(<s>, <i>)", "max(<ds>.items(), key=lambda kv: kv[1])", "Pair(<s>, <i>)",
    "(<t> if <b> else <t>)",
          "next(enumerate(<ls>))[::-1]", "<s>.partition(<s>)[:2]"],
    "P": ["Person(<s>, <i>)", "Person(<s>, <i>, tags=<ls>)", "Person(name=<s>, score=<i>)",
    "dataclasses.replace(<P>, name=<s>)",
          "(<P> if <b> else <P>)"],
    "Q": ["Note(title=<s>)", "Note(title=<s>, rank=<i>)", "Note(title=<s>, notes=<ls>)",
    "<Q>.model_copy(update={'rank': <i>})"],
    "D": ["Document(page_content=<s>)", "Document(page_content=<s>, metadata={'n': <i>})", "(<D> if <b> else <D>)"],
    "M": ["c.ask(<s>)", "c.ask(<s>)", "HumanMessage(<s>)", "AIMessage(content=<s>)",
    "HumanMessage(content=<s>, name='u')", "<K>"],
    "any": [
        "q.ask(<s>)", "q.ask(<s>)", "q.ask(<any>)", "<s>", "<i>", "<ls>", "<ds>", "<dl>", "<t>", "<P>", "<Q>", "<D>",
        "<M>", "<b>",
        "q.ask(<s>).get(<s>)", "q.ask(<s>).get(m.ask(<s>))", "q.ask(<s>)[<i>]", "q.ask(<s>)['k']", "json.loads(<s>)",
        "(<any> or <any>)", "(<any>, <any>)",
        "[<any>, <any>]", "{'k': <any>, 's': <any>}", "judged(m, <s>)", "first_of(<ls>)", "<dl>.get(<s>)",
        "re.match('a', <s>)",
        "State(text=<s>, docs=<ls>)", "<f>", "list(<any>)", "<any>[<any>]", "<any> + <any>", "<P>.__dict__",
        "<any>.name", "f'{<V>}'",
        "list(zip(<ls>, <li>))", "list(enumerate(<ls>))", "[(x, m.ask(x)) for x in <ls>]", "defaultdict(list)",
        "deque(<ls>)", "<li>",
        "<Q>.model_dump()", "dataclasses.asdict(<P>)", "copy.copy(<any>)", "frozenset(<ls>)",
        "[{'d': x, 'v': m.ask(x)} for x in <ls>]",
        "sorted(<ls>, key=lambda v: m.ask(v))", "max(<ls>, key=lambda v: n.ask(v))", "asyncio", "dict(<any>)", "<ss>",
        "OrderedDict(<ds>)",
        "tuple(<any>)", "(lambda *a, **k: (a, k))(*<ls>, **<ds>)", "<doc_meta>", "copy.deepcopy(<any>)", "[] + <any>",
        "int(<any>)",
    ],
}  # fmt: skip


RISKY = re.compile(
    r">\[|\.pop\(|\)\[0\]|int\(|float\(|index\(|checked|/ |next\(|json.loads|max\(<l|min\(<l|any>[.\[ ]|\.get\(|dict\(<any"  # noqa: E501
)
"""What often raises."""

ASKS = {
    "s": ["m.ask(<s>)", "m.ask(f'{<V>} {<V>}')", "c.ask(<s>).content.strip()", "(m.ask(<s>) if jb.ask(<s>) else <s>)"],
    "i": ["n.ask(<s>)"],
    "b": ["jb.ask(<s>)", "m.ask(<s>) == 'yes'", "n.ask(<s>) > 1", "'yes' in m.ask(<s>).lower()"],
    "ls": ["w.ask(<s>)", "[m.ask(x) for x in <ls>]", "[x for x in <ls> if jb.ask(x)]", "ask_all(m, <ls>)"],
    "M": ["c.ask(<s>)"],
    "any": ["q.ask(<s>)", "m.ask(<s>)", "(q.ask(<s>), m.ask(<s>))"],
}


class Writer:
    """Writes one program. `growing`: lists may grow where the statement stands."""

    def __init__(self, seed: int, *, can_raise: bool = True) -> None:
        self.random = random.Random(seed)
        self.scope: list[tuple[str, str]] = list(INPUTS.items())
        self.numbers = 0
        self.loops = 0
        self.lines: list[str] = []
        self.functions: list[tuple[str, str]] = []
        self.oddity = self.random.choice((0.0, 0.0, 0.005, 0.02)) if can_raise else 0.0
        self.risk = self.random.choice((0.1, 0.3, 1.0))
        self.bound: set[str] = set()
        self.in_lambda = 0

    # --- expressions -------------------------------------------------------------------------------------------------

    def name(self, kind: str) -> str:
        """A variable of a kind, or a literal."""
        names = [name for name, each in self.scope if each == kind]
        return self.random.choice(names) if names else self.random.choice(LITERALS[kind])

    def fresh(self) -> str:
        self.numbers += 1
        return f"v{self.numbers}"

    def atom(self, kind: str) -> str:
        if self.random.random() < self.oddity:
            return self.random.choice(self.scope)[0]
        if self.random.random() < 0.3:
            return self.random.choice(LITERALS[kind])
        return self.name(kind)

    def expression(self, kind: str, depth: int) -> str:
        if depth <= 0 or self.random.random() < 0.3:
            return self.atom(kind)
        rule = self.random.choice(GRAMMAR[kind])
        if self.random.random() > self.risk and RISKY.search(rule):
            rule = self.random.choice(GRAMMAR[kind])
        if self.random.random() < 0.12:
            rule = self.random.choice(ASKS.get(kind, [rule]))
        return self._filled(rule, depth - 1)

    def _filled(self, rule: str, depth: int) -> str:
        outer = re.sub(r"<\^(\w+)>", lambda m: self.expression(m[1], depth), rule)
        found = re.search(r"(\w+):: ", outer)
        saved = list(self.scope)
        if found:
            name = self.fresh()
            outer = outer.replace(found[0], "").replace("$", name)
            self.scope.append((name, found[1]))
            self.scope += [(name, found[1])] * 2
        is_lambda = "lambda" in rule or bool(found)
        self.in_lambda += is_lambda
        made = re.sub(r"<(\w+)>", lambda m: self._part(m[1], depth), outer)
        self.in_lambda -= is_lambda
        self.scope = saved
        return made

    def _part(self, kind: str, depth: int) -> str:
        if kind == "V":
            return self.random.choice(self.scope)[0]
        if kind == "doc_meta":
            return "doc.metadata"
        if kind == "K":
            return self.atom("M")
        if kind[0] == "V":
            name = self.name(kind[-1])
            return name if name.isidentifier() else {"i": "count", "s": "text", "f": "ratio"}[kind[-1]]
        if kind == "W":
            return "label"
        return self.expression(kind, depth)

    # --- statements --------------------------------------------------------------------------------------------------

    def line(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def block(self, indent: int, depth: int, size: int, *, loop: bool = False, lists: bool = True) -> None:
        saved = list(self.scope)
        for _ in range(self.random.randint(1, size)):
            self.statement(indent, depth, loop, lists)
        if self.random.random() < 0.6:
            self.scope = saved

    def statement(self, indent: int, depth: int, loop: bool, lists: bool) -> None:
        choices: list[tuple[float, Callable[..., None]]] = [
            (6, self._assign), (2, self._changed), (1.2, self._augmented), (0.5, self._unpacked), (0.5, self._alias),
            (0.4, self._deleted), (0.3 * self.risk, self._asserted), (0.6, self._evaluated),
        ]  # fmt: skip
        if indent > 1:
            choices += [(0.3, self._raised), (0.3, self._returned)]
        if depth > 0:
            choices += [
                (2.5, self._if), (2, self._for), (0.5, self._while), (1.2, self._try), (0.5, self._match),
                (0.7, self._function), (0.5, self._with),
            ]  # fmt: skip
        if loop:
            choices += [(0.8, self._leave)]
        weights, makers = zip(*choices, strict=True)
        self.random.choices(makers, weights)[0](indent, depth, loop, lists)

    def _assign(self, indent: int, depth: int, loop: bool, lists: bool) -> None:
        kind = self.random.choice(KINDS)
        value = self.expression(kind, self.random.choice((1, 2, 2, 3)))
        own = [name for name, each in self.scope if each == kind]
        name = self.random.choice(own) if own and self.random.random() < 0.3 else self.fresh()
        self.line(indent, f"{name} = {value}")
        self.scope.append((name, kind))

    def _changed(self, indent: int, depth: int, loop: bool, lists: bool) -> None:
        rules = [
            "<Nls>[<i>] = <s>", "<Nds>[<s>] = <i>", "<Nds>[<s>] = <i>", "<Ndl>[<s>] = <ls>", "<Nds>.update(<ds>)",
            "<Nds>.pop(<s>, None)",
            "<Nls>.remove(<s>)", "<Nls>.pop()", "<Nls>.sort()", "<Nls>.reverse()", "<Nss>.add(<s>)",
            "<Nss>.discard(<s>)", "<NP>.name = <s>",
            "<NP>.score = <i>", "<NP>.tags = <ls>", "<NQ>.title = <s>", "<NQ>.rank = <i>",
            "<ND>.metadata[<s>] = <any>", "<ND>.page_content = <s>",
            "<NM>.name = <s>", "<NM>.content = <s>", "<Ndl>[<s>][<i>] = <s>", "<Nls>[<i>:] = <ls>", "<Nls>.clear()",
            "<Nss>.update(<ls>)",
            "<Nds>.setdefault(<s>, <i>)", "<Nli>[<i>] = <i>", "<Nls>.sort(key=lambda v: n.ask(v))", "<Nds>.clear()",
            "<NM>.content += <s>",
        ]  # fmt: skip
        if lists:
            rules += ["<Nls>.append(<s>)"] * 6 + [
                "<Nls>.extend(<ls>)", "<Nls>.insert(<i>, <s>)", "<NP>.tags.append(<s>)", "<NQ>.notes.append(<s>)",
                "<Nli>.append(<i>)",
                "<Ndl>.setdefault(<s>, []).append(<s>)", "<Ndl>[<s>].append(<s>)", "<dl>[<s>] += <ls>",
                "push(<Nls>, <s>)", "<Ndl>.setdefault(m.ask(<s>), []).append(<s>)", "<Ndl>[m.ask(<s>)] = [<s>]",
                "[<Ndl>.setdefault(x, []).append(m.ask(x)) for x in <ls>[:]]", "<Ndl>.update(<dl>)",
            ]  # fmt: skip
        rule = self.random.choice(rules)
        self.line(indent, self._targets(rule))

    def _targets(self, rule: str) -> str:
        made = re.sub(r"<N(\w+)>", lambda m: self.name(m[1]), rule)
        return self._filled(made, 2)

    def _augmented(self, indent: int, depth: int, loop: bool, lists: bool) -> None:
        rules = ["<Vs> += <s>", "<Vi> += <i>", "<Vi> -= 1", "<NP>.score += <i>", "<Nds>[<s>] += <i>",
            "<Nls>[<i>] += <s>", "<Vi> *= 2",
                 "<Nss> |= {<s>}", "<Nss> -= {<s>}", "<Vf> /= <i>", "<NP>.name += <s>", "<Nds> |= <ds>"]  # fmt: skip
        if lists:
            rules += ["<Nls> += [<s>]", "<Nls> += <ls>", "<NP>.tags += <ls>"]
        made = self._targets(self.random.choice(rules))
        if not re.match(r"[\[{(]|set\(|dict\(|list\(", made):
            self.line(indent, made)

    def _unpacked(self, indent: int, depth: int, loop: bool, lists: bool) -> None:
        one, two = self.fresh(), self.fresh()
        rule, kinds = self.random.choice([
            ("{}, {} = <t>", "s i"), ("{}, *{} = <ls>", "s ls"), ("{}, {} = <ls>", "s s"), ("({}, {}) = <s>, <i>",
            "s i"),
            ("*{}, {} = <ls>", "ls s"), ("{}, {} = <s>, <s>", "s s"), ("{}, {} = <any>", "any any"),
            ("{} = {} = <ls>", "ls ls"),
        ])  # fmt: skip
        self.line(indent, self._filled(rule, 2).replace("{}", one, 1).replace("{}", two, 1))
        self.scope += zip((one, two), kinds.split(), strict=True)

    def _alias(self, indent: int, depth: int, loop: bool, lists: bool) -> None:
        name, kind = self.random.choice(self.scope)
        alias = self.fresh()
        self.line(indent, f"{alias} = {name}")
        self.scope.append((alias, kind))

    def _deleted(self, indent: int, depth: int, loop: bool, lists: bool) -> None:
        rules = ["del <Nds>[<s>]", "del <Nls>[<i>]", "del <Nls>[:<i>]", "del <Nls>[:1]", "del <V>"]
        self.line(indent, self._targets(self.random.choice(rules)))

    def _asserted(self, indent: int, depth: int, loop: bool, lists: bool) -> None:
        self.line(indent, self._filled(self.random.choice(["assert <b>", "assert <b>, <s>"]), 2))

    def _evaluated(self, indent: int, depth: int, loop: bool, lists: bool) -> None:
        rule = self.random.choice(["print(<any>)", "<any>", "m.ask(<s>)", "pass", "print(f'{<V>}', <s>)", "<b>"])
        self.line(indent, self._filled(rule, 2))

    def _raised(self, indent: int, depth: int, loop: bool, lists: bool) -> None:
        rule = self.random.choice(
            ["raise ValueError(<s>)", "raise KeyError(<s>)", "raise Failure(<s>, <i>)", "raise ValueError"]
        )
        self.line(indent, self._filled(rule, 1))

    def _returned(self, indent: int, depth: int, loop: bool, lists: bool) -> None:
        self.line(indent, f"return {self.expression(self.random.choice(KINDS), 2)}")

    def _leave(self, indent: int, depth: int, loop: bool, lists: bool) -> None:
        self.line(indent, self.random.choice(("break", "continue", "continue")))

    def _if(self, indent: int, depth: int, loop: bool, lists: bool) -> None:
        self.line(indent, f"if {self.expression('b', 2)}:")
        self.block(indent + 1, depth - 1, 3, loop=loop, lists=lists)
        if self.random.random() < 0.25:
            self.line(indent, f"elif {self.expression('b', 2)}:")
            self.block(indent + 1, depth - 1, 2, loop=loop, lists=lists)
        if self.random.random() < 0.5:
            self.line(indent, "else:")
            self.block(indent + 1, depth - 1, 3, loop=loop, lists=lists)

    def _for(self, indent: int, depth: int, loop: bool, lists: bool) -> None:
        if self.loops >= 2:
            return self._assign(indent, depth, loop, lists)
        self.loops += 1
        one, two = self.fresh(), self.fresh()
        rule, kinds, is_live = self.random.choice([
            ("{} in <Nls>", "s", True), ("{} in list(<ls>)[:4]", "s", False), ("{} in <Nls>[:4]", "s", False),
            ("{}, {} in enumerate(list(<ls>)[:4])", "i s", False), ("{} in range(<i> % 4)", "i", False),
            ("{}, {} in list(<ds>.items())", "s i", False), ("{}, {} in <Nds>.items()", "s i", True),
            ("{} in sorted(<ss>)", "s", False),
            ("{}, {} in zip(<Nls>, <Nli>)", "s i", True), ("{} in <Nds>", "s", True), ("{} in <s>[:4]", "s", False),
            ("{} in <Nss>", "s", True),
        ])  # fmt: skip
        made = self._filled(re.sub(r"<N(\w+)>", lambda m: self.name(m[1]), rule), 1)
        self.line(indent, "for " + made.replace("{}", one, 1).replace("{}", two, 1) + ":")
        saved = list(self.scope)
        self.scope += zip((one, two), kinds.split(), strict=False)
        self.block(indent + 1, depth - 1, 4, loop=True, lists=lists and not is_live)
        if self.random.random() < 0.5:
            self.scope = saved
        if self.random.random() < 0.2:
            self.line(indent, "else:")
            self.block(indent + 1, depth - 1, 2, loop=loop, lists=lists)
        self.loops -= 1
        return None

    def _while(self, indent: int, depth: int, loop: bool, lists: bool) -> None:
        if self.loops >= 2:
            return self._assign(indent, depth, loop, lists)
        self.loops += 1
        count = self.fresh()
        self.line(indent, f"{count} = 0")
        self.line(
            indent,
            f"while {count} < 3 and {self.expression('b', 2)}:"
            if self.random.random() < 0.6
            else f"while {count} < 3:",
        )
        self.line(indent + 1, f"{count} += 1")
        self.block(indent + 1, depth - 1, 3, loop=True, lists=lists)
        if self.random.random() < 0.2:
            self.line(indent, "else:")
            self.block(indent + 1, depth - 1, 2, loop=loop, lists=lists)
        self.loops -= 1
        return None

    def _try(self, indent: int, depth: int, loop: bool, lists: bool) -> None:
        self.line(indent, "try:")
        self.block(indent + 1, depth - 1, 3, loop=loop, lists=lists)
        kinds = ["ValueError", "Exception", "(KeyError, IndexError)", "LookupError", "Failure", "TypeError"]
        handlers = self.random.sample(kinds, self.random.choice((1, 1, 2)))
        has_final = self.random.random() < 0.25
        if has_final and self.random.random() < 0.3:
            handlers = []
        for each in handlers:
            name = self.fresh()
            self.line(indent, f"except {each} as {name}:" if self.random.random() < 0.4 else f"except {each}:")
            if self.lines[-1].endswith(f"as {name}:") and self.random.random() < 0.7:
                say = self.random.choice(
                    [f"label = str({name})", f"label = type({name}).__name__", f"label = {name}.args", "raise"]
                )
                self.line(indent + 1, say)
            self.block(indent + 1, depth - 1, 2, loop=loop, lists=lists)
        if handlers and self.random.random() < 0.25:
            self.line(indent, "else:")
            self.block(indent + 1, depth - 1, 2, loop=loop, lists=lists)
        if has_final:
            self.line(indent, "finally:")
            self.block(indent + 1, depth - 1, 2, loop=False, lists=lists)

    def _match(self, indent: int, depth: int, loop: bool, lists: bool) -> None:
        self.line(indent, f"match {self.expression('any', 2)}:")
        patterns = ["'yes' | 'no'", "None", "str()", "[x0, y0]", "{'k': x0}", "Person(name='a')", "int(x0)",
            "(x0, 1)", "Document(page_content=x0)",
                    "list() as x0", "bool()"]  # fmt: skip
        for each in self.random.sample(patterns, self.random.choice((1, 2, 3))):
            self.line(
                indent + 1,
                f"case {each}:" if self.random.random() < 0.8 else f"case {each} if {self.expression('b', 1)}:",
            )
            self.block(indent + 2, depth - 1, 2, loop=loop, lists=lists)
        if self.random.random() < 0.7:
            self.line(indent + 1, "case _:")
            self.block(indent + 2, depth - 1, 2, loop=loop, lists=lists)

    def _with(self, indent: int, depth: int, loop: bool, lists: bool) -> None:
        model = self.random.choice(list(MODELS))
        name = self.fresh()
        context = self.random.choice([
            "contextlib.nullcontext()", f"telling({model}, <s>)", f"telling({model}, <s>, last=<s>)",
            "turning(<s>)", "turning()", f"choosing(<s>, {model})", f"Asked({model})", f"sifting(<ls>, {model})",
            f"hesitating({model})",
            "noting(<ls>, <s>)", "swallowing(<ls>)", "Noted(<ls>)", "Noted(<ls>, swallows=<b>)",
        ])  # fmt: skip
        self.line(indent, f"with {self._filled(context, 1)} as {name}:")
        if not context.startswith(("noting", "swallowing", "Noted")):
            self.scope.append((name, "s"))
        self.block(indent + 1, depth - 1, 2, loop=loop, lists=lists)

    def _function(self, indent: int, depth: int, loop: bool, lists: bool) -> None:
        name, parameter = f"f{self.fresh()}", self.fresh()
        rest = self.random.choice(["", ", *rest", ", k=1", ", *, k='a'", ", **kw", f", d={self.atom('ls')}"])
        self.line(indent, f"def {name}({parameter}{rest}):")
        saved, loops, own = (
            list(self.scope),
            self.loops,
            [n for n, k in self.scope if k in ("s", "i") and n not in INPUTS],
        )
        self.loops = max(self.loops, 1)
        del own
        assigned = len(self.lines)
        self.scope = [*self.scope, *[(parameter, "s")] * 3]
        self.block(indent + 1, min(depth - 1, 1), 3, lists=lists)
        self.line(indent + 1, f"return {self.expression('s', 2)}")
        if self.random.random() < 0.5:  # what it assigns to is of the function around it
            names = {m[1] for each in self.lines[assigned:] if (m := re.match(r"\s*(\w+) (?:[-+*/|]?=) ", each))}
            known = sorted(names & {n for n, _ in saved if n not in (parameter, "k", "d")})
            if known:
                self.lines.insert(assigned, "    " * (indent + 1) + f"nonlocal {', '.join(known)}")
        self.scope, self.loops = saved, loops
        used = self.random.choice([
            "{r} = {f}(<s>)", "{r} = [{f}(x) for x in <ls>]", "{r} = list(map({f}, <ls>))", "{r} = {f}(<s>) + {f}(<s>)",
            "{r} = sorted(<ls>, key={f})", "{r} = {f}(*<ls>)", "{r} = ', '.join({f}(x) for x in <ls>)",
            "{r} = functools.partial({f}, <s>)()",
        ])  # fmt: skip
        result = self.fresh()
        self.line(indent, self._filled(used.replace("{f}", name).replace("{r}", result), 1))
        self.scope.append((result, "s" if "(<s>)" in used or "join" in used else "ls"))

    def program(self, name: str) -> str:
        """The source of one function."""
        parameters = ", ".join([*MODELS, *INPUTS])
        self.line(0, f"def {name}({parameters}):")
        self.line(1, "import contextlib") if self.random.random() < 0.05 else None
        for _ in range(self.random.randint(2, 7)):
            self.statement(1, 3, False, True)
        names = self.random.sample(self.scope, min(len(self.scope), self.random.randint(1, 4)))
        self.line(
            1,
            "return "
            + ", ".join(each for each, _ in names)
            + self.random.choice(("", ",", f", {self.expression('any', 1)}")),
        )
        return "\n".join(self.lines)


def _is_python(text: str) -> bool:
    try:
        compile(text, "<program>", "exec")
    except SyntaxError:
        return False
    return True


def source(seed: int, count: int) -> str:
    """A module of programs."""
    made, number = [HEADER, "import contextlib\n"], 0
    while len(made) < count + 2:
        text = Writer(seed * 1_000_003 + number).program(f"program_{len(made) - 2}")
        number += 1
        if _is_python(text):
            made.append(text)
    return "\n\n".join(made) + "\n"


def inputs(seed: int) -> Callable[[], dict[str, Any]]:
    """What makes the arguments of a program, besides the models."""

    def make() -> dict[str, Any]:
        from langchain_core.documents import Document
        from langchain_core.messages import AIMessage, HumanMessage

        from tests.adapters.reader.random_classes import Note, Person

        rnd = random.Random(seed)
        texts = ["a", "b", "yes", "no", "", "a b c", "7", "Yes", "x\ny", '{"k": [1]}']

        def some(most: int) -> list[str]:
            return [rnd.choice(texts) for _ in range(rnd.randint(most > 3, most))]

        docs, tags = some(4), some(2)
        names = set(some(5)) | {"a"}
        names.discard(rnd.choice(texts))
        found: dict[str, Any] = {
            "text": rnd.choice(texts), "label": rnd.choice(texts), "count": rnd.randint(-1, 4),
            "ratio": rnd.choice([0.5, -0.0, 3.25]),
            "flag": rnd.random() < 0.5, "docs": docs, "words": some(3), "nums": [rnd.randint(-2,
            5) for _ in range(rnd.randint(0, 4))],
            "table": {text: rnd.randint(0, 3) for text in some(3)}, "deep": {text: some(2) for text in some(2)},
            "names": names,
            "pair": (rnd.choice(texts), rnd.randint(0, 2)), "person": Person(rnd.choice(texts), rnd.randint(0, 3),
            tags),
            "model": Note(title=rnd.choice(texts), notes=some(2)), "doc": Document(page_content=rnd.choice(texts),
            metadata={"n": 1}),
            "message": rnd.choice([HumanMessage, AIMessage])(rnd.choice(texts)),
        }  # fmt: skip
        if rnd.random() < 0.3:
            found["words"] = docs
        if rnd.random() < 0.3:
            found["deep"]["a"] = tags
        if rnd.random() < 0.2:
            found["deep"]["docs"] = docs
        if rnd.random() < 0.1:
            found["doc"].metadata["docs"] = docs
        return found

    return make


def shown(text: str, name: str) -> str:
    """One function of a module."""
    found = re.search(rf"^def {name}\(.*?(?=^def |\Z)", text, re.MULTILINE | re.DOTALL)
    return textwrap.dedent(found[0]) if found else ""

"""Random functions over objects whose use leaves traces, as source text, and snapshots that show the traces.

text = effects_source(seed, count)      a module of classes, objects and functions `effect_0(m, ...)` and so on
before = Snapshot(module)
...
before.changes()                        what has changed since
"""

from __future__ import annotations

import collections
import contextvars
import functools
import itertools
import logging
import operator
import queue
import random
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

from pydantic.fields import FieldInfo

HEADER = """
import abc, asyncio, builtins, collections, contextlib, contextvars, copy, dataclasses, enum, functools, io, itertools
import json, logging, math, operator, queue, random, re, string, sys, threading, types, typing
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

import pydantic
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import PromptTemplate
from pydantic import BaseModel

COUNTS = Counter()
LOG = []


def hit(name, value=None):
    COUNTS[name] += 1
    return value


def hidden(name, value=None):
    LOG.append(name)
    return value


exec("def unread(name, value=None):\\n    LOG.append(name)\\n    return value")


def counting_iterator():
    for each in (1, 2, 3):
        hit("generator")
        yield each


def factory():
    return hit("factory", [])


def make_closure():
    seen = []

    def closure(x=None):
        seen.append(x)
        return x

    return closure


def with_default(x, kept=[]):
    kept.append(x)
    return kept


def decorated(f):
    @functools.wraps(f)
    def inner(*args, **kwargs):
        hit("decorated")
        return f(*args, **kwargs)

    return inner


@decorated
def wrapped(x=None):
    return x


@functools.lru_cache
def cached(x=1):
    return hit("cached", x)


@functools.singledispatch
def dispatched(x):
    return hit("dispatched", x)


@contextlib.contextmanager
def context():
    hit("enter")
    yield 1
    hit("exit")


def global_append(x=None):
    HIST.append(x)
    return HIST


def global_rebound(x=None):
    global LAST
    LAST = x
    return x


class Meta(type):
    def __call__(cls, *args, **kwargs):
        hit("Meta.__call__")
        return super().__call__(*args, **kwargs)

    def __instancecheck__(cls, other):
        return hit("Meta.__instancecheck__", True)

    def __subclasscheck__(cls, other):
        return hit("Meta.__subclasscheck__", True)

    def __getattr__(cls, name):
        return hit("Meta.__getattr__", 1)

    def __eq__(cls, other):
        return hit("Meta.__eq__", True)

    def __hash__(cls):
        return hit("Meta.__hash__", 1)

    def __iter__(cls):
        return hit("Meta.__iter__", iter([1]))

    def __or__(cls, other):
        return hit("Meta.__or__", int)

    def __getitem__(cls, at):
        return hit("Meta.__getitem__", 1)


class WithMeta(metaclass=Meta):
    items = []


class Client:
    class_items = []

    def __init__(self):
        self.rows, self.count, self.inner = [], 0, None

    def get(self, *args):
        self.rows.append(args)
        return 1

    def index(self, *args, **kwargs):
        self.count += 1
        return 1

    def copy(self):
        return hit("copy", self)

    def replace(self, *args):
        LOG.append("replace")
        return "a"

    def pop(self, *args):
        return self.rows.pop() if self.rows else unread("pop")

    def update(self, **kwargs):
        self.__dict__.update(kwargs)

    def keys(self):
        return hit("keys", ["a"])

    def items(self):
        return hidden("items", [("a", 1)])

    def strip(self):
        return unread("strip", "a")

    def invoke(self, *args):
        return hit("invoke", "a")

    @property
    def value(self):
        return hit("value", 1)

    @functools.cached_property
    def once(self):
        return hit("once", 1)

    @classmethod
    def make(cls):
        cls.class_items.append(1)
        return cls()

    @staticmethod
    def static(x=None):
        return hit("static", x)


class Descriptor:
    def __get__(self, owner, kind=None):
        return hit("Descriptor.__get__", 1)

    def __set__(self, owner, value):
        hit("Descriptor.__set__")


class Described:
    x = Descriptor()
    name = functools.cached_property(lambda self: hit("name", "a"))


class Checked(BaseModel):
    a: int = 1
    b: list = pydantic.Field(default_factory=factory)

    @pydantic.field_validator("a")
    @classmethod
    def check(cls, value):
        return hit("validator", value)

    @property
    def total(self):
        return hit("total", self.a)


class Post(BaseModel):
    a: int = 1

    def model_post_init(self, context):
        hit("post_init")


class Clean(BaseModel):
    a: int = 1
    b: list = []


@dataclass
class Made:
    a: Any = 1
    b: list = field(default_factory=factory)


@dataclass
class PostMade:
    a: Any = 1

    def __post_init__(self):
        COUNTS["__post_init__"] += 1


@dataclass
class Plain:
    a: Any = 1
    b: list = field(default_factory=list)

    def grow(self, x=1):
        self.b.append(x)
        return self


class Error(Exception):
    def __init__(self, *args):
        hit("Error.__init__")
        super().__init__(*args)

    def __str__(self):
        return hit("Error.__str__", "a")


class QuietError(Exception):
    pass


class Level(enum.Enum):
    LOW = 1
    HIGH = 2
    seen = enum.nonmember([])

    @property
    def label(self):
        self.seen.append(self)
        return "a"

    @classmethod
    def _missing_(cls, value):
        return hit("_missing_", cls.LOW)


class Base(abc.ABC):
    @classmethod
    def __subclasshook__(cls, other):
        return hit("__subclasshook__", True)


class Finalized:
    def __init__(self, *args):
        pass

    def __del__(self):
        COUNTS["__del__"] += 1


class Handler(logging.Handler):
    def emit(self, record):
        hit("emit")
        record.getMessage()


LAST = None
HIST = [1, "a"]
G = {"all": HIST, "a": {"b": [1]}, "t": (HIST, 1)}
TABLE = {"a": 1, "b": 2}
SET = {1, 2}
DEQUE = deque([1, 2, 3])
QUEUE = queue.Queue()
QUEUE.put(1)
QUEUE.put(2)
IT = iter([1, 2, 3])
GEN = counting_iterator()
ZIP = zip([1, 2], counting_iterator())
MAP = map(hit, ["a", "b"])
COUNT = itertools.count()
CYCLE = itertools.cycle([1, 2])
PARTIAL = functools.partial(hit, "partial")
HIDDEN = functools.partial(LOG.append)
BOUND = LOG.append
POP = HIST.pop
SETTER = functools.partial(operator.setitem, TABLE, "z")
CLOSURE = make_closure()
DD = defaultdict(factory, {"a": [1]})
LOCK = threading.Lock()
VAR = contextvars.ContextVar("VAR", default=0)
FILE = io.StringIO("a\\nb\\n")
RANDOM = random.Random(1)
CLIENT = Client()
CLIENT.inner = CLIENT
CLIENTS = types.SimpleNamespace(es=CLIENT, jobs=QUEUE, rows=HIST)
DESCRIBED = Described()
CHECKED = Checked(a=1, b=HIST)
CLEAN = Clean(b=[1])
PLAIN = Plain(1, HIST)
MADE = Made(1, [CLIENT])
WITH_META = WithMeta()
CHAIN = ChainMap(TABLE, {"q": 1})
USER = UserDict(TABLE)
LOGGER = logging.getLogger("reader.effects")
LOGGER.propagate = False
LOGGER.handlers[:] = [Handler()]
MODULE = types.ModuleType("loud_module")
MODULE.jobs = QUEUE
MODULE.rows = HIST
MODULE.client = CLIENT
MODULE.__getattr__ = lambda name: hit("module", 1)
DOC = Document(page_content="a", metadata={"rows": HIST, "client": CLIENT})
MESSAGE = AIMessage("a", additional_kwargs={"rows": HIST})
PROMPT = PromptTemplate.from_template("{a}").partial(a=factory)
TEMPLATE = string.Template("$a")
ERROR = QuietError(HIST)
LIST_OF = [CLIENT, HIST, IT]
TUPLE_OF = (CLIENT, HIST)
"""

BASES = ["", "str", "int", "float", "list", "dict", "set", "tuple", "Exception", "BaseModel", "Client", "deque",
    "OrderedDict",
         "bytes", "Document", "HumanMessage", "enum.Enum", "@dataclass", "NamedTuple", "abc.ABC",
         "TypedDict"]  # fmt: skip

DUNDERS: dict[str, tuple[str, str]] = {
    "len": ("", "1"), "bool": ("", "True"), "hash": ("", "1"), "str": ("", "'a'"), "repr": ("", "'a'"), "iter": ("",
    "iter([1])"),
    "next": ("", "1"), "int": ("", "1"), "float": ("", "1.0"), "index": ("", "1"), "neg": ("", "1"), "abs": ("", "1"),
    "enter": ("", "self"), "exit": (", *a", "None"), "reversed": ("", "iter([1])"), "copy": ("", "self"),
    "deepcopy": (", memo", "self"),
    "fspath": ("", "'a'"), "format": (", spec", "'a'"), "contains": (", x", "True"), "getitem": (", k", "1"),
    "setitem": (", k, v", "None"),
    "delitem": (", k", "None"), "call": (", *a, **k", "1"), "eq": (", o", "True"), "ne": (", o", "False"),
    "lt": (", o", "True"),
    "gt": (", o", "True"), "add": (", o", "1"), "radd": (", o", "1"), "iadd": (", o", "self"), "or": (", o", "1"),
    "ror": (", o", "1"),
    "mod": (", o", "1"), "rmod": (", o", "1"), "mul": (", o", "1"), "getattr": (", n", "1"), "getattribute": (", n",
    "1"),
    "setattr": (", n, v", "None"), "missing": (", k", "1"), "bytes": ("", "b'a'"), "round": (", *a", "1"),
    "length_hint": ("", "1"),
    "dir": ("", "['a']"), "reduce_ex": (", n", "(int, ())"), "getstate": ("", "{}"), "init": (", *a, **k", "None"),
    "del": ("", "None"),
    "post_init": (", *a", "None"), "set_name": (", *a", "None"), "class_getitem": (", k", "1"),
    "init_subclass": (", **k", "None"),
    "instancecheck": (", o", "True"), "get": (", *a", "1"), "set": (", *a", "None"), "await": ("", "iter([])"),
    "sizeof": ("", "1"),
    "and": (", o", "1"), "sub": (", o", "1"), "truediv": (", o", "1"), "ge": (", o", "True"), "le": (", o", "True"),
    "index_": ("", "1"),
}  # fmt: skip


def _words(text: str) -> list[str]:
    return text.split()


OBJECTS = _words(
    "HIST G TABLE SET DEQUE QUEUE IT GEN ZIP MAP COUNT CYCLE PARTIAL HIDDEN BOUND POP SETTER CLOSURE DD LOCK VAR "
    "FILE RANDOM CLIENT CLIENTS DESCRIBED CHECKED CLEAN PLAIN MADE WITH_META CHAIN USER LOGGER MODULE DOC MESSAGE "
    "PROMPT TEMPLATE ERROR LIST_OF TUPLE_OF Level.LOW CLIENT.inner CLIENTS.es CLIENTS.jobs MODULE.jobs "
    "MODULE.rows MODULE.client G['all'] G['a']['b'] DOC.metadata"
)
CLASSES = _words(
    "Client Checked Post Clean Made PostMade Plain Error QuietError Level Base Finalized WithMeta Described "
    "Handler Document AIMessage PromptTemplate"
)
FUNCTIONS = _words(
    "hit hidden unread counting_iterator factory with_default wrapped cached dispatched context global_append "
    "global_rebound CLOSURE PARTIAL HIDDEN BOUND POP SETTER CLIENT.get CLIENT.index CLIENT.static Client.make "
    "Client.static QUEUE.get QUEUE.put LOG.append HIST.append HIST.pop DEQUE.popleft TABLE.pop TABLE.update "
    "SET.add FILE.read FILE.write RANDOM.random VAR.set LOCK.acquire IT.__next__ GEN.send G['all'].append "
    "CLIENTS.jobs.get MODULE.jobs.get MODULE.anything PLAIN.grow operator.setitem operator.iadd setattr delattr "
    "exec eval open __import__ globals vars dir id input sys.stdout.write LOGGER.info logging.info random.random "
    "random.seed print functools.partial(hit) functools.partial(BOUND, 1) TABLE.setdefault HIST.sort HIST.extend "
    "HIST.clear HIST.reverse DD.__getitem__ CLEAN.model_copy CLEAN.model_dump PROMPT.format PROMPT.invoke "
    "MESSAGE.pretty_print copy.copy copy.deepcopy next iter list dict str"
)

RULES = [
    "<o>", "<o> == <o>", "<o> != <x>", "<x> == <o>", "<o> is <o>", "<o> in <o>", "<x> in <o>", "<o> not in [<o>, 1]",
    "<o> in TABLE", "<o> < <o>",
    "f'{<n>}'", "f'{<n>!r:>3}'", "str(<o>)", "repr(<o>)", "format(<o>, '')", "'%s' % <o>", "'%s %s' % (<o>, <o>)",
    "'{} {}'.format(<o>, <o>)",
    "'{a.x}'.format(a=<o>)", "'{a[x]}'.format(a=<o>)", "'a'.join(<o>)", "'a'.join([str(<o>), <x>])", "len(<o>)",
    "bool(<o>)", "hash(<o>)",
    "int(<o>)", "float(<o>)", "round(<o>)", "abs(<o>)", "-<o>", "~<o>", "not <o>", "<o> + <o>", "<x> + <o>",
    "<o> | <o>", "<o> % <o>", "<o> * 2",
    "<o>[<x>]", "<o>[0]", "<o>['a']", "<o>[:1]", "<o>.name", "<o>.x", "<o>.value", "<o>.once", "<o>.a", "<o>.content",
    "<o>.rows", "<o>.label",
    "<o>.__class__", "<o>.__dict__", "<o>.__name__", "<o>.__len__()", "<o>.get(<x>)", "<o>.index(<x>)", "<o>.copy()",
    "<o>.replace('a', <o>)",
    "<o>.pop()", "<o>.update(a=1)", "<o>.items()", "<o>.keys()", "<o>.strip()", "<o>.append(<x>)", "<o>.extend(<o>)",
    "<o>.invoke(<x>)",
    "<o>.model_dump()", "<o>.model_copy()", "<o>.put(<x>)", "<o>.send(None)", "<o>.read()", "<o>.set(<x>)",
    "<o>.make()", "<o>.total",
    "<f>()", "<f>(<x>)", "<f>(<o>)", "<f>(<x>, <o>)", "<f>(*<o>)", "<f>(**<o>)", "<o>()", "<o>(<x>)", "<C>()",
    "<C>(<x>)", "<C>(a=<x>)", "<C>(<o>)",
    "<C>.a", "<C>.items", "<C>.class_items", "<C>.make()", "<C>['a']", "<C>[<x>]", "<C> | None", "list(<C>)",
    "<C> == <C>", "{<C>: 1}", "<C>.__name__",
    "isinstance(<o>, <C>)", "isinstance(<o>, (int, <C>))", "isinstance(<x>, <C>)", "issubclass(<C>, <C>)",
    "hasattr(<o>, 'name')",
    "hasattr(<o>, 'x')", "getattr(<o>, 'name', None)", "getattr(<o>, 'value')", "getattr(<o>, <x>, None)",
    "setattr(<o>, 'a', 1)", "callable(<o>)",
    "type(<o>)", "type(<o>).__name__", "type(<o>)()", "iter(<o>)", "next(<o>)", "next(<o>, None)", "next(iter(<o>))",
    "list(<o>)", "tuple(<o>)",
    "set(<o>)", "dict(<o>)", "sorted(<o>)", "sorted(<o>, key=<f>)", "reversed(<o>)", "enumerate(<o>)",
    "list(enumerate(<o>))", "list(zip(<o>, <o>))",
    "list(map(<f>, <o>))", "list(map(<f>, [<x>]))", "list(filter(<f>, [<x>, 1]))", "max(<o>)",
    "max([<x>, 1], key=<f>)", "min(<o>, default=1)",
    "sum(<o>)", "any(<o>)", "all(<o>)", "[x for x in <o>]", "{x: 1 for x in <o>}", "[<f>(x) for x in [1, 2]]",
    "[*<o>]", "(*<o>, 1)", "{**<o>}",
    "{*<o>}", "{<o>: 1}", "{<o>, 1}", "TABLE[<o>]", "TABLE.get(<o>)", "dict.fromkeys(<o>)", "copy.copy(<o>)",
    "copy.deepcopy(<o>)", "json.dumps(<o>)",
    "json.dumps({'a': <o>}, default=<f>)", "json.loads('{}', object_hook=<f>)", "json.loads(<o>)",
    "re.sub('a', <f>, 'aa')", "re.match(<o>, 'a')",
    "re.sub('a', <o>, 'a')", "functools.reduce(<f>, [1, 2])", "functools.partial(<f>, 1)()",
    "functools.partial(<o>)()", "operator.itemgetter('a')(<o>)",
    "operator.attrgetter('name')(<o>)", "operator.methodcaller('get', 1)(<o>)", "operator.add(<o>, <o>)",
    "itertools.chain(<o>, <o>)",
    "list(itertools.islice(<o>, 2))", "list(itertools.chain.from_iterable([<o>]))",
    "list(itertools.accumulate([1, 2], <f>))",
    "Counter(<o>)", "deque(<o>)", "defaultdict(<f>)['a']", "DD['zz']", "DD[<x>]", "G['all']", "(lambda x=<o>: x)()",
    "<o> if <o> else <o>",
    "(<o> or <o>)", "(<o> and <o>)", "print(<o>)", "LOGGER.info('%s', <o>)", "logging.warning(f'{<n>}')",
    "math.floor(<o>)", "range(<o>)",
    "slice(<o>)", "divmod(<o>, 2)", "pow(<o>, 2)", "chr(<o>)", "bytes(<o>)", "str(<o>, 'utf8')", "vars(<o>)",
    "dir(<o>)", "id(<o>)",
    "dataclasses.asdict(<o>)", "dataclasses.replace(<o>)", "dataclasses.fields(<o>)", "typing.cast(<C>, <o>)",
    "Document(page_content=<o>)",
    "HumanMessage(<o>)", "AIMessage(content='a', additional_kwargs=<o>)", "Document(page_content='a', metadata=<o>)",
    "PROMPT.format()",
    "PromptTemplate.from_template('{a}').format(a=<o>)", "PromptTemplate.from_template(<x>).invoke(<o>)",
    "TEMPLATE.substitute(<o>)",
    "MODULE.anything", "MODULE.jobs.get()", "from_iter(<o>)", "super(<C>, <o>)", "<o>.__iter__()", "<o>.__eq__(1)",
    "<C>.__init__(<o>)",
    "Level(<x>)", "Level['LOW']", "Level(<o>)", "Plain(<o>).grow()", "PLAIN.grow(<x>)", "Plain(1, HIST).grow()",
    "Clean(a=<o>)", "Clean(**<o>)",
    "str.join('a', <o>)", "list.append(<o>, 1)", "dict.update(<o>, a=1)", "object.__setattr__(<o>, 'a', 1)",
    "type('T', (<C>,), {})", "sum([<o>], [])",
    "asyncio.run(<o>)", "m.ask(<o>)", "m.ask(<x>)", "q.ask(<x>).get(<o>)", "<f>(m.ask('a'))", "<o>[m.ask('a')]",
    "<o>.get(q.ask('a'))",
    "<o> == m.ask('a')", "<o> in q.ask('a')", "q.ask('a')[<o>]", "q.ask('a') + <o>", "q.ask('a')(<o>)",
    "m.ask('a') in <o>", "max(<o>, q.ask('a'))",
]  # fmt: skip

STATEMENTS = [
    "<e>", "x = <e>", "x, y = <o>", "x, *y = <e>", "for x in <o>: <s>", "for x in <e>: break",
    "for x, y in <o>: pass", "while <o>: break",
    "if <e>: <s>", "if q.ask('b'): <s>", "if jb.ask('b'): <s>", "with <o> as x: <s>", "with <f>() as x: pass",
    "with LOCK: <s>", "assert <e>",
    "assert <o>, <e>", "raise <o>", "raise <C>", "raise <C>(<x>)", "raise QuietError(<o>) from <o>", "<o>[<x>] = <e>",
    "<o>['a'] = 1", "<o>.a = <e>",
    "<o>.name = 1", "del <o>['a']", "del <o>[0]", "del <o>.a", "<o> += [1]", "<o>['all'] += [1]", "<o>.rows += [1]",
    "x = <o>; x += [1]", "x = <o>; x.append(1)",
    "x = <o>; x['k'] = 1", "x = [<o>]; x[0].append(1)", "x = {'a': <o>}; x['a'] += [2]",
    "x = copy.copy(<o>); x.b.append(1)",
    "x = dict(G); x['all'].append(1)", "x = list(LIST_OF); x[1].append(2)", "G['all'] += [<x>]",
    "HIST.append(m.ask('a'))", "x = DOC.metadata; x['q'] = 1",
    "x = PLAIN; x.b.append(<x>)", "x = CLEAN; x.a = 2", "x = MESSAGE; x.content = 'b'", "global LAST; LAST = <e>",
    "import random as r; r.seed(1)",
    "from queue import Queue; x = Queue(); x.put(1)", "import json.tool", "import this",
    "def g(x=<e>): return <e>\n    g(<x>)", "g = lambda x: <e>; g(1)",
    "def g(*a, **k): HIST.append(a)\n    list(map(g, [1]))", "async def g(): return <e>\n    asyncio.run(g())",
    "class T(<C>): a = <o>", "class T: a = <e>",
    "class T(<C>): pass\n    T()", "x = [y for y in <o> if <e>]", "x = (y for y in <o>); next(x, 1)",
    "match <o>:\n        case {'a': 1}: <s>\n        case [x]: <s>",
    "match <o>:\n        case <C>(a=1): <s>\n        case str(): <s>",
    "match <e>:\n        case Level.LOW: <s>\n        case _ if <o>: <s>",
    "print(<e>, file=FILE)", "print(<o>, <o>, sep=<x>)", "LOGGER.warning(<o>)", "yielded = list(counting_iterator())",
    "return <e>", "return <o>",
    "<W>", "x = <o>\n    if m.ask('a') == 'yes': x = HIST\n    x.append(1)",
    "x = [<o>] if jb.ask('c') else [HIST]\n    x[0].append(1)",
    "x = getattr(<o>, m.ask('a'), None); <f>(x)", "[<f>(x) for x in [m.ask('a'), m.ask('b')]]",
    "x = q.ask('a'); x.append(<o>)",
    "sorted = <f>; sorted([1])", "x = sorted([<o>, <o>], key=lambda v: <e>)", "x = max([1, 2], key=<f>)",
    "nonlocal_ = [<o>]; nonlocal_ += <o>",
]  # fmt: skip


class EffectWriter:
    """Writes the classes, objects and functions of one module."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.objects, self.classes, self.functions = list(OBJECTS), list(CLASSES), list(FUNCTIONS)

    def classes_source(self, count: int) -> str:
        made = []
        for number in range(count):
            made.append(self._class(f"K{number}"))
            self.classes += [f"K{number}"] * 2
            self.objects += [f"O{number}"] * 3
        return "\n".join(made)

    def _class(self, name: str) -> str:
        rnd = self.random
        base = rnd.choice(BASES)
        lines = []
        if base == "@dataclass":
            lines, base = (
                [
                    rnd.choice(
                        [
                            "@dataclass",
                            "@dataclass(frozen=True)",
                            "@dataclass(slots=True)",
                            "@pydantic.dataclasses.dataclass",
                        ]
                    )
                ],
                "",
            )
            fields = ["    a: int = 1", "    b: list = field(default_factory=factory)"]
        elif base in ("BaseModel", "NamedTuple"):
            fields = ["    a: int = 1", "    b: list = []" if base == "BaseModel" else "    b: str = 'a'"]
        elif base == "enum.Enum":
            fields = ["    LOW = 1", "    HIGH = 2"]
        elif base == "TypedDict":
            return f"class {name}(TypedDict):\n    a: int\n\n\nO{name[1:]} = {{'a': HIST}}\n"
        else:
            fields = ["    rows = HIST" if rnd.random() < 0.3 else "    a = 1"]
        lines.append(f"class {name}({base}):" if base else f"class {name}:")
        lines += fields
        for each in rnd.sample(sorted(DUNDERS), rnd.choice((1, 1, 2, 3))):
            more, value = DUNDERS[each]
            how = rnd.choice(["hit", "hidden", "unread"])
            lines.append(f"    def __{each}__(self{more}):\n        return {how}('{name}.{each}', {value})")
        if rnd.random() < 0.4:
            lines.append(
                f"    @property\n    def {rnd.choice(['name', 'x', 'value', 'content'])}(self):\n        return hit('{name}.p', 'a')"  # noqa: E501
            )
        if rnd.random() < 0.4:
            method = rnd.choice(["get", "index", "copy", "pop", "items", "keys", "append", "strip", "invoke"])
            lines.append(
                f"    def {method}(self, *a, **k):\n        return {rnd.choice(['hit', 'hidden', 'unread'])}('{name}.m', 'a')"  # noqa: E501
            )
        made = rnd.choice(
            [f"{name}()", f"{name}()", f"{name}('1')", f"{name}(content='a', page_content='a')", f"{name}.LOW"]
        )
        tries = "\n".join(f"    try: return {each}\n    except Exception: pass" for each in (made, f"{name}()",
            f"{name}('1')", f"{name}.LOW",
                          f"{name}(content='a')", f"{name}(page_content='a')"))  # fmt: skip
        text = "\n".join(lines)
        tried = f"try:\n{_indented(text)}\nexcept Exception:\n    {name} = Client\n\n\n"
        return f"{tried}def _make():\n{tries}\n    return CLIENT\n\n\nO{name[1:]} = _make()\n"

    # --- functions ---------------------------------------------------------------------------------------------------

    def expression(self, depth: int) -> str:
        return self._filled(self.random.choice(RULES), depth)

    def _filled(self, rule: str, depth: int) -> str:
        def part(match: re.Match[str]) -> str:
            rnd = self.random
            match match[1]:
                case "o":
                    return self._object(depth)
                case "n":
                    return rnd.choice([each for each in self.objects if each.isidentifier()])
                case "x":
                    return rnd.choice(["1", "'a'", "'all'", "None", "[]", "m.ask('a')", "q.ask('b')", "'yes'"])
                case "f":
                    return rnd.choice(self.functions)
                case "C":
                    return rnd.choice(self.classes)
                case "s":
                    return self._filled(
                        rnd.choice(["pass", "<e>", "x = <e>", "<o>.append(1)", "HIST.append(<x>)"]), depth - 1
                    )
                case "W":
                    name = rnd.choice([each for each in self.objects if each.isidentifier()])
                    return f"global {name}; {name} = 1"
                case _:
                    return self.expression(depth - 1)

        return re.sub(r"<(\w)>", part, rule)

    def _object(self, depth: int) -> str:
        if depth > 0 and self.random.random() < 0.3:
            return "(" + self.expression(depth - 1) + ")"
        return self.random.choice(self.objects)

    def function(self, name: str) -> str:
        lines = [f"def {name}(m, q, jb):"]
        for _ in range(self.random.choice((1, 1, 2, 3))):
            text = self._filled(self.random.choice(STATEMENTS), self.random.choice((1, 1, 2)))
            if self.random.random() < 0.4 and "global" not in text:
                lines += [
                    "    try:",
                    _indented("    " + text, 1),
                    f"    except {self.random.choice(['Exception', 'QuietError', *self.classes[:6]])}:",
                ]
                lines += ["        " + self._filled(self.random.choice(["pass", "x = <o>", "HIST.append(1)"]), 0)]
            else:
                lines.append("    " + text)
        if self.random.random() < 0.5:
            lines.append("    return x" if any(" x = " in each for each in lines) else "    return m.ask('end')")
        return "\n".join(lines)


def _indented(text: str, by: int = 1) -> str:
    return "\n".join("    " * by + line for line in text.split("\n"))


def effects_source(seed: int, count: int) -> str:
    """A module of functions."""
    writer = EffectWriter(seed)
    made = [HEADER, writer.classes_source(10)]
    number = 0
    while number < count:
        text = writer.function(f"effect_{number}")
        if _is_python(text):
            made.append(text)
            number += 1
    return "\n\n".join(made) + "\n"


def _is_python(text: str) -> bool:
    try:
        compile(text, "<effects>", "exec")
    except SyntaxError:
        return False
    return True


# --- snapshots -------------------------------------------------------------------------------------------------------

Contents = dict[int, tuple[Any, Any]]


class Snapshot:
    """All that can be reached from a module, and what it holds."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module = module
        self.before = _contents(module)
        self.names = dict(vars(module))

    def changes(self) -> list[str]:
        """What holds something else now."""
        now = _contents(self.module)
        names = dict(vars(self.module))
        rebound = [name for name in {**self.names, **names} if self.names.get(name, self) is not names.get(name, self)]
        return rebound + [
            f"{object.__repr__(held)}: {content} -> {now[key][1] if key in now else 'gone'}"[:600]
            for key, (held, content) in self.before.items()
            if key not in now or now[key][1] != content
        ]


_LEFT_OUT = (str, int, float, bool, type(None), bytes, types.ModuleType, logging.Logger, types.CodeType, FieldInfo)


def _contents(module: types.ModuleType) -> Contents:
    found: Contents = {}
    todo: list[Any] = [value for name, value in vars(module).items() if not name.startswith("__")]
    while todo:
        held = todo.pop()
        if id(held) in found or any(type(held) is each for each in _LEFT_OUT):
            continue
        content, inner = _content(held)
        found[id(held)] = held, content
        todo += inner
    return found


def _content(held: Any) -> tuple[Any, list[Any]]:
    """What an object holds, by identity, and what is to be looked at, too."""
    kind = type(held)
    inner: list[Any] = []
    if _is(kind, list):
        inner = list(list.__iter__(held))
    elif _is(kind, dict):
        inner = [part for key in dict.keys(held) for part in (key, dict.__getitem__(held, key))]
    elif _is(kind, set):
        inner = sorted(set.__iter__(held), key=id)
    elif _is(kind, collections.deque):
        inner = list(collections.deque.__iter__(held))
    elif _is(kind, tuple):
        inner = list(tuple.__iter__(held))
    special: Any = None
    for cls, look in _SPECIAL:
        if _is(kind, cls):
            special = look(held)
    own = _own(held)
    if own is not None:
        inner = [*inner, own]
    if kind is types.FunctionType:
        cells = [cell.cell_contents for cell in held.__closure__ or () if _is_set(cell)]
        inner += [held.__defaults__, *cells]
    if _is(kind, type) and held.__module__ == "effects_module":
        inner += [each for name, each in sorted(type.__dict__["__dict__"].__get__(held).items()) if name not in _CACHES]
    return (tuple(map(id, inner)), special), inner


_CACHES = ("_abc_impl", "__slotnames__", "__doc__", "__weakref__", "__dict__", "__pydantic_core_schema__",
    "__pydantic_validator__",
           "__pydantic_serializer__", "__pydantic_parent_namespace__", "__pydantic_decorators__",
           "__signature__")  # fmt: skip


def _is(kind: type, cls: Any) -> bool:
    return any(each is cls for each in type.__dict__["__mro__"].__get__(kind))


def _own(held: Any) -> dict[str, Any] | None:
    try:
        own = object.__getattribute__(held, "__dict__")
    except AttributeError:
        return None
    return own if type(own) is dict else None


def _is_set(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


_LOOKS: list[tuple[Any, Callable[[Any], Any]]] = [
    (type(iter([])), operator.length_hint),
    (types.GeneratorType, lambda held: held.gi_frame and held.gi_frame.f_lasti),
    (itertools.count, repr),
    (functools._lru_cache_wrapper, lambda held: held.cache_info()),
    (contextvars.ContextVar, lambda held: held.get()),
    (random.Random, lambda held: hash(held.getstate())),
    (queue.Queue, lambda held: list(held.queue)),
]


def _special() -> Iterator[tuple[Any, Callable[[Any], Any]]]:
    import io
    import threading

    yield from _LOOKS
    yield io.StringIO, lambda held: (held.tell(), held.getvalue())
    yield type(threading.Lock()), lambda held: held.locked()


_SPECIAL = list(_special())

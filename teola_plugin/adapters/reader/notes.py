"""Notes of the values outside of functions, taken before the functions run.

The reader looks at an outside value when it comes to it, and by then the framework's run may have changed the value. So
what functions can reach is noted in the framework's thread, before it runs them: attributes of the user's objects and
classes, outside names, and the contents of containers. A value that the reader finds to differ from its note counts as
changed (see changes.py). A value without a note is trusted unless one of the functions stores to a name like its own.

    if app.topic:              noted: ""
        llm.invoke("again")
    else:
        app.topic = "known"    the run is here when the reader looks at `app.topic` first: not known, both ways are read

Notes keep no object of the user's alive.
"""

from __future__ import annotations

import dis
import functools
import logging
import os
import sys
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from teola_plugin.adapters.reader import dataframes, foreign, records
from teola_plugin.adapters.reader.caches import WRAPPER
from teola_plugin.adapters.reader.facts import MODEL_SLOTS, facts_of, generated_names
from teola_plugin.adapters.reader.foreign import MISSING, is_atom
from teola_plugin.adapters.reader.reach import ALTERING, CHANGING, CHANGING_OTHERS, alters
from teola_plugin.adapters.reader.values import STDLIB, Barrier, Opaque, is_installed_file
from teola_plugin.adapters.source import node_of

log = logging.getLogger(__name__)

MOST_PARTS = 10_000
"""Values that are noted for one reading: some 3 ms."""

MOST_OF_OTHERS = 1_000
"""Attributes or items that are noted of one object of a package's."""

MOST_SETTINGS = 20
"""Items of a container that count as settings of a component."""

MAX_CODES = 10_000
"""Functions whose stores are cached."""

_SEQUENCES = frozenset(map(id, (list, tuple, set, frozenset, deque)))
_MAPPINGS = frozenset(map(id, (dict, OrderedDict, defaultdict, Counter)))
"""Kinds by their ids: a metaclass of the user's is not asked whether they are equal."""
_LOUD = frozenset({"setattr", "delattr", "__setattr__", "__dict__", "vars", "globals", "exec", "eval"})
_LATER = frozenset({"call_later", "call_at", "Timer", "alarm", "setitimer"})
_STARTING = _LATER | {
    "Thread", "Process", "submit", "apply_async", "run_in_executor", "call_soon", "call_soon_threadsafe", "create_task",
    "ensure_future", "run_coroutine_threadsafe", "add_done_callback", "start_new_thread", "start_soon", "Pool",
    "ThreadPool", "ThreadPoolExecutor", "ProcessPoolExecutor",
}  # fmt: skip
_ENDING = frozenset({
    "__del__", "weakref", "WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "WeakMethod", "ref", "proxy",
    "finalize", "gc", "getrefcount", "open", "NamedTemporaryFile", "SpooledTemporaryFile", "TemporaryFile",
    "TemporaryDirectory",
})  # fmt: skip
_STARTERS = (
    ("threading", "Thread"), ("concurrent.futures._base", "Executor"), ("multiprocessing.process", "BaseProcess"),
    ("multiprocessing.pool", "Pool"),
)  # fmt: skip
"""Classes, by module and name, whose objects start functions."""

_ENVIRONMENT = frozenset({"environ", "putenv", "unsetenv", "load_dotenv"})
_PROXIES = ("FunctionWrapper", "BoundFunctionWrapper")
"""Classes of wrapt, in which LlamaIndex wraps methods of components, the user's too."""

_FOLLOWED = (
    "langchain_core.runnables", "langchain_core.tools", "langgraph.", "llama_index.core.query_engine",
    "llama_index.core.retrievers", "llama_index.core.tools", "llama_index.core.chat_engine",
    "llama_index.core.postprocessor", "llama_index.core.response_synthesizers",
)  # fmt: skip
"""Modules whose components hold functions of the user's."""

_OTHERS = sys.stdlib_module_names - {"__main__"} | {"teola_plugin"}


def _numbers(names: str) -> frozenset[int]:
    return frozenset(dis.opmap[name] for name in names.split() if name in dis.opmap)


_ATTRIBUTES = _numbers("STORE_ATTR DELETE_ATTR")
_GLOBALS = _numbers("STORE_GLOBAL DELETE_GLOBAL")
_CELLS = _numbers("STORE_DEREF DELETE_DEREF")
_IMPORTS = _numbers("IMPORT_NAME")
_ITEMS = _numbers("STORE_SUBSCR DELETE_SUBSCR STORE_SLICE")
_OPERATORS = _numbers("BINARY_OP")
_FIRST_IN_PLACE = 13
"""The number of `+=` among the operators; those in place come last."""


@dataclass(frozen=True, slots=True)
class _Code:
    """What a function mentions, with the functions inside (`codes`, ids): `names`, and the names `stored` to.

    `imported`: the modules imported. `is_loud`: the function may store to any name. `may_alter`: the function may
    change a container made elsewhere.
    """

    codes: frozenset[int]
    names: frozenset[str]
    imported: frozenset[str]
    stored: frozenset[str]
    is_loud: bool
    may_alter: bool


class _At(int):
    """The id of a container or an object that cannot be referred to weakly."""


class Notes:
    """The values that functions can reach."""

    def __init__(self, roots: Iterable[Any] = ()) -> None:
        """Note what can be reached from the functions and objects in `roots`."""
        self.roots = list(roots)
        self._altering: dict[int, types.FunctionType] = {}
        self._places: dict[Hashable, Any] = {}
        self._contents: dict[int, tuple[Any, ...]] = {}
        self._tables: dict[int, Any] = {}
        self._spaces: set[int] = set()
        self._codes: set[int] = set()
        self._environment = dict(_environment())
        self._stored: set[str] = set()
        self._names: set[str] = set()
        self._is_loud = False
        self._has_starters = False
        self._left = MOST_PARTS
        self._todo: list[Any] = []
        self._proxies = {id(getattr(sys.modules.get("wrapt"), name, None)) for name in _PROXIES}
        self._starters = {id(getattr(sys.modules.get(module), name, None)) for module, name in _STARTERS}
        self._seen: dict[int, Any] = {}
        self._modules: dict[int, dict[str, Any]] = {}
        self._packages: dict[int, dict[str, Any]] = {}
        self._components: list[dict[str, Any]] = []
        self.add(self.roots)

    def add(self, roots: Iterable[Any]) -> None:
        """Note what can be reached from more functions and objects."""
        try:
            self._add(roots)
        except Exception:  # a fault of ours is never the user's: there are fewer notes
            log.exception("values could not be noted")

    def _add(self, roots: Iterable[Any]) -> None:
        self._todo += roots
        while self._todo:
            while self._todo and self._left > -MOST_PARTS:
                self._visit(self._todo.pop())
            if self._left <= -MOST_PARTS:
                self._is_loud = True
                break
            for own in self._modules.values():
                for name in self._names & own.keys():
                    self._note_once((id(own), name), own[name])
        for own in (*self._components, *self._modules.values()):
            for name in own.copy() if self._is_loud else self._stored:
                self._places.setdefault((id(own), name), _token(own.get(name, MISSING)))
        for own in self._packages.values():
            for name in self._stored & own.keys():
                self._places.setdefault((id(own), name), _token(own[name]))
        self._todo.clear()
        self._seen.clear()  # the values are not kept alive

    # --- questions of the reader -------------------------------------------------------------------------------------

    def is_noted(self, place: Hashable) -> bool:
        """Whether there is a note of a place: a cell's id, or the id of a dict of attributes or globals with a name."""
        return place in self._places or (type(place) is tuple and place[0] in self._spaces)

    def is_as_noted(self, place: Hashable, owner: Any, name: str, value: Any) -> bool:
        """Whether a place holds what it held when noted.

        Without a note: whether it is in a module or class of a package, or no function stores to such a name; of a
        function or module of the user's without any notes it is not known.
        """
        if self.is_noted(place):
            return _is_same(self._places.get(place, MISSING), value)
        if value is MISSING or _is_of_package(owner):
            return True
        kind = type(owner)
        if kind is types.ModuleType and id(owner.__dict__) not in self._modules:
            return False
        if kind is types.FunctionType and id(owner.__code__) not in self._codes and not _is_function_of_others(owner):
            return False
        return not self.may_store(owner, name)

    def may_store(self, owner: Any, name: str) -> bool:
        """Whether some function may store to such a name of the object, class, module or function."""
        return (self._is_loud or name in self._stored) and not _is_of_package(owner)

    def may_store_beside(self, owner: Any, name: str) -> bool:
        """Whether a function that is not read may: methods of an event, a queue or the like store, too."""
        kind = type(owner)
        return self.may_store(owner, name) or (facts_of(kind).kind == "object" and is_class_of_others(kind))

    @property
    def are_lasting(self) -> bool:
        """Whether no function stores or starts anything, so that the notes hold as long as the functions run."""
        return not (self._is_loud or self._stored or self.alters or self.has_threads)

    @property
    def has_timers(self) -> bool:
        """Whether functions mention what ends others at some time."""
        return not _LATER.isdisjoint(self._names)

    @property
    def has_threads(self) -> bool:
        """Whether functions mention what starts functions beside themselves."""
        return self._has_starters or not _STARTING.isdisjoint(self._names)

    @property
    def stores_alone(self) -> bool:
        """Whether functions store to names, and mention neither threads nor finalizers."""
        return bool(self._stored) and not (self._is_loud or self.has_threads or self.may_show_ends)

    @property
    def may_show_ends(self) -> bool:
        """Whether functions mention what shows that an object has ended: weak references, finalizers, open files."""
        return self._is_loud or not _ENDING.isdisjoint(self._names | self._stored)

    @property
    def may_change_environment(self) -> bool:
        """Whether functions mention what changes environment variables."""
        return self._is_loud or not _ENVIRONMENT.isdisjoint(self._names)

    @property
    def has_environment(self) -> bool:
        """Whether the environment variables are what they were when noted."""
        return _environment() == self._environment

    def first(self, place: Hashable, now: Any) -> Any:
        """Return the value at a place when noted, if it is `now` or an atom; None for a value that is not known."""
        if not self.is_noted(place):
            return now
        noted = self._places.get(place, MISSING)
        return noted if noted is MISSING or is_atom(noted) else now if _is_same(noted, now) else None

    def is_kept(self, value: Any) -> bool | None:
        """Whether a container or record holds what it held when noted; None without a note."""
        noted = self._contents.get(id(value))
        if noted is None:
            return None
        parts = _parts_of(value)
        return parts is not None and len(parts) == len(noted) and all(map(_is_same, noted, parts))

    def table(self, value: Any) -> Any:
        """Return the copy of a DataFrame or Series, made when noted; None without a copy."""
        return self._tables.get(id(value))

    @property
    def alters(self) -> bool:
        """Whether some function changes a container made elsewhere, as far as the source tells."""
        for number, function in list(self._altering.items()):
            node = node_of(function)
            if node is None or alters(node):
                return True
            self._altering.pop(number, None)
        return False

    # --- noting ------------------------------------------------------------------------------------------------------

    def _note(self, place: Hashable, value: Any) -> None:
        self._left -= 1
        self._places[place] = _token(value)
        if not is_atom(value):
            self._todo.append(value)

    def _note_once(self, place: Hashable, value: Any) -> None:
        if place not in self._places:
            self._note(place, value)

    def _visit(self, value: Any) -> None:
        if is_atom(value) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        kind = type(value)
        if kind is types.FunctionType:
            self._function(value)
        elif kind is types.MethodType:
            self._todo += (value.__self__, value.__func__)
        elif kind is functools.partial:
            self._todo += (value.func, *value.args, *value.keywords.values())
        elif kind is functools.cached_property:
            self._todo.append(value.func)
        elif kind is WRAPPER:
            self._todo.append(vars(value).get("__wrapped__"))
        elif kind is property:
            self._todo += (value.fget, value.fset, value.fdel)
        elif kind is staticmethod or kind is classmethod:
            self._todo.append(value.__func__)
        elif kind is types.ModuleType:
            (self._packages if _is_of_package(value) else self._modules)[id(value.__dict__)] = value.__dict__
        elif foreign.is_class(value):
            self._class(value)
        else:
            parts = _parts_of(value)
            if dataframes.is_table(kind):
                self._tables[id(value)] = dataframes.copied(value)
            elif id(kind) in self._proxies:
                self._todo.append(value.__wrapped__)
            elif parts is None:
                self._object(value)
            elif len(parts) <= self._left:
                self._left -= len(parts)
                self._contents[id(value)] = tuple([_token(part) for part in parts])
                self._todo.append(kind)
                if id(kind) not in _SEQUENCES and foreign.private_of(value):  # read like an object
                    self._object(value)
                self._todo += [each for each in parts if not is_atom(each)]
                if type(names := records.model_slot(value, MODEL_SLOTS[0])) is set:  # read with the fields
                    self._contents[id(names)] = tuple(names)

    def _function(self, function: types.FunctionType) -> None:
        if _is_function_of_others(function):  # which may call a function of the user's: a decorator
            self._todo += [_held_by(cell) for cell in function.__closure__ or ()]
            return
        code, names = _of_code(function.__code__, function.__globals__.get("__package__")), function.__globals__
        self._codes |= code.codes
        self._todo += [module for name in code.imported if (module := sys.modules.get(name)) is not None]
        self._stored |= code.stored
        self._names |= code.names
        self._is_loud = self._is_loud or code.is_loud
        if code.may_alter:
            self._altering[id(function.__code__)] = function
        if type(names) is dict:
            self._modules[id(names)] = names
        for cell in function.__closure__ or ():
            try:
                self._note_once(id(cell), cell.cell_contents)
            except ValueError:
                self._places.setdefault(id(cell), MISSING)
        self._todo += (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        for name, value in list(function.__dict__.items()):
            self._note_once((id(function), name), value)

    def _class(self, cls: type) -> None:
        try:
            self._has_starters = self._has_starters or self._starts(cls)
            for each in foreign.mro_of(cls):
                if id(each) in foreign.BUILTINS or is_class_of_others(each):
                    continue
                own = foreign.namespace_of(each)
                computing = generated_names(each, own.keys() - {"__init__", "__setattr__", "__delattr__"})
                for name, value in list(own.items()):
                    if name == "__del__":
                        self._names.add(name)
                    if name[:2] == "__" and name[-2:] == "__":
                        is_users = type(value) is types.FunctionType and name not in computing
                        self._todo += [value] if is_users else []
                    else:
                        self._note_once((id(each), name), value)
        except Barrier:
            return

    def _starts(self, cls: type) -> bool:
        """Whether objects of a class start functions that go on beside the caller."""
        return not self._starters.isdisjoint(map(id, foreign.mro_of(cls)))

    def _object(self, value: Any) -> None:
        cls = type(value)
        self._has_starters = self._has_starters or (self._starts(cls) and is_class_of_others(cls))
        if facts_of(cls).kind not in ("object", "component", "record"):
            return
        own = foreign.own_attributes(value)
        if own is None or id(own) in self._spaces:
            return
        is_of_others = is_class_of_others(cls)
        if is_of_others:
            self._components.append(own)
            if foreign.module_of(cls).startswith(_FOLLOWED):
                self._todo += [each for each in list(own.values()) if not is_atom(each)]
            if facts_of(cls).kind != "object" or len(own) > MOST_OF_OTHERS:
                for held in list(own.values()):
                    self._settings_in(held)
                return
        else:
            self._todo.append(cls)
        if len(own) <= self._left:
            self._spaces.add(id(own))
            for name, held in list(own.items()):
                if is_of_others:
                    self._part_of_others((id(own), name), held)
                else:
                    self._note((id(own), name), held)
            if private := foreign.private_of(value):  # an empty dict may be another one each time
                self._spaces.add(id(private))
                for name, held in list(private.items()):
                    self._note((id(private), name), held)

    def _part_of_others(self, place: Hashable, held: Any) -> None:
        """Note an attribute of an object of a package's (a queue, an event), and not what is behind."""
        self._left -= 1
        self._places[place] = _token(held)
        parts = None if is_atom(held) or id(held) in self._contents else _parts_of(held)
        if parts is not None and len(parts) <= min(self._left, MOST_OF_OTHERS):
            self._left -= len(parts)
            self._contents[id(held)] = tuple([_token(part) for part in parts])

    def _settings_in(self, held: Any) -> None:
        """Note what a small container of a component's holds, such as `model_kwargs`."""
        is_container = id(type(held)) in _SEQUENCES or id(type(held)) in _MAPPINGS
        if is_container and id(held) not in self._contents and len(held) <= MOST_SETTINGS:
            self._contents[id(held)] = tuple([_token(part) for part in _parts_of(held) or ()])


def roots_of(copied: Iterable[tuple[Any, Any]]) -> list[Any]:
    """Return the objects of the user's, and the classes of records, among values with the reader's copies of them."""
    return [held if type(copy) in (Opaque, dataframes.OfPandas) else type(held) for held, copy in list(copied)]


def place_in(owner: Any, name: str) -> Hashable | None:
    """Return the place of an attribute of a module, class or function; None for other objects."""
    kind = type(owner)
    if kind is types.ModuleType:
        return id(owner.__dict__), name
    if kind is types.FunctionType:
        return id(owner), name
    return (id(foreign.owner_in_mro(owner, name)), name) if foreign.is_class(owner) else None


def _parts_of(value: Any) -> tuple[Any, ...] | None:
    """Return the parts of a container or record; None for other objects."""
    kind = type(value)
    if id(kind) in _SEQUENCES:
        return tuple(value)
    if id(kind) in _MAPPINGS:
        return (*value, *value.values())
    fields = records.fields_of(value)
    return None if fields is None else (*fields, *fields.values())


def _token(value: Any) -> Any:
    """Return what tells a value from others without keeping the user's objects alive."""
    if value is MISSING or is_atom(value):
        return value
    if id(type(value)) in _SEQUENCES or id(type(value)) in _MAPPINGS:
        return _At(id(value))
    try:
        return weakref.ref(value)
    except TypeError:
        return _At(id(value))


def _is_same(noted: Any, value: Any) -> bool:
    if noted is value:
        return type(noted) is not weakref.ref
    kind = type(noted)
    if kind is weakref.ref:
        return value is not None and noted() is value
    if kind is _At:
        return int(noted) == id(value)
    return type(value) is kind and (kind is str or kind is int) and bool(noted == value)


def _held_by(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _environment() -> dict[Any, Any]:
    return vars(os.environ).get("_data") or {}


def _is_function_of_others(function: types.FunctionType) -> bool:
    return _is_of_others(function.__code__.co_filename, function.__globals__.get("__name__"))


def _is_of_others(file: Any, name: Any) -> bool:
    """Whether a module is of an installed package, of the standard library, or ours."""
    root = name.partition(".")[0] if type(name) is str else ""
    if type(file) is not str or file.startswith("<"):
        return root in _OTHERS
    return is_installed_file(file) or root == "teola_plugin" or file.startswith(STDLIB)


def _is_of_package(owner: Any) -> bool:
    """Whether a module or class is not the user's."""
    if type(owner) is types.ModuleType:
        return _is_of_others(owner.__dict__.get("__file__"), owner.__dict__.get("__name__"))
    return foreign.is_class(owner) and is_class_of_others(owner)


def is_class_of_others(cls: type) -> bool:
    """Whether a class is of an installed package, of the standard library, or ours."""
    name = foreign.module_of(cls)
    module = sys.modules.get(name)
    return _is_of_others(module.__dict__.get("__file__") if type(module) is types.ModuleType else None, name)


def _of_code(code: types.CodeType, package: Any) -> _Code:
    known = _codes.get(id(code))
    if known is None or known[0] is not code:
        if len(_codes) >= MAX_CODES:
            _codes.clear()
        inner = list(_inside(code))
        codes = frozenset(map(id, inner))
        names = frozenset(name for each in inner for name in (*each.co_names, *each.co_freevars))
        stored = frozenset(name for each in inner for name in _stored_by(each))
        imported = frozenset(name for each in inner for name in _imported_by(each, package))
        may_alter = any(name[:2] == "__" for name in names) or not names.isdisjoint(
            CHANGING | CHANGING_OTHERS | ALTERING
        )
        may_alter = may_alter or any(map(_alters_in_place, inner))
        known = _codes[id(code)] = code, _Code(codes, names, imported, stored, not names.isdisjoint(_LOUD), may_alter)
    return known[1]


_codes: dict[int, tuple[types.CodeType, _Code]] = {}


def _alters_in_place(code: types.CodeType) -> bool:
    """Whether a function stores items, or has an operator like `+=`, which may change a list."""
    operations = zip(code.co_code[::2], code.co_code[1::2], strict=True)
    return any(op in _ITEMS or (op in _OPERATORS and arg >= _FIRST_IN_PLACE) for op, arg in operations)


def _inside(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if type(const) is types.CodeType:
            yield from _inside(const)


def _imported_by(code: types.CodeType, package: Any) -> Iterator[str]:
    """Yield the modules imported by a function, and the packages around the modules."""
    if _IMPORTS.isdisjoint(code.co_code[::2]):
        return
    before: list[Any] = [0, None]
    for each in dis.get_instructions(code):
        if each.opcode in _IMPORTS:
            level, name = before[-2], each.argval
            above = str(package).rsplit(".", level - 1)[0] if type(level) is int and level > 0 else ""
            parts = ".".join(filter(None, (above, name))).split(".")
            yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1))
        before = [before[-1], each.argval]


def with_loaded(code: types.CodeType) -> Iterator[tuple[dis.Instruction, Any]]:
    """Yield the instructions of a function, each with the variable that the one before has loaded, if any."""
    before: Any = None
    for each in dis.get_instructions(code):
        yield each, before
        loaded = each.argval if "LOAD_FAST" in each.opname else None
        before = loaded[-1] if type(loaded) is tuple else loaded


def _stored_by(code: types.CodeType) -> Iterator[str]:
    """Yield the attributes, global names and variables of functions around that a function stores to.

    A constructor stores to the attributes of a new object.
    """
    is_making = code.co_name in ("__init__", "__post_init__")
    if "set_content" in code.co_names:  # of LlamaIndex's nodes
        yield from ("text", "text_resource")
    if (_GLOBALS | _ATTRIBUTES | _CELLS).isdisjoint(code.co_code[::2]):
        return
    for each, before in with_loaded(code):
        is_to_new = is_making and each.opcode in _ATTRIBUTES and before in code.co_varnames[:1]
        is_outer = each.opcode in _CELLS and each.argval in code.co_freevars
        if is_outer or (each.opcode in _GLOBALS | _ATTRIBUTES and not is_to_new):
            yield each.argval

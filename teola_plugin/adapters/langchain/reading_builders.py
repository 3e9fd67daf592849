"""Components made by a program: models, prompts, parsers and chains, by LangChain's own constructors and methods.

The components are really made, from plain arguments and existing components: no request is made and no effect remains.
Equal arguments give the same object in each evaluation of one call. A program's function in a chain is held by a
stand-in (`Function`), which is read.
"""

from __future__ import annotations

import functools
import operator
import sys
import types
import typing
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from langchain_core.documents import BaseDocumentCompressor
from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.output_parsers.base import BaseLLMOutputParser
from langchain_core.prompts import BasePromptTemplate
from langchain_core.prompts.message import BaseMessagePromptTemplate
from langchain_core.runnables import (
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
    RunnableSequence,
)
from langchain_core.tools import BaseTool, StructuredTool, Tool

from teola_plugin.adapters import search_classes
from teola_plugin.adapters.langchain import models
from teola_plugin.adapters.langchain import reading_classic as classic
from teola_plugin.adapters.langchain import reading_made_retrievers as made_retrievers
from teola_plugin.adapters.langchain.reading_parts import (
    require_clean_parser,
    require_clean_schema,
    require_clean_template,
    stock_class,
)
from teola_plugin.adapters.langchain.reading_retrievers import has_clean_arguments
from teola_plugin.adapters.langchain.reading_runnables import Function, require_plain_config
from teola_plugin.adapters.reader import foreign, outlets
from teola_plugin.adapters.reader.exchange import Exchange
from teola_plugin.adapters.reader.foreign import ATOMS
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import (
    Barrier,
    Callee,
    Opaque,
    Undecided,
    Unknown,
    isinstance_of,
    shown,
    type_name,
)
from teola_plugin.adapters.rehearsal import outcome
from teola_plugin.value_keys import Same, is_comparable, value_key

_COMPOSITES = (RunnableSequence, RunnableParallel, RunnablePassthrough, RunnableBranch, RunnablePick)

_PARTS = (Runnable, BaseMessagePromptTemplate, BaseDocumentCompressor)
"""Classes of the objects that components are made of."""

OF_PROMPTS = frozenset({"partial", "format", "format_messages", "format_prompt", "pretty_repr"})
OF_CLASSES = frozenset({"from_template", "from_messages", "from_examples", "assign"})
OF_RUNNABLES = frozenset(
    {"pipe", "assign", "pick", "bind", "with_config", "with_retry", "with_fallbacks", "map", "with_types"}
)
OF_MODELS = frozenset({"bind_tools", "with_structured_output"})
OF_PARSERS = frozenset({"get_format_instructions", "parse"})
SENDING = frozenset({"invoke", "ainvoke", "batch", "abatch"})


class Builder:
    """Makes components, each once. Used in one call."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}
        self._chains: dict[int, RunnableSequence[Any, Any]] = {}

    def kind_of(self, component: Any) -> Hashable:
        """Return what tells a component from others asked at the same place: the rounds of a loop ask the same one.

        Chains made by the program are the same but for the prompts: a loop makes one for each text.
        """
        if (made := self._chains.get(id(component))) is None:
            return Same(component)
        return tuple(type(s) if isinstance_of(s, BasePromptTemplate) else Same(s) for s in made.steps)

    def construct(self, run: Run, cls: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return an object of a class that `can_construct`. Raises: Barrier, Undecided, errors of the constructor."""
        if cls is RunnableLambda:
            return self.function(args, kwargs)
        if cls in _COMPOSITES:
            return self._composite(run, cls, args, kwargs)
        if classic.is_chain_class(cls):
            return self._make(run, cls, classic.constructor(run, cls), args, kwargs)
        if made_retrievers.is_users_class(cls):
            made_retrievers.require_fields(cls, args, kwargs)
            make = functools.partial(made_retrievers.made, cls)
            return self._make(run, cls, make, args, kwargs, take=made_retrievers.argument)
        _require_known_fields(cls, kwargs)
        if is_search_class(cls):
            return self._make(run, cls, classic.constructor(run, cls), args, kwargs)
        return self._make(run, cls, cls, args, kwargs)

    def chat_model(self, run: Run, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the model of `init_chat_model(...)`. Raises: Barrier, Undecided, errors of the call."""
        given = dict(zip(("model",), args, strict=False)) | dict(kwargs)
        if len(args) > 1 or given.keys() & {"configurable_fields", "config_prefix"}:
            raise Barrier("it makes a model that a config may make another one")
        run.require_known(given.get("model"), given.get("model_provider"))
        own = function.__globals__
        _, provider = own["_parse_model"](given.get("model"), given.get("model_provider"))
        package, name, _ = own["_BUILTIN_PROVIDERS"].get(provider, ("", "", None))
        cls = vars(sys.modules.get(package, types)).get(name)
        if package not in models.KNOWN_BY_SETTINGS or cls is None or not can_construct(cls):
            raise Barrier(f"it makes a model of {provider}")
        _require_known_fields(cls, {key: held for key, held in given.items() if key != "model_provider"})
        return self._make(run, function, function, args, kwargs)

    def function(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the stand-in of `RunnableLambda(...)`. Raises: Barrier."""
        if len(args) != 1 or set(kwargs) - {"name"} or not isinstance_of(args[0], Opaque):
            raise Barrier("it makes a RunnableLambda in an unusual way")
        return Opaque(Function(args[0]), is_own=True)

    def method(self, run: Run, owner: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of a component's building method. Raises: Barrier, Undecided, errors of the method."""
        if name in OF_RUNNABLES or owner in _COMPOSITES:
            return self._composed(run, owner, name, args, kwargs)
        if name in OF_PROMPTS and not foreign.is_class(owner):
            require_clean_template(owner)
        if name in OF_PARSERS:
            require_clean_parser(owner)
        if name == "with_structured_output":
            kwargs = _without_warning(run, owner, args, kwargs)
        return self._make(run, owner, getattr(owner, name), args, kwargs, name)

    def _make(
        self, run: Run, owner: Any, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any],
        name: str = "", take: Callable[[Run, Exchange, Any], Any] | None = None,
    ) -> Any:  # fmt: skip
        take = _argument if take is None else take
        key = (Same(owner), name, _key_of([*args]), _key_of(dict(kwargs)))
        is_kept = _is_hashable(key)
        if is_kept and key in self._made:
            return self._made[key][0]
        exchange = Exchange(run)
        given = [take(run, exchange, each) for each in args]
        named = {key: take(run, exchange, each) for key, each in kwargs.items()}
        if not name:
            _require_no_known_difference(owner, frozenset(named))
        made = outcome(lambda: function(*given, **named))
        if not isinstance(made, _PARTS):
            return exchange.back(made)
        _require_clean(made)
        if not name and isinstance(made, BaseChatModel | BaseLLM):
            _require_likeness(made, frozenset(named), lambda: function(*given, **named))
        found = Opaque(made, is_own=True)
        if is_kept:
            self._made[key] = found, owner, args, kwargs  # the objects held by id in the key are kept alive
        return found

    # --- composites --------------------------------------------------------------------------------------------------

    def combine(self, run: Run, left: Any, right: Any) -> Any:
        """Return `left | right`. Raises: Barrier, Undecided, TypeError."""
        return self._composite(run, RunnableSequence, (left, right), {})

    def _composite(self, run: Run, cls: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        key = (Same(cls), _key_of([*args]), _key_of(dict(kwargs)))
        is_kept = _is_hashable(key)
        if is_kept and key in self._made:
            return self._made[key][0]
        given = [_part(run, each, is_step=cls is not RunnablePick) for each in args]
        named = {name: _part(run, each) for name, each in kwargs.items()}
        made = self._noted(outcome(lambda: cls(*given, **named)))
        if is_kept:
            self._made[key] = made, args, kwargs
        return made

    def _noted(self, made: Any) -> Opaque:
        if type(made) is RunnableSequence:
            self._chains[id(made)] = made
        return Opaque(made, is_own=True)

    def _composed(self, run: Run, owner: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        key = (Same(owner), name, _key_of([*args]), _key_of(dict(kwargs)))
        is_kept = _is_hashable(key)
        if is_kept and key in self._made:
            return self._made[key][0]
        if name == "with_config":
            for config in args:
                require_plain_config(config)
        exchange = Exchange(run)
        take = _part if name in ("pipe", "assign", "with_fallbacks") else lambda r, each: _argument(r, exchange, each)
        if name == "with_retry":
            take = lambda r, each: _exceptions(exchange, each)  # noqa: E731
        given = [take(run, each) for each in args]
        named = {key: take(run, each) for key, each in kwargs.items()}
        made = self._noted(outcome(lambda: getattr(owner, name)(*given, **named)))
        if is_kept:
            self._made[key] = made, owner, args, kwargs
        return made


# --- what may be made ------------------------------------------------------------------------------------------------


def can_construct(cls: type) -> bool:
    """Whether making an object of the class makes no requests and leaves nothing behind."""
    if cls in _COMPOSITES or cls is RunnableLambda or is_search_class(cls):
        return True
    if not foreign.has_known_classes(cls):
        return False
    if classic.is_chain_class(cls) or made_retrievers.is_users_class(cls) or made_retrievers.is_stock_class(cls):
        return True
    package = foreign.module_of(cls).split(".")[0]
    if foreign.is_subtype(cls, BaseChatModel) or foreign.is_subtype(cls, BaseLLM):
        is_own = package == "teola_plugin"
        return (is_own or package in models.KNOWN_BY_SETTINGS) and _is_under_its_name(cls)
    is_part = any(
        foreign.is_subtype(cls, base) for base in (BasePromptTemplate, BaseLLMOutputParser, BaseMessagePromptTemplate)
    )
    return is_part and foreign.is_library_class(cls)


_NEW = object.__dict__["__new__"]


def is_search_class(cls: type) -> bool:
    """Whether the class is a published web search tool, with a constructor without effects."""
    if not foreign.has_known_classes(cls):
        return False
    known = search_classes.tool_of(foreign.module_of(cls), type_name(cls))
    is_made_as_published = models.is_published_method(cls, "__init__") and foreign.in_mro(cls, "__new__") is _NEW
    return known is not None and known.is_made and _is_under_its_name(cls) and is_made_as_published


def _is_under_its_name(cls: type) -> bool:
    module = sys.modules.get(foreign.module_of(cls))
    return module is not None and vars(module).get(type_name(cls)) is cls


def _require_known_fields(cls: Any, kwargs: Mapping[str, Any]) -> None:
    """Raises: Barrier if the constructor would warn of an argument."""
    if not (foreign.is_subtype(cls, BaseChatModel) or foreign.is_subtype(cls, BaseLLM)):
        return
    fields = cls.model_fields
    names = {*fields, *(field.alias for field in fields.values() if field.alias)}
    if unknown := set(kwargs) - names:
        raise Barrier(f"{type_name(cls)} is given {', '.join(sorted(unknown))}")


_alike: dict[tuple[type, frozenset[str]], bool] = {}
"""Whether models of a class, made by these arguments, are alike."""


def _require_likeness(model: Any, names: frozenset[str], make: Callable[[], Any]) -> None:
    """Raises: Barrier if the framework's run makes a different model, because each model has connections of its own."""
    if models.is_ours(model):
        return
    key = type(model), names
    if key not in _alike:
        first, second = models.as_set_now(model).configured, models.as_set_now(outcome(make)).configured
        if first != second and second == models.as_set_now(outcome(make)).configured:
            raise Barrier("another thread makes such a model for the first time")  # each with a client, kept for others
        _alike[key] = first == second
    _require_no_known_difference(*key)


def _require_no_known_difference(cls: Any, names: frozenset[str]) -> None:
    """Raises: Barrier if models of the class are known to differ, before one more is made: that may take 50 ms."""
    if _alike.get((cls, names)) is False:
        raise Barrier(f"each {type_name(cls)} has a client of its own", "make it outside of the function")


def _without_warning(run: Run, owner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return arguments with the same result but no warning.

    LangChain turns to tools for a model of pydantic 1, and for a model that is known to have no structured output.
    Raises: Barrier if another class may warn of such a model.
    """
    schema, old = kwargs.get("schema", args[0] if args else None), foreign.old_model()
    held: Any = schema.held if type(schema) is Opaque else None
    is_old = old is not None and foreign.is_class(held) and foreign.is_subtype(held, old)
    is_unable = _has_no_structured_output(getattr(owner, "model_name", None))
    warns = foreign.module_of(stock_class(owner)).startswith("langchain_openai.")
    if is_unable and not warns:
        raise Barrier(f"LangChain may warn of structured output of {owner.model_name}")
    if not (is_old or is_unable) or not warns or kwargs.get("method", "json_schema") != "json_schema":
        return kwargs
    if not outlets.warns(UserWarning):
        run.raises()
    return {**kwargs, "method": "function_calling"}


def _has_no_structured_output(model: Any) -> bool:
    """Whether LangChain warns of structured output of the OpenAI model of this name."""
    return type(model) is str and (model.startswith(("gpt-3", "gpt-4-")) or model == "gpt-4")


def _require_clean(made: Any) -> None:
    """Raises: Barrier if using the object runs user code without a check at its use."""
    if foreign.is_kind_of(made, BasePromptTemplate):
        require_clean_template(made)


# --- arguments -------------------------------------------------------------------------------------------------------


def _argument(run: Run, exchange: Exchange, value: Any) -> Any:
    """Return a value for a constructor or method: plain data, components, and clean classes."""
    kind = type(value)
    if kind is list or kind is tuple:
        if run.is_tainted(value):
            raise Undecided
        return kind([_argument(run, exchange, each) for each in value])
    if kind is dict:
        if run.is_tainted(value):
            raise Undecided
        return {exchange.out(key): _argument(run, exchange, each) for key, each in value.items()}
    if not isinstance_of(value, Opaque):
        return exchange.out(value)
    held = value.held
    if isinstance_of(value, Callee):
        raise Barrier("it hands a function to a component")
    if foreign.is_class(held):
        if foreign.is_one_of(held, _SIMPLE_TYPES):
            return held
        if not (foreign.is_one_of(type(held), foreign.TYPED_DICT_METAS) and _is_simple_typed_dict(held)):
            require_clean_schema(held)
        return held
    if foreign.is_kind_of(held, BaseTool):
        _require_clean_tool(held)
        return held
    if any(foreign.is_kind_of(held, each) for each in _PARTS):
        return held
    if _is_client(held):
        return held
    raise Barrier(f"it hands {shown(value)} to a component")


_SIMPLE_TYPES = (str, int, float, bool)


def _is_client(held: Any) -> bool:
    """Whether the value is an engine of ours, or a client that a user gives to a model."""
    return foreign.module_of(type(held)).split(".")[0] in ("teola_plugin", "httpx", "openai")


def _is_simple_typed_dict(cls: Any) -> bool:
    hints = foreign.namespace_of(cls).get("__annotations__")
    return type(hints) is dict and all(_is_simple_hint(hint) for hint in hints.values())


def _is_simple_hint(hint: Any) -> bool:
    if foreign.is_class(hint):
        return foreign.is_one_of(hint, (*_SIMPLE_TYPES, list, dict, type(None))) or (
            foreign.is_one_of(type(hint), foreign.TYPED_DICT_METAS) and _is_simple_typed_dict(hint)
        )
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return True
    return origin is not None and all(foreign.is_atom(each) or _is_simple_hint(each) for each in typing.get_args(hint))


def _require_clean_tool(tool: Any) -> None:
    is_plain = tool.args_schema is None or type(tool.args_schema) is dict
    if not foreign.is_one_of(type(tool), (StructuredTool, Tool)) or not (is_plain or has_clean_arguments(tool)):
        raise Barrier(f"it hands the tool {tool.name!r} to a model")


def _part(run: Run, value: Any, *, is_step: bool = True) -> Any:
    """Return a part of a chain: a component, or a dict of components; functions are held by a stand-in."""
    kind = type(value)
    if kind is Unknown or run.is_tainted(value):
        raise Undecided
    if kind is dict:
        return {key: _part(run, each) for key, each in value.items()}
    if kind is list or kind is tuple:
        return kind([_part(run, each) for each in value])
    if not isinstance_of(value, Opaque):
        if kind in ATOMS and not is_step:
            return value
        raise TypeError("Expected a Runnable, callable or dict.")
    if foreign.is_kind_of(value.held, Runnable):
        return value.held
    if isinstance_of(value, Callee) or foreign.is_one_of(type(value.held), _FUNCTIONS):
        return Function(value)
    raise Barrier(f"it makes a chain of {shown(value)}")


_FUNCTIONS = (
    types.FunctionType, types.MethodType, types.BuiltinFunctionType, operator.itemgetter, functools.partial,
)  # fmt: skip


def _exceptions(exchange: Exchange, value: Any) -> Any:
    """Return arguments of `with_retry`, Python's own exceptions included."""
    if type(value) is tuple:
        return tuple([_exceptions(exchange, each) for each in value])
    held = value.held if type(value) is Opaque else None
    if held is not None and foreign.is_class(held) and foreign.is_subtype(held, BaseException):
        return held
    return exchange.out(value)


# --- keys ------------------------------------------------------------------------------------------------------------


def _key_of(value: Any) -> Any:
    """Return a key, equal for arguments with equal results."""
    kind = type(value)
    if kind is Unknown:
        return Same(value)
    if kind is list or kind is tuple:
        return (kind, *map(_key_of, value))
    if kind is dict:
        return (kind, *((_key_of(key), _key_of(each)) for key, each in value.items()))
    if isinstance_of(value, Opaque):
        return Same(value if isinstance_of(value, Callee) else value.held)
    return value_key(value)


def _is_hashable(key: Hashable) -> bool:
    todo = [key]
    while todo:
        each = todo.pop()
        if not is_comparable(each):
            return False
        if type(each) is tuple:
            todo += each
    return True

"""LlamaIndex for the reader: how a program calls and makes models, templates and components.

    asker = LlamaIndexAsker(is_async=False)
    asker.use(run, engine, "query", (question,), {})

A user's class is unknown here: the reader reads its methods, or stops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from llama_index.core import Settings
from llama_index.core.async_utils import run_jobs
from llama_index.core.llms import LLM
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate

from teola_plugin.adapters import sdk_clients, web_clients, web_httpx, web_pages
from teola_plugin.adapters.handlers import noted_by
from teola_plugin.adapters.llamaindex.listeners import handlers_of
from teola_plugin.adapters.llamaindex.models import is_structured
from teola_plugin.adapters.llamaindex.reading_builders import Builder, is_made, maker_of
from teola_plugin.adapters.llamaindex.reading_models import (
    ASKING,
    FORMATTING,
    Models,
    fill_in,
    is_template,
    make_message,
    make_template,
    makes_message,
)
from teola_plugin.adapters.llamaindex.reading_parts import (
    METHODS,
    Parts,
    Reports,
    is_own,
    is_taken_apart,
    kind_of,
    methods_of,
    own_attribute,
    read_apart,
    read_own,
    replacement_of,
    surrounded,
)
from teola_plugin.adapters.llamaindex.reading_settings import setting
from teola_plugin.adapters.llamaindex.reading_workflows import Contexts, is_event_class, is_of_context, make_event
from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.asking import NOT_MINE
from teola_plugin.adapters.reader.attributes import bound
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.natives_async import gather
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Arguments, Barrier, Callee, Handler, Opaque, Pending, type_name
from teola_plugin.value_keys import Same

_STREAMS = frozenset({
    "stream", "astream", "stream_complete", "astream_complete", "stream_chat", "astream_chat",
    "stream_structured_predict", "astream_structured_predict",
})  # fmt: skip

_TEMPLATES = (PromptTemplate, ChatPromptTemplate)

_OF_SETTINGS = {"llm": "_llm", "embed_model": "_embed_model"}


class LlamaIndexAsker:
    """Implements `asking.Asker` for one call. `is_async`: whether the call has an event loop. More: see `Parts`.

    `reached`: how often components of the user's own classes were read, by their ids, in the evaluation that came
    furthest.
    """

    def __init__(
        self, *, is_async: bool, reports: Reports = lambda *asked: None,
        runs_loops: bool = False,
    ) -> None:  # fmt: skip
        self.reached: Counter[int] = Counter()
        self._here: Counter[int] = Counter()
        self._is_async = is_async
        self._models = Models()
        self._parts = Parts(is_async=is_async, reports=reports, runs_loops=runs_loops)
        self._builder = Builder(lambda run: _of_settings(run, "llm"))
        self._contexts = Contexts()
        self.heard: set[Hashable] = set(noted_by(handlers_of()))
        self._hearing: dict[int, Any] = {}

    def has_made(self, component: Any) -> bool:
        """Whether the reader has made the component: the framework's run makes one that is like it."""
        return self._builder.has_made(component)

    def begin(self) -> None:
        """Begin an evaluation."""
        self._here = Counter()
        self._contexts = Contexts()

    # --- attributes --------------------------------------------------------------------------------------------------

    def attribute(self, run: Run, owner: Opaque, name: str) -> Any:
        """See `asking.Asker`."""
        held = owner.held
        if held is Settings:
            return _of_settings(run, name)
        if is_of_context(held):
            return self._contexts.attribute(run, held, name)
        if make := maker_of(held, name):
            return self._builder.method(held, name, make)
        if foreign.is_class(held):
            if makes_message(held, name):
                return Callee(make_message, name)
            is_maker = name == "from_messages" and held is ChatPromptTemplate
            return Callee(_making(held), name) if is_maker else NOT_MINE
        if foreign.is_kind_of(held, LLM):
            return self._of_model(held, name)
        if web_clients.searches(held, name):
            return web_clients.searching(held, name, Same, _here)
        if (found := web_pages.attribute(owner, name)) is not NOT_MINE:
            return found
        if (found := web_httpx.attribute(run, owner, name, Same, _here, _here)) is not NOT_MINE:
            return found
        if (found := sdk_clients.attribute(owner, name, Same, _here, _here)) is not NOT_MINE:
            return found
        if is_template(held) and name in FORMATTING:
            return Callee(lambda run, args, kwargs: fill_in(run, held, name, args, kwargs), name)
        return self._of_part(run, owner, name)

    def _of_model(self, held: Any, name: str) -> Any:
        if name in _STREAMS:
            return Callee(_refusing(f"it calls {name} of {type_name(type(held))}", "ask for the whole reply"), name)
        if name not in ASKING:
            return NOT_MINE

        def ask(run: Run, args: Arguments, kwargs: dict[str, Any]) -> Any:
            for each in (held, held.llm) if is_structured(held) else (held,):
                self._note_heard(each)
            run.heard = self.heard

            def force() -> Any:
                return self._models.ask(run, held, name, args, kwargs)

            return self._awaited(force) if name.startswith("a") else force()

        return Callee(ask, name)

    def _note_heard(self, llm: Any) -> None:
        """Note that objects held by handlers of a model may change from here on."""
        if id(llm) not in self._hearing:
            self._hearing[id(llm)] = llm
            self.heard.update(noted_by(handlers_of(llm)))

    def _of_part(self, run: Run, owner: Opaque, name: str) -> Any:
        held = owner.held
        methods = methods_of(held)
        is_async = name.startswith("a") and name[1:] in methods
        if is_own(held) and name.removeprefix("a") != methods[0]:
            return own_attribute(run, owner, name)
        if not (is_async or name in methods):
            return NOT_MINE

        def use(run: Run, args: Arguments, kwargs: dict[str, Any]) -> Any:
            def force() -> Any:
                found = self.use(run, held, name, args, kwargs)
                return found.force() if is_async and type(found) is Pending else found

            return self._awaited(force) if is_async else force()

        return Callee(use, name)

    def inherited(self, run: Run, owner: Opaque, found: Any, name: str) -> Any:
        """Return the method that `super()` has, if LlamaIndex surrounds it, or it is LlamaIndex's around a user's."""
        held, kind = owner.held, kind_of(owner.held)
        if is_own(held) and (function := surrounded(found)) is not None:
            return bound(run, function, owner, name)
        is_around = kind is not None and is_own(held) and name.removeprefix("a") == METHODS[kind][0]
        if not (is_around and found is foreign.in_mro(kind, name)):  # type: ignore[arg-type]
            return NOT_MINE

        def use(run: Run, args: Arguments, kwargs: dict[str, Any]) -> Any:
            def force() -> Any:
                return read_own(run, held, name, args, kwargs, is_inherited=True)

            return self._awaited(force) if name.startswith("a") else force()

        return Callee(use, name)

    def _awaited(self, force: Any) -> Pending:
        if not self._is_async:
            raise Barrier("it makes a coroutine in a call without an event loop", "call the asynchronous method")
        return Pending(force)

    def use(self, run: Run, component: Any, method: str, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
        """Return the result of a component's method. Raises: Barrier, Stalled, and the program's own errors."""
        is_apart = is_taken_apart(component, method)
        if not (is_own(component) or is_apart):
            return self._parts.use(run, component, method, args, kwargs)
        if not run.in_doubt:
            self._here[id(component)] += 1
            self.reached |= self._here
        if is_apart:
            return read_apart(run, component, method, args, kwargs, self.use)
        if (function := replacement_of(component, method)) is not None:  # no method of the framework's is around it
            return call(run, run.load(function), (run.load(component), *args), dict(kwargs))
        return read_own(run, component, method, args, kwargs)

    def setting(self, held: Any, name: str) -> str | None:
        """See `reading_settings.setting`."""
        return setting(held, name)

    # --- calls -------------------------------------------------------------------------------------------------------

    def call(self, run: Run, callee: Opaque, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """See `asking.Asker`."""
        if web_pages.method_of_call(callee.held):
            source = Same(callee.held)
            return web_pages.requesting(run, callee.held, tuple(args), kwargs, source, _here)
        if web_httpx.is_get(callee.held):
            return web_httpx.requesting(run, callee.held, tuple(args), kwargs, Same(callee.held), _here)
        if make := maker_of(callee.held):
            return self._builder.make(run, make, args, kwargs)
        if (function := surrounded(callee.held)) is not None:
            return call(run, run.load(function), tuple(args), kwargs)
        if callee.held is not run_jobs:
            return NOT_MINE
        if len(args) != 1 or kwargs.keys() - {"workers", "show_progress", "desc"}:
            raise Barrier("it calls run_jobs() in an unusual way")
        run.require_known(*kwargs.values())
        if run.is_unknown(args[0]) or type(args[0]) is not list:
            raise Barrier("it calls run_jobs() with what is no list of coroutines")
        return gather(run, tuple(args[0]), {})

    def construct(self, run: Run, cls: type, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """See `asking.Asker`."""
        if is_event_class(cls):
            return make_event(run, cls, tuple(args), kwargs)
        if web_clients.is_client_class(cls):
            return web_clients.made(run, cls, args, kwargs)
        if web_httpx.is_client_class(cls):
            return web_httpx.made(run, cls, tuple(args), kwargs)
        if web_httpx.is_timeout_class(cls):
            return web_httpx.made_timeout(run, tuple(args), kwargs)
        if sdk_clients.is_client_class(cls):
            return sdk_clients.made(run, cls, tuple(args), kwargs)
        if is_made(cls):
            return self._builder.make(run, cls, args, kwargs)
        return make_template(run, cls, cls, tuple(args), kwargs) if foreign.is_one_of(cls, _TEMPLATES) else NOT_MINE

    def combine(self, run: Run, left: Any, right: Any) -> Any:
        """See `asking.Asker`."""
        return NOT_MINE


def _here(request: Callable[[], Any]) -> Any:
    return request()


def _of_settings(run: Run, name: str) -> Any:
    """Return `Settings.name`, if set. Raises: Barrier if not set."""
    own = foreign.own_attributes(Settings) or {}
    held = own.get(_OF_SETTINGS.get(name, ""))
    if held is None:
        raise Barrier(f"it uses {name} of Settings")
    return run.load(run.as_first_read(Settings, name, held))  # the run may set another model meanwhile


def _making(cls: Any) -> Handler:
    return lambda run, args, kwargs: make_template(run, cls, cls.from_messages, args, kwargs)


def _refusing(what: str, hint: str) -> Handler:
    def refuse(run: Run, args: Arguments, kwargs: dict[str, Any]) -> Any:
        raise Barrier(what, hint)

    return refuse

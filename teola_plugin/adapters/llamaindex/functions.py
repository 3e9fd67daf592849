"""Plain functions that use LlamaIndex components: runs of a user function without a component around."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from teola_plugin.adapters.llamaindex.own_parts import own_parts
from teola_plugin.adapters.llamaindex.own_runs import OwnRun
from teola_plugin.adapters.llamaindex.parts import Following, Parts, entered
from teola_plugin.adapters.llamaindex.reachable import HOLDERS, reachable
from teola_plugin.adapters.llamaindex.reading import LlamaIndexAsker
from teola_plugin.adapters.llamaindex.trace import instrument_loaded, parts_among
from teola_plugin.adapters.reader.asking import NOT_MINE, Asker
from teola_plugin.adapters.reader.calling import call
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Opaque, Pending
from teola_plugin.trace import Reading


def followed(held: Iterable[Any]) -> Callable[[Any], Following]:
    """Return the follower of a function. `held`: what the function may use; the components have parts of their own."""
    instrument_loaded()
    roots = [each for each in held if issubclass(type(each), HOLDERS)]  # `isinstance` runs a proxy's `__class__`
    components = {id(each): each for root in roots for each in reachable(root) if isinstance(each, HOLDERS)}.values()
    parts = Parts(parts_among([*components]), own_parts(components))
    return parts.follow


def running(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], reading: Reading, others: Asker, *, is_async: bool
) -> contextlib.AbstractContextManager[None]:
    """Surround the run of a function. `others`: the knowledge of further frameworks."""

    def program(asker: LlamaIndexAsker, run: Run, given: Any) -> object:
        found = call(run, run.load(function), tuple(given[0]), dict(given[1]))
        return found.force() if is_async and type(found) is Pending else found

    make = partial(_Asker, others)
    own = OwnRun(
        program, [list(args), dict(kwargs)], reading, is_async, roots=[function], make_asker=make, is_beside=False,
        is_whole=True,
    )  # fmt: skip
    return entered(function, own)


class _Asker(LlamaIndexAsker):
    """Adds further frameworks to LlamaIndex."""

    def __init__(self, others: Asker, **settings: Any) -> None:
        super().__init__(**settings)
        self._others = others

    def attribute(self, run: Run, owner: Opaque, name: str) -> Any:
        """See `Asker`."""
        found = self._others.attribute(run, owner, name)
        return super().attribute(run, owner, name) if found is NOT_MINE else found

    def call(self, run: Run, callee: Opaque, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """See `Asker`."""
        found = self._others.call(run, callee, args, kwargs)
        return super().call(run, callee, args, kwargs) if found is NOT_MINE else found

    def construct(self, run: Run, cls: type, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """See `Asker`."""
        found = self._others.construct(run, cls, args, kwargs)
        return super().construct(run, cls, args, kwargs) if found is NOT_MINE else found

    def combine(self, run: Run, left: Any, right: Any) -> Any:
        """See `Asker`."""
        return self._others.combine(run, left, right)

"""Programs with statements that are not read, run and read side by side, in one thread.

hidden = hide(text, random.Random(3))     some statements of the functions of a module come to be unreadable
side = SideBySide(function, reply, random.Random(5))
side.run(models, arguments)               CPython runs it; each request lands in real slots, which the reading fills
side.extra, side.ahead                    requests that the run did not make; those that it found
"""

from __future__ import annotations

import ast
import contextlib
import io
import random
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from teola_plugin.adapters.reader.asking import Request
from teola_plugin.adapters.reader.calls import call
from teola_plugin.adapters.reader.prediction import Prediction, State
from teola_plugin.adapters.reader.run import Given, Run
from teola_plugin.adapters.reader.stacks import Listener
from teola_plugin.engines import Done
from teola_plugin.request_identity import request_key
from teola_plugin.runtime.session.slots import Next, Slots
from teola_plugin.seams import Reply
from teola_plugin.trace import Asked, Hear, Mark
from tests.adapters.reader.fuzzing import NATIVE_S, Key, World, Worldly, limited
from tests.adapters.reader.world import ELSEWHERE

HIDDEN = 'unread = eval("lambda act: act()", {"__name__": "client"})'
"""A function without source, which does what it is given."""


def hide(text: str, rnd: random.Random, share: float = 0.3) -> str:
    """The text of a module, some statements of whose programs are not read."""
    module = ast.parse(text)
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("program_"):
            for statement in ast.walk(node):
                if isinstance(statement, ast.Assign | ast.Expr) and rnd.random() < share and _can_hide(statement.value):
                    statement.value = _hidden(statement.value)
    return f"{HIDDEN}\n{ast.unparse(ast.fix_missing_locations(module))}"


def _can_hide(value: ast.expr) -> bool:
    refused = (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, ast.Constant)
    return not any(isinstance(each, refused[:4]) for each in ast.walk(value)) and not isinstance(value, ast.Constant)


def _hidden(value: ast.expr) -> ast.expr:
    given = ast.Lambda(ast.arguments([], [], None, [], [], None, []), value)
    return ast.Call(ast.Name("unread", ast.Load()), [given], [])


class SideBySide:
    """One run of a program, and what is read of it meanwhile. `rnd` decides when something is read, and answered.

    `is_beside`: as in a chain, whose other parts may ask at the same time.
    """

    def __init__(
        self, program: Any, reply: Callable[[Key, int], Any], rnd: random.Random, *, is_beside: bool = False
    ) -> None:
        self.ahead = 0
        self.skipped = 0
        self.barriers: list[str] = []
        self._program, self._rnd, self._make, self._is_beside = program, rnd, reply, is_beside
        self._slots = Slots()
        self._numbers: Counter[Hashable] = Counter()
        self._works: list[Callable[[], None]] = []
        self._late: list[Callable[[], None]] = []
        self._hearing: list[Hear] = []

    def run(self, given: Mapping[str, Any]) -> Any:
        """What CPython makes of the program, or the error that it raises."""
        world = World(self._asked.__call__)  # notes do not follow it: what is here is no code of the program's
        listener = Listener(roots=[self._program])
        self.when_asked(listener.hear)
        copies = Given()
        own = {name: copies.copy(value) for name, value in {**world.models, **given}.items()}
        copies.note([self._program])

        def read(run: Run) -> None:
            run.is_beside = self._is_beside
            try:
                call(run, run.load(self._program), (), dict(own))
            finally:
                self.skipped = max(self.skipped, len(run.skipped))

        prediction = Prediction(Worldly(may_raise=False), self, State(read, copies), listener=listener)
        prediction.begin()
        self._turn()
        found: Any = None
        with contextlib.redirect_stdout(io.StringIO()), limited(NATIVE_S):
            try:
                found = self._program(**world.models, **given)
            except Exception as e:
                found = e
        self.barriers = [each.what for each in prediction.barriers]
        prediction.stop()
        return found

    @property
    def extra(self) -> int:
        """Requests that were made and not taken by the run."""
        return self._slots.clear()[1]

    # --- the run -----------------------------------------------------------------------------------------------------

    def _asked(self, key: Key, number: int) -> Any:
        question = sys._getframe(1).f_locals["question"]
        self._turn()

        def asked() -> Hashable:
            return request_key(ELSEWHERE, "decoding", question, {})

        self._hearing = [hear for hear in self._hearing if hear(Asked(asked, self._slots.mark))]
        self._turn()
        slot = self._slots.retire(key)
        if slot.outcome != "hit":
            self._answer(key, slot)
        while slot.reply.outcome is None:
            self._late.pop(0)()
        self.ahead += slot.outcome == "hit"
        outcome = slot.reply.outcome
        assert isinstance(outcome, Done)
        return outcome.value

    def _turn(self) -> None:
        while self._works and self._rnd.random() < 0.8:
            self._works.pop(0)()
        while self._late and self._rnd.random() < 0.5:
            self._late.pop(self._rnd.randrange(len(self._late)))()

    def _answer(self, key: Any, slot: Next) -> None:
        number = self._numbers[key]
        self._numbers[key] += 1
        self._late.append(lambda: slot.reply.put(Done(self._make(key, number))))

    # --- the reading: implements `Line` ------------------------------------------------------------------------------

    def ask(self, request: Request, mark: Mark | None = None) -> Reply | None:
        """See `Line`."""
        if mark is not None and mark.is_beside and mark.taken(request.key):
            return None
        is_next = mark is None or mark.is_beside
        slot = self._slots.ahead(request.key) if is_next else self._slots.coming(request.key, mark)
        if slot.outcome == "miss":
            self._answer(request.key, slot)
        return slot.reply

    def give_up(self, reply: Reply) -> None:
        """Nothing is only possible."""

    def soon(self, work: Callable[[], None]) -> None:
        """See `Line`."""
        self._works.append(work)

    def spent(self, seconds: float) -> None:
        """Nobody counts."""

    def when_asked(self, hear: Hear) -> None:
        """See `Line`."""
        self._hearing.append(hear)

"""Statements of a program, compiled to closures over frames. Each returns its end: a `Signal`, or None to go on."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from teola_plugin.adapters.reader import calls, classes, operators
from teola_plugin.adapters.reader.expressions import Expressions, binary_name, is_new_list, operate, refusing
from teola_plugin.adapters.reader.heap import (
    BREAK,
    CONTINUE,
    FUNCTION,
    OUTER,
    RETURN,
    RETURNED,
    RUN,
    Beginning,
    Block,
    Ended,
    Frame,
)
from teola_plugin.adapters.reader.patterns import Pattern, compiled_pattern
from teola_plugin.adapters.reader.resuming import goes_on, head_of, place_of, targets_of
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.scopes import Evaluate, Store
from teola_plugin.adapters.reader.table import is_collection
from teola_plugin.adapters.reader.values import ANYWHERE, Barrier, Lazy, Opaque, Stalled, Undecided, Unknown

COMPUTES = "it computes with numpy"


class Statements(Expressions):
    """Compiles the statements of one scope."""

    _targets: Sequence[str] | None = None
    """The variables that loops around set; see `resuming.Place`."""

    def _repeated_block(self, nodes: Sequence[ast.stmt], targets: Sequence[str] = ()) -> Block:
        outer, self._targets = self._targets, (*(self._targets or ()), *targets)
        try:
            return self.block(nodes)
        finally:
            self._targets = outer

    def block(self, nodes: Sequence[ast.stmt]) -> Block:
        """Compile a block of statements."""
        targets = self._targets
        parts = [(self._statement(node), place_of(node, nodes, targets)) for node in nodes]
        filename = self.filename

        def block(frame: Frame) -> Ended:
            run: Run = frame[RUN]
            level = run.levels[-1]
            for part, place in parts:
                level.place = place
                changes, computed, used = run.changes.number, run.computed, run.used
                try:
                    ended = part(frame)
                except Barrier as e:
                    e.where = e.where or f"{filename}:{place.start}"
                    if not goes_on(run, frame, place, e, run.stops):
                        raise
                    continue
                except RecursionError as e:
                    raise _too_deep(f"{filename}:{place.start}") from e
                except Stalled:
                    if run.computed == computed or not goes_on(run, frame, place, Barrier(COMPUTES), run.after):
                        raise
                    continue
                is_later = run.changes.number > changes or run.computed > computed
                if is_later and ended is None and run.used == used:
                    goes_on(run, frame, place, Barrier(run.changes.what or COMPUTES), run.after)
                if ended is not None:
                    return ended
            return None

        return block

    def returning(self, node: ast.expr) -> Block:
        """Compile the body of a lambda."""
        value, place, filename = self.expression(node), place_of(node, [node]), self.filename

        def block(frame: Frame) -> Ended:
            frame[RUN].levels[-1].place = place
            try:
                frame[RETURNED] = value(frame)
            except Barrier as e:
                e.where = e.where or f"{filename}:{place.start}"
                raise
            except RecursionError as e:
                raise _too_deep(f"{filename}:{place.start}") from e
            return RETURN

        return block

    def _statement(self, node: ast.stmt) -> Block:
        compile_ = getattr(self, f"_do_{type(node).__name__.lower()}", None)
        return compile_(node) if compile_ else refusing(f"it uses {type(node).__name__}")

    # --- simple ------------------------------------------------------------------------------------------------------

    def _do_expr(self, node: ast.Expr) -> Block:
        value = self.whole(node.value)

        def evaluate(frame: Frame) -> Ended:
            value(frame)
            return None

        return evaluate

    def _do_pass(self, node: ast.stmt) -> Block:
        return lambda frame: None

    _do_global = _do_nonlocal = _do_pass

    def _do_break(self, node: ast.Break) -> Block:
        return lambda frame: BREAK

    def _do_continue(self, node: ast.Continue) -> Block:
        return lambda frame: CONTINUE

    def _do_return(self, node: ast.Return) -> Block:
        value: Evaluate = self.whole(node.value) if node.value else lambda frame: None

        def return_(frame: Frame) -> Ended:
            frame[RETURNED] = value(frame)
            return RETURN

        return return_

    def _do_assign(self, node: ast.Assign) -> Block:
        is_new = len(node.targets) == 1 and is_new_list(node.value)
        value, targets = self.whole(node.value), [self.target(each, is_new=is_new) for each in node.targets]

        def assign(frame: Frame) -> Ended:
            found = value(frame)
            for target in targets:
                target(frame, found)
            return None

        return assign

    def _do_annassign(self, node: ast.AnnAssign) -> Block:
        if node.value is None:
            return lambda frame: None
        value, target = self.whole(node.value), self.target(node.target)

        def assign(frame: Frame) -> Ended:
            target(frame, value(frame))
            return None

        return assign

    def _do_augassign(self, node: ast.AugAssign) -> Block:
        value, name = self.expression(node.value), binary_name(node.op)
        match node.target:
            case ast.Subscript(value=owner, slice=index):
                return self._augmented_item(self.expression(owner), self.expression(index), name, value)
            case ast.Attribute(value=owner, attr=attribute):
                return self._augmented_attribute(self.expression(owner), attribute, name, value)
        load = self.expression(ast.copy_location(ast.Name(node.target.id, ast.Load()), node))
        store = self.target(node.target)

        def assign(frame: Frame) -> Ended:
            held = load(frame)
            store(frame, _in_place(frame[RUN], name, held, value(frame)))
            return None

        return assign

    def _augmented_item(self, owner: Evaluate, index: Evaluate, name: str, value: Evaluate) -> Block:
        def assign(frame: Frame) -> Ended:
            run: Run = frame[RUN]
            held, at = owner(frame), index(frame)
            try:
                before = operators.subscript(run, held, at)
            except Undecided:
                before = run.unknown(held, at)
            operators.set_item(run, held, at, _in_place(run, name, before, value(frame)))
            return None

        return assign

    def _augmented_attribute(self, owner: Evaluate, attribute: str, name: str, value: Evaluate) -> Block:
        def assign(frame: Frame) -> Ended:
            run: Run = frame[RUN]
            held = owner(frame)
            try:
                before = classes.attribute(run, held, attribute)
            except Undecided:
                before = run.unknown(held)
            classes.set_attribute(run, held, attribute, _in_place(run, name, before, value(frame)))
            return None

        return assign

    def _do_delete(self, node: ast.Delete) -> Block:
        parts: list[Callable[[Frame], None]] = [self._deletion(each) for each in node.targets]

        def delete(frame: Frame) -> Ended:
            for part in parts:
                part(frame)
            return None

        return delete

    def _deletion(self, node: ast.expr) -> Callable[[Frame], None]:
        match node:
            case ast.Name(id=name) if self.scope.distance(name) == 0:
                load = self.scope.load(name)

                def forget(frame: Frame) -> None:
                    load(frame)
                    frame[RUN].note(frame)
                    del frame[name]

                return forget
            case ast.Subscript(value=value, slice=index):
                owner, at = self.expression(value), self.expression(index)
                return lambda frame: operators.del_item(frame[RUN], owner(frame), at(frame))
            case _:
                return refusing("it deletes something else than a variable or an item")

    def _do_assert(self, node: ast.Assert) -> Block:
        test = self.expression(node.test)
        message = self.expression(node.msg) if node.msg else None
        error = AssertionError if node.msg is None or isinstance(node.msg, ast.Constant) else Exception

        def check(frame: Frame) -> Ended:
            run: Run = frame[RUN]
            found = test(frame)
            try:
                if not operators.truth(run, found):
                    raise run.made_exception(AssertionError(*([message(frame)] if message else [])))
            except Undecided:
                run.raises(error=error)
            return None

        return check

    def _do_raise(self, node: ast.Raise) -> Block:
        value = self.expression(node.exc) if node.exc else None
        cause = self.expression(node.cause) if node.cause else None

        def raise_(frame: Frame) -> Ended:
            run: Run = frame[RUN]
            if value is None:
                error = sys.exc_info()[1]
                raise error if isinstance(error, Exception) else RuntimeError("No active exception to reraise")
            found = value(frame)
            if type(found) is Opaque and classes.is_class(found.held):
                found = classes.construct(run, found, (), {})
            if cause is not None:
                cause(frame)
            if type(found) is Unknown:
                raise Stalled("what is raised is not known yet")
            if not classes.is_exception(found):
                raise Barrier("it raises what is no exception that is read")
            raise found

        return raise_

    def _do_import(self, node: ast.Import) -> Block:
        parts = [(each.name, each.asname, self.scope.store(each.asname or _first(each.name))) for each in node.names]

        def import_(frame: Frame) -> Ended:
            for name, alias, store in parts:
                _module(name)
                store(frame, frame[RUN].load(_module(name if alias else _first(name))))
            return None

        return import_

    def _do_importfrom(self, node: ast.ImportFrom) -> Block:
        if node.level or node.module is None:
            return refusing("it imports by a relative name")
        path = node.module
        parts = [(each.name, self.scope.store(each.asname or each.name)) for each in node.names if each.name != "*"]

        def import_(frame: Frame) -> Ended:
            run: Run = frame[RUN]
            module = run.load(_module(path))
            for name, store in parts:
                store(frame, classes.attribute(run, module, name))
            return None

        return import_

    def _do_functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Block:
        define, store = self.function(node, node.name), self.scope.store(node.name)
        decorators = [self.expression(each) for each in node.decorator_list]

        def functiondef(frame: Frame) -> Ended:
            made = [decorator(frame) for decorator in decorators]
            value = define(frame)
            for decorator in reversed(made):
                value = calls.call_site(frame[RUN], decorator, ((value,), {}))
            store(frame, value)
            return None

        return functiondef

    _do_asyncfunctiondef = _do_functiondef

    # --- choices -----------------------------------------------------------------------------------------------------

    def _do_if(self, node: ast.If) -> Block:
        test, body = self.expression(node.test), self.block(node.body)
        orelse: Block = self.block(node.orelse) if node.orelse else lambda frame: None
        branch = (self.filename, node.lineno, node.col_offset)

        def if_(frame: Frame) -> Ended:
            run: Run = frame[RUN]
            found = test(frame)
            try:
                is_true = operators.truth(run, found)
            except Undecided:
                likely = run.assumed(branch, found)
                if likely is None:
                    return run.fork(frame, body, orelse, run.sources(found) or ANYWHERE, (found, True))
                return body(frame) if likely is True else orelse(frame)
            run.decided_as(branch, is_true)
            return body(frame) if is_true else orelse(frame)

        return if_

    def _do_match(self, node: ast.Match) -> Block:
        subject = self.expression(node.subject)
        cases: list[tuple[Pattern, Evaluate | None, Block]] = [
            (
                compiled_pattern(self, each.pattern),
                self.expression(each.guard) if each.guard else None,
                self.block(each.body),
            )
            for each in node.cases
        ]

        def match_(frame: Frame) -> Ended:
            run: Run = frame[RUN]
            value = subject(frame)
            try:
                held = (b for p, guard, b in cases if p(frame, value) and _holds(run, frame, guard))
                body = next(held, None)
            except Undecided as e:
                raise Stalled from e
            return None if body is None else body(frame)

        return match_

    # --- loops -------------------------------------------------------------------------------------------------------

    def _do_for(self, node: ast.For) -> Block:
        source, target = self.expression(node.iter), self.target(node.target)
        body = self._repeated_block(node.body, targets_of(node))
        orelse: Block = self.block(node.orelse) if node.orelse else lambda frame: None
        is_temporary = isinstance(node.iter, ast.Call)
        head, where = head_of(node, self._targets), f"{self.filename}:{node.lineno}"

        def loop(frame: Frame) -> Ended:
            run: Run = frame[RUN]
            try:
                value = source(frame)
            except Barrier as e:
                e.where = e.where or where
                if head is None or not goes_on(run, frame, head, e, run.stops):
                    raise
                marked = run.leaves
                ended = _round(run, frame, body)  # the one that the framework's run is in
                if ended is None:
                    raise run.skipped[-1].again() from None
                return run.absorb(frame, BREAK, ended, marked, None)
            marked = run.leaves
            until: int | None = None
            if run.is_unknown(value):
                _repeat(frame, value, target, body, can_break=not node.orelse)
                return orelse(frame)
            is_ours = is_temporary and type(value) is Lazy  # no other reference exists
            try:
                with run.in_rounds(frame) as rounds:
                    for item in value.iterator if is_ours else operators.iterated(run, value):
                        run.tick()
                        target(frame, item)
                        skipped = len(run.skipped)
                        ended = _round(run, frame, body)
                        if ended is not None:
                            break
                        if len(run.skipped) > skipped:  # which round the framework's run is in is not known
                            raise run.skipped[-1].again()
                        rounds.next(run.met)
                    else:
                        until = run.leaves
                if until is not None:
                    ended = orelse(frame)
            except Undecided as e:
                raise Stalled from e
            return run.absorb(frame, BREAK, ended, marked, until)

        return loop

    def _do_while(self, node: ast.While) -> Block:
        test, body = self.expression(node.test), self._repeated_block(node.body)
        orelse: Block = self.block(node.orelse) if node.orelse else lambda frame: None

        def loop(frame: Frame) -> Ended:
            run: Run = frame[RUN]
            marked = run.leaves
            until: int | None = None
            ended: Ended = None
            while True:
                found = test(frame)
                try:
                    is_true = operators.truth(run, found)
                except Undecided as e:
                    raise Stalled from e
                if not is_true:
                    until = run.leaves
                    ended = orelse(frame)
                    break
                run.tick()
                ended = _round(run, frame, body)
                if ended is not None:
                    break
            return run.absorb(frame, BREAK, ended, marked, until)

        return loop

    # --- exceptions --------------------------------------------------------------------------------------------------

    def _do_try(self, node: ast.Try) -> Block:
        body = self.block(node.body)
        orelse: Block = self.block(node.orelse) if node.orelse else lambda frame: None
        final = self.block(node.finalbody) if node.finalbody else None
        handlers = [self._handler(each) for each in node.handlers]

        def guarded(frame: Frame) -> Ended:
            run: Run = frame[RUN]
            beginning, outer = run.begin(), run.handlers
            run.handlers += len(handlers)
            try:
                ended = body(frame)
            except Exception as error:
                if run.leaves > beginning.leaves or run.raised > beginning.raised:
                    raise Stalled("it may raise before it raises") from error
                return _handled(frame, handlers, error)
            finally:
                run.end(beginning)
                run.handlers = outer
            first = orelse if ended is None else _ending(ended)
            if run.raised == beginning.raised or not handlers:
                return first(frame)
            return _perhaps_handled(frame, beginning, handlers, first)

        if final is None:
            return guarded

        def finished(frame: Frame) -> Ended:
            run: Run = frame[RUN]
            beginning = run.begin()
            try:
                ended = guarded(frame)
            except Exception:
                skipped = len(run.skipped)
                if final(frame) is not None:
                    raise Barrier("a finally block leaves") from None
                _require_read(run, skipped)
                raise
            finally:
                run.end(beginning)
            if run.leaves > beginning.leaves:
                raise Stalled("some paths have left, by way of the finally block")
            returned = frame.get(RETURNED)
            after: Ended = None

            def finish(inner: Frame) -> Ended:
                nonlocal after
                skipped = len(run.skipped)
                after = final(inner)
                if ended is not None:
                    _require_read(run, skipped)
                if after is not None and run.raised > beginning.raised:
                    raise Barrier("a finally block leaves, perhaps from an error")
                return None

            if run.raised > beginning.raised and beginning.around:
                run.pass_through(frame, beginning, finish, finish)
            else:
                finish(frame)
            if after is None:
                frame[RETURNED] = returned  # a path that has left may have returned something else
            return ended if after is None else after

        return finished

    def _handler(self, node: ast.ExceptHandler) -> Handler:
        kinds = self.expression(node.type) if node.type else None
        store = self.scope.store(node.name) if node.name else None
        body = self.block(node.body)
        name = node.name
        is_own = name is None or self.scope.distance(name) == 0

        def forget(frame: Frame) -> None:
            if name is not None and name in frame:
                frame[RUN].note(frame)
                del frame[name]

        def handle(frame: Frame, error: Any) -> Ended:
            if not is_own:
                raise Barrier(f"it sets the name {name}, which is not its own, to an error")
            if store:
                store(frame, error)
            run: Run = frame[RUN]
            skipped = len(run.skipped)
            try:
                ended = body(frame)
            except Exception as raised:  # of the program that is read
                forget(frame)
                if raised is error:
                    _require_read(run, skipped)
                raise
            forget(frame)
            return ended

        return kinds, handle

    def _do_with(self, node: ast.With | ast.AsyncWith) -> Block:
        contexts = [self.expression(each.context_expr) for each in node.items]
        stores = [self.target(each.optional_vars) if each.optional_vars else None for each in node.items]
        body, is_async = self.block(node.body), isinstance(node, ast.AsyncWith)

        def inside(frame: Frame, at: int) -> Ended:
            if at == len(contexts):
                return body(frame)
            store = stores[at]

            def within(value: Any) -> Ended:
                if store:
                    store(frame, value)
                return inside(frame, at + 1)

            ended: Ended = classes.inside(frame, contexts[at](frame), within, is_async=is_async)
            return ended

        return lambda frame: inside(frame, 0)

    _do_asyncwith = _do_with

    def _do_classdef(self, node: ast.ClassDef) -> Block:
        if node.keywords or len(node.decorator_list) > 1:
            return refusing("it defines a class with decorators or arguments")
        made = self._class_members(node)
        decorators = [self.expression(each) for each in node.decorator_list]
        bases, store = [self.expression(each) for each in node.bases], self.scope.store(node.name)
        name, doc = node.name, ast.get_docstring(node, clean=False) if sys.flags.optimize < 2 else None

        def classdef(frame: Frame) -> Ended:
            annotations: dict[str, Any] = {}
            namespace: dict[str, Any] = {} if doc is None else {"__doc__": doc}
            decorated = tuple(decorator(frame) for decorator in decorators)
            found = tuple(base(frame) for base in bases)
            for member, annotation, value in made:
                if annotation is not None:
                    annotations[member] = annotation(frame)
                if value is not None:
                    namespace[member] = value(frame)
            store(
                frame, classes.make_class(frame[RUN], _qualified(frame, name), found, namespace, annotations, decorated)
            )
            return None

        return classdef

    def _class_members(self, node: ast.ClassDef) -> list[tuple[str, Evaluate | None, Evaluate | None]]:
        made: list[tuple[str, Evaluate | None, Evaluate | None]] = []
        set_here = {name for each in node.body for name in _set_by(each)}
        for each in node.body:
            if any(name in set_here for name in _mentioned_in(each)):
                made.append(("", refusing("it defines a class whose body reads its own names"), None))
            if isinstance(each, ast.AnnAssign) and any(map(self.scope.distance, _mentioned_in(each.annotation))):
                made.append(("", refusing("it defines a class whose fields have a class of an outer function"), None))
            match each:
                case ast.AnnAssign(target=ast.Name(id=member), annotation=annotation, value=value):
                    made.append((member, self.expression(annotation), self.expression(value) if value else None))
                case ast.Assign(targets=[ast.Name(id=member)], value=value):
                    made.append((member, None, self.expression(value)))
                case ast.Pass() | ast.Expr(value=ast.Constant()):
                    pass
                case _:
                    made.append(("", refusing("it defines a class with code in it"), None))
        return made


def _set_by(node: ast.stmt) -> list[str]:
    """Return the names that get a value in a statement of a class's body."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [each.id for each in targets if isinstance(each, ast.Name) and node.value is not None]  # type: ignore[attr-defined]


def _mentioned_in(node: ast.AST) -> list[str]:
    return [each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)]


Handler = tuple[Evaluate | None, Callable[[Frame, Any], Ended]]
"""The classes that a handler catches (None: all), and the compiled body, which gets the exception."""


def _qualified(frame: Frame, name: str) -> str:
    """Return the qualified name of a class; the plain name in functions that the program made."""
    function = frame[FUNCTION]
    is_outermost = frame[OUTER] is None and type(function) is types.FunctionType
    return f"{function.__qualname__}.<locals>.{name}" if is_outermost else name


def _round(run: Run, frame: Frame, body: Block) -> Ended:
    """Run one round of a loop; None if the loop goes on."""
    marked = run.leaves
    ended = run.absorb(frame, CONTINUE, run.settle(body, frame), marked)
    return None if ended is CONTINUE else ended


def _repeat(frame: Frame, items: Any, target: Store, body: Block, *, can_break: bool) -> None:
    """Run the rounds of a loop over an unknown value. `can_break`: nothing hangs on whether `break` ends the loop."""
    run: Run = frame[RUN]
    if not is_collection(items):
        run.raises(run.sources(items))

    def round_(inner: Frame) -> Ended:
        run.tick()
        target(inner, run.item_of(items))
        marked = run.leaves
        ended = _round(run, inner, body)
        if can_break:  # the rounds behind are none: there may be any number
            ended = run.absorb(inner, BREAK, ended, marked)
        if ended not in (None, RETURN):
            raise Stalled("a loop is left, and it is not known when")
        return ended

    run.repeat_over(items, frame, round_)


def _in_place(run: Run, name: str, held: Any, value: Any) -> Any:
    try:
        return operators.in_place(run, name, held, value)
    except Undecided:
        return operate(run, name, held, value) if type(held) is Unknown else run.unknown(held, value)


def _handled(frame: Frame, handlers: list[Handler], error: Exception) -> Ended:
    for kinds, handle in handlers:
        if kinds is None or classes.is_caught(frame[RUN], error, kinds(frame)):
            return handle(frame, error)
    raise error


def _ending(ended: Ended) -> Block:
    return lambda frame: ended


def _perhaps_handled(frame: Frame, beginning: Beginning, handlers: list[Handler], first: Block) -> Ended:
    """Join the end of a `try` body with the handlers, as an operation of the body may raise for some replies."""
    run: Run = frame[RUN]
    why = run.gates or ANYWHERE
    caught = tuple([Opaque(Exception) if kinds is None else kinds(frame) for kinds, _ in handlers])
    if classes.takes_each(caught, beginning.errors):
        run.caught(beginning)
    if run.advanced > beginning.advanced:
        run.leave_iterators()
    ways = first
    for _, handle in handlers:
        ways = _either(beginning, ways, handle, why)
    return ways(frame)


def _either(
    beginning: Beginning, first: Block, handle: Callable[[Frame, Any], Ended], why: frozenset[Hashable]
) -> Block:
    def second(frame: Frame) -> Ended:
        run: Run = frame[RUN]
        run.go_back(beginning, why)
        error = run.unknown(is_safe=True)
        error.of = BaseException
        return handle(frame, error)

    return lambda frame: frame[RUN].fork(frame, first, second, why)


def _require_read(run: Run, skipped: int) -> None:
    """Require a block read whole that passes on an error or a result. Raises: Barrier.

    An unread statement may have changed the error or the result, or stand in another round of a loop. `skipped`: how
    many statements were skipped before the block.
    """
    if len(run.skipped) > skipped:
        raise Barrier("it passes on an error or a result, behind what is not read")


def _holds(run: Run, frame: Frame, guard: Evaluate | None) -> bool:
    return guard is None or operators.truth(run, guard(frame))


def _first(path: str) -> str:
    return path.split(".")[0]


def _module(name: str) -> types.ModuleType:
    """Return an imported module. Raises: Barrier."""
    module = sys.modules.get(name)
    if type(module) is not types.ModuleType:
        raise Barrier(f"it imports {name}, which is not loaded")
    return module


def _too_deep(where: str) -> Barrier:
    """Return the barrier for a RecursionError, which is the reader's own: it needs more frames than the program."""
    barrier = Barrier("it goes too deep to be read")
    barrier.where = where
    return barrier


calls.install_compiler(Statements)

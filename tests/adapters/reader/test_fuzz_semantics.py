"""The reader against CPython on random programs that ask models, and on those that it once got wrong.

TEOLA_TEST_PROGRAMS sets how many programs there are, TEOLA_TEST_SEED where they begin.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from teola_plugin.adapters.reader import instances
from tests.adapters.reader.fuzzing import Difference, Verdict, judged
from tests.adapters.reader.random_programs import HEADER, INPUTS, MODELS, inputs, shown, source

pytestmark = pytest.mark.usefixtures("no_batches")

PROGRAMS = int(os.environ.get("TEOLA_TEST_PROGRAMS", "300"))
FIRST = int(os.environ.get("TEOLA_TEST_SEED", "0"))
PER_FILE = 50


def module_of(text: str, path: Path) -> ModuleType:
    """A module with a file, so that the source of its functions can be read."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _only_plain_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """LangChain has a class of texts of its own, so that the type of a text is not known; programs here have none."""
    monkeypatch.setattr(instances, "text_accessor", lambda: None)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + max(1, PROGRAMS // PER_FILE)))
def test_what_is_read_of_a_random_program_is_so(seed: int, tmp_path: Path) -> None:
    found: Counter[str] = Counter()
    text = source(seed, PER_FILE)
    module = module_of(text, tmp_path / f"random_programs_{seed}.py")
    for number in range(PER_FILE):
        name, case = f"program_{number}", seed * 1000 + number
        try:
            verdict = judged(getattr(module, name), inputs(case), case)
        except Difference as e:
            raise AssertionError(f"{e}\n\n{shown(text, name)}\n{inputs(case)()}") from e
        found[_name(verdict)] += 1
    assert found["known"] > PER_FILE // 2, found


def _name(verdict: Verdict | None) -> str:
    if verdict is None:
        return "endless"
    return verdict.barrier or ("stalled" if verdict.is_stalled else "known")


# --- found by the fuzzer ---------------------------------------------------------------------------------------------

WRONG_ONCE = {
    "the hash of a float": """
        person.score += hash(n.ask('7')) + hash(label)
        return hash(ratio), hash(n.ask('a'))
    """,
    "a list that is one of a dict's, emptied by way of the dict": """
        kept, found = {}, []
        for word in w.ask('h'):
            found = kept.setdefault(word, [])
            found.append('aa')
        if found:
            for each in kept.values(): each.clear()
            m.ask(found[0])
        m.ask('end')
    """,
    "a number put into a list of texts to come": """
        xs = m.ask("v").split()
        xs.insert(0, m.ask("w").find("a"))
        return xs, [f"{x}" for x in xs]
    """,
    "a model with a value of another type, of which pydantic warns where warnings are errors": """
        model = model.model_copy(update={'rank': n.ask('one')})
        found = model.model_dump()
        m.ask(found['title'])
        return found
    """,
    "a list that is filled by what is a filter on one of two paths": """
        seen, it, xs = set(), (), []
        if jb.ask('one'): it = filter(lambda x: seen.add(x), ['a', 'b'])
        xs.extend(it)
        return seen
    """,
    "a function with effects that C calls as often as is not known": """
        seen = []
        def joined(all, each):
            seen.append(each)
            return all + each
        found = functools.reduce(joined, m.ask('one').split(), '')
        m.ask(str(len(seen)))
        return found
    """,
    "an expression with effects that C evaluates as often as is not known": """
        seen = []
        found = functools.reduce(lambda all, each: seen.append(each) or all, m.ask('one').split(), '')
        m.ask(str(len(seen)))
        return found
    """,
    "an attribute that an object may have got on one of two paths": """
        person = Person('a', 1)
        if jb.ask('one'):
            if jb.ask('two'): person.extra = 'x'
        found = getattr(person, 'extra', None)
        m.ask(f'three {found}')
        return found
    """,
    "lists of two dicts in one": """
        a, b = {}, {}
        for x in m.ask('c').split():
            a.setdefault(x, []).append('one')
            b.setdefault(x, []).append(2)
        both = {**a, **b}
        for x in m.ask('c').split():
            if x in both: both[x].append('two')
        for v in b.values():
            sum(v)
        m.ask('behind')
    """,
    "an error that passes a finally block on its way to a handler": """
        seen = []
        try:
            try: m.ask(int(m.ask('q')))
            finally: seen.append('x')
        except ValueError:
            seen.append(1)
        m.ask(str(seen))
        return seen
    """,
    "an error that passes a context on its way to a handler": """
        seen = []
        try:
            with Noted(seen): m.ask(int(m.ask('q')))
        except ValueError:
            seen.append(1)
        m.ask(str(seen))
        return seen
    """,
    "an error that a class of contexts may swallow": """
        seen = []
        with Noted(seen, swallows=True): m.ask(int(m.ask('q')))
        return seen
    """,
    "a body that returns, or whose error is swallowed": """
        def inner():
            with swallowing([]):
                m.ask(int(m.ask('q')))
                return 'number'
        return m.ask(inner() or 'none')
    """,
    "a context that may not yield": """
        with hesitating(m) as one:
            m.ask(one)
        return m.ask('behind')
    """,
    "a dict that is changed where its loop is left": """
        xs, d, ys = [], {'a': 'b'}, []
        for x in m.ask('e').split():
            xs.append(x)
        d.pop('a', None)
        for x in xs:
            d[x] = 1
        for k, v in d.items():
            ys.append(v)
            if jb.ask('i'): d.pop(k); break
        for k in d:
            ys.append(k)
            if jb.ask('r'): d.pop(k); break
        return xs, ys, d
    """,
    "a set and a deque that are changed where their loops are left": """
        ys, names, last = [], {'a', 'b', 'c'}, deque(['a', 'b'])
        for k in sorted(names):
            ys.append(k)
        for k in last:
            ys.append(k)
            if jb.ask('r'): last.pop(); break
        for k in reversed(last):
            ys.append(k)
        return ys, names, last
    """,
    "a dict whose keys are exchanged while it is walked": """
        d, ys = {'a': 1, 'b': 2}, []
        for k in d:
            ys.append(k)
            if len(ys) < 2:
                d.pop('a')
                d['c'] = m.ask(k)
        m.ask(str(ys))
        return ys, d
    """,
    "an iterator over a list that is filled later, put into its place": """
        xs, seen = [], set()
        it = (seen.add(str(x)) or x for x in xs)
        for x in w.ask('a'): xs.append(x)
        xs[1:] = it
        m.ask(str(len(seen)))
        return xs, seen
    """,
    "an iterator that is made on one of two paths": """
        seen, xs, it = set(), [], ()
        for x in m.ask('c').split(): xs.append(x)
        if m.ask('q').startswith('a'):
            it = filter(lambda x: seen.add(x), xs)
        m.ask(str('a' in it))
        return seen
    """,
    "an iterator that is made before its items are unknown": """
        xs, seen = [], set()
        it = filter(lambda x: seen.add(x), xs)
        for x in m.ask('c').split():
            if x != 'no': xs.append(x)
        m.ask(str('a' in it))
        m.ask(str(len(seen)))
        return seen
    """,
    "an iterator over known items that is made on one of two paths": """
        seen, it = set(), ()
        if m.ask('q').startswith('a'):
            it = map(lambda x: seen.add(x), ['a', 'b'])
        found = list(it)
        m.ask(str(len(seen)))
        return seen, found
    """,
    "an iterator that is made where something may raise": """
        seen, xs, it = set(), [], ()
        for x in m.ask('c').split(): xs.append(x)
        try:
            m.ask('q' + str(len(xs)))
            it = map(lambda x: seen.add(x), xs)
        except Exception:
            m.ask('caught')
        found = [x for x in it]
        m.ask(str(len(seen)))
        return seen
    """,
    "a store in a text, in a try": """
        try:
            text['a'] = 'b'
        except AttributeError:
            m.ask('c')
        except TypeError:
            m.ask('d')
    """,
    "keyword arguments whose names are no texts": """
        table[1] = 2
        (lambda **kw: kw)(**table)
        return m.ask('a')
    """,
    "a variable that one path has not set": """
        if jb.ask('a'):
            v = 1
        m.ask(f'{v}')
        return m.ask('b')
    """,
    "a closure over such a variable": """
        def inner():
            return v
        if jb.ask('a'):
            v = 1
        inner()
        return m.ask('b')
    """,
    "a path that raises behind one that returns": """
        def inner():
            if jb.ask('a'):
                return 1
            raise ValueError('b')
        inner()
        return m.ask('c')
    """,
    "break in the else of a loop": """
        while True:
            for x in 'ab':
                m.ask(x)
            else:
                break
        return docs
    """,
    "break in the else of a loop, undecided": """
        for d in ['a', 'b', 'c']:
            for x in 'xy':
                if jb.ask(d + x):
                    break
            else:
                if jb.ask(d):
                    break
            words.append(d)
        return words
    """,
    "break in the else of while": """
        for d in 'abc':
            while jb.ask(d) and count < 3:
                count += 1
            else:
                break
        return count, m.ask('b')
    """,
    "a key that cannot be hashed stops a comprehension": "return {x: m.ask(str(x)) for x in [['a'], 'b']}",
    "a sum of a generator ends at what cannot be added": "return sum(n.ask(x) for x in 'abcdefgh')",
    "a sum of what is perhaps taken": "return sum(n.ask(x) for x in 'abcdefgh' if jb.ask(x))",
    "a sum of a number that is perhaps taken": "return sum(x for x in [10**400, 2.5] if x == 2.5 or jb.ask('a'))",
    "a number that fits no float beside one to come": "return 10**400 + n.ask('a'), m.ask('b')",
    "what goes too deep for the reader alone": """
        def down(n):
            for x in 'a':
                if n:
                    for y in 'b':
                        if x < y:
                            return [down(n - 1) if n else text]
            return m.ask('a')
        try:
            docs = down(55)
        except Exception:
            m.ask('b')
        return docs
    """,
    "a slice up to what may be no whole number": "return docs[:n.ask(text)], w.ask(text)[n.ask('a') :]",
    "a slice that is made apart": "return docs[slice(n.ask(text))], words[q.ask(text)], text[slice(n.ask(text))]",
    "an element that perhaps cannot be hashed": "return {q.ask(x) for x in ['a', 'b', 'c']}",
    "a key that perhaps cannot be hashed": "return {q.ask(x): m.ask(x) for x in ['a', 'b', 'c']}",
    "a display evaluates all before it hashes": "return {[]: m.ask('a'), 'b': m.ask('b')}",
    "a method that is perhaps not there, before its arguments": "return q.ask('a').get(m.ask('b'))",
    "a name in the default of a lambda": """
        def inner(x):
            return lambda y=(label := x): y
        inner([])
        return {label}
    """,
    "a function that is called as often as is not known": """
        def add(x):
            docs.append(x)
        list(map(add, w.ask('a')))
        return len(docs), m.ask(str(docs))
    """,
    "a key function that changes something": """
        def key(x):
            docs.append(x)
            return x
        found = sorted(w.ask('a'), key=key)
        return found, m.ask(str(docs))
    """,
    "a generator in which StopIteration is raised": "return ', '.join(next(iter([])) for x in docs)",
    "a finally block that perhaps returns": """
        try:
            return 1
        finally:
            if jb.ask('a'):
                return 2
    """,
    "an assertion that perhaps fails": """
        assert jb.ask('a')
        return m.ask('b')
    """,
    "sorting nothing, with a wrong argument": "return sorted([], reverse=label)",
    "a list that one path makes and the other empties": """
        for _ in range(5):
            if jb.ask('a'):
                words = []
                words.append(m.ask('a'))
            else:
                words.clear()
        return q.ask(min(words, default='yes'))
    """,
    "the order of a set that was given": "return m.ask(', '.join(names))",
    "the order of a set that was given, though empty": """
        names.update(docs)
        names.update(['d', 'e', 'f'])
        return m.ask(', '.join(names))
    """,
    "the order of a set that was given, shown": "return m.ask(f'{names}')",
    "the order of a set that was given, united": "return list(names | {'b', 'c', 'd'})",
    "what is taken from a set that was given": "return names.pop()",
    "a change before an error on one path": """
        try:
            if jb.ask('a'):
                label = 'b'
                raise ValueError
        except ValueError:
            pass
        return m.ask(label)
    """,
    "a change in place before an error on one path": """
        try:
            if jb.ask('a'):
                docs.append('b')
                count / 0
        except ZeroDivisionError:
            pass
        return m.ask(str(docs))
    """,
    "an error that a finally block swallows": """
        def inner():
            try:
                int(q.ask('a'))
                docs.append('b')
            finally:
                return 1
        inner()
        return m.ask(str(docs))
    """,
    "a change before an error in a round": """
        try:
            for _ in range(n.ask('a') % 4):
                names.add('b')
                docs.index('none')
        except Exception:
            pass
        return m.ask(str(len(names)))
    """,
    "a change before an error behind a path that has left": """
        try:
            for x in 'ab':
                if jb.ask(x):
                    break
                label = 'c'
                int(x)
        except ValueError:
            pass
        return m.ask(label)
    """,
    "a change between many errors": """
        try:
            for x in 'abcdefghijkl':
                label = x
                int(m.ask(x))
                label = ''
                int(m.ask(x + x))
        except ValueError:
            pass
        return label
    """,
    "a list that stands for one of two": """
        found = docs
        if jb.ask('a'):
            found = ['b']
        docs.append('c')
        return m.ask(str(found))
    """,
    "a dict that stands for one of two": """
        found = {'a': docs}
        if jb.ask('a'):
            found['a'] = ['b']
        docs.clear()
        return [m.ask(x) for x in found['a']]
    """,
    "several values for one keyword in a handler": """
        try:
            [].pop()
        except IndexError:
            return dict(a=count, **{'a': 1})
    """,
    "the order of a set that is put back": """
        found = set(docs)
        if jb.ask('a'):
            found.add('q')
            found.discard('a')
        return m.ask(str(list(found)))
    """,
    "a key that is put in again while its dict is walked": """
        found = dict(a=1, b=2, c=3)
        for count, x in enumerate(found):
            if count == 0:
                found['b'] = found.pop('b')
            m.ask(f'{count} {x}')
            if count == 1:
                break
        return m.ask(label)
    """,
    "a key that is moved while its dict is walked": """
        found = OrderedDict(a=1, b=2, c=3)
        for x in found:
            if m.ask(x) == 'yes':
                found.move_to_end(x)
        return m.ask(str(list(found)))
    """,
    "a large dict whose keys are put in again": """
        found = dict.fromkeys(range(300))
        for count, x in enumerate(found):
            if count == 1:
                found.pop(2)
                found[2] = m.ask(x)
            if count == 2:
                break
        return m.ask(str(x))
    """,
    "a change in the last round over an ordered dict": """
        found = OrderedDict(a=1, b=2)
        for x in found:
            if x == 'b':
                found['c'] = m.ask(x)
        for x in reversed(found.items()):
            if x[0] == 'a':
                found.popitem()
        return m.ask(str(list(found)))
    """,
    "iterators that have failed": """
        for found in ({'a': 1}, OrderedDict(a=1), deque('a')):
            rest = iter(found)
            found.append('b') if isinstance(found, deque) else found.update(b=2)
            for _ in range(3):
                try:
                    docs.append(next(rest, 'end'))
                except RuntimeError:
                    docs.append('error')
        return m.ask(str(docs))
    """,
}


@pytest.mark.parametrize("what", WRONG_ONCE)
def test_what_was_read_wrong_once(what: str, tmp_path: Path) -> None:
    body = "\n".join("    " + line.removeprefix("        ") for line in WRONG_ONCE[what].strip().splitlines())
    head = f"def program({', '.join([*MODELS, *INPUTS])}):\n"
    program = module_of(HEADER + "\n" + head + body + "\n", tmp_path / "wrong_once.py").program
    for case in range(60):
        assert judged(program, inputs(case), case) is not None


# --- the judge judges ------------------------------------------------------------------------------------------------


def _wrong(change: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        change(patch)
        for case in range(40):
            judged(_sample, inputs(case), case)


def _sample(m: Any, q: Any, jb: Any, n: Any, w: Any, c: Any, **given: Any) -> Any:
    if jb.ask("a"):
        given["docs"].append("x")
        return m.ask("b")
    return [m.ask("c"), given["docs"]]


def test_the_judge_finds_requests_that_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from teola_plugin.adapters.reader.asking import Ask

    judged(_sample, inputs(1), 1)
    monkeypatch.setattr(Ask, "is_certain", property(lambda ask: True))
    with pytest.raises(Difference, match="is called certain"):
        _wrong(lambda patch: None)


def test_the_judge_finds_inputs_that_are_not_put_back() -> None:
    from teola_plugin.adapters.reader.heap import Heap

    with pytest.raises(Difference, match="not put back"):
        _wrong(lambda patch: patch.setattr(Heap, "put_back", lambda heap: None))


def test_the_judge_finds_wrong_values() -> None:
    from teola_plugin.adapters.reader.heap import Heap

    with pytest.raises(Difference, match="is really"):
        _wrong(lambda patch: patch.setattr(Heap, "joined", lambda heap, one, two, *why: one))

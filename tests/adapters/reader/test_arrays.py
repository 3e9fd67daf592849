"""Computations of numpy on embeddings: what is certain behind them is asked in every real run."""

from __future__ import annotations

import random
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from teola_plugin.adapters.reader import amounts, stacks
from teola_plugin.adapters.reader.arrays import embedded
from teola_plugin.adapters.reader.calls import call
from teola_plugin.adapters.reader.run import Answer, Given, Run
from teola_plugin.adapters.reader.values import Barrier, Callee, Opaque, Stalled, Undecided, Unknown
from tests.adapters.reader import resumed
from tests.adapters.reader.fuzzing import Worldly
from tests.adapters.reader.resumed import SideBySide
from tests.adapters.reader.test_fuzz_semantics import module_of
from tests.adapters.reader.world import Model, ModelAsker, read

pytestmark = pytest.mark.usefixtures("no_batches")

HEAD = """
import numpy as np
from sklearn.metrics.pairwise import cosine_similarity

RAN = []
EMB = np.arange(12.0).reshape(3, 4)
ROW = np.ones(4)
OTHER = np.ones(5)
THREES = [1.0, 2.0, 3.0]


class Odd:
    def __add__(self, other):
        RAN.append("add")
        return self

    __radd__ = __add__

    def __eq__(self, other):
        RAN.append("eq")
        return True

    __hash__ = None

    def __array__(self, *args, **kwargs):
        RAN.append("array")
        return np.ones(4)


class Sub(np.ndarray):
    def __array_finalize__(self, other):
        RAN.append("finalize")

    def __array_ufunc__(self, *args, **kwargs):
        RAN.append("ufunc")
        return 1.0


OBJECTS = np.array([Odd(), Odd()], dtype=object)
SUB = np.ones(4).view(Sub)
ODD = Odd()
RAN.clear()


def mine(*args):
    RAN.append("mine")
    return 1.0


def cosine(a, b):
    norm_a, norm_b = np.linalg.norm(a), np.linalg.norm(b)
    if norm_a == 0 or norm_b == 0:
        return 0.0
    found = float(np.dot(a, b) / (norm_a * norm_b))
    if np.isnan(found) or np.isinf(found):
        return 0.0
    return max(0.0, min(1.0, found))


def embed(m, text):
    try:
        return np.array(m.ask("e:" + text))
    except Exception:
        return np.zeros(384)
"""


class Asker(ModelAsker):
    """Replies to questions that begin with `e:` are embeddings of the model."""

    def _asked(self, run: Run, model: Model, question: Any) -> Any:
        found = super()._asked(run, model, question)
        return embedded(run, model, found) if type(question) is str and question.startswith("e:") else found


ASKER = Asker()


@pytest.fixture(autouse=True)
def _warnings_are_shown() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


SPECIAL = (0.0, -0.0, 1.0, float("inf"), float("nan"), 1e300, 1e-300)


def model_of(seed: int, size: int = 4) -> Model:
    def reply(question: Any, number: int) -> Any:
        rnd = random.Random(f"{seed} {question} {number}")
        if not str(question).startswith("e:"):
            return rnd.choice(["yes", "no", "12", ""])
        if seed % 3 == 0:
            return [rnd.uniform(-1, 1) for _ in range(size)]
        return [rnd.choice(SPECIAL) for _ in range(size)] if rnd.random() < 0.7 else [0.0] * size

    return Model(reply)


def programs(tmp_path: Path, bodies: Mapping[str, str], name: str, parameters: str = "m") -> Any:
    text = "".join(
        f"\n\ndef {each}({parameters}):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"
        for each, body in bodies.items()
    )
    return module_of(HEAD + text, tmp_path / f"arrays_{name}.py")


CERTAIN = {
    "validator": """
        chunks, kept = [embed(m, t) for t in "ab"], []
        for t in "xy":
            found = embed(m, t)
            scores = [(at, cosine(found, each)) for at, each in enumerate(chunks)]
            scores.sort(key=lambda each: each[1], reverse=True)
            for at, score in scores:
                if score > 0.5 and len(kept) < 3:
                    kept.append("ab"[at] + f"{score:.2f}")
            m.ask("judge " + t)
        """,
    "operators": """
        a, b = np.asarray(m.ask("e:a")), np.asarray(m.ask("e:b"), dtype=np.float64)
        score = a @ b / (np.sqrt(a.dot(a)) * np.linalg.norm(b)) * 2 - 1
        text = f"{abs(round(-score, 3)) > 0}"
        m.ask("n")
        """,
    "lists": """
        a, b = m.ask("e:a"), m.ask("e:b")
        total = sum(x * y for x, y in zip(a, b))
        best = max([np.dot(a, b), np.dot(b, b)])
        order = sorted([np.dot(a, b), np.dot(b, b)], reverse=True)
        m.ask("n")
        """,
    "means": """
        a, b = np.array(m.ask("e:a")), np.array(m.ask("e:b"))
        mean = (a + b) / 2
        mean = mean / np.linalg.norm(mean)
        if np.mean([float(mean[0]), np.dot(a, mean)]) > 0.5 and len(a) > 2:
            print(mean, mean.tolist(), a.shape, a.reshape(1, -1), np.clip(a.max(), 0, 1))
        m.ask("n")
        """,
    "later_index": """
        scores = [np.dot(m.ask("e:a"), m.ask("e:" + t)) for t in "bcd"]
        at, score = sorted(enumerate(scores), key=lambda each: each[1])[0]
        m.ask("n" if THREES[at] else "n")
        """,
}
"""Programs, all of whose requests are certain at once."""

GATED = {
    "truth": 'a = np.array(m.ask("e:a"))\nif a:\n    pass',
    "truth_of_a_comparison": 'a = np.array(m.ask("e:a"))\nif a == 0:\n    pass',
    "truth_after_a_join": 'x = np.array(m.ask("e:a")) if m.ask("c") == "yes" else None\nif x == 0:\n    pass',
    "truth_in_a_dict": 'd = {}\nd[m.ask("k")] = np.array(m.ask("e:a"))\nif d.get("x") == 0:\n    pass',
    "in_a_list": 'x = np.array(m.ask("e:a"))\nx in [1, 2]',
    "any_of_arrays": 'xs = [np.array(m.ask("e:" + t)) for t in m.ask("k").split()]\nany(xs)',
    "any_of_a_generator": 'xs = [np.array(m.ask("e:" + t)) for t in m.ask("k").split()]\nany(x for x in xs)',
    "filter": 'xs = [np.array(m.ask("e:" + t)) for t in m.ask("k").split()]\nlist(filter(None, xs))',
    "negated": 'x = not np.array(m.ask("e:a"))',
    "as_bool": 'x = bool(np.array(m.ask("e:a")) > 1)',
    "index": '[1, 2].index(np.array(m.ask("e:a")))',
    "shapes": 'np.dot(np.array(m.ask("e:a")), OTHER)',
    "shapes_of_lists": "np.array(m.ask('e:a')) + THREES",
    "list_times_list": 'm.ask("e:a") @ m.ask("e:b")',
    "float_of_an_array": 'float(np.array(m.ask("e:a")))',
    "large": 'np.dot(m.ask("e:a"), m.ask("e:b")) * int(m.ask("n"))',
    "compares_large": 'x = np.dot(m.ask("e:a"), m.ask("e:b")) < 10**400',
    "equals_large": 'x = (np.dot(m.ask("e:a"), m.ask("e:b")) if m.ask("c") == "yes" else 1.0) == 10**400',
    "max_of_large": 'x = max(np.dot(m.ask("e:a"), m.ask("e:b")), 10**400)',
    "isnan_of_large": 'x = np.isnan(2**70 if m.ask("c") == "yes" else 2**71)',
    "matrix": 'x = EMB @ np.array(m.ask("e:a"))',
    "similarity": 'x = cosine_similarity([m.ask("e:a")], EMB)[0][0]',
    "divides_floats": 'x = 1 / float(np.dot(m.ask("e:a"), m.ask("e:b")))',
    "reshape": 'x = np.array(m.ask("e:a")).reshape(3, 2)',
    "empty_max": 'x = np.max([np.dot(m.ask("e:a"), m.ask("e:a")) for t in m.ask("k")])',
    "item": 'x = np.array(m.ask("e:a"))[7]',
}
"""Programs that may raise before what is asked behind them."""

UNREAD = {
    "objects": "OBJECTS + np.array(m.ask('e:a'))",
    "sum_of_objects": "np.sum(OBJECTS)",
    "compares_objects": "OBJECTS == np.array(m.ask('e:a'))",
    "adds_an_object": "np.array(m.ask('e:a')) + ODD",
    "compares_an_object": "x = np.array(m.ask('e:a')) == ODD",
    "array_of_an_object": "np.array([ODD, ODD])",
    "array_interface": "np.dot(ODD, m.ask('e:a'))",
    "subclass": "np.dot(SUB, m.ask('e:a'))",
    "subclass_operator": "SUB + np.array(m.ask('e:a'))",
    "object_dtype": "np.array(m.ask('e:a'), dtype=object)",
    "object_dtype_by_name": "np.array(m.ask('e:a'), dtype='object')",
    "texts": "np.array([m.ask('k'), 'a'])",
    "out": "np.sqrt(np.array(m.ask('e:a')), out=ROW)",
    "in_place": "ROW += np.array(m.ask('e:a'))",
    "in_place_of_own": "a = np.array(m.ask('e:a'))\na /= 2",
    "in_place_of_a_view": "a = EMB[0]\na *= 2",
    "store": "EMB[0] = m.ask('e:a')",
    "store_in_a_view": "a = EMB[0]\na[0] = 2.0",
    "sort": "a = np.array(m.ask('e:a'))\na.sort()",
    "list_in_place": "a = m.ask('e:a')\na *= 2",
    "random": "np.random.rand(4)",
    "settings": "np.seterr(all='raise')",
    "file": "np.array(m.ask('e:a')).tofile('x')",
    "saved": "np.save('x', ROW)",
    "replaced": "PATCHED.dot(m.ask('e:a'), m.ask('e:a'))",
    "vectorized": "np.vectorize(mine)(m.ask('e:a'))",
    "from_function": "np.frompyfunc(mine, 1, 1)(m.ask('e:a'))",
}
"""Programs that run code of the user's, or change something: a barrier, before which nothing has run."""


@pytest.mark.parametrize("name", CERTAIN)
def test_all_is_certain(name: str, tmp_path: Path) -> None:
    module = programs(tmp_path, CERTAIN, name)
    found = read(getattr(module, name), model_of(0), asker=ASKER)
    for seed in range(12):
        model = model_of(seed)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            getattr(module, name)(model)
        assert found.certain == model.asked


@pytest.mark.parametrize("name", GATED)
def test_what_may_raise_gates(name: str, tmp_path: Path) -> None:
    module = programs(tmp_path, {name: GATED[name] + '\nm.ask("behind")'}, name)
    found = read(getattr(module, name), model_of(0), asker=ASKER)
    assert found.barrier is None
    assert found.error is None
    assert "behind" not in found.certain


@pytest.mark.parametrize("name", UNREAD)
def test_what_runs_code_or_changes_is_a_barrier(name: str, tmp_path: Path) -> None:
    body = UNREAD[name].replace("ROW +=", "global ROW\nROW +=", 1)
    module = programs(tmp_path, {name: body + '\nm.ask("behind")'}, name)
    module.PATCHED = type(np)("patched")
    module.PATCHED.dot = module.mine
    before = [each.copy() for each in (module.EMB, module.ROW)]
    found = read(getattr(module, name), model_of(0), asker=ASKER)
    assert module.RAN == []
    assert all(map(np.array_equal, before, (module.EMB, module.ROW)))
    if name != "replaced":  # read as any function
        assert found.barrier is not None
        assert "behind" not in [*found.certain, *found.possible]


def test_a_replaced_function_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = programs(tmp_path, {"asks": "np.dot(m.ask('e:a'), m.ask('e:b'))\nm.ask('behind')"}, "replaced")

    def dot(*args: Any) -> Any:
        raise ValueError

    monkeypatch.setattr(np, "dot", dot)
    assert "behind" not in read(module.asks, model_of(0), asker=ASKER).certain


ALL_READ = "x = np.dot(m.ask('e:a'), m.ask('e:b')) / np.linalg.norm(m.ask('e:b'))\nm.ask('behind')"


def test_errors_of_numpy_gate(tmp_path: Path) -> None:
    module = programs(tmp_path, {"asks": ALL_READ}, "errors")
    with np.errstate(divide="raise"):
        assert read(module.asks, model_of(0), asker=ASKER).certain == ["e:a", "e:b"]
    assert "behind" in read(module.asks, model_of(0), asker=ASKER).certain


def test_warnings_as_errors_gate(tmp_path: Path) -> None:
    module = programs(tmp_path, {"asks": ALL_READ}, "warnings")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "behind" not in read(module.asks, model_of(0), asker=ASKER).certain


def test_vectors_of_two_models_may_differ(tmp_path: Path) -> None:
    module = programs(tmp_path, {"asks": "m, n = m\nnp.dot(m.ask('e:a'), n.ask('e:b'))\nm.ask('behind')"}, "two")
    assert read(module.asks, [model_of(0), model_of(1, 5)], asker=ASKER).certain == ["e:a", "e:b"]


def test_known_and_later_vectors_have_one_length(tmp_path: Path) -> None:
    body = "a = np.array(m.ask('e:a'))\nx = np.dot(a, np.array(m.ask('e:b')))\nm.ask('behind')"
    module, model = programs(tmp_path, {"asks": body}, "partly"), model_of(0)
    first = read(module.asks, model, asker=ASKER)
    answers = {ask.key: Answer(model.ask(ask.request.payload)) for ask in first.asks[:1]}
    assert read(module.asks, model, asker=ASKER, answers=answers).certain == ["e:b", "behind"]


def test_a_decision_by_a_known_number_is_made(tmp_path: Path) -> None:
    module = programs(tmp_path, {"asks": "if SCORE * 2 > 0.5 and not SCORE >= 1:\n    m.ask('hit')"}, "number")
    module.SCORE = np.float64(0.5)
    assert read(module.asks, model_of(0), asker=ASKER).certain == ["hit"]


# --- behind what is computed ------------------------------------------------------------------------------------------


class _Worldly(Worldly):
    def attribute(self, run: Run, owner: Opaque, name: str) -> Any:
        found = super().attribute(run, owner, name)
        if type(found) is not Callee:
            return found

        def ask(run: Run, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            value, (question,) = found.handler(run, args, kwargs), args
            is_vector = type(question) is str and question.startswith("e:")
            return embedded(run, owner.held, value) if is_vector else value

        return Callee(ask, name)


def beside(program: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> SideBySide:
    """What is read beside a real run: nothing is asked that the run does not ask."""
    monkeypatch.setattr(stacks, "_PASSING", stacks._PASSING | {"tests", "contextlib", "_pytest", "pluggy"})
    monkeypatch.setattr(stacks, "_libraries", {})
    monkeypatch.setattr(resumed, "Worldly", _Worldly)

    def reply(key: tuple[str, str], number: int) -> Any:
        return model_of(seed)._reply(key[1].strip("'"), number)

    side = SideBySide(program, reply, random.Random(seed))
    side.run({})
    assert not side.extra
    return side


GATED_BY_VALUES = """
query = np.array(m.ask("e:q"))
scores = EMB @ query
best = THREES[int(np.argmax(scores))]
for t in "abcd":
    m.ask(f"{t} {best}")
"""


@pytest.mark.parametrize("seed", range(0, 12, 3))
def test_what_needs_a_computed_value_is_found_behind(seed: int, tmp_path: Path, monkeypatch: Any) -> None:
    module = programs(tmp_path, {"asks": GATED_BY_VALUES}, "behind", "m, **rest")
    assert beside(module.asks, seed, monkeypatch).ahead >= 3


# --- random programs --------------------------------------------------------------------------------------------------

STATEMENTS = """
x = np.array({a}) | x = np.asarray({a}, dtype=np.float32) | x = np.dot({a}, {b}) | x = {a} @ {b} | x = {a} + {b}
x = {a} - {b} | x = {a} * {b} | x = {a} / {b} | x = np.linalg.norm({a}) | x = float({a}) | x = {a} > {b}
x = {a} == {b} | x = {a} < 0.5 | x = {a} != None | x = np.isnan({a}) | x = np.sqrt({a}) | x = np.clip({a}, 0, 1.0)
x = np.mean({a}) | x = np.sum([{a}, {b}]) | x = np.mean([{a}, {b}]) | x = {a}.tolist() | x = {a}.mean()
x = {a}.dot({b}) | x = {a}[0] | x = {a}[-1] | x = {a}[1:] | x = len({a}) | x = [{a}, {b}] | x = ({a}, 1)
x = sorted([{a}, {b}]) | x = max({a}, {b}) | x = max(0.0, {a}) | x = min([{a}, {b}, 1]) | x = sum([{a}, {b}])
x = abs({a}) | x = -{a} | x = round({a}, 2) | x = {a} if m.ask("c") == "yes" else {b} | x = {a} or {b} | x = not {a}
x = {a} in [{b}, 1] | x = f"{{{a}}}" | x = f"{{{a}:.2f}}" | x = [each for each in {a}]
x = sum(p * q for p, q in zip({a}, {b})) | x = np.vstack([{a}, {b}]) | x = {a}.reshape(1, -1) | x = np.argmax({a})
x = np.max({a}) | x = {a}.shape | x = np.stack([{a}, {b}]) @ {a}
x = sorted(enumerate([{a}, {b}]), key=lambda e: e[1])[0] | x = (3, 4)[{a}[0]] | x = any([{a}, {b}]) | x = all({a})
x = {{m.ask("k"): {a}}} | x = {a}.get("yes") | x = list(filter(None, {a})) | x = cosine({a}, {b}) | x = {a}.copy()
x = EMB @ {a} | x = ROW @ {a} | x = np.zeros(4) + {a} | x = {a} * 2**62 | x = {a} * 10**300 | x = {a} == 10**400
x = {a} < int(m.ask("c") or 1) | x = np.minimum({a}, {b}) | x = np.zeros_like({a}) | x = {a}.astype(float)
x = {a} ** 2 | x = [1, {a}].index({b}) | x = [1, {a}].count({b}) | x = {a}.max() - {b} | x = np.inner({a}, {b})
x = hash({a}) | x = set([{a}, {b}]) | x = {a} is None | x = isinstance({a}, float)
x = isinstance({a}, (list, np.ndarray)) | x = type({a}) is list
x = list({a}) | x = tuple({a})
x = {a}.item()
"""
FORMS = [each.strip() for each in STATEMENTS.replace("\n", "|").split("|") if each.strip()]


def random_body(rnd: random.Random) -> str:
    lines = ['x = m.ask("e:0")', 'v0 = m.ask("e:1")', 'v1 = np.array(m.ask("e:2"))', "v2 = 0.5"]
    for at in range(3, rnd.randrange(5, 12)):
        recent = [f"v{number}" for number in range(max(0, at - 4), at)]
        form = rnd.choice(FORMS).format(a=rnd.choice(recent), b=rnd.choice([*recent, "x"]))
        if rnd.random() < 0.25:
            lines += ["try:", f"    {form}", "except Exception:", f"    x = {rnd.choice([*recent, 'None', '0.0'])}"]
        elif rnd.random() < 0.2:
            lines += [f"if {rnd.choice(recent)}:", f"    {form}"]
        else:
            lines.append(form)
        lines += [f"v{at} = x", f'm.ask("n{at}")']
    return "\n".join([*lines, "return [v0, v1, v2" + "".join(f", v{n}" for n in range(3, at + 1)) + "]"])


def is_kind(said: Unknown, real: Any) -> bool:
    """Whether the kind of an unknown value is that of the real value."""
    holds: Any = said.holds
    if holds == amounts.SCALAR:
        return type(real) in (np.float64, np.float32)
    if (length := amounts.length_of(holds)) is not None:
        is_long = length.startswith("m") or len(real) == int(length)
        if holds.startswith(amounts.ROW):
            return type(real) is list and is_long and all(type(each) is float for each in real)
        return type(real) is np.ndarray and real.ndim == 1 and is_long and real.dtype.kind == "f"
    if holds == amounts.ARRAY:
        return isinstance(real, np.ndarray | np.generic | float | int)
    if holds in ("bool", amounts.FLAG):
        return type(real) is bool or (type(real) is np.bool_ and holds == amounts.FLAG)
    parts = amounts.parts_of(holds)
    if parts is not None and parts[0] == "real":
        return isinstance(real, float)
    return parts is None or isinstance(real, int | float)


def compare(run: Run, said: Any, real: Any) -> None:
    """What a reading says of a value is so."""
    if type(said) is Unknown:
        assert is_kind(said, real), (said.holds, real)
        assert not said.is_true or bool(real)
        assert type(said.of) is not int or 0 <= real < said.of
    elif type(said) is Opaque:
        assert not said.is_own or repr(said.held) == repr(real)
    elif not run.is_unknown(said):
        assert type(said) is type(real), (said, real)
        if isinstance(said, list | tuple):
            assert len(said) == len(real)
            for one, two in zip(said, real, strict=True):
                compare(run, one, two)
        elif not isinstance(said, dict | set):
            assert repr(said) == repr(real)


def reading(function: Any, model: Model, answers: Mapping[Any, Answer]) -> tuple[Run, Any, Sequence[Any]]:
    given = Given()
    run = Run(ASKER, answers=answers, given=given)
    try:
        value = call(run, run.load(function), (given.copy(model),), {})
    except (Barrier, Stalled, Undecided, Exception):
        value = None
    finally:
        run.put_back()
    return run, value, list(run.asks.values())


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int, tmp_path: Path) -> None:
    check_random(seed, 25, tmp_path)


def check_random(seed: int, count: int, tmp_path: Path) -> int:
    rnd, certain = random.Random(seed), 0
    module = programs(tmp_path, {f"p{n}": random_body(rnd) for n in range(count)}, f"random{seed}")
    for number in range(count):
        program = getattr(module, f"p{number}")
        for world in range(6):
            model, error, real = model_of(world), None, None
            try:
                real = program(model)
            except Exception as e:
                error = e
            known: dict[Any, Answer] = {}
            for share in (0.0, 0.5, 1.0):
                run, value, asks = reading(program, model, known)
                said = [ask.request.payload for ask in asks if ask.is_certain]
                certain += len(said)
                missing = [each for each in said if each not in model.asked]
                assert not missing, (number, world, share, missing, error)
                if error is None and value is not None and not run.gates:
                    for one, two in zip(value, real, strict=True):
                        compare(run, one, two)
                for ask in asks:
                    if rnd.random() < share or (share == 0.5 and rnd.random() < 0.5):
                        known[ask.key] = Answer(model._reply(ask.request.payload, ask.number))
    return certain


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_beside_their_runs(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rnd = random.Random(seed)
    bodies = {f"p{n}": random_body(rnd) for n in range(10)}
    module = programs(tmp_path, bodies, f"beside{seed}", "m, **rest")
    for number in range(10):
        beside(getattr(module, f"p{number}"), seed + number, monkeypatch)

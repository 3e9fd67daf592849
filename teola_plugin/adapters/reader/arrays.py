"""Arrays and numbers of numpy: which functions and operators only compute, and which cannot raise.

What they compute stays unknown, also where all operands are known: the last bits of a sum depend on how numpy adds. So
a decision on such a value is read on behind as soon as the framework's run has come past the statement (`COMPUTED`).

    row:5, row:m7      a list of floats of this length, or of the length of an embedding model's vectors
    array:5, array:m7  a one-dimensional array of floats
    scalar             a float64 of numpy, which is a float of Python's, too
    flag               a truth value, of numpy or of Python
    array              any array or number of numpy; whatever uses the value may raise

Functions are known by identity, operands by exact type: subclasses and arrays of objects may run user code.
"""

from __future__ import annotations

import operator
import sys
import types
from collections.abc import Callable
from typing import Any

from teola_plugin.adapters.reader import amounts, outlets
from teola_plugin.adapters.reader.amounts import ARRAY, FLAG, ROW, SCALAR, length_of, parts_of_value
from teola_plugin.adapters.reader.foreign import words
from teola_plugin.adapters.reader.values import (
    ANYWHERE,
    ARRAYS,
    COMPUTED,
    Arguments,
    Barrier,
    Handler,
    Opaque,
    Unknown,
    isinstance_of,
)

_OF_ONE = words("mean sum max min amax amin std var prod norm")
"""Functions of one array of floats that give a number."""

_OF_TWO = words("dot inner vdot matmul")
"""Functions of two arrays of one length that give a number."""

_OF_NUMBERS = {
    **dict.fromkeys(words("sqrt exp log log2 log10 abs absolute fabs tanh sin cos"), 1),
    "minimum": 2, "maximum": 2, "clip": 3,
}  # fmt: skip
_FLAGS = words("isnan isinf isfinite")
_COPIES = words("array asarray asanyarray ascontiguousarray copy zeros_like ones_like")
_FILLED = words("zeros ones")
_OTHERS = words(
    "stack vstack hstack concatenate argsort argmax argmin argpartition outer cumsum transpose reshape squeeze "
    "expand_dims arange linspace full eye any all nonzero count_nonzero percentile median quantile isclose allclose "
    "array_equal nan_to_num power multiply add subtract divide average sign floor ceil tile repeat ravel round around "
    "sort where atleast_1d atleast_2d diff cov corrcoef unique column_stack"
)
_FUNCTIONS = _OF_ONE | _OF_TWO | _OF_NUMBERS.keys() | _FLAGS | _COPIES | _FILLED | _OTHERS
_OPTIONS = words("axis keepdims ord copy decimals a_min a_max min max dtype kind ndmin order n k ddof q nan")

_METHODS = words(
    "tolist item reshape dot mean sum max min argmax argmin argsort astype copy flatten ravel transpose squeeze any "
    "all round clip std var cumsum nonzero take prod"
)
_FIELDS = words("shape size ndim T dtype")
_MOST = 10_000
_NUMERIC = "biuf"


def _numpy() -> dict[str, Any]:
    """Return the names of numpy, if numpy is loaded."""
    module = sys.modules.get("numpy")
    return vars(module) if type(module) is types.ModuleType else {}


def is_quiet() -> bool:
    """Whether numpy, as set up in this thread, raises for no result that is infinite or no number."""
    get = _numpy().get("geterr")
    return get is None or {"ignore", "warn"}.issuperset(get().values())


def _never_raises(run: Any) -> bool:
    """Whether a result that is infinite, or no number, certainly raises nothing."""
    if run.warns is None:
        run.warns = outlets.warns(RuntimeWarning)
    return bool(run.warns and run.is_quiet)


# --- operands --------------------------------------------------------------------------------------------------------


def _is_held(value: Any) -> bool:
    """Whether a value is an array or number of numpy that the program has: of numbers, and of no subclass."""
    if type(value) is not Opaque or isinstance_of(value.held, Opaque):
        return False
    numpy, kind = _numpy(), type(value.held)
    if kind is numpy.get("ndarray"):
        return value.held.dtype.kind in _NUMERIC
    return _is_number_class(kind)


def _is_number_class(cls: Any) -> bool:
    """Whether a class is one of numpy's classes of whole or real numbers, or of flags."""
    names = ("float64", "float32", "int64", "int32", "bool_", "float16", "intp")
    return any(cls is _numpy().get(name) for name in names)


def embedded(run: Any, model: Any, found: Any, *, are_several: bool = False) -> Any:
    """Return what is known of the vector that an embedding model returns, or of a list of vectors.

    All vectors of a model are lists of floats of one length, and not empty.
    """
    name = f"m{id(model)}"
    if type(found) is Unknown:
        kind = f"{ROW}:{run.lengths.get(name, name)}"
        made = Unknown("list", found.sources, over=(kind,)) if are_several else Unknown(kind, found.sources)
        made.is_true = not are_several
        return made
    one = found[0] if are_several and type(found) is list and found else found
    if type(one) is list and one and all(type(each) is float for each in one):
        run.lengths[name] = str(len(one))
    return found


def is_array(value: Any) -> bool:
    """Whether a value is an array or number of numpy, known or unknown."""
    if type(value) is Unknown:
        return type(value.holds) is str and value.holds.startswith((ARRAY, FLAG, SCALAR))
    return _is_held(value)


def class_of(holds: str) -> Any:
    """Return the class of an embedding, or of a one-dimensional array; None for another kind."""
    if length_of(holds) is None:
        return None
    return list if holds.startswith(ROW) else _numpy().get("ndarray")


def may_be_array(value: Any) -> bool:
    """Whether an unknown value may be an array, whose truth and comparisons may raise."""
    if type(value) is not Unknown or ARRAYS.isdisjoint(value.sources):
        return False
    return value.holds not in ("text", "texts", "list", FLAG, SCALAR) and amounts.parts_of(value.holds) is None


def is_changed(value: Any) -> bool:
    """Whether `value += x` changes an array, or perhaps an array or an embedding."""
    if type(value) is not Unknown:
        return is_array(value) and type(value.held) is _numpy().get("ndarray")
    return may_be_array(value) or amounts.item_of(value.holds) is not None


def is_numeric(value: Any) -> bool:
    """Whether a value may be an array or number of numpy, which refuses to be compared with some values."""
    return type(value) is Unknown and not ARRAYS.isdisjoint(value.sources)


Form = tuple[str, str]
"""The kind of an operand: "row", "array" with a length; "scalar", "number"; "floats", a list; "other"."""

_OTHER: Form = ("other", "")


def _form(run: Any, value: Any, depth: int = 0) -> Form | None:
    """Return the kind of an operand; None for what may run code of the program, or is no number."""
    kind = type(value)
    if kind is Unknown:
        holds = value.holds
        if holds == SCALAR:
            return SCALAR, ""
        if (length := length_of(holds)) is not None:
            return holds.partition(":")[0], run.lengths.get(length, length)
        if holds in (ARRAY, FLAG):
            return _OTHER
        return _of_number(value) or _of_items(run, value)
    if kind in (int, float, bool):
        return _of_number(value)
    if kind in (list, tuple) and depth < 4:
        if run.is_unknown(value):
            return _of_items(run, value)
        run.tick(1 + len(value) // 20)
        if value and all(type(each) is float for each in value):
            return ROW, str(len(value))
        forms = [_form(run, each, depth + 1) for each in value]
        if value and all(form == (SCALAR, "") or _is_real(each) for form, each in zip(forms, value, strict=True)):
            return ROW, str(len(value))
        return None if None in forms else _OTHER
    if not _is_held(value):
        return None
    held = value.held
    if type(held) is not _numpy().get("ndarray"):
        return (SCALAR, "") if type(held) is _numpy().get("float64") else _OTHER
    is_row = held.ndim == 1 and held.dtype == "float64" and held.size
    return (ARRAY, str(held.size)) if is_row else _OTHER


def _of_number(value: Any) -> Form | None:
    if (parts := parts_of_value(value)) is None:
        return None
    is_small = parts[0] == "real" or (parts[1] is not None and parts[1] <= 63 and parts[0] != "mixed")
    return ("number", "") if is_small else _OTHER


def _is_real(value: Any) -> bool:
    return (parts := parts_of_value(value)) is not None and parts[0] == "real"


def _of_items(run: Any, value: Any) -> Form | None:
    """Return the kind of a list of unknown content."""
    is_list = type(value) in (list, tuple) or (type(value) is Unknown and value.holds == "list")
    each = run.each_of(value) if is_list else None
    if each is None or each.holds is None:
        return _OTHER if each is not None else None
    if each.holds in (SCALAR, float):
        return "floats", ""
    parts = amounts.parts_of(each.holds)
    if parts is not None:
        return ("floats", "") if parts[0] == "real" else _OTHER
    is_numeric = each.holds == ARRAY or length_of(each.holds) is not None
    return _OTHER if is_numeric else None


def _is_option(value: Any) -> bool:
    if type(value) is tuple or type(value) is list:
        return all(map(_is_option, value))
    if type(value) is Opaque:
        return _is_type(value)
    return type(value) in (int, float, bool, str, type(None)) or parts_of_value(value) is not None


def _are_options(forms: list[Form | None], args: Arguments, kwargs: dict[str, Any]) -> bool:
    """Whether arguments are numbers and arrays, or types of numbers, and keyword arguments only choose."""
    are_known = all(form is not None or _is_type(each) for form, each in zip(forms, args, strict=True))
    return are_known and kwargs.keys() <= _OPTIONS and all(map(_is_option, kwargs.values()))


def _is_type(value: Any) -> bool:
    """Whether a value is a type of numbers."""
    if type(value) is Opaque:
        return any(value.held is each for each in (float, int, bool)) or _is_number_class(value.held)
    return type(value) is str and value in ("float", "float32", "float64", "int", "int32", "int64", "bool")


def _is_float(value: Any) -> bool:
    """Whether a type is that of Python's floats: numbers of fewer bits are refused by `json`."""
    if type(value) is str:
        return value in ("float", "float64")
    return type(value) is Opaque and any(value.held is each for each in (float, _numpy().get("float64")))


def _made(run: Any, holds: str, *operands: Any, is_safe: bool) -> Unknown:
    """Return the result of a function of numpy. Unless `is_safe`, the function may raise."""
    sources = run.sources(*operands)
    if sources <= ARRAYS | COMPUTED | ANYWHERE:
        run.note_computed()
        sources |= COMPUTED
    if not is_safe:
        run.raises(sources)
    return Unknown(holds, sources | ARRAYS if holds != "any" and not holds.startswith(ROW) else sources - ARRAYS)


# --- functions -------------------------------------------------------------------------------------------------------


def native_of(function: Any) -> Handler | None:
    """Return the handler of a function of numpy's, or of scikit-learn's for similarities."""
    numpy = _numpy()
    if not numpy:
        return None
    if type(function) is types.FunctionType:
        return _calls("similarity") if _is_similarity(function) else None
    kind = type(function)
    if kind is types.BuiltinFunctionType:
        is_own = function.__module__ == "numpy"
    elif kind is numpy.get("ufunc"):
        is_own = True
    elif kind is type(numpy.get("vstack")):  # dispatches by the classes of the arguments
        inner = function.__wrapped__
        is_own = type(inner) is types.BuiltinFunctionType or (
            type(inner) is types.FunctionType and _is_of_module(inner, "numpy")
        )
    else:
        return None
    name = function.__name__ if is_own else ""
    return _calls(name) if name in _FUNCTIONS else None


def _is_of_module(function: types.FunctionType, root: str) -> bool:
    name = function.__globals__.get("__name__")
    module = sys.modules.get(name) if type(name) is str and name.split(".")[0] == root else None
    return type(module) is types.ModuleType and vars(module) is function.__globals__


def _is_similarity(function: types.FunctionType) -> bool:
    inner = function.__dict__.get("__wrapped__")
    if type(inner) is not types.FunctionType or not inner.__name__ == function.__name__ == "cosine_similarity":
        return False
    return _is_of_module(function, "sklearn") and _is_of_module(inner, "sklearn")


def _calls(name: str) -> Handler:
    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        return _call(run, name, args, kwargs)

    return handle


def _call(run: Any, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    forms = [_form(run, each) for each in args]
    if not args or forms[0] is None or not _are_options(forms, args, kwargs):
        raise Barrier(f"it calls {name} of numpy with more than numbers")
    if "dtype" in kwargs and not _is_type(kwargs["dtype"]):
        raise Barrier(f"it calls {name} of numpy with a type that is not known")
    holds = _certain(name, forms, args, kwargs) if _never_raises(run) else None
    return _made(run, holds or ARRAY, *args, *kwargs.values(), is_safe=holds is not None)


def _certain(name: str, forms: list[Form | None], args: Arguments, kwargs: dict[str, Any]) -> str | None:
    """Return the kind of a result that is certain not to raise; else None."""
    if name in _COPIES and len(args) == 2 and not kwargs:
        kwargs, args, forms = {"dtype": args[1]}, args[:1], forms[:1]
    shapes = [form[0] if form is not None else "" for form in forms]
    if name in _COPIES and len(args) == 1 and all(key == "dtype" and _is_float(kwargs[key]) for key in kwargs):
        return f"{ARRAY}:{forms[0][1]}" if shapes[0] in (ROW, ARRAY) and forms[0] and forms[0][1] else None
    if kwargs:
        return None
    if name in _FILLED and len(args) == 1:
        return f"{ARRAY}:{args[0]}" if type(args[0]) is int and 0 < args[0] <= _MOST else None
    if name in _OF_ONE and len(args) == 1:
        is_row = shapes[0] in (ROW, ARRAY) and forms[0][1]  # type: ignore[index]
        return SCALAR if is_row or (shapes[0] == "floats" and name in ("mean", "sum")) else None
    if name in _OF_TWO and len(args) == 2:
        return SCALAR if _are_alike(forms[0], forms[1]) else None
    are_numbers = bool(args) and all(shape in (SCALAR, "number") for shape in shapes)
    if name in _FLAGS:
        return FLAG if are_numbers and len(args) == 1 else None
    if name in _OF_NUMBERS:
        is_real = SCALAR in shapes or any(type(each) is float for each in args)
        return SCALAR if are_numbers and is_real and len(args) == _OF_NUMBERS[name] else None
    return None


def _are_alike(one: Form | None, two: Form | None) -> bool:
    """Whether both are rows of floats of one length."""
    if one is None or two is None or not one[1]:
        return False
    return one[0] in (ROW, ARRAY) and two[0] in (ROW, ARRAY) and one[1] == two[1]


# --- operators -------------------------------------------------------------------------------------------------------


def binary(run: Any, name: str, a: Any, b: Any) -> Any:
    """Return the result of `a <name> b`, where an operand is an array or number of numpy."""
    one, two = _form(run, a), _form(run, b)
    if one is None or two is None:
        raise Barrier("it computes with an array and with what is no number")
    shapes, holds = {one[0], two[0]}, None
    if _never_raises(run):
        if name in "+-*/" and shapes <= {SCALAR, "number"}:
            if (found := _computed(_OPERATORS[name], a, b)) is not None:
                return found
            holds = SCALAR
        elif name in "+-*/" and ((ARRAY in shapes and _are_alike(one, two)) or _is_scaled(one, two)):
            holds = f"{ARRAY}:{one[1] or two[1]}"
        elif name == "@" and ARRAY in shapes and _are_alike(one, two):
            holds = SCALAR
    return _made(run, holds or ARRAY, a, b, is_safe=holds is not None)


def summed(run: Any, *values: Any) -> Unknown:
    """Return the sum of values, some of which are numbers of numpy."""
    forms = [_form(run, each) for each in values]
    is_safe = all(form is not None and form[0] in (SCALAR, "number") for form in forms)
    return _made(run, SCALAR if is_safe else "any", *values, is_safe=is_safe)


def _is_scaled(one: Form, two: Form) -> bool:
    for array, number in ((one, two), (two, one)):
        if array[0] == ARRAY and array[1] and number[0] in (SCALAR, "number"):
            return True
    return False


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "==": operator.eq,
    "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def _computed(function: Callable[..., Any], *operands: Any) -> Any:
    """Return the result for known numbers, of one operation each, as numpy computes the same each time; else None."""
    if any(type(each) is Unknown for each in operands):
        return None
    with _numpy()["errstate"](all="ignore"):
        found = function(*[each.held if type(each) is Opaque else each for each in operands])
    return found if type(found) in (bool, float) else Opaque(found, is_own=True)


def compare(run: Any, name: str, a: Any, b: Any) -> Any:
    """Return the result of a comparison, where an operand is an array or number of numpy."""
    one, two = _form(run, a), _form(run, b)
    if one is not None and two is not None and {one[0], two[0]} <= {SCALAR, "number"}:
        found = _computed(_OPERATORS[name], a, b)
        return _made(run, FLAG, a, b, is_safe=True) if found is None else found
    if not (is_array(a) or is_array(b)):
        kinds = [parts_of_value(each) for each in (a, b)]
        is_safe = None not in kinds and not any(map(amounts.is_large, (a, b)))
        return run.unknown(a, b, holds=FLAG if is_safe else "any", is_safe=is_safe)
    plain = (str, type(None), Unknown)
    if any(form is None and type(each) not in plain for form, each in ((one, a), (two, b))):
        raise Barrier("it compares an array with what is no number")
    return _made(run, ARRAY, a, b, is_safe=False)


def unary(run: Any, name: str, value: Any) -> Any:
    """Return the result of `-value`, `+value`, `~value` and of `abs(value)`."""
    form = _form(run, value) or _OTHER
    is_safe = name != "~" and form[0] in (SCALAR, ARRAY)
    holds = SCALAR if form[0] == SCALAR else f"{ARRAY}:{form[1]}" if is_safe else ARRAY
    return _made(run, holds, value, is_safe=is_safe)


def number(run: Any, function: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Return the result of `int`, `float`, `round` or `abs` of an array or number of numpy."""
    form, *rest = _form(run, args[0]), *args[1:]
    if not all(map(_is_option, (*rest, *kwargs.values()))):
        raise Barrier("it rounds by what is no number")
    is_scalar = form is not None and form[0] == SCALAR
    if function is abs and not rest and not kwargs:
        return unary(run, "+", args[0])
    if function is float and is_scalar and not rest and not kwargs:
        found = _computed(float, args[0])
        return Unknown(float, _made(run, "any", args[0], is_safe=True).sources) if found is None else found
    is_rounded = function is round and is_scalar and [*map(type, rest)] == [int] and 0 <= rest[0] < 100 and not kwargs
    is_rounded = is_rounded and _never_raises(run)
    return _made(run, SCALAR if is_rounded else ARRAY, *args, is_safe=is_rounded)


def truth(run: Any, value: Any) -> None:
    """Note that the truth of an array of several elements raises."""
    if may_be_array(value):
        run.raises(value.sources)


def held_truth(value: Opaque) -> bool | None:
    """Return the truth of a known number of numpy; None for another object."""
    return bool(value.held) if _is_held(value) and _is_number_class(type(value.held)) else None


# --- parts -----------------------------------------------------------------------------------------------------------


def item(run: Any, held: Any, at: Any) -> Any:
    """Return `held[at]` of an array."""
    form = _form(run, held)
    if _form(run, at) is None and not _is_place(at):
        raise Barrier("it reads an item of an array at what is no number")
    is_safe = form is not None and form[0] == ARRAY and type(at) is int and at in (0, -1)
    return _made(run, SCALAR if is_safe else ARRAY, held, at, is_safe=is_safe)


def _is_place(at: Any) -> bool:
    if type(at) is tuple:
        return all(map(_is_place, at))
    if type(at) is slice:
        return all(map(_is_place, (at.start, at.stop, at.step)))
    return at is None or at is ... or parts_of_value(at) is not None or is_array(at)


def length(run: Any, value: Any) -> Unknown:
    """Return the length of an array."""
    form = _form(run, value) or _OTHER
    found = _made(run, "any", value, is_safe=form[0] == ARRAY)
    return Unknown(amounts.COUNT, found.sources)


def field(run: Any, value: Any, name: str) -> Unknown | None:
    """Return an attribute of an array without a call; None for another name."""
    if name not in _FIELDS:
        return None
    return _made(run, ARRAY if name == "T" else "any", value, is_safe=True)


def has_method(name: str) -> bool:
    """Whether arrays and numbers of numpy have the method, which only computes."""
    return name in _METHODS


def method(run: Any, value: Any, name: str, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Return the result of a method of an array."""
    forms = [_form(run, each) for each in args]
    if name not in _METHODS or not _are_options(forms, args, kwargs):
        raise Barrier(f"it calls {name} of an array")
    if name == "astype" and not all(map(_is_type, (*args, *kwargs.values()))):
        raise Barrier("it converts an array to a type that is not known")
    form = _form(run, value) or _OTHER
    if form[0] == SCALAR and name in ("item", "tolist") and not args and not kwargs:
        return number(run, float, (value,), {})
    holds = None
    if form[0] == ARRAY and not kwargs and _never_raises(run):
        if name == "tolist" and not args:
            holds = f"{ROW}:{form[1]}"
        elif (name in ("copy", "flatten", "ravel") and not args) or (
            name == "astype" and len(args) == 1 and _is_float(args[0])
        ):
            holds = f"{ARRAY}:{form[1]}"
        elif (name in _OF_ONE and not args) or (name == "dot" and len(args) == 1 and _are_alike(form, forms[0])):
            holds = SCALAR
        elif name == "reshape" and (args in _ONE_ROW or (len(args) == 1 and args[0] in _ONE_ROW)):
            return _made(run, ARRAY, value, is_safe=True)
    is_plain = name in ("tolist", "item")
    return _made(run, holds or ("any" if is_plain else ARRAY), value, *args, *kwargs.values(), is_safe=bool(holds))


_ONE_ROW: tuple[Any, ...] = ((1, -1), (-1, 1), (-1,), -1)

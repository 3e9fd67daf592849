"""Handlers of the builtin functions and types."""

from __future__ import annotations

import builtins
import functools
import itertools
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from teola_plugin.adapters.reader import (
    amounts,
    arrays,
    bounds,
    classes,
    dataframe_uses,
    dataframes,
    foreign,
    natives_files,
    operators,
    ordering,
    outlets,
    taking,
    texts,
)
from teola_plugin.adapters.reader.amounts import is_atom
from teola_plugin.adapters.reader.attributes import super_of
from teola_plugin.adapters.reader.calling import call, may_change
from teola_plugin.adapters.reader.heap import FILTERED, MAPPED, MAPPINGS, NUMBERED, WALKED, ZIPPED, Each
from teola_plugin.adapters.reader.table import (
    Walk,
    called,
    carries,
    collected,
    handled,
    is_collection,
    is_iterable,
    is_sequence,
    is_text,
    is_unknown,
    iterated,
    kind_of,
    known,
    lazy,
    makes_iterator,
    reads,
    register,
    require_no_decimals,
    require_order,
    steps,
    unknown_atom,
    walked,
    whole,
)
from teola_plugin.adapters.reader.values import (
    ANYWHERE,
    Arguments,
    Barrier,
    Callee,
    Handler,
    Lazy,
    Opaque,
    Stale,
    Undecided,
    Unknown,
    isinstance_of,
)

# --- containers ------------------------------------------------------------------------------------------------------


def _container(make: Callable[..., Any], *, hashes: bool) -> Handler:
    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        if not args:
            return run.keep_order(make(**kwargs)) if make is set else make(**kwargs)
        if kind_of(args[0]) == "texts" and make is list and len(args) == 1:
            return run.unknown(args[0], holds="texts", is_safe=True)
        if len(args) == 1 and not kwargs and (filled := _filled(run, make, args[0])) is not None:
            return filled
        if make is deque:
            known(run, *args, *kwargs.values())
            deque([], *args[1:], **kwargs)  # looks at the length before the elements
        if not hashes:
            return make(collected(run, args[0]), *args[1:], **kwargs)
        known(run, args[0])
        source = args[0]
        if type(source) not in (set, frozenset, dict) or make is Counter:  # of these, CPython copies the order
            source = collected(run, whole(run, source, taking.hashed))
        run.require_known(source if type(source) is not dict else list(source))
        made = make(source, *args[1:], **kwargs)
        return run.keep_order(made, source)

    return handle


def _filled(run: Any, make: Callable[..., Any], source: Any) -> Any:
    """Return a container of what an iterable of unknown content has; None if making it may raise."""
    if not (run.is_unknown(source) and is_collection(source)) or (each := run.each_of(source)) is None:
        return None
    if make is list:
        return run.taint_with([], each)
    if make is set and is_atom(each.holds):
        return run.taint_with(set(), each)
    if make is tuple or (make is frozenset and is_atom(each.holds)):
        return Unknown("any", each.sources, over=(each.holds or "any",))
    return None


def _walks(function: Callable[..., Any], shape: str) -> Handler:
    """Handle functions that make an iterator of iterables, some of which may be unknown; see `Unknown.over`."""
    ordinary = makes_iterator(function)

    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        over = args[:1] if shape is NUMBERED else args
        if shape is NUMBERED:
            rest = [*args[1:], *kwargs.values()]
            is_plain = (
                len(rest) <= 1
                and kwargs.keys() <= {"start"}
                and all(type(each) is int and 0 <= each < 2**32 for each in rest)
            )
        else:
            is_plain = all(name == "strict" and value is False for name, value in kwargs.items())
        can_walk = all(map(is_iterable, over))
        if is_plain and can_walk and any(map(run.is_unknown, over)):
            return run.iterator(shape, *over)
        return ordinary(run, args, kwargs)

    return handle


def _range(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    kinds = [amounts.parts_of_value(each) for each in args]
    if kwargs or not 1 <= len(args) <= 3 or not any(type(each) is Unknown for each in args):
        return reads(range)(run, args, kwargs)
    if any(each is None or each[0] not in ("count", "int") for each in kinds) or not run.is_true((*args, 1, 1)[2]):
        raise Undecided
    holds = amounts.any_of(amounts.holds_of(each) for each in args[:2])
    return Unknown("any", run.sources(*args), over=("int" if len(args) == 3 else holds,))


def _maps(function: Callable[..., Any], shape: str) -> Handler:
    """Handle `map` and `filter`; the function is called where an item of an unknown iterable is needed."""
    ordinary = makes_iterator(map, 0) if function is map else _chooses(filter, none_is_truth=True)

    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        over = args[1:]
        may_raise = [each for each in over if not is_iterable(each)]
        can_walk = not may_raise or (may_change(args[0]) and all(type(each) is Unknown for each in may_raise))
        if over and can_walk and not kwargs and any(map(run.is_unknown, over)) and (shape is MAPPED or len(over) == 1):
            for each in may_raise:
                run.raises(run.sources(each))
            if args[0] is None and shape is FILTERED:
                return run.iterator(WALKED, *over)
            if isinstance_of(args[0], Opaque):
                return run.iterator(shape, *args)
        return ordinary(run, args, kwargs)

    return handle


def _from_keys(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) == 1 and not kwargs and run.is_unknown(args[0]) and is_collection(args[0]):
        each = run.each_of(args[0])
        if each is not None and is_atom(each.holds):
            return Unknown("any", each.sources, over=(each.holds,))
    return reads(dict.fromkeys, collects=taking.hashed)(run, args, kwargs)


def _mapping(make: Callable[..., Any]) -> Handler:
    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        if not args:
            return make(**kwargs)
        if type(args[0]) is Unknown and len(args) == 1 and not kwargs and (pair := _pair_of(run, args[0])) is not None:
            return run.taint_with(make(), pair)
        is_open = run.is_tainted(args[0]) and type(args[0]) in MAPPINGS and len(args) == 1 and not kwargs
        if is_open and (each := run.each_of(args[0])) is not None:
            return run.taint_with(make(), each)
        known(run, args[0])
        if isinstance_of(args[0], Opaque):
            raise Barrier("it makes a dict of an object that is no plain data")
        if isinstance_of(args[0], dict):
            bounds.items(run, len(args[0]))
            return make(*args, **kwargs)
        if type(args[0]) not in (list, tuple, Lazy, type({}.items()), set, deque):
            run.require_known(args[0])
            return make(*args, **kwargs)
        pairs = collected(run, whole(run, args[0], taking.paired))
        known(run, *pairs)
        return make(pairs, *args[1:], **kwargs)

    return handle


def _pair_of(run: Any, pairs: Unknown) -> Each | None:
    """Return what is known of a dict that is made of unknown pairs; None if making it may raise."""
    if len(pairs.over) < 2:
        return None
    items = run.items_of(pairs)
    if not all(type(each) is tuple and len(each) == 2 for each in items):
        return None
    keys, values = run.each_of([key for key, _ in items]), run.each_of([value for _, value in items])
    sources = keys.sources | values.sources | (run.sources(pairs) or ANYWHERE)
    return Each(keys.holds, sources, values.holds) if keys.holds is None or is_atom(keys.holds) else None


def _default_dict(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    factory: Any = args[0] if args else None
    known(run, factory)
    if isinstance_of(factory, Opaque):
        simple = (list, dict, set, int, str, float)
        if not any(factory.held is each for each in simple):
            raise Barrier("it makes a defaultdict with a function of its own")
        factory = factory.held
    return _mapping(functools.partial(defaultdict, factory))(run, args[1:], kwargs)


def _length(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) == 1 and not kwargs and arrays.is_array(args[0]):
        return arrays.length(run, args[0])
    if len(args) == 1 and not kwargs and is_unknown(run, args[0]):
        is_safe = type(args[0]) is not Unknown or is_text(args[0]) or is_sequence(args[0])
        made = run.unknown(args[0], holds=amounts.COUNT, is_safe=is_safe)
        made.is_true, made.of = run.is_true(args[0]), run.shown(args[0], True)
        return made
    if len(args) == 1 and type(args[0]) is Lazy:
        raise TypeError("the iterator has no len()")
    if len(args) == 1 and type(args[0]) is dataframes.OfPandas:
        return dataframe_uses.length(run, args[0])
    return len(*args, **kwargs)


def _reversed(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) == 1 and not kwargs and run.is_unknown(args[0]) and (
        type(args[0]) is list or kind_of(args[0]) in ("texts", "list")
    ):  # fmt: skip
        return run.iterator(WALKED, args[0])
    known(run, *args)
    if len(args) != 1 or kwargs:
        raise TypeError("reversed takes one argument")
    return Lazy(run, Walk(run, args[0], steps(args[0], reversed)))


def _iter(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    known(run, *args)
    if len(args) == 2 and not kwargs:
        run.require_known(args[1])
        return lazy(run, iter(called(run, args[0]), args[1]))
    if len(args) == 1 and type(args[0]) is Lazy:
        return args[0]
    if len(args) == 1 and not kwargs and not isinstance_of(args[0], Opaque):
        require_order(run, args[0])
        return Lazy(run, Walk(run, args[0], steps(args[0])))
    return iter(*args, **kwargs)


def _next(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    is_made = args and kind_of(args[0]) == "any" and len(args[0].over) > 1 and args[0].over[0] in _MADE
    if is_made and is_sequence(args[0]) and len(args) <= 2:
        found = functools.reduce(run.joined, run.items_of(args[0]))
        if len(args) == 2:
            return run.joined(found, args[1], run.sources(args[0]) or ANYWHERE)
        run.raises(run.sources(args[0]), error=StopIteration)
        return found
    known(run, *args[:1])
    if not args or len(args) > 2 or kwargs or type(args[0]) is not Lazy:
        return next(*args, **kwargs)
    run.tick()
    return next(*args)


_MADE = (NUMBERED, ZIPPED, MAPPED, FILTERED)
"""How iterators make their items."""


# --- truth -----------------------------------------------------------------------------------------------------------


def _quantifier(stops_at: bool) -> Handler:
    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        if len(args) != 1 or kwargs:
            raise TypeError("it takes exactly one argument")
        if run.is_unknown(args[0]) and is_collection(args[0]):
            items = run.items_of(args[0])
            return run.unknown(args[0], items, holds="bool", is_safe=not any(map(arrays.may_be_array, items)))
        unknown = []
        for each in walked(run, args[0]):
            run.tick()
            try:
                if operators.truth(run, each) is stops_at:
                    return stops_at
            except Undecided:
                if type(each) is not Unknown or type(args[0]) is Lazy:  # later elements may not be made
                    raise
                unknown.append(each)
        return run.unknown(*unknown, holds="bool", is_safe=True) if unknown else not stops_at

    return handle


def _bool(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        return bool(*args, **kwargs)
    try:
        return operators.truth(run, args[0])
    except Undecided:
        made = run.unknown(args[0], holds="bool", is_safe=True)
        made.of = run.shown(args[0], True)
        return made


def _chooses(function: Callable[..., Any], *, none_is_truth: bool = False) -> Handler:
    """Handle `filter` and similar functions, which take a predicate."""

    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        if len(args) != 2 or kwargs:
            raise TypeError("it takes two arguments")
        known(run, *args)
        test, source = args
        if isinstance_of(test, Opaque):
            return lazy(
                run, function(lambda each: operators.truth(run, call(run, test, (each,), {})), walked(run, source))
            )
        if test is None and none_is_truth:
            return lazy(run, function(lambda each: operators.truth(run, each), walked(run, source)))
        return lazy(run, function(test, walked(run, source)))

    return handle


# --- numbers and texts -----------------------------------------------------------------------------------------------


def _number(function: Callable[..., Any]) -> Handler:
    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        if args and arrays.is_array(args[0]):
            return arrays.number(run, function, args, kwargs)
        if args and kind_of(args[0]) not in ("", "any"):
            run.require_known(*args[1:], *kwargs.values())
            is_alone = len(args) == 1 and not kwargs
            made = _number_of(function, args[0].holds, args[1:]) if not kwargs else None
            is_of_text = is_alone and function in (int, float) and kind_of(args[0]) == "text"
            is_of_float = is_alone and function in (int, round) and args[0].holds is float and made is None
            if is_of_float:  # an infinite one; another error is that of what is no number
                run.raises(run.sources(args[0]), error=OverflowError)
            error = ValueError if is_of_text or is_of_float else Exception
            holds: str | type = float if function is float else "int" if function is int else "number"
            return run.unknown(args[0], holds=made or holds, is_safe=made is not None, error=error)
        known(run, *args)
        run.require_known(*args, *kwargs.values())
        if function in (abs, round):
            require_no_decimals(*args)
        if args and type(args[0]) is Decimal and args[0].is_finite() and abs(args[0].adjusted()) > 5_000:
            raise Barrier("it computes a very large number")
        return function(*args, **kwargs)

    return handle


def _number_of(function: Callable[..., Any], holds: str | type, rest: Arguments) -> str | type | None:
    """Return the kind of the number that is made of an unknown number; None if making it may raise."""
    if function is abs and not rest:
        return amounts.negated(holds)
    if function is round and len(rest) == 1 and type(rest[0]) is int and 0 <= rest[0] < 100:
        return amounts.rounded(holds)
    if rest:
        return None
    return amounts.real_of(holds) if function is float else amounts.whole_of(holds)


def _str(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) == 1 and not kwargs:
        return texts.text_of(run, str, args[0])
    run.require_known(*args, *kwargs.values())
    return str(*args, **kwargs)


def _shows(function: Callable[[Any], str]) -> Handler:
    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        return texts.text_of(run, function, args[0]) if len(args) == 1 and not kwargs else function(*args, **kwargs)

    return handle


def _bytes(make: Callable[..., Any]) -> Handler:
    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        if args and type(args[0]) is int:
            bounds.characters(run, args[0])
        run.require_known(*args, *kwargs.values())
        if args and type(args[0]) not in (str, bytes) and hasattr(type(args[0]), "__iter__"):
            args = (collected(run, whole(run, args[0], taking.number)), *args[1:])
        return make(*args, **kwargs)

    return handle


def _pow(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) == 2 and not kwargs:
        return operators.binary(run, "**", *args)
    known(run, *args, *kwargs.values())
    run.require_known(*args, *kwargs.values())
    if len(args) != 3:
        raise Barrier("it calls pow() in an unusual way")
    return pow(*args)


def _hash(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) == 1 and not kwargs and unknown_atom(args[0]):
        return run.unknown(args[0], holds=amounts.PLACE, is_safe=True)
    known(run, *args)
    run.require_known(*args)
    if len(args) != 1 or kwargs:
        raise TypeError("hash takes one argument")
    found = hash(args[0])
    is_by_value = type(args[0]) in (int, bool, float, str, bytes) and args[0] == args[0]  # that of nan is by identity
    return found if is_by_value else run.unknown(holds=amounts.PLACE, is_safe=True)


def _id(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    return run.unknown(*args, holds=amounts.COUNT, is_safe=len(args) == 1 and not kwargs)


# --- effects ---------------------------------------------------------------------------------------------------------


def _print(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    file = kwargs.get("file")
    if file is not None and not natives_files.is_output(file):
        raise Barrier("it prints to something else than a file")
    if kwargs.keys() - {"file", "sep", "end", "flush"}:
        raise TypeError("print() got an unexpected keyword argument")
    around = [kwargs[name] for name in ("sep", "end") if name in kwargs]
    if any(type(each) not in (str, type(None), Unknown) for each in around):
        raise TypeError("sep and end must be None or a string")
    shows(run, *args)
    written = [each if type(each) is str else None for each in (*args, *around) if type(each) not in _IN_ASCII]
    is_sure = natives_files.encodes(file.held, written) if file is not None else outlets.prints(written)
    if not all(map(is_text, filter(None, around))) or not is_sure:
        run.raises()
    if kwargs.get("flush", False) is not False and not outlets.flushes(run, sys.stdout):
        run.raises()


_IN_ASCII = (int, float, bool, type(None))


def shows(run: Any, *values: Any) -> None:
    """Note that converting foreign objects to text may raise."""
    if all(type(each) in (str, *_IN_ASCII) for each in values):
        return
    for each in texts.inside(list(values)):
        if isinstance_of(each, Opaque) and not isinstance_of(each, Callee) and type(each) is not dataframes.OfPandas:
            run.raises()
        elif type(each) is Unknown and not texts.is_shown(each):
            run.raises(each.sources)


# --- classes ---------------------------------------------------------------------------------------------------------


def _takes(count: int, handler: Callable[..., Any]) -> Handler:
    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        if len(args) != count or kwargs:
            raise TypeError(f"it takes {count} arguments")
        return handler(run, *args)

    return handle


def _type(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        raise Barrier("it makes a class")
    return classes.type_of(run, args[0])


def _callable(run: Any, value: Any) -> Any:
    known(run, value)
    if isinstance_of(value, Callee):
        return True
    if not isinstance_of(value, Opaque):
        return callable(value)
    held = value.held
    if isinstance_of(held, Stale):
        raise Barrier("it asks whether something can be called that is not known")
    if isinstance_of(held, Opaque):
        return False
    return foreign.in_mro(type(held), "__call__") is not foreign.MISSING


def _getattr(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if not 2 <= len(args) <= 3 or kwargs:
        raise TypeError("getattr takes two or three arguments")
    known(run, args[1])
    if type(args[1]) is not str:
        raise TypeError("attribute name must be string")
    try:
        found = classes.attribute(run, args[0], args[1])
    except AttributeError:
        if len(args) == 3:
            return args[2]
        raise
    if len(args) == 3 and run.is_from_before(found):  # the attribute may be as new as the change
        return run.unknown(found, args[2], is_safe=True)
    return found


def _hasattr(run: Any, value: Any, name: Any) -> Any:
    known(run, name)
    if type(name) is not str:
        raise TypeError("attribute name must be string")
    try:
        found = classes.attribute(run, value, name)
    except AttributeError:
        return False
    except Undecided:
        return run.unknown(value, holds="bool", is_safe=True)
    is_unknown = type(value) is Unknown or run.is_from_before(found)
    return run.unknown(found, holds="bool", is_safe=True) if is_unknown else True


# --- iterators of itertools and functools ----------------------------------------------------------------------------


def _reduce(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if not 2 <= len(args) <= 3 or kwargs:
        raise TypeError("reduce takes two or three arguments")
    elements = walked(run, args[1])
    found = args[2] if len(args) == 3 else next(elements, elements)
    if found is elements:
        raise TypeError("reduce() of empty iterable with no initial value")
    for each in elements:
        run.tick()
        found = call(run, args[0], (found, each), {})
    return found


def _partial(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    known(run, *args[:1])
    if not args or not isinstance_of(args[0], Opaque):
        raise TypeError("the first argument must be callable")
    function, first = args[0], args[1:]
    return handled(lambda r, more, named: call(r, function, (*first, *more), {**kwargs, **named}), "a partial function")


def _cmp_to_key(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    key = functools.cmp_to_key(called(run, args[0] if args else kwargs["mycmp"]))
    return handled(lambda r, given, named: key(*given, **named), "a key of functools.cmp_to_key")


def _group_by(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if not 1 <= len(args) <= 2:
        raise TypeError("groupby takes one or two arguments")
    by = args[1] if len(args) > 1 else kwargs.get("key")

    def key(each: Any) -> Any:
        found = each if by is None else call(run, by, (each,), {})
        run.require_known(found)
        return found

    def groups(source: Iterator[Any]) -> Iterator[Any]:
        for found, group in itertools.groupby(source, key):
            yield found, lazy(run, group)

    known(run, by)
    return lazy(run, groups(walked(run, args[0])))


def _accumulate(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if not 1 <= len(args) <= 2:
        raise TypeError("accumulate takes one or two arguments")
    by = args[1] if len(args) > 1 else kwargs.get("func")

    def combine(one: Any, two: Any) -> Any:
        return operators.binary(run, "+", one, two) if by is None else call(run, by, (one, two), {})

    known(run, by)
    initial = kwargs.get("initial")
    return lazy(run, itertools.accumulate(walked(run, args[0]), combine, initial=initial))


def _slices(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    known(run, *args)
    run.require_known(*args[1:])
    if not args:
        raise TypeError("islice takes arguments")
    return lazy(run, itertools.islice(iterated(run, args[0]), *args[1:], **kwargs))


def _pools(function: Callable[..., Any], pools: int | None) -> Handler:
    """Handle functions which consume the first arguments whole before yielding."""

    def handle(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
        known(run, *args, *kwargs.values())
        given = [collected(run, each) if pools is None or at < pools else each for at, each in enumerate(args)]
        if type(repeat := kwargs.get("repeat")) is int and repeat > 100:
            raise Barrier("it makes a very large product")
        return lazy(run, function(*given, **kwargs))

    return handle


def _flattened(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        raise TypeError("from_iterable takes one argument")
    return lazy(run, (each for inner in walked(run, args[0]) for each in walked(run, inner)))


def _register() -> None:
    register(_container(list, hashes=False), list)
    register(_container(tuple, hashes=False), tuple)
    register(_container(set, hashes=True), set)
    register(_container(frozenset, hashes=True), frozenset)
    register(_counter, Counter)
    register(_container(deque, hashes=False), deque)
    register(_mapping(dict), dict)
    register(_mapping(OrderedDict), OrderedDict)
    register(_default_dict, defaultdict)
    register(_from_keys, dict.fromkeys)
    register(_length, len)
    register(_walks(enumerate, NUMBERED), enumerate)
    register(_walks(zip, ZIPPED), zip)
    for walker in (itertools.chain, itertools.zip_longest, itertools.pairwise):
        register(makes_iterator(walker), walker)
    register(_maps(map, MAPPED), map)
    register(makes_iterator(itertools.starmap, 0), itertools.starmap)
    register(makes_iterator(itertools.cycle), itertools.cycle)
    register(lambda run, args, kwargs: lazy(run, carries(itertools.count)(run, args, kwargs)), itertools.count)
    register(lambda run, args, kwargs: lazy(run, _repeat(run, args, kwargs)), itertools.repeat)
    register(_maps(filter, FILTERED), filter)
    register(_chooses(itertools.filterfalse, none_is_truth=True), itertools.filterfalse)
    register(_chooses(itertools.takewhile), itertools.takewhile)
    register(_chooses(itertools.dropwhile), itertools.dropwhile)
    register(_group_by, itertools.groupby)
    register(_accumulate, itertools.accumulate)
    register(_slices, itertools.islice)
    register(_pools(itertools.product, None), itertools.product)
    for pool in (itertools.permutations, itertools.combinations, itertools.combinations_with_replacement):
        register(_pools(pool, 1), pool)
    register(_flattened, itertools.chain.from_iterable)
    register(_reduce, functools.reduce)
    register(_partial, functools.partial)
    register(_cmp_to_key, functools.cmp_to_key)
    register(_reversed, reversed)
    register(_iter, iter)
    register(_next, next)
    register(_quantifier(True), any)
    register(_quantifier(False), all)
    register(_bool, bool)
    register(ordering.total, sum)
    register(ordering.sort, sorted)
    register(ordering.extreme(min), min)
    register(ordering.extreme(max), max)
    for number in (int, float, round, abs):
        register(_number(number), number)
    register(_range, range)
    for plain in (
        complex,
        chr,
        ord,
        hex,
        bin,
        oct,
        slice,
        int.from_bytes,
        bytes.fromhex,
        str.maketrans,
        float.fromhex,
    ):
        register(reads(plain), plain)
    register(reads(divmod, size=_without_decimals), divmod)
    register(_str, str)
    register(_shows(repr), repr)
    register(_shows(ascii), ascii)
    register(texts.template, format)
    register(_bytes(bytes), bytes)
    register(_pow, pow)
    register(_hash, hash)
    register(_id, id)
    register(_print, builtins.print)
    register(_takes(2, classes.is_instance), isinstance)
    register(_takes(2, classes.is_subclass), issubclass)
    register(_takes(1, _callable), callable)
    register(_type, type)
    register(_getattr, getattr)
    register(_takes(2, _hasattr), hasattr)
    register(super_of, super)


def _counter(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    if args and isinstance_of(args[0], dict):
        return Counter(*args, **kwargs)
    if len(args) != 1 or args[0] is None:
        return Counter(*args, **kwargs)
    if run.is_unknown(args[0]) and is_collection(args[0]) and (each := run.each_of(args[0])) and is_atom(each.holds):
        return run.taint_with(Counter(), Each(each.holds, each.sources, amounts.COUNT))
    known(run, *args)
    return _container(Counter, hashes=True)(run, args, kwargs)


def _without_decimals(run: Any, *args: Any, **kwargs: Any) -> None:
    require_no_decimals(*args)


def _repeat(run: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    run.require_known(*args[1:], *kwargs.values())
    return itertools.repeat(*args, **kwargs)


_register()

"""What no order of things can be sooner than, for queries that come one at a time.

| bound | work | around it |
|---|---|---|
| an engine | all that it does for a query | until its first request can begin, and what has yet to follow its last |
| texts, and what takes them one by one | both engines, in the best of all orders (texts.py) | the same |

The work is that of the real runs, ours or a baseline's, whichever is less: what their batches and caches save is saved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from simulator import Span

from papers.teola.critical_path import around
from papers.teola.measure import Load, Measured, plan_of, simulated
from papers.teola.testbed import INSTANCES, context_of
from papers.teola.texts import Costs, least_s
from teola_plugin.engines import Taker
from teola_plugin.graph import Primitive
from teola_plugin.passes import Context
from teola_plugin.passes.estimates import takers
from teola_plugin.profile import LlmProfile, Profile


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds, means over queries: the work of `name`, and what has to come before and after it."""

    name: str
    work_s: float
    around_s: float

    @property
    def together_s(self) -> float:
        """No query is shorter in the mean."""
        return self.work_s + self.around_s


@dataclass(frozen=True, slots=True)
class Runs:
    """The same queries one at a time: ours, a baseline, and ours on engines without end."""

    ours: Measured
    baseline: Measured
    unlimited: Measured


def bounds_of(runs: Runs) -> Sequence[Bound]:
    """One for each engine; and for texts that are taken one by one, as if their prompts were of the same length."""
    load = runs.unlimited.load
    app = load.place.apps[0]
    context = context_of(app, load.place.size, load.way, has_logs=load.place.has_logs)
    plan = plan_of(load.place, app, load.way)
    single_s = partial(_single_s, context)
    queries = [(Counter(s.primitive for s in spans), around(plan.graph, spans, single_s)) for spans in _spans(load)]
    found = []
    for name in runs.ours.engines:
        work_s = min(runs.ours.work_s(name), runs.baseline.work_s(name))
        around_s = sum(each.of(name) for _, each in queries if name in each.engines.values())
        found.append(Bound(name, work_s, around_s / len(queries)))
    for p in plan.graph:
        if taker := plan.remaining[p.name].taker:
            takes = max(takers(p, plan.depths, plan.consumers), key=lambda each: plan.remaining[each.name].depth)
            assert INSTANCES[takes.engine] == 1, "what texts.py takes for given"
            costs = _costs(runs, p, context.profiles[p.engine], taker)
            work_s = fmean(least_s(counts[p.name], INSTANCES[p.engine], costs) for counts, _ in queries)
            around_s = fmean(each.before_s[p.name] + each.after_s[takes.name] for _, each in queries)
            found.append(Bound(f"{p.engine} and {takes.engine}", work_s, around_s))
    return found


def _spans(load: Load) -> Sequence[Sequence[Span]]:
    """Those of each query, from its begin."""
    done = simulated(load, trace=True)
    begun_s = {ended.arrival.number: ended.arrival.at_s for ended in done.ended}
    found: dict[int, list[Span]] = {number: [] for number in begun_s}
    for span in done.spans:
        at_s = begun_s[span.query]
        found[span.query].append(replace(span, begin_s=span.begin_s - at_s, end_s=span.end_s - at_s))
    return list(found.values())


def _single_s(context: Context, span: Span) -> float:
    """What is left if it is the last item of its request."""
    profile = context.profiles.get(span.engine)
    took_s = span.end_s - span.begin_s
    return min(took_s, profile.predict_s(1)) if isinstance(profile, Profile) else took_s


def _costs(runs: Runs, p: Primitive, profile: Profile | LlmProfile, taker: Taker) -> Costs:
    """Of the texts of a primitive, whose engine does nothing else; the prefill is the mean, with what is cached."""
    assert isinstance(profile, LlmProfile)
    steps = p.setting("max_tokens") - 1  # the first token comes with the prefill
    item_s = profile.step_s(2) - profile.step_s(1)
    step_s = profile.step_s(1) - item_s

    def prefill_s(run: Measured) -> float:
        use = run.engines[p.engine]
        return (use.busy_s - use.steps * step_s - use.step_items * item_s) / use.items

    return Costs(min(prefill_s(runs.ours), prefill_s(runs.baseline)), steps * step_s, steps * item_s, *taker)

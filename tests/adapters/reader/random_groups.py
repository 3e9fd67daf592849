"""Random programs with dicts of lists, of counts and of sets that loops over replies fill; see random_lists.py."""

from __future__ import annotations

from tests.adapters.reader import random_lists

FILLS = [
    "for x in w.ask('a'): g.setdefault(x, []).append(<item>)",
    "for at, x in enumerate(w.ask('b')): h[x].append(at)",
    "for x in w.ask('c'):\n    if x not in g: g[x] = []\n    g[x].append(<item>)",
    "for x in w.ask('d'):\n    if x in g: g[x].append(<item>)\n    else: g[x] = [<item>]",
    "for x in w.ask('e'): g[x] = g.get(x, []) + [<item>]",
    "for x in m.ask('f').split():\n    for y in w.ask('g'): h[(x, y)].append(<item>)",
    "for x in w.ask('h'):\n    xs = g.setdefault(x, [])\n    xs.append(<item>)",
    "for x in q.ask('i'): g.setdefault(x, []).append(<item>)",
    "for x in w.ask('j'): h[x] += <list>",
    "for x in w.ask('k'): g.setdefault(x, <list>).append(<item>)",
    "for x in w.ask('l'): h[x].extend(<list>)",
    "for x in w.ask('m'): c[x] += 1",
    "c.update(w.ask('n'))",
    "for x in w.ask('o'): c.update(<list>)",
    "for k, v in g.items(): v.append(<item>)",
    "for k in h:\n    if h[k]: ys.append(k)\n    h[k].append(<item>)",
    "for k in h: h[<item>].append(1)",
    "for v in g.values():\n    for x in v: v.append(x) if len(v) < 4 else None",
    "for x in w.ask('p'):\n    if jb.ask('q'): g = {}\n    g.setdefault(x, []).append(<item>)",
    "for x in w.ask('r'):\n    try: g[x].append(<item>)\n    except KeyError: g[x] = [<item>]",
]
CHANGES = [
    "g[<item>] = []", "g[<item>] = <list>", "g[<item>] = [<item>]", "xs = g.setdefault(<item>, [])", "xs = h[<item>]",
    "xs.append(<item>)", "ys.append(<item>)", "xs = ys", "xs = list(xs)", "h[<item>].append(<item>)", "g = dict(g)",
    "g = {**g}", "g = {**g, 'a': ys}", "g = {**h, 'z': []}", "h = defaultdict(list, g)", "g = h", "g = h.copy()",
    "g.update(h)", "h.update(g)", "g.update({'a': ys})", "g.pop('a', None)", "g.clear()", "xs.clear()", "xs.sort()",
    "xs += <list>", "ys += <list>", "h[<item>] += <list>", "g[<item>] = xs", "g[<item>] = h[<item>]",
    "g[<item>] = xs[:1]", "xs = g.get(<item>, [])", "xs = g.get(<item>, ys)", "xs = h[<item>] if jb.ask('s') else ys",
    "if jb.ask('t'): xs = h[<item>]", "if jb.ask('u'): g[<item>] = [1]\nelse: g[<item>] = ['a']",
    "if jb.ask('v'): g[<item>] = 1", "g['a'] = ['b']", "g = {'a': []}", "g = {'a': ys}", "del xs[0]", "xs[0] = <item>",
    "xs.insert(0, <item>)", "xs.remove('a')", "z = xs.pop()", "list.append(xs, <item>)",
    "push = xs.append\npush(<item>)",
    "random.shuffle(xs)", "it = iter(xs)", "it = g.items()", "it = h.values()", "it = (v for v in g.values())",
    "g.setdefault(<item>, 0)", "g.setdefault([], [])", "h[[]].append(1)", "g[q.ask('w')] = []",
    "h[q.ask('x')].append(<item>)", "c[<item>] += 1", "c.update(<list>)", "c = Counter(<list>)", "c.update(g)",
    "g = {k: sorted(v) for k, v in g.items()}", "d = {k: sum(1 / (len(x) + 1) for x in v) for k, v in h.items()}",
    "d = {k: len(v) for k, v in g.items()}", "g = {k: v for k, v in g.items()}",
    "def add(k, x): h[k].append(x)\nadd(<item>, <item>)", "xs, ys = ys, xs", "ys = [g, h]", "g[<item>] = ys = [1]",
    "xs = (g.setdefault(<item>, []), 1)[0]", "xs = g.setdefault(*(<item>, ys), [])", "h['a'], xs = [], ['a']",
]  # fmt: skip
LISTS = [
    "xs", "ys", "h['a']", "h[<item>]", "g.get(<item>, [])", "[]", "[<item>]", "[x for x in xs]", "w.ask('y')",
    "xs + ys", "list(g)", "list(h)", "[len(v) for v in g.values()]", "[x for v in h.values() for x in v]",
    "sorted(g, key=lambda k: len(g[k]))", "sorted(h, key=lambda k: sum(1 / (x + 60) for x in h[k]))",
    "sorted(d, key=d.get)", "sorted(xs)", "xs[:2]", "h[<item>][::-1]", "[*xs]", "list(c)", "[1, 'a']",
    "sorted(g.items(), key=lambda x: -len(x[1]))", "[k for k, v in g.items() if len(v) > 1]", "sum(g.values(), [])",
    "[(k, v[:2]) for k, v in h.items()]",
]  # fmt: skip
ITEMS = [
    "'a'", "3", "x", "m.ask('z')", "n.ask('aa')", "q.ask('bb')", "len(xs)", "xs[0]", "(1, 'a')", "(m.ask('cc'), 1)",
    "[1]", "ys", "None", "xs.pop()", "<number>", "{'n': 1}",
]  # fmt: skip
NUMBERS = [
    "len(g)", "len(h)", "len(xs)", "sum(len(v) for v in g.values())", "sum(xs)", "c['a']", "c[m.ask('dd')]",
    "sum(c.values())", "len(h[<item>])", "max((len(v) for v in h.values()), default=0)", "n.ask('ee')",
    "sum(map(len, g.values()))", "len(<list>)",
]  # fmt: skip
USES = [
    "m.ask('next')", "m.ask('behind')", "m.ask(str(len(g)))", "m.ask(str(g))", "m.ask(str(dict(h)))",
    "m.ask(', '.join(<list>))", "m.ask(str(<list>))", "m.ask(str(xs is h['a']))", "m.ask(str(xs is ys))",
    "m.ask(str(xs == <list>))", "m.ask(str('a' in xs))", "m.ask(str(<item> in g))", "if xs: m.ask(str(xs[0]))",
    "if h['a']:\n    h['b'].clear()\n    m.ask(str(h['a'][0]))",
    "if xs:\n    for v in h.values(): v.clear()\n    m.ask(xs[0])",
    "for k in g:\n    if jb.ask(1): m.ask(','.join(g[k]))", "m.ask(str(max(g, key=lambda k: len(g[k]))))",
    "m.ask('{}'.format(<number>))", "m.ask(json.dumps(g))", "m.ask(str(sum(<list>)))", "m.ask(str(next(it)))",
    "list(it)",
    "for k, v in h.items(): m.ask(k)", "m.ask(str([sum(v) for v in g.values()]))", "m.ask('has' if g else 'none')",
    "m.ask(str(c.most_common(1)))", "for z in <list>: t = z", "m.ask(str(t))", "m.ask(str(<list> + <list>))",
    "x, y = xs", "x = <item>", "m.ask(str(len(c)))",
    "try: int(m.ask('ff'))\nexcept ValueError as error: m.ask(error.__class__.__name__)",
    "try: m.ask(str(g[<item>]))\nexcept Exception as error: ys.append(error.__class__.__name__)",
]  # fmt: skip
FORMS = random_lists.Forms(
    "xs, ys, it, g, h, c, d, t, x = [], [], (), {}, defaultdict(list), Counter(), {}, 0, 'x'",
    "return xs, ys, g, h, c, d, t", FILLS, CHANGES, USES, LISTS, ITEMS, NUMBERS,
)  # fmt: skip

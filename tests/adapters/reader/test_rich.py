"""What a program shows with rich: the framework's run shows it once, in order; a reading shows nothing."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
import rich
from rich import box, markup
from rich import print as rich_print
from rich.align import Align
from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.markdown import Markdown
from rich.panel import Panel
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, track
from rich.rule import Rule
from rich.spinner import Spinner
from rich.style import Style
from rich.table import Table
from rich.text import Text
from rich.theme import Theme
from rich.tree import Tree

from teola_plugin import optimize
from teola_plugin.adapters.reader import natives_rich
from tests.adapters.reader.langchain_reading import check, hosted, read, stopped
from tests.adapters.reader.test_exact_requests import Slow, graph

LLM = hosted()
TEXT = Text("a")
CONSOLE = Console()
HEADING = Panel("the heading")
FILE = io.StringIO()
RAN: list[str] = []


def ask(text: str) -> str:
    return LLM.invoke(text).content  # type: ignore[return-value]


class Own:
    """An object with code for the terminal."""

    def __rich__(self) -> str:
        RAN.append("ran")
        return "own"


class OwnPanel(Panel):
    """A class of the program's."""


def own_highlighter(text: Any) -> Text:
    RAN.append("ran")
    return Text(str(text))


@pytest.fixture(autouse=True)
def _nothing_runs() -> None:
    RAN.clear()


def made_whole(reply: str) -> None:
    table = Table("n", title="[b]Found[/b]", box=box.SIMPLE, header_style="bold magenta")
    table.add_column("text", style="cyan", justify="right", no_wrap=True)
    table.add_row("1", Text(reply), end_section=True)
    tree = Tree("top")
    tree.add("branch").add(Text("leaf", style=Style(bold=True)))
    text = Text("a ").append(reply, style="red").append(" b")
    CONSOLE.print(table, tree, text, Rule("x"), Columns(["a", "b"]), Group("a", Markdown(reply)))
    CONSOLE.print(Align.center(Panel.fit("x", border_style="green")), HEADING, style="bold", end="\n\n")
    CONSOLE.print(Text.assemble(("a", "bold"), "b"), Text.from_markup("[b]x[/b]"), Panel(Text(reply), padding=(1, 2)))


def shown_on_its_own_console(reply: str) -> None:
    console = Console(width=100, stderr=True)
    console.print("x", soft_wrap=True)
    console.rule("[red]z")
    console.line()
    console.out(reply)
    console.print_json('{"a": [1]}')
    console.print_json(data={"a": [1, None]})


def shown_in_time(reply: str) -> None:
    with CONSOLE.status("[bold]working", spinner="moon") as status:
        ask("inside")
        status.update("still")
    columns = SpinnerColumn(), TextColumn("[progress.description]{task.description}"), BarColumn()
    with Progress(*columns, transient=True, console=CONSOLE) as progress:
        task = progress.add_task("x", total=10_000_000)
        progress.update(task, advance=1, description="y")
        progress.advance(task)
    with Live(Table("x"), refresh_per_second=4) as live:
        live.update(Panel("b"))
    progress.start()
    progress.stop()


def shown_plainly(reply: str) -> None:
    print("first", len(reply))
    CONSOLE.print("[bold]two[/bold] [1]", 3, None, len(reply), len(reply) > 3, sep="; ")
    CONSOLE.print([reply, "[/b]"], {"a": (1, {2})}, datetime(2024, 5, 17), style="red")
    CONSOLE.print(reply, markup=False)
    CONSOLE.print("a" * 500, "[b]" + "a" * 500, "é", width=1_000_000_000)
    rich_print(f"[bold]{len('abc')}[/bold]", {"a": 1})
    CONSOLE.line(2)
    CONSOLE.print()
    print("last")


def tracked(reply: str) -> None:
    for each in track(["a", "b"], description="[b]go"):
        print(each)


SHOWN = [made_whole, shown_on_its_own_console, shown_in_time, shown_plainly, tracked]


@pytest.mark.parametrize("show", SHOWN)
def test_what_stands_behind_is_certain_and_nothing_is_shown_early(
    show: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def program(x: str) -> Any:
        reply = ask(x)
        show(reply)
        return [reply, ask("behind")]

    check(program, "q")
    capsys.readouterr()
    found = read(program, "q")
    assert capsys.readouterr() == ("", "")
    assert len(found.rounds) == 1
    assert all(found.certain[0])


def test_a_loop_that_shows_replies_as_markup_is_a_batch() -> None:
    def program(x: list[str]) -> Any:
        found = []
        for each in x:
            found.append(ask(each))
            CONSOLE.print(f"[green]{found[-1]}[/green]")
        return [found, ask("behind")]

    assert check(program, ["a", "b", "c"]).certain[0] == [True, True, True, False]


MAY_RAISE: list[Callable[[str], Any]] = [
    lambda reply: CONSOLE.print(reply),
    lambda reply: CONSOLE.print("x", f"[b]{reply}[/b]", style="bold"),
    lambda reply: CONSOLE.print("a", OwnPanel("x")),
    lambda reply: CONSOLE.log(reply),
    lambda reply: CONSOLE.rule(reply),
    lambda reply: rich_print(reply),
    lambda reply: CONSOLE.print(reply, markup=True),
    lambda reply: CONSOLE.print(Panel(reply)),
    lambda reply: Table().add_row(reply),
    lambda reply: CONSOLE.print(Columns([reply])),
    lambda reply: CONSOLE.print(Text("a"), Panel(Text("a"), title=reply)),
    lambda reply: CONSOLE.print(Text.from_markup(reply)),
    lambda reply: CONSOLE.status(reply),
    lambda reply: list(track([1], description=reply)),
    lambda reply: CONSOLE.print(chr(0xD800)),
    lambda reply: CONSOLE.print(ValueError("x")),
    lambda reply: CONSOLE.print([Own()]),
    lambda reply: CONSOLE.print(Own()),
    lambda reply: CONSOLE.print(Panel(Own())),  # type: ignore[arg-type]
    lambda reply: CONSOLE.rule(reply == "x"),  # type: ignore[arg-type]
    lambda reply: CONSOLE.line(len(reply)),
    lambda reply: Console(highlight=False, style="red").print(reply),
]


@pytest.mark.parametrize("show", MAY_RAISE)
def test_what_stands_behind_a_possible_error_is_not_certain(show: Callable[[str], Any]) -> None:
    def program(x: str) -> Any:
        reply = ask(x)
        show(reply)
        return [reply, ask("behind")]

    found = read(program, "q")
    assert not found.stopped
    assert found.certain == [[True, False]]
    assert RAN == []


def flushed_in_a_live_display(reply: str) -> None:
    with CONSOLE.status("x"):
        print(reply, end="", flush=True)


def flushed_by_hand_in_a_live_display(reply: str) -> None:
    CONSOLE.status("x").start()
    sys.stdout.flush()


def flushed_in_a_tracked_loop(reply: str) -> None:
    for _ in track([1]):
        print(reply, end="", flush=True)


@pytest.mark.parametrize("show", [flushed_in_a_live_display, flushed_in_a_tracked_loop])
def test_a_line_that_is_flushed_beside_a_live_display_is_markup(show: Callable[[str], Any]) -> None:
    def program(x: str) -> Any:
        reply = ask(x)
        show(reply)
        return [reply, ask("behind")]

    assert read(program, "q").certain == [[True, False]]


def test_a_stream_that_is_flushed_beside_a_live_display_ends_the_reading() -> None:
    assert "flush" in stopped(lambda x: [flushed_by_hand_in_a_live_display(x), ask(x)], "q")


def test_a_line_is_flushed_behind_a_live_display() -> None:
    def program(x: str) -> Any:
        with CONSOLE.status("x"):
            reply = ask(x)
        print(reply, end="", flush=True)
        return [reply, ask("behind")]

    assert check(program, "q").certain == [[True, True]]


@pytest.mark.parametrize(
    "show",
    [
        lambda reply: Panel("a", title=len(reply)),  # type: ignore[arg-type]
        lambda reply: CONSOLE.print("a", end=len(reply)),  # type: ignore[arg-type]
        lambda reply: CONSOLE.print("a", end=Text(reply)),  # type: ignore[arg-type]
    ],
)
def test_nothing_is_certain_behind_an_argument_that_rich_refuses(show: Callable[[str], Any]) -> None:
    found = read(lambda x: [show(ask(x)), ask("behind")], "q")
    assert not any(found.certain[0][1:])
    assert "it shows with rich what raises" in found.stopped


STOPS: list[Callable[[str], Any]] = [
    lambda x: CONSOLE.print("a[/bold]"),
    lambda x: CONSOLE.print("a", style="no such style"),
    lambda x: CONSOLE.log("a", log_locals=True),
    lambda x: CONSOLE.print("a", nonsense=1),  # type: ignore[call-arg]
    lambda x: Table("a", box=3),  # type: ignore[arg-type]
    lambda x: Table("a").add_row(3),  # type: ignore[arg-type]
    lambda x: Table("a").add_row("[/b]"),
    lambda x: Panel("a", border_style="no such style"),
    lambda x: CONSOLE.status("x", spinner="no such spinner"),
    lambda x: Progress(TextColumn("{task.fields[name]}")).add_task("x"),
    lambda x: Progress().update(7, advance=1),  # type: ignore[arg-type]
    lambda x: ask(str(bool(Text("")))),
    lambda x: ask(str(isinstance(Table(), Table))),
    lambda x: ask(type(Table()).__name__),
    lambda x: ask(str(Text("a") == Text("a"))),
    lambda x: ask(str(Text("a"))),
    lambda x: ask(Text("a").plain),
    lambda x: ask(str(len(Text("a")))),
    lambda x: ask(str(Table().row_count)),
    lambda x: ask(str(callable(SpinnerColumn()))),
    lambda x: ask(str({Text("a"): 1})),
    lambda x: setattr(Table(), "title", Own()),
    lambda x: ask(str(Progress().add_task("x"))),
    lambda x: CONSOLE.input("x"),
    lambda x: CONSOLE.export_text(),
    lambda x: CONSOLE.begin_capture(),
    lambda x: Console(record=True).print("x"),
    lambda x: Console(file=io.StringIO()).print("x"),
    lambda x: rich_print("x", file=FILE),
    lambda x: Progress().start(x),  # type: ignore[call-arg]
    lambda x: Markdown(Text("a")),  # type: ignore[arg-type]
    lambda x: CONSOLE.print("a", end=Text("a")),  # type: ignore[arg-type]
    lambda x: CONSOLE.print("a", end=TEXT),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("act", STOPS)
def test_what_is_not_read(act: Callable[[str], Any], capsys: pytest.CaptureFixture[str]) -> None:
    found = read(lambda x: [act(x), ask("behind")], "q")
    assert found.stopped
    assert found.rounds == []
    assert capsys.readouterr() == ("", "")


def test_a_text_that_is_appended_to_is_the_same_text() -> None:
    def program(x: str) -> Any:
        text = Text(x)
        return ask("same" if text.append("b") is text else "other")

    check(program, "q")


def test_many_lines_are_not_made_to_try_a_call() -> None:
    assert natives_rich._sample(None, 10**9, True, True) == natives_rich._LONG


def test_a_method_that_there_is_not_raises() -> None:
    check(lambda x: [ask(x), Table().append("x")], "q")  # type: ignore[attr-defined]


# --- consoles --------------------------------------------------------------------------------------------------------


def on(console: Console) -> list[list[bool]]:
    def program(x: str) -> Any:
        console.print("x")
        return ask(x)

    found = read(program, "q")
    assert RAN == []
    return found.certain if not found.stopped else []


def with_parts(**parts: Any) -> Console:
    made = Console()
    vars(made).update(parts)
    return made


def hooked(*hooks: Any) -> Console:
    return with_parts(_render_hooks=list(hooks))


def test_a_console_that_shows_by_code_of_rich_alone() -> None:
    columns = Progress(TextColumn("{task.description}"))
    columns.add_task("x")
    usual = [
        Console(), Console(stderr=True), Console(file=sys.__stdout__), Console(theme=Theme({"mine": "red"})),
        Console(highlight=False, markup=False, style="red"), hooked(CONSOLE.status("x")._live), hooked(columns.live),
        hooked(Live(Table("x"))),
    ]  # fmt: skip
    assert [on(each) for each in usual] == [[[True]]] * len(usual)


def test_a_console_with_parts_of_the_program_may_raise() -> None:
    class Hook:
        def process_renderables(self, renderables: Any) -> Any:
            RAN.append("ran")
            return renderables

    own = Progress(TextColumn("{task.description}"))
    own.add_task(Own())  # type: ignore[arg-type]
    unusual: list[Any] = [
        Console(highlighter=own_highlighter), Console(get_datetime=lambda: datetime(2024, 1, 1)),
        Console(get_time=lambda: 0.0), Console(theme=Theme({}, inherit=False)), Console(force_jupyter=True),
        Console(log_time_format=own_highlighter), Console(legacy_windows=True), hooked(Hook()), hooked(own.live),
        hooked(Live(Own())), hooked(Live(get_renderable=Own)), with_parts(render=None), with_parts(_markup=Own()),
    ]  # fmt: skip
    assert [on(each) for each in unusual] == [[[False]]] * len(unusual)


class Mine(Console):
    """A class of the program's."""


def test_a_console_of_which_more_is_seen_is_not_read() -> None:
    keeping = [Console(record=True), Console(file=io.StringIO()), Mine(), Console.__new__(Console)]
    assert [on(each) for each in keeping] == [[]] * len(keeping)


def test_a_console_that_the_program_changes_is_not_read() -> None:
    console = Console()

    def program(x: str) -> Any:
        console.record = True
        console.print("x")
        return ask(x)

    assert stopped(program, "q")


def test_styles_of_the_console_are_known() -> None:
    console = Console(theme=Theme({"mine": "red"}))

    def program(x: str) -> Any:
        console.print("x", style="mine")
        return ask(x)

    assert check(program, "q").certain == [[True]]


def test_a_console_with_code_in_place_of_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Console, "render_str", own_highlighter)
    assert on(CONSOLE) == [[False]]
    monkeypatch.undo()
    monkeypatch.setattr(Panel, "__rich_console__", own_highlighter)
    assert read(lambda x: [CONSOLE.print(Panel("x")), ask(x)], "q").certain == [[False]]
    assert RAN == []


@pytest.mark.parametrize(("encoding", "is_certain"), [("utf-8", True), ("ascii", False)])
def test_a_stream_may_lack_characters(encoding: str, is_certain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    assert on(CONSOLE) == [[is_certain]]
    with Live(console=Console(force_terminal=True), auto_refresh=False):
        assert type(sys.stdout).__name__ == "FileProxy"
        assert on(Console()) == [[is_certain]]
        assert read(lambda x: [print("é"), ask(x)], "q").certain == [[is_certain]]
        assert "flush" in stopped(lambda x: [sys.stdout.flush(), ask(x)], "q")


def test_a_console_for_all_that_the_program_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rich, "_console", Console(file=io.StringIO()))
    assert read(lambda x: [rich_print("x"), ask(x)], "q").rounds == []
    assert read(lambda x: [Live("x"), ask(x)], "q").rounds == []
    assert read(lambda x: [Live("x", console=CONSOLE), ask(x)], "q").certain == [[True]]


def test_releases_that_show_but_a_single_live_display(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = natives_rich._screen

    def older(*args: Any) -> Any:
        found = screen(*args)
        del found._live_stack
        return found

    monkeypatch.setattr(natives_rich, "_screen", older)
    for make in (lambda: CONSOLE.status("x"), lambda: Live("x")):
        assert read(lambda x, make=make: [make(), ask(x)], "q").certain == [[False]]  # type: ignore[misc]


def test_parts_from_outside_are_plain() -> None:
    table, spinner = Table(Own()), Spinner("dots")  # type: ignore[arg-type]
    assert read(lambda x: [CONSOLE.print(table), ask(x)], "q").certain == [[False]]
    assert read(lambda x: [CONSOLE.print(spinner), ask(x)], "q").certain == [[True]]
    assert spinner.start_time is None
    assert RAN == []


# --- whole pipelines -------------------------------------------------------------------------------------------------


def shows(model: Any) -> Callable[[Any], Any]:
    def node(topics: list[str]) -> list[str]:
        found = []
        table = Table(title="[b]Sources[/b]")
        table.add_column("topic")
        CONSOLE.rule("begin")
        with CONSOLE.status("[bold]asking") as status:
            for each in topics:
                print("now", each)
                status.update(f"asking {each}")
                reply = model.invoke(f"say {each}").content
                CONSOLE.print(f"[green]{reply}[/green]", markup.escape(reply))
                table.add_row(each, Text(reply))
                found.append(reply)
        CONSOLE.print(table)
        print("end")
        return [*found, model.invoke(f"say {len(found)}").content]

    return node


def test_everything_is_shown_once_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    shown, asked = [], []
    for make in (lambda made: made, optimize):
        model = Slow()
        assert make(graph(model, shows(model))).invoke({"x": ["one", "two", "three"]})["out"] == [
            "one", "two", "three", "3"
        ]  # fmt: skip
        shown.append(capsys.readouterr())
        asked.append(sorted(text for _, text in model._calls))
    assert shown[0] == shown[1]
    assert shown[0].out.count("now") == 3
    assert asked[0] == asked[1]


def test_an_error_of_markup_asks_for_nothing_behind() -> None:
    def build(model: Any) -> Callable[[Any], Any]:
        async def node(x: Any) -> str:
            reply = (await model.ainvoke("say [/b]")).content
            CONSOLE.print(reply)
            return str((await model.ainvoke("say more")).content)

        return node

    model = Slow()
    with pytest.raises(markup.MarkupError):
        asyncio.run(optimize(graph(model, build(model))).ainvoke({"x": None}))
    assert [text for _, text in model._calls] == ["before", "say [/b]"]


def test_a_method_that_a_class_has_not_is_an_error() -> None:
    def program(x: str) -> Any:
        try:
            Text(ask(x)).start()  # type: ignore[attr-defined]
        except AttributeError:
            return ask("none")
        return ask("some")

    assert check(program, "q").value == ask("none")

"""`teola profile`: measures several engines in turn, shows the results, and stores the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from teola_plugin.errors import TeolaError
from teola_plugin.profile import LlmProfile, Profile, load
from teola_plugin.profiling.measuring import Measured, measured, store
from teola_plugin.profiling.steps import Part, Progress
from teola_plugin.registry import EngineConfig


def profile_engines(
    configs: Sequence[EngineConfig], path: Path, console: Console, progress: Progress, **options: Any
) -> bool:
    """Measure and store each engine. Returns whether all succeeded. `options` are the options of `measured`.

    A failing engine is reported, and the others go on. Ctrl-C keeps the finished engines, and reports which.
    """
    if path.exists():
        load(path)  # better an error now than after all the work
    kept: list[str] = []
    failed = False
    for config in configs:
        try:
            found = measured(config, progress=partial(_tell, progress, config.name), **options)
            stored = store(path, found.profiles)
        except TeolaError as e:
            _say(console, f"{config.name}: {e}", style="red")
            failed = True
            continue
        except KeyboardInterrupt:
            _say(console, f"{config.name}: not finished, so not kept")
            _say(console, f"kept in {path}: {', '.join(kept)}" if kept else f"nothing was written to {path}")
            raise
        kept += found.profiles
        console.print(table_of(found))
        for part, profile in zip(found.parts, _profiles_of(found, stored), strict=True):
            _say(console, f"{part.op}: {verdict(part, profile)}")
        for note in found.notes:
            _say(console, note)
    if kept:
        _say(console, f"written: {path} ({', '.join(kept)}); use it as profile = {str(path)!r} of these engines")
    return not failed


def _tell(progress: Progress, name: str, text: str) -> None:
    progress(f"{name}: {text}")


def _profiles_of(found: Measured, stored: Mapping[str, Profile | LlmProfile]) -> list[Profile]:
    """Return the profile of each part, as stored in the file."""
    profiles: list[Profile] = []
    for name in found.profiles:
        match stored[name]:
            case LlmProfile() as llm:
                profiles += [llm.prefill, llm.step]
            case Profile() as profile:
                profiles.append(profile)
    return profiles


def table_of(found: Measured) -> Table:
    """Return one row for each measured batch: medians, and the error of the profile."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(found.name, overflow="fold")
    for title in ("items", "tokens", "ms", "items/s", "fit"):
        table.add_column(title, justify="right", no_wrap=True)
    for part in found.parts:
        for sample in part.samples:
            miss = part.profile.predict_s(sample.items, sample.tokens) / sample.seconds - 1
            table.add_row(
                part.op, str(sample.items), str(sample.tokens or ""), f"{sample.seconds * 1000:.2f}",
                f"{sample.items / sample.seconds:.1f}", f"{miss:+.0%}",
            )  # fmt: skip
    return table


def verdict(part: Part, profile: Profile) -> str:
    """Return the knee and the quality of the fit, in a line."""
    of_length = f" of {profile.item_tokens:.0f} tokens" if profile.item_tokens else ""
    knee = profile.knee_items
    said = f"knee at {knee} item{'s' if knee > 1 else ''}{of_length}; the fit misses by {part.error:.1%}"
    if part.is_complete:
        return said
    return f"{said}; time was up after {part.samples[-1].items} items, a larger budget tells more"


def _say(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

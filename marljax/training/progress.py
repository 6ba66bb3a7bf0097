"""What a person sees of a run: a live bar in a terminal, plain lines elsewhere, and tables."""

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

SHOWN = (
    "return",
    "return_0",
    "return_1",
    "crash",
    "success",
    "won",
    "length",
)  # the first two of these that an environment reports


FEWEST_SEEDS = 3  # below which a table says that they are few
SECONDS_BETWEEN_LINES = 10.0


class LiveProgress:
    """Steps done, steps per second, time left, and the headline figures; a context manager around training."""

    def __init__(self, console: Console, total_steps: int, done_steps: int, members: str) -> None:
        self._console, self._total, self._members = console, total_steps, members
        self._live = console.is_terminal
        self._last_line = 0.0
        columns = [TextColumn(f"{{task.fields[{name}]}}") for name in ("steps", "speed", "left", "figures")]
        self._bar = Progress(BarColumn(bar_width=12), *columns, console=console, disable=not self._live)
        fields: dict[str, Any] = {"steps": "compiling", "speed": "", "left": "", "figures": ""}
        self._task = self._bar.add_task("", total=total_steps, completed=done_steps, **fields)

    def __enter__(self) -> "LiveProgress":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def update(self, steps: int, speed: float | None, figures: str) -> None:
        """Shows that every seed has done ``steps`` environment steps, ``speed`` of them per second if that is known yet."""
        parts: dict[str, Any] = {
            "steps": f"{short(steps)}/{short(self._total)} steps",
            "speed": f"{short(speed)} steps/s" + (f" × {self._members}" if self._members != "1 seed" else "") if speed else "",
            "left": f"{clock((self._total - steps) / speed)} left" if speed else "",
            "figures": figures,
        }
        self._bar.update(self._task, completed=steps, **parts)
        now = time.monotonic()
        if not self._live and (now - self._last_line >= SECONDS_BETWEEN_LINES or steps >= self._total):
            say(self._console, "  ".join(part for part in parts.values() if part))
            self._last_line = now

    def say(self, line: str) -> None:
        """A line above the bar."""
        say(self._console, line)


def say(console: Console, line: str) -> None:
    """One plain line, brackets and all."""
    console.print(escape(line), highlight=False, soft_wrap=True)


def short(number: float) -> str:
    """``950``, ``22.4k``, ``1.02M``."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:#.3g}".rstrip(".") + unit
    return f"{number:.0f}"


def clock(seconds: float) -> str:
    """``1:02:03`` or ``2:03``."""
    minutes, left = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{left:02d}" if minutes >= 60 else f"{minutes}:{left:02d}"


def headline(
    figures: Mapping[str, float], first: Sequence[str] = (), units: Mapping[str, str] = MappingProxyType({}), count: int = 2
) -> str:
    """The figures that say most, at most ``count``: those of ``first`` (an environment's ``figures``), then common ones."""
    known = [name for name in dict.fromkeys([*first, *SHOWN]) if np.isfinite(figures.get(name, np.nan))]
    return "  ".join(_with_unit(name, figures[name], units.get(name, "")) for name in known[:count])


def _with_unit(name: str, value: float, unit: str) -> str:
    return f"{name} {100 * value:.0f} %" if unit == "%" else f"{name} {value:.3g} {unit}".rstrip()


def caveat(seeds: int, competitive: bool = False) -> str:
    """What to bear in mind when reading a comparison, below it."""
    if seeds == 1:
        lines = ["one seed: the interval says nothing of how much seeds differ; seeds=5 trains more"]
    else:
        lines = [f"{seeds} seeds are few for an interval"] * (seeds < FEWEST_SEEDS)
        lines.append("of scripted policies: over episodes")
    return "; ".join(lines + ["every policy plays itself"] * competitive)

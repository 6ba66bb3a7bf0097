"""Progress of a run in the terminal: a live bar, or plain lines where there is none."""

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType, TracebackType
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

SHOWN = ("return", "return_0", "return_1", "crash", "success", "won", "length")  # of which the first that exist are shown
FEWEST_SEEDS = 3  # below which a table warns
SECONDS_BETWEEN_LINES = 10.0
WARNING = "warning: "


class LiveProgress:
    """Steps done, steps per second, time left and the main metrics; a context manager around training."""

    def __init__(self, console: Console, total_steps: int, done_steps: int, replicas: str) -> None:
        self._console, self._total, self._replicas = console, total_steps, replicas
        self._last_line = 0.0
        self._fields = ("steps", "speed", "left", "metrics")
        columns = [TextColumn(f"{{task.fields[{name}]}}") for name in self._fields]
        live = console.is_terminal and not console.quiet
        self._bar = Progress(BarColumn(bar_width=12), *columns, console=console, disable=not live)
        fields: dict[str, Any] = dict.fromkeys(self._fields, "") | {"steps": "compiling"}
        self._task = self._bar.add_task("", total=total_steps, completed=done_steps, **fields)

    def __enter__(self) -> "LiveProgress":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def update(self, steps: int, speed: float | None, metrics: str) -> None:
        """Shows that every seed has done ``steps`` environment steps, at ``speed`` of them per second (None: unknown)."""
        parts: dict[str, Any] = self._describe(steps, speed) | {"metrics": metrics}
        self._bar.update(self._task, completed=steps, **parts)
        now = time.monotonic()
        due = now - self._last_line >= SECONDS_BETWEEN_LINES or steps >= self._total
        if due and not self._console.is_terminal:
            self.print_line("  ".join(part for part in parts.values() if part))
            self._last_line = now

    def _describe(self, steps: int, speed: float | None) -> dict[str, str]:
        times = f" × {self._replicas}" if self._replicas != "1 seed" else ""
        return {
            "steps": f"{short(steps)}/{short(self._total)} steps",
            "speed": f"{short(speed)} steps/s{times}" if speed else "",
            "left": f"{timedelta(seconds=round((self._total - steps) / speed))} left" if speed else "",
        }

    def print_line(self, line: str) -> None:
        """Prints a line above the bar."""
        print_line(self._console, line)


def print_line(console: Console, line: str, always: bool = False) -> None:
    """Prints one plain line, without interpreting markup; on a quiet console only a warning, or what ``always`` is printed."""
    if not console.quiet:
        console.print(escape(line), highlight=False, soft_wrap=True)
    elif always or line.startswith(WARNING):
        print(line, file=console.file, flush=True)


def short(number: float) -> str:
    """``950``, ``22.4k``, ``1.02M``."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:#.3g}".rstrip(".") + unit
    return f"{number:.0f}"


def headline(
    metrics: Mapping[str, float], first: Sequence[str] = (), units: Mapping[str, str] = MappingProxyType({}), count: int = 2
) -> str:
    """The ``count`` most important metrics: those of ``first`` (``env.display.metrics``), then common ones."""
    parts = []
    for name in dict.fromkeys([*first, *SHOWN]):
        if np.isfinite(value := metrics.get(name, np.nan)):
            unit = units.get(name, "")
            parts.append(f"{name} {100 * value:.0f} %" if unit == "%" else f"{name} {value:.3g} {unit}".rstrip())
    return "  ".join(parts[:count])


def caveat(seeds: int, competitive: bool = False) -> str:
    """The caption of a comparison: limits of its intervals."""
    if seeds == 1:
        lines = ["one seed: the interval does not include the variance between seeds, which a run with seeds=5 shows"]
    else:
        lines = [f"{seeds} seeds are few for an interval"] * (seeds < FEWEST_SEEDS)
        lines.append("of scripted policies: over episodes")
    return "; ".join(lines + ["every policy plays itself"] * competitive)

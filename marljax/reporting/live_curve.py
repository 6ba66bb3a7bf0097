"""The progress of a run in a notebook: a learning curve that is drawn again as the run goes on."""

import io
import time
from types import TracebackType
from typing import Any

from rich.console import Console

from marljax.errors import UserError
from marljax.reporting.report import curve_rows
from marljax.training.progress import LiveProgress
from marljax.training.runner import Run, describe_runs

SECONDS_BETWEEN_CURVES = 2.0  # at least
MOST_OF_THE_TIME = 0.1  # that drawing takes


class LiveCurve(LiveProgress):
    """Takes the place of the bar, whose line becomes the title of the curve."""

    def __init__(self, run: Run, console: Console) -> None:
        steps = run.trainer.steps_per_update
        super().__init__(console, run.trainer.num_updates * steps, run.update * steps, describe_runs(run.settings))
        self._settings = run.settings
        self._folder = run.folder if run.settings.run.search.batch is None else run.folder.parent
        self._due, self._title = 0.0, ""
        self._handle: Any = None

    def __enter__(self) -> "LiveCurve":
        from IPython.display import Pretty, display

        self._handle = display(Pretty("compiling"), display_id=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._title:
            self._draw()

    def update(self, steps: int, speed: float | None, metrics: str) -> None:
        """Shows the rows so far, unless it is too early for that."""
        parts = [self._settings.label, *self._describe(steps, speed).values()]
        self._title = "   ".join(part for part in parts if part)
        if time.monotonic() >= self._due:
            self._draw()

    def _draw(self) -> None:
        from IPython.display import Image

        from marljax.viz.learning_curve import learning_curve

        begun, picture, display = time.monotonic(), io.BytesIO(), self._settings.env.display
        rows = curve_rows(self._settings, self._folder)
        try:
            figure = learning_curve(rows, None, first=display.metrics, title=self._title, units=display.units)
        except UserError:  # no episode has ended yet
            return
        figure.savefig(picture, format="png")
        self._handle.update(Image(picture.getvalue()))
        now = time.monotonic()
        self._due = now + max(SECONDS_BETWEEN_CURVES, (now - begun) / MOST_OF_THE_TIME)

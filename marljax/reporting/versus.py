"""Who beats whom: payoffs between players, ratings from them, a table and files.

Axis letters: N players, S seeds of a player.
"""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from marljax.io.files import replacing
from marljax.reporting.tables import markdown_table
from marljax.training.matches import Results
from marljax.utils import payoffs, stats
from marljax.utils.stats import Estimate
from marljax.version import __version__
from marljax.viz.payoff_matrix import payoff_picture

SUFFIXES = (".md", ".csv", ".png", ".svg")
NORMAL = 1.96  # standard errors on either side of a 95 % interval
DRAWN = 0.1  # share of draws from which ratings take them as outcomes of their own
METHOD = f"""Every two players meet in the same scenarios, half of the battles on either side.

- *Payoff*: battles won minus battles lost, over all. Intervals are 95 %: a percentile bootstrap over the seeds of both players
  ({stats.SAMPLES:,} samples); where each has one seed, a normal interval over battles.
- *Elo*: the strengths of Bradley and Terry, mean 1200, with half a win added for each side of every pair; where more than
  {DRAWN:.0%} of the battles are drawn, those of Davidson, who takes draws as outcomes of their own. Elo cannot see cycles.
- *Nash*: shares in the equilibrium of maximum entropy (Balduzzi et al. 2018); *value*: what a player earns against it, 0 for
  those who belong to it. Copies of a player change no values.
- *Mean*, *worst*: the payoff over all other players, and against the hardest of them.
- *Cyclic share*: the part of the matrix, in squares, that no ratings explain (Jiang et al. 2011): 0 where the better player
  always wins by as much as ratings say, 1 for rock–paper–scissors."""


class Standing(NamedTuple):
    """Payoffs between all players, and what follows from them."""

    names: list[str]
    seeds: list[int]
    payoff: np.ndarray  # [N, N] antisymmetric
    low: np.ndarray  # [N, N] 95 %
    high: np.ndarray
    won: np.ndarray  # [N, N] shares of battles, both sides counted
    elo: np.ndarray  # [N]
    nash: np.ndarray  # [N]
    value: np.ndarray  # [N] against the Nash mixture
    cyclic: float
    first_side: float  # battles won minus lost by whoever has the first side
    battles: int  # of every two players


def standing(names: Sequence[str], results: Results) -> Standing:
    """The payoffs of all pairs, antisymmetric because both sides count, and their ratings."""
    size, rng, battles = len(names), np.random.default_rng(0), results.battles
    payoff, low, high, won = (np.zeros((size, size)) for _ in range(4))
    for i, j in np.ndindex(size, size):
        won[i, j] = (results.won[i][j].mean() + results.lost[j][i].mean()) / 2
        if j < i:
            first, second = (results.won[a][b] - results.lost[a][b] for a, b in ((i, j), (j, i)))
            decided = won[i, j] + (results.lost[i][j].mean() + results.won[j][i].mean()) / 2
            found = _interval((first - second.T) / 2, decided, battles, rng)
            payoff[i, j], low[i, j], high[i, j] = found
            payoff[j, i], low[j, i], high[j, i] = -found.value, -found.high, -found.low
    nash = payoffs.nash_average(payoff)
    drawn = np.clip(1.0 - won - won.T, 0.0, 1.0)
    pairs = [(results.won[i][j] - results.lost[i][j]).mean() for i, j in np.ndindex(size, size)]
    many_draws = drawn[~np.eye(size, dtype=bool)].mean() > DRAWN
    return Standing(
        names=list(names),
        seeds=[len(row[0]) for row in results.won],
        payoff=payoff,
        low=low,
        high=high,
        won=won,
        elo=payoffs.davidson(battles * won, battles * drawn).elo if many_draws else payoffs.elo(battles * (won + drawn / 2)),
        nash=nash.shares,
        value=nash.values,
        cyclic=payoffs.cyclic_share(payoff),
        first_side=float(np.mean(pairs)),
        battles=battles,
    )


def _interval(payoff: np.ndarray, decided: float, battles: int, rng: np.random.Generator) -> Estimate:
    """The mean of payoffs [S_i, S_j] of pairs of seeds; ``decided`` is the share of battles that were not drawn."""
    value = float(payoff.mean())
    if payoff.size == 1:
        half = NORMAL * np.sqrt(max(decided - value**2, 0.0) / battles)
        return Estimate(value, max(value - half, -1.0), min(value + half, 1.0))
    rows, columns = (rng.integers(0, count, (stats.SAMPLES, count)) for count in payoff.shape)
    means = payoff[rows[:, :, None], columns[:, None, :]].mean((1, 2))
    return Estimate(value, *map(float, np.quantile(means, [0.5 - stats.LEVEL / 2, 0.5 + stats.LEVEL / 2])))


def order(found: Standing) -> np.ndarray:
    """[N] indices of the players, the highest Elo first."""
    return np.argsort(-found.elo, kind="stable")


def table(found: Standing, task: str) -> Table:
    """A row per player, the strongest first."""
    title = escape(f"who beats whom on {task}, {found.battles:,} battles of every two players")
    result = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False, min_width=len(title))
    result.add_column("player", overflow="fold")
    for name in COLUMNS:
        result.add_column(name, justify="right", no_wrap=True)
    for cells in rows(found):
        result.add_row(*map(escape, cells))
    return result


COLUMNS = ("seeds", "Elo", "mean", "worst", "Nash", "value")


def rows(found: Standing) -> list[list[str]]:
    """The cells of every player's ratings."""
    others = np.where(np.eye(len(found.names), dtype=bool), np.nan, found.payoff)
    return [
        [
            found.names[index],
            str(found.seeds[index]),
            f"{found.elo[index]:.0f}",
            f"{np.nanmean(others[index]):+.2f}",
            f"{np.nanmin(others[index]):+.2f}",
            f"{found.nash[index]:.2f}",
            f"{found.value[index]:+.2f}",
        ]
        for index in order(found)
    ]


def summary(found: Standing) -> str:
    """What the matrix tells beyond ratings."""
    more, less = ("wins", "loses") if found.first_side >= 0 else ("loses", "wins")
    side = f"the first side {more} {100 * abs(found.first_side):.1f} % more of the battles than it {less}"
    return f"cyclic share of the payoffs {found.cyclic:.2f}; {side}"


def payoff_rows(found: Standing) -> list[list[str]]:
    """The matrix with intervals, the strongest player first."""
    sequence = order(found)

    def cell(i: int, j: int) -> str:
        if i == j:
            return ""
        return f"{found.payoff[i, j]:+.2f} [{found.low[i, j]:+.2f}, {found.high[i, j]:+.2f}]"

    return [[found.names[i], *(cell(i, j) for j in sequence)] for i in sequence]


def write(found: Standing, stem: Path, task: str, command: str) -> None:
    """``<stem>.md``, ``.csv``, ``.png`` and ``.svg``; raises ``UserError`` where they cannot be written."""
    paths = {kind: stem.with_name(f"{stem.name}{kind}") for kind in SUFFIXES}
    sequence = order(found)
    sections = [
        f"# Who beats whom on {task}",
        f"```bash\n{command}\n```\nmarljax {__version__}; {found.battles:,} battles of every two players, on both sides.",
        markdown_table(["player", *COLUMNS], rows(found)),
        f"{summary(found).capitalize()}.",
        "## Payoffs of the row against the column",
        markdown_table(["", *(found.names[index] for index in sequence)], payoff_rows(found)),
        f"![Payoffs between all players]({paths['.png'].name})",
        f"## Method\n\n{METHOD}",
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["player", "opponent", "won", "lost", "payoff", "low", "high"])
    for i, j in np.ndindex(found.payoff.shape):
        values = (found.won[i, j], found.won[j, i], found.payoff[i, j], found.low[i, j], found.high[i, j])
        writer.writerow([found.names[i], found.names[j], *(f"{value:.6g}" for value in values)])
    for kind, written in ((".md", "\n\n".join(sections) + "\n"), (".csv", text.getvalue())):
        with replacing(paths[kind]) as draft:
            draft.write_text(written, encoding="utf-8")
    names = [found.names[index] for index in sequence]
    payoff_picture(names, found.payoff[np.ix_(sequence, sequence)], [paths[".png"], paths[".svg"]], f"payoffs on {task}")

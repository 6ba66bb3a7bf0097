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

from marljax.io.files import REPORT, replacing
from marljax.reporting.tables import markdown_table
from marljax.training.matches import Results
from marljax.training.progress import FEWEST_SEEDS
from marljax.utils import payoffs, stats
from marljax.utils.stats import Estimate
from marljax.version import __version__
from marljax.viz.payoff_matrix import payoff_picture

LONGEST_NAME = 24  # characters of a player's that are not folded
NORMAL = 1.96  # standard errors on either side of a 95 % interval
DRAWN = 0.1  # share of draws from which ratings take them as outcomes of their own
METHOD = f"""Every pair of players, also a player and itself, meets in the same scenarios, half of the battles on either side; a
script controls the second side only.

- *Payoff*: battles won minus battles lost, over all. Intervals are 95 %: a percentile bootstrap over the seeds of both players
  ({stats.SAMPLES:,} samples) with the error of so many battles. Of players with one seed they are over battles alone.
- *Elo*: the strengths of Bradley and Terry, mean 1200, with half a win added for each side of every pair; where more than
  {DRAWN:.0%} of the battles are drawn, those of Davidson, who takes draws as outcomes of their own. They cannot see cycles.
- *Mean*, *worst case*: the payoff over all other players, and against the hardest of them; *best seed*: the mean of the
  seed whose mean is highest, by the same battles.
- *Nash*: shares in the equilibrium of maximum entropy (Balduzzi et al. 2018); *Nash value*: what a player earns against it, 0 for
  those who belong to it. Copies of a player change no values.
- *Cyclic share*: the part of the payoffs, in squares and without what their errors explain, that no ratings explain (Jiang et al.
  2011): 0 where the better player always wins by as much as ratings say, 1 for rock–paper–scissors."""


class Standing(NamedTuple):
    """Payoffs between all players, and what follows from them."""

    names: list[str]
    seeds: list[int]
    payoff: np.ndarray  # [N, N] antisymmetric
    low: np.ndarray  # [N, N] 95 %
    high: np.ndarray
    won: np.ndarray  # [N, N] shares of battles, both sides counted
    draws: float  # share of the battles between different players
    rating: str  # whose: Elo or Davidson
    elo: np.ndarray  # [N]
    nash: np.ndarray  # [N]
    value: np.ndarray  # [N] against the Nash mixture
    best: np.ndarray  # [N] mean payoff against the others of the seed whose is highest
    cyclic: float
    first_side: float  # battles won minus lost by whoever has the first side
    battles: int  # per pair of players


def standing(names: Sequence[str], results: Results) -> Standing:
    """The payoffs of all pairs, antisymmetric because both sides count, and their ratings."""
    size, rng, battles = len(names), np.random.default_rng(0), results.battles
    payoff, low, high, won = (np.zeros((size, size)) for _ in range(4))
    for i, j in np.ndindex(size, size):
        won[i, j] = (results.won[i][j].mean() + results.lost[j][i].mean()) / 2
        if j < i:
            first, second = (results.won[a][b] - results.lost[a][b] for a, b in ((i, j), (j, i)))
            decided = (results.won[i][j] + results.lost[i][j] + (results.won[j][i] + results.lost[j][i]).T) / 2
            found = payoff_interval((first - second.T) / 2, decided, battles, rng)
            payoff[i, j], low[i, j], high[i, j] = found
            payoff[j, i], low[j, i], high[j, i] = -found.value, -found.high, -found.low
    nash, others = payoffs.nash_average(payoff), ~np.eye(size, dtype=bool)
    drawn = np.clip(1.0 - won - won.T, 0.0, 1.0)
    first_side = [(results.won[i][j] - results.lost[i][j]).mean() for i, j in np.argwhere(results.both_sides)]
    draws = float(drawn[others].mean())
    by_davidson = draws > DRAWN
    return Standing(
        names=list(names),
        seeds=[len(row[0]) for row in results.won],
        payoff=payoff,
        low=low,
        high=high,
        won=won,
        draws=draws,
        rating="Davidson" if by_davidson else "Elo",
        elo=payoffs.davidson(battles * won, battles * drawn).elo if by_davidson else payoffs.elo(battles * (won + drawn / 2)),
        nash=nash.shares,
        value=nash.values,
        best=np.array([_of_seeds(results, index).max() for index in range(size)]),
        cyclic=payoffs.cyclic_share(payoff, np.square((high - low) / (2 * NORMAL))),
        first_side=float(np.mean(first_side)),
        battles=battles,
    )


def payoff_interval(payoff: np.ndarray, decided: np.ndarray, battles: int, rng: np.random.Generator) -> Estimate:
    """The mean of payoffs [S_i, S_j] of pairs of seeds, with the errors of the seeds and of the battles; ``decided`` are the
    shares of battles that were not drawn."""
    value = float(payoff.mean())
    # With four battles more, two of them won, as by Agresti and Coull (1998): who won all has an interval, too.
    unseen = 1.0 - (battles / (battles + 4)) ** 2
    noise = np.sqrt((max(float((decided - payoff**2).mean()), 0.0) + unseen) / battles)
    rows, columns = (rng.integers(0, count, (stats.SAMPLES, count)) for count in payoff.shape)
    means = payoff[rows[:, :, None], columns[:, None, :]].mean((1, 2)) + noise * rng.normal(size=stats.SAMPLES)
    low, high = np.clip(np.quantile(means, [0.5 - stats.LEVEL / 2, 0.5 + stats.LEVEL / 2]), -1.0, 1.0)
    return Estimate(value, float(min(low, value)), float(max(high, value)))


def _of_seeds(results: Results, player: int) -> np.ndarray:
    """[S] payoffs of a player's seeds, means over both sides and all others."""
    others = [index for index in range(len(results.won)) if index != player]
    first = [(results.won[player][other] - results.lost[player][other]).mean(1) for other in others]
    second = [(results.lost[other][player] - results.won[other][player]).mean(0) for other in others]
    return np.mean([*first, *second], axis=0)


def order(found: Standing) -> np.ndarray:
    """[N] indices of the players, the highest Elo first."""
    return np.argsort(-found.elo, kind="stable")


def table(found: Standing, task: str, width: int) -> Table:
    """A row per player, the strongest first, with its payoffs against each where ``width`` characters hold them."""
    title = escape(f"who beats whom on {task}, {found.battles:,} battles per pair of players")
    result = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False, min_width=len(title))
    columns, cells = headings(found), rows(found)
    longest = min(max(len(name) for name in found.names) + 3, LONGEST_NAME)
    result.add_column("player", overflow="fold", min_width=longest)
    if longest + sum(len(name) + 1 for name in columns) + len(" +0.00") * len(found.names) <= width:
        sequence = order(found)
        columns += [f"vs {number}" for number in range(1, len(sequence) + 1)]
        cells = [
            [f"{number} {row[0]}", *row[1:], *("" if i == j else f"{found.payoff[i, j]:+.2f}" for j in sequence)]
            for number, (i, row) in enumerate(zip(sequence, cells, strict=True), 1)
        ]
    for name in columns:
        result.add_column(name, justify="right", no_wrap=True)
    for row in cells:
        result.add_row(*map(escape, row))
    return result


def headings(found: Standing) -> list[str]:
    """Of the columns of ``rows`` but the first."""
    return ["seeds", found.rating, "mean", *["best seed"] * (max(found.seeds) > 1), "worst case", "Nash", "Nash value"]


def rows(found: Standing) -> list[list[str]]:
    """The cells of every player's ratings."""
    others = np.where(np.eye(len(found.names), dtype=bool), np.nan, found.payoff)
    return [
        [
            found.names[index],
            str(found.seeds[index]),
            f"{found.elo[index]:.0f}",
            f"{np.nanmean(others[index]):+.2f}",
            *[f"{found.best[index]:+.2f}"] * (max(found.seeds) > 1),
            f"{np.nanmin(others[index]):+.2f}",
            f"{found.nash[index]:.2f}",
            f"{found.value[index]:+.2f}",
        ]
        for index in order(found)
    ]


def summary(found: Standing) -> str:
    """What the matrix tells beyond ratings."""
    cyclic = [f"cyclic share of the payoffs {found.cyclic:.2f}"] if len(found.names) > 2 else []
    drawn, side = f"{100 * found.draws:.0f} % drawn", f"first side: wins minus losses {100 * found.first_side:+.1f} %"
    few = [f"fewer than {FEWEST_SEEDS} seeds, few for an interval"] if min(found.seeds) < FEWEST_SEEDS else []
    return "; ".join([*cyclic, drawn, side, *few])


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
    paths = {kind: stem.with_name(f"{stem.name}{kind}") for kind in REPORT}
    sequence = order(found)
    sections = [
        f"# Who beats whom on {task}",
        f"```bash\n{command}\n```\nmarljax {__version__}; {found.battles:,} battles per pair of players.",
        markdown_table(["player", *headings(found)], rows(found)),
        f"{summary(found)[0].upper()}{summary(found)[1:]}.",
        "## Payoffs of the row against the column",
        markdown_table(["", *(found.names[index] for index in sequence)], payoff_rows(found)),
        f"![Payoffs between all players]({paths['.png'].name})",
        f"## Method\n\n{METHOD}",
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["player", "opponent", "battles", "won", "lost", "payoff", "low", "high"])
    for i, j in np.ndindex(found.payoff.shape):
        values = (found.battles, found.won[i, j], found.won[j, i], found.payoff[i, j], found.low[i, j], found.high[i, j])
        writer.writerow([found.names[i], found.names[j], *(f"{value:.6g}" for value in values)])
    for kind, written in ((".md", "\n\n".join(sections) + "\n"), (".csv", text.getvalue())):
        with replacing(paths[kind]) as draft:
            draft.write_text(written, encoding="utf-8")
    names = [found.names[index] for index in sequence]
    payoff_picture(names, found.payoff[np.ix_(sequence, sequence)], [paths[".png"], paths[".svg"]], f"payoffs on {task}")

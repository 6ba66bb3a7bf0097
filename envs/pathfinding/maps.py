"""Maps of ``pathfinding``: the generators of POGEMA's benchmark (Skrynnik et al. 2024), and maps from text.

Created on the host, by NumPy's generators, when an environment is built. A map is text as in POGEMA: ``#`` is blocked, ``.``
free. Where agents start in some cells only, and find their goals in others, ``@`` marks a start, ``$`` a goal, ``.`` what is both
and ``!`` what is neither. Files of the MovingAI benchmark have a header and characters of their own.
"""

import difflib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from marljax.errors import UserError

BLOCKED, STARTS, GOALS, NEITHER = "#", ".@", ".$", "!"
MOVING_AI = str.maketrans("@OTWGS", "####..")  # its characters for blocked and free cells
SMALL_SIDE, SMALL_DENSITY = 8, 0.3  # POGEMA's defaults
# of the benchmark, for four agents at most; rows separated by slashes
PUZZLES = (
    "....#/..#.#/#.#../.###./.....",
    "##.../....#/...##/#..../..#..",
    ".##../..##./...../.##.#/.....",
    "...../#..#./...../#..#./#....",
    "...../.#.#./##.##/.#.#./.....",
    "##.##/##.##/...../.###./#####",
    "####./###../...#./.#.#./.#...",
    "...../.#.#./.#.#./.###./....#",
    "...../.#.#./##.##/.#.#./.....",
    "#..../###../.###./...../.####",
    "..#../.##../...../#.###/.....",
    ".###./..#../#...#/..#../.###.",
    "##.##/##.##/...../##.##/##.##",
    ".##.#/...../#.#.#/....#/###..",
    "..#../#...#/..#../#...#/..#..",
    "...../.#.#./.###./.###./.....",
)


class Map(NamedTuple):
    """One map; rows from top to bottom."""

    blocked: np.ndarray  # [H, W] bool
    starts: np.ndarray  # [H, W] bool: cells in which agents may start
    goals: np.ndarray  # [H, W] bool: cells that may be goals
    marked: bool  # whether starts and goals are marked; otherwise all free cells are both

    @property
    def text(self) -> str:
        """Rows of ``#`` and ``.``, as the benchmark prints them."""
        return "\n".join("".join("#" if cell else "." for cell in row) for row in self.blocked)


def from_blocked(blocked: np.ndarray) -> Map:
    """A map whose free cells are starts and goals."""
    return Map(blocked, ~blocked, ~blocked, False)


def random_map(seed: int) -> Map:
    """17 to 21 cells a side, 10 to 30 % of them blocked at random."""
    rng = np.random.default_rng(seed)
    width, height = rng.integers(17, 22), rng.integers(17, 22)
    density = rng.uniform(0.1, 0.3)
    rng = np.random.default_rng(seed)  # as the benchmark does, sizes and cells from equal streams
    blocked = np.zeros((height, width), bool)
    left = int(width * height * density)
    while left:
        x, y = rng.integers(0, width), rng.integers(0, height)
        left -= not blocked[y, x]
        blocked[y, x] = True
    return from_blocked(blocked)


def maze(seed: int) -> Map:
    """Walls grown from random pillars, after PRIMAL2 (Damani et al. 2021)."""
    rng = np.random.default_rng(seed)
    width, height = (int(rng.integers(17, 22)) for _ in range(2))
    density, wall, straight = rng.uniform(0.0, 1.0), int(rng.integers(1, 9)), rng.uniform(0.75, 0.85)
    rng = np.random.default_rng(seed)  # as the benchmark does, sizes and cells from equal streams
    rows, columns = height // 2 * 2 + 3, width // 2 * 2 + 3
    blocked = np.ones((rows, columns), bool)
    blocked[1:-1, 1:-1] = False
    for _ in range(int(rows * columns * density // wall)):
        x, y = (int(rng.integers(0, side // 2)) * 2 for side in (columns, rows))
        blocked[y, x] = True
        last = (0, 0)
        for _ in range(wall):
            sides = {(y, x - 2): x > 1, (y, x + 2): x < columns - 2, (y - 2, x): y > 1, (y + 2, x): y < rows - 2}
            ahead = [side for side, inside in sides.items() if inside]
            chances = np.array([straight if (to_y - y, to_x - x) == last else 1 - straight for to_y, to_x in ahead])
            to_y, to_x = ahead[rng.choice(len(ahead), p=chances / chances.sum())]
            last = (to_y - y, to_x - x)
            if not blocked[to_y, to_x]:
                blocked[to_y, to_x] = blocked[to_y + (y - to_y) // 2, to_x + (x - to_x) // 2] = True
                y, x = to_y, to_x
    return from_blocked(blocked[1:-1, 1:-1])


def small_map(seed: int) -> Map:
    """POGEMA's own default: every cell of a square is blocked with the same probability."""
    rng = np.random.default_rng(seed)
    return from_blocked(rng.binomial(1, SMALL_DENSITY, (SMALL_SIDE, SMALL_SIDE)).astype(bool))


def warehouse() -> Map:
    """Three blocks of shelves between two zones in which agents start; goals lie directly above and below shelves."""
    row, column = np.mgrid[:33, :46]
    shelf = (row % 4 == 2) & np.isin(column, [*range(7, 17), *range(18, 28), *range(29, 39)])
    starts = np.isin(column, (1, 2, 4, 5, 40, 41, 43, 44)) & (row % 4 != 0)
    goals = ~shelf & (np.roll(shelf, 1, axis=0) | np.roll(shelf, -1, axis=0))
    return Map(shelf, starts, goals, True)


def parse(text: str, where: str) -> Map:
    """A map from its rows.

    Raises:
        UserError: for rows of several lengths, a character that means nothing, or a map without a start or a goal.
    """
    rows = text.split()
    lengths = [len(row) for row in rows]
    if wrong := [number for number, length in enumerate(lengths) if length != lengths[0]]:
        number = wrong[0]
        raise UserError(f"row {number + 1} of {where} has {lengths[number]} cells, and row 1 has {lengths[0]}; make them equal")
    cells = np.array([list(row) for row in rows])
    known = np.isin(cells, [*BLOCKED, *STARTS, *GOALS, *NEITHER])
    if not known.all():
        row, column = np.argwhere(~known)[0]
        hint = "use '#' for blocked and '.' for free, or '@' for starts, '$' for goals and '!' for neither"
        raise UserError(f"row {row + 1} of {where} has the cell '{cells[row, column]}'; {hint}")
    blocked, starts, goals = (np.isin(cells, [*names]) for names in (BLOCKED, STARTS, GOALS))
    if not starts.any() or not goals.any():
        raise UserError(f"{where} has no cell for a {'goal' if starts.any() else 'start'}; it needs free cells")
    return Map(blocked, starts, goals, bool(np.isin(cells, [*"@$!"]).any()))


def read_file(path: str) -> list[Map]:
    """The maps of a text file, separated by empty lines, or the one of a MovingAI file.

    Raises:
        UserError: for a file that cannot be read, without maps, or with a faulty one.
    """
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        near = difflib.get_close_matches(path, NAMES, n=1, cutoff=0.5)
        advice = f"did you mean {near[0]}?" if near else f"give {', '.join(NAMES)}, or a file of maps"
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UserError(f"cannot read maps from '{path}': {reason}; {advice}") from None
    lines = [line.strip() for line in text.strip().splitlines()]
    if lines and lines[0].startswith("type ") and "map" in lines:
        lines = [line.translate(MOVING_AI) for line in lines[lines.index("map") + 1 :]]
    blocks = [block for block in "\n".join(lines).split("\n\n") if block.strip()]
    if not blocks:
        raise UserError(f"{path} contains no map; write rows of '#' and '.', and an empty line between maps")
    maps = [parse(block, f"map {number} of {path}") for number, block in enumerate(blocks)]
    if len({each.marked for each in maps}) > 1:
        raise UserError(f"some maps of {path} mark starts and goals, and some do not; mark them in all or in none")
    return maps


def stamp(name: str) -> tuple[int, ...]:
    """What changes with the content of a file of maps; () for the names of maps that are no files."""
    path = Path(name).expanduser()
    if name in NAMES or not path.is_file():
        return ()
    found = path.stat()
    return found.st_mtime_ns, found.st_size


@functools.lru_cache(maxsize=32)
def load(name: str, first: int, count: int, stamp: tuple[int, ...] = ()) -> tuple[Map, ...]:
    """The maps that ``name`` means: ``count`` generated ones from seed ``first`` on, or all; files once per ``stamp``."""
    del stamp
    if name in GENERATORS:
        return tuple(GENERATORS[name](seed) for seed in range(first, first + count))
    if name == "warehouse":
        return (warehouse(),)
    if name == "puzzles":
        return tuple(parse(puzzle.replace("/", "\n"), "a puzzle") for puzzle in PUZZLES)
    return tuple(read_file(name))


GENERATORS: dict[str, Callable[[int], Map]] = {"random": random_map, "mazes": maze, "small": small_map}
NAMES = (*GENERATORS, "warehouse", "puzzles")

"""Which settings a sweep tries, and which members that makes: every setting with every seed.

Values are listed (``[1e-4,3e-4]``) or drawn from an interval, written as Hydra's sweepers take them: ``interval(0.9,0.999)``,
``tag(log,interval(1e-5,1e-2))``, ``int(interval(2,8))``.
"""

import itertools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from marljax.config import convert
from marljax.config.hyperparameters import traced_names
from marljax.config.overrides import ENV
from marljax.core.environment import Environment
from marljax.core.types import EnvParams
from marljax.errors import UserError

if TYPE_CHECKING:
    from marljax.utils.stats import Estimate  # SciPy's statistics take a second to import

KEY = "sweep."  # before the names of what is swept, on the command line and in the rows of a run
MOST_TRIALS = 2**16
Method = Literal["grid", "random", "sobol"]
Trial = dict[str, float]  # a value for each of what is swept


class Member(NamedTuple):
    """One run of a batch."""

    seed: int
    trial: int  # which of the settings
    values: Trial

    @property
    def place(self) -> dict[str, Any]:
        """What tells its rows from those of others."""
        return {"seed": self.seed} | {KEY + name: value for name, value in self.values.items()}

    @property
    def name(self) -> str:
        """For messages: ``seed 3``, ``learning_rate=0.001 seed 3``."""
        return f"{described(self.values)} seed {self.seed}".lstrip()


class Choices(NamedTuple):
    """Values that are listed."""

    values: tuple[float, ...]

    @property
    def number(self) -> float:
        """How many there are."""
        return len(self.values)

    def at(self, share: float) -> float:
        """The value so far along, from 0 to 1."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]


class Interval(NamedTuple):
    """Values between two numbers."""

    low: float
    high: float
    log: bool
    whole: bool  # integers, both ends among them

    @property
    def number(self) -> float:
        """How many there are."""
        return self.high - self.low + 1 if self.whole else math.inf

    def at(self, share: float) -> float:
        """The value so far along, from 0 to 1; with ``log`` in equal ratios."""
        low, high = (self.low, self.high + 1) if self.whole else (self.low, self.high)
        value = low * (high / low) ** share if self.log else low + share * (high - low)
        return float(min(math.floor(value), self.high)) if self.whole else value


def described(values: Trial) -> str:
    """``learning_rate=0.001 gamma=0.99``."""
    return " ".join(f"{name}={value:.4g}" for name, value in values.items())


def members(trials: Sequence[Trial], seeds: Sequence[int]) -> list[Member]:
    """Every setting with every seed, the seeds of one setting side by side."""
    return [Member(seed, index, trial) for index, trial in enumerate(trials) for seed in seeds]


def trials(asked: Mapping[str, Any], method: Method, count: int | None, seed: int) -> tuple[Trial, ...]:
    """The settings that are tried.

    Args:
        asked: name → a list of numbers, or an interval as text.
        method: every combination of lists (``grid``), or ``count`` draws, independent ones (``random``) or evenly spread ones
            (``sobol``; Sobol 1967, scrambled as by Owen 1998).
        count: how many are drawn.
        seed: of the draws.
    """
    axes = {name: axis(name, value) for name, value in asked.items()}
    if method == "grid":
        return _grid(axes, count)
    if count is None:
        raise UserError(f"search.method={method} draws settings; say how many, such as search.trials=32")
    if not 1 <= count <= MOST_TRIALS:
        raise UserError(f"search.trials={count} is out of range; it takes integers from 1 to {MOST_TRIALS}")
    possible = math.prod(each.number for each in axes.values())
    if count > possible:
        all_of_them = convert.counted(int(possible), "setting")
        raise UserError(f"search.trials={count} is more than the {all_of_them} that there are; search.method=grid has all")
    drawn: dict[tuple[float, ...], None] = {}  # in the order in which they came; no setting twice
    for shares in _shares(method, count, len(axes), seed):
        values = [tuple(each.at(share) for each, share in zip(axes.values(), row, strict=True)) for row in shares]
        drawn |= dict.fromkeys(values)
        if len(drawn) >= count:
            break
    return tuple(dict(zip(axes, values, strict=True)) for values in itertools.islice(drawn, count))


def check_sweepable(name: str, config: type, env: Environment, env_params: EnvParams) -> None:
    """Raises ``UserError`` for a name that is not a number of the program's input."""
    hyperparameters = traced_names(config)
    numbers = [ENV + number for number, dtype in convert.number_types(env_params).items() if not np.issubdtype(dtype, np.bool_)]
    if name in hyperparameters or name in numbers:
        return
    static = {each: f"algo.{each}" for each in convert.names(config)} | {
        ENV + each: ENV + each for each in convert.names(type(env))
    }
    if name in static:
        raise UserError(
            f"{KEY}{name}: {name} shapes the program and cannot vary inside one; -m {static[name]}=…,… trains one after another; "
            f"sweep.* takes {', '.join(hyperparameters)}, and the environment's numbers as sweep.env.*"
        )
    raise convert.unknown_setting(KEY + name, [KEY + each for each in (*hyperparameters, *numbers)])


def check_trial(trial: Trial, config: Any, env: Environment, env_params: EnvParams) -> None:
    """Raises ``UserError`` for values that the algorithm or the environment does not take."""
    numbers = {name.removeprefix(ENV): value for name, value in trial.items() if name.startswith(ENV)}
    known = list(convert.number_types(env_params))
    try:
        config.replace(**{name: value for name, value in trial.items() if not name.startswith(ENV)})
        env.check_params(convert.replace_leaves(env_params, "env", numbers, known))
    except UserError as error:
        raise convert.prefixed("sweep", error, [*trial, *known]) from error


def axis(name: str, value: Any) -> Choices | Interval:
    """What ``sweep.<name>=<value>`` means; raises ``UserError`` where it means nothing."""
    value = _parsed(name, value) if isinstance(value, str) else value
    if isinstance(value, Interval):
        lowest = 0.0 if value.log else -math.inf
        if not lowest < value.low < value.high < math.inf:
            raise UserError(f"{KEY}{name}: an interval goes from a smaller to a larger number{', above 0' * value.log}")
        return value
    values = value if isinstance(value, list | tuple) else [value]
    wrong = [each for each in values if isinstance(each, bool) or not isinstance(each, int | float) or not math.isfinite(each)]
    if wrong or not values:
        given = convert.format_value(convert.to_builtin(value))
        raise UserError(f"{KEY}{name}={given} has the wrong type; it takes a list of numbers, such as [0.1,0.2]")
    if len({*values}) < len(values):
        raise UserError(
            f"{KEY}{name}={convert.format_value(convert.to_builtin(value))} contains duplicates; use seeds=4 for several seeds"
        )
    return Choices(tuple(map(float, values)))


def _parsed(name: str, text: str) -> Any:
    """Hydra's syntax for several values, as builtin values or an ``Interval``."""
    from hydra.errors import HydraException

    advice = "write a list or an interval, such as interval(0.1,0.2)"
    override = convert.parse_override(f"{KEY}{name}={text}", advice)
    try:
        if override.is_sweep_override() and not override.is_interval_sweep():
            return list(override.sweep_iterator())
    except HydraException as error:  # glob(…) has no values here
        raise UserError(f"cannot read {KEY}{name}={text}; {advice}") from error
    if override.is_interval_sweep():
        found: Any = override.value()
        return Interval(float(found.start), float(found.end), "log" in found.tags, isinstance(found.start, int))
    return override.value()


def _grid(axes: Mapping[str, Choices | Interval], count: int | None) -> tuple[Trial, ...]:
    if count is not None:
        raise UserError(f"search.trials={count} draws settings; choose search.method=random or sobol, or leave it out")
    lists = []
    for name, each in axes.items():
        if isinstance(each, Interval):
            raise UserError(f"{KEY}{name} is an interval; draw from it with search.method=sobol search.trials=32, or list values")
        lists.append(each.values)
    size = math.prod(map(len, lists))
    if size > MOST_TRIALS:
        raise UserError(f"a grid of {size:,} settings is too large; {MOST_TRIALS:,} at most, or search.method=sobol")
    return tuple(dict(zip(axes, values, strict=True)) for values in itertools.product(*lists))


def _shares(method: Method, count: int, dimensions: int, seed: int) -> Iterator[np.ndarray]:
    """[count, dimensions] in [0, 1), and as many again as long as one asks."""
    if method == "random":
        generator = np.random.default_rng(seed)
        while True:
            yield generator.random((count, dimensions))
    from scipy.stats import qmc

    sequence = qmc.Sobol(dimensions, rng=seed)
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the count is no power of 2, which is for integrals
            shares = sequence.random(count)
        yield shares


class Ranked(NamedTuple):
    """A setting and what its seeds reached."""

    trial: int  # its number
    values: Trial
    score: "Estimate"  # interquartile mean over seeds; no bounds for a single one
    scores: list[float]  # of each seed
    diverged: int  # seeds that did
    metrics: dict[str, float]  # means over seeds and episodes
    last: float  # interquartile mean over seeds of what the last parameters reach, where the score is of the best
    updates: list[int]  # of each seed, after which its best parameters were taken

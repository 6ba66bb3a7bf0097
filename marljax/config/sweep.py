"""The settings that a sweep tries.

Values are listed (``[1e-4,3e-4]``) or drawn from an interval, in the syntax of Hydra's sweepers: ``interval(0.9,0.999)``,
``tag(log,interval(1e-5,1e-2))``, ``int(interval(2,8))``.
"""

import itertools
import math
import warnings
from collections.abc import Iterator, Mapping
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

SWEEP = "sweep."  # prefix of swept names, on the command line and in the rows of a run
MAX_TRIALS = 2**16
Method = Literal["grid", "random", "sobol"]
Trial = dict[str, float]  # a value for every swept name


class Replica(NamedTuple):
    """One of the runs that are trained at once."""

    seed: int
    trial: int  # index of its setting
    values: Trial

    @property
    def row_key(self) -> dict[str, Any]:
        """The columns that identify its rows."""
        return {"seed": self.seed} | {SWEEP + name: value for name, value in self.values.items()}

    @property
    def name(self) -> str:
        """``seed 3``, ``learning_rate=0.001 seed 3``."""
        return f"{describe_trial(self.values)} seed {self.seed}".lstrip()


class RankedTrial(NamedTuple):
    """A setting and the results of its seeds."""

    trial: int  # its index
    values: Trial
    score: "Estimate"  # interquartile mean over seeds; no bounds for a single one
    scores: list[float]  # of each seed
    diverged: int  # number of seeds
    metrics: dict[str, float]  # means over seeds and episodes
    last: float  # as ``score.value``, of the last parameters instead of the best
    updates: list[int]  # after which the best parameters of each seed were saved


def describe_trial(values: Trial) -> str:
    """``learning_rate=0.001 gamma=0.99``."""
    return " ".join(f"{name}={value:.4g}" for name, value in values.items())


class Choices(NamedTuple):
    """Listed values."""

    values: tuple[float, ...]

    @property
    def size(self) -> float:
        return len(self.values)

    def at(self, fraction: float) -> float:
        """The value at a fraction in [0, 1) of the list."""
        return self.values[min(int(fraction * len(self.values)), len(self.values) - 1)]


class Interval(NamedTuple):
    """Values between two bounds."""

    low: float
    high: float
    log: bool
    integer: bool  # both bounds included

    @property
    def size(self) -> float:
        return self.high - self.low + 1 if self.integer else math.inf

    def at(self, fraction: float) -> float:
        """The value at a fraction in [0, 1) of the interval; with ``log`` in equal ratios."""
        low, high = (self.low, self.high + 1) if self.integer else (self.low, self.high)
        value = low * (high / low) ** fraction if self.log else low + fraction * (high - low)
        return float(min(math.floor(value), self.high)) if self.integer else value


def axis(name: str, value: Any) -> Choices | Interval:
    """The values of ``sweep.<name>=<value>``; raises ``UserError`` for anything but numbers."""
    from hydra.errors import HydraException

    given = f"{SWEEP}{name}={convert.format_value(convert.to_builtin(value))}"
    if isinstance(value, str):
        advice = "write a list or an interval, such as interval(0.1,0.2)"
        override = convert.parse_override(given, advice)
        if override.is_interval_sweep():
            found: Any = override.value()
            interval = Interval(float(found.start), float(found.end), "log" in found.tags, isinstance(found.start, int))
            if not (0.0 if interval.log else -math.inf) < interval.low < interval.high < math.inf:
                raise UserError(f"{SWEEP}{name}: an interval goes from a smaller to a larger number{', above 0' * interval.log}")
            return interval
        try:
            value = list(override.sweep_iterator()) if override.is_sweep_override() else override.value()
        except HydraException as error:  # glob(…) has no values here
            raise UserError(f"cannot read {given}; {advice}") from error
    values = value if isinstance(value, list | tuple) else [value]
    numbers = [each for each in values if isinstance(each, int | float) and not isinstance(each, bool) and math.isfinite(each)]
    if not values or len(numbers) < len(values):
        raise UserError(f"{given} has the wrong type; it takes a list of numbers, such as [0.1,0.2]")
    if len({*values}) < len(values):
        raise UserError(f"{given} contains duplicates; use seeds=4 for several seeds")
    return Choices(tuple(map(float, values)))


def trials(swept: Mapping[str, Any], method: Method, count: int | None, seed: int) -> tuple[Trial, ...]:
    """The settings that are tried.

    Args:
        swept: name → a list of numbers, or an interval as text.
        method: every combination of lists (``grid``), or ``count`` draws, independent ones (``random``) or evenly spread ones
            (``sobol``; Sobol 1967, scrambled as by Owen 1998).
        count: number of draws.
        seed: of the draws.
    """
    axes = {name: axis(name, value) for name, value in swept.items()}
    if method == "grid":
        return _grid(axes, count)
    if count is None or not 1 <= count <= MAX_TRIALS:
        raise UserError(f"search.method={method} needs search.trials from 1 to {MAX_TRIALS}, such as search.trials=32")
    size = math.prod(each.size for each in axes.values())
    if count > size:
        settings = convert.pluralize(int(size), "setting")
        raise UserError(f"search.trials={count} exceeds the {settings} of the sweep; use search.method=grid for all of them")
    drawn: dict[tuple[float, ...], None] = {}  # in order, without duplicates
    for fractions in _fractions(method, count, len(axes), seed):
        values = [tuple(each.at(fraction) for each, fraction in zip(axes.values(), row, strict=True)) for row in fractions]
        drawn |= dict.fromkeys(values)
        if len(drawn) >= count:
            break
    return tuple(dict(zip(axes, values, strict=True)) for values in itertools.islice(drawn, count))


def _grid(axes: Mapping[str, Choices | Interval], count: int | None) -> tuple[Trial, ...]:
    if count is not None:
        raise UserError(f"search.trials={count} needs search.method=random or sobol; a grid tries every combination")
    for name, each in axes.items():
        if isinstance(each, Interval):
            raise UserError(
                f"{SWEEP}{name} is an interval; draw from it with search.method=sobol search.trials=32, or list values"
            )
    size = math.prod(each.size for each in axes.values())
    if size > MAX_TRIALS:
        raise UserError(f"a grid of {size:,} settings is too large; {MAX_TRIALS:,} at most, or search.method=sobol")
    lists = [each.values for each in axes.values() if isinstance(each, Choices)]
    return tuple(dict(zip(axes, values, strict=True)) for values in itertools.product(*lists))


def _fractions(method: Method, count: int, dimensions: int, seed: int) -> Iterator[np.ndarray]:
    """Draws in [0, 1), [count, dimensions], without end."""
    if method == "random":
        generator = np.random.default_rng(seed)
        while True:
            yield generator.random((count, dimensions))
    from scipy.stats import qmc

    sequence = qmc.Sobol(dimensions, rng=seed)
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # count is no power of 2, which matters for integration only
            fractions = sequence.random(count)
        yield fractions


def check_sweepable(name: str, config: type, env: Environment, env_params: EnvParams) -> None:
    """Raises ``UserError`` for a name that is not a scalar input of the program."""
    scalars = convert.scalar_types(env_params)
    sweepable = traced_names(config) + [ENV + name for name, dtype in scalars.items() if not np.issubdtype(dtype, np.bool_)]
    if name in sweepable:
        return
    static = {each: f"algo.{each}" for each in convert.names(config)}
    static |= {ENV + each: ENV + each for each in convert.names(type(env))}
    if name in static:
        raise UserError(
            f"{SWEEP}{name}: {name} is static (changes compiled shapes) and cannot be vmapped; -m {static[name]}=…,… trains one "
            f"run after another, sweep.* takes {', '.join(traced_names(config))}, and the environment's params as sweep.env.*"
        )
    raise convert.unknown_setting(SWEEP + name, [SWEEP + each for each in sweepable])


def check_trial(trial: Trial, config: Any, env: Environment, env_params: EnvParams) -> None:
    """Raises ``UserError`` for values that the algorithm or the environment does not take."""
    params = {name.removeprefix(ENV): value for name, value in trial.items() if name.startswith(ENV)}
    known = list(convert.scalar_types(env_params))
    try:
        config.replace(**{name: value for name, value in trial.items() if not name.startswith(ENV)})
        env.check_params(convert.replace_leaves(env_params, "env", params, known))
    except UserError as error:
        raise convert.prefixed("sweep", error, [*trial, *known]) from error

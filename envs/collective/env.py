"""``collective``: self-propelled particles that act together, from a hundred to ten thousand.

Three tasks after the models that collective behaviour is studied with: flocking (Vicsek et al. 1995), synchronisation (Kuramoto
1984) and aggregation, as in "Learning Decentralized Partially Observable Mean Field Control for Artificial Collective Behavior"
(Cui et al. 2024), whose own constants were not available.

Axis letters: N particles, C components of an action, O observation, G global state.
"""

import dataclasses
from collections.abc import Collection

import jax
import jax.numpy as jnp
from flax import struct

from marljax.core.environment import LIMITS, Display, Environment
from marljax.core.scene import Scene
from marljax.core.spaces import Box
from marljax.core.types import Outcome, View
from marljax.envs.collective.aggregation import Aggregation, AggregationParams
from marljax.envs.collective.kuramoto import FREQUENCIES, Kuramoto, KuramotoParams
from marljax.envs.collective.neighbours import METHODS, Search, default_window
from marljax.envs.collective.task import Numbers, Particles, Task
from marljax.envs.collective.vicsek import CONTROLS, DENSITY, Vicsek, VicsekParams
from marljax.errors import UserError, unknown

__all__ = ["AggregationParams", "Collective", "CollectiveState", "KuramotoParams", "VicsekParams"]

TASKS = {"vicsek": 100, "kuramoto": 100, "aggregation": 300}  # and how many particles each has by default
REWARDS = ("local", "global")
ONLY_WITH = {  # options that other tasks would ignore
    "control": ("vicsek",),
    "bins": ("vicsek",),
    "neighbours": ("vicsek",),
    "window": ("vicsek",),
    "frequencies": ("kuramoto",),
}


class Tally(struct.PyTreeNode):
    """Running figures of an episode, [] each."""

    late: dict[str, jax.Array]  # the task's figures, summed over the second half
    effort: jax.Array  # mean square of the actions, summed
    missed: jax.Array  # particles that may have been denied neighbours, summed


class CollectiveState(struct.PyTreeNode):
    """Everything that an episode consists of."""

    particles: Particles  # the task's
    step: jax.Array  # int32
    tally: Tally


@dataclasses.dataclass(frozen=True)
class Collective(Environment):
    """A population of equal particles, all of them agents; an episode lasts ``duration`` steps.

    Options:

    - ``task``: vicsek, kuramoto or aggregation; each has numbers of its own.
    - ``agents``: particles; 0: 100, or 300 with aggregation.
    - ``reward``: local, what a particle has of it, or global, the same for all.
    - ``absolute``: particles know the world's directions (vicsek), their own phase (kuramoto), their own place (aggregation).
    - ``control``: with vicsek, a turn is added to the neighbours' mean heading (add), or to the own heading instead (replace).
    - ``frequencies``: with kuramoto, of which distribution the natural ones are; lorentzian or normal.
    - ``neighbours``: dense looks at all pairs, sorted (vicsek) only at a window of particles sorted by y.
    - ``chunk``: particles whose neighbours are looked for at a time, which bounds the memory by chunk × agents.
    - ``window``: with sorted, particles that a chunk looks at; 0: room for three times what an even spread has there.
    - ``bins``: with vicsek, of the histogram in an observation; 0: none.
    - ``grid``: centres per axis of the global state.
    - ``limit``: after ``duration`` steps an episode is terminated (end), for the task is that long, or truncated (truncate).

    Tasks; actions lie in [-1, 1]:

    =========== ========= ======================================================================================================
    task        action    what happens in a step
    =========== ========= ======================================================================================================
    vicsek      turn      a particle takes its neighbours' mean heading (their own included), plus ``max_turn`` times the
                          action, plus noise; then it goes ``speed`` along it. All at once, in a periodic box.
    kuramoto    rate      a phase advances with its natural frequency, the pull of all others, and ``max_rate`` times the action
    aggregation velocity  a particle goes ``max_speed`` times its action of two components, cut to length 1, inside of a square
    =========== ========= ======================================================================================================

    Reward per step, less ``cost`` times the squared control (own, or the mean over all):

    =========== ======================================================= ========================================
    task        local                                                   global
    =========== ======================================================= ========================================
    vicsek      length of the mean heading of its neighbours, its own   length of the mean heading: polarisation
                included: one that is alone has 1
    kuramoto    cos(ψ − θ), where r e^{iψ} is the mean of all e^{iθ}    r, the mean of the local ones
    aggregation − distance from the common centre                       the mean of the local ones
    =========== ======================================================= ========================================

    Observation:

    =========== ================== =============================================================================================
    task        numbers            what
    =========== ================== =============================================================================================
    vicsek      2, with absolute   cos and sin of the own heading
                2                  mean cos and sin of the neighbours' headings; without ``absolute`` seen from the own heading
                1                  neighbours, the own included, relative to an even spread
                bins               shares of the neighbours with headings around the own + 2πb/bins; overlapping bins, see
                                   ``collective_population.shares``
    kuramoto    2, with absolute   cos and sin of the own phase
                2                  r cos(ψ − θ), r sin(ψ − θ): the mean field as seen from the own phase
                1                  rank of the own natural frequency among all there could be, −1 to 1
    aggregation 2, with absolute   own place, −1 to 1
                2                  mean place of the neighbours, seen from the own, in radii
                1                  neighbours, the own included, relative to an even spread
    =========== ================== =============================================================================================

    Global state: the population's density on a fixed grid, by Gaussian-like kernels half a spacing wide, whatever N is; 1
    everywhere is an even spread. vicsek: grid³ of x, y and heading; kuramoto: 4 grid × grid of phase and rank; aggregation:
    (2 grid)² of places.

    Metrics are means over the second half of an episode, those in ``_end`` of its last moment: ``polarisation`` and
    ``local_polarisation``, ``order`` (r), or ``distance`` from the common centre. ``effort`` is the root of the mean squared
    action. ``overflow`` counts particles that may have been denied neighbours, because more lay near their chunk than its window
    has room for; it is 0 with ``dense``.

    ``sorted`` pays from about 2,000 particles: on one core it takes 1.1, 0.35 and 0.2 times as long as ``dense`` with N = 1000,
    4096 and 10000. A list of square cells of fixed capacity (16 particles) took 4.4, 1.0 and 1.1 times as long.
    """

    task: str = "vicsek"
    agents: int = 0
    reward: str = "local"
    absolute: bool = True
    control: str = "add"
    frequencies: str = "lorentzian"
    neighbours: str = "dense"
    chunk: int = 128
    window: int = 0
    bins: int = 8
    grid: int = 4
    limit: str = "end"

    def __post_init__(self) -> None:
        choices: dict[str, tuple[str, Collection[str]]] = {
            "task": (self.task, TASKS),
            "reward": (self.reward, REWARDS),
            "control": (self.control, CONTROLS),
            "frequencies": (self.frequencies, FREQUENCIES),
            "neighbours": (self.neighbours, METHODS),
            "limit": (self.limit, LIMITS),
        }
        for option, (value, known) in choices.items():
            if value not in known:
                raise unknown(f"{option} of collective", str(value), known)
        if not isinstance(self.absolute, bool):
            raise UserError(f"absolute of collective is {self.absolute!r}; give true or false")
        for option, least, most in (
            ("agents", 0, 2**20),
            ("chunk", 1, 2**20),
            ("window", 0, 2**20),
            ("bins", 0, 32),
            ("grid", 1, 32),
        ):
            value = getattr(self, option)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise UserError(f"{option}={value!r} of collective is out of range; it takes an integer from {least} to {most}")
        if self.bins in (1, 2):
            raise UserError(f"bins={self.bins} of collective tells no direction; give 0, or 3 to 32")
        for option, tasks in ONLY_WITH.items():
            value = getattr(self, option)
            if self.task not in tasks and value != getattr(type(self), option):
                words = f"{option}={value} of collective is for task={' or task='.join(tasks)}"
                raise UserError(f"{words}; with task={self.task} leave it out")
        self._search()  # a window that does not fit is told at once

    @property
    def limit_ends(self) -> bool:
        return self.limit == "end"

    @property
    def num_agents(self) -> int:
        return self.agents or TASKS[self.task]

    @property
    def action_space(self) -> Box:
        return Box((self._task.components,), -1.0, 1.0)

    @property
    def observation_space(self) -> Box:
        return Box((self._task.seen,))

    @property
    def default_params(self) -> Numbers:
        return self._task.numbers

    def check_params(self, env_params: Numbers) -> None:
        """Raises ``UserError`` for numbers that no episode can have."""
        self._task.check(env_params)

    def _search(self) -> Search:
        count = self.num_agents
        chunk, window = min(self.chunk, count), self.window
        if self.neighbours == "sorted" and not window:
            window = default_window(count, chunk, per_radius=float((DENSITY * count) ** 0.5))
        return Search(self.neighbours, count, chunk, window)

    @property
    def _task(self) -> Task:
        shapes = (self.num_agents, self.absolute, self.grid)
        if self.task == "kuramoto":
            return Kuramoto(*shapes, self.frequencies)
        if self.task == "aggregation":
            return Aggregation(*shapes, self._search())
        return Vicsek(*shapes, self.control == "replace", self.bins, self._search())

    def initial(self, key: jax.Array, env_params: Numbers) -> CollectiveState:
        particles = self._task.start(key, env_params)
        figures = self._task.figures(particles, env_params)
        zero = jnp.zeros(())
        tally = Tally({name: jnp.zeros_like(value) for name, value in figures.items()}, zero, zero)
        return CollectiveState(particles, jnp.zeros((), jnp.int32), tally)

    def transition(
        self, key: jax.Array, state: CollectiveState, action: jax.Array, env_params: Numbers
    ) -> tuple[CollectiveState, Outcome]:
        task, tally = self._task, state.tally
        action = jnp.clip(action, -1.0, 1.0).T
        particles = task.move(key, state.particles, action, env_params)
        step = state.step + 1
        late = 2 * step > env_params.duration
        figures = task.figures(particles, env_params)
        tally = Tally(
            late={name: tally.late[name] + late * value for name, value in figures.items()},
            effort=tally.effort + jnp.mean(jnp.square(action)),
            missed=tally.missed + task.missed(particles),
        )
        over, truncates = step >= env_params.duration, not self.limit_ends
        outcome = Outcome(self._reward(task, particles, action, env_params), over & (not truncates), over & truncates)
        return CollectiveState(particles, step, tally), outcome

    def _reward(self, task: Task, particles: Particles, action: jax.Array, env_params: Numbers) -> jax.Array:
        """[N]"""
        (own, whole), control = task.value(particles, env_params), task.control(action, env_params)
        if self.reward == "local":
            return own - env_params.cost * control
        return jnp.broadcast_to(whole - env_params.cost * jnp.mean(control), own.shape)

    def observe(self, state: CollectiveState, env_params: Numbers) -> View:
        alive = jnp.ones(self.num_agents, bool)
        return View(self._task.view(state.particles, env_params).T, alive[:, None], alive, self._metrics(state, env_params))

    def _metrics(self, state: CollectiveState, env_params: Numbers) -> dict[str, jax.Array]:
        tally, now = state.tally, self._task.figures(state.particles, env_params)
        late = jnp.maximum(state.step - env_params.duration // 2, 1)
        judged = next(iter(now))
        return {name: total / late for name, total in tally.late.items()} | {
            f"{judged}_end": now[judged],
            "effort": jnp.sqrt(tally.effort / jnp.maximum(state.step, 1)),
            "overflow": tally.missed,
        }

    def global_state(self, state: CollectiveState, env_params: Numbers) -> jax.Array:
        return self._task.density(state.particles, env_params)

    def scene(self, state: CollectiveState, env_params: Numbers) -> Scene:
        return self._task.draw(state.particles, env_params, state.step)

    @property
    def display(self) -> Display:
        return Display(
            metrics=("polarisation", "order", "distance", "local_polarisation", "effort"),
            warnings={"overflow": "particles near one another found no room; raise env.window"},
            units={"time": "steps"},
            legend=self._task.legend,
        )

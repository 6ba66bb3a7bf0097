"""``collective``: self-propelled particles that act together, from a hundred to ten thousand.

Three tasks after the models by which collective behaviour is studied: flocking (Vicsek et al. 1995), synchronisation (Kuramoto
1984) and aggregation, as in "Learning Decentralized Partially Observable Mean Field Control for Artificial Collective Behavior"
(Cui et al. 2024), whose constants were not available.

Axis letters: N particles, C components of an action, O observation, G global state.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

from marljax.core.environment import LIMITS, Display, Environment
from marljax.core.fields import option
from marljax.core.scene import Scene
from marljax.core.spaces import Box, Part
from marljax.core.types import Outcome, View
from marljax.envs.collective import scene as shapes
from marljax.envs.collective.aggregation import Aggregation
from marljax.envs.collective.kuramoto import FREQUENCIES, Kuramoto
from marljax.envs.collective.neighbours import METHODS, Search
from marljax.envs.collective.task import Params, Particles, Task
from marljax.envs.collective.vicsek import CONTROLS, DENSITY, Vicsek
from marljax.errors import UserError

TASKS = {"vicsek": 100, "kuramoto": 100, "aggregation": 300}  # default number of particles
ONLY_WITH = {"control": "vicsek", "bins": "vicsek", "neighbours": "vicsek", "window": "vicsek", "frequencies": "kuramoto"}
MAX_AGENTS = 2**20
LATE = "over the second half of the episode"
MEANINGS = {
    "polarisation": f"length of the mean heading {LATE}: 1 where all go the same way",
    "polarisation_end": "the same at the last step",
    "local_polarisation": f"length of the mean heading of a particle's neighbours, its own included, {LATE}",
    "order": f"length r of the mean of all e^{{iθ}} {LATE}: 1 in synchrony",
    "order_end": "the same at the last step",
    "distance": f"mean distance from the common centre {LATE}",
    "distance_end": "the same at the last step",
    "effort": "root mean square of the actions",
    "overflow": "particles that may be missing neighbours, over all steps",
}


class Tally(struct.PyTreeNode):
    """Running sums of an episode, [] each."""

    late: dict[str, jax.Array]  # the task's metrics, over the second half
    effort: jax.Array  # mean squared action
    missed: jax.Array  # particles that may be missing neighbours


class CollectiveState(struct.PyTreeNode):
    """The state of an episode of ``collective``."""

    particles: Particles
    step: jax.Array  # int32
    tally: Tally


@dataclasses.dataclass(frozen=True)
class Collective(Environment):
    """A population of equal particles, all of them agents; an episode lasts ``duration`` steps.

    Tasks; actions lie in [-1, 1]:

    =========== ========= ======================================================================================================
    task        action    a step
    =========== ========= ======================================================================================================
    vicsek      turn      a particle takes its neighbours' mean heading (its own included), plus ``max_turn`` times the
                          action, plus noise; then it goes ``speed`` along it. All at once, in a periodic box.
    kuramoto    rate      a phase advances with its natural frequency, the pull of all others, and ``max_rate`` times the action
    aggregation velocity  a particle goes ``max_speed`` times its action of two components, cut to length 1, inside of a square
    =========== ========= ======================================================================================================

    Reward per step, minus ``cost`` times the squared control (of the particle, or the mean over all):

    =========== ======================================================= ========================================
    task        local                                                   global
    =========== ======================================================= ========================================
    vicsek      length of the mean heading of its neighbours, its own   length of the mean heading: polarisation
                included: 1 for a particle that is alone
    kuramoto    cos(ψ − θ), where r e^{iψ} is the mean of all e^{iθ}    r, the mean of the local ones
    aggregation − distance from the common centre                       the mean of the local ones
    =========== ======================================================= ========================================

    Observation:

    =========== ================== =============================================================================================
    task        size               content
    =========== ================== =============================================================================================
    vicsek      2, with absolute   cos and sin of the heading
                2                  mean cos and sin of the neighbours' headings; without ``absolute`` relative to the own heading
                1                  number of neighbours, itself included, relative to an even spread
                bins               shares of the neighbours with headings around the own + 2πb/bins; overlapping bins, see
                                   ``population.shares``
    kuramoto    2, with absolute   cos and sin of the phase
                2                  r cos(ψ − θ), r sin(ψ − θ): the mean field relative to the own phase
                1                  rank of the natural frequency within its distribution, −1 to 1
    aggregation 2, with absolute   position, −1 to 1
                2                  mean position of the neighbours, relative to the own, in radii
                1                  number of neighbours, itself included, relative to an even spread
    =========== ================== =============================================================================================

    Global state: the population's density on a fixed grid, by Gaussian-like kernels half a spacing wide, independent of N; 1
    everywhere is an even spread. vicsek: grid³ of x, y and heading; kuramoto: 4 grid × grid of phase and rank; aggregation:
    (2 grid)² of positions.

    Metrics: see ``MEANINGS``. ``overflow`` is above 0 where more particles are near a chunk than its window holds; never with
    ``dense``.

    ``sorted`` pays off from about 2,000 particles: on one core it takes 1.1, 0.35 and 0.2 times as long as ``dense`` with
    N = 1000, 4096 and 10000. A list of square cells of fixed capacity (16 particles) took 4.4, 1.0 and 1.1 times as long.
    """

    task: str = option("vicsek", choices=tuple(TASKS), help="each has parameters of its own")
    agents: int = option(0, low=0, high=MAX_AGENTS, help="particles; 0: 100, or 300 with aggregation")
    reward: str = option("local", choices=("local", "global"), help="a particle's own share, or the same for all")
    absolute: bool = option(
        True, help="observations include absolute headings (vicsek), one's own phase (kuramoto) or position (aggregation)"
    )
    control: str = option(
        "add", choices=CONTROLS, help="vicsek: turns are added to the neighbours' mean heading, or to one's own instead (replace)"
    )
    frequencies: str = option("lorentzian", choices=FREQUENCIES, help="kuramoto: distribution of the natural frequencies")
    neighbours: str = option(
        "dense", choices=METHODS, help="compare all pairs; or (vicsek) only with a window of particles sorted by y"
    )
    chunk: int = option(
        128, low=1, high=MAX_AGENTS, help="particles whose neighbours are searched at a time; memory: chunk × agents"
    )
    window: int = option(
        0, low=0, high=MAX_AGENTS, help="sorted: candidates of a chunk; 0: room for three times those of an even spread"
    )
    bins: int = option(8, low=0, high=32, help="vicsek: bins of the histogram of headings in an observation; 0: none")
    grid: int = option(4, low=1, high=32, help="centres per axis of the global state")
    limit: str = option(
        "end", choices=LIMITS, help="after duration steps an episode is terminated (end: the task is that long) or truncated"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bins in (1, 2):
            raise UserError(f"bins={self.bins} cannot tell directions apart; give 0, or 3 to 32")
        for name, task in ONLY_WITH.items():
            value = getattr(self, name)
            if self.task != task and value != getattr(type(self), name):
                raise UserError(f"{name}={value} is for task={task}; with task={self.task} leave it out")
        self._search()  # raises for a window that does not fit

    @property
    def limit_ends(self) -> bool:
        return self.limit == "end"

    @property
    def num_agents(self) -> int:
        return self.agents or TASKS[self.task]

    @property
    def action_space(self) -> Box:
        return Box((self._task.action_size,), -1.0, 1.0)

    @property
    def observation_space(self) -> Box:
        return Box((len(self._task.columns),))

    @property
    def obs_layout(self) -> tuple[Part, ...]:
        columns = self._task.columns
        return (Part("own", 1, len(columns), columns=columns),)

    @property
    def default_params(self) -> Params:
        return self._task.default_params

    @property
    def display(self) -> Display:
        return Display(
            metrics=("polarisation", "order", "distance", "local_polarisation", "effort"),
            meanings=MEANINGS,
            lowest=("distance", "distance_end", "effort"),
            warnings={"overflow": "neighbours may be missing; raise env.window"},
            units={"time": "steps"},
            legend=(*shapes.legend(*self._task.directions), *self._task.other_colours),
        )

    def _search(self) -> Search:
        count = self.num_agents
        chunk, window = min(self.chunk, count), self.window
        if self.neighbours == "sorted" and not window:
            # three times the particles within a radius of a chunk at an even spread; flocks have dense regions: at η = 2 twice
            # as many were too few for one in twenty of 4,096
            window = min(count, chunk + round(6.0 * float((DENSITY * count) ** 0.5)))
        return Search(self.neighbours, count, chunk, window)

    @property
    def _task(self) -> Task:
        common = (self.num_agents, self.absolute, self.grid)
        if self.task == "kuramoto":
            return Kuramoto(*common, self.frequencies)
        if self.task == "aggregation":
            return Aggregation(*common, self._search())
        return Vicsek(*common, self.control == "replace", self.bins, self._search())

    def initial(self, key: jax.Array, env_params: Params) -> CollectiveState:
        particles = self._task.start(key, env_params)
        _, _, metrics = self._task.evaluate(particles, env_params)
        zero = jnp.zeros(())
        tally = Tally({name: jnp.zeros_like(value) for name, value in metrics.items()}, zero, zero)
        return CollectiveState(particles, jnp.zeros((), jnp.int32), tally)

    def transition(
        self, key: jax.Array, state: CollectiveState, action: jax.Array, env_params: Params
    ) -> tuple[CollectiveState, Outcome]:
        task, tally = self._task, state.tally
        action = jnp.clip(action, -1.0, 1.0).T
        particles = task.move(key, state.particles, action, env_params)
        step = state.step + 1
        late = 2 * step > env_params.duration
        local, shared, metrics = task.evaluate(particles, env_params)
        tally = Tally(
            late={name: tally.late[name] + late * value for name, value in metrics.items()},
            effort=tally.effort + jnp.mean(jnp.square(action)),
            missed=tally.missed + getattr(particles, "missed", 0.0),  # only vicsek can miss neighbours
        )
        control = task.squared_control(action, env_params)
        if self.reward == "local":
            reward = local - env_params.cost * control
        else:
            reward = jnp.broadcast_to(shared - env_params.cost * jnp.mean(control), local.shape)
        over, truncates = step >= env_params.duration, not self.limit_ends
        return CollectiveState(particles, step, tally), Outcome(reward, over & (not truncates), over & truncates)

    def observe(self, state: CollectiveState, env_params: Params) -> View:
        task, tally = self._task, state.tally
        _, _, current = task.evaluate(state.particles, env_params)
        success = next(iter(current))
        late_steps = jnp.maximum(state.step - env_params.duration // 2, 1)
        metrics = {name: total / late_steps for name, total in tally.late.items()} | {
            f"{success}_end": current[success],
            "effort": jnp.sqrt(tally.effort / jnp.maximum(state.step, 1)),
            "overflow": tally.missed,
        }
        alive = jnp.ones(self.num_agents, bool)
        return View(task.observations(state.particles, env_params).T, alive[:, None], alive, metrics)

    def global_state(self, state: CollectiveState, env_params: Params) -> jax.Array:
        return self._task.density(state.particles, env_params)

    def scene(self, state: CollectiveState, env_params: Params) -> Scene:
        return self._task.scene(state.particles, env_params, state.step)

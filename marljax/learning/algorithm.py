"""The interface of an algorithm: a module with five names, and two that it may have."""

from typing import Any, Protocol

import jax

from marljax.core.environment import Environment
from marljax.core.types import EnvParams, TimeStep
from marljax.learning.rollout import TrainState


class Algorithm(Protocol):
    """The interface of ``algos/mappo.py`` and of users' own algorithms; a module implements it.

    Everything runs inside ``shard_map`` over the axes of ``marljax.utils.collectives``: means over samples go through
    ``collectives.mean``, so that several devices compute what one would. An optional ``present(env)`` returns the environment
    that the command line trains in: PPO controls all agents as one. An optional ``explain(env, config, params, env_params,
    env_state, timestep)`` returns network outputs [T, E, A, …] by name for episodes [T, E], for replays:
    probabilities or values of the actions, the value of the state; ``env_state`` and ``timestep`` are those of a ``VecEnv``.
    An optional ``with_params(learner, params)`` returns a new learner with trained parameters, for ``init_from``: QMIX copies
    them to its target networks, too.
    """

    Config: type  # derives from ``marljax.learning.config.RolloutConfig``
    __name__: str

    def init(self, env: Environment, env_params: EnvParams, config: Any, key: jax.Array) -> TrainState:
        """The state of a training run before its first update.

        Raises:
            UserError: the environment is not one that the algorithm, or this config of it, can learn; the line says what to do.
        """

    def update(self, env: Environment, config: Any, state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
        """One iteration of ``config.steps_per_update`` environment steps; the metrics are scalars by name, with those of the
        episodes that ``marljax.learning.collect`` returns."""

    def initial_carry(self, env: Environment, config: Any) -> Any:
        """The policy's recurrent state at the start of an episode of one environment; () without one."""

    def act(
        self, env: Environment, config: Any, params: Any, timestep: TimeStep, carry: Any, key: jax.Array, greedy: bool
    ) -> tuple[jax.Array, Any]:
        """Actions [A, …] for one timestep of one environment, and the recurrent state after it; params are the learner's."""

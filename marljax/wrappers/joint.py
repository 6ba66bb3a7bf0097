"""A one-team environment as a single agent, for central controllers and single-agent libraries."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.core.environment import Environment, allowed_actions
from marljax.core.fields import option
from marljax.core.spaces import Box, Discrete, MultiDiscrete, Space, available, num_actions
from marljax.core.types import EnvParams, Outcome, State, View
from marljax.errors import UserError, short_repr
from marljax.wrappers.base import Wrapper

MAX_FLAT_ACTIONS = 4096  # joint actions with ``flat``: each is a network output, and there are n to the power of A


class JointState(struct.PyTreeNode):
    """The state of the wrapped environment, and the returns of its agents in this episode."""

    env: State
    returns: jax.Array  # [A]
    present: jax.Array  # [A] bool: has been alive


@dataclasses.dataclass(frozen=True)
class Joint(Wrapper):
    """All agents of ``env`` as a single one; created by ``joint``.

    Observation [1, G]: the global state. Action: one entry per agent and part (``MultiDiscrete``), or the agents' continuous
    actions concatenated. Mask [1, A·n]: the agents' masks concatenated; agents that are not alive have only the noop. For
    continuous actions [1, 1] all true, or [1, A·d] where some agents' are padded. Reward [1]: the sum over agents divided by the
    number of agents that have been present in the episode, so that it sums to the mean of their returns if none enters later.
    Params and metrics are those of ``env``; ``return`` too: each agent's return while present, then the mean, so that it is
    comparable across policies.

    With ``flat`` the action is one integer (``Discrete``), for algorithms that take a single choice, such as DQN and many PPO
    loops: ``jnp.ravel_multi_index`` of the agents' actions, the last agent's varying fastest. Mask [1, n^A]: the product of the
    agents' masks; if the action of any agent is unavailable, all act with the noop. At most 4,096 such actions.
    """

    flat: bool = option(False, help="one integer for the actions of all agents")

    num_agents = 1
    teams = (0,)
    one_team = property(lambda self: self)
    items = None
    afterstates = False
    obs_layout = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        name, teams = type(self.env).__name__, len(set(self.env.teams))
        if teams > 1:
            raise UserError(f"{name} has {teams} teams; joint takes an environment of one team")
        if self.flat and isinstance(self.env.action_space, Box):
            raise UserError(f"flat=True of joint is for discrete actions, and those of {name} are continuous")
        if self.flat and math.prod(self._sizes) > MAX_FLAT_ACTIONS:
            sizes = self._sizes
            count = f"{sizes[0]}^{len(sizes)}" if len(set(sizes)) == 1 else "×".join(map(str, sizes))
            excess = f"more than the {MAX_FLAT_ACTIONS:,} that flat=True takes"
            raise UserError(f"{name} has {count} joint actions, {excess}; leave it out, or take fewer agents")

    @property
    def action_space(self) -> Space:
        match self.env.action_space:
            case Box(shape=shape, low=low, high=high):
                return Box((self.env.num_agents * math.prod(shape),), low, high)
        return Discrete(math.prod(self._sizes)) if self.flat else MultiDiscrete(self._sizes)

    @property
    def _sizes(self) -> tuple[int, ...]:
        """Number of actions of each agent, or of each part of its action."""
        space = self.env.action_space
        sizes = space.nvec if isinstance(space, MultiDiscrete) else (num_actions(space),)
        return sizes * self.env.num_agents

    @property
    def noop(self) -> int:
        return int(np.ravel_multi_index([self.env.noop] * len(self._sizes), self._sizes)) if self.flat else self.env.noop

    @property
    def observation_space(self) -> Box:
        def first_global_state(key: jax.Array) -> jax.Array:
            env_params = self.env.default_params
            return self.env.global_state(self.env.initial(key, env_params), env_params)

        return Box(jax.eval_shape(first_global_state, jax.random.key(0)).shape)

    def initial(self, key: jax.Array, env_params: EnvParams) -> JointState:
        return self._first_state(self.env.initial(key, env_params), env_params)

    def restart(self, key: jax.Array, state: JointState, env_params: EnvParams) -> JointState:
        return self._first_state(self.env.restart(key, state.env, env_params), env_params)

    def reset_episode_counters(self, state: JointState, env_params: EnvParams) -> JointState:
        return self._first_state(self.env.reset_episode_counters(state.env, env_params), env_params)

    def transition(
        self, key: jax.Array, state: JointState, action: jax.Array, env_params: EnvParams
    ) -> tuple[JointState, Outcome]:
        if self.flat:
            mask = self._mask(self.env.observe(state.env, env_params))
            action = jnp.where(available(mask, action), action, self.noop)
            action = jnp.stack(jnp.unravel_index(action, self._sizes), axis=-1)
        actions = action.reshape(self.env.num_agents, *self.env.action_space.shape)
        next_env, outcome = self.env.transition(key, state.env, actions, env_params)
        present = state.present | self.env.observe(next_env, env_params).alive  # the compiler drops the rest of this view
        mean = jnp.sum(outcome.reward) / jnp.maximum(jnp.sum(state.present), 1)
        return JointState(next_env, state.returns + outcome.reward, present), outcome._replace(reward=mean[None])

    def observe(self, state: JointState, env_params: EnvParams) -> View:
        view = self.env.observe(state.env, env_params)
        mean = jnp.sum(state.returns * state.present) / jnp.maximum(jnp.sum(state.present), 1)
        return View(
            obs=self.env.global_state(state.env, env_params)[None],
            action_mask=self._mask(view),
            alive=jnp.ones(1, bool),
            metrics={"return": mean} | view.metrics,
        )

    def _first_state(self, state: State, env_params: EnvParams) -> JointState:
        """The first state of an episode, around that of the wrapped environment."""
        return JointState(state, jnp.zeros(self.env.num_agents), self.env.observe(state, env_params).alive)

    def _mask(self, view: View) -> jax.Array:
        """[1, A·n], or with ``flat`` [1, n^A]; for continuous actions without padding [1, 1]."""
        mask = allowed_actions(self.env, view)
        if isinstance(self.env.action_space, Box) and mask.shape[-1] == 1:
            return jnp.ones((1, 1), bool)
        row = mask.reshape(1, -1)
        if not self.flat:
            return row
        parts = jnp.split(row, np.cumsum(self._sizes)[:-1], axis=1)
        return functools.reduce(lambda mask, part: (mask[:, :, None] & part[:, None]).reshape(1, -1), parts)


def joint(env: Environment, flat: bool = False) -> Joint:
    """A one-team environment as a single agent: see ``Joint``.

    Raises:
        UserError: if ``env`` is not an environment, or has several teams; with ``flat`` for continuous actions, and for more
            than 4,096 joint ones.
    """
    if not isinstance(env, Environment):
        raise UserError(f"joint got {short_repr(env)}; give an environment, such as marljax.make('merge')")
    return Joint(env, flat)

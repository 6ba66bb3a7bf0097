"""A one-team environment presented as one agent, for central controllers and single-agent libraries."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.core.environment import Display, Environment, allowed_actions
from marljax.core.scene import Scene
from marljax.core.spaces import Box, Discrete, MultiDiscrete, Part, Space, available, num_actions
from marljax.core.types import EnvParams, Outcome, State, View
from marljax.errors import UserError, short_repr
from marljax.wrappers.base import Wrapper

MOST_FLAT = 4096  # joint actions with ``flat``: each is an output of a network, and there are n to the power of A


class JointState(struct.PyTreeNode):
    """The state of the environment inside, and what its agents have earned in this episode."""

    env: State
    returns: jax.Array  # [A]
    present: jax.Array  # [A] bool: alive at some time


@dataclasses.dataclass(frozen=True)
class Joint(Wrapper):
    """All agents of ``env`` as a single one; made by ``joint``.

    Observation [1, G]: the global state. Action: one entry per agent and part (``MultiDiscrete``), or the agents' continuous
    actions one after the other. Mask [1, A·n]: the agents' masks one after the other; an agent that is not alive has only the
    noop. For continuous actions [1, 1] all true, or [1, A·d] where some agents' are padded. Reward [1]: the sum over agents
    divided by how many there have been so far in the episode, so that its sum is the mean of their returns where none comes
    later. The numbers and the metrics are those of ``env``, also ``return``: that of every agent over its presence, and then the
    mean, so that figures compare with those of other policies.

    With ``flat`` the action is one integer instead (``Discrete``), for algorithms that take a single choice, as DQN and many PPO
    loops do: ``jnp.ravel_multi_index`` of the agents' actions, the last agent's counting in ones. Mask [1, n^A]: the product of
    the agents' masks; if the action of any agent is unavailable, all have the noop. There are at most 4,096 such actions.
    """

    flat: bool = False

    def __post_init__(self) -> None:
        if self.env.competitive:
            raise UserError(
                f"{type(self.env).__name__} has {len(set(self.env.teams))} teams; joint takes an environment of one team"
            )
        if not self.flat:
            return
        if isinstance(self.env.action_space, Box):
            raise UserError(f"flat=True of joint is for discrete actions, and those of {type(self.env).__name__} are continuous")
        sizes = self._sizes
        if math.prod(sizes) > MOST_FLAT:
            counted = f"{sizes[0]}^{len(sizes)}" if len(set(sizes)) == 1 else "×".join(map(str, sizes))
            raise UserError(
                f"{type(self.env).__name__} has {counted} joint actions, more than the {MOST_FLAT:,} that flat=True of"
                " joint takes; leave it out, or take fewer agents"
            )

    @property
    def num_agents(self) -> int:
        return 1

    @property
    def teams(self) -> tuple[int, ...]:
        return (0,)

    @property
    def items(self) -> None:
        return None

    @property
    def obs_layout(self) -> tuple[Part, ...]:
        return ()

    @property
    def action_space(self) -> Space:
        match self.env.action_space:
            case Box(shape=shape, low=low, high=high):
                return Box((self.env.num_agents * math.prod(shape),), low, high)
        return Discrete(math.prod(self._sizes)) if self.flat else MultiDiscrete(self._sizes)

    @property
    def _sizes(self) -> tuple[int, ...]:
        """Actions of each agent, or of each of its parts."""
        space = self.env.action_space
        own = space.nvec if isinstance(space, MultiDiscrete) else (num_actions(space),)
        return own * self.env.num_agents

    @property
    def noop(self) -> int:
        return int(np.ravel_multi_index([self.env.noop] * len(self._sizes), self._sizes)) if self.flat else self.env.noop

    @property
    def observation_space(self) -> Box:
        return Box(self._global_shape())

    @property
    def default_params(self) -> EnvParams:
        return self.env.default_params

    def preset_params(self, preset: str) -> EnvParams:
        return self.env.preset_params(preset)

    def check_params(self, env_params: EnvParams) -> None:
        self.env.check_params(env_params)

    def initial(self, key: jax.Array, env_params: EnvParams) -> JointState:
        return self._begun(self.env.initial(key, env_params), env_params)

    def restart(self, key: jax.Array, state: JointState, env_params: EnvParams) -> JointState:
        return self._begun(self.env.restart(key, state.env, env_params), env_params)

    def reset_episode_counters(self, state: JointState, env_params: EnvParams) -> JointState:
        return self._begun(self.env.reset_episode_counters(state.env, env_params), env_params)

    def max_episode_steps(self, env_params: EnvParams) -> Any:
        return self.env.max_episode_steps(env_params)

    def anneal(self, env_params: EnvParams, progress: jax.Array) -> EnvParams:
        return self.env.anneal(env_params, progress)

    def transition(
        self, key: jax.Array, state: JointState, action: jax.Array, env_params: EnvParams
    ) -> tuple[JointState, Outcome]:
        if self.flat:
            mask = self._mask(self.env.observe(state.env, env_params))
            action = jnp.where(available(mask, action), action, self.noop)
            action = jnp.stack(jnp.unravel_index(action, self._sizes), axis=-1)
        own = action.reshape(self.env.num_agents, *self.env.action_space.shape)
        after, outcome = self.env.transition(key, state.env, own, env_params)
        present = state.present | self.env.observe(after, env_params).alive  # the compiler drops the rest of this view
        mean = jnp.sum(outcome.reward) / jnp.maximum(jnp.sum(state.present), 1)
        return JointState(after, state.returns + outcome.reward, present), outcome._replace(reward=mean[None])

    def observe(self, state: JointState, env_params: EnvParams) -> View:
        view = self.env.observe(state.env, env_params)
        mean = jnp.sum(state.returns * state.present) / jnp.maximum(jnp.sum(state.present), 1)
        return View(
            obs=self.env.global_state(state.env, env_params)[None],
            action_mask=self._mask(view),
            alive=jnp.ones(1, bool),
            metrics={"return": mean} | view.metrics,
        )

    def global_state(self, state: JointState, env_params: EnvParams) -> jax.Array:
        return self.env.global_state(state.env, env_params)

    def scene(self, state: JointState, env_params: EnvParams) -> Scene:
        return self.env.scene(state.env, env_params)

    @property
    def display(self) -> Display:
        inside = self.env.display
        if (draw := inside.charts) is None:
            return inside
        return dataclasses.replace(inside, charts=lambda states, env_params: draw(states.env, env_params))

    def _begun(self, state: State, env_params: EnvParams) -> JointState:
        """A state that begins an episode."""
        return JointState(state, jnp.zeros(self.env.num_agents), self.env.observe(state, env_params).alive)

    def _mask(self, view: View) -> jax.Array:
        """[1, A·n], or with ``flat`` [1, n^A]; for continuous actions that are not padded [1, 1]."""
        mask = allowed_actions(self.env, view)
        if isinstance(self.env.action_space, Box) and mask.shape[-1] == 1:
            return jnp.ones((1, 1), bool)
        row = mask.reshape(1, -1)
        if not self.flat:
            return row
        parts = jnp.split(row, np.cumsum(self._sizes)[:-1], axis=1)
        return functools.reduce(lambda mask, part: (mask[:, :, None] & part[:, None]).reshape(1, -1), parts)

    def _global_shape(self) -> tuple[int, ...]:
        def vector(key: jax.Array) -> Any:
            env_params = self.env.default_params
            return self.env.global_state(self.env.initial(key, env_params), env_params)

        return jax.eval_shape(vector, jax.random.key(0)).shape


def joint(env: Environment, flat: bool = False) -> Joint:
    """A one-team environment as one agent: see ``Joint``.

    Raises:
        UserError: for what is no environment, and for one of several teams; with ``flat`` for continuous actions, and for more
            than 4,096 joint ones.
    """
    if not isinstance(env, Environment):
        raise UserError(f"joint got {short_repr(env)}; give an environment, such as marljax.make('merge')")
    return Joint(env, flat)

"""JaxMARL's environments as its feed-forward scripts take them: flat observations, and a shaped reward that falls to 0."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxmarl.wrappers.baselines import LogWrapper


class FlatState(NamedTuple):
    """The logged environment's state and the steps since training began, of all episodes."""

    inner: Any
    steps: jax.Array


class FlatEnv:
    """JaxMARL's ``LogWrapper`` with flat observations and the largest action space of any agent for all.

    Where agents differ in the size of their observations or actions, observations are padded with zeros and a one-hot id is
    appended, as ``CTRolloutManager`` does for JaxMARL's Q-learners; an action that an agent does not have acts as action 0.

    Args:
        env: one of JaxMARL's environments.
        shaped_steps: steps of one environment over which the weight of the shaped reward falls from 1 to 0; 0 for none.
    """

    def __init__(self, env: Any, shaped_steps: int = 0) -> None:
        self.env, self.shaped_steps = LogWrapper(env), shaped_steps
        self.agents, self.num_agents = env.agents, env.num_agents
        obs = jax.eval_shape(lambda: env.reset(jax.random.key(0))[0])
        sizes = {agent: obs[agent].size for agent in env.agents}
        self.num_actions = {agent: env.action_space(agent).n for agent in env.agents}
        self.size = max(sizes.values())
        self.with_id = max(len(set(sizes.values())), len(set(self.num_actions.values()))) > 1

    def action_space(self, agent: str) -> Any:
        """The largest of all agents, for any of them."""
        del agent
        return max((self.env.action_space(agent) for agent in self.agents), key=lambda space: space.n)

    def flat(self, obs: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """[O] by agent."""
        rows = {}
        for index, agent in enumerate(self.agents):
            row = jnp.ravel(obs[agent]).astype(jnp.float32)
            row = jnp.pad(row, (0, self.size - len(row)))
            rows[agent] = jnp.append(row, jax.nn.one_hot(index, self.num_agents)) if self.with_id else row
        return rows

    def reset(self, key: jax.Array) -> tuple[dict[str, jax.Array], FlatState]:
        obs, inner = self.env.reset(key)
        return self.flat(obs), FlatState(inner, jnp.zeros((), jnp.int32))

    def step(self, key: jax.Array, state: FlatState, actions: dict[str, jax.Array]) -> tuple[Any, ...]:
        actions = {agent: jnp.where(action < self.num_actions[agent], action, 0) for agent, action in actions.items()}
        obs, inner, rewards, done, info = self.env.step(key, state.inner, actions)
        if self.shaped_steps:
            weight = jnp.maximum(1.0 - state.steps / self.shaped_steps, 0.0)
            rewards = {agent: rewards[agent] + weight * info["shaped_reward"][agent] for agent in self.agents}
        return self.flat(obs), FlatState(inner, state.steps + 1), rewards, done, info

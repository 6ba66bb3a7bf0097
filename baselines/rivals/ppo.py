"""PPO as in PureJaxRL's script (Lu et al. 2022, "Discovered Policy Optimisation"), reimplemented on gymnax; used by
``cartpole.py`` and ``untuned.py``. It is the loop of ``rivals/ippo.py`` with one agent.

Unlike ``algos/ppo.py``, environments reset within the step that ends an episode, so the time limit is terminal; learning rates
are annealed by the optimiser's step count.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from marljax.baselines.rivals import ippo
from marljax.baselines.rivals.ippo import ActorCritic, RunState, Transition, act, gae, initial_carry, optimizer

__all__ = ["ActorCritic", "Config", "RunState", "Transition", "act", "fit", "gae", "init", "initial_carry", "optimizer", "update"]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Config(ippo.Config):
    """PureJaxRL's settings for CartPole."""

    total_timesteps: int = 500_000
    num_envs: int = 4
    lr: float = 2.5e-4
    gae_unroll: ClassVar[int] = 16


class SingleAgent:
    """A gymnax environment under the API of JaxMARL's ``LogWrapper``; its state includes the return so far."""

    agents, num_agents = ("agent",), 1

    def __init__(self, env: Any) -> None:
        self.env = env

    def action_space(self, agent: str) -> Any:
        del agent
        return self.env.action_space(self.env.default_params)

    def reset(self, key: jax.Array) -> tuple[dict[str, jax.Array], Any]:
        obs, state = self.env.reset(key)
        return {"agent": obs}, (state, jnp.zeros(()))

    def step(self, key: jax.Array, state: Any, actions: dict[str, jax.Array]) -> tuple[Any, ...]:
        inner, returns = state
        obs, inner, reward, terminated, truncated, _ = self.env.step(key, inner, actions["agent"])
        done, returns = terminated | truncated, returns + reward
        state, info = (inner, jnp.where(done, 0.0, returns)), {"returned_episode_returns": returns[None]}
        return {"agent": obs}, state, {"agent": reward}, {"agent": done, "__all__": done}, info


def init(env: Any, config: Config, key: jax.Array) -> RunState:
    """New networks and environments; ``env`` is gymnax's."""
    return ippo.init(SingleAgent(env), config, key)


def update(env: Any, config: Config, state: RunState) -> tuple[RunState, dict[str, jax.Array]]:
    """One iteration; its metrics are the number of episodes that ended and the sum of their returns."""
    return ippo.update(SingleAgent(env), config, state)


def fit(env: Any, config: Config, params: Any, opt_state: Any, batch: tuple, key: jax.Array) -> tuple[Any, Any]:
    """``ippo.fit`` with gymnax's environment."""
    return ippo.fit(SingleAgent(env), config, params, opt_state, batch, key)

"""Scripted policies for ``collective``, which observe what a learned policy observes."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from marljax.core.types import EnvParams, TimeStep
from marljax.envs.collective import Collective
from marljax.envs.collective.aggregation import clip_norm
from marljax.envs.collective.kuramoto import natural_frequency
from marljax.training.evaluation import RandomPolicy, ScriptedPolicy

UNCONTROLLED = "uncontrolled"


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule by its name, ``policy(env_params, key, state, timestep, carry)``."""

    env: Collective
    name: str

    def __call__(
        self, env_params: EnvParams, key: jax.Array, state: Any, timestep: TimeStep, carry: Any
    ) -> tuple[jax.Array, Any]:
        del key, state
        return jnp.clip(self.action(env_params, timestep.obs.T), -1.0, 1.0).T, carry

    def action(self, env_params: EnvParams, obs: jax.Array) -> jax.Array:
        """[C, N], not clipped, from observations [O, N]."""
        absolute = self.env.absolute
        relative = obs[2 * absolute : 2 * absolute + 2]  # the neighbours' mean or the mean field
        match self.name:
            case "align with neighbours":
                if absolute:
                    cos, sin, mean_cos, mean_sin = obs[:4]
                    angle = jnp.arctan2(mean_sin * cos - mean_cos * sin, mean_cos * cos + mean_sin * sin)
                else:
                    angle = jnp.arctan2(obs[1], obs[0])
                return (angle / env_params.max_turn)[None]
            case "one direction":  # +x, whatever the neighbours do
                cos, sin = obs[:2] if self.env.control == "replace" else obs[2:4]
                return (-jnp.arctan2(sin, cos) / env_params.max_turn)[None]
            case "pull to the mean phase":  # sin(ψ − θ), whatever the strength of the mean field
                return (relative[1] / jnp.maximum(jnp.hypot(relative[0], relative[1]), 1e-6))[None]
            case "cancel own frequency":
                return -natural_frequency(obs[2 * absolute + 2 :], self.env.frequencies, env_params.width) / env_params.max_rate
            case "to the neighbours":  # forms many small clusters
                return clip_norm(relative * env_params.radius / env_params.max_speed)
            case "to the middle":  # of the square, wherever the others are
                return clip_norm(-obs[:2] * env_params.half / env_params.max_speed)
            case _:
                return jnp.zeros((*self.env.action_space.shape, obs.shape[1]))


def scripted_policies(env: Collective, env_params: EnvParams) -> dict[str, ScriptedPolicy]:
    """By name: no control, rules for the task, and random actions."""
    names = [UNCONTROLLED]
    if env.task == "vicsek":
        names += ["align with neighbours"] * (env.control == "replace") + ["one direction"] * env.absolute
    elif env.task == "kuramoto":
        names += ["pull to the mean phase", "cancel own frequency"]
    else:
        names += ["to the neighbours"] + ["to the middle"] * env.absolute
    policies = {name: ScriptedPolicy(env, env_params, Partial(Rule(env, name), env_params)) for name in names}
    return policies | {"random": ScriptedPolicy(env, env_params, RandomPolicy(env))}

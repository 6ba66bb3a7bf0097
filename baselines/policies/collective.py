"""Scripted policies for ``collective``."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from marljax.core.types import EnvParams, TimeStep
from marljax.envs.collective import Collective
from marljax.envs.collective.kuramoto import natural
from marljax.training.evaluation import RandomPolicy, ScriptedPolicy

UNCONTROLLED = "uncontrolled"

Rule = Callable[[Collective, EnvParams, jax.Array], jax.Array]  # (env, env_params, obs [O, N]) → action [C, N], to be clipped


@dataclasses.dataclass(frozen=True)
class Scripted:
    """A rule that sees what a learned policy sees."""

    env: Collective
    rule: Rule

    def __call__(
        self, env_params: EnvParams, key: jax.Array, state: Any, timestep: TimeStep, carry: Any
    ) -> tuple[jax.Array, Any]:
        del key, state
        return jnp.clip(self.rule(self.env, env_params, timestep.obs.T), -1.0, 1.0).T, carry


def nothing(env: Collective, env_params: EnvParams, obs: jax.Array) -> jax.Array:
    """Leaves the particles to themselves."""
    del env_params
    return jnp.zeros((*env.action_space.shape, obs.shape[1]))


def align(env: Collective, env_params: EnvParams, obs: jax.Array) -> jax.Array:
    """Turns from the own heading to the neighbours' mean."""
    if env.absolute:
        cos, sin, mean_cos, mean_sin = obs[:4]
        angle = jnp.arctan2(mean_sin * cos - mean_cos * sin, mean_cos * cos + mean_sin * sin)
    else:
        angle = jnp.arctan2(obs[1], obs[0])
    return (angle / env_params.max_turn)[None]


def one_direction(env: Collective, env_params: EnvParams, obs: jax.Array) -> jax.Array:
    """Steers everybody along +x, whatever the neighbours do."""
    cos, sin = obs[:2] if env.control == "replace" else obs[2:4]
    return (-jnp.arctan2(sin, cos) / env_params.max_turn)[None]


def pull(env: Collective, env_params: EnvParams, obs: jax.Array) -> jax.Array:
    """Adds a pull towards the mean field that does not depend on its strength: sin(ψ − θ)."""
    del env_params
    towards, aside = obs[2 * env.absolute : 2 * env.absolute + 2]
    return (aside / jnp.maximum(jnp.hypot(towards, aside), 1e-6))[None]


def cancel(env: Collective, env_params: EnvParams, obs: jax.Array) -> jax.Array:
    """Takes away the own natural frequency, as far as the action reaches."""
    return -natural(obs[2 * env.absolute + 2 :], env.frequencies, env_params.width) / env_params.max_rate


def to_neighbours(env: Collective, env_params: EnvParams, obs: jax.Array) -> jax.Array:
    """Goes to the middle of the neighbours, which makes many small heaps."""
    offset = obs[2 * env.absolute : 2 * env.absolute + 2]
    return _no_longer(offset * env_params.radius / env_params.max_speed)


def to_middle(env: Collective, env_params: EnvParams, obs: jax.Array) -> jax.Array:
    """Goes to the middle of the square, wherever the others are."""
    return _no_longer(-obs[:2] * env_params.half / env_params.max_speed)


def _no_longer(action: jax.Array) -> jax.Array:
    """[2, N] cut to length 1."""
    return action / jnp.maximum(jnp.hypot(action[0], action[1]), 1.0)


def scripted_policies(env: Collective, env_params: EnvParams) -> dict[str, ScriptedPolicy]:
    """By name: particles left to themselves, random actions, and rules for the task that need no more than is seen."""
    rules: dict[str, Rule] = {UNCONTROLLED: nothing}
    if env.task == "vicsek":
        rules |= {"align with neighbours": align} if env.control == "replace" else {}
        rules |= {"one direction": one_direction} if env.absolute else {}
    elif env.task == "kuramoto":
        rules |= {"pull to the mean phase": pull, "cancel own frequency": cancel}
    else:
        rules |= {"to the neighbours": to_neighbours}
        rules |= {"to the middle": to_middle} if env.absolute else {}
    known = {name: ScriptedPolicy(env, env_params, Partial(Scripted(env, rule), env_params)) for name, rule in rules.items()}
    return known | {"random": ScriptedPolicy(env, env_params, RandomPolicy(env))}

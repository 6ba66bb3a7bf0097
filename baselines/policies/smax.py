"""Scripted policies for ``smax``."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from marljax.core.types import TimeStep
from marljax.envs.smax import Smax, SmaxParams, script
from marljax.envs.smax.battle import stats_of
from marljax.training.evaluation import RandomPolicy, ScriptedPolicy
from marljax.utils.random import flat


@dataclasses.dataclass(frozen=True)
class Script:
    """The enemies' script for the allies: ``policy(env_params, key, state, timestep, carry)``."""

    env: Smax
    targets: str = "closest"

    def __call__(
        self, env_params: SmaxParams, key: jax.Array, state: Any, timestep: TimeStep, carry: script.Memory
    ) -> tuple[jax.Array, script.Memory]:
        num_allies = self.env.battle.num_allies
        kind = np.array(self.env.battle.unit_types, np.int32) if state.kind is None else state.kind
        units = stats_of(env_params, jnp.asarray(kind)), state.units
        stats, own = jax.tree.map(lambda part: part[:num_allies], units)
        _, opponents = jax.tree.map(lambda part: part[num_allies:], units)
        start = script.remember(own.x, own.y, env_params)
        memory = jax.tree.map(lambda new, old: jnp.where(timestep.first, new, old), start, carry)
        draws = flat(jax.random.uniform, key, (2, num_allies))
        return script.act(own, stats, opponents, memory, draws, True, self.targets)

    def initial_carry(self) -> script.Memory:
        zeros = jnp.zeros(self.env.battle.num_allies)
        return script.Memory(zeros, zeros, zeros.astype(jnp.int32))


def scripted_policies(env: Smax, env_params: SmaxParams) -> dict[str, ScriptedPolicy]:
    """By name: random actions and, outside self-play and with discrete actions, the enemies' script."""
    policies = {"random": ScriptedPolicy(env, env_params, RandomPolicy(env))}
    if env.mode != "self_play" and env.action_type == "discrete":
        for targets in script.TARGETS:
            policy = Script(env, targets)
            bound = Partial(policy, jax.tree.map(jnp.asarray, env_params))
            policies[f"script ({targets} target)"] = ScriptedPolicy(env, env_params, bound, policy.initial_carry())
    return policies

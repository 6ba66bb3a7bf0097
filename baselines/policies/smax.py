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
    """The script of the enemies in the allies' place: ``policy(env_params, key, state, timestep, carry)``."""

    env: Smax
    targets: str = "closest"

    def __call__(
        self, env_params: SmaxParams, key: jax.Array, state: Any, timestep: TimeStep, carry: script.Memory
    ) -> tuple[jax.Array, script.Memory]:
        num_allies = self.env.battle.num_allies
        kind = np.array(self.env.battle.unit_types, np.int32) if state.kind is None else state.kind
        of_units = stats_of(env_params, jnp.asarray(kind)), state.units
        (own_stats, own), (_, opponents) = (jax.tree.map(lambda part, s=side: part[s], of_units) for side in _sides(num_allies))
        start = script.remember(own.x, own.y, env_params)
        memory = jax.tree.map(lambda new, old: jnp.where(timestep.first, new, old), start, carry)
        draws = flat(jax.random.uniform, key, (2, num_allies))
        return script.act(own, own_stats, opponents, memory, draws, True, self.targets)

    def initial_carry(self) -> script.Memory:
        nothing = jnp.zeros(self.env.battle.num_allies)
        return script.Memory(nothing, nothing, nothing.astype(jnp.int32))


def _sides(num_allies: int) -> tuple[slice, slice]:
    return slice(None, num_allies), slice(num_allies, None)


def scripted_policies(env: Smax, env_params: SmaxParams) -> dict[str, ScriptedPolicy]:
    """By name: the enemies' own script outside self-play and with discrete actions, and random actions."""
    known = {"random": ScriptedPolicy(env, env_params, RandomPolicy(env))}
    if env.mode == "self_play" or env.action_type != "discrete":
        return known
    for targets in script.TARGETS:
        policy = Script(env, targets)
        name = f"script ({targets} target)"
        known[name] = ScriptedPolicy(
            env, env_params, Partial(policy, jax.tree.map(jnp.asarray, env_params)), policy.initial_carry()
        )
    return known

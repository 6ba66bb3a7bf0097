"""Scripted policies for ``merge``."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from marljax.core.types import EnvParams, TimeStep
from marljax.envs.merge import IDLE, LEFT, Merge
from marljax.training.evaluation import RandomPolicy, ScriptedPolicy

HUMAN = "human drivers (IDM + MOBIL)"


def idle(key: jax.Array, state: Any, timestep: TimeStep, carry: Any) -> tuple[jax.Array, Any]:
    """Keeps lane and target speed; ignored if CAVs drive as humans."""
    del key, state
    return jnp.full(timestep.alive.shape, IDLE), carry


def always_left(key: jax.Array, state: Any, timestep: TimeStep, carry: Any) -> tuple[jax.Array, Any]:
    """Merges as soon as the lane change is possible, at the initial target speed."""
    del key, state
    return jnp.full(timestep.alive.shape, LEFT), carry


def scripted_policies(env: Merge, env_params: EnvParams) -> dict[str, ScriptedPolicy]:
    """By name: human drivers in place of the CAVs, random actions, and simple rules."""
    env, supervised = (dataclasses.replace(env, safety=safety) for safety in (False, True))
    return {
        HUMAN: ScriptedPolicy(env, env_params.replace(cavs_drive_as_humans=True), idle),
        "random": ScriptedPolicy(env, env_params, RandomPolicy(env)),
        "always left": ScriptedPolicy(env, env_params, always_left),
        "random, supervised": ScriptedPolicy(supervised, env_params, RandomPolicy(env)),
    }

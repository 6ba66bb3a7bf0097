"""Training programs of whole runs, compiled for a target."""

import dataclasses
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax

from marljax.aot import targets
from marljax.aot.program import Loop, Work
from marljax.aot.targets import Compiled, Target
from marljax.config.settings import Settings
from marljax.core.environment import Environment
from marljax.core.types import EnvParams
from marljax.errors import UserError
from marljax.training.trainer import Trainer

LEARNING_LOOPS = ("num_minibatches", "gradient_steps")  # hyperparameters that are the number of a loop's iterations


@dataclasses.dataclass(frozen=True)
class Report:
    """What the compiler says of a run's training program; numbers are those of one device."""

    target: Target
    compiled: Compiled
    compile_seconds: float
    steps_per_update: int  # of all devices and seeds
    update: Work
    rollout_step: Work | None  # of all environments on the device; None where the loop was not found
    minibatch: Work | None

    @property
    def steps_per_second(self) -> float:
        """Environment steps per second of training by the estimate, on all devices."""
        return self.steps_per_update / self.update.seconds


def compile_run(settings: Settings, target: Target) -> Report:
    """Compiles the program that trains ``settings``, with its environments spread over the devices of a target.

    Raises:
        UserError: if the environments do not divide over the devices.
    """
    config, seeds = settings.config, len(settings.replicas)
    if config.num_envs % target.num_devices:
        advice = f"set algo.num_envs to a multiple of {target.num_devices}"
        raise UserError(f"num_envs={config.num_envs} does not divide over {target.num_devices} devices; {advice}")
    begun = time.monotonic()
    lowered = lower_training(settings.algorithm, settings.training_env, config, settings.training_params, target, seeds)
    compiled = targets.compile_for(target, lowered)
    seconds = time.monotonic() - begun
    update = compiled.program.update
    inside = [loop for loop in update.walk() if loop is not update]
    rollout = _longest([loop for loop in inside if loop.trip_count == config.rollout_length])
    others = [loop for loop in inside if rollout is None or not any(loop is part for part in rollout.walk())]
    counts = [getattr(config, name) for name in LEARNING_LOOPS if hasattr(config, name)]
    learning = _longest(_innermost([loop for loop in others if loop.trip_count in counts]))
    return Report(
        target=target,
        compiled=compiled,
        compile_seconds=seconds,
        steps_per_update=config.steps_per_update * seeds,
        update=update.work,
        rollout_step=rollout.work if rollout else None,
        minibatch=learning.work if learning else None,
    )


def lower_training(
    algorithm: ModuleType, env: Environment, config: Any, env_params: EnvParams, target: Target, seeds: int = 1
) -> jax.stages.Lowered:
    """The program that trains, lowered for all devices of a target."""
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), seeds))
    return Trainer(algorithm, env, config, targets.mesh(target)).lower(keys, env_params)


def _longest(loops: Sequence[Loop]) -> Loop | None:
    return max(loops, key=lambda loop: loop.trip_count * loop.work.seconds, default=None)


def _innermost(loops: Sequence[Loop]) -> list[Loop]:
    """Those of ``loops`` in which there is no other: epochs may be as many as minibatches."""
    return [loop for loop in loops if not any(part is other for part in loop.walk() for other in loops if other is not loop)]

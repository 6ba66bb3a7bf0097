"""What learners of every kind share: hyperparameters of rollouts, networks and Adam; what networks see of a timestep; gradient
steps.

Axis letters: T time, E environments, A agents, O observation, n actions.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from marljax.config import Hyperparameters, Scalar, static, traced
from marljax.environment import Environment, EnvParams, TimeStep, flat_observation
from marljax.errors import UserError
from marljax.networks import ACTIVATIONS


class LearningConfig(Hyperparameters):
    """Hyperparameters of all that learns from rollouts. Static fields shape the program; traced ones can be swept with
    ``jax.vmap``."""

    # How much
    total_steps: int = static(1_000_000, low=1, high=2**53)  # of all environments together; rounded up to whole updates
    num_envs: int = static(64, low=1)  # E, over all devices
    rollout_length: int = static(128, low=1)  # T, steps per environment between updates
    # Networks
    hidden: tuple[int, ...] = static((128, 128), low=1)  # widths of the hidden layers of each
    activation: str = static("tanh", choices=ACTIVATIONS)  # of all hidden layers
    normalize_observations: bool = static(False)  # running mean and variance, saved with the policy
    # Optimisation
    optimizer: str = static("adam", choices=("adam", "radam"))  # radam: with the variance's warm-up (Liu et al. 2020)
    learning_rate: float = traced(5e-4, low=0.0)  # at first
    anneal_learning_rate: bool = static(True)  # linearly to 0 over total_steps
    adam_eps: float = traced(1e-5, low=0.0)  # added to the root of the second moment
    max_grad_norm: float = traced(0.5, low=0.0)  # global norm of all gradients together

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hidden:
            raise UserError("hidden=[] leaves no layer; give the widths of the hidden layers, such as [64, 64]")

    @property
    def num_updates(self) -> int:
        """Updates in a whole run."""
        return -(-self.total_steps // self.steps_per_update)

    @property
    def steps_per_update(self) -> int:
        return self.num_envs * self.rollout_length


class Inputs(NamedTuple):
    """What the actor's side sees of a timestep. Leading [T, E]; T = 1 in a rollout."""

    obs: jax.Array  # [T, E, A, O]
    action_mask: jax.Array  # [T, E, A, n]
    first: jax.Array  # [T, E, A]
    alive: jax.Array  # [T, E, A]
    time: Any = ()  # [T, E, A, 1] share of its longest time that an episode has taken, where critics see it


def refuse_items(env: Environment) -> None:
    """Raises ``UserError`` where agents choose among shared items: a vector per agent would hold all of them."""
    if env.items:
        raise UserError(
            f"agents of {type(env).__name__} choose among shared {env.items}, which only ospo scores one by one; "
            "choose another view, such as env.view=candidates"
        )


def inputs_of(timestep: TimeStep) -> Inputs:
    """A timestep of E environments as inputs of length T = 1."""
    first = jnp.broadcast_to(timestep.first[:, None], timestep.alive.shape)
    seen = Inputs(flat_observation(timestep.obs, timestep.alive.shape), timestep.action_mask, first, timestep.alive)
    return jax.tree.map(lambda x: x[None], seen)


def with_time(env: Environment, env_params: EnvParams, timestep: TimeStep, inputs: Inputs, limit_ends: bool) -> Inputs:
    """``inputs`` with the time, where ``limit_ends`` episodes and it is known.

    What is left to earn then depends on the time (Pardo et al. 2018, "Time Limits in Reinforcement Learning"). A critic that
    does not see it reads it off whatever changes in the course of an episode, such as how far agents have gone, and advantages
    that are bootstrapped from its values reward that change.
    """
    longest = env.longest(env_params) if limit_ends else None
    if longest is None:
        return inputs
    share = (timestep.metrics["length"] / longest)[None, :, None, None]
    return inputs._replace(time=jnp.broadcast_to(share, (*inputs.alive.shape, 1)))


SCALED = {"adam": optax.scale_by_adam, "radam": optax.scale_by_radam}


def optimizer(
    config: LearningConfig, updates: jax.Array, rates: Mapping[str, Scalar] | None = None, clip_apart: bool = False
) -> optax.GradientTransformation:
    """Adam or RAdam at this update's learning rate.

    ``rates`` gives the parts of the parameters, by name, learning rates of their own. Gradients are clipped to a global norm of
    ``max_grad_norm``, of all together or with ``clip_apart`` of each part.
    """
    left = jnp.maximum(1.0 - updates / config.num_updates, 0.0) if config.anneal_learning_rate else 1.0
    clip, adam = optax.clip_by_global_norm(config.max_grad_norm), SCALED[config.optimizer](eps=config.adam_eps)
    # flattened to one vector instead of many arrays: a fraction of the kernels, to compile and to run
    if not rates:
        return optax.flatten(optax.chain(clip, adam, optax.scale_by_learning_rate(config.learning_rate * left)))
    labels = {part: part for part in rates}
    scale = optax.partition({part: optax.scale_by_learning_rate(rate * left) for part, rate in rates.items()}, labels)
    if not clip_apart:
        return optax.chain(optax.flatten(optax.chain(clip, adam)), scale)
    return optax.chain(optax.partition(dict.fromkeys(rates, clip), labels), optax.flatten(adam), scale)

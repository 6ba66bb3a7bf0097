"""Policies that control the other team.

Axis letters: M agents of that team, K policies of a mixture.
"""

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.core.environment import Environment
from marljax.core.spaces import Discrete
from marljax.core.types import TimeStep
from marljax.errors import UserError, short_repr


class Mixture(struct.PyTreeNode):
    """Weights of ``Opponent.mixture``: data, so that policies may be added and shares change without compiling again."""

    stack: Any  # [K, …] weights of every policy
    shares: jax.Array  # [K] unnormalised probabilities of the policies; 0 for an empty slot

    @classmethod
    def of(cls, policies: list[Any], size: int | None = None, shares: Any = None) -> "Mixture":
        """A mixture of policies with weights of equal shapes.

        Args:
            policies: weights of each.
            size: K, slots; the rest stays empty. As many as policies by default.
            shares: unnormalised probabilities of the policies, equal by default.
        """
        size = len(policies) if size is None else size
        if not 0 < len(policies) <= size:
            raise UserError(f"{len(policies)} policies for a mixture of {size}; give at least one, and no more than size")
        given = np.ones(len(policies)) if shares is None else np.asarray(shares, float)
        if given.shape != (len(policies),) or (given < 0).any() or not given.sum() > 0:
            raise UserError(f"shares={short_repr(shares)}: give {len(policies)} numbers of at least 0, one for each policy")
        filled = [*policies, *[policies[0]] * (size - len(policies))]
        stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *filled)
        return cls(stack, jnp.asarray(np.pad(given / given.sum(), (0, size - len(policies))), jnp.float32))

    def with_policy(self, index: Any, weights: Any) -> "Mixture":
        """With other weights in the slot ``index``."""
        return self.replace(stack=jax.tree.map(lambda leaf, new: leaf.at[index].set(new), self.stack, weights))


@dataclasses.dataclass(frozen=True)
class Opponent:
    """A policy for the other team; its weights are ``env_params.opponent``.

    ``env`` is the environment that it acts in, as the agents there: in ``smax`` the ``Smax`` that it was trained in, with the
    team sizes swapped. Its actions and observations may differ from those of the agents that it plays against.
    """

    env: Environment
    # (weights, timestep, carry, key) -> (action [M] or [M, 4], carry)
    act: Callable[[Any, TimeStep, Any, jax.Array], tuple[jax.Array, Any]]
    initial_carry: Callable[[], Any] = tuple  # memory at the start of an episode

    @property
    def discrete(self) -> bool:
        """Whether its actions are."""
        return isinstance(self.env.action_space, Discrete)

    @classmethod
    def of(cls, algorithm: ModuleType, env: Environment, config: Any, greedy: bool = False) -> "Opponent":
        """The policies of one of our algorithms: ``Opponent.of(mappo, env, config)``; weights are its ``params``.

        Example:
            enemy = marljax.load("runs/ippo_smax/…")
            opponent = Opponent.of(enemy.algorithm, enemy.env, enemy.config)
            env = marljax.make("smax", scenario="3m", mode="learned", opponent=opponent)
            env_params = env.default_params.replace(opponent=enemy.params)
        """
        if not all(callable(getattr(algorithm, name, None)) for name in ("act", "initial_carry")):
            raise UserError(f"algorithm={short_repr(algorithm)} is not a module; give one such as marljax.algos.ippo")
        env = env.one_team  # where policies of self-play control one team
        return cls(env, _Bound("act", algorithm, env, config, (greedy,)), _Bound("initial_carry", algorithm, env, config))

    def mixture(self) -> "Opponent":
        """Policies of equal shapes, of which one is drawn for every episode; weights are a ``Mixture``.

        Example:
            env = marljax.make("smax", scenario="3m", mode="learned", opponent=opponent.mixture())
            env_params = env.default_params.replace(opponent=Mixture.of([first.params, second.params], shares=[0.8, 0.2]))
        """
        return Opponent(self.env, _Mixed(self), _FirstOf(self))


@dataclasses.dataclass(frozen=True)
class _Bound:
    """A function of an algorithm with its environment and configuration; equal ones share compiled programs."""

    name: str
    algorithm: ModuleType
    env: Environment
    config: Any
    last_args: tuple[Any, ...] = ()

    def __call__(self, *args: Any) -> Any:
        return getattr(self.algorithm, self.name)(self.env, self.config, *args, *self.last_args)


class MixtureCarry(struct.PyTreeNode):
    """The memory of a mixture in an episode."""

    index: jax.Array  # [] int32 of the policy that plays
    carry: Any  # its memory


@dataclasses.dataclass(frozen=True)
class _Mixed:
    """``act`` of a mixture."""

    opponent: Opponent

    def __call__(
        self, weights: Mixture, timestep: TimeStep, carry: MixtureCarry, key: jax.Array
    ) -> tuple[jax.Array, MixtureCarry]:
        key_index, key_act = jax.random.split(key)
        drawn = jax.random.categorical(key_index, jnp.log(weights.shares)).astype(jnp.int32)
        index = jnp.where(timestep.first, drawn, carry.index)
        own = jax.tree.map(lambda leaf: leaf[index], weights.stack)
        action, memory = self.opponent.act(own, timestep, carry.carry, key_act)
        return action, MixtureCarry(index, memory)


@dataclasses.dataclass(frozen=True)
class _FirstOf:
    """``initial_carry`` of a mixture."""

    opponent: Opponent

    def __call__(self) -> MixtureCarry:
        return MixtureCarry(jnp.zeros((), jnp.int32), self.opponent.initial_carry())

"""Action and observation spaces: static descriptions, hashable, usable inside compiled programs."""

import dataclasses
import math

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Discrete:
    """Integers ``0 … n-1``."""

    n: int

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    def sample(self, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (), 0, self.n)

    def contains(self, x: jax.Array) -> jax.Array:
        return jnp.all((x >= 0) & (x < self.n))


@dataclasses.dataclass(frozen=True)
class MultiDiscrete:
    """A vector of integers; entry ``i`` lies in ``0 … nvec[i]-1``."""

    nvec: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.nvec),)

    def sample(self, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, self.shape, 0, jnp.array(self.nvec))

    def contains(self, x: jax.Array) -> jax.Array:
        return jnp.all((x >= 0) & (x < jnp.array(self.nvec)))


@dataclasses.dataclass(frozen=True)
class Box:
    """Real arrays of a shape, every entry in ``[low, high]``."""

    shape: tuple[int, ...]
    low: float = -math.inf
    high: float = math.inf

    def sample(self, key: jax.Array) -> jax.Array:
        """Uniform between finite bounds, else standard normal clipped to the bounds."""
        if math.isfinite(self.low) and math.isfinite(self.high):
            return jax.random.uniform(key, self.shape, minval=self.low, maxval=self.high)
        return jnp.clip(jax.random.normal(key, self.shape), self.low, self.high)

    def contains(self, x: jax.Array) -> jax.Array:
        return jnp.all((x >= self.low) & (x <= self.high) & jnp.isfinite(x))


Space = Discrete | MultiDiscrete | Box


@dataclasses.dataclass(frozen=True)
class Part:
    """Adjacent columns of a flat observation: ``count`` entities of one kind, ``width`` columns each; see
    ``Environment.obs_layout``."""

    name: str
    count: int
    width: int
    ordered: bool = False  # the order matters, as where an action names an entity by its index; else it is arbitrary
    columns: tuple[str, ...] = ()  # their names, ``width`` of them; () for none


def available(mask: jax.Array, action: jax.Array) -> jax.Array:
    """[…] bool: whether ``mask`` […, n] allows the discrete ``action`` […]; False for actions outside the space."""
    return jnp.any(mask & (action[..., None] == jnp.arange(mask.shape[-1])), axis=-1)


def num_actions(space: Space) -> int:
    """Width of the action mask: n for discrete spaces, 1 for continuous ones without padding (see ``View``)."""
    match space:
        case Discrete(n=n):
            return n
        case MultiDiscrete(nvec=nvec):
            return sum(nvec)
        case Box():
            return 1

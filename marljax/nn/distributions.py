"""Action distributions: masked categorical, multi-discrete and squashed Gaussian.

A distribution draws a *sample*; ``action(sample)`` is what the environment receives. The two differ for the squashed Gaussian
only: the sample before tanh is stored, because log-probabilities of saturated actions cannot be recovered from the action.
"""

import math
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from marljax.core.spaces import Box, Discrete, MultiDiscrete, Space, num_actions
from marljax.utils.random import flat

MASKED = -1e9  # logit of unavailable actions: never drawn, and finite, so that a row with nothing available stays finite
BLOCKED_ABOVE = 64  # choices: drawing a random number for each of more is slow, so they are sampled in blocks
BLOCK = 32
LOG_STD = (-5.0, 2.0)  # bounds of log standard deviations


class Distribution(Protocol):
    """The interface of all action distributions; leading axes are arbitrary."""

    def sample(self, key: jax.Array) -> jax.Array: ...
    def mode(self) -> jax.Array: ...
    def log_prob(self, sample: jax.Array) -> jax.Array: ...
    def entropy(self, key: jax.Array) -> jax.Array: ...
    def action(self, sample: jax.Array) -> jax.Array: ...
    def kl(self, other: Any) -> jax.Array: ...
    def parameters(self) -> dict[str, jax.Array]: ...


class Categorical:
    """One choice among n; logits [..., n], mask [..., n]."""

    def __init__(self, logits: jax.Array, mask: jax.Array):
        self.mask = mask
        self.logits = jnp.where(mask, logits, MASKED)
        self._log_probs = jax.nn.log_softmax(self.logits)

    def sample(self, key: jax.Array) -> jax.Array:
        if self.logits.shape[-1] > BLOCKED_ABOVE:
            return _sample_in_blocks(key, self.logits)
        return jnp.argmax(self.logits + flat(jax.random.gumbel, key, self.logits.shape), axis=-1)  # the Gumbel-max trick

    def mode(self) -> jax.Array:
        return jnp.argmax(self.logits, axis=-1)

    def log_prob(self, sample: jax.Array) -> jax.Array:
        chosen = jax.nn.one_hot(sample, self.logits.shape[-1], dtype=bool)  # cheaper to differentiate than an index
        return jnp.sum(jnp.where(chosen, self._log_probs, 0.0), axis=-1)

    def entropy(self, key: jax.Array) -> jax.Array:
        return -jnp.sum(jnp.exp(self._log_probs) * self._log_probs, axis=-1)

    def action(self, sample: jax.Array) -> jax.Array:
        return sample

    def kl(self, other: "Categorical") -> jax.Array:
        """KL(self ‖ other); the two have the same mask."""
        return jnp.sum(jnp.exp(self._log_probs) * (self._log_probs - other._log_probs), axis=-1)

    def parameters(self) -> dict[str, jax.Array]:
        """``probability`` [..., n] of each choice."""
        return {"probability": jnp.exp(self._log_probs)}


def _sample_in_blocks(key: jax.Array, logits: jax.Array) -> jax.Array:
    """Samples of softmax(logits [..., n]) from one random number instead of n: a block of ``BLOCK`` choices, then one of it."""
    pad = [(0, 0)] * (logits.ndim - 1) + [(0, -logits.shape[-1] % BLOCK)]
    weights = jnp.pad(jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True)), pad)
    blocks = weights.reshape(*logits.shape[:-1], -1, BLOCK)
    sums = jnp.sum(blocks, axis=-1)
    target = flat(jax.random.uniform, key, logits.shape[:-1]) * jnp.sum(sums, axis=-1)
    block, rest = _search_cumsum(sums, target)
    inside = jnp.take_along_axis(blocks, block[..., None, None], axis=-2)[..., 0, :]
    return block * BLOCK + _search_cumsum(inside, rest)[0]


def _search_cumsum(weights: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The index at which the cumulative sum of ``weights`` [..., n] exceeds ``target`` [...], and the rest of the target there.

    Never the index of a weight of 0.
    """
    sums = jnp.cumsum(weights, axis=-1)
    last = weights.shape[-1] - 1 - jnp.argmax(weights[..., ::-1] > 0, axis=-1)  # rounding may leave the target above all
    index = jnp.minimum(jnp.sum(sums <= target[..., None], axis=-1), last)
    before = jnp.take_along_axis(sums - weights, index[..., None], axis=-1)[..., 0]
    return index, target - before


class MultiCategorical:
    """Independent choices among ``nvec``; logits and mask [..., sum(nvec)], samples [..., len(nvec)].

    Parts of one size, such as one for each of many agents, are held as one array.
    """

    def __init__(self, logits: jax.Array, mask: jax.Array, nvec: tuple[int, ...]):
        self._uniform = len(set(nvec)) == 1
        if self._uniform:
            shape = (*logits.shape[:-1], len(nvec), nvec[0])
            self._parts = [Categorical(logits.reshape(shape), mask.reshape(shape))]
        else:
            bounds = [sum(nvec[: i + 1]) for i in range(len(nvec) - 1)]
            self._parts = list(map(Categorical, jnp.split(logits, bounds, -1), jnp.split(mask, bounds, -1)))

    def _stack(self, values: Any) -> jax.Array:
        """One value per part → [..., len(nvec)]."""
        return next(values) if self._uniform else jnp.stack(list(values), -1)

    def sample(self, key: jax.Array) -> jax.Array:
        return self._stack(map(Categorical.sample, self._parts, jax.random.split(key, len(self._parts))))

    def mode(self) -> jax.Array:
        return self._stack(map(Categorical.mode, self._parts))

    def log_prob(self, sample: jax.Array) -> jax.Array:
        samples = [sample] if self._uniform else [sample[..., i] for i in range(len(self._parts))]
        return self._stack(map(Categorical.log_prob, self._parts, samples)).sum(-1)

    def entropy(self, key: jax.Array) -> jax.Array:
        return self._stack(part.entropy(key) for part in self._parts).sum(-1)

    def action(self, sample: jax.Array) -> jax.Array:
        return sample

    def kl(self, other: "MultiCategorical") -> jax.Array:
        return self._stack(map(Categorical.kl, self._parts, other._parts)).sum(-1)

    def parameters(self) -> dict[str, jax.Array]:
        """``probability`` [..., sum(nvec)] of each choice of each part."""
        parts = [part.parameters()["probability"] for part in self._parts]
        return {"probability": parts[0].reshape(*parts[0].shape[:-2], -1) if self._uniform else jnp.concatenate(parts, -1)}


class SquashedGaussian:
    """tanh of a diagonal Gaussian; parameters [..., 2 d]: means and log standard deviations; samples [..., d] are taken before
    tanh, actions are [..., *shape].

    A mask [..., d] is False for padding, where agents have different numbers of actions: 0 in samples and actions, and in no
    probability, entropy or divergence. A mask [..., 1] excludes nothing.
    """

    def __init__(self, outputs: jax.Array, shape: tuple[int, ...], mask: jax.Array):
        import distrax  # up to two seconds, for continuous actions only

        self._shape = shape
        self._mean, log_std = jnp.split(outputs, 2, -1)
        std = jnp.exp(_bounded(log_std))
        self._mask = mask if mask.shape[-1] == self._mean.shape[-1] > 1 else None
        if self._mask is not None:  # N(0, 1) in place of padding, whose samples are 0, adds a constant
            self._mean, std = jnp.where(self._mask, self._mean, 0.0), jnp.where(self._mask, std, 1.0)
        self._gaussian = distrax.MultivariateNormalDiag(self._mean, std)

    def _without_padding(self, sample: jax.Array) -> jax.Array:
        return sample if self._mask is None else jnp.where(self._mask, sample, 0.0)

    def sample(self, key: jax.Array) -> jax.Array:
        return self._without_padding(self._gaussian.sample(seed=key))

    def mode(self) -> jax.Array:
        """The Gaussian's mean, whose tanh is the action's median; the squashed density has no simple mode."""
        return self._mean

    def log_prob(self, sample: jax.Array) -> jax.Array:
        sample = self._without_padding(sample)
        # log(1 - tanh²(x)) = 2 (log 2 - x - softplus(-2x)), exact where tanh has saturated (Haarnoja et al. 2018, appendix C).
        log_det = 2.0 * (jnp.log(2.0) - sample - jax.nn.softplus(-2.0 * sample))
        log_prob = self._gaussian.log_prob(sample) - log_det.sum(-1)
        if self._mask is None:
            return log_prob
        return log_prob + 0.5 * math.log(2.0 * math.pi) * jnp.sum(~self._mask, axis=-1)

    def entropy(self, key: jax.Array) -> jax.Array:
        """One-sample estimate; the squashed Gaussian has no closed form."""
        return -self.log_prob(self.sample(key))

    def action(self, sample: jax.Array) -> jax.Array:
        return jnp.tanh(self._without_padding(sample)).reshape(*sample.shape[:-1], *self._shape)

    def kl(self, other: "SquashedGaussian") -> jax.Array:
        """Of the Gaussians: squashing both alike changes nothing."""
        return self._gaussian.kl_divergence(other._gaussian)

    def parameters(self) -> dict[str, jax.Array]:
        """``median`` of the actions and ``std`` of the Gaussian before tanh, both [..., d]."""
        return {"median": jnp.tanh(self._mean), "std": self._gaussian.stddev()}


@jax.custom_vjp
def _bounded(log_std: jax.Array) -> jax.Array:
    """``log_std`` clipped to ``LOG_STD``. Out of bounds, a gradient passes if its descent leads back inside; that of ``jnp.clip``
    is 0, so that a standard deviation could never return."""
    return jnp.clip(log_std, *LOG_STD)


def _bounded_forward(log_std: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _bounded(log_std), log_std


def _bounded_backward(log_std: jax.Array, grad: jax.Array) -> tuple[jax.Array]:
    low, high = LOG_STD
    outward = (log_std < low) & (grad > 0.0) | (log_std > high) & (grad < 0.0)
    return (jnp.where(outward, 0.0, grad),)


_bounded.defvjp(_bounded_forward, _bounded_backward)


def num_outputs(space: Space) -> int:
    """Width of the network output that ``distribution`` takes."""
    return 2 * math.prod(space.shape) if isinstance(space, Box) else num_actions(space)


def distribution(space: Space, outputs: jax.Array, mask: jax.Array) -> Distribution:
    """The action distribution of a space, from network outputs [..., num_outputs] and the mask of available actions."""
    match space:
        case Discrete():
            return Categorical(outputs, mask)
        case MultiDiscrete(nvec=nvec):
            return MultiCategorical(outputs, mask, nvec)
        case Box():
            return SquashedGaussian(outputs, space.shape, mask)


def has_choice(space: Space, mask: jax.Array) -> jax.Array:
    """[…] bool: whether more than one action is available under ``mask`` [..., n]; with continuous actions always."""
    if isinstance(space, Box):
        return jnp.ones(mask.shape[:-1], bool)
    return mask.sum(-1) > (len(space.nvec) if isinstance(space, MultiDiscrete) else 1)

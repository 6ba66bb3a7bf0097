"""Values of actions: greedy and ε-greedy choices among them, and the network that mixes those of agents into a team's."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from marljax.nn.distributions import MASKED, Categorical
from marljax.nn.layers import ACTIVATIONS, dense


def best_action(values: jax.Array, mask: jax.Array) -> jax.Array:
    """The available action of the highest value: […, n] → […]."""
    return jnp.argmax(jnp.where(mask, values, MASKED), axis=-1)


def epsilon_greedy(key: jax.Array, epsilon: jax.Array | float, values: jax.Array, mask: jax.Array) -> jax.Array:
    """Available actions, for each agent a random one with probability ε: values and mask […, n] → […]."""
    key_random, key_which = jax.random.split(key)
    random = Categorical(jnp.zeros(values.shape), mask).sample(key_random)
    return jnp.where(jax.random.uniform(key_which, random.shape) < epsilon, random, best_action(values, mask))


class Mixer(nn.Module):
    """A team's value, monotonic in every agent's: one hidden layer whose non-negative weights are computed from the global state
    (Rashid et al. 2018, figure 2).

    Initial weights are around 1 / √width, so that small values are roughly summed; ``scale`` is how far the state changes that. A
    large scale multiplies values by the square of the state's norm. The paper's ELU goes flat for negative inputs; here its slope
    does not fall below ``slope``, so that costs are distinguished too. With a slope of 0.25, or a bias that lifts all values
    above 0, the mixture is so nearly linear that it reaches 7 in the paper's two-step game, as VDN does; the optimum is 8.
    """

    width: int
    hypernet_width: int
    scale: float
    slope: float
    activation: str

    @nn.compact
    def __call__(self, values: jax.Array, state: jax.Array) -> jax.Array:
        """values […, A], state […, G] → […, 1]."""
        agents = values.shape[-1]

        def hypernet(outputs: int, hidden: int, name: str, bias: float = 0.0) -> jax.Array:
            x = ACTIVATIONS[self.activation](dense(hidden, self.scale, f"{name}_hidden")(state))
            return dense(outputs, self.scale, name, bias=bias)(x)

        weight = 1 / self.width**0.5
        first = hypernet(agents * self.width, self.hypernet_width, "first", weight).reshape(*state.shape[:-1], agents, self.width)
        bias = dense(self.width, self.scale, "bias")(state)
        hidden = jnp.einsum("...a,...aw->...w", values, jnp.abs(first)) + bias
        low = jnp.minimum(hidden, 0.0)
        hidden = jnp.maximum(hidden, 0.0) + (1.0 - self.slope) * jnp.expm1(low) + self.slope * low
        second = hypernet(self.width, self.hypernet_width, "second", weight)
        return jnp.sum(hidden * jnp.abs(second), axis=-1, keepdims=True) + hypernet(1, self.width, "offset")

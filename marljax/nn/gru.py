"""A gated recurrent unit over whole sequences (Cho et al. 2014), with a gradient written by hand.

Whatever does not depend on the memory is one product over all steps: the inputs' part of the gates before the loop, and, behind
the gradient's loop, the gradient of the recurrent weights, which plain differentiation adds up step by step from products that
are too small to be fast.

Axis letters: T time, H width; … any axes of sequences.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from marljax.nn.layers import matmul, orthogonal


class GRU(nn.Module):
    """Sequences that forget where an episode starts and where the agent does not exist."""

    width: int

    @nn.compact
    def __call__(self, carry: jax.Array, x: jax.Array, first: jax.Array, alive: jax.Array) -> tuple[jax.Array, jax.Array]:
        """carry […, H], x [T, …, F], first and alive [T, …] → (carry after the last step, outputs [T, …, H])."""
        gates = nn.Dense(3 * self.width, name="input", dot_general=matmul)(x)
        weights = self.param("recurrent", recurrent_init, self.width)
        bias = self.param("bias", nn.initializers.zeros, (self.width,))
        return gru(weights, bias, carry, gates, first, alive)


def recurrent_init(key: jax.Array, width: int) -> jax.Array:
    """[H, 3·H]: an orthogonal matrix for each gate."""
    return jnp.concatenate([orthogonal(1.0)(gate, (width, width)) for gate in jax.random.split(key, 3)], axis=1)


class Step(NamedTuple):
    """What a step leaves for the gradient, [T, …, H] each."""

    memory: jax.Array  # as the step used it
    reset: jax.Array
    update: jax.Array
    candidate: jax.Array
    recalled: jax.Array  # the memory's part of the candidate, before the reset gate


@jax.custom_vjp
def gru(
    weights: jax.Array, bias: jax.Array, carry: jax.Array, gates: jax.Array, first: jax.Array, alive: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Memory after the last step […, H] and outputs [T, …, H].

    With r, z = σ(gates + h·W) and n = tanh(gates + r ⊙ (h·W + b)), the output is (1 − z) ⊙ n + z ⊙ h.

    Args:
        weights: [H, 3·H] of reset gate, update gate and candidate.
        bias: [H] of the candidate's recurrent part.
        carry: […, H].
        gates: [T, …, 3·H] what the inputs add to the three.
        first: [T, …] bool, the memory is 0 before this step.
        alive: [T, …] bool, the memory is 0 after this step unless set.
    """
    return _forward(weights, bias, carry, gates, first, alive)[0]


def _forward(
    weights: jax.Array, bias: jax.Array, carry: jax.Array, gates: jax.Array, first: jax.Array, alive: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], Any]:
    apart = jnp.split(weights, 3, axis=-1)  # a product for each gate: slices of one keep XLA from vectorising what follows

    def step(carry: jax.Array, inputs: Any) -> tuple[jax.Array, tuple[jax.Array, Step]]:
        (for_reset, for_update, for_candidate), first, alive = inputs
        memory = jnp.where(first[..., None], 0.0, carry)
        reset_memory, update_memory, recalled = (matmul(memory, part) for part in apart)
        reset, update = jax.nn.sigmoid(for_reset + reset_memory), jax.nn.sigmoid(for_update + update_memory)
        recalled = recalled + bias
        candidate = jnp.tanh(for_candidate + reset * recalled)
        output = (1 - update) * candidate + update * memory
        return jnp.where(alive[..., None], output, 0.0), (output, Step(memory, reset, update, candidate, recalled))

    carry, (outputs, steps) = jax.lax.scan(step, carry, (jnp.split(gates, 3, axis=-1), first, alive))
    return (carry, outputs), (weights, steps, first, alive)


def _backward(kept: Any, cotangents: tuple[jax.Array, jax.Array]) -> tuple[jax.Array | None, ...]:
    weights, steps, first, alive = kept

    def step(carry: jax.Array, inputs: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        output, kept, first, alive = inputs
        output = output + jnp.where(alive[..., None], carry, 0.0)
        candidate = output * (1 - kept.update) * (1 - kept.candidate**2)
        update = output * (kept.memory - kept.candidate) * kept.update * (1 - kept.update)
        reset = candidate * kept.recalled * kept.reset * (1 - kept.reset)
        through = jnp.concatenate([reset, update, candidate * kept.reset], axis=-1)
        memory = output * kept.update + matmul(through, weights.T)
        return jnp.where(first[..., None], 0.0, memory), (through, candidate)

    last, outputs = cotangents
    carry, (through, candidate) = jax.lax.scan(step, last, (outputs, steps, first, alive), reverse=True)
    width = weights.shape[0]
    flat = through.reshape(-1, 3 * width)
    by_weights = steps.memory.reshape(-1, width).T @ flat
    gates = jnp.concatenate([through[..., : 2 * width], candidate], axis=-1)
    return by_weights, flat[:, 2 * width :].sum(axis=0), carry, gates, None, None


gru.defvjp(_forward, _backward)

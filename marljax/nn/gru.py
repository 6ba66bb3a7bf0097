"""A gated recurrent unit over whole sequences (Cho et al. 2014; the reset gate after the product, as in cuDNN), with a gradient
written by hand.

Whatever does not depend on the recurrent state is one product over all steps: the inputs' part of the gates before the loop, and
the gradient of the recurrent weights after the backward loop, which automatic differentiation adds up from many small products.

Axis letters: T time, H width; … any axes of sequences.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from marljax.nn.layers import layer_dtype, matmul, orthogonal


class GRU(nn.Module):
    """A GRU whose state is reset where an episode starts and where the agent is not alive."""

    width: int
    dtype: str = "float32"  # of its products; state and outputs are float32

    @nn.compact
    def __call__(self, carry: jax.Array, x: jax.Array, first: jax.Array, alive: jax.Array) -> tuple[jax.Array, jax.Array]:
        """carry […, H], x [T, …, F], first and alive [T, …] → (carry after the last step, outputs [T, …, H])."""
        gates = nn.Dense(3 * self.width, dtype=layer_dtype(self.dtype), name="input", dot_general=matmul)(x)
        weights = self.param("recurrent", recurrent_init, self.width)
        bias = self.param("bias", nn.initializers.zeros, (self.width,))
        if self.dtype != "float32":
            weights, gates = weights.astype(self.dtype), gates.astype(carry.dtype)
        return gru(weights, bias, carry, gates, first, alive)


def recurrent_init(key: jax.Array, width: int) -> jax.Array:
    """[H, 3·H]: an orthogonal matrix for each gate."""
    return jnp.concatenate([orthogonal(1.0)(gate, (width, width)) for gate in jax.random.split(key, 3)], axis=1)


def product(x: jax.Array, weights: jax.Array) -> jax.Array:
    """``x`` times ``weights``, multiplied in 16 bits where those have 16, in the dtype of ``x``."""
    if weights.dtype == jnp.bfloat16:
        return matmul(x.astype(weights.dtype), weights).astype(x.dtype)
    return matmul(x, weights)


class Residuals(NamedTuple):
    """Values of a step that its gradient needs, [T, …, H] each."""

    state: jax.Array  # before the step
    reset: jax.Array
    update: jax.Array
    candidate: jax.Array
    recurrent: jax.Array  # the state's part of the candidate, before the reset gate


@jax.custom_vjp
def gru(
    weights: jax.Array, bias: jax.Array, carry: jax.Array, gates: jax.Array, first: jax.Array, alive: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """State after the last step […, H] and outputs [T, …, H].

    With r, z = σ(gates + h·W) and n = tanh(gates + r ⊙ (h·W + b)), the output is (1 − z) ⊙ n + z ⊙ h.

    Args:
        weights: [H, 3·H] of reset gate, update gate and candidate; products are computed in their dtype.
        bias: [H] of the candidate's recurrent part.
        carry: […, H].
        gates: [T, …, 3·H], the inputs' part of the three.
        first: [T, …] bool, the state is 0 before this step.
        alive: [T, …] bool, the state is 0 after this step unless set.
    """
    return _forward(weights, bias, carry, gates, first, alive)[0]


def _forward(
    weights: jax.Array, bias: jax.Array, carry: jax.Array, gates: jax.Array, first: jax.Array, alive: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], Any]:
    by_gate = jnp.split(weights, 3, axis=-1)  # a product for each gate: slices of one keep XLA from vectorising what follows

    def step(carry: jax.Array, inputs: Any) -> tuple[jax.Array, tuple[jax.Array, Residuals]]:
        (reset_input, update_input, candidate_input), first, alive = inputs
        state = jnp.where(first[..., None], 0.0, carry)
        reset_state, update_state, recurrent = (product(state, part) for part in by_gate)
        reset, update = jax.nn.sigmoid(reset_input + reset_state), jax.nn.sigmoid(update_input + update_state)
        recurrent = recurrent + bias
        candidate = jnp.tanh(candidate_input + reset * recurrent)
        output = (1 - update) * candidate + update * state
        return jnp.where(alive[..., None], output, 0.0), (output, Residuals(state, reset, update, candidate, recurrent))

    carry, (outputs, steps) = jax.lax.scan(step, carry, (jnp.split(gates, 3, axis=-1), first, alive))
    return (carry, outputs), (weights, steps, first, alive)


def _backward(residuals: Any, cotangents: tuple[jax.Array, jax.Array]) -> tuple[jax.Array | None, ...]:
    weights, steps, first, alive = residuals

    def step(carry: jax.Array, inputs: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        output, saved, first, alive = inputs
        output = output + jnp.where(alive[..., None], carry, 0.0)
        candidate = output * (1 - saved.update) * (1 - saved.candidate**2)
        update = output * (saved.state - saved.candidate) * saved.update * (1 - saved.update)
        reset = candidate * saved.recurrent * saved.reset * (1 - saved.reset)
        through = jnp.concatenate([reset, update, candidate * saved.reset], axis=-1)
        state = output * saved.update + product(through, weights.T)
        return jnp.where(first[..., None], 0.0, state), (through, candidate)

    last, outputs = cotangents
    carry, (through, candidate) = jax.lax.scan(step, last, (outputs, steps, first, alive), reverse=True)
    width = weights.shape[0]
    states, flat = steps.state.reshape(-1, width).T, through.reshape(-1, 3 * width)
    narrow = weights.dtype == jnp.bfloat16
    weights_grad = states.astype(weights.dtype) @ flat.astype(weights.dtype) if narrow else states @ flat
    gates_grad = jnp.concatenate([through[..., : 2 * width], candidate], axis=-1)
    return weights_grad, flat[:, 2 * width :].sum(axis=0), carry, gates_grad, None, None


gru.defvjp(_forward, _backward)

"""Who may move: POGEMA's three collision systems (Skrynnik et al. 2024), in closed form where there is one.

All agents choose at once. An agent wants a cell, its own if it stays, hits a wall or is gone. Axis letters: A agents.
"""

import math

import jax
import jax.numpy as jnp

COLLISIONS = ("soft", "priority", "block_both")


def move(collision: str, position: jax.Array, want: jax.Array, alive: jax.Array) -> jax.Array:
    """[A] cells after a step, of agents in the cells ``position`` that want the cells ``want``."""
    return {"soft": soft, "priority": priority, "block_both": block_both}[collision](position, want, alive)


def soft(position: jax.Array, want: jax.Array, alive: jax.Array) -> jax.Array:
    """Two agents cannot swap, and of several that want a cell the one with the lowest index may have it. Whoever stays keeps its
    cell, so that those who want it stay, too, and so on; agents may follow one another, in rings of three and more as well."""
    index = jnp.arange(position.shape[0])
    mover = alive & (want != position)
    enters = (want[:, None] == position) & alive & mover[:, None]  # [A, A]: the first wants the cell of the second
    swaps = jnp.any(enters & enters.T, axis=1)
    outranked = jnp.any((want[:, None] == want) & mover & (index < index[:, None]), axis=1)
    stays = ~mover | swaps | outranked
    ahead = jnp.where(jnp.any(enters, axis=1), jnp.argmax(enters, axis=1), index)
    for _ in range(math.ceil(math.log2(max(position.shape[0], 2)))):  # twice as far along the chain of those ahead each time
        stays |= stays[ahead]
        ahead = ahead[ahead]
    return jnp.where(stays, position, want)


def priority(position: jax.Array, want: jax.Array, alive: jax.Array) -> jax.Array:
    """One after the other, in the order of their indices, agents move to cells that are empty by then."""

    def body(agent: jax.Array, position: jax.Array) -> jax.Array:
        occupied = jnp.any((position == want[agent]) & alive)
        return position.at[agent].set(jnp.where(occupied, position[agent], want[agent]))

    return jax.lax.fori_loop(0, position.shape[0], body, position)


def block_both(position: jax.Array, want: jax.Array, alive: jax.Array) -> jax.Array:
    """A cell is entered only if nobody stood there before and nobody else wants it."""
    others = alive & ~jnp.eye(position.shape[0], dtype=bool)
    refused = jnp.any(((want[:, None] == position) | (want[:, None] == want)) & others, axis=1)
    return jnp.where(refused, position, want)

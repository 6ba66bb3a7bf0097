"""Priority Inheritance with Backtracking for Iterative Multi-Agent Path Finding (PIBT, Okumura et al. 2022): one step for all
agents, in which those that are in the way make room.

Axis letters: A agents.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Plan(NamedTuple):
    """Decisions made so far, and the chain of agents that wait for one another."""

    following: jax.Array  # [A] cell that an agent moves to; −1: undecided
    tried: jax.Array  # [A] number of candidates tried
    stack: jax.Array  # [A] agents of the chain, each pushed by the one before
    depth: jax.Array  # their number


def best_first(cells: jax.Array, cost: jax.Array) -> jax.Array:
    """[A, 5] candidates of ``plan``: cells by cost, equal ones in their order, −1 for those of infinite cost."""
    return jnp.take_along_axis(jnp.where(jnp.isinf(cost), -1, cells), jnp.argsort(cost, axis=1), axis=1)


def plan(cell: jax.Array, candidates: jax.Array, priority: jax.Array, alive: jax.Array) -> jax.Array:
    """[A] cells that PIBT moves the agents to.

    By priority, of equals the lowest index first, each undecided agent claims its best candidate that nobody claimed yet and
    whose occupant does not come to the agent's own cell. An undecided occupant has the next turn: if it finds no cell it stays,
    and the agent tries its next candidate. One turn of the loop tries one candidate of the last agent of the chain, so that
    there is no recursion.

    cell [A]; candidates [A, 5] cells, best first, −1 where blocked; priority [A]; alive [A] bool.
    """
    agents = cell.shape[0]
    index = jnp.arange(agents)
    none_left = -2
    candidates = jnp.pad(candidates, ((0, 0), (0, 1)), constant_values=none_left)

    def unfinished(state: Plan) -> jax.Array:
        return jnp.any(state.following < 0) | (state.depth > 0)  # the last one to decide may fail those before it

    def turn(state: Plan) -> Plan:
        undecided, new_chain = state.following < 0, state.depth == 0
        first = jnp.argmax(jnp.where(undecided, priority, -jnp.inf))
        stack = jnp.where(new_chain & (index == 0), first, state.stack)
        depth = jnp.where(new_chain, 1, state.depth)
        agent = stack[depth - 1]
        want = candidates[agent, state.tried[agent]]
        failed = want == none_left
        occupies = alive & (cell == want) & (index != agent)
        swaps = jnp.any(occupies & (state.following == cell[agent]))
        claims = (want >= 0) & ~jnp.any(alive & (state.following == want)) & ~swaps
        pushes = claims & jnp.any(occupies & undecided)
        following = jnp.where((index == agent) & (claims | failed), jnp.where(failed, cell, want), state.following)
        return Plan(
            following,
            tried=state.tried + ((index == agent) & ~failed),
            stack=jnp.where(pushes & (index == depth), jnp.argmax(occupies), stack),
            # a claim without resistance decides the whole chain
            depth=jnp.where(pushes, depth + 1, jnp.where(claims, 0, depth - failed)),
        )

    zeros = jnp.zeros(agents, jnp.int32)
    start = Plan(jnp.where(alive, -1, cell), zeros, zeros, jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(unfinished, turn, start).following

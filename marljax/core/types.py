"""Records that environments and algorithms exchange."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

State = Any  # an environment's own pytree of arrays
EnvParams = Any  # an environment's numbers: a pytree of arrays
REPLAYED = "replayed"  # a metric: 1 where an episode did not start from a fresh state, so its metrics are not those of the task


class Outcome(NamedTuple):
    """What a transition returns besides the next state."""

    reward: jax.Array  # [A], 0 for agents that are not alive
    terminated: jax.Array  # bool: the episode ended by itself; the final observation has value 0
    truncated: jax.Array  # bool: the episode was cut off by a limit; the value of its final observation is bootstrapped


class View(NamedTuple):
    """What agents observe of a state."""

    obs: Any  # [A, O], or a pytree of arrays with leading [A], except for a part named ``shared``, the same for all agents
    # [A, n] bool (discrete), or [A, 1] all true (continuous). If agents' continuous actions differ in width: [A, d], false for
    # padding.
    action_mask: jax.Array
    alive: jax.Array  # [A] bool
    metrics: dict[str, jax.Array]  # scalars of the episode so far, read at its last step only


class PersistentState(struct.PyTreeNode):
    """A part of a state that survives auto-reset and is too big to copy at every step, such as a store of earlier states.
    Learners keep such parts too: a replay buffer goes on where the rest of a diverged run is frozen.

    ``vectorize`` selects between the states of a new and of a continued episode leaf by leaf, which copies both. It takes a
    persistent part from ``transition`` in any case, also in the step that starts the next episode, where ``transition`` should
    not change it; ``restart`` may read it. So a store that is only written by ``.at[index].set(…, mode="drop")`` is updated in
    place.
    """

    value: Any


def without_persistent(state: Any) -> Any:
    """``state`` with None for its persistent parts."""
    return jax.tree.map(lambda part: None if _is_persistent(part) else part, state, is_leaf=_is_persistent)


def with_persistent(state: Any, source: Any) -> Any:
    """``state`` with the persistent parts of ``source`` instead of its own or of None."""
    return jax.tree.map(
        lambda part, other: other if _is_persistent(other) else part,
        state,
        source,
        is_leaf=lambda part: part is None or _is_persistent(part),
    )


def persistent_parts(state: Any) -> list[PersistentState]:
    """The persistent parts of ``state``."""
    return [part for part in jax.tree.leaves(state, is_leaf=_is_persistent) if _is_persistent(part)]


def _is_persistent(part: Any) -> bool:
    return isinstance(part, PersistentState)


class TimeStep(struct.PyTreeNode):
    """What a policy observes of a state, and the outcome of the transition into it.

    After ``vectorize`` every field has a leading [E], and the metrics include ``return`` and ``length``.
    """

    obs: Any  # see ``View``
    action_mask: jax.Array  # [A, n] bool, see ``View``
    reward: jax.Array  # [A] of the transition into this state; 0 at a first timestep
    first: jax.Array  # bool: an episode starts here
    terminated: jax.Array  # bool
    truncated: jax.Array  # bool
    alive: jax.Array  # [A] bool
    metrics: dict[str, jax.Array]

    @property
    def last(self) -> jax.Array:
        """The episode ended here: this is its final observation, and the next action is ignored."""
        return self.terminated | self.truncated

    @property
    def acting(self) -> jax.Array:
        """[A] bool: alive, and not at the end of an episode.

        ``alive`` itself stays true at a final timestep of an agent that the time limit cut off (its value is bootstrapped), and
        is false for one that died in the last step (value 0).
        """
        return self.alive & ~self.last[..., None]


def timestep(view: View, outcome: Outcome, first: jax.Array) -> TimeStep:
    """The timestep of a state, from its view and the outcome of the transition into it."""
    return TimeStep(**view._asdict(), **outcome._asdict(), first=first)


def is_shared(path: tuple[Any, ...]) -> bool:
    """Whether a leaf of an observation, given its path in the tree, is in the part without an agent axis."""
    return bool(path) and getattr(path[0], "key", getattr(path[0], "name", None)) == "shared"


def flat_observation(obs: Any, shape: tuple[int, ...]) -> jax.Array:
    """[…, A, O]: the leaves of an observation concatenated, shared ones repeated for each agent. ``shape`` is […, A]."""

    def flatten(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        if is_shared(path):
            shared = leaf.reshape(*shape[:-1], 1, -1)
            return jnp.broadcast_to(shared, (*shape, shared.shape[-1]))
        return leaf.reshape(*shape, -1)

    return jnp.concatenate(jax.tree.leaves(jax.tree_util.tree_map_with_path(flatten, obs)), -1)

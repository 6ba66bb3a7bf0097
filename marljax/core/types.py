"""What environments and algorithms exchange: states, timesteps, what agents see."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

State = Any  # an environment's own record of arrays
EnvParams = Any  # an environment's numbers: a pytree of arrays


REPLAYED = "replayed"  # a metric: 1 where an episode did not start afresh, so that its figures say nothing of the task


class Outcome(NamedTuple):
    """What one transition yields besides the next state."""

    reward: jax.Array  # [A], 0 for agents that are not alive
    terminated: jax.Array  # bool: the episode ended; nothing follows, so nothing is bootstrapped
    truncated: jax.Array  # bool: the episode was cut off by a limit; its final observation has a value


class View(NamedTuple):
    """What can be seen in one state."""

    obs: Any  # [A, O], or a pytree of arrays with leading [A], but for a part named ``shared``, which all agents see alike
    # [A, n] bool (discrete), or [A, 1] all true (continuous). Where agents' continuous actions have different widths: [A, d],
    # false for padding, which means nothing
    action_mask: jax.Array
    alive: jax.Array  # [A] bool: the agent exists
    metrics: dict[str, jax.Array]  # scalars of the episode so far, read at its last step only


class PersistentState(struct.PyTreeNode):
    """A part of a state that outlives its episode and is too big to be copied at every step, such as a store of earlier states.
    Learners, too, keep such parts beside their environments: a replay goes on where the rest of a diverged run is frozen.

    ``vectorize`` selects between the state that begins an episode and the one that continues it, leaf by leaf, which copies
    both. A lasting part is left out: the one that ``transition`` returns stands, also in the step that starts the next episode,
    where ``transition`` should leave it alone. ``restart`` is given that one, and may read it. So a store that ``transition``
    only writes to by ``.at[place].set(…, mode="drop")`` stays where it lies in memory.
    """

    value: Any


def without_persistent(state: Any) -> Any:
    """``state`` with None for its lasting parts."""
    return jax.tree.map(lambda part: None if _lasts(part) else part, state, is_leaf=_lasts)


def with_persistent(state: Any, moved: Any) -> Any:
    """``state`` with the lasting parts of ``moved``, in the place of its own or of None."""
    return jax.tree.map(
        lambda part, other: other if _lasts(other) else part, state, moved, is_leaf=lambda part: part is None or _lasts(part)
    )


def persistent_parts(state: Any) -> list[PersistentState]:
    """The parts of ``state`` that last."""
    return [part for part in jax.tree.leaves(state, is_leaf=_lasts) if _lasts(part)]


def _lasts(part: Any) -> bool:
    return isinstance(part, PersistentState)


class TimeStep(struct.PyTreeNode):
    """What a policy sees of one state, and what the transition into it gave.

    After ``vectorize`` every field has a leading [E], and the metrics hold ``return`` and ``length`` too.
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
        """The episode ended here: the observation is its final one, and no action is taken from it."""
        return self.terminated | self.truncated

    @property
    def acting(self) -> jax.Array:
        """[A] bool: alive, and the transition out of here belongs to an episode.

        ``alive`` itself stays truthful in a final timestep: there it tells an agent that died in the last step (value 0) from one
        that the time limit cut off (value bootstrapped).
        """
        return self.alive & ~self.last[..., None]


def timestep(view: View, outcome: Outcome, first: jax.Array) -> TimeStep:
    """Joins what is seen in a state with the outcome of the transition into it."""
    return TimeStep(
        obs=view.obs,
        action_mask=view.action_mask,
        reward=outcome.reward,
        first=first,
        terminated=outcome.terminated,
        truncated=outcome.truncated,
        alive=view.alive,
        metrics=view.metrics,
    )


def is_shared(path: tuple[Any, ...]) -> bool:
    """Whether a leaf of an observation, by its path in the tree, belongs to the part that has no agent axis."""
    return bool(path) and getattr(path[0], "key", getattr(path[0], "name", None)) == "shared"


def flat_observation(obs: Any, shape: tuple[int, ...]) -> jax.Array:
    """[…, A, O]: every part of an observation side by side; what the agents share is repeated for each of them. ``shape`` is
    […, A]."""

    def flat(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        if is_shared(path):
            parts = leaf.reshape(*shape[:-1], 1, -1)
            return jnp.broadcast_to(parts, (*shape, parts.shape[-1]))
        return leaf.reshape(*shape, -1)

    return jnp.concatenate(jax.tree.leaves(jax.tree_util.tree_map_with_path(flat, obs)), -1)

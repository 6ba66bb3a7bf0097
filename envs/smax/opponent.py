"""Learned enemies in ``smax``: a policy trained as the left team leads the right one, observing a mirrored board.

Axis letters: N units of both teams, M enemies.
"""

import textwrap
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.environment import Environment
from marljax.core.opponent import Opponent
from marljax.core.types import Outcome, timestep
from marljax.envs.smax.actions import CONTINUOUS_SIZE, FIRST_ATTACK, mirrored
from marljax.envs.smax.battle import Units
from marljax.envs.smax.units import Scenario
from marljax.errors import UserError, short_repr

MAX_REASON_LENGTH = 400  # characters of another library's error in a message


def check_opponent(opponent: Opponent | None, mode: str, scenario: Scenario) -> None:
    """Raises ``UserError`` unless the opponent fits the mode and the teams' sizes."""
    if mode != "learned":
        if opponent is not None:
            raise UserError(f"opponent is for mode=learned; with mode={mode} leave it out")
        return
    if not isinstance(opponent, Opponent):
        given = "" if opponent is None else f", not {short_repr(opponent)}"
        raise UserError(f"mode=learned needs a policy, set from Python: opponent=Opponent.of(algorithm, env, config){given}")
    trained = getattr(opponent.env, "battle", None)
    if not isinstance(trained, Scenario):
        name = type(opponent.env).__name__ if isinstance(opponent.env, Environment) else repr(opponent.env)
        raise UserError(f"opponent was trained in {name}; give one trained in smax")
    sizes, needed = (trained.num_allies, trained.num_enemies), (scenario.num_enemies, scenario.num_allies)
    if sizes != needed:
        battles = "was trained as {} against {} units and would lead {} against {}".format(*sizes, *needed)
        raise UserError(f"opponent {battles}; train one for that")
    if opponent.env.num_agents != needed[0]:
        raise UserError("opponent has an env with mode=self_play, where it leads both teams; give that env with mode=scripted")


def check_weights(opponent: Opponent, env_params: Any) -> None:
    """Raises ``UserError`` for weights that the opponent cannot act with, and for actions or a memory of other shapes."""

    def act(weights: Any) -> Any:
        _, observed = opponent.env.reset(jax.random.key(0))
        carry = opponent.initial_carry()
        return carry, opponent.act(weights, observed, carry, jax.random.key(0))

    try:
        before, (action, after) = jax.eval_shape(act, env_params.opponent)
    except Exception as error:  # whatever a policy's networks raise for sizes that do not fit
        problem = "does not fit" if jax.tree.leaves(env_params.opponent) else "holds no weights for"
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", MAX_REASON_LENGTH, placeholder=" …")
        raise UserError(
            f"env_params.opponent {problem} this opponent; set its weights with env_params.replace(opponent=…) ({reason})"
        ) from error
    _check_action(opponent, action)
    first, later = (
        str(jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", carry)).replace("'", "") for carry in (before, after)
    )
    if first != later:
        raise UserError(f"opponent.act turns the memory {first} into {later}; give an initial_carry of the same shapes")


def _check_action(opponent: Opponent, action: Any) -> None:
    shape: list[int] = [opponent.env.num_agents]
    kind: Any = jnp.integer
    if not opponent.discrete:
        shape, kind = [*shape, CONTINUOUS_SIZE], jnp.floating
    if list(action.shape) != shape or not jnp.issubdtype(action.dtype, kind):
        expected = f"{'int32' if opponent.discrete else 'float32'}{shape}"
        raise UserError(f"opponent.act returns {action.dtype}{list(action.shape)}; return {expected}")


def mirror(units: Units, num_allies: int, width: Any) -> Units:
    """The battle from the other team's perspective: enemies first, right and left swapped; [N] each."""
    size = units.x.shape[0]
    num_targets = np.where(np.arange(size) < num_allies, size - num_allies, num_allies)
    shot = jnp.where(units.shot > 0, 2 * FIRST_ATTACK + num_targets - 1 - units.shot, 0)
    reflected = units.replace(x=width - units.x, move_x=-units.move_x, shot=shot.astype(units.shot.dtype))
    return jax.tree.map(lambda part: jnp.roll(part, -num_allies), reflected)


def act(
    opponent: Opponent, key: jax.Array, state: Any, kind: jax.Array, num_allies: int, env_params: Any
) -> tuple[jax.Array, Any]:
    """The enemies' actions, [M] in their own numbering or [M, 4] continuous, and the policy's memory.

    Args:
        opponent: the policy.
        key: for sampling its actions.
        state: of the battle, with the policy's memory.
        kind: [N] unit types.
        num_allies: units of the other team.
        env_params: parameters of the battle, with the weights.
    """
    board = state.replace(
        units=mirror(state.units, num_allies, env_params.map_width), kind=jnp.roll(kind, -num_allies), memory=None
    )
    outcome = Outcome(jnp.zeros(opponent.env.num_agents), jnp.array(False), jnp.array(False))
    observed = timestep(opponent.env.observe(board, env_params), outcome, first=state.step == 0)
    try:
        action, carry = opponent.act(env_params.opponent, observed, state.memory, key)
    except Exception:
        check_weights(opponent, env_params)  # raises the clearer error where the weights are the cause
        raise
    _check_action(opponent, action)
    return mirrored(action, num_allies), carry

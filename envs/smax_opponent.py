"""A learned enemy for ``smax``: any policy that was trained as the left team, shown the board as if it still were.

Axis letters: N units of both teams, M enemies, O observation, n actions.
"""

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marljax.environment import Environment, Outcome, TimeStep, timestep
from marljax.envs.smax_actions import FIRST_ATTACK, LEFT, RIGHT
from marljax.envs.smax_battle import Units
from marljax.envs.smax_units import Scenario
from marljax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Opponent:
    """A policy for the enemies; its weights stay apart, in ``env_params.opponent``.

    ``env`` is the ``Smax`` it was trained in: discrete actions, as many allies as there are enemies now, and the reverse.
    """

    env: Environment
    act: Callable[
        [Any, TimeStep, Any, jax.Array], tuple[jax.Array, Any]
    ]  # (weights, timestep, carry, key) -> (action [M], carry)
    initial_carry: Callable[[], Any] = tuple  # what it remembers at the start of an episode

    @classmethod
    def of(cls, algorithm: ModuleType, env: Environment, config: Any, greedy: bool = False) -> "Opponent":
        """The policies of one of our algorithms: ``Opponent.of(mappo, env, config)``; weights are its ``params``."""

        def act(weights: Any, seen: TimeStep, carry: Any, key: jax.Array) -> tuple[jax.Array, Any]:
            return algorithm.act(env, config, weights, seen, carry, key, greedy)

        def initial_carry() -> Any:
            return algorithm.initial_carry(env, config)

        return cls(env, act, initial_carry)


def check(opponent: Opponent | None, mode: str, scenario: Scenario) -> None:
    """Raises ``UserError`` unless the opponent fits the mode and the teams' sizes."""
    if mode != "learned":
        if opponent is not None:
            raise UserError(f"opponent of smax is for mode=learned; with mode={mode} leave it out")
        return
    if not isinstance(opponent, Opponent):
        raise UserError("mode=learned of smax needs a policy; give opponent=Opponent.of(algorithm, env, config)")
    trained = getattr(opponent.env, "battle", None)
    if not isinstance(trained, Scenario) or getattr(opponent.env, "action_type", None) != "discrete":
        raise UserError("the opponent of smax was trained in another environment; give one trained in smax with discrete actions")
    sizes, needed = (trained.num_allies, trained.num_enemies), (scenario.num_enemies, scenario.num_allies)
    if sizes != needed or opponent.env.num_agents != needed[0]:
        raise UserError(
            f"the opponent of smax was trained as {sizes[0]} against {sizes[1]} units; "
            f"here it leads {needed[0]} against {needed[1]}: train one for that"
        )


def check_weights(opponent: Opponent, env_params: Any) -> None:
    """Raises ``UserError`` for weights that the opponent's networks cannot take."""
    key = jax.random.key(0)

    def act(weights: Any) -> Any:
        _, seen = opponent.env.reset(key)
        return opponent.act(weights, seen, opponent.initial_carry(), key)

    try:
        jax.eval_shape(act, env_params.opponent)
    except Exception as error:  # whatever a policy's networks raise for sizes that do not fit
        raise UserError(
            "env_params.opponent of smax holds no weights for this opponent; set them with env_params.replace(opponent=weights)"
        ) from error


def mirror(units: Units, num_allies: int, width: Any) -> Units:
    """The battle seen from the other side: enemies first, right and left exchanged; [N] each."""
    size = units.x.shape[0]
    num_targets = np.where(np.arange(size) < num_allies, size - num_allies, num_allies)
    shot = jnp.where(units.shot > 0, 2 * FIRST_ATTACK + num_targets - 1 - units.shot, 0)
    turned = units.replace(x=width - units.x, move_x=-units.move_x, shot=shot.astype(units.shot.dtype))
    return jax.tree.map(lambda part: jnp.roll(part, -num_allies), turned)


def act(
    opponent: Opponent, key: jax.Array, state: Any, types: np.ndarray, num_allies: int, env_params: Any
) -> tuple[jax.Array, Any]:
    """[M] actions of the enemies in their own numbering, and what the policy remembers.

    Args:
        opponent: the policy.
        key: for its choice.
        state: of the battle, with the policy's memory.
        types: [N] static, where the scenario fixes them.
        num_allies: units of the other team.
        env_params: the numbers, with the weights.
    """
    kind = jnp.roll(jnp.asarray(types) if state.kind is None else state.kind, -num_allies)
    mirrored = state.replace(units=mirror(state.units, num_allies, env_params.map_width), kind=kind, memory=None)
    members = opponent.env.num_agents
    outcome = Outcome(jnp.zeros(members), jnp.array(False), jnp.array(False))
    seen = timestep(opponent.env.observe(mirrored, env_params), outcome, first=state.step == 0)
    action, carry = opponent.act(env_params.opponent, seen, state.memory, key)
    turned = jnp.where(action == LEFT, RIGHT, jnp.where(action == RIGHT, LEFT, action))
    return jnp.where(action >= FIRST_ATTACK, 2 * FIRST_ATTACK + num_allies - 1 - action, turned), carry

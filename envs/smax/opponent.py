"""A learned enemy for ``smax``: any policy that was trained as the left team, shown the board as if it still were.

Axis letters: N units of both teams, M enemies, O observation, n actions.
"""

import dataclasses
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.environment import Environment
from marljax.core.spaces import Discrete
from marljax.core.types import Outcome, TimeStep, timestep
from marljax.envs.smax.actions import CONTINUOUS_SIZE, FIRST_ATTACK, mirrored, mirrored_continuous
from marljax.envs.smax.battle import Units
from marljax.envs.smax.units import Scenario
from marljax.errors import UserError, short_repr

LONGEST_REASON = 400  # characters of another library's error in a message


@dataclasses.dataclass(frozen=True)
class Opponent:
    """A policy for the enemies; its weights stay apart, in ``env_params.opponent``.

    ``env`` is the ``Smax`` it was trained in, with as many allies as there are enemies now, and the reverse. Its actions and its
    observations may be of another type than those of the agents, and its battle of other units.
    """

    env: Environment
    # (weights, timestep, carry, key) -> (action [M] or [M, 4], carry)
    act: Callable[[Any, TimeStep, Any, jax.Array], tuple[jax.Array, Any]]
    initial_carry: Callable[[], Any] = tuple  # what it remembers at the start of an episode

    @property
    def discrete(self) -> bool:
        """Whether its actions are."""
        return isinstance(self.env.action_space, Discrete)

    @classmethod
    def of(cls, algorithm: ModuleType, env: Environment, config: Any, greedy: bool = False) -> "Opponent":
        """The policies of one of our algorithms: ``Opponent.of(mappo, env, config)``; weights are its ``params``.

        Policies of self-play fit too, with an ``env`` of mode ``scripted``: they lead one team then.

        Example:
            enemy = marljax.load("runs/ippo_smax/…")
            opponent = Opponent.of(enemy.algorithm, enemy.env, enemy.config)
            env = marljax.make("smax", scenario="3m", mode="learned", opponent=opponent)
            env_params = env.default_params.replace(opponent=enemy.params)
        """
        if not all(callable(getattr(algorithm, name, None)) for name in ("act", "initial_carry")):
            raise UserError(
                f"Opponent.of got {short_repr(algorithm)} as its algorithm; give the module, such as marljax.algos.ippo"
            )
        return cls(env, _Act(algorithm, env, config, greedy), _InitialCarry(algorithm, env, config))


@dataclasses.dataclass(frozen=True)
class _Act:
    """An algorithm's ``act``; equal ones are one program."""

    algorithm: ModuleType
    env: Environment
    config: Any
    greedy: bool

    def __call__(self, weights: Any, seen: TimeStep, carry: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        actions: tuple[jax.Array, Any] = self.algorithm.act(self.env, self.config, weights, seen, carry, key, self.greedy)
        return actions


@dataclasses.dataclass(frozen=True)
class _InitialCarry:
    """An algorithm's ``initial_carry``."""

    algorithm: ModuleType
    env: Environment
    config: Any

    def __call__(self) -> Any:
        return self.algorithm.initial_carry(self.env, self.config)


def check(opponent: Opponent | None, mode: str, scenario: Scenario) -> None:
    """Raises ``UserError`` unless the opponent fits the mode and the teams' sizes."""
    if mode != "learned":
        if opponent is not None:
            raise UserError(f"opponent of smax is for mode=learned; with mode={mode} leave it out")
        return
    if not isinstance(opponent, Opponent):
        got = "" if opponent is None else f", not {short_repr(opponent)}"
        raise UserError(
            f"mode=learned of smax needs a policy, which only Python can give: opponent=Opponent.of(algorithm, env, config){got}"
        )
    trained = getattr(opponent.env, "battle", None)
    if not isinstance(trained, Scenario):
        raise UserError(f"the opponent of smax was trained in {_called(opponent.env)}; give one trained in smax")
    sizes, needed = (trained.num_allies, trained.num_enemies), (scenario.num_enemies, scenario.num_allies)
    if sizes != needed:
        raise UserError(
            f"the opponent of smax was trained as {sizes[0]} against {sizes[1]} units; "
            f"here it leads {needed[0]} against {needed[1]}: train one for that"
        )
    if opponent.env.num_agents != needed[0]:
        raise UserError(
            "the opponent's env of smax has mode=self_play, where a policy leads both teams; "
            "give the opponent the same env with mode=scripted"
        )


def _called(env: Any) -> str:
    """An environment as a message names it."""
    return type(env).__name__ if isinstance(env, Environment) else repr(env)


def check_weights(opponent: Opponent, env_params: Any) -> None:
    """Raises ``UserError`` for weights that the opponent cannot act with, and for actions or a memory of other shapes."""
    key = jax.random.key(0)

    def act(weights: Any) -> Any:
        _, seen = opponent.env.reset(key)
        carry = opponent.initial_carry()
        return carry, opponent.act(weights, seen, carry, key)

    try:
        before, (action, after) = jax.eval_shape(act, env_params.opponent)
    except Exception as error:  # whatever a policy's networks raise for sizes that do not fit
        has = "does not fit this opponent" if jax.tree.leaves(env_params.opponent) else "holds no weights for this opponent"
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", LONGEST_REASON, placeholder=" …")
        raise UserError(
            f"env_params.opponent of smax {has}; set those it was trained to with env_params.replace(opponent=weights) ({reason})"
        ) from error
    _check_action(opponent, action)
    if _shapes(before) != _shapes(after):
        raise UserError(
            f"the opponent of smax starts with a memory of {_shapes(before)} and goes on with {_shapes(after)}; "
            "give an initial_carry of the shapes that its act returns"
        )


def _check_action(opponent: Opponent, action: Any) -> None:
    shape: list[int] = [opponent.env.num_agents]
    kind: Any = jnp.integer
    if not opponent.discrete:
        shape, kind = [*shape, CONTINUOUS_SIZE], jnp.floating
    if list(action.shape) != shape or not jnp.issubdtype(action.dtype, kind):
        wanted = f"{'int32' if opponent.discrete else 'float32'}{shape}"
        raise UserError(f"the opponent of smax returns {action.dtype}{list(action.shape)}; give an act that returns {wanted}")


def _shapes(carry: Any) -> str:
    return str(jax.tree.map(lambda part: f"{part.dtype}{list(part.shape)}", carry)).replace("'", "")


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
    """[M] actions of the enemies in their own numbering, or [M, 4] continuous ones, and what the policy remembers.

    Args:
        opponent: the policy.
        key: for its choice.
        state: of the battle, with the policy's memory.
        types: [N] static, where the scenario fixes them.
        num_allies: units of the other team.
        env_params: the numbers, with the weights.
    """
    kind = jnp.roll(jnp.asarray(types) if state.kind is None else state.kind, -num_allies)
    board = state.replace(units=mirror(state.units, num_allies, env_params.map_width), kind=kind, memory=None)
    members = opponent.env.num_agents
    outcome = Outcome(jnp.zeros(members), jnp.array(False), jnp.array(False))
    seen = timestep(opponent.env.observe(board, env_params), outcome, first=state.step == 0)
    try:
        action, carry = opponent.act(env_params.opponent, seen, state.memory, key)
    except Exception:
        check_weights(opponent, env_params)  # says it in one line where the weights are the cause
        raise
    _check_action(opponent, action)
    return mirrored(action, num_allies) if opponent.discrete else mirrored_continuous(action), carry

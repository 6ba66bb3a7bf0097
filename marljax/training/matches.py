"""Matches between policies in games of two teams, from both sides.

Axis letters: N players, S seeds of a player, P rounds, A agents.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

from marljax.config.hyperparameters import traced_names
from marljax.core.environment import Environment, Policy
from marljax.core.opponent import Opponent
from marljax.core.types import EnvParams, TimeStep
from marljax.errors import UserError
from marljax.training.evaluation import MAX_STEPS, RandomPolicy, play
from marljax.training.load import Loaded
from marljax.utils.pytrees import named_leaves
from marljax.wrappers.against import check_two_teams, joint_action, lead, opponent_params, sides

AT_ONCE = 64  # battles that are played together where rounds have fewer


class Player(NamedTuple):
    """Someone who controls a team: trained policies of one architecture, random actions, or the environment's script."""

    name: str
    policy: Opponent | None  # None: the script that controls the enemies of the environment itself
    params: Any = ()  # [S, …] weights of every seed
    seeds: int = 1


class Results(NamedTuple):
    """Of matches [i, j], a list of rows of arrays [S_i, S_j]: rates at which i, on the first side, won and lost against j.

    A script controls the second side only. Where it should have the first, its results on the second stand for it: the battles of
    such a pair are all played there, as many as of others.
    """

    won: list[list[np.ndarray]]
    lost: list[list[np.ndarray]]
    battles: int  # per pair of players
    both_sides: np.ndarray  # [N, N] bool: played on either


def random_player(env: Environment) -> Player:
    """Uniformly random actions."""
    return Player("random", Opponent(env.one_team, _Random(env.one_team)), {"": np.zeros(1)})


def trained_player(name: str, loaded: Loaded, greedy: bool = False) -> Player:
    """Every seed of a run."""
    chosen = loaded.settings
    if chosen.env.num_agents != chosen.base_env.num_agents:
        raise UserError(f"{name}: {chosen.algo} controls all agents as one; name runs of other algorithms")
    return Player(name, acting(chosen.algorithm, chosen.env, chosen.config, greedy), loaded.params, len(chosen.seeds))


def acting(algorithm: ModuleType, env: Environment, config: Any, greedy: bool = False) -> Opponent:
    """The policies of an algorithm. Acting depends on no traced hyperparameter: with the defaults of these, runs that differ in
    them alone share programs."""
    usual = {name: getattr(type(config)(), name) for name in traced_names(type(config))}
    return Opponent.of(algorithm, env, config.replace(**usual), greedy)


@dataclasses.dataclass(frozen=True)
class _Random:
    """``act`` of random actions."""

    env: Environment

    def __call__(self, weights: Any, seen: TimeStep, carry: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        del weights
        return RandomPolicy(self.env)(key, None, seen, carry)


def check_same_game(env: Environment, env_params: EnvParams, other: Environment, other_params: EnvParams, name: str) -> None:
    """Raises ``UserError`` where a player was trained in another game."""
    first, second = env.one_team, other.one_team
    if type(first) is not type(second):
        games = [type(env).__name__ for env in (second, first)]
        raise UserError(f"{name} plays {games[0]}, and the first player {games[1]}; name runs of one game")
    for field in dataclasses.fields(first):
        if field.name in first.policy_options:
            continue
        theirs, ours = getattr(second, field.name), getattr(first, field.name)
        if theirs != ours:
            raise UserError(f"{name} has env.{field.name}={theirs}, and the first player {ours}; name runs of one game")
    numbers = [dict(named_leaves(params)) for params in (env_params, other_params)]
    for key in dict.fromkeys([*numbers[0], *numbers[1]]):
        if key.partition(".")[0] == "opponent":
            continue
        if not all(key in each for each in numbers) or not np.array_equal(numbers[0][key], numbers[1][key]):
            raise UserError(f"{name} was trained with another env.{key} than the first player; set env.{key}=… for all")


def play_all(
    env: Environment,
    env_params: EnvParams,
    players: Sequence[Player],
    key: jax.Array,
    battles: int,
    report: Callable[[str], None] = lambda text: None,
) -> Results:
    """Every player against every one, also itself, on both sides; the same scenarios for all.

    Args:
        env: the game; in ``smax`` any mode.
        env_params: its params.
        players: who plays; a script controls the second side only.
        key: fixes the scenarios.
        battles: per pair of players at least, half on either side, shared among their seeds.
        report: called with a line of text before each pair.

    Raises:
        UserError: for an environment of one team, and for players who cannot control the other side.
    """
    check_teams(env, any(player.policy is None for player in players))
    # As many rounds for all, so that players of equal networks share one program; in each a pair of seeds meets.
    rounds = max(player.seeds for player in players) ** 2
    each = -(-battles // (2 * rounds))
    won: list[list[np.ndarray]] = [[np.zeros((left.seeds, right.seeds)) for right in players] for left in players]
    lost = [[np.zeros_like(rates) for rates in row] for row in won]
    for (i, left), (j, right) in itertools.product(enumerate(players), repeat=2):
        if left.policy is None:
            continue  # filled in below
        pairs = np.argwhere(np.ones((left.seeds, right.seeds)))
        paired = np.arange(rounds) % len(pairs)
        own, other = (
            jax.tree.map(lambda leaf, chosen=chosen: leaf[chosen], player.params)
            for player, chosen in zip((left, right), pairs[paired].T, strict=True)
        )
        report(f"{left.name} against {right.name}")
        count = each if right.policy else 2 * each  # all on this side
        found = play_rounds(env, left.policy, right.policy, count, env_params, own, other, jax.random.split(key, rounds))
        for rates, by_round in zip((won, lost), found, strict=True):
            rates[i][j] = np.reshape(np.bincount(paired, by_round) / np.bincount(paired), (left.seeds, right.seeds))
    for (i, left), j in itertools.product(enumerate(players), range(len(players))):
        if left.policy is None:
            won[i][j], lost[i][j] = lost[j][i].T, won[j][i].T
    able = np.array([player.policy is not None for player in players])
    return Results(won, lost, 2 * rounds * each, able[:, None] & able[None, :])


def has_script(env: Environment) -> bool:
    """Whether a script controls the second team where no player does; raises ``UserError`` for unequal teams."""
    try:
        return env.against(random_player(env).policy) is not None
    except UserError as error:
        raise UserError(f"{type(env).__name__} has unequal teams, so no player can control both sides; {error}") from error


def check_teams(env: Environment, script: bool = False) -> None:
    """Raises ``UserError`` unless a player can control either of two teams, and where a script should and there is none."""
    if not has_script(env):
        check_two_teams(env)
        if script:
            raise UserError(f"{type(env).__name__} has no script that controls a team; leave script out")


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def play_rounds(
    env: Environment,
    left: Opponent,
    right: Opponent | None,
    battles: int,
    env_params: EnvParams,
    left_params: Any,
    right_params: Any,
    keys: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """[P] rates of battles that the left policy, on the first side, won and lost, one round after the other.

    Args:
        env: the game.
        left: the policies on the first side, of one architecture.
        right: those on the second; None for the environment's script.
        battles: in every round.
        env_params: of the game.
        left_params: [P, …] weights.
        right_params: [P, …] weights; of a script anything.
        keys: [P], each of which fixes the scenarios of a round.
    """

    def play_round(inputs: tuple[jax.Array, Any, Any]) -> tuple[jax.Array, jax.Array]:
        key, own, other = inputs
        game, params, act, carry = _match(env, env_params, left, right, own, other)
        return outcome(play(game, params, act, carry, key, battles, MAX_STEPS))

    return jax.lax.map(play_round, (keys, left_params, right_params), batch_size=max(1, AT_ONCE // battles))


def _match(
    env: Environment, env_params: EnvParams, left: Opponent, right: Opponent | None, own: Any, other: Any
) -> tuple[Environment, EnvParams, Policy, Any]:
    """The environment in which two players meet, its params, the policy that plays there and its initial carry."""

    def alone(key: jax.Array, state: Any, seen: TimeStep, carry: Any) -> tuple[jax.Array, Any]:
        del state
        return left.act(own, seen, carry, key)

    if right is None:
        return left.env.one_team, env_params, alone, left.initial_carry()
    if (game := left.env.against(right)) is not None:  # as the left policy sees it
        return game, opponent_params(game, env_params, other), alone, left.initial_carry()
    agents = sides(env)

    def both(key: jax.Array, state: Any, seen: TimeStep, carry: Any) -> tuple[jax.Array, Any]:
        del state
        key_left, key_right = jax.random.split(key)
        first, memory = lead(left, own, agents[0], seen, carry[0], key_left)
        second, other_memory = lead(right, other, agents[1], seen, carry[1], key_right)
        return joint_action(agents, first, second), (memory, other_memory)

    return env, env_params, both, (left.initial_carry(), right.initial_carry())


def outcome(metrics: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """The shares of episodes that the first team won and lost: as the environment says, or by which team's return is higher."""
    if {"won", "lost"} <= {*metrics}:
        return metrics["won"].mean(), metrics["lost"].mean()
    first, second = metrics["return_0"], metrics["return_1"]
    return (first > second).mean(), (first < second).mean()

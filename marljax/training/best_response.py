"""Best responses: policies that are trained against fixed ones of the other team.

Axis letters: P members of one compiled program, U updates, S seeds of an opponent, M members against each.
"""

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.environment import Environment
from marljax.core.opponent import Opponent
from marljax.core.types import EnvParams
from marljax.errors import UserError
from marljax.training.matches import Player, acting, play_rounds
from marljax.training.mesh import make_mesh
from marljax.training.trainer import Replicas, Trainer
from marljax.utils import distributed
from marljax.utils.pytrees import shape_difference
from marljax.wrappers.against import against, opponent_params

POINTS = 50  # of a learning curve
FEWEST_ENDED = 16  # battles from which a part of the training has a point, unless no part has as many
CHUNKS = 32  # calls of the compiled program in a training, after each of which progress is reported


class Responses(NamedTuple):
    """Members after their training."""

    params: Any  # [P, …]
    gained: np.ndarray  # [P, U] battles won minus battles lost in each update
    ended: np.ndarray  # [P, U] battles that ended
    diverged_at: np.ndarray  # [P] update in which a value was not finite, and the member was frozen; −1 if there was none


@dataclasses.dataclass(frozen=True)
class Responder:
    """Trains policies for the first team of a game against opponents of one architecture, whose weights are data.

    ``trainer`` trains against ``opponent``, or for None against the environment's script. Created by ``Responder.of``.
    """

    game: Environment
    opponent: Opponent | None
    trainer: Trainer

    @classmethod
    def of(cls, algorithm: ModuleType, game: Environment, config: Any, opponent: Opponent | None) -> "Responder":
        """For an algorithm with a configuration in ``game``, an environment of two teams.

        Raises ``UserError`` for other environments, an opponent for other teams, and an algorithm that joins all agents.
        """
        env = game.one_team if opponent is None else against(game, opponent)
        if getattr(algorithm, "present", lambda env: env)(env).num_agents != env.num_agents:
            raise UserError(f"{algorithm.__name__.rpartition('.')[2]} controls all agents as one; choose another algorithm")
        return cls(game, opponent, Trainer(algorithm, env, config, make_mesh()))

    @property
    def policy(self) -> Opponent:
        """The policies of members, who sample their actions."""
        return acting(self.trainer.algorithm, self.trainer.env, self.trainer.config)

    def begin(self, keys: jax.Array, game_params: EnvParams, weights: Any = ()) -> Replicas:
        """Members [P] with new networks, each against an opponent with weights [P, …]; none for the script."""
        overrides = {} if self.opponent is None else {"env.opponent": weights}
        return self.trainer.init(keys, self._first_params(game_params, weights), overrides)

    def misfit(self, game_params: EnvParams, weights: Any, params: Any) -> str:
        """Why members against ``weights`` [S, …] cannot start from parameters [S', …]; empty if they can."""
        new = self.trainer.shapes(jax.random.split(jax.random.key(0), 1), self._first_params(game_params, weights))
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), (new.state.learner.params, params))
        return first_difference(*shapes)

    def _first_params(self, game_params: EnvParams, weights: Any) -> EnvParams:
        """Params against the first of the opponents."""
        if self.opponent is None:
            return game_params
        return opponent_params(self.trainer.env, game_params, jax.tree.map(lambda leaf: leaf[0], weights))

    def start_from(self, replicas: Replicas, which: np.ndarray, params: Any) -> Replicas:
        """New members, of whom those in ``which`` [P] start from trained parameters [P, …].

        Raises ``UserError`` where these do not fit the networks.
        """
        own = replicas.state.learner.params
        if reason := first_difference(own, params):
            raise UserError(f"the networks differ: {reason}")

        def choose(trained: Any, new: jax.Array) -> jax.Array:
            return jnp.where(which.reshape(-1, *[1] * (new.ndim - 1)), trained, new)

        return self.trainer.with_params(replicas, jax.tree.map(choose, params, own))

    def train(
        self,
        replicas: Replicas,
        before_chunk: Callable[[Replicas], Replicas] = lambda replicas: replicas,
        report: Callable[[int, np.ndarray], None] = lambda steps, payoff: None,
    ) -> Responses:
        """Trains for ``config.total_steps``, in about 32 chunks.

        Args:
            replicas: new members; they are donated.
            before_chunk: called with the members before each chunk, for opponents that follow them.
            report: called after each with the steps of every member and the payoffs [P] of the chunk's battles.
        """
        updates, parts = self.trainer.num_updates, list[tuple[np.ndarray, np.ndarray]]()
        chunk = -(-updates // CHUNKS)
        for done in range(0, updates, chunk):
            replicas, metrics = self.trainer.run(before_chunk(replicas), min(chunk, updates - done))
            ended, won, lost = (np.nan_to_num(metrics[name]) for name in ("episodes", "sum_won", "sum_lost"))  # NaN: diverged
            parts.append((won - lost, ended))
            payoff = rates((won - lost).sum(1), ended.sum(1))
            report((done + ended.shape[1]) * self.trainer.steps_per_update, payoff)
        params, diverged = jax.device_get((replicas.state.learner.params, replicas.diverged_at))
        gained, ended = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
        return Responses(params, gained, ended, diverged)

    def play(
        self, params: Any, weights: Any, game_params: EnvParams, key: jax.Array, battles: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rates [P] at which members with parameters [P, …] win and lose against weights [P, …], in the same battles for all."""
        keys = jnp.broadcast_to(key, len(jax.tree.leaves(params)[0]))
        if self.opponent is None:
            weights = jnp.zeros(len(keys))
        return jax.device_get(play_rounds(self.game, self.policy, self.opponent, battles, game_params, params, weights, keys))


class Exploited(NamedTuple):
    """How far the best of several members beats a player. Kinds: fresh and warm ones, where there are both."""

    name: str
    kinds: tuple[str, ...]
    payoff: np.ndarray  # [S, M] of the trained members, fresh ones first, in the battles by which the best are chosen
    chosen: np.ndarray  # [S, kinds] the member of each kind with the highest
    won: np.ndarray  # [S, kinds] rates of these in other battles
    lost: np.ndarray  # [S, kinds]
    best: np.ndarray  # [S] the kind of the best member
    curve: np.ndarray  # [S, kinds, points] payoffs of the chosen members in equal parts of their training; NaN where few ended
    first_side: float  # battles won minus battles lost by the player against itself on the first side; NaN for a script
    diverged: int  # members
    battles: int  # for every member


def exploit(
    responder: Responder,
    player: Player,
    game_params: EnvParams,
    key: jax.Array,
    fresh: int,
    warm: int = 0,
    start: Any = None,
    battles: int = 512,
    report: Callable[[int, float], None] = lambda steps, payoff: None,
) -> Exploited:
    """Trains best responses to every seed of a player in one program, and plays the best of them against it.

    Args:
        responder: for opponents such as the player.
        player: who is to be beaten.
        game_params: of the game.
        key: of the members' training, and of the battles at its end.
        fresh: members with new networks against every seed.
        warm: members that start from trained ones.
        start: [S', …] parameters for the warm members, in turn for the seeds of the player.
        battles: by which the best members are chosen, and as many others that judge them.
        report: called with the steps of every member and the highest payoff of the last chunk, while they train.
    """
    seeds, members = player.seeds, fresh + warm
    key_train, key_choice, key_end = jax.random.split(key, 3)
    weights = jax.tree.map(lambda leaf: np.repeat(leaf, members, axis=0), player.params)
    replicas = responder.begin(jax.random.split(key_train, seeds * members), game_params, weights)
    if warm:
        given = np.arange(seeds) % len(jax.tree.leaves(start)[0])
        params = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf)[given], members, axis=0), start)
        replicas = responder.start_from(replicas, np.tile(np.arange(members) >= fresh, seeds), params)

    def highest(steps: int, payoff: np.ndarray) -> None:
        report(steps, float(np.max(payoff, initial=-1.0, where=np.isfinite(payoff))))

    trained = responder.train(replicas, report=highest)
    won, lost = responder.play(trained.params, weights, game_params, key_choice, battles)
    payoff = (won - lost).reshape(seeds, members)
    groups = {kind: group for kind, group in (("fresh", np.arange(fresh)), ("warm", np.arange(fresh, members))) if len(group)}
    chosen = np.stack([group[payoff[:, group].argmax(1)] for group in groups.values()], axis=1)
    rows = (np.arange(seeds)[:, None] * members + chosen).ravel()
    own, theirs = (jax.tree.map(lambda leaf: leaf[rows], tree) for tree in (trained.params, weights))
    won, lost = (rate.reshape(chosen.shape) for rate in responder.play(own, theirs, game_params, key_end, battles))
    parts = np.array_split(np.arange(trained.ended.shape[1]), min(POINTS, trained.ended.shape[1]))
    gained, ended = (np.stack([each[rows][:, part].sum(1) for part in parts], 1) for each in (trained.gained, trained.ended))
    enough = ended >= FEWEST_ENDED
    return Exploited(
        name=player.name,
        kinds=tuple(groups),
        payoff=payoff,
        chosen=chosen,
        won=won,
        lost=lost,
        best=np.take_along_axis(payoff, chosen, axis=1).argmax(1),
        curve=rates(gained, np.where(enough | ~enough.any(), ended, 0)).reshape(*chosen.shape, -1),
        first_side=first_side(responder.game, player, game_params, key_choice, battles),
        diverged=int((trained.diverged_at >= 0).sum()),
        battles=battles,
    )


def first_side(game: Environment, player: Player, game_params: EnvParams, key: jax.Array, battles: int) -> float:
    """Battles won minus battles lost by a player on the first side against itself, a mean over its seeds; NaN for a script."""
    if player.policy is None:
        return float("nan")
    keys, policy, params = jax.random.split(key, player.seeds), player.policy, player.params
    won, lost = play_rounds(game, policy, policy, battles, game_params, params, params, keys)
    return float(np.mean(won - lost))


def rates(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Sums over counts, NaN where these are 0."""
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def first_difference(needed: Any, given: Any) -> str:
    """The first of the leaves that differ between two trees; empty if none."""
    return shape_difference(needed, given).partition(" and ")[0]


def with_opponents(replicas: Replicas, weights: Any) -> Replicas:
    """Members whose opponents have other weights [P, …]; nothing is compiled again."""
    learner = replicas.state.learner
    # Copies, as members are donated, placed as the program returns them: with another sharding it would be compiled again.
    sharding = jax.tree.leaves(learner.params)[0].sharding
    weights = jax.tree.map(lambda leaf: distributed.place(jnp.array(leaf), sharding), weights)
    learner = learner.replace(env_params=learner.env_params.replace(opponent=weights))
    return replicas.replace(state=replicas.state._replace(learner=learner))

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
from marljax.utils.pytrees import shape_difference
from marljax.wrappers.against import against, opponent_params

CHUNKS = 32  # calls of the compiled program in a training, after each of which progress is reported


class Responses(NamedTuple):
    """Members after their training."""

    params: Any  # [P, …]
    payoff: np.ndarray  # [P, U] battles won minus battles lost, of those that ended in an update; NaN where none did
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
        if self.opponent is None:
            return self.trainer.init(keys, game_params)
        first = jax.tree.map(lambda leaf: leaf[0], weights)
        replicas = self.trainer.init(keys, opponent_params(self.trainer.env, game_params, first))
        return with_opponents(replicas, weights)

    def misfit(self, game_params: EnvParams, weights: Any, params: Any) -> str:
        """Why members against ``weights`` [S, …] cannot start from parameters [S', …]; empty if they can."""
        one = jax.random.split(jax.random.key(0), 1)
        new = jax.eval_shape(lambda: self.begin(one, game_params, jax.tree.map(lambda leaf: leaf[:1], weights)))
        given = jax.tree.map(lambda leaf: np.asarray(leaf)[:1], params)
        return shape_difference(new.state.learner.params, given).partition(" and ")[0]

    def start_from(self, replicas: Replicas, which: np.ndarray, params: Any) -> Replicas:
        """New members, of whom those in ``which`` [P] start from trained parameters [P, …].

        Raises ``UserError`` where these do not fit the networks.
        """
        own = replicas.state.learner.params
        if reason := shape_difference(own, params).partition(" and ")[0]:
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
        updates, parts = self.trainer.num_updates, list[np.ndarray]()
        chunk = -(-updates // CHUNKS)
        for done in range(0, updates, chunk):
            replicas, metrics = self.trainer.run(before_chunk(replicas), min(chunk, updates - done))
            counts, won, lost = (np.asarray(metrics[name]) for name in ("episodes", "sum_won", "sum_lost"))
            with np.errstate(invalid="ignore"):
                parts.append((won - lost) / counts)
                report((done + counts.shape[1]) * self.trainer.steps_per_update, (won - lost).sum(1) / counts.sum(1))
        params, diverged = jax.device_get((replicas.state.learner.params, replicas.diverged_at))
        return Responses(params, np.concatenate(parts, axis=1), diverged)

    def play(
        self, params: Any, weights: Any, game_params: EnvParams, key: jax.Array, battles: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rates [P] at which members with parameters [P, …] win and lose against weights [P, …], in the same battles for all."""
        keys = jnp.broadcast_to(key, len(jax.tree.leaves(params)[0]))
        if self.opponent is None:
            weights = jnp.zeros(len(keys))
        return jax.device_get(play_rounds(self.game, self.policy, self.opponent, battles, game_params, params, weights, keys))


class Exploited(NamedTuple):
    """How far the best of several members beats a player."""

    name: str
    curve: np.ndarray  # [S, M, U] payoffs in the battles of training
    payoff: np.ndarray  # [S, M] of the trained members
    best: np.ndarray  # [S] the member with the highest
    won: np.ndarray  # [S] rates of this one in battles by which it was not chosen
    lost: np.ndarray  # [S]
    diverged: int  # members
    fresh: int  # members with new networks, the first ones; the others start from a trained one
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
        key: of the members' training; and of the battles at its end.
        fresh: members with new networks against every seed.
        warm: members that start from trained ones.
        start: [S', …] parameters for the warm members, in turn for the seeds of the player.
        battles: by which the best member is chosen, and as many others that judge it.
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
    best = payoff.argmax(1)
    chosen = np.arange(seeds) * members + best
    own, theirs = (jax.tree.map(lambda leaf: leaf[chosen], tree) for tree in (trained.params, weights))
    won, lost = responder.play(own, theirs, game_params, key_end, battles)
    curve = trained.payoff.reshape(seeds, members, -1)
    return Exploited(player.name, curve, payoff, best, won, lost, int((trained.diverged_at >= 0).sum()), fresh, battles)


def with_opponents(replicas: Replicas, weights: Any) -> Replicas:
    """Members whose opponents have other weights [P, …]; nothing is compiled again."""
    learner = replicas.state.learner
    weights = jax.tree.map(jnp.array, weights)  # copies, as members are donated
    learner = learner.replace(env_params=learner.env_params.replace(opponent=weights))
    return replicas.replace(state=replicas.state._replace(learner=learner))

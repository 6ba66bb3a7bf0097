"""Small games that show which values a factorisation can represent: the two-step game of the QMIX paper, climbing, penalty.

``python baselines/games.py`` writes baselines/results/games.md. The games are environments of their own:
``env=custom env.target=marljax.baselines.games:Matrix env.game=climbing``.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.baselines.harness.result_cache import ResultCache
from marljax.baselines.harness.tables import Page, Section, with_missing
from marljax.core.environment import Environment
from marljax.core.fields import option, param
from marljax.core.spaces import Box, Discrete
from marljax.core.types import Outcome, View
from marljax.reporting.tables import markdown_table

SEEDS = 10
EPISODES = 32

# Rows are actions of the first agent, columns of the second.
GAMES = {
    "climbing": ((11.0, -30.0, 0.0), (-30.0, 7.0, 6.0), (0.0, 0.0, 5.0)),  # Claus & Boutilier 1998
    "penalty": ((10.0, 0.0, -100.0), (0.0, 2.0, 0.0), (-100.0, 0.0, 10.0)),  # the same, k = −100
}
SAFE, RISKY = ((7.0, 7.0), (7.0, 7.0)), ((0.0, 1.0), (1.0, 8.0))  # second steps of the two-step game, Rashid et al. 2018, table 1


@struct.dataclass
class Payoff:
    """Parameters of a game."""

    payoff: Any = param(help="[n, n]; of a two-step game [2, 2, 2]")


@dataclasses.dataclass(frozen=True)
class Game(Environment):
    """A game of two agents."""

    @property
    def num_agents(self) -> int:
        return 2

    def initial(self, key: jax.Array, env_params: Payoff) -> jax.Array:
        del key, env_params
        return jnp.zeros((), jnp.int32)


@dataclasses.dataclass(frozen=True)
class Matrix(Game):
    """One decision; observations are constant; both agents get ``payoff[action of the first, action of the second]``."""

    game: str = option("climbing", choices=GAMES, preset=True)

    @property
    def action_space(self) -> Discrete:
        return Discrete(3)

    @property
    def observation_space(self) -> Box:
        return Box((1,), 0.0, 1.0)

    @property
    def default_params(self) -> Payoff:
        return Payoff(jnp.array(GAMES[self.game]))

    def transition(self, key: jax.Array, state: jax.Array, action: jax.Array, env_params: Payoff) -> tuple[jax.Array, Outcome]:
        del key
        reward = jnp.asarray(env_params.payoff)[action[0], action[1]]
        return state, Outcome(jnp.full(2, reward), jnp.array(True), jnp.array(False))

    def observe(self, state: jax.Array, env_params: Payoff) -> View:
        del state, env_params
        return View(jnp.ones((2, 1)), jnp.ones((2, 3), bool), jnp.ones(2, bool), {})

    def global_state(self, state: jax.Array, env_params: Payoff) -> jax.Array:
        del state, env_params
        return jnp.ones(1)


@dataclasses.dataclass(frozen=True)
class TwoStep(Game):
    """The first agent chooses which matrix is played in the second step: one that pays 7 whatever the two do, or one that pays 8
    for the second action of both, 1 for that of one and 0 for none (Rashid et al. 2018, section 5). A sum of individual values
    cannot tell 8 from 1 and 0, and settles for 7.

    All agents observe which of the three states it is.
    """

    @property
    def action_space(self) -> Discrete:
        return Discrete(2)

    @property
    def observation_space(self) -> Box:
        return Box((3,), 0.0, 1.0)

    @property
    def default_params(self) -> Payoff:
        return Payoff(jnp.array((SAFE, RISKY)))

    def transition(self, key: jax.Array, state: jax.Array, action: jax.Array, env_params: Payoff) -> tuple[jax.Array, Outcome]:
        """``state`` is 0, or 1 + the matrix that is played."""
        del key
        second = state > 0
        payoff = jnp.asarray(env_params.payoff)[jnp.maximum(state - 1, 0), action[0], action[1]]
        reward = jnp.where(second, payoff, 0.0)
        return jnp.where(second, state, 1 + action[0]), Outcome(jnp.full(2, reward), second, jnp.array(False))

    def observe(self, state: jax.Array, env_params: Payoff) -> View:
        one_hot = self.global_state(state, env_params)
        return View(jnp.stack([one_hot, one_hot]), jnp.ones((2, 2), bool), jnp.ones(2, bool), {})

    def global_state(self, state: jax.Array, env_params: Payoff) -> jax.Array:
        del env_params
        return jax.nn.one_hot(state, 3)


# Game → overrides, and the highest return.
PLAYED = {
    "two-step": (("env.target=marljax.baselines.games:TwoStep",), 8.0),
    "climbing": (("env.target=marljax.baselines.games:Matrix", "env.game=climbing"), 11.0),
    "penalty": (("env.target=marljax.baselines.games:Matrix", "env.game=penalty"), 10.0),
}
# Uniformly random actions throughout, as in the paper, so that exploration never stops.
VALUES = (
    "algo.total_steps=80_000",
    "algo.num_envs=16",
    "algo.rollout_length=4",
    "algo.batch_size=64",
    "algo.buffer_size=20_000",
    "algo.learning_starts=640",
    "algo.epsilon_start=1",
    "algo.epsilon_end=1",
    "algo.learning_rate=1e-3",
    "algo.target_interval=20",
    "algo.gradient_steps=1",
    "algo.core=mlp",
    "algo.td_lambda=0",
    "algo.mixer_slope=0",
)
GRADIENTS = (
    "algo.total_steps=200_000",
    "algo.num_envs=64",
    "algo.rollout_length=4",
    "algo.num_minibatches=4",
    "algo.activation=tanh",
    "algo.learning_rate=1e-3",
    "algo.clip_actor_critic_separately=false",
    "algo.clip_values=false",
)
LEARNERS = {
    "QMIX": ("qmix", (*VALUES, "algo.mixer=qmix")),
    "VDN": ("qmix", (*VALUES, "algo.mixer=vdn")),
    "IQL": ("qmix", (*VALUES, "algo.mixer=none")),
    "IPPO": ("ippo", GRADIENTS),
    "MAPPO": ("mappo", GRADIENTS),
    "PPO, one controller": ("ppo", GRADIENTS),
}


def table(cache: ResultCache) -> str:
    """Returns of greedy play at the end of training, and how many seeds found the best joint actions."""
    rows, missing = [], []
    for learner, (algo, settings) in LEARNERS.items():
        row = [learner]
        for game, (target, best) in PLAYED.items():
            overrides = ["env=custom", *target, *settings, f"seeds={SEEDS}", "eval.every=0"]
            metrics = cache.learned(f"{algo} {learner} {game}", algo, overrides, EPISODES, which="last")
            if metrics is None:
                missing.append(f"{learner} {game}")
                row.append("")
            else:
                returns = np.asarray(metrics["return"]["mean"])
                row.append(f"{returns.mean():.1f} ({np.sum(returns > best - 0.01)} of {len(returns)})")
        rows.append(row)
    return with_missing(missing, markdown_table(["", *(f"{game}, best {best:g}" for game, (_, best) in PLAYED.items())], rows))


PAGE = Page(
    name="games",
    title="Small games: results",
    intro=f"""Mean return of greedy play after training over {SEEDS} seeds (0–{SEEDS - 1}), and how many of them found the best
joint actions. In the two-step game (Rashid et al. 2018) a sum of values settles for 7, a monotonic mixture finds 8. In
climbing and penalty (Claus and Boutilier 1998) the best actions are costly when only one agent takes them: no monotonic
mixture represents such payoffs, and while the other agent acts at random the safe actions look best. QMIX, VDN and IQL
train 80,000 steps and explore with uniformly random actions throughout, as in the paper of the two-step game; MAPPO, IPPO
and one controller of both agents, whose choices are independent draws, train 200,000 steps and sample from their
policies.""",
    sections=(Section("", "", {"games": table}),),
)


if __name__ == "__main__":
    PAGE.main()

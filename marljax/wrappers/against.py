"""One team's side of a game of two teams, the other team controlled by a policy.

Axis letters: A agents of both teams, M agents of the team that plays, G global state.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.core.environment import Display, Environment
from marljax.core.fields import option
from marljax.core.opponent import Opponent
from marljax.core.spaces import Space
from marljax.core.types import EnvParams, Outcome, State, TimeStep, View, is_shared, timestep
from marljax.errors import UserError, short_repr
from marljax.wrappers.base import Wrapper


class AgainstParams(struct.PyTreeNode):
    """Params of ``Against``."""

    env: EnvParams  # of the wrapped environment
    opponent: Any = ()  # weights of the opponent


class AgainstState(struct.PyTreeNode):
    """The state of the wrapped environment and of the opponent."""

    env: State
    first: jax.Array  # [] bool: of the first timestep of an episode, where memories are reset
    memory: Any  # of the opponent
    earned: jax.Array  # [2] rewards in this episode, sums over the agents of the team that plays and of the other


@dataclasses.dataclass(frozen=True)
class Against(Wrapper):
    """The agents of one team of ``env``; ``opponent`` controls the other. Created by ``against``.

    Observations, masks and rewards are those of the team's agents in ``env``. A policy that was trained for all agents of
    ``env``, by self-play, controls the other team by what it would do for all; one that was trained for as many agents as that
    team has sees only these. Metrics ``won`` and ``lost`` are those of ``env`` if it has both and the first team plays; else the
    team earned more than the other, or less.
    """

    opponent: Opponent = dataclasses.field(kw_only=True)
    team: int = option(0, low=0, high=1, help="that plays")

    items = None
    afterstates = False
    one_team = property(lambda self: self)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_two_teams(self.env)
        if not isinstance(self.opponent, Opponent):
            raise UserError(
                f"opponent={short_repr(self.opponent)}; give an Opponent, such as Opponent.of(algorithm, env, config)"
            )
        needed, led = (self.env.num_agents, len(self._sides[1])), self.opponent.env.num_agents
        if led not in needed:
            raise UserError(f"opponent controls {led} agents; give one for {' or '.join(map(str, sorted({*needed})))}")

    @property
    def _sides(self) -> tuple[np.ndarray, np.ndarray]:
        """Indices [M] of the team that plays, and of the other."""
        own, others = sides(self.env)[:: -1 if self.team else 1]
        return own, others

    @property
    def num_agents(self) -> int:
        return len(self._sides[0])

    @property
    def teams(self) -> tuple[int, ...]:
        return (0,) * self.num_agents

    @property
    def action_space(self) -> Space:
        return self.env.action_space

    @property
    def display(self) -> Display:
        inner = super().display
        metrics = ("won", "return", "lost", *(name for name in inner.metrics if name not in ("won", "lost", "return")))
        meanings = {
            **inner.meanings,
            "won": "share of episodes in which the team earned more",
            "lost": "… in which it earned less",
        }
        return dataclasses.replace(
            inner,
            metrics=metrics,
            meanings=meanings,
            lowest=tuple(dict.fromkeys([*inner.lowest, "lost"])),
            units={**inner.units, "won": "%", "lost": "%"},
        )

    def check_params(self, env_params: AgainstParams) -> None:
        super().check_params(env_params)
        if not jax.tree.leaves(env_params.opponent):
            raise UserError("env_params.opponent holds no weights; set them with opponent_params(env, env_params, weights)")

    def wrap_params(self, env_params: EnvParams) -> AgainstParams:
        return AgainstParams(env_params)

    def inner_params(self, env_params: AgainstParams) -> EnvParams:
        return env_params.env

    def anneal(self, env_params: AgainstParams, progress: jax.Array) -> AgainstParams:
        return env_params.replace(env=self.env.anneal(env_params.env, progress))

    def initial(self, key: jax.Array, env_params: AgainstParams) -> AgainstState:
        return self._first_state(self.env.initial(key, env_params.env))

    def restart(self, key: jax.Array, state: AgainstState, env_params: AgainstParams) -> AgainstState:
        return self._first_state(self.env.restart(key, state.env, env_params.env))

    def reset_episode_counters(self, state: AgainstState, env_params: AgainstParams) -> AgainstState:
        return self._first_state(self.env.reset_episode_counters(state.env, env_params.env))

    def _first_state(self, state: State) -> AgainstState:
        return AgainstState(state, jnp.array(True), self.opponent.initial_carry(), jnp.zeros(2))

    def transition(
        self, key: jax.Array, state: AgainstState, action: jax.Array, env_params: AgainstParams
    ) -> tuple[AgainstState, Outcome]:
        key_env, key_opponent = jax.random.split(key)
        own, others = self._sides
        outcome = Outcome(jnp.zeros(self.env.num_agents), jnp.array(False), jnp.array(False))
        seen = timestep(self.env.observe(state.env, env_params.env), outcome, state.first)
        replies, memory = lead(self.opponent, env_params.opponent, others, seen, state.memory, key_opponent)
        joint = joint_action((own, others), action, replies)
        after, outcome = self.env.transition(key_env, state.env, joint, env_params.env)
        earned = state.earned + jnp.stack([jnp.sum(outcome.reward[agents]) for agents in (own, others)])
        return AgainstState(after, jnp.array(False), memory, earned), outcome._replace(reward=outcome.reward[own])

    def observe(self, state: AgainstState, env_params: AgainstParams) -> View:
        view = self.env.observe(state.env, env_params.env)
        own, other = state.earned / np.array([len(agents) for agents in self._sides])
        metrics = view.metrics
        if self.team or not {"won", "lost"} <= {*metrics}:  # those of an environment are the first team's
            metrics = metrics | {"won": (own > other).astype(float), "lost": (own < other).astype(float)}
        return of_agents(view, self._sides[0])._replace(metrics=metrics)


def sides(env: Environment) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the agents of the first team of two, and of the second."""
    teams = np.array(env.teams)
    first, second = (np.flatnonzero(teams == team) for team in sorted({*env.teams}))
    return first, second


def joint_action(agents: tuple[np.ndarray, np.ndarray], own: jax.Array, others: jax.Array) -> jax.Array:
    """[A, …] the actions of all agents from those of two teams with these indices."""
    return jnp.concatenate([own, others.astype(own.dtype)])[np.argsort(np.concatenate(agents))]


def lead(policy: Opponent, weights: Any, agents: np.ndarray, seen: TimeStep, carry: Any, key: jax.Array) -> tuple[jax.Array, Any]:
    """The actions of a team's ``agents`` [M], under a policy of all agents or of theirs alone, and its memory."""
    every = policy.env.num_agents == seen.alive.shape[0]
    action, carry = policy.act(weights, seen if every else of_agents(seen, agents), carry, key)
    return action[agents] if every else action, carry


def of_agents(seen: Any, agents: np.ndarray) -> Any:
    """A view or timestep [A, …] of some agents alone."""
    obs = jax.tree_util.tree_map_with_path(lambda path, leaf: leaf if is_shared(path) else leaf[agents], seen.obs)
    changes = {"obs": obs, "action_mask": seen.action_mask[agents], "alive": seen.alive[agents]}
    if isinstance(seen, TimeStep):
        return seen.replace(**changes, reward=seen.reward[agents])
    return seen._replace(**changes)


def check_two_teams(env: Environment) -> None:
    """Raises ``UserError`` unless two teams compete."""
    count = len({*env.teams})
    if count != 2:
        name, found = type(env).__name__, "one team" if count == 1 else f"{count} teams"
        raise UserError(f"{name} has {found}; give an environment of two, such as smax with mode=self_play")


def opponent_params(env: Environment, env_params: EnvParams, weights: Any) -> EnvParams:
    """Params of ``env``, made by ``against``, from those of the game, or its own, and the opponent's weights."""
    if isinstance(env, Against) and not isinstance(env_params, AgainstParams):
        env_params = env.wrap_params(env_params)
    return env_params.replace(opponent=weights)


def against(env: Environment, opponent: Opponent) -> Environment:
    """The first team's side of ``env``; ``opponent`` controls the other team, and its weights are ``env_params.opponent``.

    Environments that know better, such as ``smax``, where a board is mirrored for the other side, say so by
    ``Environment.against``.

    Raises:
        UserError: for an environment without two teams, and an opponent for other teams.
    """
    if not isinstance(env, Environment):
        raise UserError(f"against got {short_repr(env)}; give an environment of two teams")
    return env.against(opponent) or Against(env, opponent=opponent)

"""``smax``: micromanagement battles in the manner of StarCraft II, JaxMARL's SMAX (Rutherford et al. 2023)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.core.environment import Display, Environment
from marljax.core.scene import Scene
from marljax.core.spaces import Box, Discrete, Part, Space
from marljax.core.types import Outcome, View
from marljax.envs.smax import actions, script, spawn, view
from marljax.envs.smax import opponent as smax_opponent
from marljax.envs.smax import scene as smax_scene
from marljax.envs.smax import units as smax_units
from marljax.envs.smax.actions import DOWN, FIRST_ATTACK, LEFT, RIGHT, STOP, UP
from marljax.envs.smax.battle import Kinds, Order, Stats, Units, fight, push_apart, stats_of
from marljax.envs.smax.opponent import Opponent
from marljax.envs.smax.units import (
    HYDRALISK,
    MARAUDER,
    MARINE,
    STALKER,
    ZEALOT,
    ZERGLING,
    Scenario,
    SmaxParams,
    register_scenario,
    scenario_names,
)
from marljax.errors import UserError, unknown
from marljax.utils.batching import batch_last, expand_trailing_dims
from marljax.utils.random import row

__all__ = [
    "DOWN",
    "FIRST_ATTACK",
    "HYDRALISK",
    "LEFT",
    "MARAUDER",
    "MARINE",
    "RIGHT",
    "STALKER",
    "STOP",
    "UP",
    "ZEALOT",
    "ZERGLING",
    "Opponent",
    "Scenario",
    "Smax",
    "SmaxParams",
    "SmaxState",
    "register_scenario",
    "scenario_names",
]


class SmaxState(struct.PyTreeNode):
    """Everything that an episode of ``smax`` consists of."""

    units: Units  # [N] each, allies first
    kind: Any  # [N] int32 unit types, None where the scenario fixes them
    step: jax.Array  # int32 decisions taken
    memory: Any  # of the scripted enemies, [num_enemies] each, or of the learned ones; None in self-play


MODES = ("scripted", "learned", "self_play")
ACTION_TYPES = ("discrete", "continuous")
OBSERVATIONS = ("unit_list", "conic")
DEAD = ("stay", "leave")


@dataclasses.dataclass(frozen=True)
class Smax(Environment):
    """Two teams of units fight until one is dead or 100 decisions have passed; the rules are those of JaxMARL 0.2.0's SMAX.

    Options:

    - ``scenario``: 3m, 8m, 25m, 5m_vs_6m, 10m_vs_11m, 27m_vs_30m, 2s3z, 3s5z, 3s5z_vs_3s6z, 3s_vs_5z, 6h_vs_8z;
      smacv2_5_units, smacv2_10_units, smacv2_20_units, which draw types and positions; ``register_scenario`` adds more.
    - ``mode``: who leads the enemies. ``scripted``: a script. ``learned``: the policy ``opponent``, whose
      weights are ``env_params.opponent``, so that a population of opponents is a vmap. ``self_play``: all units are agents.
    - ``action_type``: ``discrete`` or ``continuous``.
    - ``observation``: ``unit_list`` (every other unit) or ``conic`` (the first two in each of 32 sectors).
    - ``enemy_shoots``: whether the scripted enemies shoot or only walk.
    - ``enemy_target``: whom the script shoots at first, the ``closest`` or a ``random`` one in range.
    - ``dead``: a dead unit stays in the game as an agent that can only stop, sees zeros and shares the team's reward (``stay``),
      or is alive no more and gets nothing (``leave``), so that death is the end of what it learns from, and returns are lower;
      ``algo.death`` says what the critic then makes of it.
    - ``opponent``: an ``Opponent``, with mode ``learned`` only.

    Discrete actions: 0 up, 1 right, 2 down, 3 left, 4 stop, 5 + k shoots at opponent k; the enemies count theirs from the last
    ally on, and in self-play the smaller action set is padded with actions that are never available. Continuous actions: four
    numbers (see ``smax_actions.continuous``). An action holds for eight world steps of 1/16 s.

    The reward is the share of health that the opponents lost, averaged over them, and 1 for a win (all opponents dead, an ally
    alive); in self-play only this 1, and −1 to the losers. A draw, by mutual destruction or the limit, gives neither.

    Global state: per unit health fraction, x, y, cooldown (s) and type bits, 0 for the dead; then all team numbers, all types.
    Metrics: ``won`` and ``lost`` (1 or 0), ``allies_dead`` and ``enemies_dead`` (fractions).

    What differs from JaxMARL, on purpose:

    - An episode lasts 100 decisions at most; theirs, counted after the test of the limit, 101.
    - Enemies in surplus of a scenario with random types get a type drawn for them; theirs are always marines.
    - The conic view shows unit 0; theirs never does.
    - An unavailable action acts as the stop; theirs shoots at who comes within range during the decision.
    - The dead are alive as agents to the end, or with ``dead=leave`` get no more rewards; theirs are done and do.
    - The dead stop; theirs go on to give orders, by the script or continuous actions, which the conic view shows.
    - Continuous actions lie in [−1, 1], are cut off there, and are mapped to their [0, 1]; against the script theirs are not
      cut off.
    - A learned enemy sees the board mirrored, as if it were the left team; theirs sees it as it is.
    - The noise of a cooldown is drawn once per unit and decision, theirs at every world step: the same unless a weapon
      of less than half a second fires twice within a decision.
    """

    scenario: str = "3m"
    mode: str = "scripted"
    action_type: str = "discrete"
    observation: str = "unit_list"
    enemy_shoots: bool = True
    enemy_target: str = "closest"
    dead: str = "stay"
    opponent: Any = None  # an Opponent, which only Python can give

    def __post_init__(self) -> None:
        scenario = smax_units.find_scenario(self.scenario)
        for option, known in (
            ("mode", MODES),
            ("action_type", ACTION_TYPES),
            ("observation", OBSERVATIONS),
            ("enemy_target", script.TARGETS),
            ("dead", DEAD),
        ):
            if getattr(self, option) not in known:
                raise unknown(f"value of {option} of smax", str(getattr(self, option)), known)
        if not isinstance(self.enemy_shoots, bool):
            raise UserError(f"enemy_shoots of smax is {self.enemy_shoots!r}; give true or false")
        for option, usual in (("enemy_shoots", True), ("enemy_target", "closest")):
            if self.mode != "scripted" and getattr(self, option) != usual:
                raise UserError(f"{option} of smax is for mode=scripted; with mode={self.mode} leave it out")
        smax_opponent.check(self.opponent, self.mode, scenario)

    @property
    def battle(self) -> Scenario:
        """Who fights whom."""
        return smax_units.find_scenario(self.scenario)

    @property
    def num_agents(self) -> int:
        return self.battle.num_units if self.mode == "self_play" else self.battle.num_allies

    @property
    def teams(self) -> tuple[int, ...]:
        return (0,) * self.battle.num_allies + (1,) * (self.num_agents - self.battle.num_allies)

    @property
    def noop(self) -> int:
        return STOP

    @property
    def _num_actions(self) -> int:
        size = self.battle
        return FIRST_ATTACK + (max(size.num_allies, size.num_enemies) if self.mode == "self_play" else size.num_enemies)

    @property
    def action_space(self) -> Space:
        if self.action_type == "continuous":
            return Box((actions.CONTINUOUS_SIZE,), -1.0, 1.0)
        return Discrete(self._num_actions)

    @property
    def observation_space(self) -> Box:
        shown = self.battle.num_units - 1 if self.observation == "unit_list" else view.SECTIONS * view.SLOTS
        return Box((shown * view.OTHER_FEATURES + view.OWN_FEATURES,))

    @property
    def obs_layout(self) -> tuple[Part, ...]:
        """Opponents keep their order where discrete actions name them; () in self-play of unequal teams, which see different
        numbers of each."""
        size, own = self.battle, Part("own", 1, view.OWN_FEATURES)
        if self.observation == "conic":
            return (Part("units", view.SECTIONS * view.SLOTS, view.OTHER_FEATURES), own)
        if self.mode == "self_play" and size.num_allies != size.num_enemies:
            return ()
        named = self.action_type == "discrete"
        allies = (Part("allies", size.num_allies - 1, view.OTHER_FEATURES),) if size.num_allies > 1 else ()
        return (*allies, Part("enemies", size.num_enemies, view.OTHER_FEATURES, ordered=named), own)

    @property
    def default_params(self) -> SmaxParams:
        return SmaxParams()

    def check_params(self, env_params: SmaxParams) -> None:
        """Raises ``UserError`` for numbers that no battle can have, and for weights that do not fit the opponent."""
        smax_units.check(env_params)
        if self._learned is not None:
            smax_opponent.check_weights(self._learned, env_params)

    @property
    def _learned(self) -> Opponent | None:
        """The enemies' policy, if they have one."""
        return self.opponent if self.mode == "learned" else None

    # --- the functions of an environment: random draws, then the parts that see batches last ----------------------------

    def initial(self, key: jax.Array, env_params: SmaxParams) -> SmaxState:
        draws = row(jax.random.uniform, key, spawn.num_draws(self.battle))
        state = batch_last(self._initial)(draws, _numbers(env_params))
        return state if self._learned is None else state.replace(memory=self._learned.initial_carry())

    def transition(
        self, key: jax.Array, state: SmaxState, action: jax.Array, env_params: SmaxParams
    ) -> tuple[SmaxState, Outcome]:
        if self._learned is None:
            draws = row(jax.random.uniform, key, sum(self._draws))
            return batch_last(self._transition)(draws, state, action, None, _numbers(env_params))
        key_draws, key_opponent = jax.random.split(key)
        draws = row(jax.random.uniform, key_draws, sum(self._draws))
        enemies, carry = smax_opponent.act(self._learned, key_opponent, state, self._types, self.battle.num_allies, env_params)
        after, outcome = batch_last(self._transition)(draws, state, action, enemies, _numbers(env_params))
        return after.replace(memory=carry), outcome

    def observe(self, state: SmaxState, env_params: SmaxParams) -> View:
        obs, mask, metrics = batch_last(self._observe)(state, _numbers(env_params))
        alive = state.units.alive[: self.num_agents] if self.dead == "leave" else jnp.ones(self.num_agents, bool)
        return View(obs=obs, action_mask=mask, alive=alive, metrics=metrics)

    def global_state(self, state: SmaxState, env_params: SmaxParams) -> jax.Array:
        return batch_last(self._global_state)(state, _numbers(env_params))

    def scene(self, state: SmaxState, env_params: SmaxParams) -> Scene:
        kind = self._kind(state.kind, state.units.x)
        stats = stats_of(jax.tree.map(jnp.asarray, _numbers(env_params)), kind)
        return smax_scene.draw(state.units, stats, kind, state.step, self.battle.num_allies, env_params)

    @property
    def display(self) -> Display:
        return Display(
            metrics=("won", "return", "lost", "allies_dead", "enemies_dead"),
            units=dict.fromkeys(("won", "lost", "allies_dead", "enemies_dead"), "%") | {"time": "decisions"},
            legend=smax_scene.LEGEND,
        )

    # --- their parts: arrays may have trailing axes ---------------------------------------------------------------------

    @property
    def _types(self) -> np.ndarray:
        return np.array(self.battle.unit_types, np.int32)

    def _kind(self, kind: Any, like: jax.Array) -> Kinds:
        """[N, …] int32; static where the scenario fixes the types."""
        return expand_trailing_dims(self._types, like) if kind is None else kind

    @property
    def _draws(self) -> tuple[int, int, int]:
        """Uniform numbers per decision: for cooldowns, the script, continuous actions."""
        scripted = {"closest": 1, "random": 2}[self.enemy_target] * self.battle.num_enemies
        return self.battle.num_units, scripted if self.mode == "scripted" else 0, 2 * int(self._continuous.sum())

    @property
    def _continuous(self) -> np.ndarray:
        """[N] bool: units that are led by continuous actions."""
        allies = self.action_type == "continuous"
        enemies = allies if self.mode == "self_play" else self._learned is not None and not self._learned.discrete
        return np.repeat([allies, enemies], [self.battle.num_allies, self.battle.num_enemies])

    def _initial(self, draws: jax.Array, env_params: SmaxParams) -> SmaxState:
        x, y, drawn = spawn.spawn(draws, self.battle, env_params)
        stats = stats_of(env_params, self._kind(drawn, x))
        x, y = push_apart(x, y, jnp.ones_like(x, bool), stats.radius)
        zero = jnp.zeros_like(x)
        units = Units(x, y, zero + stats.health, zero, zero, zero, zero.astype(jnp.int32), zero > 0)
        enemies = slice(self.battle.num_allies, None)
        memory = script.remember(x[enemies], y[enemies], env_params) if self.mode == "scripted" else None
        return SmaxState(units, drawn, zero[0].astype(jnp.int32), memory)

    def _transition(
        self, draws: jax.Array, state: SmaxState, action: jax.Array, enemies: jax.Array | None, env_params: SmaxParams
    ) -> tuple[SmaxState, Outcome]:
        units, num_allies = state.units, self.battle.num_allies
        stats = stats_of(env_params, self._kind(state.kind, units.x))
        noise, scripted, chosen = jnp.split(draws, np.cumsum(self._draws))[:-1]
        memory = None
        if self.mode == "scripted":
            enemies, memory = self._script(scripted, state, stats)
        order = self._order(chosen, units, action, enemies)
        free = self._continuous
        if not free.all():
            order = actions.available_only(order, units, stats, num_allies, expand_trailing_dims(free, units.x))
        low, high = env_params.cooldown_noise_low, env_params.cooldown_noise_high
        reload = stats.cooldown + env_params.time_step * (low + (high - low) * noise)
        after = fight(units, order, stats, reload, num_allies, env_params)
        state = SmaxState(after, state.kind, state.step + 1, memory)
        return state, self._outcome(units, state, stats, env_params)

    def _sides(self, of: Any) -> tuple[Any, Any]:
        """A record of all units as one of the allies and one of the enemies."""
        num_allies = self.battle.num_allies
        return jax.tree.map(lambda part: part[:num_allies], of), jax.tree.map(lambda part: part[num_allies:], of)

    def _script(self, draws: jax.Array, state: SmaxState, stats: Stats) -> tuple[jax.Array, script.Memory]:
        allies, enemies = self._sides(state.units)
        reversed_allies = jax.tree.map(lambda part: part[::-1], allies)
        draws = draws.reshape(-1, self.battle.num_enemies, *draws.shape[1:])
        return script.act(
            enemies, self._sides(stats)[1], reversed_allies, state.memory, draws, self.enemy_shoots, self.enemy_target
        )

    def _order(self, draws: jax.Array, units: Units, action: jax.Array, enemies: jax.Array | None) -> Order:
        """Of all units: ``action`` of the agents, ``enemies`` of a script or a policy, None where they are agents, too."""
        num_allies, free = self.battle.num_allies, self._continuous
        enemies = action[num_allies:] if enemies is None else enemies
        draws = draws.reshape(2, int(free.sum()), *draws.shape[1:])
        own, other = self._sides(units)
        reversed_allies = jax.tree.map(lambda part: part[::-1], own)
        parts = [
            actions.continuous(chosen, of_team, *sides) if continuous else actions.discrete(chosen)
            for continuous, chosen, of_team, sides in (
                (free[0], action[:num_allies], draws[:, :num_allies], (own, other)),
                (free[-1], enemies, draws[:, -len(enemies) :], (other, reversed_allies)),
            )
        ]
        return actions.combine(units, *parts)

    def _outcome(self, before: Units, state: SmaxState, stats: Stats, env_params: SmaxParams) -> Outcome:
        won, lost, over = self._result(state.units)
        bonus = env_params.win_bonus
        if self.mode == "self_play":
            reward = jnp.where(won, bonus, 0.0) - jnp.where(lost, bonus, 0.0)
            sign = np.where(np.array(self.teams) == 0, 1.0, -1.0).astype(np.float32)
            reward = jnp.asarray(expand_trailing_dims(sign, before.x)) * reward
        else:
            loss = self._sides((before.health - state.units.health) / stats.health)[1]
            reward = jnp.sum(loss, axis=0) / self.battle.num_enemies + jnp.where(won, bonus, 0.0)
            reward = jnp.broadcast_to(reward, (self.num_agents, *reward.shape))
        if self.dead == "leave":
            reward = jnp.where(before.alive[: self.num_agents], reward, 0.0)
        return Outcome(reward, over, (state.step >= env_params.duration) & ~over)

    def _result(self, units: Units) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Won by the allies, lost by them, over: bool each."""
        ally, enemy = (jnp.any(side, axis=0) for side in self._sides(units.alive))
        return ally & ~enemy, enemy & ~ally, ~(ally & enemy)

    def _observe(self, state: SmaxState, env_params: SmaxParams) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        units, num_allies = state.units, self.battle.num_allies
        kind = self._kind(state.kind, units.x)
        seen = view.board(units, stats_of(env_params, kind), kind, num_allies)
        views = [self._view(seen, 0, env_params)]
        if self.mode == "self_play":
            views.append(self._view(seen, 1, env_params))
        obs, mask = (jnp.concatenate(parts) if len(parts) > 1 else parts[0] for parts in zip(*views, strict=True))
        if self.action_type == "continuous":
            mask = jnp.ones_like(mask[:, :1])
        won, lost, _ = self._result(units)
        dead = [jnp.mean(~side, axis=0, dtype=units.x.dtype) for side in self._sides(units.alive)]
        metrics = {"won": won.astype(float), "lost": lost.astype(float), "allies_dead": dead[0], "enemies_dead": dead[1]}
        return obs, mask, metrics

    def _view(self, seen: view.Board, team: int, env_params: SmaxParams) -> tuple[jax.Array, jax.Array]:
        """Observation [M, O, …] and action mask [M, n, …] of one team."""
        num_allies, size = self.battle.num_allies, self.battle.num_units
        own = (np.arange(size) >= num_allies) == team
        seen = view.hide_actions(seen, own, env_params)
        counted = view.reverse(seen) if team else seen
        members = int(own.sum())
        mask = view.action_mask(counted, members, self._num_actions)
        if self.observation == "unit_list":
            obs = view.unit_list(counted, members, env_params)
            return (obs[::-1], mask[::-1]) if team else (obs, mask)
        first = num_allies if team else 0
        return view.conic(seen, first, first + members, env_params), mask[::-1] if team else mask

    def _global_state(self, state: SmaxState, env_params: SmaxParams) -> jax.Array:
        kind = self._kind(state.kind, state.units.x)
        return view.global_state(state.units, stats_of(env_params, kind), kind, self.battle.num_allies)


def _numbers(env_params: SmaxParams) -> SmaxParams:
    """Everything but the weights of a learned enemy."""
    return env_params.replace(opponent=())

"""``smax``: micromanagement battles in the manner of StarCraft II, after JaxMARL's SMAX (Rutherford et al. 2023).

Axis letters: N units of both teams.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from marljax.core.environment import Display, Environment
from marljax.core.fields import check_order, option
from marljax.core.opponent import Opponent
from marljax.core.scene import Scene
from marljax.core.spaces import Box, Discrete, Part, Space
from marljax.core.types import Outcome, View
from marljax.envs.smax import actions, script, view
from marljax.envs.smax import opponent as smax_opponent
from marljax.envs.smax import scene as smax_scene
from marljax.envs.smax.actions import FIRST_ATTACK, STOP
from marljax.envs.smax.battle import Kinds, Units, fight, push_apart, stats_of
from marljax.envs.smax.spawn import num_draws, spawn
from marljax.envs.smax.units import PUBLISHED, Scenario, SmaxParams, find_scenario
from marljax.errors import UserError
from marljax.utils.batching import batch_last, expand_trailing_dims
from marljax.utils.one_kernel import one_kernel
from marljax.utils.random import row

MODES = ("scripted", "learned", "self_play")


MEANINGS = {
    "won": "battles in which all enemies died, and an ally lived",
    "lost": "battles in which all allies died, and an enemy lived",
    "allies_dead": "allies that died",
    "enemies_dead": "enemies that died",
}


class SmaxState(struct.PyTreeNode):
    """The state of an episode of ``smax``."""

    units: Units  # [N] each, allies first
    kind: Any  # [N] int32 unit types, None where the scenario fixes them
    step: jax.Array  # int32 decisions taken
    memory: Any  # of the scripted enemies, [num_enemies] each, or of the learned ones; None in self-play


@dataclasses.dataclass(frozen=True)
class Smax(Environment):
    """Two teams of units fight until one is dead or 100 decisions have passed; the rules are those of JaxMARL 0.2.0's SMAX.

    Discrete actions: 0 up, 1 right, 2 down, 3 left, 4 stop, 5 + k shoots at opponent k; the enemies number theirs from the last
    ally down, and in self-play the smaller action set is padded with actions that are never available. Continuous actions: four
    numbers, see ``actions.continuous``. An action holds for eight world steps of 1/16 s.

    The reward is the share of health that the opponents lost, averaged over them, plus 1 for a win (all opponents dead, an ally
    alive); in self-play only this 1, and −1 for the losers. A draw, by mutual destruction or the limit, gives neither. With
    ``dead=leave`` death ends what a unit learns from, and returns are lower; ``algo.death`` sets how critics treat it.

    The smacv2 scenarios draw types and positions. In mode ``learned`` the weights of ``opponent`` are ``env_params.opponent``, so
    that a population of opponents is a vmap.

    Global state: per unit health fraction, x, y, cooldown (s) and type bits, 0 for the dead; then all team numbers, all types.

    Deliberate differences from JaxMARL:

    - An episode lasts 100 decisions at most; theirs lasts 101, because the limit is tested before the step is counted.
    - With random types, surplus enemies get a random type; theirs are always marines.
    - The conic view shows unit 0; theirs never does.
    - An unavailable action acts as a stop; theirs shoots at an opponent that comes within range during the decision.
    - The dead stay alive as agents, or with ``dead=leave`` get no more rewards; theirs are done and still rewarded.
    - The dead stop; theirs keep giving orders, by the script or continuous actions, which the conic view shows.
    - Continuous actions lie in [−1, 1], are clipped, and map to their [0, 1]; against the script theirs are not clipped.
    - A learned enemy observes a mirrored board, as if it were the left team; theirs observes the board as it is.
    - The noise of a cooldown is drawn once per unit and decision, theirs at every world step: the same unless a weapon
      with a cooldown below half a second fires twice within a decision.
    """

    instances_last: ClassVar[bool] = True
    scenario: str = option("3m", help=f"{', '.join(PUBLISHED)}, or your own by register_scenario")
    mode: str = option("scripted", choices=MODES, help="who controls the enemies: a script, the policy opponent, or agents")
    action_type: str = option("discrete", choices=("discrete", "continuous"))
    observation: str = option(
        "unit_list", choices=("unit_list", "conic"), help="every other unit, or the first two in each of 32 directions"
    )
    enemy_shoots: bool = option(True, help="scripted enemies shoot; false: they only walk")
    enemy_target: str = option("closest", choices=script.TARGETS, help="which opponent in range the script shoots at first")
    dead: str = option(
        "stay",
        choices=("stay", "leave"),
        help="stay: the dead can only stop, observe zeros and share the team's reward; leave: they are not alive and get nothing",
    )
    kernels: str = option("xla", choices=("xla", "pallas"), help="pallas: one kernel per decision on NVIDIA GPUs and TPUs")
    opponent: Any = dataclasses.field(default=None, metadata={"help": "an Opponent, for mode=learned; set from Python only"})

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, default in (("enemy_shoots", True), ("enemy_target", "closest")):
            if self.mode != "scripted" and getattr(self, name) != default:
                raise UserError(f"{name} is for mode=scripted; with mode={self.mode} leave it out")
        smax_opponent.check_opponent(self.opponent, self.mode, self.battle)

    def check_backend(self, backend: str) -> None:
        if self.kernels == "pallas" and backend == "cpu":
            raise UserError("env.kernels=pallas needs an NVIDIA GPU or a TPU, and JAX finds only a CPU here; omit it")

    @property
    def battle(self) -> Scenario:
        """The units of both teams."""
        return find_scenario(self.scenario)

    @property
    def num_agents(self) -> int:
        return self.battle.num_units if self.mode == "self_play" else self.battle.num_allies

    @property
    def teams(self) -> tuple[int, ...]:
        return (0,) * self.battle.num_allies + (1,) * (self.num_agents - self.battle.num_allies)

    @property
    def policy_options(self) -> tuple[str, ...]:
        return ("observation", "action_type")

    @property
    def one_team(self) -> "Smax":
        return dataclasses.replace(self, mode="scripted", opponent=None)

    def against(self, opponent: Opponent) -> "Smax":
        return dataclasses.replace(self, mode="learned", opponent=opponent, enemy_shoots=True, enemy_target="closest")

    @property
    def noop(self) -> int:
        return STOP

    @property
    def _num_actions(self) -> int:
        battle = self.battle
        return FIRST_ATTACK + (max(battle.num_allies, battle.num_enemies) if self.mode == "self_play" else battle.num_enemies)

    @property
    def action_space(self) -> Space:
        if self.action_type == "continuous":
            return Box((actions.CONTINUOUS_SIZE,), -1.0, 1.0)
        return Discrete(self._num_actions)

    @property
    def observation_space(self) -> Box:
        others = self.battle.num_units - 1 if self.observation == "unit_list" else view.SECTIONS * view.SLOTS
        return Box((others * len(view.OTHER) + len(view.OWN),))

    @property
    def obs_layout(self) -> tuple[Part, ...]:
        """Opponents are ordered where discrete actions refer to them; () in self-play of unequal teams, which observe different
        numbers of each."""
        battle, own = self.battle, Part("own", 1, len(view.OWN), columns=view.OWN)

        def others(name: str, count: int, ordered: bool = False) -> Part:
            return Part(name, count, len(view.OTHER), ordered, view.OTHER)

        if self.observation == "conic":
            return (others("units", view.SECTIONS * view.SLOTS), own)
        if self.mode == "self_play" and battle.num_allies != battle.num_enemies:
            return ()
        allies = (others("allies", battle.num_allies - 1),) if battle.num_allies > 1 else ()
        return (*allies, others("enemies", battle.num_enemies, self.action_type == "discrete"), own)

    @property
    def default_params(self) -> SmaxParams:
        return SmaxParams()

    def check_params(self, env_params: SmaxParams) -> None:
        super().check_params(_without_weights(env_params))
        noise, limit = float(env_params.spawn_noise), float(min(env_params.map_width, env_params.map_height)) / 4
        if noise > limit:
            raise UserError(f"spawn_noise={noise:g} exceeds a quarter of the map; give at most {limit:g}")
        check_order(env_params, ("cooldown_noise_low", "cooldown_noise_high"))
        if self.opponent is not None:
            smax_opponent.check_weights(self.opponent, env_params)

    @property
    def display(self) -> Display:
        return Display(
            metrics=("won", "return", "lost", "allies_dead", "enemies_dead"),
            meanings=MEANINGS,
            lowest=("lost", "allies_dead"),
            actions=(*actions.NAMES, *(f"shoot {k}" for k in range(self._num_actions - len(actions.NAMES)))),
            units=dict.fromkeys(("won", "lost", "allies_dead", "enemies_dead"), "%") | {"time": "decisions"},
            legend=smax_scene.LEGEND,
            decisions_per_second=5.0,
            between=lambda state, after, share: state.replace(units=smax_scene.between(state.units, after.units, share)),
        )

    # --- random draws happen here; the functions under ``batch_last`` get them as an argument ---------------------------

    def initial(self, key: jax.Array, env_params: SmaxParams) -> SmaxState:
        draws = row(jax.random.uniform, key, num_draws(self.battle))
        state = batch_last(self._initial)(draws, _without_weights(env_params))
        return state if self.opponent is None else state.replace(memory=self.opponent.initial_carry())

    def transition(
        self, key: jax.Array, state: SmaxState, action: jax.Array, env_params: SmaxParams
    ) -> tuple[SmaxState, Outcome]:
        enemy_action, carry = None, None
        if self.opponent is not None:
            key, key_opponent = jax.random.split(key)
            kind = jnp.asarray(self._kind(state.kind, state.units.x))
            enemy_action, carry = smax_opponent.act(self.opponent, key_opponent, state, kind, self.battle.num_allies, env_params)
        draws = row(jax.random.uniform, key, sum(self._num_draws))
        decide = batch_last(self._transition)
        if self.kernels == "pallas":
            decide = one_kernel(self._transition, decide)
        after, outcome = decide(draws, state, action, enemy_action, _without_weights(env_params))
        return after if self.opponent is None else after.replace(memory=carry), outcome

    def observe(self, state: SmaxState, env_params: SmaxParams) -> View:
        obs, mask, metrics = batch_last(self._observe)(state, _without_weights(env_params))
        alive = state.units.alive[: self.num_agents] if self.dead == "leave" else jnp.ones(self.num_agents, bool)
        return View(obs=obs, action_mask=mask, alive=alive, metrics=metrics)

    def global_state(self, state: SmaxState, env_params: SmaxParams) -> jax.Array:
        return batch_last(self._global_state)(state, _without_weights(env_params))

    def scene(self, state: SmaxState, env_params: SmaxParams) -> Scene:
        kind = self._kind(state.kind, state.units.x)
        stats = stats_of(jax.tree.map(jnp.asarray, _without_weights(env_params)), kind)
        return smax_scene.draw(state.units, stats, kind, state.step, self.battle.num_allies, env_params)

    # --- under ``batch_last``: arrays may have trailing axes ------------------------------------------------------------

    @property
    def _is_ally(self) -> np.ndarray:
        """[N] bool."""
        return np.arange(self.battle.num_units) < self.battle.num_allies

    def _kind(self, kind: Any, like: jax.Array) -> Kinds:
        """[N, …] int32 unit types: ``kind``, or static ones where the scenario fixes them."""
        return expand_trailing_dims(np.array(self.battle.unit_types, np.int32), like) if kind is None else kind

    def _sides(self, tree: Any) -> tuple[Any, Any]:
        """Records [N, …] of all units as those of the allies and those of the enemies."""
        num_allies = self.battle.num_allies
        return jax.tree.map(lambda part: part[:num_allies], tree), jax.tree.map(lambda part: part[num_allies:], tree)

    @property
    def _continuous(self) -> np.ndarray:
        """[N] bool: units with continuous actions."""
        allies = self.action_type == "continuous"
        enemies = allies if self.mode == "self_play" else self.opponent is not None and not self.opponent.discrete
        return np.where(self._is_ally, allies, enemies)

    @property
    def _num_draws(self) -> tuple[int, int, int]:
        """Uniform numbers per decision: for cooldowns, the script, continuous actions."""
        per_enemy = {"closest": 1, "random": 2}[self.enemy_target] if self.mode == "scripted" else 0
        return self.battle.num_units, per_enemy * self.battle.num_enemies, 2 * int(self._continuous.sum())

    def _initial(self, draws: jax.Array, env_params: SmaxParams) -> SmaxState:
        x, y, drawn = spawn(draws, self.battle, env_params)
        stats = stats_of(env_params, self._kind(drawn, x))
        x, y = push_apart(x, y, jnp.ones_like(x, bool), stats.radius)
        zero = jnp.zeros_like(x)
        units = Units(x, y, zero + stats.health, zero, zero, zero, zero.astype(jnp.int32), zero > 0)
        enemies = slice(self.battle.num_allies, None)
        memory = script.remember(x[enemies], y[enemies], env_params) if self.mode == "scripted" else None
        return SmaxState(units, drawn, zero[0].astype(jnp.int32), memory)

    def _transition(
        self, draws: jax.Array, state: SmaxState, action: jax.Array, enemy_action: jax.Array | None, env_params: SmaxParams
    ) -> tuple[SmaxState, Outcome]:
        """One decision; ``enemy_action`` is that of a learned opponent."""
        units, num_allies, num_enemies, memory = state.units, self.battle.num_allies, self.battle.num_enemies, None
        stats = stats_of(env_params, self._kind(state.kind, units.x))
        allies, enemies = self._sides(units)
        reversed_allies = jax.tree.map(lambda part: part[::-1], allies)
        draws_cooldown, draws_script, draws_action = jnp.split(draws, np.cumsum(self._num_draws))[:-1]
        if self.mode == "scripted":
            draws_script = draws_script.reshape(-1, num_enemies, *draws.shape[1:])
            enemy_stats = self._sides(stats)[1]
            enemy_action, memory = script.act(
                enemies, enemy_stats, reversed_allies, state.memory, draws_script, self.enemy_shoots, self.enemy_target
            )
        elif self.mode == "self_play":
            enemy_action = action[num_allies:]
        assert enemy_action is not None

        continuous = self._continuous
        draws_action = draws_action.reshape(2, int(continuous.sum()), *draws.shape[1:])
        if continuous[0]:
            ally_order = actions.continuous(action[:num_allies], draws_action[:, :num_allies], allies, enemies)
        else:
            ally_order = actions.discrete(action[:num_allies])
        if continuous[-1]:
            enemy_order = actions.continuous(enemy_action, draws_action[:, -num_enemies:], enemies, reversed_allies)
        else:
            enemy_order = actions.discrete(enemy_action)
        order = actions.combine(units, ally_order, enemy_order)
        if not continuous.all():
            order = actions.available_only(order, units, stats, num_allies, expand_trailing_dims(continuous, units.x))

        low, high = env_params.cooldown_noise_low, env_params.cooldown_noise_high
        reload = stats.cooldown + env_params.time_step * (low + (high - low) * draws_cooldown)
        after = fight(units, order, stats, reload, num_allies, env_params)
        state = SmaxState(after, state.kind, state.step + 1, memory)

        won, lost, over = self._result(after)
        bonus = env_params.win_bonus
        if self.mode == "self_play":
            reward = jnp.where(won, bonus, 0.0) - jnp.where(lost, bonus, 0.0)
            sign = np.where(self._is_ally, 1.0, -1.0).astype(np.float32)
            reward = jnp.asarray(expand_trailing_dims(sign, units.x)) * reward
        else:
            loss = self._sides((units.health - after.health) / stats.health)[1]
            reward = jnp.sum(loss, axis=0) / num_enemies + jnp.where(won, bonus, 0.0)
            reward = jnp.broadcast_to(reward, (self.num_agents, *reward.shape))
        if self.dead == "leave":
            reward = jnp.where(units.alive[: self.num_agents], reward, 0.0)
        return state, Outcome(reward, over, (state.step >= env_params.duration) & ~over)

    def _result(self, units: Units) -> tuple[jax.Array, jax.Array, jax.Array]:
        """[] bool each: the allies won, they lost, the battle is over."""
        ally, enemy = (jnp.any(side, axis=0) for side in self._sides(units.alive))
        return ally & ~enemy, enemy & ~ally, ~(ally & enemy)

    def _observe(self, state: SmaxState, env_params: SmaxParams) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        """Observations [A, O, …], action masks [A, n, …], metrics."""
        units, num_allies = state.units, self.battle.num_allies
        kind = self._kind(state.kind, units.x)
        stats = stats_of(env_params, kind)
        views = []
        for team, (first, last) in enumerate(((0, num_allies), (num_allies, self.num_agents))):
            if first == last:  # the enemies are no agents
                continue
            board = view.make_board(units, stats, kind, self._is_ally, team, env_params)
            # in the order in which the team numbers units: its own first, in reverse for the enemies
            numbered = board.rows(np.s_[::-1]) if team else board
            mask = view.action_mask(numbered, last - first, self._num_actions)
            if self.observation == "conic":
                obs = view.conic(board, first, last, env_params)
            else:
                obs = view.unit_list(numbered, last - first, env_params)
                obs = obs[::-1] if team else obs
            views.append((obs, mask[::-1] if team else mask))
        obs, mask = (jnp.concatenate(parts) if len(parts) > 1 else parts[0] for parts in zip(*views, strict=True))
        if self.action_type == "continuous":
            mask = jnp.ones_like(mask[:, :1])
        won, lost, _ = self._result(units)
        dead = [jnp.mean(~side, axis=0, dtype=units.x.dtype) for side in self._sides(units.alive)]
        metrics = {"won": won.astype(float), "lost": lost.astype(float), "allies_dead": dead[0], "enemies_dead": dead[1]}
        return obs, mask, metrics

    def _global_state(self, state: SmaxState, env_params: SmaxParams) -> jax.Array:
        kind = self._kind(state.kind, state.units.x)
        return view.global_state(state.units, stats_of(env_params, kind), kind, self._is_ally)


def _without_weights(env_params: SmaxParams) -> SmaxParams:
    return env_params.replace(opponent=())

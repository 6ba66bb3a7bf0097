"""JaxMARL's SMAX as a baseline: the speed of its random episodes, and its script against itself.

Axis letters: E environments, A agents.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxmarl.environments.smax import SMAX, HeuristicEnemySMAX, map_name_to_scenario
from jaxmarl.environments.smax.heuristic_enemy import create_heuristic_policy, get_heuristic_policy_initial_state

from marljax.envs.smax import Smax
from marljax.utils.random import flat

LAST_STEP = 99  # JaxMARL tests the limit before it counts the step: episodes of 100


def random_step(like: Smax, num_envs: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(start(key, _) -> carry, step(_, carry, key) -> (carry, outputs, environments stepped)): auto-resetting episodes with the
    options of ``like``, under uniform available actions."""
    env = HeuristicEnemySMAX(
        scenario=map_name_to_scenario(like.scenario),
        observation_type=like.observation,
        enemy_shoots=like.enemy_shoots,
        attack_mode=like.enemy_target,
    )

    def start(key: jax.Array, _: Any) -> tuple:
        return jax.vmap(env.reset)(jax.random.split(key, num_envs))

    def step(_: Any, carry: tuple, key: jax.Array) -> tuple[tuple, tuple, int]:
        obs, state = carry
        key_action, key_step = jax.random.split(key)
        masks = jax.vmap(env.get_avail_actions)(state)
        mask = jnp.stack([masks[name] for name in env.agents], axis=1)
        draws = flat(jax.random.uniform, key_action, mask.shape)
        chosen = jnp.argmax(jnp.where(mask > 0, draws, -1.0), axis=-1)
        action = {name: chosen[:, index] for index, name in enumerate(env.agents)}
        obs, state, reward, done, _ = jax.vmap(env.step)(jax.random.split(key_step, num_envs), state, action)
        return (obs, state), (reward, done, mask), num_envs

    return start, step


def script_against_script(scenario: str) -> Callable[[jax.Array, int], dict[str, jax.Array]]:
    """(key, episodes) -> ``won`` and ``lost`` by the left team, [episodes] each."""
    env = SMAX(scenario=map_name_to_scenario(scenario), max_steps=LAST_STEP)
    teams = (env.agents[: env.num_allies], env.agents[env.num_allies :])
    scripts = [jax.vmap(create_heuristic_policy(env, team)) for team in (0, 1)]

    def step(carry: tuple, key: jax.Array) -> tuple[tuple, None]:
        obs, state, memories, won, lost, over = carry
        key_step, *keys = jax.random.split(key, 3)
        actions: dict[str, jax.Array] = {}
        new_memories = []
        for names, policy, memory, own_key in zip(teams, scripts, memories, keys, strict=True):
            chosen, memory = policy(jax.random.split(own_key, len(names)), memory, jnp.stack([obs[name] for name in names]))
            actions |= {name: chosen[index] for index, name in enumerate(names)}
            new_memories.append(memory)
        obs, state, _, done, _ = env.step_env(key_step, state, actions)
        ally, enemy = (jnp.any(side) for side in (state.unit_alive[: env.num_allies], state.unit_alive[env.num_allies :]))
        ends = done["__all__"] & ~over
        won, lost = won | (ends & ally & ~enemy), lost | (ends & enemy & ~ally)
        return (obs, state, tuple(new_memories), won, lost, over | ends), None

    def episode(key: jax.Array) -> dict[str, jax.Array]:
        key_reset, key_steps = jax.random.split(key)
        obs, state = env.reset(key_reset)
        memory = jax.tree.map(jnp.asarray, get_heuristic_policy_initial_state())
        memories = tuple(jax.vmap(lambda _: memory)(jnp.arange(len(names))) for names in teams)
        no = jnp.array(False)
        (_, _, _, won, lost, _), _ = jax.lax.scan(
            step, (obs, state, memories, no, no, no), jax.random.split(key_steps, LAST_STEP + 1)
        )
        return {"won": won.astype(jnp.float32), "lost": lost.astype(jnp.float32)}

    return jax.jit(lambda key, episodes: jax.vmap(episode)(jax.random.split(key, episodes)), static_argnums=1)

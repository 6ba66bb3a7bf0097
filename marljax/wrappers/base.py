"""Base of environments that wrap another one."""

import dataclasses
from typing import Any

import jax

from marljax.core.environment import Display, Environment
from marljax.core.scene import Scene
from marljax.core.types import EnvParams, State


def _inherited(name: str) -> Any:
    return property(lambda self: getattr(self.env, name), doc=f"``{name}`` of the wrapped environment.")


@dataclasses.dataclass(frozen=True)
class Wrapper(Environment):
    """Base of wrappers: everything that does not follow from its own states and steps is that of ``env``.

    Its states have the state of ``env`` in the field ``env``. Its params are those of ``env``, unless it overrides
    ``wrap_params`` and ``inner_params``.
    """

    env: Environment

    version = _inherited("version")
    presets = _inherited("presets")
    num_agents = _inherited("num_agents")
    action_space = _inherited("action_space")
    observation_space = _inherited("observation_space")
    teams = _inherited("teams")
    one_team = _inherited("one_team")
    noop = _inherited("noop")
    items = _inherited("items")
    afterstates = _inherited("afterstates")
    obs_layout = _inherited("obs_layout")
    limit_ends = _inherited("limit_ends")

    def wrap_params(self, env_params: EnvParams) -> Any:
        """Params of the wrapper for those of the wrapped environment."""
        return env_params

    def inner_params(self, env_params: Any) -> EnvParams:
        """Params of the wrapped environment."""
        return env_params

    @property
    def display(self) -> Display:
        inner = self.env.display
        changes: dict[str, Any] = {}
        if (draw := inner.charts) is not None:
            changes["charts"] = lambda states, env_params: draw(states.env, self.inner_params(env_params))
        if (between := inner.between) is not None:
            changes["between"] = lambda state, after, share: state.replace(env=between(state.env, after.env, share))
        return dataclasses.replace(inner, **changes)

    @property
    def default_params(self) -> Any:
        return self.wrap_params(self.env.default_params)

    def preset_params(self, preset: str) -> Any:
        return self.wrap_params(self.env.preset_params(preset))

    def check_backend(self, backend: str) -> None:
        self.env.check_backend(backend)

    def check_params(self, env_params: Any) -> None:
        self.env.check_params(self.inner_params(env_params))

    def max_episode_steps(self, env_params: Any) -> Any:
        return self.env.max_episode_steps(self.inner_params(env_params))

    def anneal(self, env_params: Any, progress: jax.Array) -> Any:
        return self.env.anneal(env_params, progress)

    def global_state(self, state: State, env_params: Any) -> jax.Array:
        return self.env.global_state(state.env, self.inner_params(env_params))

    def scene(self, state: State, env_params: Any) -> Scene:
        return self.env.scene(state.env, self.inner_params(env_params))

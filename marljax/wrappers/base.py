"""Environments around another one: what they say of themselves is what that one says, unless they say otherwise."""

import dataclasses
from typing import Any

from marljax.core.environment import Display, Environment
from marljax.core.spaces import Part, Space


@dataclasses.dataclass(frozen=True)
class Wrapper(Environment):
    """Base of wrappers: hands on the static description of ``env``; states, numbers and steps are the subclass's."""

    env: Environment

    @property
    def version(self) -> str:  # type: ignore[override]
        return self.env.version

    @property
    def presets(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.env.presets

    @property
    def display(self) -> Display:
        return self.env.display

    @property
    def limit_ends(self) -> bool:
        return self.env.limit_ends

    @property
    def obs_layout(self) -> tuple[Part, ...]:
        return self.env.obs_layout

    @property
    def num_agents(self) -> int:
        return self.env.num_agents

    @property
    def action_space(self) -> Space:
        return self.env.action_space

    @property
    def observation_space(self) -> Any:
        return self.env.observation_space

    @property
    def teams(self) -> tuple[int, ...]:
        return self.env.teams

    @property
    def noop(self) -> int:
        return self.env.noop

    @property
    def items(self) -> str | None:
        return self.env.items

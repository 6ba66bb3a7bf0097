"""The command ``marljax info``: what the agents of an environment observe and do, and what is measured, read from its code."""

import inspect
from collections.abc import Sequence

import jax

from marljax.cli.exit_status import HELP_FLAGS
from marljax.cli.help import environment_sections, listed
from marljax.config import compose
from marljax.config.settings import Settings
from marljax.errors import UserError
from marljax.reporting.episodes import scripted_policies
from marljax.testing.static import user_code

USAGE = """usage: marljax info <environment> [env.<key>=value …]

Describes an environment: task, agents, actions, observations, scripted policies, options, params and metrics.
Environments: {environments}
"""
COLUMN = 18
MAX_NAMES = 64  # of columns that are all named


def info(arguments: Sequence[str]) -> int:
    """Prints a description of an environment."""
    if not arguments or {*HELP_FLAGS} & {*arguments}:
        print(USAGE.format(environments=compose.known_environments()), end="")
        return 0
    name, *overrides = arguments
    if foreign := [key for key in compose.parse(overrides) if not key.startswith("env.")]:
        raise UserError(f"info takes env.<key>=value and nothing else; leave out {', '.join(foreign)}")
    print(description(name.removeprefix("env="), overrides))
    return 0


def description(env_name: str, overrides: Sequence[str] = ()) -> str:
    """The class's own text, the spaces, scripted policies, and all options, params and metrics."""
    settings = environment_settings(env_name, overrides)
    spaces = listed("spaces", facts(settings).items(), COLUMN)
    return "\n\n".join([env_name, documentation(settings), spaces, *environment_sections(settings)])


def environment_settings(env_name: str, overrides: Sequence[str] = ()) -> Settings:
    """The settings of a run in an environment with these ``env.*`` and no tuned values."""
    # Any algorithm will do: without tuned values the environment does not depend on it.
    return compose.compose("ippo", [f"env={env_name}", "tuned=none", *overrides])


def documentation(settings: Settings) -> str:
    """The text of the environment's class."""
    return inspect.cleandoc(type(settings.base_env).__doc__ or "")


def facts(settings: Settings) -> dict[str, str]:
    """Agents, spaces, length of an episode and scripted policies, by name; without those that there are none of."""
    env, env_params = settings.base_env, settings.env_params
    with user_code(type(env), "its description"):
        state = jax.eval_shape(env.reset, jax.random.key(0), env_params)[0]
        global_state = jax.eval_shape(env.global_state, state, env_params)
    steps, teams = env.max_episode_steps(env_params), len({*env.teams})
    found = {
        "agents": f"{env.num_agents}" + (f" in {teams} teams" if teams > 1 else ""),
        "action": str(env.action_space),
        "observation": str(env.observation_space),
        "its columns": "; ".join(
            f"{part.name}: {part.count} × {part.width}" + (f" ({_listed(part.columns)})" if part.columns else "")
            for part in env.obs_layout
        ),
        "global state": f"{global_state.size} numbers",
        "episode": "" if steps is None else f"at most {steps} steps",
        "scripted policies": "; ".join(scripted_policies(settings.base_env, settings.env_params)),
    }
    return {name: text for name, text in found.items() if text}


def _listed(names: Sequence[str]) -> str:
    """All names of a short list, the first and last one of a long list."""
    return ", ".join(names) if len(names) <= MAX_NAMES else f"{names[0]} … {names[-1]}"

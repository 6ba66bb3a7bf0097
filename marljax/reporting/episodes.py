"""Episodes of a policy: played, filmed, and shown in a notebook, as a page for a browser or as an animation."""

import dataclasses
import functools
import html
import importlib
import importlib.util
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marljax import registry
from marljax.config.settings import adapt_env
from marljax.core.environment import Environment, Policy, ScriptedPolicy
from marljax.core.scene import Scene
from marljax.core.types import EnvParams
from marljax.errors import UserError, short_repr, unknown
from marljax.io.files import replacing
from marljax.testing.static import is_builtin, scene_error, scripted_policies_of, user_code
from marljax.training import load
from marljax.training.best import same_parameters
from marljax.training.evaluation import LearnedPolicy, RandomPolicy, Recording, fresh_part, misfit, record, suite_key
from marljax.training.load import TrainedPolicy
from marljax.training.progress import headline
from marljax.utils.validation import is_integer
from marljax.wrappers.base import Wrapper

if TYPE_CHECKING:
    from marljax.viz.viewer import Player

RANDOM = "random"
FORMATS = (".html", ".gif", ".mp4")
TOO_LARGE = "more would be larger than 3 MB"  # viewer.LARGEST
HEIGHT = 640  # pixels of the page in a notebook
DRAWS = "what draws an episode"  # for the messages of ``user_code``


class Film(NamedTuple):
    """Some frames of an episode."""

    scenes: Scene  # [T, …] on the host
    steps: np.ndarray  # [T] that they show; a step is repeated for the frames between it and the next
    fps: float

    def decisions(self) -> "Film":
        """Without the frames between steps."""
        steps, first = np.unique(self.steps, return_index=True)
        scenes = jax.tree.map(lambda leaf: leaf[first], self.scenes)
        return Film(scenes, steps, self.fps / np.max(np.diff(first), initial=1))


@dataclasses.dataclass(frozen=True, eq=False)
class Played:
    """Episodes of a policy; in a notebook it shows itself as a page that plays them."""

    env: Environment
    env_params: EnvParams
    episodes: list[Recording]  # with the ``states``, ``timesteps``, ``actions`` and ``metrics`` of each
    title: str  # ``mappo on merge``
    subtitle: str = ""

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """The metrics of each episode, [episodes]."""
        return {name: np.array([episode.metrics[name] for episode in self.episodes]) for name in self.episodes[0].metrics}

    def save(self, path: str | Path) -> Path:
        """Writes the episodes as a page for a browser (.html), or the first one as an animation (.gif, .mp4).

        Raises ``UserError`` for another suffix, where the environment has no scene, or the file cannot be written. Warns where
        a page is too small for all episodes.
        """
        path = Path(path)
        if path.suffix.lower() not in FORMATS:
            raise UserError(f"{path} has no known format; write an .html, a .gif or an .mp4 file")
        if path.suffix.lower() != ".html":
            return animate(self.env, self._films[0], path)
        from marljax.viz import viewer

        shown = player(self.env, self.subtitle, list(zip(self.episodes, self._films, strict=True)))
        held = viewer.write_page([shown], path, self.title)
        if held < len(self.episodes):
            warnings.warn(f"{path} holds {held} of {len(self.episodes)} episodes: {TOO_LARGE}", stacklevel=2)
        return path

    @functools.cached_property
    def _films(self) -> list[Film]:
        if error := scene_error(self.env, self.env_params):
            raise UserError(error)
        return [film(self.env, self.env_params, episode) for episode in self.episodes]

    def __repr__(self) -> str:
        display, count = self.env.display, len(self.episodes)
        means = {name: float(values.mean()) for name, values in self.metrics.items()}
        which = "an episode" if count == 1 else f"{count} episodes"
        return f"<{which} of {self.title}: {headline(means, display.metrics, display.units, 3)}; .save('episode.html') to watch>"

    def _repr_html_(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            try:
                page = self.save(Path(folder) / "episode.html").read_text(encoding="utf-8")
            except UserError as error:  # a notebook would print a traceback
                return f"<p>{html.escape(repr(self))}</p><p>no page: {html.escape(str(error))}</p>"
        style = f"width: 100%; height: {HEIGHT}px; border: none"
        return f'<iframe srcdoc="{html.escape(page)}" style="{style}" title="{html.escape(self.title)}"></iframe>'


def play(
    env: Environment | str,
    policy: Policy | ScriptedPolicy | str,
    env_params: EnvParams | None = None,
    key: jax.Array | int | None = None,
    episodes: int = 1,
) -> Played:
    """Plays whole episodes and shows them in a notebook: ``marljax.play(env, policy)``, ``marljax.play("merge", "random")``.

    Args:
        env: an environment, or the name of one.
        policy: a learned policy of ``marljax.load`` or ``results.policy``; a function ``(key, state, timestep, carry) ->
            (action [A, …], carry)`` for one environment, whose first carry is (); a ``ScriptedPolicy``, which plays in the
            environment that it names; or the name of one that ``marljax info`` lists.
        env_params: by default those that a learned policy was trained with in this environment, else ``env.default_params``.
        key: determines the episodes, or a seed for one; by default the first fresh episodes of ``marljax evaluate``.
        episodes: how many.

    Raises:
        UserError: for an argument of another type, an unknown name, or a policy that does not fit the environment.
    """
    env = registry.make(env) if isinstance(env, str) else env
    if not isinstance(env, Environment):
        raise UserError(f"{short_repr(env)} is not an environment; create one, such as marljax.make('merge')")
    if not is_integer(episodes) or episodes < 1:
        raise UserError(f"episodes={short_repr(episodes)} is not a number of episodes; give an integer from 1")
    whose, chosen = _resolve(env, policy, env_params)
    recordings = record(chosen.env, chosen.env_params, chosen.policy, chosen.carry, _as_key(key), episodes=episodes)
    which = "fresh episodes" if key is None else f"episodes of {short_repr(key)}" if is_integer(key) else "episodes"
    about = f"seed {policy.seed}, update {policy.update:,}, " if isinstance(policy, TrainedPolicy) else ""
    return Played(chosen.env, chosen.env_params, recordings, f"{whose} on {_label(chosen.env)}", about + which)


def show(run: str | Path, episodes: int = 1, **choice: Any) -> Played:
    """Episodes of a run's trained policy: ``marljax.show("runs/mappo_merge/…")`` in a notebook; elsewhere ``.save`` them.

    Args:
        run: what ``marljax.load`` takes: a run folder, a policy file, or the name of a policy that comes with marljax.
        episodes: how many, the first fresh ones of ``marljax evaluate``.
        choice: ``seed``, ``which``, ``trial`` and ``trust`` of ``marljax.load``, with its errors and warnings.
    """
    policy = load.load(run, **choice)
    return play(policy.env, policy, policy.env_params, episodes=episodes)


def _resolve(env: Environment, policy: Any, env_params: EnvParams | None) -> tuple[str, ScriptedPolicy]:
    """A policy's name, and the policy with the environment and params that it plays in."""
    if isinstance(policy, str):
        known = scripted_policies(env, env.resolve_params(env_params))
        if policy not in known:
            raise unknown(f"policy of {_label(env)}", policy, known)
        return policy, known[policy]
    if isinstance(policy, ScriptedPolicy):
        own = policy if env_params is None else policy._replace(env_params=policy.env.resolve_params(env_params))
        return _name(policy.policy), own
    if isinstance(policy, LearnedPolicy):
        return policy.algorithm.__name__.rpartition(".")[2], _fitted(policy, adapt_env(policy.algorithm, env), env_params)
    if not callable(policy):
        advice = "give one of marljax.load or results.policy, a function, or the name of a scripted one, such as 'random'"
        raise UserError(f"{short_repr(policy)} is not a policy; {advice}")
    return _name(policy), ScriptedPolicy(env, env.resolve_params(env_params), policy)


def _fitted(policy: LearnedPolicy, env: Environment, env_params: EnvParams | None) -> ScriptedPolicy:
    """A learned policy in an environment; its own params are used where structure and default params are those of its own."""
    same = env == policy.env and same_parameters(env.default_params, policy.env.default_params)
    env_params = env.resolve_params(policy.env_params if same and env_params is None else env_params)
    if env != policy.env and (reason := misfit(policy, env, env_params)):
        raise UserError(f"the policy does not fit {_label(env)}: {reason}; play it in policy.env")
    policy = dataclasses.replace(policy, env=env)
    return ScriptedPolicy(env, env_params, policy, policy.initial_carry())


def _as_key(key: Any) -> jax.Array:
    if key is None:
        return suite_key(fresh_part(0))
    if is_integer(key):
        return jax.random.key(key)
    if not isinstance(key, jax.Array):
        raise UserError(f"key={short_repr(key)} is not a key; give jax.random.key(0), or a seed")
    return key


def _name(policy: Any) -> str:
    function = getattr(policy, "func", policy)  # of a ``Partial``
    return getattr(function, "__name__", type(function).__name__)


def _inside(env: Environment) -> Environment:
    """The environment inside wrappers of this library, as the user knows it."""
    while isinstance(env, Wrapper) and is_builtin(env):
        env = env.env
    return env


def _label(env: Environment) -> str:
    inner = type(_inside(env))
    return registry.name_of(inner) or inner.__name__


def scripted_policies(env: Environment, env_params: EnvParams) -> dict[str, ScriptedPolicy]:
    """The scripted policies of an environment by name: those of ``marljax.baselines.policies.<env>``, of
    ``Environment.scripted_policies``, and random actions if none of these are.

    Such a module has ``scripted_policies(env, env_params) -> {name: ScriptedPolicy}``.
    """
    name, found = registry.name_of(type(env)), {}
    module = f"marljax.baselines.policies.{name}"
    if name is not None and name.isidentifier() and importlib.util.find_spec(module) is not None:
        offered = getattr(importlib.import_module(module), "scripted_policies", None)
        found = dict(offered(env, env_params)) if offered else {}
    found |= scripted_policies_of(env, env_params)
    if not any(name.startswith(RANDOM) for name in found):
        found[RANDOM] = ScriptedPolicy(env, env_params, RandomPolicy(env))
    return found


def film(env: Environment, env_params: EnvParams, episode: Recording) -> Film:
    """The frames that animations and pages show of an episode; ``UserError`` where there is no scene, or its code fails."""
    from marljax.viz import animation

    with user_code(type(_inside(env)), DRAWS):
        draw = jax.jit(jax.vmap(env.scene, in_axes=(0, None)))
        times = jax.jit(lambda *inputs: draw(*inputs).time)(episode.states, env_params)  # the compiler drops the shapes
        shown, fps = animation.frames(np.asarray(times), env.display)
        states = jax.tree.map(lambda leaf: leaf[shown], episode.states)
        each = animation.frames_between(len(shown), fps, env.display)
        if each > 1:
            states = _with_states_between(states, env.display.between, each)
        steps = np.append(np.repeat(shown[:-1], each), shown[-1:])
        return Film(jax.device_get(draw(states, env_params)), steps, fps * each)


def _with_states_between(states: Any, between: Any, each: int) -> Any:
    """States [T, …] and, from each to the next, ``each`` − 1 states between them: [(T − 1) · each + 1, …]."""
    length = len(jax.tree.leaves(states)[0])

    frame = np.arange((length - 1) * each + 1)
    step, share = frame // each, frame % each / each
    before = jax.tree.map(lambda leaf: leaf[step], states)
    after = jax.tree.map(lambda leaf: leaf[np.minimum(step + 1, length - 1)], states)

    @jax.vmap
    def at(before: Any, after: Any, share: jax.Array) -> Any:
        moved = between(before, after, share)
        return jax.tree.map(lambda own, moved: jnp.where(share > 0, moved, own), before, moved)

    return jax.jit(at)(before, after, share)


def animate(env: Environment, shown: Film, path: Path) -> Path:
    """An episode as GIF or MP4; ``UserError`` where it cannot be written."""
    from marljax.viz import animation

    with user_code(type(_inside(env)), DRAWS):
        return animation.animate(env, shown.scenes, path, fps=shown.fps)


def player(env: Environment, name: str, episodes: Sequence[tuple[Recording, Film]]) -> "Player":
    """A policy with its episodes, for ``viewer.write_page``; the same errors as ``film``."""
    from marljax.viz import viewer

    with user_code(type(_inside(env)), DRAWS):
        return viewer.Player(name, env, [viewer.Episode.of(*shown.decisions(), episode) for episode, shown in episodes])


def draw_charts(env: Environment, env_params: EnvParams, episode: Recording, path: Path) -> None:
    """The environment's own charts of an episode, if it has any; ``UserError`` where its code fails."""
    if env.display.charts is None:
        return
    with user_code(type(_inside(env)), DRAWS):
        figure = env.display.charts(*jax.device_get((episode.states, env_params)))
        if figure is not None:
            with replacing(path) as draft:
                figure.savefig(draft)

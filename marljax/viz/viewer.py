"""Episodes as one self-contained page for a browser. Axis letters: T frames, A agents, K shapes of a kind."""

import base64
import importlib.resources
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from marljax.core.environment import Environment
from marljax.core.layout import OWN
from marljax.core.scene import Scene
from marljax.errors import UserError
from marljax.io.files import replacing
from marljax.training.evaluation import Recording
from marljax.viz.stage import needed_entries, panels, view_size

LARGEST = 3_000_000  # bytes of a page
LEVELS = 2**16 - 1  # of a quantised array, between its least and its greatest value
STRIPS = 3  # metrics drawn over time
MOST_NUMBERS = 600_000  # of observations, or of an explanation, in an episode; more are not listed
MOST_CHOICES, LISTED_CHOICES = 24, 8  # actions of which all are listed; of more, the most probable or most valuable ones
EXACT = ("action", "reward", "obs", "metrics.", "time", "status", "explained.")
KINDS = ("segments", "boxes", "circles", "labels", "polygons", "trails")


class Episode(NamedTuple):
    """The frames of an episode, on the host."""

    scenes: Scene  # [T, …]
    fps: float
    observation: np.ndarray | None  # [T, A, O]; None: not listed
    action: np.ndarray  # [T, A, …], of the last frame any
    reward: np.ndarray  # [T, A], of all steps since the frame before
    alive: np.ndarray  # [T, A]
    metrics: Mapping[str, np.ndarray]  # [T] each
    explanation: Mapping[str, np.ndarray]  # [T, A] or [T, A, k] each: network outputs

    @classmethod
    def of(cls, scenes: Scene, steps: np.ndarray, fps: float, recording: Recording) -> "Episode":
        """The frames at ``steps`` [T], of which ``scenes`` are, of a recorded episode."""
        timesteps, actions = jax.device_get(recording.timesteps), recording.actions
        obs = timesteps.obs
        flat = np.asarray(obs[OWN]) if isinstance(obs, Mapping) and OWN in obs else obs
        listed = isinstance(flat, np.ndarray) and flat.ndim == 3 and flat[steps].size <= MOST_NUMBERS
        total = np.cumsum(timesteps.reward, axis=0, dtype=np.float64)[steps]
        explanation: dict[str, np.ndarray] = {}
        for name, values in recording.explanation.items():
            explanation |= _largest(name, np.asarray(values)[steps])
        return cls(
            scenes=scenes,
            fps=fps,
            observation=flat[steps] if listed else None,
            action=actions[np.minimum(steps, len(actions) - 1)],
            reward=np.diff(total, axis=0, prepend=0.0),
            alive=np.asarray(timesteps.alive)[steps],
            metrics={name: np.asarray(values)[steps] for name, values in timesteps.metrics.items()},
            explanation={name: values for name, values in explanation.items() if values.size <= MOST_NUMBERS},
        )


class Player(NamedTuple):
    """A policy and the episodes that it played."""

    name: str
    env: Environment
    episodes: Sequence[Episode]


def write_page(players: Sequence[Player], path: str | os.PathLike, title: str) -> int:
    """Writes episodes of one policy, or of several side by side, which began alike, as a page.

    Returns the number of episodes that it holds of each: later ones are left out beyond ``LARGEST`` bytes.

    Raises:
        UserError: where a single episode is too large, or the file cannot be written.
    """
    template = importlib.resources.files("marljax.viz").joinpath("viewer.html").read_text(encoding="utf-8")
    packed = [[_pack(_arrays(episode)) for episode in player.episodes] for player in players]
    for count in range(len(players[0].episodes), 0, -1):
        kept = [player._replace(episodes=player.episodes[:count]) for player in players]
        headers = [[header for header, _ in episodes[:count]] for episodes in packed]
        text = json.dumps(_meta(kept, headers) | {"title": title}, ensure_ascii=False).replace("<", "\\u003c")
        blobs = "\n".join(blob for episodes in packed for _, blob in episodes[:count])
        page = template.replace("__META__", text).replace("__BLOB__", blobs).encode()
        if len(page) <= LARGEST:
            break
    else:
        raise UserError(f"an episode takes {len(page) / 1e6:.1f} MB of a page's {LARGEST / 1e6:.0f}; write a .gif instead")
    with replacing(path, (".html",)) as draft:
        Path(draft).write_bytes(page)
    return count


def _meta(players: Sequence[Player], headers: Sequence[Any]) -> dict[str, Any]:
    """What the page needs to know of the environment, the policies and the episodes."""
    display, first = players[0].env.display, players[0].episodes[0]
    every = [episode for player in players for episode in player.episodes]
    names = [name for name in (*display.metrics, "return", *sorted(first.metrics)) if name in first.metrics]
    status: dict[str, Any] = getattr(first.scenes.status, "_asdict", dict)()
    needed = [needed_entries(display.legend, episode.scenes) for episode in every]
    return {
        "rows": panels(*view_size(first.scenes)),
        "units": dict(display.units),
        "whole": bool(np.all(first.scenes.time == np.round(first.scenes.time))),
        "status": [(name.replace("_", " "), np.asarray(value).dtype == bool) for name, value in status.items()],
        "legend": [entry for entry in display.legend if any(entry in entries for entries in needed)],
        "metrics": [(name, display.meanings.get(name, "")) for name in dict.fromkeys(names)][:STRIPS],
        "players": [_player_meta(player) | {"arrays": arrays} for player, arrays in zip(players, headers, strict=True)],
    }


def _player_meta(player: Player) -> dict[str, Any]:
    """What the page needs to know of one policy."""
    env, episodes = player.env, player.episodes
    observed = next((episode.observation for episode in episodes if episode.observation is not None), None)
    explained = dict.fromkeys(name for episode in episodes for name in episode.explanation if not name.endswith(".which"))
    return {
        "name": player.name,
        "agents": env.num_agents,
        "actions": list(env.display.actions),
        "columns": [] if observed is None else column_names(env, observed.shape[-1]),
        "explained": list(explained),
        "episodes": [{"frames": len(episode.scenes.time), "fps": episode.fps} for episode in episodes],
    }


def column_names(env: Environment, width: int) -> list[str]:
    """A name for each column of a flat observation, from the environment's layout: ``own vx``, ``neighbours 2 x``.

    Of an observation in parts only ``own`` is listed.
    """
    layout = [part for part in env.obs_layout if part.name == OWN or not isinstance(env.observation_space, Mapping)]
    names = []
    for part in layout:
        columns = part.columns or range(part.width)
        entities = [part.name] if part.count == 1 else [f"{part.name} {number}" for number in range(part.count)]
        names += [f"{entity} {column}" for entity in entities for column in columns]
    return names if len(names) == width else [str(column) for column in range(width)]


def _arrays(episode: Episode) -> dict[str, np.ndarray]:
    """All arrays of an episode by the name that the page reads, [T, …] each."""
    scenes, count = episode.scenes, len(episode.scenes.time)
    arrays = {name: np.asarray(getattr(scenes, name)) for name in ("bounds", "time")}
    if scenes.space:
        shapes = {"space": scenes.space} | {kind: getattr(scenes.space, kind) for kind in scenes.space._fields[2:]}
    else:
        shapes = {kind: getattr(scenes, kind) for kind in KINDS}
        arrays["agents"] = np.asarray(scenes.agents)
    for kind, record in shapes.items():
        fields: dict[str, Any] = getattr(record, "_asdict", dict)()
        colour = np.asarray(fields.get("colour", ()))
        for field, values in fields.items():
            if hasattr(values, "shape"):
                arrays[f"{kind}.{field}"] = values if field == "colour" else _without_absent(np.asarray(values), colour)
    if scenes.status:
        arrays["status"] = np.stack([np.asarray(value, float) for value in scenes.status], axis=1)
    if episode.observation is not None:
        arrays["obs"] = episode.observation
    arrays |= {"action": episode.action.reshape(count, -1), "reward": episode.reward, "alive": episode.alive}
    arrays |= {f"metrics.{name}": values for name, values in episode.metrics.items()}
    arrays |= {f"explained.{name}": values for name, values in episode.explanation.items()}
    return {name: array for name, array in arrays.items() if array.size}


def _largest(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """``values`` [T, A] or [T, A, k] by name; of many only the largest, with their indices as ``<name>.which``."""
    if values.ndim == 2 or values.shape[2] <= MOST_CHOICES:
        return {name: values}
    which = np.argsort(np.nan_to_num(-values, nan=np.inf), axis=2, kind="stable")[..., :LISTED_CHOICES]
    return {name: np.take_along_axis(values, which, axis=2), f"{name}.which": which}


def _without_absent(values: np.ndarray, colour: np.ndarray) -> np.ndarray:
    """``values`` [T, K, …] with those of transparent shapes replaced by the least present one: they cost no precision."""
    absent = colour[..., 3] <= 0 if colour.size and values.shape[:2] == colour.shape[:2] else np.zeros(values.shape[:2], bool)
    if not absent.any() or absent.all():
        return values
    return np.where(absent.reshape(*absent.shape, *[1] * (values.ndim - 2)), values[~absent].min(), values)


def _pack(arrays: Mapping[str, np.ndarray]) -> tuple[list[dict[str, Any]], str]:
    """What the page needs to know of each array, and all of them in 16-bit words, compressed.

    What is drawn is quantised, as differences from frame to frame; numbers that are read keep all their bits, the upper halves
    first.
    """
    header, parts = [], []
    for name, array in arrays.items():
        entry: dict[str, Any] = {"name": name, "shape": list(array.shape)}
        if name.startswith(EXACT):
            bits = np.asarray(array, np.float32).reshape(-1).view(np.uint32)
            words = np.concatenate([bits >> 16, bits & 0xFFFF])
        else:
            values = np.nan_to_num(np.asarray(array, np.float64), posinf=0.0, neginf=0.0)
            low, step = float(values.min()), float(np.ptp(values)) / LEVELS or 1.0
            codes = np.round((values - low) / step).astype(np.uint16)
            words = np.concatenate([codes[:1], np.diff(codes, axis=0)])
            entry |= {"low": low, "step": step}
        parts.append(words.astype("<u2").tobytes())
        header.append(entry)
    return header, base64.b64encode(zlib.compress(b"".join(parts), 9)).decode()

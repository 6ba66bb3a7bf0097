"""Episodes as one self-contained page for a browser. Axis letters: T frames, A agents, K shapes of a kind."""

import base64
import importlib.resources
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from marljax.core.environment import Environment
from marljax.core.layout import OWN
from marljax.core.scene import Scene
from marljax.core.types import TimeStep
from marljax.errors import UserError
from marljax.io.files import replacing
from marljax.viz.stage import needed_entries, panels, view_size

LARGEST = 3_000_000  # bytes of a page
LEVELS = 2**16 - 1  # of a quantised array, between its least and its greatest value
STRIPS = 3  # metrics drawn over time
MOST_NUMBERS = 600_000  # of observations in an episode; more are not listed
EXACT = ("action", "reward", "obs", "metrics.", "time", "status")


class Episode(NamedTuple):
    """The frames of an episode, on the host."""

    scenes: Scene  # [T, …]
    fps: float
    observation: np.ndarray | None  # [T, A, O]; None: not listed
    action: np.ndarray  # [T, A, …], of the last frame any
    reward: np.ndarray  # [T, A], of all steps since the frame before
    alive: np.ndarray  # [T, A]
    metrics: Mapping[str, np.ndarray]  # [T] each

    @classmethod
    def of(cls, scenes: Scene, steps: np.ndarray, fps: float, timesteps: TimeStep, actions: np.ndarray) -> "Episode":
        """The frames at ``steps`` [T], of which ``scenes`` are, of a whole episode's timesteps and actions."""
        obs = timesteps.obs
        flat = np.asarray(obs[OWN]) if isinstance(obs, Mapping) and OWN in obs else obs
        listed = isinstance(flat, np.ndarray) and flat.ndim == 3 and flat[steps].size <= MOST_NUMBERS
        total = np.cumsum(timesteps.reward, axis=0, dtype=np.float64)[steps]
        return cls(
            scenes=scenes,
            fps=fps,
            observation=flat[steps] if listed else None,
            action=actions[np.minimum(steps, len(actions) - 1)],
            reward=np.diff(total, axis=0, prepend=0.0),
            alive=np.asarray(timesteps.alive)[steps],
            metrics={name: np.asarray(values)[steps] for name, values in timesteps.metrics.items()},
        )


def write_page(env: Environment, episodes: Sequence[Episode], path: str | os.PathLike, title: str, subtitle: str) -> int:
    """Writes the page and returns the number of episodes that it holds: later ones are left out beyond ``LARGEST`` bytes.

    Raises:
        UserError: where a single episode is too large, or the file cannot be written.
    """
    template = importlib.resources.files("marljax.viz").joinpath("viewer.html").read_text(encoding="utf-8")
    packed = [_pack(_arrays(episode)) for episode in episodes]
    for count in range(len(episodes), 0, -1):
        headers, blobs = zip(*packed[:count], strict=True)
        meta = _meta(env, episodes[:count]) | {"title": title, "subtitle": subtitle, "arrays": headers}
        text = json.dumps(meta, ensure_ascii=False).replace("<", "\\u003c")
        page = template.replace("__META__", text).replace("__BLOB__", "\n".join(blobs)).encode()
        if len(page) <= LARGEST:
            break
    else:
        raise UserError(f"an episode takes {len(page) / 1e6:.1f} MB of a page's {LARGEST / 1e6:.0f}; write a .gif instead")
    with replacing(path, (".html",)) as draft:
        Path(draft).write_bytes(page)
    return count


def _meta(env: Environment, episodes: Sequence[Episode]) -> dict[str, Any]:
    """What the page needs to know of the environment and the episodes."""
    first, display = episodes[0], env.display
    names = [name for name in (*display.metrics, "return", *sorted(first.metrics)) if name in first.metrics]
    needed = [needed_entries(display.legend, episode.scenes) for episode in episodes]
    observed = next((episode.observation for episode in episodes if episode.observation is not None), None)
    return {
        "agents": env.num_agents,
        "rows": panels(*view_size(first.scenes)),
        "units": dict(display.units),
        "actions": list(display.actions),
        "whole": bool(np.all(first.scenes.time == np.round(first.scenes.time))),
        "status": [name.replace("_", " ") for name in getattr(first.scenes.status, "_fields", ())],
        "legend": [entry for entry in display.legend if any(entry in entries for entries in needed)],
        "metrics": [(name, display.meanings.get(name, "")) for name in dict.fromkeys(names)][:STRIPS],
        "columns": [] if observed is None else column_names(env, observed.shape[-1]),
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
    for kind in ("segments", "boxes", "circles", "labels", "polygons", "trails"):
        record = getattr(scenes, kind)
        arrays |= {f"{kind}.{field}": np.asarray(getattr(record, field)) for field in getattr(record, "_fields", ())}
    if scenes.status:
        arrays["status"] = np.stack([np.asarray(value, float) for value in scenes.status], axis=1)
    arrays["agents"] = np.asarray(scenes.agents)
    if episode.observation is not None:
        arrays["obs"] = episode.observation
    arrays |= {"action": episode.action.reshape(count, -1), "reward": episode.reward, "alive": episode.alive}
    arrays |= {f"metrics.{name}": values for name, values in episode.metrics.items()}
    return {name: array for name, array in arrays.items() if array.size}


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

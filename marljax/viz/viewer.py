"""Episodes as one self-contained page for a browser. Axis letters: T frames, A agents, K shapes of a kind."""

import base64
import dataclasses
import importlib.resources
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marljax.core.environment import Environment
from marljax.core.layout import OWN
from marljax.core.scene import Scene
from marljax.errors import UserError
from marljax.io.files import replacing
from marljax.viz.stage import needed_entries, panels

LARGEST = 3_000_000  # bytes of a page
LEVELS = 2**16 - 1  # of a quantised array, between its least and its greatest value
STRIPS = 3  # metrics drawn over time
MOST_NUMBERS = 600_000  # of observations in an episode; more are not listed
EXACT = ("action", "reward", "obs", "metrics.", "time", "status")


@dataclasses.dataclass(frozen=True)
class Episode:
    """An episode's frames, the leaves on the host."""

    scenes: Scene  # [T, …]
    observation: np.ndarray | None  # [T, A, O]; None: not listed
    action: np.ndarray  # [T, A, …], of the last frame any
    reward: np.ndarray  # [T, A]
    alive: np.ndarray  # [T, A]
    metrics: Mapping[str, np.ndarray]  # [T] each
    fps: float

    def at(self, steps: np.ndarray) -> "Episode":
        """With the frames of these steps, of which the scenes are; rewards are those of all steps since the frame before."""
        total = np.cumsum(self.reward, axis=0, dtype=np.float64)[steps]
        listed = self.observation is not None and self.observation[steps].size <= MOST_NUMBERS
        return dataclasses.replace(
            self,
            observation=self.observation[steps] if self.observation is not None and listed else None,
            action=self.action[steps],
            reward=np.diff(total, axis=0, prepend=0.0),
            alive=self.alive[steps],
            metrics={name: values[steps] for name, values in self.metrics.items()},
        )


def write_page(env: Environment, episodes: Sequence[Episode], path: str | os.PathLike, title: str, subtitle: str) -> int:
    """Writes the page and returns the number of episodes that it holds: later ones are left out beyond ``LARGEST`` bytes.

    Raises:
        UserError: where a single episode is too large, or the file cannot be written.
    """
    template = importlib.resources.files("marljax.viz").joinpath("viewer.html").read_text(encoding="utf-8")
    for count in range(len(episodes), 0, -1):
        page = _page(template, env, episodes[:count], title, subtitle)
        if len(page) <= LARGEST:
            break
    else:
        raise UserError(f"an episode takes {len(page) / 1e6:.1f} MB of a page's {LARGEST / 1e6:.0f}; write a .gif instead")
    with replacing(path, (".html",)) as draft:
        Path(draft).write_bytes(page)
    return count


def _page(template: str, env: Environment, episodes: Sequence[Episode], title: str, subtitle: str) -> bytes:
    packed = [_pack(_arrays(episode)) for episode in episodes]
    first, display = episodes[0], env.display
    x_min, x_max, y_min, y_max = (float(bound) for bound in first.scenes.bounds[0])
    names = [name for name in (*display.metrics, "return", *sorted(first.metrics)) if name in first.metrics]
    meta = {
        "title": title,
        "subtitle": subtitle,
        "agents": env.num_agents,
        "rows": panels(x_max - x_min, abs(y_max - y_min)),
        "units": dict(display.units),
        "actions": list(display.actions),
        "whole": bool(np.all(first.scenes.time == np.round(first.scenes.time))),
        "status": [name.replace("_", " ") for name in getattr(first.scenes.status, "_fields", ())],
        "legend": [(name, list(colour)) for name, colour in needed_entries(display.legend, first.scenes)],
        "metrics": [(name, display.meanings.get(name, "")) for name in dict.fromkeys(names)][:STRIPS],
        "columns": [] if first.observation is None else column_names(env, first.observation.shape[-1]),
        "episodes": [
            {"frames": len(episode.scenes.time), "fps": episode.fps, "arrays": header}
            for episode, (header, _) in zip(episodes, packed, strict=True)
        ],
    }
    blob = base64.b64encode(zlib.compress(b"".join(data for _, data in packed), 9)).decode()
    text = json.dumps(meta, ensure_ascii=False).replace("<", "\\u003c")
    return template.replace("__META__", text).replace("__BLOB__", blob).encode()


def column_names(env: Environment, width: int) -> list[str]:
    """A name for each column of a flat observation, from the environment's layout: ``own 3``, ``neighbours 2.5``."""
    names = []
    for part in env.obs_layout:
        own = part.name == OWN or part.count == 1
        names += [f"{part.name} {c}" if own else f"{part.name} {k}.{c}" for k in range(part.count) for c in range(part.width)]
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


def _pack(arrays: Mapping[str, np.ndarray]) -> tuple[list[dict[str, Any]], bytes]:
    """What the page needs to know of each array, and all of them in 16-bit words.

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
    return header, b"".join(parts)


def listed_observation(obs: Any) -> np.ndarray | None:
    """[T, A, O]: the observation where it is flat, the agents' own part where some is shared; None for any other."""
    flat = np.asarray(obs[OWN]) if isinstance(obs, Mapping) and OWN in obs else obs
    return flat if isinstance(flat, np.ndarray) and flat.ndim == 3 else None

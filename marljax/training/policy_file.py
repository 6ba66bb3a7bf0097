"""Single trained policies as files: parameters, configuration and a card, to share and to ship. Axis letter: S replicas, here 1.

Policies that come with marljax are named ``pretrained/<name>``.
"""

import json
import os
import zipfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import numpy as np

from marljax.config import convert
from marljax.config import settings as settings_of
from marljax.config import trust as trusting
from marljax.config.schema import RunSettings
from marljax.config.settings import Settings
from marljax.errors import UserError, unknown
from marljax.io.files import replacing
from marljax.training.mesh import make_mesh
from marljax.training.resume import saved_shapes
from marljax.training.trainer import Trainer
from marljax.utils.pytrees import named_leaves
from marljax.version import __version__

SUFFIX, PRETRAINED = ".npz", "pretrained"
FORMAT = 1  # increased when the layout of a file changes
CARD = "card"  # the entry of the file that is not a parameter: JSON


def is_policy_file(path: Path) -> bool:
    """Whether a path names a policy file, or a policy that comes with marljax, rather than a run folder."""
    return path.suffix == SUFFIX or (path.parts[:1] == (PRETRAINED,) and len(path.parts) <= 2 and not path.exists())


def pretrained() -> dict[str, Path]:
    """The policies that come with marljax: ``{"merge-hard-mappo": …}``."""
    folder = Path(str(resources.files("marljax") / PRETRAINED))
    return {path.stem: path for path in sorted(folder.glob(f"*{SUFFIX}"))}


def card(path: Path) -> dict[str, Any]:
    """What a policy file says of the policy."""
    with np.load(path, allow_pickle=False) as file:
        return json.loads(str(file[CARD]))["card"]


def write(
    path: str | os.PathLike, settings: Settings, params: Any, seed: int, update: int, card: Mapping[str, Any], greedy: bool = True
) -> None:
    """Writes the parameters of one replica; ``card`` holds further JSON values that describe the policy."""
    tree = {name: settings.tree[name] for name in ("algo_name", "env_name", "algo", "env")}
    tree |= {"seed": seed, "eval": {"greedy": greedy}}
    about = {"format": FORMAT, "marljax": __version__, "env_version": settings.env.version, "update": update, "config": tree}
    arrays: dict[str, Any] = {name: np.asarray(leaf) for name, leaf in named_leaves(params)}
    with replacing(path, (SUFFIX,)) as draft:
        np.savez_compressed(draft, **arrays | {CARD: np.array(json.dumps(about | {"card": dict(card)}))})


def read(path: Path, trust: bool = False, repeated: Mapping[str, Any] | None = None) -> tuple[Settings, Any, dict[str, Any]]:
    """Settings of the one replica, its parameters [1, …], and what the file says of it: ``update``, ``card``.

    Raises:
        UserError: where there is no such file or policy, it is damaged or of another version of the environment, or names modules
            of a user who has not allowed their import.
    """
    if path.suffix != SUFFIX:
        found = pretrained()
        if path.name not in found:
            raise unknown("pretrained policy", path.name, found)
        path = found[path.name]
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(str(arrays.pop(CARD)))
        version, _, update = about["env_version"], about["card"], about["update"]
        defaults, config = convert.to_builtin(RunSettings()), about["config"]
        tree = {**defaults, **config, "eval": {**defaults["eval"], **config.get("eval", {})}}
        missing = {"algo_name", "env_name", "algo", "env"} - tree.keys()
        if missing or not isinstance(update, int):
            raise ValueError(f"it lacks {', '.join(sorted(missing)) or 'its update'}")
    except FileNotFoundError as error:
        raise UserError(f"there is no policy file {path}") from error
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is not a policy that marljax has saved, or is damaged: {error}") from error
    trusting.check(path, tree, repeated or {}, trust)
    loaded = settings_of.from_tree(tree)
    if version != loaded.env.version:
        versions = f"{version} of {loaded.env_name}, and this is {loaded.env.version}"
        raise UserError(f"{path} was trained in version {versions}; install marljax {about.get('marljax')} to play it")
    trainer = Trainer(loaded.algorithm, loaded.training_env, loaded.config, make_mesh())
    shapes = saved_shapes(trainer, loaded).replicas.state.learner.params
    misfits = [name for name, leaf in named_leaves(shapes) if name not in arrays or arrays[name].shape != leaf.shape[1:]]
    if misfits or len(arrays) != len(jax.tree.leaves(shapes)):
        raise UserError(f"{path} does not fit this version of {loaded.algo}: {', '.join(misfits) or 'it has other parameters'}")
    params = jax.tree.unflatten(jax.tree.structure(shapes), [arrays[name][None] for name, _ in named_leaves(shapes)])
    return loaded, params, about

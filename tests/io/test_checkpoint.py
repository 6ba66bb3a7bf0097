"""Checkpoints restore every bit, and never damaged, foreign or unfitting ones."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.errors import UserError
from marljax.io import checkpoint
from marljax.io.checkpoint import CheckpointSpec

PURPOSE = CheckpointSpec("tiny", "corridor", "1")


def tree(offset: float = 0.0):
    return {
        "weights": {"a": jnp.arange(6.0).reshape(2, 3) + offset, "empty": jnp.zeros((2, 0))},
        "keys": jax.random.split(jax.random.key(int(offset)), 2),
        "count": (jnp.array([3, 4], jnp.int32), jnp.array([True, False])),
    }


def bits(tree):
    return [
        np.asarray(jax.random.key_data(leaf) if leaf.dtype.name.startswith("key") else leaf) for leaf in jax.tree.leaves(tree)
    ]


@pytest.fixture
def folder(tmp_path):
    for update in (10, 20):
        checkpoint.save(tmp_path, update, tree(update), PURPOSE, keep=2)
    return tmp_path


def test_every_bit_comes_back_from_the_newest(folder):
    for template in (tree(), jax.eval_shape(tree)):
        restored = checkpoint.restore(folder, template, PURPOSE)
        assert (restored.update, restored.warnings) == (20, ())
        assert jax.tree.structure(restored.tree) == jax.tree.structure(tree())
        for got, wanted in zip(bits(restored.tree), bits(tree(20.0)), strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_only_the_newest_are_kept_and_later_damaged_ones_do_not_count(folder):
    checkpoint.save(folder, 15, tree(15.0), PURPOSE, keep=1)
    assert [path.name for path in checkpoint.checkpoints(folder)] == ["00000020", "00000015"]
    checkpoint.save(folder, 20, tree(20.0), PURPOSE, keep=1)
    assert [path.name for path in checkpoint.checkpoints(folder)] == ["00000020"]
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_long_runs_keep_the_order_of_their_checkpoints(folder):
    for update in (99_999_999, 100_000_000):
        checkpoint.save(folder, update, tree(update % 7), PURPOSE, keep=2)
    assert [int(path.name) for path in checkpoint.checkpoints(folder)] == [100_000_000, 99_999_999]
    (folder / "2024").mkdir()
    (folder / "²").mkdir()
    assert checkpoint.restore(folder, tree(), PURPOSE).update == 100_000_000


def flip_a_bit(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def damage_arrays(path, change):
    """Changes the largest file, or deletes it where the new content is None."""
    others = [file for file in path.rglob("*") if file.is_file() and file.name != checkpoint.MANIFEST]
    rewrite(max(others, key=lambda file: file.stat().st_size), change)


def damage_manifest(path, change):
    rewrite(path / checkpoint.MANIFEST, change)


def rewrite(file, change):
    content = change(file.read_bytes())
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)


DAMAGES = [
    (damage_arrays, flip_a_bit),
    (damage_arrays, lambda content: content[:-3]),
    (damage_arrays, lambda content: None),
    (damage_manifest, lambda content: content[:100]),
    (damage_manifest, lambda content: None),
    (damage_manifest, lambda content: content.replace(b'"update": ', b'"update": 1')),
]


@pytest.mark.parametrize(("damage", "change"), DAMAGES)
def test_a_damaged_checkpoint_is_skipped_and_reported(folder, damage, change):
    damage(folder / "00000020", change)
    restored = checkpoint.restore(folder, tree(), PURPOSE)
    assert restored.update == 10
    assert len(restored.warnings) == 1
    assert "00000020 is damaged" in restored.warnings[0]
    assert "going on from 00000010" in restored.warnings[0]
    damage(folder / "00000010", change)
    with pytest.raises(UserError, match="no usable checkpoint"):
        checkpoint.restore(folder, tree(), PURPOSE)


def test_a_half_written_checkpoint_is_ignored(folder):
    shutil.copytree(folder / "00000020", folder / ".writing-00000030")
    assert checkpoint.restore(folder, tree(), PURPOSE).update == 20
    checkpoint.save(folder, 30, tree(30.0), PURPOSE, keep=2)
    assert checkpoint.restore(folder, tree(), PURPOSE).update == 30


@pytest.mark.parametrize(
    ("template", "purpose", "match"),
    [
        (tree(), CheckpointSpec("other", "corridor", "1"), "algo tiny, not other"),
        (tree(), CheckpointSpec("tiny", "corridor", "2"), "env version 1, not 2"),
        (tree() | {"more": jnp.zeros(1)}, PURPOSE, "more is absent there and float32.1. here"),
        ({"keys": tree()["keys"]}, PURPOSE, "there and absent here"),
    ],
)
def test_another_purpose_or_structure_is_refused(folder, template, purpose, match):
    with pytest.raises(UserError, match=match):
        checkpoint.restore(folder, template, purpose)


def test_foreign_and_empty_folders_are_refused(tmp_path):
    with pytest.raises(UserError, match="holds no checkpoint"):
        checkpoint.restore(tmp_path / "absent", tree(), PURPOSE)
    foreign = tmp_path / "00000001"
    foreign.mkdir()
    (foreign / "checkpoint").write_text("not ours")
    with pytest.raises(UserError, match=r"no manifest\.json"):
        checkpoint.restore(tmp_path, tree(), PURPOSE)


def edit_manifest(path, changes):
    """As somebody does who fits the checksum."""
    manifest = path / checkpoint.MANIFEST
    manifest.write_text(json.dumps(checkpoint.with_checksum(json.loads(manifest.read_text()) | changes)))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"structure": [1]}, "structure"),
        ({"update": None}, "update"),
        ({"files": {"a\0b": "1"}}, "missing or not readable"),
    ],
)
def test_a_foreign_manifest_is_skipped(folder, changes, match):
    edit_manifest(folder / "00000020", changes)
    restored = checkpoint.restore(folder, tree(), PURPOSE)
    assert restored.update == 10
    assert match in restored.warnings[0]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"format": checkpoint.FORMAT + 1}, "checkpoint format 2"),
        ({"structure": checkpoint.structure(tree()) | {"count.0": 3}}, r"count.0 is 3 there and int32.2. here"),
    ],
)
def test_a_newer_format_or_a_strange_structure_is_refused(folder, changes, match):
    edit_manifest(folder / "00000020", changes)
    with pytest.raises(UserError, match=match):
        checkpoint.restore(folder, tree(), PURPOSE)


def test_files_that_orbax_cannot_read_are_not_called_damaged(folder, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no names but UTF-8")

    monkeypatch.setattr(checkpoint._orbax().PyTreeCheckpointer, "restore", broken)
    with pytest.raises(UserError, match=r"orbax cannot read .*00000020.*no names but UTF-8; ") as raised:
        checkpoint.restore(folder, tree(), PURPOSE)
    assert "damaged" not in str(raised.value)

"""Bytes of arrays and of the machine."""

import jax
import jax.numpy as jnp
import pytest

from marljax.errors import UserError
from marljax.utils import memory


def test_size_is_that_of_the_arrays():
    tree = {"a": jnp.zeros((3, 4)), "half": jnp.zeros(5, jnp.bfloat16), "is": jnp.zeros(7, bool), "key": jax.random.key(0)}
    expected = 3 * 4 * 4 + 5 * 2 + 7 + jax.random.key_data(tree["key"]).nbytes
    assert memory.size(tree) == memory.size(jax.eval_shape(lambda: tree)) == expected


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other devices have a memory of their own")
def test_a_container_may_have_less_than_the_machine(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "LIMITS", (tmp_path / "absent", limit))
    machine = memory.available()
    limit.write_text("max\n")
    assert memory.available() == machine > 2**20
    limit.write_text(f"{2**20}\n")
    assert memory.available() == 2**20
    with pytest.raises(UserError, match=r"2 seeds .* 1.5 GB .* 1.0 MB .*lower this"):
        memory.check(1_500_000_000, "2 seeds", "lower this")
    memory.check(2**20, "2 seeds", "lower this")


def test_readable_units():
    assert [memory.format_bytes(count) for count in (512_000, 13_200_000, 1_500_000_000)] == ["512 kB", "13.2 MB", "1.5 GB"]

"""Programs on one device, for functions that use collectives over the data axis."""

from typing import NamedTuple

import jax
from jax.sharding import PartitionSpec

from marljax.training import mesh


def on_one_device(function, *arguments):
    """The results of a compiled ``function``."""
    everywhere = PartitionSpec()
    program = jax.shard_map(function, mesh=mesh.make_mesh(), in_specs=everywhere, out_specs=everywhere, check_vma=False)
    return jax.jit(program)(*arguments)


class StubPolicy(NamedTuple):
    """A distribution with given log-probabilities and entropies [T, E, A]: a gradient is one by these."""

    log_probs: jax.Array
    entropies: jax.Array

    def log_prob(self, sample):
        return self.log_probs

    def entropy(self, key):
        return self.entropies

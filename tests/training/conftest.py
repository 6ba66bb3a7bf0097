"""The toys of ``tests/support`` under names that a command line takes."""

import pytest

from marljax import registry


@pytest.fixture(scope="module", autouse=True)
def toys():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.ALGORITHMS, "tiny", "tiny")
        patch.setitem(registry.ENVIRONMENTS, "corridor", "toys:Corridor")
        yield

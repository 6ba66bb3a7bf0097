"""What the hyperparameters of all learners have in common."""

from marljax.config.hyperparameters import Hyperparameters, static
from marljax.errors import UserError
from marljax.utils.validation import divide


class RolloutConfig(Hyperparameters):
    """Base of the ``Config`` of every algorithm that learns from rollouts, with the sizes that the training loop needs."""

    total_steps: int = static(1_000_000, low=1, high=2**53)  # environment steps in total, rounded up to whole updates
    num_envs: int = static(64, low=1)  # E, over all devices
    rollout_length: int = static(32, low=1)  # T, environment steps per update

    @property
    def num_updates(self) -> int:
        """Updates in a whole run."""
        return -(-self.total_steps // self.steps_per_update)

    @property
    def steps_per_update(self) -> int:
        """Environment steps of one update."""
        return self.num_envs * self.rollout_length


def check_hidden(hidden: tuple[int, ...], core: str) -> None:
    """Raises ``UserError`` for hidden layers that do not make a network with this core."""
    if not hidden:
        raise UserError("hidden=[] leaves no layer; give the widths of the hidden layers, such as [64, 64]")
    if core == "gru" and len(hidden) < 2:
        raise UserError(f"core=gru takes at least two hidden layers, one before the GRU; hidden={list(hidden)} has one")


def check_minibatches(num_envs: int, rollout_length: int, num_minibatches: int, whole_sequences: bool) -> None:
    """Raises ``UserError`` where a rollout does not divide into minibatches of samples, or of whole sequences."""
    if whole_sequences:
        divide(num_envs, num_minibatches, "sequences (num_envs)", "minibatches (num_minibatches)")
    else:
        divide(num_envs * rollout_length, num_minibatches, "samples (num_envs × rollout_length)", "minibatches (num_minibatches)")

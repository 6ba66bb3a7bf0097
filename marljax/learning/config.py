"""The hyperparameters that all algorithms share."""

from marljax.config.hyperparameters import Hyperparameters, static
from marljax.errors import UserError
from marljax.utils.validation import divide


class RolloutConfig(Hyperparameters):
    """Base of the ``Config`` of every algorithm that learns from rollouts, with the sizes that the training loop needs.

    Fields that many algorithms declare (``hidden``, ``core``, ``num_minibatches``, ``encoder``) are checked here.
    """

    total_steps: int = static(1_000_000, low=1, high=2**53, help="environment steps in total, rounded up to whole updates")
    num_envs: int = static(64, low=1, help="parallel environments, over all devices")
    rollout_length: int = static(32, low=1, help="steps of every environment per update")

    def __post_init__(self) -> None:
        super().__post_init__()
        hidden, core, num_minibatches = (getattr(self, name, None) for name in ("hidden", "core", "num_minibatches"))
        if hidden == ():
            raise UserError("hidden=[] leaves no layer; set the widths of the hidden layers, such as [64, 64]")
        if core == "gru" and hidden and len(hidden) < 2:
            raise UserError(f"core=gru takes at least two hidden layers, one before the GRU; hidden={list(hidden)} has one")
        if num_minibatches and core == "gru":  # minibatches of whole sequences
            divide(self.num_envs, num_minibatches, "sequences (num_envs)", "minibatches (num_minibatches)")
        elif num_minibatches:
            samples = "samples (num_envs × rollout_length)"
            divide(self.steps_per_update, num_minibatches, samples, "minibatches (num_minibatches)")
        if getattr(self, "encoder", "flat") == "attention":
            width, heads = (getattr(self, name) for name in ("encoder_width", "encoder_heads"))
            divide(width, heads, "units (encoder_width)", "heads (encoder_heads)")

    @property
    def num_updates(self) -> int:
        """Updates in a whole run."""
        return -(-self.total_steps // self.steps_per_update)

    @property
    def steps_per_update(self) -> int:
        """Environment steps of one update, over all environments."""
        return self.num_envs * self.rollout_length

"""Hyperparameters that all learners from rollouts share."""

from marljax.config.hyperparameters import Hyperparameters, static, traced
from marljax.errors import UserError
from marljax.nn.layers import ACTIVATIONS


class LearningConfig(Hyperparameters):
    """Hyperparameters of all that learns from rollouts. Static fields shape the program; traced ones can be swept with
    ``jax.vmap``."""

    # How much
    total_steps: int = static(1_000_000, low=1, high=2**53)  # of all environments together; rounded up to whole updates
    num_envs: int = static(64, low=1)  # E, over all devices
    rollout_length: int = static(128, low=1)  # T, steps per environment between updates
    # Networks
    hidden: tuple[int, ...] = static((128, 128), low=1)  # widths of the hidden layers of each
    activation: str = static("tanh", choices=ACTIVATIONS)  # of all hidden layers
    normalize_observations: bool = static(False)  # running mean and variance, saved with the policy
    # Optimisation
    optimizer: str = static("adam", choices=("adam", "radam"))  # radam: with the variance's warm-up (Liu et al. 2020)
    learning_rate: float = traced(5e-4, low=0.0)  # at first
    anneal_learning_rate: bool = static(True)  # linearly to 0 over total_steps
    adam_eps: float = traced(1e-5, low=0.0)  # added to the root of the second moment
    max_grad_norm: float = traced(0.5, low=0.0)  # global norm of all gradients together

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hidden:
            raise UserError("hidden=[] leaves no layer; give the widths of the hidden layers, such as [64, 64]")

    @property
    def num_updates(self) -> int:
        """Updates in a whole run."""
        return -(-self.total_steps // self.steps_per_update)

    @property
    def steps_per_update(self) -> int:
        return self.num_envs * self.rollout_length

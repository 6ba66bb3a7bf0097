"""What algorithm files are made of: rollouts, advantages, optimisers."""

from marljax.learning.advantages import gae
from marljax.learning.config import RolloutConfig
from marljax.learning.diagnostics import scan_means, value_metrics
from marljax.learning.optimizer import gradient_norm, make_actor_critic_optimizer, make_optimizer
from marljax.learning.rollout import Inputs, Learner, Step, TrainState, collect, over_time, start

__all__ = [
    "Inputs",
    "Learner",
    "RolloutConfig",
    "Step",
    "TrainState",
    "collect",
    "gae",
    "gradient_norm",
    "make_actor_critic_optimizer",
    "make_optimizer",
    "over_time",
    "scan_means",
    "start",
    "value_metrics",
]

"""What algorithm files are made of: rollouts, advantages, optimisers."""

from marljax.learning.advantages import gae
from marljax.learning.config import RolloutConfig
from marljax.learning.diagnostics import value_metrics
from marljax.learning.optimizer import make_actor_critic_optimizer, make_optimizer
from marljax.learning.rollout import Inputs, Learner, Step, TrainState, collect, start

__all__ = [
    "Inputs",
    "Learner",
    "RolloutConfig",
    "Step",
    "TrainState",
    "collect",
    "gae",
    "make_actor_critic_optimizer",
    "make_optimizer",
    "start",
    "value_metrics",
]

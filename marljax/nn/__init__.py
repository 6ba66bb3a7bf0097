"""Networks, action distributions and running statistics."""

from marljax.nn.action_values import Mixer, best_action, epsilon_greedy
from marljax.nn.distributions import MASKED, Categorical, Distribution, distribution, has_choice, num_outputs
from marljax.nn.encoder import ObservationEncoder, check_no_items
from marljax.nn.layers import ACTIVATIONS, DTYPES, Sizes, agent_ids, dense
from marljax.nn.networks import Actor, ActorCritic, CentralCritic, Critic, PerAgent, initial_carry
from marljax.nn.running_stats import RunningStats
from marljax.nn.scorers import AttentionScorer, PairScorer, TwoTowers

__all__ = [
    "ACTIVATIONS",
    "DTYPES",
    "MASKED",
    "Actor",
    "ActorCritic",
    "AttentionScorer",
    "Categorical",
    "CentralCritic",
    "Critic",
    "Distribution",
    "Mixer",
    "ObservationEncoder",
    "PairScorer",
    "PerAgent",
    "RunningStats",
    "Sizes",
    "TwoTowers",
    "agent_ids",
    "best_action",
    "check_no_items",
    "dense",
    "distribution",
    "epsilon_greedy",
    "has_choice",
    "initial_carry",
    "num_outputs",
]

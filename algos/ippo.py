"""IPPO: every agent runs PPO on its own observations (de Witt et al. 2020, "Is Independent Learning All You Need in the StarCraft
Multi-Agent Challenge?").

The loop is that of ``ppo.py``, whose arrays [T, E, A, …] now hold several agents. Actor and critic see local observations and are
shared by the agents (``share_parameters``); every agent has its own advantage, from its own rewards, until it is no longer alive.
``python algos/ippo.py env=merge`` trains it.
"""

if __name__ == "__main__":  # as a command: before the imports, so that Ctrl-C ends those without a traceback
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from marljax.cli import main

    main("ippo")


import jax

from marljax.algos import ppo
from marljax.core.environment import Environment
from marljax.core.types import EnvParams
from marljax.learning import ppo as family
from marljax.learning.rollout import TrainState


class Config(family.ManyAgents, ppo.Config):
    """PPO's hyperparameters and what the agents share."""


Params = ppo.Params
update = ppo.update
initial_carry = ppo.initial_carry
act = ppo.act


def init(env: Environment, env_params: EnvParams, config: Config, key: jax.Array) -> TrainState:
    """Fresh networks and environments; the learner's part is the same on every shard of the data axis."""
    return ppo.begin(env, env_params, config, key)

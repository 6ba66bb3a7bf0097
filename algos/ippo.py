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
from marljax.config import static
from marljax.core.environment import Environment
from marljax.core.types import EnvParams
from marljax.learning.rollout import TrainState


class Config(ppo.Config):
    """PPO's hyperparameters and what the agents share."""

    # Class variables in PPO, where there is one agent.
    share_parameters: bool = static(True)  # type: ignore[misc]  # False: every agent has networks of its own
    agent_id: bool = static(False)  # type: ignore[misc]  # append a one-hot agent id (up to 64 agents) to observations
    # continue: the dead share team rewards on (Yu et al. 2022)
    death: str = static("terminal", choices=("terminal", "continue"))  # type: ignore[misc]


Params = ppo.Params
Networks = ppo.Networks
make_networks = ppo.make_networks
update = ppo.update
initial_carry = ppo.initial_carry
act = ppo.act


def init(env: Environment, env_params: EnvParams, config: Config, key: jax.Array) -> TrainState:
    """Fresh networks, optimiser and environments; the learner is the same on every shard of the data axis."""
    return ppo.init_agents(env, env_params, config, key)

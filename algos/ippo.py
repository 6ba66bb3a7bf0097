"""IPPO: every agent runs PPO on its own observations (de Witt et al. 2020, "Is Independent Learning All You Need in the StarCraft
Multi-Agent Challenge?").

The loop is that of ``ppo.py``, whose arrays [T, E, A, …] hold several agents here. Actor and critic take local observations and
are shared by the agents (``share_parameters``); every agent has its own advantage, from its own rewards, while it is alive.
``python algos/ippo.py env=merge`` trains it.
"""

if __name__ == "__main__":  # before the imports below, so that Ctrl-C during them prints no traceback
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from marljax.cli import main

    main("ippo")


from marljax.algos import ppo
from marljax.config import static


class Config(ppo.Config):
    """PPO's hyperparameters and those of several agents."""

    # Class variables in PPO, which has one agent.
    share_parameters: bool = static(True, help="one network for all agents; false: each has its own")  # type: ignore[misc]
    agent_id: bool = static(False, help="append a one-hot agent id (up to 64 agents) to observations")  # type: ignore[misc]
    death: str = static(  # type: ignore[misc]
        "terminal", choices=("terminal", "continue"), help="continue: the dead still share team rewards (Yu et al. 2022)"
    )


Params = ppo.Params
Networks = ppo.Networks
make_networks = ppo.make_networks
init = ppo.init
update = ppo.update
initial_carry = ppo.initial_carry
act = ppo.act
explain = ppo.explain

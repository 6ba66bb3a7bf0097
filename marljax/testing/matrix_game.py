"""Matrix games: one decision on either side, with known equilibria."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from marljax.core.environment import Environment
from marljax.core.spaces import Box, Discrete
from marljax.core.types import EnvParams, Outcome, View
from marljax.errors import UserError


@dataclasses.dataclass(frozen=True)
class MatrixGame(Environment):
    """A symmetric zero-sum game of two agents that decide once, at the same time: the first earns ``payoff[own][other's]``."""

    payoff: tuple[tuple[float, ...], ...] = ((0.0,),)  # [n, n] antisymmetric

    num_agents = 2
    teams = (0, 1)
    observation_space = Box((1,), 0.0, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            matrix = np.array(self.payoff, float)
        except (TypeError, ValueError):
            matrix = np.zeros(0)
        if matrix.ndim != 2 or matrix.size == 0 or matrix.shape[0] != matrix.shape[1] or (matrix != -matrix.T).any():
            raise UserError("payoff is not an antisymmetric matrix; give what each action earns against each other one")
        object.__setattr__(self, "payoff", tuple(map(tuple, matrix.tolist())))  # hashable, whatever was given

    @property
    def action_space(self) -> Discrete:
        return Discrete(len(self.payoff))

    @property
    def default_params(self) -> EnvParams:
        return ()

    def initial(self, key: jax.Array, env_params: EnvParams) -> jax.Array:
        return jnp.zeros((), jnp.int32)  # nothing to remember

    def transition(self, key: jax.Array, state: jax.Array, action: jax.Array, env_params: EnvParams) -> tuple[jax.Array, Outcome]:
        earned = jnp.asarray(self.payoff, jnp.float32)[action[0], action[1]]
        return state, Outcome(jnp.stack([earned, -earned]), jnp.array(True), jnp.array(False))

    def observe(self, state: jax.Array, env_params: EnvParams) -> View:
        return View(jnp.ones((2, 1)), jnp.ones((2, len(self.payoff)), bool), jnp.ones(2, bool), {})

    def global_state(self, state: jax.Array, env_params: EnvParams) -> jax.Array:
        return jnp.ones(1)


def rock_paper_scissors() -> MatrixGame:
    """Whose only equilibrium plays every action a third of the time."""
    return MatrixGame(((0.0, -1.0, 1.0), (1.0, 0.0, -1.0), (-1.0, 1.0, 0.0)))


def blotto(soldiers: int = 5, fields: int = 3) -> MatrixGame:
    """Colonel Blotto (Borel 1921): soldiers are divided over battlefields, each taken by the larger number; more fields win."""
    if soldiers < 1 or fields < 1:
        raise UserError(f"blotto({soldiers}, {fields}): give at least one soldier and one field")
    divisions = [each for each in itertools.product(range(soldiers + 1), repeat=fields) if sum(each) == soldiers]
    taken = np.sign(np.array(divisions)[:, None] - np.array(divisions)[None]).sum(-1)
    return MatrixGame(tuple(map(tuple, np.sign(taken).astype(float).tolist())))

"""Recurrent IPPO and MAPPO as in JaxMARL's scripts for SMAX and MPE (Rutherford et al. 2023), with the published settings and
network sizes, reimplemented on the package's API; used by ``smax.py``, ``mpe.py`` and ``untuned.py``.

Dictionaries by agent are stacked to arrays and back at every step; one GRU network for actor and critic in IPPO, two in MAPPO;
minibatches are of whole sequences.

Axis letters: T time, E environments, B = E · A actors, O observation, W world state, H hidden, n actions.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jaxmarl.environments.smax import HeuristicEnemySMAX, map_name_to_scenario
from jaxmarl.wrappers.baselines import SMAXLogWrapper

from marljax.baselines.rivals.ippo import annealed_adam, clipped_loss, gae, stacked
from marljax.nn.layers import orthogonal


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Settings:
    """JaxMARL's ``ippo_rnn_smax``; ``PUBLISHED`` for ``mappo_rnn_smax``, ``PUBLISHED_MPE`` for ``mappo_rnn_mpe``."""

    scenario: str = ""  # of SMAX
    central: bool = False  # MAPPO: the critic observes the world state and the id of the agent that it values
    total_steps: int = 10_000_000
    num_envs: int = 128
    rollout_length: int = 128
    num_epochs: int = 4
    num_minibatches: int = 4
    width: int = 128
    learning_rate: float = 4e-3
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_eps: float = 0.05
    entropy_coef: float = 0.01
    value_coef: float = 0.5
    max_grad_norm: float = 0.25

    @property
    def steps_per_update(self) -> int:
        return self.num_envs * self.rollout_length

    @property
    def num_updates(self) -> int:
        return self.total_steps // self.steps_per_update


PUBLISHED: dict[str, dict[str, Any]] = {
    "ippo": {},
    "mappo": {"central": True, "learning_rate": 2e-3, "clip_eps": 0.2, "entropy_coef": 0.0},
}
PUBLISHED_MPE: dict[str, Any] = {
    "central": True,
    "num_envs": 16,
    "learning_rate": 2e-3,
    "clip_eps": 0.2,
    "entropy_coef": 0.01,
    "max_grad_norm": 0.5,
}


class ResetGRU(nn.Module):
    """One step of a GRU whose memory is cleared first where ``first`` says so."""

    width: int

    @nn.compact
    def __call__(self, carry: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, first = inputs
        carry = jnp.where(first[:, None], jnp.zeros_like(carry), carry)
        return nn.GRUCell(self.width, recurrent_kernel_init=orthogonal(1.0))(carry, x)


class Recurrent(nn.Module):
    """A dense layer and a GRU; its memory is cleared at the start of an episode and while its unit is dead."""

    width: int
    scale: float = 2.0**0.5  # of the first layer's weights

    @nn.compact
    def __call__(self, carry: jax.Array, x: jax.Array, first: jax.Array) -> tuple[jax.Array, jax.Array]:
        """carry [B, H], x [T, B, O], first [T, B] → carry, [T, B, H]."""
        x = nn.relu(nn.Dense(self.width, kernel_init=orthogonal(self.scale))(x))
        scan = nn.scan(ResetGRU, variable_broadcast="params", split_rngs={"params": False})
        return scan(self.width)(carry, (x, first))


class Head(nn.Module):
    """Two dense layers."""

    width: int
    outputs: int
    scale: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Dense(self.width, kernel_init=orthogonal(2.0))(x))
        return nn.Dense(self.outputs, kernel_init=orthogonal(self.scale))(x)


class Inputs(NamedTuple):
    """Network inputs, [T, B, …]."""

    obs: jax.Array
    world: jax.Array  # [T, B, 0] unless central
    mask: jax.Array
    first: jax.Array  # the memory is cleared before this step


class Network(nn.Module):
    """Logits [T, B, n] and values [T, B]; actor and critic share a body unless the critic has inputs of its own."""

    width: int
    num_actions: int
    central: bool

    @nn.compact
    def __call__(self, carry: Any, inputs: Inputs) -> tuple[Any, jax.Array, jax.Array]:
        actor, hidden = Recurrent(self.width, name="body")(carry[0], inputs.obs, inputs.first)
        logits = jnp.where(inputs.mask > 0, Head(self.width, self.num_actions, 0.01, name="policy")(hidden), -1e10)
        critic = carry[1]
        if self.central:
            critic, hidden = Recurrent(self.width, name="critic_body")(carry[1], inputs.world, inputs.first)
        value = Head(self.width, 1, 1.0, name="value")(hidden)[..., 0]
        return (actor, critic), logits, value


NETWORKS = {"params": {"body": "actor", "policy": "actor", "critic_body": "critic", "value": "critic"}}  # unless shared


class Transition(NamedTuple):
    """One step of all actors, stacked to [T, B]."""

    inputs: Inputs
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array  # of the whole episode


class State(NamedTuple):
    """Everything carried between updates."""

    params: Any
    optimiser: Any
    env: Any
    obs: Any  # dictionary
    done: jax.Array  # [B] of the episode or of the unit
    carry: Any
    key: jax.Array


def smax_env(scenario: str) -> SMAXLogWrapper:
    """A battle of JaxMARL's SMAX in its log wrapper."""
    return SMAXLogWrapper(HeuristicEnemySMAX(scenario=map_name_to_scenario(scenario)))


class Trainer:
    """``init(key)`` and ``update(state)``; both may be vmapped over seeds.

    ``env``: JaxMARL's API in a log wrapper, by default ``SMAXLogWrapper`` around SMAX's battle ``settings.scenario``. It has
    ``get_avail_actions`` and ``world_state``, unless a subclass overrides ``mask`` and ``world``.
    """

    def __init__(self, settings: Settings, env: Any = None) -> None:
        self.settings = settings
        self.env = smax_env(settings.scenario) if env is None else env
        self.agents = self.env.agents
        self.num_actors = settings.num_envs * len(self.agents)
        self.network = Network(settings.width, self.env.action_spaces[self.agents[0]].n, settings.central)
        steps_per_update = settings.num_epochs * settings.num_minibatches
        step = annealed_adam(settings.learning_rate, steps_per_update, settings.num_updates, settings.max_grad_norm)
        # two networks are clipped separately
        self.optimiser = optax.multi_transform({"actor": step, "critic": step}, NETWORKS) if settings.central else step

    def apply(self, params: Any, carry: Any, inputs: Inputs) -> tuple[Any, jax.Array, jax.Array]:
        """Memory, logits and values of the network."""
        return self.network.apply(params, carry, inputs)  # type: ignore[return-value]

    def init(self, key: jax.Array) -> State:
        """New networks and environments."""
        key, key_reset, key_network = jax.random.split(key, 3)
        obs, env_state = jax.vmap(self.env.reset)(jax.random.split(key_reset, self.settings.num_envs))
        done = jnp.zeros(self.num_actors, bool)
        carry = (jnp.zeros((self.num_actors, self.settings.width)),) * 2
        inputs = jax.tree.map(lambda x: x[None], self.get_inputs(obs, env_state, done))
        params = self.network.init(key_network, carry, inputs)
        return State(params, self.optimiser.init(params), env_state, obs, done, carry, key)

    def get_inputs(self, obs: Any, env_state: Any, done: jax.Array) -> Inputs:
        """The current network inputs [B, …]; ``done`` [B] is where memories are cleared."""
        world = self.world(obs) if self.settings.central else jnp.zeros((self.num_actors, 0))
        return Inputs(stacked(self.env, obs), world, self.mask(env_state), done)

    def mask(self, env_state: Any) -> jax.Array:
        """[B, n], above 0 where an action is available."""
        return stacked(self.env, jax.vmap(self.env.get_avail_actions)(env_state.env_state))

    def world(self, obs: Any) -> jax.Array:
        """[B, W] inputs of the central critic."""
        ids = jnp.repeat(jnp.eye(len(self.agents)), self.settings.num_envs, axis=0)
        return jnp.concatenate([jnp.tile(obs["world_state"], (len(self.agents), 1)), ids], axis=-1)

    def scores(self, info: Any) -> dict[str, jax.Array]:
        """Of the log, [E] of the episodes that end."""
        return {"won": info["returned_won_episode"][:, 0], "sum_return": info["returned_episode_returns"].mean(-1)}

    def step(self, params: Any, carried: tuple, key: jax.Array) -> tuple[tuple, tuple[Transition, dict[str, jax.Array]]]:
        """One step of all environments: the carry, the transition, and ``scores`` of the episodes that end, with their
        number as ``episodes``, [E]."""
        env_state, obs, done, carry = carried
        key_action, key_step = jax.random.split(key)
        inputs = self.get_inputs(obs, env_state, done)
        carry, logits, value = self.apply(params, carry, jax.tree.map(lambda x: x[None], inputs))
        action, log_prob = distrax.Categorical(logits=logits[0]).sample_and_log_prob(seed=key_action)
        actions = dict(zip(self.agents, action.reshape(len(self.agents), -1), strict=True))
        keys = jax.random.split(key_step, self.settings.num_envs)
        obs, env_state, reward, dones, info = jax.vmap(self.env.step)(keys, env_state, actions)
        over = jnp.tile(dones["__all__"], len(self.agents))
        transition = Transition(inputs, action, log_prob, value[0], stacked(self.env, reward), over)
        ended = info["returned_episode"][:, 0]
        scores = {name: jnp.where(ended, score, 0.0) for name, score in self.scores(info).items()}
        scores["episodes"] = ended.astype(jnp.float32)
        return (env_state, obs, stacked(self.env, dones), carry), (transition, scores)

    def update(self, state: State) -> tuple[State, dict[str, jax.Array]]:
        """A rollout and its epochs; ``episodes`` is how many ended, and ``scores`` are summed over them."""
        settings = self.settings
        key, key_rollout, key_fit = jax.random.split(state.key, 3)
        carried, (rollout, scores) = jax.lax.scan(
            functools.partial(self.step, state.params),
            (state.env, state.obs, state.done, state.carry),
            jax.random.split(key_rollout, settings.rollout_length),
        )
        env_state, obs, done, carry = carried
        last = jax.tree.map(lambda x: x[None], self.get_inputs(obs, env_state, done))
        _, _, last_value = self.apply(state.params, carry, last)
        advantage = gae(settings, rollout, last_value[0], unroll=16)
        batch = (rollout, advantage, advantage + rollout.value)

        def gradient_step(learner: tuple, chosen: jax.Array) -> tuple[tuple, None]:
            params, opt_state = learner
            sequences = jax.tree.map(lambda x: x[:, chosen], batch)
            gradients = jax.grad(self.loss)(params, jax.tree.map(lambda x: x[chosen], state.carry), *sequences)
            updates, opt_state = self.optimiser.update(gradients, opt_state)
            return (optax.apply_updates(params, updates), opt_state), None

        def epoch(learner: tuple, key: jax.Array) -> tuple[tuple, None]:
            """Gradient steps on minibatches of whole sequences, each actor in one of them."""
            order = jax.random.permutation(key, self.num_actors).reshape(settings.num_minibatches, -1)
            return jax.lax.scan(gradient_step, learner, order)

        learner, _ = jax.lax.scan(epoch, (state.params, state.optimiser), jax.random.split(key_fit, settings.num_epochs))
        return State(*learner, env_state, obs, done, carry, key), jax.tree.map(jnp.sum, scores)

    def loss(self, params: Any, carry: Any, rollout: Transition, advantage: jax.Array, target: jax.Array) -> jax.Array:
        _, logits, value = self.apply(params, carry, rollout.inputs)
        config = self.settings
        return clipped_loss(logits, value, rollout, advantage, target, config.clip_eps, config.value_coef, config.entropy_coef)


class MpeTrainer(Trainer):
    """On JaxMARL's MPE: every action is available, and the central critic observes the observations of all agents, in the same
    order for every agent."""

    def mask(self, env_state: Any) -> jax.Array:
        del env_state
        return jnp.ones((self.num_actors, self.network.num_actions))

    def world(self, obs: Any) -> jax.Array:
        return jnp.tile(jnp.concatenate([obs[name] for name in self.agents], axis=-1), (len(self.agents), 1))

    def scores(self, info: Any) -> dict[str, jax.Array]:
        return {"sum_return": info["returned_episode_returns"].mean(-1)}


# --- Both trainers with the functions of ``rivals/ippo.py`` --------------------------------------------------------------


def make_trainer(env: Any, settings: Settings) -> Trainer:
    """For SMAX where the settings name a battle, else for MPE; ``env`` is JaxMARL's, inside its log wrapper."""
    return Trainer(settings, env) if settings.scenario else MpeTrainer(settings, env)


def init(env: Any, settings: Settings, key: jax.Array) -> State:
    """New networks and environments."""
    return make_trainer(env, settings).init(key)


def update(env: Any, settings: Settings, state: State) -> tuple[State, dict[str, jax.Array]]:
    """One iteration; its metrics are the number of episodes that ended and the sum of their returns, averaged over agents."""
    return make_trainer(env, settings).update(state)


def initial_carry(env: Any, settings: Settings) -> tuple[jax.Array, jax.Array]:
    """[A, H] of the actor and of the critic."""
    return (jnp.zeros((env.num_agents, settings.width)),) * 2


def act(
    env: Any, settings: Settings, params: Any, timestep: Any, carry: Any, key: jax.Array, greedy: bool
) -> tuple[jax.Array, Any]:
    """Actions [A] of the trained policy in one marljax environment."""
    agents = env.num_agents
    world = jnp.broadcast_to(timestep.obs.reshape(-1), (agents, timestep.obs.size))
    inputs = Inputs(timestep.obs, world, timestep.action_mask, jnp.broadcast_to(timestep.first, agents))
    network = Network(settings.width, env.action_space.n, settings.central)
    outputs: Any = network.apply(params, carry, jax.tree.map(lambda x: x[None], inputs))
    carry, logits, _ = outputs
    return jnp.argmax(logits[0], -1) if greedy else jax.random.categorical(key, logits[0]), carry

"""The rival in training: recurrent IPPO and MAPPO on JaxMARL's SMAX and MPE with JaxMARL's published settings and network sizes.

The loop is written anew around ``jaxmarl``'s environments and log wrappers: dictionaries of agents stacked to arrays and
back at every step, one GRU network for actor and critic in IPPO, two in MAPPO, minibatches of whole sequences.

Axis letters: T time, E environments, B = E · A actors, O observation, W world state, n actions.
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

from marljax.baselines.rivals.ippo import gae
from marljax.nn.layers import orthogonal


@jax.tree_util.register_static  # so that compiled programs take it as an argument
@dataclasses.dataclass(frozen=True)
class Settings:
    """JaxMARL's ``ippo_rnn_smax``; ``PUBLISHED`` for ``mappo_rnn_smax``, ``PUBLISHED_MPE`` for ``mappo_rnn_mpe``."""

    scenario: str = ""  # of SMAX
    central: bool = False  # MAPPO: the critic sees the world state and which agent it values
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


class Recurrent(nn.Module):
    """Dense, GRU that forgets at the start of an episode and where its unit is dead; [T, B, F] → [T, B, width]."""

    width: int
    scale: float = 2.0**0.5  # of the first layer's weights

    @nn.compact
    def __call__(self, carry: jax.Array, x: jax.Array, first: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = nn.relu(nn.Dense(self.width, kernel_init=orthogonal(self.scale))(x))
        scan = nn.scan(ResetGRU, variable_broadcast="params", split_rngs={"params": False})
        return scan(self.width)(carry, (x, first))


class ResetGRU(nn.Module):
    """One step of it."""

    width: int

    @nn.compact
    def __call__(self, carry: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, first = inputs
        carry = jnp.where(first[:, None], jnp.zeros_like(carry), carry)
        return nn.GRUCell(self.width, recurrent_kernel_init=orthogonal(1.0))(carry, x)


class Head(nn.Module):
    """Dense and a linear layer."""

    width: int
    outputs: int
    scale: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Dense(self.width, kernel_init=orthogonal(2.0))(x))
        return nn.Dense(self.outputs, kernel_init=orthogonal(self.scale))(x)


class Network(nn.Module):
    """Logits [T, B, n] and values [T, B]: of one body, or of two where the critic has inputs of its own."""

    width: int
    num_actions: int
    central: bool

    @nn.compact
    def __call__(self, carry: Any, moment: "Moment") -> tuple[Any, jax.Array, jax.Array]:
        actor, hidden = Recurrent(self.width, name="body")(carry[0], moment.obs, moment.first)
        logits = jnp.where(moment.mask > 0, Head(self.width, self.num_actions, 0.01, name="policy")(hidden), -1e10)
        critic = carry[1]
        if self.central:
            critic, hidden = Recurrent(self.width, name="critic_body")(carry[1], moment.world, moment.first)
        value = Head(self.width, 1, 1.0, name="value")(hidden)[..., 0]
        return (actor, critic), logits, value


class Moment(NamedTuple):
    """What the networks see, [T, B, …]."""

    obs: jax.Array
    world: jax.Array  # [T, B, 0] unless central
    mask: jax.Array
    first: jax.Array  # the memory is 0 before this step


class Transition(NamedTuple):
    """One step of all actors, stacked to [T, B]."""

    moment: Moment
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array  # of the whole episode


class State(NamedTuple):
    """Everything between updates."""

    params: Any
    optimiser: Any
    env: Any
    obs: Any  # dictionary
    done: jax.Array  # [B] of the episode or of the unit
    carry: Any
    key: jax.Array


def label(params: Any) -> Any:
    """Which of two networks each parameter belongs to."""
    critic = ("critic_body", "value")
    return {
        "params": {
            name: jax.tree.map(lambda _, n=name: "critic" if n in critic else "actor", part)
            for name, part in params["params"].items()
        }
    }


class Trainer:
    """``init(key)`` and ``update(state)``; both may be vmapped over seeds.

    ``env``: JaxMARL's API within a log wrapper, by default ``SMAXLogWrapper`` around SMAX's battle ``settings.scenario``; with
    ``get_avail_actions`` and ``world_state``, or read as a subclass says.
    """

    figure = "won"  # what the log is asked for, summed over episodes

    def __init__(self, settings: Settings, env: Any = None) -> None:
        self.settings = settings
        self.env = SMAXLogWrapper(HeuristicEnemySMAX(scenario=map_name_to_scenario(settings.scenario))) if env is None else env
        self.agents = self.env.agents
        self.num_actors = settings.num_envs * len(self.agents)
        self.network = Network(settings.width, self.env.action_spaces[self.agents[0]].n, settings.central)
        per_update = settings.num_epochs * settings.num_minibatches

        def rate(count: Any) -> Any:
            return settings.learning_rate * (1.0 - (count // per_update) / settings.num_updates)

        step = optax.chain(optax.clip_by_global_norm(settings.max_grad_norm), optax.adam(rate, eps=1e-5))
        # actor and critic are clipped each by itself where they are two networks
        self.optimiser = optax.multi_transform({"actor": step, "critic": step}, label) if settings.central else step

    def apply(self, params: Any, carry: Any, moment: Moment) -> tuple[Any, jax.Array, jax.Array]:
        """Memory, logits and values of the network."""
        outputs: Any = self.network.apply(params, carry, moment)
        return outputs

    def stacked(self, values: Any) -> jax.Array:
        """Dictionary of [E, …] → [B, …], agents one after another."""
        together = jnp.stack([values[name] for name in self.agents])
        return together.reshape(self.num_actors, *together.shape[2:])

    def init(self, key: jax.Array) -> State:
        """Fresh networks and environments."""
        key, key_reset, key_network = jax.random.split(key, 3)
        obs, env_state = jax.vmap(self.env.reset)(jax.random.split(key_reset, self.settings.num_envs))
        done = jnp.zeros(self.num_actors, bool)
        carry = (jnp.zeros((self.num_actors, self.settings.width)),) * 2
        moment = jax.tree.map(lambda x: x[None], self.see(obs, env_state, done))
        params = self.network.init(key_network, carry, moment)
        return State(params, self.optimiser.init(params), env_state, obs, done, carry, key)

    def see(self, obs: Any, env_state: Any, done: jax.Array) -> Moment:
        """What the networks see now, [B, …]; ``done`` [B] says whose memory ends before."""
        world = self.world(obs) if self.settings.central else jnp.zeros((self.num_actors, 0))
        return Moment(self.stacked(obs), world, self.mask(env_state), done)

    def mask(self, env_state: Any) -> jax.Array:
        """[B, n], above 0 where an action is available."""
        return self.stacked(jax.vmap(self.env.get_avail_actions)(env_state.env_state))

    def world(self, obs: Any) -> jax.Array:
        """[B, W] what the central critic sees."""
        ids = jnp.repeat(jnp.eye(len(self.agents)), self.settings.num_envs, axis=0)
        return jnp.concatenate([jnp.tile(obs["world_state"], (len(self.agents), 1)), ids], axis=-1)

    def score(self, info: Any) -> jax.Array:
        """[E] the figure of the episodes that end."""
        return info["returned_won_episode"][:, 0]

    def step(self, params: Any, carried: tuple, key: jax.Array) -> tuple[tuple, tuple[Transition, Any]]:
        """One step of all environments: what was carried after it, the transition, and the figure and number of episodes that
        ended [E]."""
        env_state, obs, done, carry = carried
        key_action, key_step = jax.random.split(key)
        moment = self.see(obs, env_state, done)
        carry, logits, value = self.apply(params, carry, jax.tree.map(lambda x: x[None], moment))
        policy = distrax.Categorical(logits=logits[0])
        action, log_prob = policy.sample_and_log_prob(seed=key_action)
        by_agent = action.reshape(len(self.agents), -1)
        actions = {name: by_agent[index] for index, name in enumerate(self.agents)}
        keys = jax.random.split(key_step, self.settings.num_envs)
        obs, env_state, reward, dones, info = jax.vmap(self.env.step)(keys, env_state, actions)
        over = jnp.tile(dones["__all__"], len(self.agents))
        transition = Transition(moment, action, log_prob, value[0], self.stacked(reward), over)
        ended = info["returned_episode"][:, 0]
        score = jnp.where(ended, self.score(info), 0.0)
        return (env_state, obs, self.stacked(dones), carry), (transition, (score, ended.astype(jnp.float32)))

    def update(self, state: State) -> tuple[State, dict[str, jax.Array]]:
        """A rollout and its epochs; ``episodes`` counts those that ended during it, ``figure`` sums over them."""
        key, key_rollout, key_fit = jax.random.split(state.key, 3)
        carried = (state.env, state.obs, state.done, state.carry)
        step = functools.partial(self.step, state.params)
        carried, (rollout, (score, ended)) = jax.lax.scan(
            step, carried, jax.random.split(key_rollout, self.settings.rollout_length)
        )
        env_state, obs, done, carry = carried
        last = jax.tree.map(lambda x: x[None], self.see(obs, env_state, done))
        _, _, last_value = self.apply(state.params, carry, last)
        advantage = gae(self.settings, rollout, last_value[0], unroll=16)
        batch = (state.carry, rollout, advantage, advantage + rollout.value)
        learner = (state.params, state.optimiser)
        learner, _ = jax.lax.scan(
            functools.partial(self.epoch, batch), learner, jax.random.split(key_fit, self.settings.num_epochs)
        )
        metrics = {self.figure: score.sum(), "episodes": ended.sum()}
        return State(*learner, env_state, obs, done, carry, key), metrics

    def epoch(self, batch: tuple, learner: tuple, key: jax.Array) -> tuple[tuple, None]:
        """Gradient steps on minibatches of whole sequences, each actor in one of them."""
        order = jax.random.permutation(key, self.num_actors).reshape(self.settings.num_minibatches, -1)
        carry, *sequences = batch

        def gradient_step(learner: tuple, chosen: jax.Array) -> tuple[tuple, None]:
            params, optimiser = learner
            part = jax.tree.map(lambda x: x[chosen], carry), *jax.tree.map(lambda x: x[:, chosen], sequences)
            gradients = jax.grad(self.loss)(params, *part)
            updates, optimiser = self.optimiser.update(gradients, optimiser)
            return (optax.apply_updates(params, updates), optimiser), None

        return jax.lax.scan(gradient_step, learner, order)[0], None

    def loss(self, params: Any, carry: Any, rollout: Transition, advantage: jax.Array, target: jax.Array) -> jax.Array:
        """PPO's clipped loss of a minibatch, with PPO2's clipped values."""
        settings = self.settings
        _, logits, value = self.apply(params, carry, rollout.moment)
        policy = distrax.Categorical(logits=logits)
        ratio = jnp.exp(policy.log_prob(rollout.action) - rollout.log_prob)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        bound = jnp.clip(ratio, 1 - settings.clip_eps, 1 + settings.clip_eps)
        policy_loss = -jnp.minimum(ratio * advantage, bound * advantage).mean()
        near = rollout.value + jnp.clip(value - rollout.value, -settings.clip_eps, settings.clip_eps)
        value_loss = 0.5 * jnp.maximum((value - target) ** 2, (near - target) ** 2).mean()
        return policy_loss + settings.value_coef * value_loss - settings.entropy_coef * policy.entropy().mean()


class MpeTrainer(Trainer):
    """On JaxMARL's MPE: every action is available, and the central critic sees the observations of all agents, in their order,
    whichever agent it values."""

    figure = "sum_return"

    def mask(self, env_state: Any) -> jax.Array:
        del env_state
        return jnp.ones((self.num_actors, self.network.num_actions))

    def world(self, obs: Any) -> jax.Array:
        return jnp.tile(jnp.concatenate([obs[name] for name in self.agents], axis=-1), (len(self.agents), 1))

    def score(self, info: Any) -> jax.Array:
        return info["returned_episode_returns"].mean(-1)


# --- on MPE, as ``versus`` and our evaluation take a loop -------------------------------------------------------------------


def init(env: Any, settings: Settings, key: jax.Array) -> State:
    """Fresh networks and environments; ``env`` is one of JaxMARL's MPE, inside its ``LogWrapper``."""
    return MpeTrainer(settings, env).init(key)


def update(env: Any, settings: Settings, state: State) -> tuple[State, dict[str, jax.Array]]:
    """One iteration; its figures are the number and the summed returns of the episodes that ended, meant over agents."""
    return MpeTrainer(settings, env).update(state)


def initial_carry(env: Any, settings: Settings) -> tuple[jax.Array, jax.Array]:
    """[A, H] of the actor and of the critic."""
    return (jnp.zeros((env.num_agents, settings.width)),) * 2


def act(
    env: Any, settings: Settings, params: Any, timestep: Any, carry: Any, key: jax.Array, greedy: bool
) -> tuple[jax.Array, Any]:
    """Actions [A] of one of our environments."""
    agents = env.num_agents
    world = jnp.broadcast_to(timestep.obs.reshape(-1), (agents, timestep.obs.size))
    moment = Moment(timestep.obs, world, timestep.action_mask, jnp.broadcast_to(timestep.first, agents))
    network = Network(settings.width, env.action_space.n, settings.central)
    found: Any = network.apply(params, carry, jax.tree.map(lambda x: x[None], moment))
    carry, logits, _ = found
    return jnp.argmax(logits[0], -1) if greedy else jax.random.categorical(key, logits[0]), carry

"""Small agents of TF-Agents, of every kind, and data for them."""

import functools

import tensorflow as tf
from tf_agents.agents.behavioral_cloning.behavioral_cloning_agent import BehavioralCloningAgent
from tf_agents.agents.dqn.dqn_agent import DqnAgent
from tf_agents.networks.q_network import QNetwork
from tf_agents.networks.q_rnn_network import QRnnNetwork
from tf_agents.specs import tensor_spec

from tfrl import seeding, specs
from tfrl.compat import tf_agents as compat
from tfrl.compat import tf_agents_factories as factories
from tfrl.types import Trajectory, Transition

VECTOR = tf.TensorSpec([4], tf.float32)
CHOICE = specs.DiscreteSpec(3)
BOX = specs.BoundedTensorSpec([2], tf.float32, [-1.0, -2.0], [1.0, 2.0])
KEY = seeding.key(7)

FACTORIES = {
    "dqn": (factories.make_dqn, CHOICE, {"grad_clip": 1.0, "target_every": 2}),
    "ddqn_n_step": (factories.make_dqn, CHOICE, {"double": True, "n_step": 3, "tau": 0.1}),
    "categorical_dqn": (factories.make_categorical_dqn, CHOICE, {"num_atoms": 7}),
    "categorical_dqn_n_step": (factories.make_categorical_dqn, CHOICE, {"n_step": 3}),
    "sac": (factories.make_sac, BOX, {}),
    "td3": (factories.make_td3, BOX, {}),
    "ddpg": (factories.make_ddpg, BOX, {}),
    "ppo": (factories.make_ppo, BOX, {"num_epochs": 2}),
    "reinforce": (factories.make_reinforce, CHOICE, {}),
}


def made(name, **more):
    """A module of a kind."""
    factory, action_spec, options = FACTORIES[name]
    return factory(
        **{"obs_spec": VECTOR, "action_spec": action_spec, "hidden": (8,), **options, **more}
    )


def agent_specs(obs_spec=VECTOR, action_spec=CHOICE):
    """Specs as TF-Agents' constructors take them."""
    time_step_spec = tensor_spec.from_spec(compat.time_step_spec(obs_spec))
    return time_step_spec, compat.tensor_spec(action_spec, "action")


def tf_agent(name, **more):
    """A TFAgent of a kind, initialised from a key."""
    return made(name, **more).logic.agent


def make_dqn(time_step_spec, action_spec, optimizer=None, network=QNetwork, **options):
    """A DqnAgent as its users make them."""
    if network is QRnnNetwork:
        sizes = {"input_fc_layer_params": (6,), "lstm_size": (5,), "output_fc_layer_params": ()}
    else:
        sizes = {"fc_layer_params": (6,)}
    net = network(time_step_spec.observation, action_spec, **sizes)
    optimizer = optimizer or functools.partial(tf.compat.v1.train.AdamOptimizer, 1e-2)
    counter = tf.Variable(0)
    options = {"gamma": 0.9, "epsilon_greedy": 0.3, **options}
    return DqnAgent(
        time_step_spec,
        action_spec,
        q_network=net,
        optimizer=optimizer(),
        train_step_counter=counter,
        **options,
    )


def make_cql(time_step_spec, action_spec, **options):
    """A CqlSacAgent, whose actor loss TF-Agents decorates; it clones in its first step."""
    from tf_agents.agents.cql.cql_sac_agent import CqlSacAgent

    sac = factories.make_sac(VECTOR, BOX, hidden=(8,)).logic.agent
    optimizers = [tf.compat.v1.train.AdamOptimizer(1e-2) for _ in range(3)]
    return CqlSacAgent(
        time_step_spec,
        action_spec,
        critic_network=sac._critic_network_1.copy(name="Critic"),
        actor_network=sac._actor_network.copy(name="Actor"),
        actor_optimizer=optimizers[0],
        critic_optimizer=optimizers[1],
        alpha_optimizer=optimizers[2],
        cql_alpha=1.0,
        num_cql_samples=2,
        include_critic_entropy_term=True,
        use_lagrange_cql_alpha=True,
        num_bc_steps=1,
        gamma=0.9,
        train_step_counter=tf.Variable(0, dtype=tf.int64),
        **options,
    )


def make_cloning(time_step_spec, action_spec, **options):
    """A BehavioralCloningAgent over single frames."""
    return BehavioralCloningAgent(
        time_step_spec,
        action_spec,
        cloning_network=QNetwork(time_step_spec.observation, action_spec, fc_layer_params=(6,)),
        optimizer=tf.compat.v1.train.AdamOptimizer(1e-2),
        train_step_counter=tf.Variable(0),
        **options,
    )


def items(action_spec, size=6, key=KEY, discount=0.9):
    """Items of a replay buffer, the last of which terminates."""
    keys = seeding.streams(key, ["obs", "next", "action", "reward"])
    ends = tf.range(size) == size - 1
    return Transition(
        obs=seeding.normal(keys["obs"], [size, 4]),
        action=specs.sample(action_spec, keys["action"], [size]),
        reward=seeding.normal(keys["reward"], [size]),
        next_obs=seeding.normal(keys["next"], [size, 4]),
        discount=tf.where(ends, 0.0, discount),
    )


def rollout(module, state, length=7, batch=2, key=KEY):
    """A rollout with one end, as of autoreset NEXT_STEP: rows 2 end, rows 3 are boundaries."""
    keys = seeding.streams(key, ["obs", "act", "reward"])
    obs = seeding.normal(keys["obs"], [length + 1, batch, 4])
    act = tf.function(lambda o, k: module.compute_actions(state, o, k), autograph=False)
    found = [act(obs[t], seeding.fold_in(keys["act"], t)) for t in range(length)]
    out = tf.nest.map_structure(lambda *xs: tf.stack(xs), *found)
    rows = tf.range(length)[:, tf.newaxis] + tf.zeros([1, batch], tf.int32)
    return Trajectory(
        obs=obs[:-1],
        action=out.action,
        reward=seeding.normal(keys["reward"], [length, batch]),
        next_obs=obs[1:],
        termination=rows == 2,
        truncation=rows < 0,
        valid=rows != 3,
        policy_extras=out.extras,
    )

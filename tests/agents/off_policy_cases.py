"""What the tests of the off-policy agents share: transitions, learners, loops of updates."""

import numpy as np
import tensorflow as tf

from tests.learners import train_steps
from tfrl import networks, seeding, specs, struct
from tfrl.keras import api as keras
from tfrl.learners import Learner, ModuleConfig
from tfrl.types import Transition

KEY = seeding.key(23)
OBS = tf.TensorSpec([3])
BOX = specs.BoundedTensorSpec([2], tf.float32, [-2, 0], [2, 10])
UNIT = specs.BoundedTensorSpec([1], tf.float32, -1, 1)
# What a Q-network of one linear layer over one-hot states is: a table.
TABLE = networks.MLP(hidden=())


def transitions(agent, rows=16, seed=0, **changes):
    """Random transitions for an agent; a quarter of them end by a termination."""
    keys = [seeding.fold_in(KEY, 10 * seed + i) for i in range(4)]
    discount = np.full([rows], 0.9, np.float32)
    discount[::4] = 0.0
    batch = Transition(
        obs=specs.sample(agent.obs_spec, keys[0], [rows]),
        action=specs.sample(agent.action_spec, keys[1], [rows]),
        reward=seeding.normal(keys[2], [rows]),
        next_obs=specs.sample(agent.obs_spec, keys[3], [rows]),
        discount=tf.constant(discount),
    )
    return batch.replace(**changes)


def prepared(agent, state, batch):
    return agent.prepare_minibatch(state, batch, lambda x: x)


def learner(agent, lr=0.1, sgd=False, **options):
    """A built learner; with plain SGD what it does can be computed by hand."""
    if sgd:
        options["optimizer_fn"] = lambda config: keras.optimizers.legacy.SGD(0.0)
    made = Learner(agent, config=ModuleConfig(lr=lr), **options)
    made.build(KEY)
    return made


def train(made, batch, steps):
    """Takes learner steps on one batch in one compiled call."""

    @tf.function(autograph=False)
    def run():
        def step(i):
            now = made.env_steps + 1
            made.update(batch, key=seeding.fold_in(KEY, i), timesteps=now, shuffle=False)
            return (i + 1,)

        return tf.while_loop(lambda i: i < steps, step, (0,))

    run()
    return struct.values(made.state)


def snapshot(made):
    """All values of a learner's module by path."""
    return {path: v.numpy().copy() for path, v in struct.paths(made.state).items()}


def gradients(agent, name, state, batch, key=KEY):
    """What a train step computes for one update, `train_steps.Computed`."""
    return train_steps.computed(train_steps.recording(agent), state, batch, key)[name]


def loss_key(agent, name):
    """The key of the loss of one update, of a step with `KEY`."""
    return train_steps.loss_key(agent, name, KEY)


def reached(loss, params):
    """The groups that a gradient of `loss(params)` reaches, whatever its update trains."""
    leaves = struct.paths(params)
    with tf.GradientTape() as tape:
        tape.watch(list(leaves.values()))
        value = loss(params)
    found = tape.gradient(value, leaves)
    return {path.split("/")[0] for path, g in found.items() if g is not None and np.any(g)}


def assert_critics_learn_as_if_alone(agent):
    """One learner step moves each of n critics as plain SGD on that critic alone would."""
    made, discrete = learner(agent, sgd=True), specs.is_discrete(agent.action_spec)
    state, raw = struct.values(made.state), transitions(agent)
    batch = prepared(agent, state, raw)
    made.update_from_batch(raw, key=KEY, shuffle=False)
    after = struct.values(made.state).params["critic"]
    # All regress on the one target, which all of them make, with the random numbers of the step.
    key = train_steps.loss_key(agent, "critic", seeding.fold_in(seeding.stream(KEY, "losses"), 0))
    _, extra, _, _ = agent._critic_loss(state.params, state, batch, key)
    assert agent.num_critics > 1
    for i in range(agent.num_critics):
        alone = struct.take(state.params["critic"], i)
        leaves = tf.nest.flatten(alone)
        with tf.GradientTape() as tape:
            tape.watch(leaves)
            if discrete:
                q = agent.critic.member.apply(alone, batch.obs)
                q = tf.gather(q, batch.action, batch_dims=1)
            else:
                q = agent.critic.member.apply(alone, (batch.obs, batch.action))
            loss = 0.5 * tf.reduce_mean(tf.square(extra.target[:, 0] - q))
        steps = tape.gradient(loss, leaves)
        now = tf.nest.flatten(struct.take(after, i))
        for x, g, y in zip(leaves, steps, now, strict=True):
            np.testing.assert_allclose(y, x - 0.1 * g, rtol=1e-3, atol=1e-5)
            assert np.any(y != x)


def assert_goes_on_after_a_restore(test, agent):
    """A learner that was saved and restored takes the same steps, to the bit."""
    first, second = learner(agent), learner(agent)
    batch = transitions(agent)
    for i in range(2):
        first.update_from_batch(batch, key=seeding.fold_in(KEY, i), timesteps=10 * i)
    second.set_state(first.get_state())
    for i in range(2, 4):
        for made in (first, second):
            made.update_from_batch(batch, key=seeding.fold_in(KEY, i), timesteps=10 * i)
    one, other = snapshot(first), snapshot(second)
    test.assertEqual(list(one), list(other))
    for path, value in one.items():
        np.testing.assert_array_equal(other[path], value, err_msg=path)

"""Networks of TF-Agents as ours: the same outputs and gradients, compiled too, and learning."""

import functools
import warnings

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from tf_agents.agents.ddpg import actor_network, critic_network
from tf_agents.agents.sac import tanh_normal_projection_network
from tf_agents.networks import (
    actor_distribution_network,
    actor_distribution_rnn_network,
    categorical_q_network,
    encoding_network,
    network,
    q_network,
    q_rnn_network,
    sequential,
    value_network,
    value_rnn_network,
)
from tf_agents.trajectories import StepType

from tfrl import networks, seeding, specs
from tfrl.agents import DQN, PPO, SAC, TD3
from tfrl.compat.tf_agents import from_tf_agents_network, tensor_spec
from tfrl.compat.tf_agents.networks import (
    TFAgentsPolicy,
    TFAgentsQNetwork,
    TFAgentsTorso,
    TFAgentsValue,
)
from tfrl.errors import UserError
from tfrl.keras import api as keras

KEY = seeding.key(5)
OBS = tf.TensorSpec([4])
CHOICE = specs.DiscreteSpec(3)
CHOICES = specs.MultiDiscreteSpec([3, 3])
BOX = specs.BoundedTensorSpec([2], tf.float32, [-1.0, -2.0], [3.0, 2.0])
NUMBER = specs.BoundedTensorSpec([], tf.float32, -1.0, 1.0)
BITS = specs.BinarySpec(2)
WHOLE = {"arm": BOX, "grip": CHOICE}

partial = functools.partial
Actor = actor_distribution_network.ActorDistributionNetwork
Q = partial(q_network.QNetwork, fc_layer_params=(8,))
Value = partial(value_network.ValueNetwork, fc_layer_params=(8,))
Encoder = partial(encoding_network.EncodingNetwork, fc_layer_params=(8, 5))
Policy = partial(Actor, fc_layer_params=(8,))
Squashed = partial(
    Policy,
    continuous_projection_net=tanh_normal_projection_network.TanhNormalProjectionNetwork,
)
DropoutQ = partial(q_network.QNetwork, fc_layer_params=(16,), dropout_layer_params=[0.5])
QRnn = partial(q_rnn_network.QRnnNetwork, input_fc_layer_params=(6,), lstm_size=(5,))
ValueRnn = partial(value_rnn_network.ValueRnnNetwork, lstm_size=(5, 4))
PolicyRnn = partial(
    actor_distribution_rnn_network.ActorDistributionRnnNetwork,
    input_fc_layer_params=(6,),
    lstm_size=(5,),
)


def layers(obs, action):
    dense = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)]
    return sequential.Sequential(dense)


PLAIN = [
    (Q, CHOICE, TFAgentsQNetwork),
    (layers, CHOICE, TFAgentsQNetwork),
    (Value, None, TFAgentsValue),
    (Encoder, None, TFAgentsTorso),
]
POLICIES = [
    (Policy, CHOICE),
    (Policy, CHOICES),
    (Policy, BITS),
    (Policy, BOX),
    (Policy, NUMBER),
    (Policy, WHOLE),
    (Squashed, BOX),
]


def twin(ours, params):
    """The network itself, made by TF-Agents alone, with the parameters assigned."""
    given = [tensor_spec(ours.spec, "observation")]
    if ours.action_spec is not None:
        given.append(tensor_spec(ours.action_spec, "action"))
    theirs = ours.make_network(*given)
    theirs.create_variables(given[0])
    values = [value for _, value in sorted(params["params"].items())]
    for variable, value in zip(theirs.trainable_variables, values, strict=True):
        variable.assign(value)
    return theirs


def kinds(*shape):
    return tf.fill(shape, StepType.MID)


# Autograph would take longer than all else, and the library does without it.
compiled = functools.partial(tf.function, autograph=False)


def paths_of(f):
    return (f, compiled(f), compiled(f, jit_compile=True))


class PlainTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(*PLAIN)
    @pytest.mark.variants(2)
    def test_outputs_and_gradients(self, make, action_spec, kind):
        ours = from_tf_agents_network(make, OBS, action_spec)
        assert type(ours) is kind and not ours.recurrent
        params = ours.init(KEY, OBS)
        tf.nest.map_structure(self.assertAllEqual, params, ours.init(KEY))
        assert not np.allclose(*(ours.init(seeding.key(i))["params"]["000_kernel"] for i in (0, 1)))
        x = seeding.normal(KEY, [6, 4])
        theirs = twin(ours, params)
        with tf.GradientTape() as tape:
            wanted = theirs(x, step_type=kinds(6))[0]
            loss = tf.reduce_sum(tf.sin(wanted))
        gradients = [tf.identity(g) for g in tape.gradient(loss, theirs.trainable_variables)]

        def ours_of(params, x):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(params["params"])
                output = ours.apply(params, x)
                loss = tf.reduce_sum(tf.sin(output))
            return output, tape.gradient(loss, params["params"])

        for f in paths_of(ours_of):
            output, found = f(params, x)
            self.assertAllClose(output, wanted, 1e-5, 1e-6)
            for a, b in zip(tf.nest.flatten(found), gradients, strict=True):
                self.assertAllClose(a, b, 1e-4, 1e-5)
        lead = ours.apply(params, tf.reshape(x, [2, 1, 3, 4]))
        self.assertAllClose(lead, tf.reshape(wanted, lead.shape), 1e-5, 1e-6)

    def test_what_agents_ask(self):
        assert from_tf_agents_network(Q, OBS, CHOICE).num_actions == 3
        assert from_tf_agents_network(Encoder, OBS).output_size(OBS) == 5

    def test_variables_are_parameters(self):
        """As the Learner holds them, and stacked for a population."""
        ours = from_tf_agents_network(Q, OBS, CHOICE)
        params = networks.init_population(ours.init, KEY, 2)
        x = seeding.normal(KEY, [2, 6, 4])
        found = ours.apply(params, x)
        for i in range(2):
            member = tf.nest.map_structure(lambda p, i=i: tf.Variable(p[i]), params)
            self.assertAllClose(ours.apply(member, x[i]), found[i], 1e-5, 1e-6)

    @pytest.mark.slow
    def test_dropout_draws_from_the_key(self):
        ours = from_tf_agents_network(DropoutQ, OBS, CHOICE)
        params, x = ours.init(KEY), tf.ones([1, 4])
        train = [ours.apply_training(params, x, seeding.key(i))[0] for i in (0, 0, 1)]
        self.assertAllEqual(train[0], train[1])
        xla = compiled(ours.apply_training, jit_compile=True)(params, x, seeding.key(0))
        self.assertAllClose(train[0], xla[0], 1e-4, 1e-5)
        assert not np.allclose(train[0], train[2])
        self.assertAllEqual(ours.apply(params, x), ours.apply(params, x))

    def test_nested_observations_and_dtypes(self):
        spec = {
            "image": specs.BoundedTensorSpec([3, 3, 1], tf.uint8, 0, 255),
            "state": tf.TensorSpec([2], tf.float64),
            "action_mask": tf.TensorSpec([3], tf.bool),
        }

        def make(obs, action):
            assert set(obs) == {"image", "state"} and obs["state"].dtype == tf.float32
            flat = keras.layers.Lambda(
                lambda x: tf.cast(tf.reshape(x, [-1, 9]), tf.float32) / 255.0
            )
            return q_network.QNetwork(
                obs,
                action,
                preprocessing_layers={"image": flat, "state": keras.layers.Dense(2)},
                preprocessing_combiner=keras.layers.Concatenate(),
                fc_layer_params=(4,),
            )

        ours = from_tf_agents_network(make, spec, CHOICE)
        x = {"image": tf.ones([5, 3, 3, 1], tf.uint8), "state": tf.ones([5, 2], tf.float64)}
        params = ours.init(KEY)
        assert ours.apply(params, x).shape == [5, 3]
        with pytest.raises(UserError, match="expected uint8, as in its spec"):
            ours.apply(params, {**x, "image": tf.ones([5, 3, 3, 1])})

    def test_a_critic_as_a_torso_of_two_inputs(self):
        unit = specs.BoundedTensorSpec([2], tf.float32, -1.0, 1.0)
        obs = tf.TensorSpec([4])
        encoder = partial(
            encoding_network.EncodingNetwork,
            fc_layer_params=(8,),
            preprocessing_combiner=keras.layers.Concatenate(),
        )
        torso = from_tf_agents_network(encoder, (obs, unit))
        assert type(torso) is TFAgentsTorso
        critic = networks.CriticEnsemble(torso=torso)
        params = critic.init(KEY, (obs, unit))
        x = (seeding.normal(KEY, [6, 4]), seeding.uniform(KEY, [6, 2]))
        values = compiled(critic.apply)(params, x)
        assert values.shape == [2, 6] and not np.allclose(values[0], values[1])
        whole = critic_network.CriticNetwork((tensor_spec(obs, "o"), tensor_spec(unit, "a")))
        ours = from_tf_agents_network(lambda spec: whole.copy(name="c"), (obs, unit))
        assert type(ours) is TFAgentsValue
        params = ours.init(KEY)
        wanted = twin(ours, params)(x, step_type=kinds(6))[0]
        self.assertAllClose(compiled(ours.apply)(params, x), wanted, 1e-5, 1e-6)


class PolicyTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(*POLICIES)
    @pytest.mark.variants(3)
    def test_log_probabilities(self, make, action_spec):
        ours = from_tf_agents_network(make, OBS, action_spec)
        assert type(ours) is TFAgentsPolicy
        params = ours.init(KEY)
        x = seeding.normal(KEY, [6, 4])
        theirs = twin(ours, params)(x, step_type=kinds(6), network_state=())[0]
        made = ours.apply(params, x)
        action = made.sample(seeding.key(1))
        tf.nest.assert_same_structure(action, action_spec)
        for a, s in zip(tf.nest.flatten(action), tf.nest.flatten(action_spec), strict=True):
            assert a.dtype == s.dtype and a.shape == [6, *s.shape]

        def log_prob(distribution, a):
            # TensorFlow Probability's categorical has no log-probabilities of int8.
            value = distribution.log_prob(tf.cast(a, tf.int32) if a.dtype == tf.int8 else a)
            return tf.reduce_sum(value, axis=list(range(1, value.shape.rank)))

        parts = zip(tf.nest.flatten(theirs), tf.nest.flatten(action), strict=True)
        wanted = tf.add_n([log_prob(d, a) for d, a in parts])
        for f in paths_of(lambda p, x, a: ours.apply(p, x).log_prob(a)):
            self.assertAllClose(f(params, x, action), wanted, 1e-4, 1e-4)
        modes = zip(tf.nest.flatten(made.mode()), tf.nest.flatten(theirs), strict=True)
        for mode, distribution in modes:
            self.assertAllClose(mode, distribution.mode(), 1e-5, 1e-6)

    def test_masks(self):
        ours = from_tf_agents_network(Policy, OBS, CHOICE)
        mask = tf.constant([[True, False, True]])
        x = tf.ones([1, 4])
        params = ours.init(KEY)
        for made in (
            ours.apply(params, x, mask),
            ours.apply_training(params, x, KEY, mask)[0],
            ours.step(params, x, None, mask)[0],
            ours.unroll(params, x[None], None, tf.ones([1, 1], tf.bool), None, mask)[0],
        ):
            assert np.exp(np.ravel(made.logits)[1]) == 0.0
        with pytest.raises(UserError, match=r"expected shape \[3\]"):
            ours.apply(params, x, mask[:, :2])

    def test_masks_of_bits(self):
        ours = from_tf_agents_network(Policy, OBS, BITS)
        made = ours.apply(ours.init(KEY), tf.zeros([50, 4]), tf.constant([[True, False]] * 50))
        drawn = made.sample(KEY).numpy()
        assert set(drawn[:, 0]) == {0, 1} and set(drawn[:, 1]) == {0}

    def test_actions_that_begin_elsewhere(self):
        ours = from_tf_agents_network(Policy, OBS, specs.DiscreteSpec(3, start=5))
        drawn = ours.apply(ours.init(KEY), tf.zeros([200, 4])).sample(KEY)
        assert set(drawn.numpy()) == {5, 6, 7}


class MemoryTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(
        (QRnn, CHOICE, TFAgentsQNetwork),
        (ValueRnn, None, TFAgentsValue),
        (PolicyRnn, BOX, TFAgentsPolicy),
    )
    @pytest.mark.variants(1)
    def test_steps_and_sequences(self, make, action_spec, kind):
        with warnings.catch_warnings():
            warnings.simplefilter("error", SyntaxWarning)
            ours = from_tf_agents_network(make, OBS, action_spec)
        assert type(ours) is kind and ours.recurrent
        params = ours.init(KEY)
        x = seeding.normal(KEY, [5, 3, 4])
        starts = seeding.uniform(KEY, [5, 3]) < 0.3
        fresh = ours.initial_carry(3)
        carry = tf.nest.map_structure(lambda c: c + 0.5, fresh)
        first = carry

        def leaves(output):
            found = [output.loc, output.log_std] if kind is TFAgentsPolicy else [output]
            return [tf.identity(leaf) for leaf in found]

        stepped = []
        step = compiled(ours.step)
        for t in range(5):
            begin = starts[t][:, None]
            carry = tf.nest.map_structure(lambda c, f, b=begin: tf.where(b, f, c), carry, fresh)
            output, carry = step(params, x[t], carry)
            stepped.append(leaves(output))
        wanted = [tf.stack(steps) for steps in zip(*stepped, strict=True)]

        theirs = twin(ours, params)
        state = tf.nest.pack_sequence_as(theirs.state_spec, tf.nest.flatten(first))
        types = tf.transpose(tf.where(starts, StepType.FIRST, StepType.MID))
        direct = theirs(tf.transpose(x, [1, 0, 2]), step_type=types, network_state=state)[0]
        direct = [direct.mean(), tf.math.log(direct.stddev())] if len(wanted) == 2 else [direct]

        def unroll(params, key):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(params["params"])
                output, after = ours.unroll(params, x, first, starts, key)
                loss = tf.add_n([tf.reduce_sum(tf.sin(leaf)) for leaf in leaves(output)])
            return leaves(output), tape.gradient(loss, params["params"]), after

        gradients = []
        for f in paths_of(unroll)[1:]:
            found, gradient, after = f(params, KEY)
            for a, b, c in zip(found, wanted, direct, strict=True):
                self.assertAllClose(a, b, 1e-4, 1e-5)
                self.assertAllClose(a, tf.transpose(c, [1, 0, *range(2, c.shape.rank)]), 1e-4, 1e-5)
            gradients.append(gradient)
            assert set(after) == {"params", "state"}
        tf.nest.map_structure(lambda a, b: self.assertAllClose(a, b, 1e-3, 1e-4), *gradients)

    def test_calls_that_forget(self):
        ours = from_tf_agents_network(QRnn, OBS, CHOICE)
        params = ours.init(KEY)
        with pytest.raises(UserError, match="expected a carry, got None"):
            ours.step(params, tf.zeros([1, 4]))
        with pytest.raises(UserError, match="a call without a carry"):
            ours.apply(params, tf.zeros([1, 4]))

    def test_a_network_that_does_not_reset(self):
        make = partial(
            q_rnn_network.QRnnNetwork,
            lstm_size=None,
            rnn_construction_fn=keras.layers.LSTM,
            rnn_construction_kwargs={"units": 4, "return_sequences": True, "return_state": True},
        )
        with pytest.raises(UserError, match="whose state continues"):
            from_tf_agents_network(make, OBS, CHOICE)


class RefusalTest(parameterized.TestCase):
    @parameterized.parameters(
        (lambda o, a: keras.Sequential([]), CHOICE, "returns a Network of TF-Agents"),
        (lambda o, a: q_network.QNetwork(o, tensor_spec(CHOICE, "a")), BOX, "not one Discrete"),
        (
            partial(categorical_q_network.CategoricalQNetwork, num_atoms=5),
            CHOICE,
            "or one value for each of",
        ),
        (lambda o, a: Value(o), CHOICE, "or one value for each of"),
        (
            partial(Actor, output_tensor_spec=tensor_spec(BOX, "a")),
            None,
            "one vector per observation",
        ),
    )
    def test_outputs(self, make, action_spec, message):
        with pytest.raises(UserError, match=message):
            from_tf_agents_network(make, OBS, action_spec)

    @parameterized.parameters(
        (
            Q,
            None,
            "action_spec: expected the spec of one action, which QNetwork takes, got None",
        ),
        (value_network.ValueNetwork, CHOICE, "None, since ValueNetwork takes only observations"),
        (actor_network.ActorNetwork, None, "action_spec: expected the spec of one action"),
        (3, None, "expected a function that creates the network.*got an instance of int"),
        (
            lambda a, b, c: None,
            CHOICE,
            "expected a function of obs_spec and, if passed, action_spec",
        ),
        (lambda o: critic_network.CriticNetwork(o), None, "raises TypeError.*for a critic pass"),
    )
    def test_calls(self, make, action_spec, message):
        with pytest.raises(UserError, match=message):
            from_tf_agents_network(make, OBS, action_spec)

    def test_a_users_error_of_the_function_is_told_as_it_is(self):
        def make(obs, action):
            raise UserError("size", expected="3", got=4, remedy="Ask for 3.")

        with pytest.raises(UserError, match="^size: expected 3, got 4"):
            from_tf_agents_network(make, OBS, CHOICE)

    def test_functions_of_any_signature(self):
        ours = from_tf_agents_network(lambda *given: Q(*given), OBS, CHOICE)
        assert type(ours) is TFAgentsQNetwork

    def test_a_network_itself(self):
        made = q_network.QNetwork(tensor_spec(OBS), tensor_spec(CHOICE))
        with pytest.raises(UserError, match="such as functools.partial.*an instance of QNetwork"):
            from_tf_agents_network(made, OBS, CHOICE)
        remedy = r"from_tf_agents_network\(make_network, env.obs_spec"
        specs_of = {"obs_spec": OBS, "action_spec": CHOICE}
        for agent, name in ((DQN, "q"), (DQN, "torso"), (PPO, "policy"), (SAC, "actor_torso")):
            with pytest.raises(UserError, match=f"{agent.__name__}.{name}: .*{remedy}"):
                agent(**specs_of, **{name: made})

    def test_roles(self):
        q, policy = (from_tf_agents_network(make, OBS, CHOICE) for make in (Q, Policy))
        rnn = from_tf_agents_network(QRnn, OBS, CHOICE)
        value = from_tf_agents_network(Value, OBS)
        specs_of = {"obs_spec": OBS, "action_spec": CHOICE}
        for agent, name, given, message in (
            (PPO, "policy", q, "a distribution of actions.*TFAgentsQNetwork"),
            (PPO, "value", q, r"one number.*float32 \[..., 3\]"),
            (DQN, "q", value, "each of 3 actions.*TFAgentsValue"),
            (DQN, "q", policy, "each of 3 actions.*a distribution, Categorical"),
            (DQN, "q", rnn, "a network without memory.*TFAgentsQNetwork, which is recurrent"),
        ):
            with pytest.raises(UserError, match=f"{agent.__name__}.{name}: .*{message}"):
                agent(**specs_of, **{name: given})
        assert DQN(**specs_of, q=q, normalize_obs=True).network is q
        assert PPO(**specs_of, policy=policy, value=value).value_network is value

    def test_specs_without_a_name(self):
        assert tensor_spec(OBS).name is None
        assert tensor_spec({"a": OBS})["a"].name == "a"

    def test_spec_of_another_environment(self):
        ours = from_tf_agents_network(Q, OBS, CHOICE)
        with pytest.raises(UserError, match="Create the network with the spec of the same"):
            ours.init(KEY, tf.TensorSpec([5]))

    def test_another_distribution(self):
        class Odd(network.Network):
            def call(self, obs, step_type=None, network_state=()):
                import tensorflow_probability as tfp

                return tfp.distributions.Laplace(obs, 1.0), network_state

        with pytest.raises(UserError, match="a Normal.*got Laplace"):
            from_tf_agents_network(lambda o, a: Odd(o, name="odd"), OBS, BOX)


class OriginTest(parameterized.TestCase):
    @parameterized.parameters(
        (TD3, {"actor_network": partial(actor_network.ActorNetwork, fc_layer_params=(4,))}),
        (TD3, {"critic_network": critic_network.CriticNetwork}),
        (PPO, {"value": partial(value_network.ValueNetwork, fc_layer_params=(4,))}),
    )
    def test_what_makes_a_network_of_tf_agents_is_told_how_it_becomes_one_of_ours(
        self, kind, given
    ):
        with pytest.raises(UserError, match=r"A network of TF-Agents becomes.*from_tf_agents_netw"):
            kind(obs_spec=OBS, action_spec=BOX, **given)

"""What comes out of a given network must fit its role, whoever made it."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tfrl import distributions, networks, seeding, specs
from tfrl.agents import A2C, DQN, PPO, SAC, TD3
from tfrl.errors import UserError
from tfrl.types import Transition

OBS = {"picture": tf.TensorSpec([2, 2], tf.uint8), "own": tf.TensorSpec([3])}
CHOICE = specs.DiscreteSpec(3)
BOX = specs.BoundedTensorSpec([2], tf.float32, -1.0, 1.0)
WHOLE = {"arm": BOX, "grip": CHOICE}
TORSO = networks.make_torso(OBS, hidden=(4,))


def policy(spec, torso=TORSO):
    return networks.PolicyNetwork(torso=torso, distribution=distributions.make_distribution(spec))


VALUE = networks.ValueNetwork(torso=TORSO)
Q = networks.QNetwork(torso=TORSO, num_actions=3)
MEMORY = networks.RecurrentTorso(body=TORSO, cell="gru", size=4)


@dataclasses.dataclass(frozen=True)
class Own(networks.Network):
    """A user's own network without a hint of what it gives; it takes floats only."""

    size: int

    def init(self, key, spec):
        return {"w": tf.zeros([3, self.size])}

    def apply(self, params, x):
        return x["own"] @ params["w"] + tf.reduce_sum(x["picture"] * 1.0)


class OwnPolicy(Own):
    """A user's own policy, which knows no masks."""

    def apply(self, params, x):
        return distributions.Categorical(logits=super().apply(params, x))


PLAIN = {"picture": tf.TensorSpec([2, 2]), "own": tf.TensorSpec([3])}
PLAIN_VALUE = networks.ValueNetwork(torso=networks.make_torso(PLAIN, hidden=(4,)))


def sac(spec=CHOICE, **given):
    return SAC(obs_spec=PLAIN, action_spec=spec, normalize_obs=True, **given)


class WholeNetworksTest(parameterized.TestCase):
    def test_an_own_policy_need_not_know_masks(self):
        agent = sac(actor_network=OwnPolicy(3), critic_network=Own(3))
        state = agent.init(seeding.key(0))
        obs = tf.nest.map_structure(lambda s: tf.ones([5, *s.shape], s.dtype), PLAIN)
        self.assertEqual(agent.compute_actions(state, obs, seeding.key(1)).action.shape, [5])
        batch = Transition(
            obs=obs,
            action=tf.zeros([5], tf.int64),
            reward=tf.ones([5]),
            next_obs=obs,
            discount=tf.ones([5]),
        )
        batch = agent.prepare_minibatch(state, batch, lambda x: x)
        for loss in (agent.critic_loss, agent.actor_loss):
            found, _ = loss(state.params, state, batch, seeding.key(2))
            self.assertTrue(np.isfinite(found))

    def test_masks_are_for_discrete_actions(self):
        spec = {"observation": OBS, "action_mask": tf.TensorSpec([2], tf.bool)}
        squashed = networks.PolicyNetwork(
            torso=TORSO,
            distribution=distributions.make_distribution(BOX, squash=True),
        )
        with pytest.raises(UserError, match="expected None for a continuous action"):
            SAC(obs_spec=spec, action_spec=BOX, actor_network=squashed)

    @parameterized.parameters(
        (SAC, {"critic_network": networks.QNetwork(torso=MEMORY, num_actions=3)}, CHOICE),
        (TD3, {"actor_network": networks.ValueNetwork(torso=MEMORY)}, BOX),
    )
    def test_none_has_a_memory(self, kind, given, spec):
        (name,) = given
        wanted = f"{kind.__name__}.{name}: expected a network without memory, since the agent"
        with pytest.raises(UserError, match=wanted):
            kind(obs_spec=OBS, action_spec=spec, **given)

    @parameterized.parameters(
        ({"critic_network": Own(2)}, CHOICE, "Discrete action one value per action"),
        (
            {"critic_network": PLAIN_VALUE},
            CHOICE,
            "expected a network that returns one value for each of",
        ),
        (
            {"actor_network": PLAIN_VALUE},
            CHOICE,
            "Return distributions from a stochastic actor",
        ),
    )
    def test_the_remedy_is_about_them(self, given, spec, message):
        with pytest.raises(UserError, match=message):
            sac(spec, **given)


class RolesTest(parameterized.TestCase):
    @parameterized.parameters(
        (PPO, {"policy": Q}, CHOICE, "PPO.policy: expected a network that returns a distribution"),
        (PPO, {"policy": VALUE}, CHOICE, "PPO.policy: .*ValueNetwork, which returns float32"),
        (
            A2C,
            {"policy": policy(BOX)},
            CHOICE,
            "A2C.policy: expected a network that returns a distribution",
        ),
        (
            PPO,
            {"policy": policy(CHOICE)},
            WHOLE,
            "PPO.policy: .*a distribution, Categorical of 3 actions",
        ),
        (
            PPO,
            {"policy": policy(specs.DiscreteSpec(4))},
            CHOICE,
            "PolicyNetwork, which returns a distribution, Categorical of 4 act",
        ),
        (PPO, {"value": Q}, CHOICE, r"PPO.value: .*one number.*float32 \[..., 3\]"),
        (PPO, {"value": policy(CHOICE)}, CHOICE, "PPO.value: .*a distribution, Categorical"),
        (
            DQN,
            {"q": VALUE},
            CHOICE,
            r"DQN.q: expected a network that returns one value for each of",
        ),
        (DQN, {"q": policy(CHOICE)}, CHOICE, "DQN.q: .*a distribution, Categorical"),
        (
            DQN,
            {"q": networks.QNetwork(torso=MEMORY, num_actions=3)},
            CHOICE,
            "DQN.q: expected a network without memory.*QNetwork, which is recurrent",
        ),
        (DQN, {"q": Own(2), "normalize_obs": True}, CHOICE, r"which returns float32 \[..., 2\]"),
    )
    def test_refused(self, agent, given, action_spec, message):
        obs = OBS if "normalize_obs" not in given else {**OBS, "picture": tf.TensorSpec([2, 2])}
        with pytest.raises(UserError, match=message):
            agent(obs_spec=obs, action_spec=action_spec, **given)

    @parameterized.parameters((CHOICE,), (BOX,), (WHOLE,), (specs.MultiDiscreteSpec([2, 3]),))
    def test_accepted(self, action_spec):
        for torso in (TORSO, MEMORY):
            given = {"policy": policy(action_spec, torso), "value": VALUE}
            assert PPO(obs_spec=OBS, action_spec=action_spec, **given).value_network == VALUE

    def test_also_while_tracing(self):
        @tf.function(autograph=False)
        def construct():
            DQN(obs_spec=OBS, action_spec=CHOICE, q=Q)
            return tf.constant(1)

        assert construct() == 1

"""What readers of EvoRL know works here under the names of `evorl_items`."""

import functools
import inspect

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests import docs_helpers
from tests.coming_from import evorl_items, pages
from tfrl import Evaluator, RandomAgent, ops, struct, traces
from tfrl import seeding as keys
from tfrl.agents import DQN, PPO, SAC
from tfrl.envs import Autoreset, Env, vectorize, wrappers
from tfrl.errors import UserError
from tfrl.evaluation import EpisodeCollector
from tfrl.replay import InGraphReplay
from tfrl.rollout import (
    RolloutFn,
    env_step,
    eval_env_step,
    eval_rollout_episode,
    fast_eval_rollout_episode,
    rollout,
)
from tfrl.specs import DiscreteSpec
from tfrl.types import ActionOutput, EnvState, SampleBatch, Trajectory
from tfrl.workflows.learner_workflow import LearnerWorkflow
from tfrl.workflows.run_state import RunMetrics, State

KEY = keys.key(7)
rows = pages.Rows(evorl_items.ITEMS)
FIELDS = ("obs", "action", "reward", "next_obs", "termination", "truncation", "valid")


@pytest.fixture(scope="module")
def env():
    return tfrl.make_env("tf:CartPole-v1", num_envs=3)


@pytest.fixture(scope="module")
def agent(env):
    return PPO(obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(8,))


@pytest.fixture(scope="module")
def agent_state(agent):
    return agent.init(KEY)


@pytest.fixture(scope="module")
def workflow():
    sizes = {
        "make_env.num_envs": 4,
        "OnPolicyWorkflow.rollout_length": 8,
        "OnPolicyWorkflow.num_minibatches": 1,
        "OnPolicyWorkflow.num_epochs": 1,
        "OnPolicyWorkflow.eval_episodes": 4,
        "OnPolicyWorkflow.compile": "graph",
    }
    return tfrl.build_from_config("ppo/tf_cartpole.gin", sizes)


class TestRecords:
    @rows("`SampleBatch(")
    def test_every_field_may_be_left_out(self):
        batch = SampleBatch(obs=tf.ones([2, 4]))
        assert [x is None for x in (batch.actions, batch.rewards, batch.dones)] == [True] * 3
        assert batch.extras == {}
        assert len(tf.nest.flatten(Trajectory(reward=tf.ones(3)))) == 1

    @rows("`RewardDict`", "`extras.policy_extras`")
    def test_it_reads_under_both_names(self):
        batch = SampleBatch(
            actions=tf.constant([1]),
            rewards={"goal": tf.constant([2.0])},
            dones=tf.constant([True]),
            extras={"policy_extras": {"log_prob": tf.constant([0.5])}},
        )
        assert isinstance(batch, Trajectory)
        assert batch.action is batch.actions
        assert batch.reward["goal"] is batch.rewards["goal"]
        assert batch.extras.policy_extras.log_prob == 0.5
        ends = Trajectory(
            termination=tf.constant([True, False]), truncation=tf.constant([False] * 2)
        )
        assert ends.dones.numpy().tolist() == [True, False]

    def test_unknown_extras_are_refused(self):
        with pytest.raises(UserError, match="extras of a SampleBatch: expected some of env_extras"):
            SampleBatch(extras={"other": 1})

    @rows("`PyTree", "`pytree_field")
    def test_dict_and_dataclass(self):
        tree = struct.TensorDict(a={"b": 1.0})
        tree.a.c = 2.0
        assert tree.a.b == tree["a"]["b"] == 1.0

        @struct.dataclass
        class Data(struct.Struct):
            x: tf.Tensor
            name: str = struct.field(static=True, default="n")

        data = Data(x=tf.constant(1.0))
        assert tf.nest.flatten(data.replace(x=tf.constant(2.0))) == [2.0]
        with pytest.raises(AttributeError):
            data.x = 3.0


class TestAgent:
    @rows("`compute_actions(", "`evaluate_actions(")
    def test_it_acts_on_records(self, env, agent, agent_state):
        obs = env.reset(KEY).obs
        for act in (agent.compute_actions, agent.evaluate_actions):
            plain, record = (act(agent_state, x, KEY).action for x in (obs, SampleBatch(obs=obs)))
            np.testing.assert_array_equal(plain, record)

    @rows("`agent.init(")
    def test_specs_may_come_with_the_key(self, env, agent, agent_state):
        state = agent.init(env.obs_spec, env.action_spec, KEY)
        tf.nest.map_structure(np.testing.assert_array_equal, state.params, agent_state.params)
        with pytest.raises(UserError, match="action_spec of PPO.init: expected the action_spec of"):
            agent.init(env.obs_spec, env.obs_spec, KEY)

    @rows("`RandomAgent()`", "adapters for")
    @pytest.mark.parametrize("env_id", ["tf:Pendulum-v1", "gymnasium:CartPole-v1"])
    def test_a_random_agent_without_specs(self, env_id):
        env, agent = tfrl.make_env(env_id, num_envs=2), RandomAgent()
        state = agent.init(env.obs_spec, env.action_spec, KEY)
        start = env.reset(0 if env_id.startswith("gym") else KEY)
        trajectory, _, _ = rollout(env, agent, start, state, KEY, 3)
        named = RandomAgent(obs_spec=env.obs_spec, action_spec=env.action_spec)
        assert trajectory.action.shape[:2] == [3, 2]
        one, two = (
            x.compute_actions(s, start.obs, KEY) for x, s in ((agent, state), (named, state))
        )
        np.testing.assert_array_equal(one.action, two.action)
        with pytest.raises(UserError, match="expected the specs, since its constructor"):
            agent.init(KEY)

    @pytest.mark.parametrize("env_id", ["tf:CartPole-v1", "gymnasium:CartPole-v1"])
    def test_an_agent_that_looks_at_more_than_the_observation(self, env_id):
        @struct.logic_dataclass
        class AfterReward(RandomAgent):
            """Goes right after a reward, and left at the start."""

            takes_records = True

            def compute_actions(self, state, obs, key, carry=None):
                output = super().compute_actions(state, obs.obs, key, carry)
                return output.replace(action=tf.cast(obs.rewards > 0, tf.int64))

        env = tfrl.make_env(env_id, num_envs=2)
        agent = AfterReward(obs_spec=env.obs_spec, action_spec=env.action_spec)
        start = env.reset(0 if env_id.startswith("gym") else KEY)
        trajectory, _, _ = rollout(env, agent, start, agent.init(KEY), KEY, 3)
        assert np.asarray(trajectory.action).tolist() == [[0, 0], [1, 1], [1, 1]]

    @rows("`Agent`: networks", "losses called", "observation normalisation")
    def test_losses_are_in_its_updates(self, env):
        agent = PPO(
            obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(8,), normalize_obs=True
        )
        state = agent.init(KEY)
        assert agent.policy_network and state.normalizer is not None
        played, _, _ = rollout(env, agent, env.reset(KEY), state, KEY, 8)
        batch, _ = agent.learner_batch(state, played)
        loss, metrics = agent.updates[0].loss(state.params, state, batch, KEY)
        assert np.isfinite(loss) and "entropy" in metrics

    @rows("recurrent policies")
    def test_a_memory_is_carried(self, env):
        agent = PPO(obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(8,), memory="gru")
        state, start = agent.init(KEY), env.reset(KEY)
        _, last, carry = rollout(env, agent, start, state, KEY, 3)
        _, _, after = rollout(env, agent, last, state, KEY, 3, carry=carry)
        shapes = [x.shape for x in tf.nest.flatten(agent.initial_carry(3))]
        assert [x.shape for x in tf.nest.flatten(after)] == shapes


class TestEnvironments:
    @rows("`env.reset(key)`", "`obs_space`", "`envs.wrappers`", "`ActionSquashWrapper`")
    def test_specs_and_wrappers(self):
        env = tfrl.make_env("tf:Pendulum-v1", num_envs=2)
        squashed = wrappers.ActionRescale(env=env)
        assert squashed.action_spec.maximum == 1.0 and env.action_spec.maximum == 2.0
        one = squashed.step(squashed.reset(KEY), tf.ones([2, 1]))
        other = env.step(env.reset(KEY), tf.fill([2, 1], 2.0))
        np.testing.assert_array_equal(one.obs, other.obs)
        assert one.obs.shape[1:] == env.obs_spec.shape

    @rows("`VmapAutoResetWrapper`")
    def test_one_environment_becomes_several(self):
        @struct.logic_dataclass
        class Counter(Env):
            """Ends when its count is 3."""

            obs_spec = tf.TensorSpec([], tf.float32)
            action_spec = DiscreteSpec(2)
            num_envs = 1

            def reset(self, key):
                return self.shown(tf.constant(0.0))

            def step(self, state, action):
                return self.shown(state.env_state + 1.0)

            def shown(self, count):
                ends = count >= 3.0
                return EnvState(
                    env_state=count,
                    obs=count,
                    reward=count,
                    termination=ends,
                    truncation=tf.zeros_like(ends),
                    info={},
                )

        env = wrappers.Episode(env=vectorize(Counter(), 2), mode=Autoreset.SAME_STEP)
        agent = RandomAgent(obs_spec=env.obs_spec, action_spec=env.action_spec)
        played, _, _ = rollout(env, agent, env.reset(KEY), agent.init(KEY), KEY, 4)
        assert played.obs[:, 0].numpy().tolist() == [0, 1, 2, 0]
        assert played.next_obs[:, 0].numpy().tolist() == [1, 2, 3, 1]

    @rows("`compute_centered_ranks`", "`ExponentialScheduleSpec`")
    def test_what_evolution_uses(self):
        ranks = ops.centered_ranks(tf.constant([3.0, 9.0, 1.0]))
        np.testing.assert_array_equal(ranks, [0.0, 0.5, -0.5])
        schedule = ops.schedules.ExponentialSchedule(start=1.0, rate=0.5, steps=10, end=0.3)
        assert [float(schedule(t)) for t in (0, 10)] == [1.0, 0.5]
        assert np.isclose(schedule(100), 0.3)


class TestRollout:
    @rows("`rollout(env_fn", "`action_fn` without")
    @pytest.mark.parametrize("bound", [True, False])
    def test_bare_functions(self, env, agent, agent_state, bound):
        step, act = env.step, agent.compute_actions
        if not bound:
            step, act = (
                (lambda *args: env.step(*args)),
                (lambda *args: agent.compute_actions(*args)),
            )
        start = env.reset(KEY)
        ours, last, _ = rollout(env, agent, start, agent_state, KEY, 30)
        theirs, also_last, _ = rollout(step, act, start, agent_state, KEY, 30)
        for name in FIELDS:
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        np.testing.assert_array_equal(last.obs, also_last.obs)
        with pytest.raises(UserError, match="env: expected an environment, or a function step"):
            rollout(3, act, start, agent_state, KEY, 3)

    @rows("`env_extra_fields`")
    @pytest.mark.parametrize("env_id", ["tf:CartPole-v1", "gymnasium:CartPole-v1"])
    def test_fields_of_the_record_itself(self, agent, agent_state, env_id):
        env = tfrl.make_env(env_id, num_envs=2)

        def played(play, *fields, **options):
            start = env.reset(0 if env_id.startswith("gym") else KEY)
            return play(env, agent, start, agent_state, KEY, 30, fields, **options)[0]

        own = (*FIELDS, "actions", "rewards", "dones")
        for found in (
            played(rollout, *own, "episode_length"),
            played(eval_rollout_episode, *own),
        ):
            for name in own:
                np.testing.assert_array_equal(found.env_extras[name], getattr(found, name))
        light = played(eval_rollout_episode, "actions", light=True)
        assert light.action is None and light.env_extras["actions"].shape == [30, 2]

    @pytest.mark.parametrize("env_id", ["tf:CartPole-v1", "gymnasium:CartPole-v1"])
    def test_a_function_acts_without_a_state(self, env_id):
        def act(state, obs, key, carry):
            assert state is None
            return ActionOutput(action=tf.cast(obs[:, 2] > 0, tf.int64))

        env = tfrl.make_env(env_id, num_envs=2)
        start = env.reset(0 if env_id.startswith("gym") else KEY)
        played, _, _ = rollout(env.step, act, start, None, KEY, 5)
        np.testing.assert_array_equal(played.action, played.obs[:, :, 2] > 0)
        evaluator = Evaluator(env=env, agent=act, max_steps=20, compile="graph")
        assert evaluator.evaluate(None, KEY, num_episodes=3).episode_lengths.shape == (3,)

    def test_unknown_fields_are_refused(self, env, agent, agent_state):
        with pytest.raises(UserError, match="env_extra_fields: expected some of .*termination"):
            rollout(env, agent, env.reset(KEY), agent_state, KEY, 3, ("steps",))

    @rows(
        "`eval_rollout_episode", "`fast_eval", "subscripts", "rollouts in jit", "`episode_returns`"
    )
    @pytest.mark.parametrize("mode", ["graph", "xla"])
    def test_no_step_once_all_have_ended(self, env, agent, agent_state, mode):
        steps = tf.Variable(0)

        def counted(state, action):
            if mode == "graph":
                steps.assign_add(1)
            return env.step(state, action)

        @tf.function(autograph=False, jit_compile=mode == "xla")
        def play(key):
            start = env.reset(key)
            act = agent.evaluate_actions
            whole, last = eval_rollout_episode(counted, act, start, agent_state, KEY, 200)
            light, _ = eval_rollout_episode(env, agent, start, agent_state, KEY, 200, light=True)
            totals, same = fast_eval_rollout_episode(env, agent, start, agent_state, KEY, 200)
            return whole, light, totals, last.obs, same.obs

        whole, light, totals, last, same = play(KEY)
        longest = int(tf.reduce_max(totals.episode_lengths))
        assert longest < 200
        assert mode == "xla" or int(steps) == longest
        assert whole.reward.shape == [200, 3]
        assert not whole.valid.numpy()[longest:].any()
        lengths = tf.reduce_sum(tf.cast(whole.valid, tf.int32), 0)
        np.testing.assert_array_equal(lengths, totals.episode_lengths)
        np.testing.assert_array_equal(light.valid, whole.valid)
        np.testing.assert_array_equal(last, same)
        assert light.obs is light.action is light.next_obs is light.policy_extras is None
        # The successor of every step is what the next one saw.
        np.testing.assert_array_equal(whole.obs[1:4], whole.next_obs[:3])

    @rows("environments without autoreset")
    def test_without_an_autoreset_layer(self, env, agent, agent_state):
        bare = env.unwrapped
        start = bare.reset(KEY)
        played, _, _ = rollout(bare, agent, start, agent_state, KEY, 5)
        assert played.valid.numpy().all()
        np.testing.assert_array_equal(played.next_obs[:-1], played.obs[1:])
        ours, _ = fast_eval_rollout_episode(bare, agent, start, agent_state, KEY, 100)
        theirs, _ = fast_eval_rollout_episode(
            env.step, agent.evaluate_actions, env.reset(KEY), agent_state, KEY, 100
        )
        assert ours.episode_lengths.shape == theirs.episode_lengths.shape

    @rows("an ended state")
    def test_an_ended_state_to_start_from(self, agent, agent_state):
        env = tfrl.make_env("tf:CartPole-v1", num_envs=3, autoreset=Autoreset.DISABLED)
        played, last, _ = rollout(env, agent, env.reset(KEY), agent_state, KEY, 200)
        assert not played.valid[-1].numpy().any()
        totals, _ = fast_eval_rollout_episode(env, agent, last, agent_state, KEY, 10)
        assert totals.episode_lengths.numpy().tolist() == [0, 0, 0]

    @rows("`env_step(", "`eval_env_step(")
    def test_one_step(self, env, agent, agent_state):
        start = env.reset(KEY)
        step, after = env_step(
            env.step, agent.compute_actions, start, agent_state, KEY, ("reward",)
        )
        assert step.obs.shape == [3, 4]
        np.testing.assert_array_equal(step.env_extras["reward"], step.reward)
        light, same = eval_env_step(env, agent, start, agent_state, KEY)
        assert light.obs is light.action is None
        assert light.reward.shape == after.reward.shape == same.reward.shape

    @rows("`RolloutFn`", "`rollout_length`")
    def test_the_protocol_is_met(self):
        asked = list(inspect.signature(RolloutFn.__call__).parameters.values())[1:]
        given = list(inspect.signature(rollout).parameters.values())[: len(asked)]
        assert [(p.name, p.default) for p in given] == [(p.name, p.default) for p in asked]

    @rows("`AutoresetMode.", "segments of several", "`create_wrapped_*")
    @pytest.mark.parametrize("autoreset", [Autoreset.SAME_STEP, Autoreset.DISABLED])
    def test_autoreset_modes(self, agent, agent_state, autoreset):
        env = tfrl.make_env("tf:CartPole-v1", num_envs=3, autoreset=autoreset)
        played, _, _ = rollout(env, agent, env.reset(KEY), agent_state, KEY, 80)
        assert played.valid.numpy().all() == (autoreset is Autoreset.SAME_STEP)
        assert played.dones.numpy().any()


class TestEvaluator:
    @rows("`Evaluator")
    def test_another_number_of_episodes_is_no_trace(self, env, agent, agent_state):
        evaluator = Evaluator(env=env, agent=agent, num_episodes=6, max_steps=20)
        first = evaluator.evaluate(agent_state, KEY)
        known = traces.traces_of(traces.logic_key(evaluator.replace(num_episodes=1))).notes["play"]
        for number in (3, 9, 5):
            found = evaluator.evaluate(agent_state, KEY, num_episodes=number)
            assert found.episode_returns.shape == found.episode_lengths.shape == (number,)
            shared = min(number, 6)
            np.testing.assert_array_equal(
                found.episode_returns[:shared], first.episode_returns[:shared]
            )
        evaluator.replace(num_episodes=12).evaluate(agent_state, KEY)
        assert known.experimental_get_tracing_count() == 1
        with pytest.raises(UserError, match="num_episodes"):
            evaluator.evaluate(agent_state, KEY, num_episodes=0)

    @rows("several evaluators")
    def test_trajectories_of_the_same_episodes(self, env, agent, agent_state):
        collector = EpisodeCollector(env=env, agent=agent, num_episodes=2, max_steps=20)
        found = collector.collect(agent_state, KEY)
        assert [len(e.reward) for e in found.episodes] == found.result.episode_lengths.tolist()


class TestWorkflow:
    @rows(
        "`self.config`",
        "`build_from_config(",
        "algorithm = config",
        "`_build_from_config`",
        "hydra",
    )
    def test_config(self, workflow):
        assert workflow.config["make_env.num_envs"] == 4
        with pytest.raises(TypeError):
            workflow.config["make_env.num_envs"] = 5
        assert not workflow.enable_multi_devices

    @rows(
        "`setup(key)",
        "`workflow.init(key)`",
        "`step(state)`",
        "`evaluate(state)`",
        "a loop of one's own",
        "`learn(state)`",
        "`EvaluateMetric`",
        "`State`",
        "static logic",
    )
    def test_a_run(self, workflow):
        state = workflow.setup(keys.key(3))
        np.testing.assert_array_equal(state.key, workflow.setup(3).key)
        names = ["key", "metrics", "agent_state", "opt_state", "env_state", "replay_buffer_state"]
        assert isinstance(state, State)
        assert all(hasattr(state, name) for name in names)
        metrics, state = workflow.step(state)
        assert metrics["env_steps"] == 32
        one, state = workflow.evaluate(state)
        two, state = workflow.evaluate(state)
        assert one["eval_return_mean"] != two["eval_return_mean"]
        assert workflow.learn(state, total_env_steps=64).metrics.env_steps == 64

    @rows("`enable_jit()`", "`enable_multi_devices`", "`dp_axis_name`")
    def test_enable_jit_and_multi_devices(self):
        sizes = {"make_env.num_envs": 4, "OnPolicyWorkflow.rollout_length": 8}
        eager = tfrl.build_from_config("ppo/tf_cartpole.gin", sizes, enable_jit=False)
        assert set(eager.compile.values()) == {"eager"}
        several = tfrl.build_from_config("ppo/tf_cartpole.gin", sizes, enable_multi_devices=True)
        assert several.enable_multi_devices
        assert several.replicas.num_replicas == len(tf.config.list_logical_devices("CPU"))

    @rows("`_rescale_config`", "`enable_shmap")
    def test_sizes_of_each_replica(self, env, agent):
        class Sized(tfrl.OnPolicyWorkflow):
            def rescale_config(self, num_replicas):
                self.env = self.env.with_num_envs(3 * num_replicas)
                self.eval_env = self.eval_env.with_num_envs(3 * num_replicas)

        workflow = Sized(env, agent, rollout_length=4, num_minibatches=1, remainder="pad")
        workflow.use_strategy(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
        assert (workflow.env.num_envs, workflow.replica_env.num_envs) == (6, 3)

    @rows("`_setup_workflow_metrics", "`OnPolicyWorkflow`", "`PPOWorkflow`")
    def test_counters_of_ones_own_are_saved(self, env, agent, tmp_path):
        @struct.dataclass
        class Counters(RunMetrics):
            worst: tf.Tensor = None

        class Counting(tfrl.OnPolicyWorkflow):
            def setup_workflow_metrics(self):
                fields = {n: getattr(RunMetrics.start(), n) for n in RunMetrics.start().__dict__}
                return Counters(**{**fields, "worst": tf.constant(-1.0)})

            def iterate(self, state, key):
                row, state = super().iterate(state, key)
                worst = tf.maximum(state.metrics.worst, row["value_loss"])
                metrics = state.metrics.replace(worst=worst)
                return {**row, "worst": worst}, state.replace(metrics=metrics)

        workflow = Counting(
            env, agent, rollout_length=4, num_epochs=1, num_minibatches=1, compile="graph"
        )
        row, state = workflow.step(workflow.setup(0))
        assert row["worst"] == row["value_loss"] > 0
        workflow.save(state, tmp_path)
        assert workflow.restore(tmp_path).metrics.worst == row["worst"]

    @rows("`RLWorkflow`", "arguments `env`", "`_setup_agent_and_optimizer")
    def test_what_it_is_made_of(self, env, agent):
        class Started(tfrl.OnPolicyWorkflow):
            def setup_agent_and_optimizer(self, key):
                agent_state, opt_state = super().setup_agent_and_optimizer(key)
                return agent_state.replace(params=zeros(agent_state.params)), opt_state

        def zeros(nest):
            return tf.nest.map_structure(tf.zeros_like, nest)

        evaluator = Evaluator(env=env, agent=agent, num_episodes=5, max_steps=10)
        workflow = Started(
            env, agent, "sgd", evaluator, rollout_length=4, num_minibatches=1, compile="graph"
        )
        assert isinstance(workflow, LearnerWorkflow) and isinstance(workflow, tfrl.Workflow)
        state = workflow.setup(0)
        assert not any(np.any(x) for x in tf.nest.flatten(state.agent_state.params))
        metrics, _ = workflow.evaluate(state)
        assert (metrics["eval_episodes"], metrics["eval_length_mean"] <= 10) == (5, True)

    @rows("key and environments per device", "all-reduce of evaluations")
    def test_replicas_play_episodes_of_their_own(self, env, agent):
        workflow = tfrl.OnPolicyWorkflow(
            env.with_num_envs(2),
            agent,
            rollout_length=4,
            num_minibatches=1,
            eval_episodes=6,
            compile="graph",
            strategy=tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
        )
        state = workflow.setup(0)
        one, other = workflow.replicas.per_replica(state.env_state.obs)
        assert one.shape == other.shape == [1, 4] and np.any(one != other)
        metrics, _ = workflow.evaluate(state)
        assert metrics["eval_episodes"] == 6

    @rows("`_postsetup", "`_setup_replaybuffer", "argument `replay_buffer`")
    def test_demonstrations_fill_the_buffer(self):
        env = tfrl.make_env("tf:Pendulum-v1", num_envs=2)

        class Demonstrated(tfrl.OffPolicyWorkflow):
            def postsetup_replay_buffer(self, state):
                demonstrator = RandomAgent(obs_spec=env.obs_spec, action_spec=env.action_spec)
                start, agent_state = env.reset(KEY), demonstrator.init(KEY)
                played, _, _ = rollout(env, demonstrator, start, agent_state, KEY, 20)
                self.replay_buffer(state).add(played)
                return state

        agent = SAC(obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(8, 8))
        workflow = Demonstrated(
            env,
            agent,
            replay_buffer=InGraphReplay(
                capacity=100,
                num_envs=2,
                obs_spec=env.obs_spec,
                action_spec=env.action_spec,
            ),
            random_steps=0,
            batch_size=8,
            compile="graph",
        )
        state = workflow.setup(0)
        assert int(workflow.replay_buffer(state).size()) == 40
        row, state = workflow.step(state)
        assert row["learner_steps"] == 2  # of the first two env steps, from demonstrations

    def test_demonstrations_of_two_replicas(self, env):
        class Demonstrated(tfrl.OffPolicyWorkflow):
            def postsetup_replay_buffer(self, state):
                buffer, own = self.replay_buffer(state), self.replica_env
                agent = RandomAgent(obs_spec=own.obs_spec, action_spec=own.action_spec)

                def play():
                    key = keys.fold_in(KEY, self.replicas.index())
                    played, _, _ = rollout(own, agent, own.reset(key), agent.init(key), key, 20)
                    buffer.add(played)

                self.replicas.run(play)
                return state

        workflow = Demonstrated(
            env.with_num_envs(2),
            DQN(obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(8,)),
            replay_buffer=functools.partial(InGraphReplay, capacity=100),
            random_steps=0,
            batch_size=8,
            strategy=tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
        )
        assert int(workflow.replay_buffer(workflow.setup(0)).size()) == 40


def test_every_row_is_run():
    assert rows.not_run() == []


def test_the_page_has_the_table():
    table = pages.table("EvoRL", evorl_items.ITEMS)
    assert pages.shown("docs/coming_from_evorl.md", "evorl") == table
    assert not [
        name for name, here, note in evorl_items.ITEMS if here.startswith("the same") and note
    ]


@rows("`create_wrapped_brax_env`")
def test_environments_of_brax():
    pytest.importorskip("brax", reason="the extra 'jax' is not installed")
    from tfrl.envs.adapters.jax import create_wrapped_brax_env

    env = create_wrapped_brax_env(
        "inverted_pendulum", parallel=2, autoreset_mode="DISABLED", backend="spring"
    )
    assert env.num_envs == 2
    assert repr(env) == repr(
        tfrl.make_env("jax/brax:inverted_pendulum", 2, "DISABLED", 1000, backend="spring")
    )


@rows("`EvoOptimizer`")
def test_a_search_by_ask_and_tell():
    from tfrl.evolution import OpenES
    from tfrl.ops.schedules import ExponentialSchedule

    optimizer = OpenES(
        pop_size=8,
        lr_schedule=0.1,
        noise_std_schedule=ExponentialSchedule(0.2, 0.5, 10, 0.01),
        mirror_sampling=True,
        optimizer="adam",
        weight_decay=0.0,
        fitness_shaping_fn=tfrl.ops.centered_ranks,
    )
    state = optimizer.init({"x": tf.ones([2])}, KEY)
    for _ in range(30):
        population, state = optimizer.ask(state)
        state = optimizer.tell(state, -tf.reduce_sum(tf.square(population["x"]), axis=-1))
    assert float(tf.norm(state.params["x"])) < 0.5


@rows("ES, EC, ERL and PBT workflows")
def test_workflows_of_evolution():
    env = tfrl.make_env("tf:CartPole-v1", num_envs=2)
    search = tfrl.evolution.OpenES(pop_size=4)
    workflow = tfrl.EvolutionWorkflow(env, optimizer=search, max_episode_steps=5, compile="graph")
    metrics, state = workflow.step(workflow.setup(KEY))
    assert metrics["episodes"] == 4 and int(state.opt_state.search.generation) == 1
    assert issubclass(tfrl.ERLWorkflow, tfrl.Workflow)
    assert issubclass(tfrl.PBTWorkflow, tfrl.Workflow)


@rows("`close()`")
def test_the_page_runs():
    text = (pages.ROOT / "docs/coming_from_evorl.md").read_text(encoding="utf-8")
    (block,) = docs_helpers.session(docs_helpers.blocks(text))
    names = {}
    exec(block, names)  # noqa: S102  our own page
    assert names["metrics"]["eval_episodes"] > 0

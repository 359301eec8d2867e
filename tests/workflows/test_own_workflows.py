"""User-defined workflows: over variables, on the host, in a run folder; overridden hooks."""

import functools
import pathlib
import types

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tfrl import RandomAgent, Workflow, seeding, struct
from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.learners import ModuleConfig
from tfrl.replay import InGraphReplay
from tfrl.rollout import rollout
from tfrl.traces import logic_key
from tfrl.workflows import stages
from tfrl.workflows.learner_workflow import LearnerWorkflow

LENGTH = 4


class Collecting(Workflow):
    """Acts at random; with a capacity, writes to a replay buffer."""

    scale = 1.0

    def __init__(self, env, capacity=None):
        super().__init__()
        self.env = env
        self.agent = RandomAgent(obs_spec=env.obs_spec, action_spec=env.action_spec)
        self.buffer = capacity and InGraphReplay(
            capacity=capacity,
            num_envs=env.num_envs,
            obs_spec=env.obs_spec,
            action_spec=env.action_spec,
        )

    def setup_agent_and_optimizer(self, key):
        return self.agent.init(key), {}

    def setup_replay_buffer(self, key):
        return self.buffer.init().variables() if self.buffer else {}

    def iterate(self, state, key):
        played, env_state, _ = rollout(
            self.env, self.agent, state.env_state, state.agent_state, key, LENGTH
        )
        row = {"scale": tf.constant(self.scale)}
        if self.buffer:
            buffer = self.buffer.over(state.replay_buffer_state, self.replicas)
            buffer.add(played)
            row["size"] = buffer.size()
        metrics = state.metrics.counted(env_steps=LENGTH * self.env.num_envs)
        return row, state.replace(env_state=env_state, metrics=metrics)


@pytest.fixture(scope="module")
def env():
    return tfrl.make_env("tf:CartPole-v1", num_envs=2)


def test_a_buffer_in_variables_is_copied_saved_and_restored(env, tmp_path):
    workflow = Collecting(env, capacity=64)
    row, state = workflow.step(workflow.setup(0))
    assert row["size"] == 8
    copy = workflow.snapshot(state)
    workflow.save(state, tmp_path)
    row, state = workflow.step(state)
    assert row["size"] == 16
    assert workflow.step(copy)[0]["size"] == 16
    restored = workflow.restore(tmp_path)
    assert workflow.step(restored)[0] == row


def test_a_step_consumes_a_state_of_variables(env, tmp_path):
    workflow = Collecting(env, capacity=64)
    first = workflow.setup(0)
    _, state = workflow.step(first)
    for use in (workflow.step, workflow.snapshot, lambda s: workflow.save(s, tmp_path)):
        with pytest.raises(UserError, match="the newest state of its run, of iteration 1"):
            use(first)
    copy = workflow.snapshot(state)
    _, state = workflow.step(state)
    assert workflow.step(copy)[0]["iterations"] == workflow.step(state)[0]["iterations"] - 1 == 2


def test_environments_on_the_host_begin_new_episodes_after_a_restore(tmp_path):
    workflow = Collecting(tfrl.make_env("gymnasium:CartPole-v1", num_envs=2))
    _, state = workflow.step(workflow.setup(0))
    workflow.save(state, tmp_path)
    row, state = workflow.step(workflow.restore(tmp_path))
    assert (row["iterations"], row["env_steps"]) == (2, 16)


def test_a_fresh_run_takes_no_folder_of_another_of_its_seed(env, tmp_path):
    workflow = Collecting(env)
    options = {"root_dir": tmp_path / "run", "progress": False}
    state = workflow.learn(workflow.setup(0), total_env_steps=40, **options)
    with pytest.raises(
        UserError, match="a folder without a run, or the run folder of this state of 0"
    ):
        workflow.learn(workflow.setup(0), total_env_steps=16, **options)
    assert workflow.learn(state, total_env_steps=80, **options).metrics.env_steps == 80


def test_a_class_attribute_is_part_of_the_logic(env, monkeypatch):
    assert Collecting(env).step(Collecting(env).setup(0))[0]["scale"] == 1.0
    monkeypatch.setattr(Collecting, "scale", 2.0)
    workflow = Collecting(env)
    assert workflow.step(workflow.setup(0))[0]["scale"] == 2.0


class Configured(Collecting):
    """Has its settings in an attribute `config`."""

    def __init__(self, env, **config):
        super().__init__(env)
        self.config = config

    def iterate(self, state, key):
        _, state = super().iterate(state, key)
        return {"scale": tf.constant(self.config["scale"])}, state


def test_a_config_of_ones_own_is_part_of_the_logic(env):
    for scale in (1.0, 2.0):
        workflow = Configured(env, scale=scale)
        assert workflow.step(workflow.setup(0))[0]["scale"] == scale


class OwnMetrics(Collecting):
    """Forgets the counters, or has a metric with the name of one."""

    def __init__(self, env, name, counts):
        super().__init__(env)
        self.name, self.counts = name, counts

    def iterate(self, state, key):
        row, after = super().iterate(state, key)
        after = after if self.counts else after.replace(metrics=state.metrics)
        return {self.name: row["scale"]}, after


@pytest.mark.parametrize(
    "name, counts, message",
    [
        ("mine", False, "OwnMetrics.iterate: expected a state with counters that include"),
        ("env_steps", True, "expected other names than those of the counters, got env_steps"),
    ],
)
def test_counters_are_not_forgotten_nor_replaced(env, name, counts, message):
    workflow = OwnMetrics(env, name, counts)
    with pytest.raises(UserError, match=message):
        workflow.step(workflow.setup(0))


@pytest.mark.parametrize("mode", ["jit", {"iterations": "xla"}])
def test_the_compile_mode_of_an_own_workflow_is_checked(env, mode):
    workflow = OwnMetrics(env, "mine", True)
    workflow.compile = mode
    with pytest.raises(UserError, match="compile: expected xla, graph, eager, got"):
        workflow.step(workflow.setup(0))


def test_a_class_attribute_of_an_agent_is_part_of_its_logic(env, monkeypatch):
    keys = []
    for scale in (1.0, 1.0, 2.0):
        monkeypatch.setattr(RandomAgent, "scale", scale, raising=False)
        keys.append(logic_key(Collecting(env).agent))
    assert keys[0] == keys[1] != keys[2]


def test_a_default_object_of_a_class_is_no_setting(env, monkeypatch):
    agent = Collecting(env).agent
    key = logic_key(agent)
    monkeypatch.setattr(RandomAgent, "DEFAULT", agent, raising=False)
    assert logic_key(agent) == key


def test_equal_keras_optimizers_are_equal_logic():
    make = functools.partial(keras.optimizers.Adam, 1e-3)
    one, two = (logic_key(ModuleConfig(optimizer=make())) for _ in range(2))
    assert one == two != logic_key(ModuleConfig(optimizer=make(beta_1=0.5)))
    one, two = (logic_key(ModuleConfig(optimizer={"ppo": make()})) for _ in range(2))
    assert one == two


@pytest.mark.parametrize(
    "make",
    [
        lambda x: {"a", x},
        lambda x: frozenset((1, x)),
        lambda x: pathlib.Path(f"runs/{x}"),
        lambda x: range(len(x)),
        lambda x: slice(x),
        lambda x: tf.constant([1.0, len(x)]),
        lambda x: types.SimpleNamespace(name=x),
    ],
)
def test_equal_settings_are_equal_logic(make):
    assert logic_key(make("b")) == logic_key(make("b")) != logic_key(make("bc"))
    assert hash(logic_key(make("b"))) == hash(logic_key(make("b")))


def test_a_new_run_takes_changed_settings(env):
    workflow = Collecting(env)
    assert workflow.step(workflow.setup(0))[0]["scale"] == 1.0
    workflow.scale = 3.0
    assert workflow.step(workflow.setup(0))[0]["scale"] == 3.0


def test_a_consumed_state_stays_consumed_after_a_restore(env, tmp_path):
    workflow = Collecting(env, capacity=8)
    first = workflow.setup(0)
    _, second = workflow.step(first)
    workflow.save(second, tmp_path)
    workflow.restore(tmp_path)
    with pytest.raises(UserError, match="which a later step has consumed"):
        workflow.step(first)


def test_a_checkpoint_has_the_time_of_its_run(env, tmp_path):
    workflow = Collecting(env)
    state = workflow.learn(workflow.setup(0), total_env_steps=32, progress=False)
    assert workflow.run_time_of(state).wall_seconds >= 0.0
    other = workflow.manifest(workflow.setup(1))
    assert (other["wall_seconds"], other["train_seconds"], other["train_steps"]) == (0.0, 0.0, 0)


class TwoPolicies(tfrl.OnPolicyWorkflow):
    """Plays once with each action."""

    def iterate(self, state, key):
        def always(action, agent_state, obs, key, carry=None):
            out = self.agent.compute_actions(agent_state, obs, key, carry)
            return out.replace(action=tf.fill(tf.shape(out.action), action))

        def left(*args):
            return always(0, *args)

        def right(*args):
            return always(1, *args)

        played = [self.play(state, key, fn) for fn in (left, right)]
        metrics, state = self.learn_from(state, played[0], key)
        means = [tf.reduce_mean(tf.cast(out.batch.action, tf.float32)) for out in played]
        return {**metrics, "left": means[0], "right": means[1]}, state


def test_each_action_function_of_an_iteration_is_a_stage_of_its_own():
    env = tfrl.make_env("tf:CartPole-v1", num_envs=2)
    agent = functools.partial(tfrl.PPO, hidden=(4,))
    options = {"rollout_length": 4, "num_minibatches": 1, "num_epochs": 1, "compile": "graph"}
    workflow = TwoPolicies(env, agent, **options)
    row, _ = workflow.step(workflow.setup(0))
    assert (row["left"], row["right"]) == (0.0, 1.0)


def test_two_action_functions_of_one_name_are_an_error():
    def make(action):
        return lambda *args: action

    run_stages = stages.Stages(stages.RunPhase(), {"rollout": "graph"}, {}, None)

    def collect(action_fn):
        return action_fn

    for made in (make(0), make(0)):
        run_stages.stage("rollout/own", functools.partial(collect, action_fn=made))
    with pytest.raises(UserError, match="expected one function for each name of a stage"):
        run_stages.stage("rollout/own", functools.partial(collect, action_fn=make(1)))


class OwnReplayState(tfrl.OnPolicyWorkflow):
    """Counts its iterations in a variable and in a tensor of `replay_buffer_state`."""

    def setup_replay_buffer(self, key):
        return {**super().setup_replay_buffer(key), "mine": tf.Variable(0.0), "too": tf.zeros([])}

    def iterate(self, state, key):
        row, state = super().iterate(state, key)
        own = state.replay_buffer_state
        own["mine"].assign_add(1.0)
        return row, state.replace(replay_buffer_state={**own, "too": own["too"] + 1.0})


class OwnBesideABuffer(tfrl.OffPolicyWorkflow):
    def setup_replay_buffer(self, key):
        return {**super().setup_replay_buffer(key), "mine": tf.Variable(0.0)}

    def iterate(self, state, key):
        row, state = super().iterate(state, key)
        state.replay_buffer_state["mine"].assign_add(1.0)
        return row, state


def counts_of(state):
    return [float(state.replay_buffer_state[name]) for name in ("mine", "too")]


def test_what_a_subclass_adds_to_the_replay_state_is_saved_and_copied(env, tmp_path):
    agent = functools.partial(tfrl.PPO, hidden=(4,))
    options = {"rollout_length": 4, "num_minibatches": 1, "num_epochs": 1, "compile": "graph"}
    workflow = OwnReplayState(env, agent, **options)
    _, state = workflow.step(workflow.setup(0))
    workflow.save(state, tmp_path)
    copies = [workflow.snapshot(state), struct.values(state), workflow.restore(tmp_path)]
    _, state = workflow.step(state)
    assert counts_of(state) == [2.0, 2.0]
    assert [counts_of(copy) for copy in copies] == [[1.0, 1.0]] * 3
    assert [counts_of(workflow.step(copy)[1]) for copy in copies] == [[2.0, 2.0]] * 3


def test_a_checkpoint_without_what_a_subclass_adds_is_restored(env, tmp_path):
    agent = functools.partial(tfrl.PPO, hidden=(4,))
    options = {"rollout_length": 4, "num_minibatches": 1, "num_epochs": 1, "compile": "graph"}
    before = tfrl.OnPolicyWorkflow(env, agent, **options)
    before.save(before.step(before.setup(0))[1], tmp_path)
    restored = OwnReplayState(env, agent, **options).restore(tmp_path)
    assert restored.metrics.env_steps == 8 and counts_of(restored) == [0.0, 0.0]


class Started(tfrl.OnPolicyWorkflow):
    """Begins with a learning rate that is a number of Python."""

    def setup_agent_and_optimizer(self, key):
        agent_state, opt_state = super().setup_agent_and_optimizer(key)
        (name,) = opt_state
        return agent_state, {name: {**opt_state[name], "learning_rate": 1}}


def test_a_hook_may_return_numbers_of_python(env):
    state = Started(env, functools.partial(tfrl.PPO, hidden=(4,)), num_minibatches=1).setup(0)
    (slots,) = state.opt_state.values()
    assert float(slots["learning_rate"]) == 1.0


def test_what_a_subclass_adds_beside_a_buffer_is_saved(env, tmp_path):
    agent, replay = (
        functools.partial(tfrl.DQN, hidden=(4,)),
        functools.partial(InGraphReplay, capacity=16),
    )
    workflow = OwnBesideABuffer(
        env, agent, replay=replay, batch_size=2, random_steps=4, compile="graph"
    )
    state = workflow.advance(workflow.setup(0), 4).state
    workflow.save(state, tmp_path)
    restored = workflow.restore(tmp_path)
    mine = float(state.replay_buffer_state["mine"])
    assert float(restored.replay_buffer_state["mine"]) == mine > 0.0
    size = workflow.replay_buffer(state).size()
    assert workflow.replay_buffer(restored).size() == size > 0


class Own(Workflow):
    """Counts in a state of two leaves; returns what a test asks for."""

    def __init__(self, returns, *first):
        super().__init__()
        self.returns = returns
        self.first = first or ({"w": np.zeros(3, np.float32), "sigma": 1.5}, {})

    def setup_agent_and_optimizer(self, key):
        return self.first[0] if len(self.first) == 1 else self.first

    def iterate(self, state, key):
        agent_state = {**state.agent_state, "w": state.agent_state["w"] + 1.0}
        metrics = state.metrics.counted(env_steps=1)
        return self.returns(state.replace(agent_state=agent_state, metrics=metrics))


def test_numbers_of_a_fresh_state_are_tensors_that_can_be_restored(tmp_path):
    workflow = Own(lambda state: ({"x": 1.0}, state))
    _, state = workflow.step(workflow.setup(0))
    workflow.save(state, tmp_path)
    row, state = workflow.step(workflow.restore(tmp_path))
    assert (row["x"], row["env_steps"], float(state.agent_state["sigma"])) == (1.0, 2, 1.5)
    np.testing.assert_array_equal(state.agent_state["w"], [2.0, 2.0, 2.0])


def _with(**leaves):
    return lambda state: ({}, state.replace(agent_state={**state.agent_state, **leaves}))


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        (lambda state: None, "what `iterate` returns: expected the metrics.* got NoneType"),
        (lambda state: (state, {}), "got tuple of State, dict"),
        (lambda state: ({"x": tf.zeros(3)}, state), "metric 'x' .* a scalar, got .* shape .3,."),
        (lambda state: ({"x": "a"}, state), "metric 'x' .* a scalar, got str"),
        (lambda state: ({}, state.replace(agent_state={"v": 1.0})), "got missing agent_state/sig"),
        (_with(v=tf.zeros(3)), "got unknown agent_state/v"),
        (_with(w=tf.zeros(4)), r"agent_state/w of shape \(4,\) for \(3,\)"),
        (_with(sigma=tf.constant(1)), "agent_state/sigma of dtype int32 for float32"),
    ],
)
@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_what_iterate_must_return(mode, returns, message):
    workflow = Own(returns)
    workflow.compile = mode
    with pytest.raises(UserError, match=message):
        workflow.step(workflow.setup(0))


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ([None], "setup_agent_and_optimizer returns: expected agent_state and opt_state.*NoneType"),
        (({}, {}, {}), "got tuple of dict, dict, dict"),
        (({"w": None}, {}), "a leaf of agent_state in a state: expected a number"),
    ],
)
def test_what_a_hook_of_setup_must_return(first, message):
    with pytest.raises(UserError, match=message):
        Own(lambda state: ({}, state), *first).setup(0)


def test_counters_must_be_run_metrics(env):
    class Forgets(tfrl.OnPolicyWorkflow):
        def setup_workflow_metrics(self):
            return None

    with pytest.raises(UserError, match="setup_workflow_metrics returns: expected RunMetrics"):
        Forgets(env, functools.partial(tfrl.PPO, hidden=(4,)), num_minibatches=1).setup(0)


def test_an_evaluation_of_ones_own_leaves_the_training_alone():
    env = tfrl.make_env("gymnasium:CartPole-v1", num_envs=2)
    workflow = Collecting(env)
    workflow.evaluator = tfrl.Evaluator(env=env, agent=workflow.agent, num_episodes=2)
    state = workflow.learn(workflow.setup(0), total_env_steps=24, eval_interval=8, progress=False)
    assert workflow.env_steps(state) == 24
    workflow.close()
    env.close()


def test_states_of_tensors_are_trained_and_saved(env, tmp_path):
    workflow = tfrl.OnPolicyWorkflow(
        env, functools.partial(tfrl.PPO, hidden=(4,)), keras.optimizers.SGD(0.1), rollout_length=4,
        num_minibatches=1, num_epochs=1, compile="graph",
    )  # fmt: skip
    first, second = (struct.values(workflow.setup(seed)) for seed in range(2))
    workflow.save(first, tmp_path / "saved")
    workflow.adopt(first, tmp_path / "saved")
    assert workflow.is_of(first, tmp_path / "saved")
    assert not workflow.is_of(second, tmp_path / "saved")
    after = workflow.learn(first, total_env_steps=16, root_dir=tmp_path / "run", progress=False)
    assert workflow.env_steps(after) == 16 and int(first.metrics.env_steps) == 0
    _, after = workflow.step(second)
    assert any(isinstance(x, tf.Variable) for x in tf.nest.flatten(after.agent_state))


class OwnEnvState(tfrl.OnPolicyWorkflow):
    """Begins with a reward."""

    def setup_env_state(self, key):
        state = self.env.reset(key)
        return state.replace(reward=state.reward + 5.0)


def test_the_hook_of_the_environments_state_is_called(env):
    agent = functools.partial(tfrl.PPO, hidden=(4,))
    options = {"rollout_length": 4, "num_minibatches": 1, "num_epochs": 1, "compile": "graph"}
    state = OwnEnvState(env, agent, **options).setup(0)
    assert state.env_state.reward.numpy().tolist() == [5.0, 5.0]


class Plain(LearnerWorkflow):
    """The methods that a workflow over a learner must define."""

    def __init__(self, env, agent):
        given = dict.fromkeys(("optimizer", "evaluator", "eval_env", "learner_config", "strategy"))
        super().__init__(
            env=env,
            agent=agent,
            rollout_length=LENGTH,
            default_config=ModuleConfig(),
            check_numerics="raise",
            eval_episodes=2,
            compile="auto",
            iterations_per_call=None,
            **given,
        )
        self._complete()

    def iterate(self, state, key):
        out = self.play(state, key)
        metrics, state = self.fit(state, out.batch, key, state.metrics.env_steps)
        return self.finished(self.with_normalizer(state, out.normalizer), out, metrics)

    def make_batch(self, agent_state, trajectory):
        return self.agent.learner_batch(agent_state, trajectory)


@pytest.mark.parametrize("suite", ["tf", "gymnasium"])
@pytest.mark.variants(1)
def test_a_workflow_over_a_learner_defines_two_methods(suite):
    assert LearnerWorkflow.__abstractmethods__ == {"iterate", "make_batch"}
    workflow = Plain(tfrl.make_env(f"{suite}:CartPole-v1", num_envs=2), tfrl.A2C)
    state = workflow.advance(workflow.setup(0), 2).state
    row, state = workflow.step(state)
    assert (row["iterations"], row["learner_steps"]) == (3, 3)
    assert workflow.describe().endswith(f"x {LENGTH} steps")
    with pytest.raises(UserError, match="Plain.learn_from: expected an override, for rollouts"):
        workflow.learn_from(state, None, None)
    workflow.close()


class OwnIterate(tfrl.OnPolicyWorkflow):
    def iterate(self, state, key):
        row, state = super().iterate(state, key)
        return {**row, "mine": tf.constant(3.0)}, state


class OwnPlay(tfrl.OffPolicyWorkflow):
    def play(self, state, key, action_fn=None):
        out = super().play(state, key, action_fn)
        return out.replace(metrics={**out.metrics, "mine": tf.constant(3.0)})


class OwnLearning(tfrl.OffPolicyWorkflow):
    def learn_from(self, state, out, key):
        row, state = super().learn_from(state, out, key)
        return {**row, "mine": tf.constant(3.0)}, state


def test_an_override_is_known_by_its_function(env, monkeypatch):
    """Not by its module, which a decorator may have set."""
    monkeypatch.setattr(OwnIterate.iterate, "__module__", "tfrl.iterations")
    monkeypatch.setattr(OwnLearning, "__module__", "tfrl.iterations")
    monkeypatch.setattr(OwnLearning, "scale", 2.0, raising=False)
    on_policy = OwnIterate(env, tfrl.PPO, rollout_length=LENGTH, num_minibatches=1)
    off_policy = OwnLearning(env, tfrl.DQN)
    assert on_policy.changed_hooks == ["iterate"]
    assert off_policy.changed_hooks == [] and not off_policy.prefetches
    assert off_policy.logic()["scale"] == 2.0
    assert tfrl.OffPolicyWorkflow(env, tfrl.DQN).changed_hooks == []


@pytest.mark.parametrize("cls", [OwnIterate, OwnPlay, OwnLearning])
@pytest.mark.parametrize("suite", ["gymnasium", "tf"])
@pytest.mark.variants(2)
def test_parts_of_an_iteration_may_be_replaced_everywhere(cls, suite):
    env = tfrl.make_env(f"{suite}:CartPole-v1", num_envs=2)
    # On the device rollout, buffer and sample would be one XLA program.
    modes = {"rollout": "xla", "loop": "graph"} if suite == "tf" else {}
    sizes = {"rollout_length": LENGTH, "compile": {"update": "graph", **modes}}
    if cls is OwnIterate:
        workflow = cls(env, tfrl.PPO, num_epochs=1, num_minibatches=1, **sizes)
    else:
        replay = functools.partial(InGraphReplay, capacity=64)
        sizes["updates_per_step"] = 1 / (2 * LENGTH)  # a learner step an iteration: draws ahead
        workflow = cls(env, tfrl.DQN, None, None, replay, random_steps=8, batch_size=4, **sizes)
        assert workflow.always_due() == 1
    state = workflow.setup(0)
    for _ in range(3):
        row, state = workflow.step(state)
    assert row["mine"] == 3.0
    assert row["learner_steps"] > 0
    assert row["env_steps"] == 24


def test_with_reverb_the_parts_are_the_librarys():
    env = tfrl.make_env("gymnasium:CartPole-v1", num_envs=2)
    workflow = OwnPlay(env, tfrl.DQN, random_steps=8, batch_size=4)
    with pytest.raises(UserError, match=r"OwnPlay.play: .* Use replay_buffer=InGraphReplay"):
        workflow.setup(0)
    learning = OwnLearning(env, tfrl.DQN, random_steps=8, batch_size=4)  # what follows a rollout
    state = learning.setup(0)
    while learning.env_steps(state) < 24:  # the first block has 16
        row, state = learning.step(state)
    assert row["mine"] == 3.0 and row["learner_steps"] > 0
    learning.close()


def test_an_iteration_by_itself_consumes_its_state(env):
    workflow = tfrl.OnPolicyWorkflow(
        env, tfrl.PPO, rollout_length=LENGTH, num_epochs=1, num_minibatches=1, compile="graph"
    )
    state = workflow.setup(0)
    _, after = workflow.iterate(state, seeding.key(1))
    for use in (workflow.step, lambda s: workflow.iterate(s, seeding.key(2))):
        with pytest.raises(UserError, match="the newest state of its run, of iteration 1"):
            use(state)
    assert workflow.step(after)[0]["iterations"] == 2


def test_an_off_policy_iteration_is_called_from_python(env):
    workflow = tfrl.OffPolicyWorkflow(env, tfrl.DQN, random_steps=8, batch_size=4)
    state = workflow.setup(0)
    with pytest.raises(UserError, match="inside a tf.function. Use workflow.advance"):
        tf.function(lambda: workflow.iterate(state, seeding.key(0))[0], autograph=False)()


@pytest.mark.slow
def test_a_restored_run_is_not_timed_again(env, tmp_path, monkeypatch):
    make = functools.partial(
        tfrl.OnPolicyWorkflow,
        *(env, tfrl.PPO),
        rollout_length=LENGTH,
        num_epochs=1,
        num_minibatches=1,
    )
    workflow = make()
    row, state = workflow.step(workflow.setup(0))
    workflow.save(state, tmp_path)
    monkeypatch.setattr("tfrl.workflows.learner_workflow.CompileModeTuner", None)
    again = make()
    restored, _ = again.step(again.restore(tmp_path))
    np.testing.assert_equal(restored["iterations"], 2)
    assert again.compile["update"] in ("graph", "xla")
    assert row["iterations"] == 1


def test_states_of_another_form_are_refused(env):
    class Other(tfrl.OnPolicyWorkflow):
        def setup_agent_and_optimizer(self, key):
            agent_state, opt_state = super().setup_agent_and_optimizer(key)
            return agent_state.replace(params={"policy": {}}), opt_state

    ppo = functools.partial(tfrl.OnPolicyWorkflow, env, rollout_length=LENGTH, num_minibatches=1)
    with pytest.raises(
        UserError, match="agent_state of Other.setup_agent_and_optimizer: .* got missing params/"
    ):
        Other(env, tfrl.PPO, rollout_length=LENGTH, num_minibatches=1).setup(0)
    other = tfrl.OffPolicyWorkflow(env, tfrl.DQN, random_steps=8, batch_size=4).setup(0)
    with pytest.raises(UserError, match="replay_buffer_state of the state: expected the structure"):
        ppo(tfrl.PPO).step(other)
    more = tfrl.make_env("tf:CartPole-v1", num_envs=8)
    other = tfrl.OnPolicyWorkflow(more, tfrl.PPO, rollout_length=LENGTH, num_minibatches=1)
    with pytest.raises(
        UserError,
        match=r"env_state.obs of the state: expected the observations of 2 environments .* got .* "
        r"of shape \(8, 4\) for \(2, 4\)",
    ):
        ppo(tfrl.PPO).step(other.setup(0))
    state = ppo(tfrl.PPO).setup(0)
    for give in (lambda x: x, struct.values):
        fresh = other.setup(0).replace(env_state=None)
        with pytest.raises(UserError, match="env_state.obs of the state: .* got missing"):
            ppo(tfrl.PPO).step(give(fresh))
    assert ppo(tfrl.PPO).step(struct.values(state))[0]["iterations"] == 1
    with pytest.raises(UserError, match="expected a state from `setup`, got NoneType"):
        ppo(tfrl.PPO).step(None)
    with pytest.raises(UserError, match="^replay_buffer: expected a function"):
        tfrl.OffPolicyWorkflow(env, tfrl.DQN, replay_buffer=5)

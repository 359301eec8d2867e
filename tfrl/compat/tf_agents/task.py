"""TF-Agents' agents in the task layer, trained on the environments of a worker pool."""

import abc
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfrl import seeding, specs, struct
from tfrl.compat.tf_agents.from_tf_agent import TFAgentModule
from tfrl.compat.tf_agents.from_tf_agent_calls import INFO, rollout_batch
from tfrl.errors import UserError
from tfrl.tasks import RLTask, Samples
from tfrl.types import Nest, Trajectory, Transition


class TFAgentTask(RLTask):
    """An `RLTask` with a TFAgent as model, policy and training step.

    ```python
    class MyTask(TFAgentTask):
        get_environment = staticmethod(functools.partial(gymnasium.make, "CartPole-v1"))

        def get_agent(self, obs_spec, action_spec):
            return from_tf_agent(make_agent, obs_spec=obs_spec, action_spec=action_spec)
    ```

    Each update is one `train` of the TFAgent, on `batch_size` clips of `num_samples` samples. For
    an agent that learns from replay, a clip is an item of `num_samples` steps; for an agent that
    learns from rollouts (PPO, REINFORCE; `on_policy=True`) it is a sequence of them. Random draws
    of acting follow from the global seeds, as everywhere in the task layer; random draws of
    training follow from the run's seed and the number of updates.

    Agents with a policy state (a memory, DDPG's noise) are not supported: the task layer acts for
    varying subsets of workers.
    """

    @abc.abstractmethod
    def get_agent(self, obs_spec: Nest, action_spec: Nest) -> TFAgentModule:
        """Makes the agent, once.

        Args:
          obs_spec: The nest of specs of one observation of `get_environment`.
          action_spec: The nest of specs of one action.

        Returns:
          A `TFAgentModule`, from `from_tf_agent` or `tfrl.compat.tf_agents_factories`.
        """

    @functools.cached_property
    def agent(self) -> TFAgentModule:
        """The agent module, which is logic; the model has the values.

        Raises:
          UserError: Unless it is a `TFAgentModule` that can be trained in a task.
        """
        env = self.get_environment()
        try:
            result = self.get_agent(
                specs.to_spec(env.observation_space), specs.to_spec(env.action_space)
            )
        finally:
            env.close()
        self._check(result)
        return result

    def _check(self, agent: Any) -> None:
        owner = f"get_agent of {type(self).__name__}"
        if not isinstance(agent, TFAgentModule):
            raise UserError(
                owner,
                expected="a TFAgentModule",
                got=type(agent).__name__,
                remedy="Return from_tf_agent(make_agent, obs_spec=obs_spec, "
                "action_spec=action_spec).",
            )
        if agent.initial_carry(1) is not None or agent.takes_sequences:
            raise UserError(
                owner,
                expected="an agent without policy state",
                got=f"a {agent.algorithm} with recurrent state or temporally correlated noise",
                remedy="Train it in OffPolicyWorkflow or OnPolicyWorkflow, on "
                "make_env(..., env_kwargs={'vectorization': 'async'}) for processes.",
            )
        replays = agent.learns_from_replay
        if replays and (self.config.num_samples, self.config.stride) != (agent.n_step, 1):
            raise UserError(
                f"num_samples of {type(self).__name__}",
                expected=f"{agent.n_step}, the steps per item of {agent.algorithm}, and stride 1",
                got=f"num_samples {self.config.num_samples}, stride {self.config.stride}",
                remedy=f"Write RLTaskConfig.num_samples = {agent.n_step}.",
            )
        if not replays and not (self.config.on_policy and self.config.stride == 1):
            raise UserError(
                f"on_policy of {type(self).__name__}",
                expected=f"True and stride 1, since {agent.algorithm} learns from its own rollouts",
                got=f"{self.config.on_policy}, stride {self.config.stride}",
                remedy="Write RLTaskConfig.on_policy = True.",
            )

    def get_model(self) -> tf.Module:
        """Creates the agent's values; they follow from the global seeds."""
        return _AgentVariables(self.agent)

    def get_actions(self, model: Any, states: Nest, optimal: bool) -> Any:
        """Acts by the collect policy, or by the greedy policy if `optimal`."""
        obs = tf.nest.map_structure(tf.convert_to_tensor, states)
        return model.act(obs, tf.random.uniform([2], maxval=2**31 - 1, dtype=tf.int32), optimal)

    @tf.autograph.experimental.do_not_convert
    def train_model(self, model: Any, batch: Samples) -> dict[str, Any]:
        """Takes a training step of the TFAgent."""
        rows = _rows(self.agent, batch)
        return self.agent.train(model.state(), rows, model.next_key())


class _AgentVariables(tf.Module):
    """The values of a TFAgent as variables."""

    def __init__(self, agent: TFAgentModule):
        super().__init__(name="tf_agent")
        self._agent = _hidden(agent)
        key = tf.random.uniform([2], maxval=2**31 - 1, dtype=tf.int32)
        result = agent.init(key)
        trained = set(struct.paths({"params": result.params}))
        self.values = [
            tf.Variable(x, trainable=path in trained and x.dtype.is_floating, name=_named(path))
            for path, x in struct.paths(result).items()
        ]
        self._form = _hidden(result)
        self.key = tf.Variable(seeding.stream(key, "train"), trainable=False, name="key")
        self.updates = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates")
        acting = {
            optimal: tf.function(
                functools.partial(self._act, optimal), autograph=False, reduce_retracing=True
            )
            for optimal in (False, True)
        }
        self._acting = _hidden(acting)

    def state(self) -> Any:
        """Returns the variables as the agent's state."""
        return tf.nest.pack_sequence_as(self._form(), self.values)

    def next_key(self) -> tf.Tensor:
        """Counts an update and returns its key."""
        return seeding.fold_in(self.key, self.updates.assign_add(1))

    def act(self, obs: Nest, key: tf.Tensor, optimal: bool) -> Any:
        """Returns actions, and the extras that training needs."""
        return self._acting()[optimal](obs, key)

    def _act(self, optimal: bool, obs: Nest, key: tf.Tensor) -> Any:
        agent = self._agent()
        act = agent.evaluate_actions if optimal else agent.compute_actions
        values = tf.nest.map_structure(tf.convert_to_tensor, self.state())
        output = act(values, obs, key)
        info = (output.extras or {}).get(INFO, [])
        return output.action, {f"{INFO}_{i:03d}": x for i, x in enumerate(info)}


def _hidden(value: Any) -> Callable[[], Any]:
    """Hides a value from tf.Module, which would search it for variables."""
    return lambda: value


def _named(path: str) -> str:
    return path.replace("/", "_").replace(".", "_")


def _rows(agent: TFAgentModule, batch: Samples) -> Nest:
    """Converts clips `[B, n, ...]` to a batch for the agent."""
    if agent.learns_from_replay:
        return _items(agent, batch)
    after = tf.nest.map_structure(
        lambda x, last: tf.concat([x[:, 1:], last[:, tf.newaxis]], 1), batch.obs, batch.last_obs
    )
    steps = Trajectory(
        obs=batch.obs,
        action=batch.action,
        reward=tf.cast(batch.reward, tf.float32),
        next_obs=after,
        termination=batch.termination,
        truncation=batch.truncation,
        valid=tf.ones_like(batch.termination),
        policy_extras=_info(batch),
    )
    swapped = tf.nest.map_structure(_swapped, steps)
    return rollout_batch(agent.logic, swapped)


def _items(agent: TFAgentModule, batch: Samples) -> Transition:
    """Converts each clip to an item of n steps; only its last sample can end the episode."""
    steps = batch.reward.shape[1]
    weights = tf.constant([agent.discount**t for t in range(steps)], tf.float32)
    going_on = 1.0 - tf.cast(batch.termination[:, -1], tf.float32)
    info = _info(batch)
    first = tf.nest.map_structure(lambda x: x[:, 0], (batch.obs, batch.action, info or {}))
    return Transition(
        obs=first[0],
        action=first[1],
        reward=tf.reduce_sum(tf.cast(batch.reward, tf.float32) * weights, 1),
        next_obs=batch.last_obs,
        discount=going_on * agent.discount**steps,
        extras=None if info is None else {"policy_extras": first[2]},
    )


def _info(batch: Samples) -> dict[str, list[Any]] | None:
    names = sorted(name for name in batch.extras if name.startswith(f"{INFO}_"))
    return {INFO: [batch.extras[name] for name in names]} if names else None


def _swapped(x: tf.Tensor) -> tf.Tensor:
    return tf.transpose(x, [1, 0, *range(2, x.shape.rank)])

"""A distributed run in threads of one process, for tests."""

import threading
from types import SimpleNamespace

from tfrl.launch import settings
from tfrl.replay.reverb import tables as tables_lib
from tfrl.replay.reverb.library import reverb
from tfrl.replay.reverb.server import ReverbServer
from tfrl.roles import tables
from tfrl.roles.collector import ReplayCollector, RolloutCollector

PPO = ("ppo/tf_cartpole.gin", "make_env.num_envs=4", "OnPolicyWorkflow.rollout_length=8",
       "OnPolicyWorkflow.num_epochs=1", "OnPolicyWorkflow.num_minibatches=1",
       "OnPolicyWorkflow.compile='graph'", "PPO.hidden=(4,)")  # fmt: skip

DQN = ("dqn/tf_cartpole.gin", "make_env.num_envs=2", "OffPolicyWorkflow.rollout_length=4",
       "OffPolicyWorkflow.random_steps=64", "OffPolicyWorkflow.batch_size=8",
       "OffPolicyWorkflow.compile='graph'", "InGraphReplay.capacity=1000",
       "DQN.normalize_obs=True", "DQN.hidden=(4,)", "InGraphReplay.kind='prioritized'",
       "InGraphReplay.alpha=1.0",
       "OffPolicyWorkflow.iterations_per_row=1")  # fmt: skip


def workflow(part, *bindings):
    return settings.assemble([part[0]], [*part[1:], *bindings]).workflow


class Job:
    """A server, and collectors in threads."""

    def __init__(self, part, num_collectors):
        self.part, self.count = part, num_collectors
        self.server = ReverbServer(tables.make_tables(workflow(part), num_collectors))
        self.collectors, self.threads, self.ended, self.closed = [], [], [], 0

    def begin(self):
        made = [workflow(self.part) for _ in range(self.count)]  # gin is not for threads
        for i, each in enumerate(made):
            thread = threading.Thread(target=self._play, args=(each, i))
            thread.start()
            self.threads.append(thread)

    def _play(self, each, i):
        kind = RolloutCollector if "ppo" in self.part[0] else ReplayCollector
        collector = kind(
            each, self.server.address, task_id=i, num_tasks=self.count, wait_seconds=30.0
        )
        self.collectors.append(collector)
        self.ended.append(collector.run())
        collector.close()
        self.closed += 1

    def join(self):
        for thread in self.threads:
            thread.join(timeout=30.0)
            assert not thread.is_alive()

    def inserted(self, table):
        info = reverb().Client(self.server.address).server_info()[table]
        return info.rate_limiter_info.insert_stats.completed


def advance(learner, state, until, iterations=8):
    rows = []
    while learner.env_steps(state) < until:
        done = learner.advance(state, iterations, until)
        state, rows = done.state, [*rows, *done.rows]
    return state, rows


def answer(table, inserts, start=None):
    """`server_info` of a server; `start` are its numbers and the inserts that it has restored."""
    stats = SimpleNamespace(completed=inserts)
    found = {table: SimpleNamespace(rate_limiter_info=SimpleNamespace(insert_stats=stats))}
    if start:
        names = zip((tables_lib.START, table), start, strict=True)
        signature = {name: SimpleNamespace(name=str(number)) for name, number in names}
        found[tables_lib.START] = SimpleNamespace(signature=signature)
    return found

import functools
import importlib
import logging
import time
import types

import gymnasium
import pytest

from tests.envs.workers import processes
from tests.envs.workers.driving import (
    MODES,
    MOSTLY_FAST_MODES,
    PATIENCE,
    arrived,
    ended,
    first_states,
    make_pool,
    play,
    quiet,
)
from tests.envs.workers.environments import Chosen, Fault, Faulty, Walk
from tfrl.envs.workers import (
    NoState,
    WorkerError,
    WorkerPool,
    async_worker,
    base,
    episode_seed,
    hosts,
)
from tfrl.errors import UserError

# An environment without a fault never ends by itself.
LIMIT = {"max_episode_steps": 5}


def chosen(faults):
    """A factory by the fault that each worker has in its episode 0."""
    by_seed = {episode_seed(1337, w, 0): fault for w, fault in enumerate(faults)}
    return functools.partial(Chosen, by_seed)


def faults_of(pool, count):
    """Plays until `count` workers have failed; returns {worker_id: error}, and the states."""
    errors, states = {}, []
    while len(errors) < count:
        try:
            state = pool.get_state(PATIENCE)
        except WorkerError as error:
            assert error.worker_id not in errors
            errors[error.worker_id] = error
            continue
        assert state
        states.append(state)
        if not state.last:
            pool.send_action(0, state.worker_id)
    return errors, states


SYNC = "Reproduce it in this process with force_sync=True and the same seed."
ALONE = "Reproduce it with env_factory().reset(seed=...) in this process."
STEP = "expected a step that returns obs, reward, terminated, truncated and info"
RESET = "expected a reset that returns obs and an info dict"
SHAPE = (
    "obs: expected float32 [2], as in the observation space, got {}. Cast or reshape it in the "
    "environment or a gymnasium.ObservationWrapper, or correct observation_space."
)
NAN = (
    "obs: expected finite numbers, got nan at [1]. Look for a division by zero or a diverging "
    "simulation; if intended, use np.nan_to_num or np.clip in a gymnasium.ObservationWrapper."
)
BROKE = "got ZeroDivisionError: the walk broke. "
# Fault, where it is said to be, the message, and whether a traceback follows.
REPORTED = [
    (Fault("raises", "step", 2), "step 3: step()", f": {STEP}, {BROKE}{SYNC}", True),
    (Fault("raises", "reset"), "step 0: reset()", f": {RESET}, {BROKE}{ALONE}", True),
    (Fault("exits", "step"), "step 1: step()", f": {STEP}, got SystemExit: 3. {SYNC}", True),
    (Fault("nan", "step", 1), "step 2", f": {NAN}", False),
    (Fault("nan", "reset"), "step 0", f": {NAN}", False),
    (Fault("shape", "step"), "step 1", ": " + SHAPE.format("float32 [3]"), False),
    (Fault("dtype", "step", 3), "step 4", ": " + SHAPE.format("float64 [2]"), False),
    (Fault("dtype", "reset"), "step 0", ": " + SHAPE.format("float64 [2]"), False),
]
WORKS = Fault("none", "nowhere")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.variants(1)
def test_what_an_environment_does_wrong_reaches_the_caller(mode):
    broken = len(REPORTED)
    with make_pool(chosen([*(row[0] for row in REPORTED), WORKS]), broken + 1, mode) as pool:
        pool.reset()
        errors, states = faults_of(pool, broken)
        for worker_id, (_, where, message, has_traceback) in enumerate(REPORTED):
            error = errors[worker_id]
            paragraph, _, trace = str(error).partition(f"\n\nIn worker {worker_id}:\n")
            place = f"environment of worker {worker_id}, episode 0, {where}"
            assert paragraph == place + message
            assert isinstance(error, UserError) and not error.__cause__ == (mode == "sync")
            assert error.worker_traceback == trace
            assert (trace == "") == (not has_traceback)
            if has_traceback:
                assert trace.startswith("Traceback") and "environments.py" in trace
                assert "    raise ZeroDivisionError" in trace or "    sys.exit(3)" in trace
        # States up to the fault had been delivered.
        steps = {w: max((s.step for s in states if s.worker_id == w), default=-1) for w in range(9)}
        at = [int(where[5:].partition(":")[0]) - 1 for _, where, _, _ in REPORTED]
        assert [steps[w] for w in range(broken)] == at
        # The last worker goes on, none of the others was restarted, and none takes an action.
        assert pool.restarts == 0
        states = play(pool, lambda s: len(s) == 3)
        assert {state.worker_id for state in states} == {broken}
        with pytest.raises(UserError, match="got an action for a worker without a pending state"):
            pool.send_action(0, 0)


@pytest.mark.parametrize("mode", MODES)
def test_a_reset_makes_a_new_environment_after_a_fault(mode):
    with make_pool(chosen([Fault("raises", at=1)]), 1, mode) as pool:
        pool.reset()
        with pytest.raises(WorkerError, match="the walk broke"):
            play(pool, lambda s: len(s) == 3)
        quiet(pool)
        # The seed of the episode that failed is passed over.
        pool.reset()
        assert (pool.get_state(PATIENCE).episode, pool.restarts) == (1, 0)


@pytest.mark.parametrize("mode", MOSTLY_FAST_MODES[1:])
def test_a_fault_is_not_forgotten_by_a_reset(mode):
    with make_pool(chosen([Fault("raises")]), 1, mode) as pool:
        pool.reset()
        first_states(pool)
        pool.send_action(0, 0)
        arrived(pool, 0)
        # It has happened, and nobody has been told.
        pool.reset()
        with pytest.raises(WorkerError, match="the walk broke"):
            play(pool, lambda s: len(s) == 3)
        pool.reset()
        assert first_states(pool)[0].episode == 1


def test_a_fault_that_has_arrived_is_told_by_the_reset():
    with make_pool(chosen([Fault("raises"), Fault("raises")]), 2, "thread") as pool:
        pool.reset()
        first_states(pool)
        for worker_id in range(2):
            pool.send_action(0, worker_id)
        arrived(pool, 0, 1)
        # The second arrives together with the first.
        with pytest.raises(WorkerError, match="the walk broke") as first:
            pool.get_state()
        with pytest.raises(WorkerError, match="the walk broke") as second:
            pool.reset()
        assert {first.value.worker_id, second.value.worker_id} == {0, 1}
        assert pool.generation == 1
        pool.reset()
        assert {s.generation for s in first_states(pool).values()} == {2}


@pytest.mark.parametrize("mode", MOSTLY_FAST_MODES)
def test_faults_of_the_factory(mode):
    told = "environment of worker 0: env_factory(): expected "
    cases = [
        (
            functools.partial(Faulty, Fault("raises", "factory")),
            f"{told}a factory that returns a gymnasium.Env, got ZeroDivisionError: the walk "
            "broke. Call the factory once in this process to debug it.",
        ),
        (
            lambda: gymnasium.vector.SyncVectorEnv([Walk]),
            f"{told}a gymnasium.Env, got the vector environment SyncVectorEnv. Return a single "
            "environment: the pool runs one per worker.",
        ),
        (
            lambda: "CartPole-v1",
            f"{told}a gymnasium.Env, got str. Derive it from gymnasium.Env (reset(seed=, options=),"
            " step with 5 values).",
        ),
    ]
    for factory, message in cases:
        with make_pool(factory, 1, mode) as pool:
            pool.reset()
            with pytest.raises(WorkerError) as error:
                pool.get_state(PATIENCE)
            assert str(error.value).partition("\n\n")[0] == message
            quiet(pool)
    with make_pool(factory, 1, mode) as pool, pytest.raises(WorkerError) as error:
        pool.observation_space  # noqa: B018
    assert str(error.value) == message


def test_faults_of_the_import(tmp_path, monkeypatch):
    """A module that is there when the pool is made and broken when the workers import it."""
    module = tmp_path / "my_walk.py"
    module.write_text("def make():\n    return None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    my_walk = importlib.import_module("my_walk")
    module.write_text("import no_such_simulator")
    with make_pool(my_walk.make, 1, "process") as pool:
        pool.reset()
        with pytest.raises(WorkerError) as error:
            pool.get_state(PATIENCE)
    paragraph, _, trace = str(error.value).partition("\n\nIn worker 0:\n")
    assert paragraph == (
        "environment of worker 0: loading env_factory: expected a factory that loads in a new "
        "Python process, got ModuleNotFoundError: No module named 'no_such_simulator'. Define the "
        "factory in a module on sys.path, or let it refer only to picklable objects."
    )
    assert f'File "{module}", line 1' in trace


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_an_info_that_cannot_be_pickled(mode):
    with make_pool(chosen([Fault("unpicklable", at=1)]), 1, mode) as pool:
        pool.reset()
        with pytest.raises(WorkerError) as error:
            play(pool, lambda s: len(s) == 9)
    assert str(error.value).startswith(
        "environment of worker 0, episode 0, step 2: sending the state: expected picklable obs "
        "and info, since they leave the worker's process, got "
    )
    assert "Remove unpicklable items from info in a gymnasium.Wrapper." in str(error.value)


DEATHS = [
    (Fault("killed", at=2), "was killed by SIGKILL"),
    (Fault("dies", "reset"), "died with exit code 7"),
]
# Hangs are waited for as long as no loaded machine takes for a step that does not hang.
MORE_DEATHS = [
    (Fault("hangs", at=1), "hung in step for more than 20 s (step_timeout)"),
    (Fault("dies", at=1), "died with exit code 7"),
    (Fault("segfaults", at=1), "was killed by SIGSEGV"),
    (Fault("hangs", "reset"), "hung in reset for more than 25 s (reset_timeout)"),
    (Fault("holds_the_lock"), "hung in step for more than 20 s (step_timeout)"),
    (Fault("stops"), "hung in step for more than 20 s (step_timeout)"),
]


@pytest.mark.parametrize("deaths", [DEATHS, pytest.param(MORE_DEATHS, marks=pytest.mark.slow)])
def test_workers_that_die_or_hang_are_replaced(deaths, caplog):
    caplog.set_level(logging.WARNING, "tfrl.envs.workers")
    count = len(deaths)
    timeouts = {"step_timeout": 20.0, "reset_timeout": 25.0}
    factory = chosen([fault for fault, _ in deaths])
    with make_pool(factory, count, "process", **LIMIT, **timeouts) as pool:
        pool.reset()
        before = set(pool.pids)
        enough = [1 if fault.where == "reset" else 2 for fault, _ in deaths]
        states = play(pool, lambda s: all(ended(s, w) >= n for w, n in enumerate(enough)))
        assert pool.restarts == count
        assert len(pool.pids) == count and not before & set(pool.pids)
        assert processes.gone(before)
    told = sorted(record.getMessage() for record in caplog.records)
    assert len(told) == count
    for worker_id, (fault, what) in enumerate(deaths):
        assert told[worker_id].startswith(f"Environment worker {worker_id}: process ")
        assert told[worker_id].endswith(f" {what}; restart 1 of at most 10 in 0.1 s.")
        mine = [s for s in states if s.worker_id == worker_id]
        if fault.where == "reset":
            # Nothing was known of the episode that was lost: there is nothing to tell.
            assert not any(s.lost for s in mine) and mine[0].episode == 1
            continue
        # States 0 to `at` came; the action after them has no result.
        steps = [(s.episode, s.step, s.lost) for s in mine[: fault.at + 3]]
        known = [(0, step, False) for step in range(fault.at + 1)]
        assert steps == [*known, (0, fault.at, True), (1, 0, False)]
        last, lost = mine[fault.at], mine[fault.at + 1]
        assert (lost.obs == last.obs).all() and lost.info == {} and lost.reward == 0.0
        assert (lost.terminated, lost.truncated, lost.first, lost.last) == (
            False,
            True,
            False,
            True,
        )
        # The next episode is whole.
        assert [s.step for s in mine[fault.at + 2 :]][:6] == [0, 1, 2, 3, 4, 5]


def test_a_worker_that_is_killed_between_steps(caplog):
    with make_pool(Walk, 1, "process") as pool:
        pool.reset()
        state = first_states(pool)[0]
        processes.kill(pool.pids)
        # The caller cannot know: the action goes nowhere, and the loss is told.
        pool.send_action(0, 0)
        lost = pool.get_state(PATIENCE)
        assert (lost.episode, lost.step, lost.lost, lost.truncated) == (0, 0, True, True)
        assert (lost.obs == state.obs).all()
        state = pool.get_state(PATIENCE)
        assert (state.episode, state.step, state.first) == (1, 0, True)
        # Noticed although no state was under way: its caller is told.
        processes.kill(pool.pids)
        arrived(pool, 0)
        assert pool.get_state(0.0).lost
        with pytest.raises(UserError, match="without a pending state"):
            pool.send_action(0, 0)
        assert pool.get_state(PATIENCE).episode == 2
        # Killed, and reset before anybody noticed: nothing of the lost episode arrives.
        processes.kill(pool.pids)
        pool.reset()
        state = pool.get_state(PATIENCE)
        assert (state.generation, state.step, state.lost) == (2, 0, False)
        assert pool.restarts == 3


@pytest.mark.slow
def test_an_action_for_an_episode_that_is_known_to_be_lost_is_dropped():
    with make_pool(Walk, 2, "process") as pool:
        pool.reset()
        firsts = first_states(pool)
        processes.kill([pool.pids[0]])
        arrived(pool, 0)
        pool.send_action(0, 1)
        # Waiting for worker 1 the pool sees the end of worker 0, whose loss may come first or not.
        order = [pool.get_state(PATIENCE)]
        if not order[0].lost:
            assert pool.send_action(0, 0, firsts[0].generation) is False
            order.append(pool.get_state(PATIENCE))
        assert any(state.lost and state.worker_id == 0 for state in order)


@pytest.mark.slow
def test_too_many_deaths_are_an_error():
    with make_pool(lambda: Faulty(Fault("dies")), 1, "process", max_restarts=2) as pool:
        pool.reset()
        with pytest.raises(WorkerError) as error:
            play(pool, lambda s: False)
        text = str(error.value)
        assert text.startswith(
            "environment worker 0: expected at most max_restarts = 2 deaths or hangs, got 3: "
            "process "
        )
        assert text.count("died with exit code 7") == 3
        assert text.endswith(
            "Run the environment alone, raise the timeout, or raise max_restarts; a signal or an "
            "exit code indicates a fault in native code or a lack of memory."
        )
        assert pool.restarts == 2 and pool.pids == []
        quiet(pool)
        # Whoever goes on all the same gets a new process.
        pool.reset()
        assert first_states(pool)[0].episode == 3


def test_a_worker_that_cannot_start_is_given_up():
    """It dies before it could say anything."""
    factory = functools.partial(Faulty, Fault("dies", "factory"))
    with make_pool(factory, 1, "process", max_restarts=1) as pool:
        with pytest.raises(WorkerError, match="got 2: .*exit code 7; .*exit code 7"):
            pool.observation_space  # noqa: B018
        with pytest.raises(UserError) as error:
            pool.observation_space  # noqa: B018
        assert str(error.value) == (
            "environment of worker 0: expected a running environment, got a worker that stopped "
            "after an error. Call reset(), which creates a new environment."
        )
    with make_pool(
        functools.partial(Faulty, Fault("hangs", "factory")),
        *(1, "process"),
        max_restarts=0,
        start_timeout=2.0,
    ) as pool:
        pool.reset()
        with pytest.raises(WorkerError, match=r"hung in start for more than 2 s \(start_timeout\)"):
            pool.get_state()


@pytest.mark.slow
def test_the_others_go_on_while_one_is_replaced():
    """Neither a hang, nor the wait, nor the new process holds up who is well."""
    with make_pool(chosen([Fault("hangs"), WORKS]), 2, "process", step_timeout=20.0) as pool:
        pool.reset()
        steps, revived = 0, None
        firsts = first_states(pool)
        assert all(pool.send_action(0, w) for w in firsts)
        while revived is None:
            state = pool.get_state(PATIENCE)
            if state.worker_id == 0 and state.first:
                revived = state
            elif state.worker_id == 1:
                steps += 1
                if not state.last:
                    pool.send_action(0, 1)
        assert revived.episode == 1 and pool.restarts == 1
        # The hang alone took twenty seconds.
        assert steps > 20


@pytest.mark.slow
def test_a_thread_that_hangs_is_replaced():
    with make_pool(chosen([Fault("hangs", at=1)]), 1, "thread", step_timeout=20.0) as pool:
        pool.reset()
        states = play(pool, lambda s: len(s) == 5)
        assert [(s.episode, s.step, s.lost) for s in states] == [
            (0, 0, False),
            (0, 1, False),
            (0, 1, True),
            (1, 0, False),
            (1, 1, False),
        ]
        assert (pool.restarts, pool.abandoned_threads, pool.pids) == (1, 1, [])
    assert pool.abandoned_threads == 1


def test_a_caller_that_was_away_finds_what_came_in_time(monkeypatch):
    """The timeouts bound what the environment takes, not what the caller does between."""
    with make_pool(Walk, 2, "process") as pool:
        pool.reset()
        first_states(pool)
        for worker_id in range(2):
            pool.send_action(0, worker_id)
        arrived(pool, 0, 1)
        away = types.SimpleNamespace(monotonic=lambda: time.monotonic() + 2 * PATIENCE)
        monkeypatch.setattr(base, "time", away)
        monkeypatch.setattr(async_worker, "time", away)
        assert {pool.get_state(PATIENCE).step for _ in range(2)} == {1}
        assert pool.restarts == 0


@pytest.mark.parametrize("mode", ["thread", "process"])
@pytest.mark.variants(1)
def test_closing_does_not_wait_for_a_hang(mode):
    with make_pool(
        chosen([Fault("hangs"), WORKS]), 2, mode, cleanup_time=0.5, step_timeout=100.0
    ) as pool:
        pool.reset()
        first_states(pool)
        pids = pool.pids
        for worker_id in range(2):
            pool.send_action(0, worker_id)
        assert pool.get_state(PATIENCE).worker_id == 1
        assert pool.get_state(0.1) is NoState.TIMED_OUT
        before = time.monotonic()
    # The hang itself lasts a thousand seconds.
    assert 0.45 < time.monotonic() - before < 100.0
    assert processes.gone(pids)
    assert pool.abandoned_threads == (mode == "thread")


def test_an_environment_that_fails_to_close_is_told_on_standard_error(capfd, caplog):
    for mode in MODES:
        factory = functools.partial(Faulty, Fault("raises", "close"))
        with make_pool(factory, 1, mode, cleanup_time=PATIENCE) as pool:
            pool.reset()
            first_states(pool)
    error = capfd.readouterr().err
    assert error.count("env.close() of environment worker 0 raised:\nTraceback") == 2
    # More often where another test has given absl's log a handler.
    assert error.count("ZeroDivisionError: the walk broke") >= 2
    (record,) = caplog.records
    assert record.getMessage() == "env.close() of environment worker 0 raised."
    assert "the walk broke" in str(record.exc_info[1])


@pytest.mark.slow
def test_a_slow_close_is_waited_for(tmp_path):
    marker = tmp_path / "closed"

    class Slow(Walk):
        def close(self):
            time.sleep(0.5)
            marker.write_text("closed")

    with make_pool(Slow, 1, "process", cleanup_time=PATIENCE) as pool:
        pool.reset()
        first_states(pool)
    assert marker.read_text() == "closed"


@pytest.mark.slow
def test_a_process_that_cannot_be_started_is_tried_again(monkeypatch, caplog):
    started, tries = hosts.ProcessHost, []

    def second_fails(payload, settings):
        tries.append(settings.worker_id)
        if len(tries) == 2:
            raise OSError("no more processes")
        return started(payload, settings)

    monkeypatch.setattr(hosts, "ProcessHost", second_fails)
    with make_pool(chosen([Fault("dies")]), 1, "process", **LIMIT) as pool:
        pool.reset()
        states = play(pool, lambda s: ended(s, 0) == 2)
        assert pool.restarts == 2 and len(tries) == 3
    assert [(s.episode, s.step) for s in states[:3]] == [(0, 0), (0, 0), (1, 0)]
    message = "Environment worker 0: failed to start: no more processes; restart 2 of at most "
    assert caplog.records[1].getMessage() == f"{message}10 in 0.2 s."


def test_a_pool_that_cannot_be_made_leaves_nothing(monkeypatch):
    before, started = processes.children(), hosts.ProcessHost

    def second_fails(payload, settings):
        if settings.worker_id == 1:
            raise OSError("no more processes")
        return started(payload, settings)

    monkeypatch.setattr(hosts, "ProcessHost", second_fails)
    with pytest.raises(OSError, match="no more processes"):
        WorkerPool(Walk, 2)
    assert processes.children() == before

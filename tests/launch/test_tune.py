"""Searches of hyperparameters: spaces, trials, pruning, going on after a kill, the best as gin."""

import csv
import json
import os
import pathlib
import shlex
import subprocess
import sys
import threading
import types

import optuna
import pytest
from absl import flags

from tests import docs_helpers, forked
from tests.launch.launch_runs import arguments, command, in_process
from tfrl.errors import UserError
from tfrl.experiment import search_report
from tfrl.experiment.callbacks import Event
from tfrl.launch import api, best_gin, search_space, settings, study, termination, trial, tune

CATCH = "ppo/tf_catch.gin"
TUNE_FLAGS = [
    "space", "trials", "sampler", "pruner", "startup_trials", "storage", "one_trial",
]  # fmt: skip
RANGES = """
PPO.clip = {'low': 0.1, 'high': 0.4}
OnPolicyWorkflow.num_epochs = {'low': 1, 'high': 9, 'log': True}
PPO.hidden = {'choices': ((4,), (8, 8))}
PPO.discount = 0.9
"""


def file_of(tmp_path, text, name="space.gin"):
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def ask(space, seed=0):
    made = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
    return space.choose(made.ask()), made.trials[0]


def test_a_space_in_gin(tmp_path):
    space = search_space.read(file_of(tmp_path, RANGES))
    chosen, asked = ask(space)
    assert 0.1 <= chosen["PPO.clip"] <= 0.4 and chosen["PPO.discount"] == 0.9
    assert type(chosen["OnPolicyWorkflow.num_epochs"]) is int
    assert chosen["PPO.hidden"] in ((4,), (8, 8))
    assert asked.params["PPO.hidden"] in ("(4,)", "(8, 8)")  # what optuna can store
    assert asked.distributions["OnPolicyWorkflow.num_epochs"].log
    assert "PPO.discount" not in asked.params


def test_a_space_in_python(tmp_path, monkeypatch):
    (tmp_path / "my_tfrl_spaces.py").write_text(
        "RATES = {'ModuleConfig.lr': {'low': 0.1, 'high': 0.2}}\n"
        "def function(trial):\n"
        "    return {'PPO.clip': trial.suggest_float('c', 0.2, 0.3)}\n"
        "def nothing(trial):\n    return None\n"
        "def failing(trial):\n    return {}['x']\n"
        "NUMBER = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    # The rate of a file that has a schedule is where that starts.
    found = search_space.read("my_tfrl_spaces:RATES", [CATCH])
    assert list(found.entries) == ["LinearSchedule.start"]
    chosen, asked = ask(search_space.read("my_tfrl_spaces:function"))
    assert chosen == {"PPO.clip": asked.params["c"]}
    with pytest.raises(UserError, match="a function of an optuna trial that returns"):
        ask(search_space.read("my_tfrl_spaces:nothing"))
    with pytest.raises(UserError, match="failing: expected .* got KeyError: 'x' .*spaces.py:7"):
        ask(search_space.read("my_tfrl_spaces:failing"))
    for name in ("my_tfrl_spaces:NUMBER", "my_tfrl_spaces:missing", "no_such_module:x", "a"):
        with pytest.raises(UserError, match=f"--space={name}"):
            search_space.read(name)


@pytest.mark.parametrize(
    ("line", "got"),
    [
        ("PPO.clip = {'low': 0.4, 'high': 0.1}", "0.4"),
        ("PPO.clip = {'low': 0.1, 'hihg': 0.4}", "keys 'low', 'hihg'"),
        ("PPO.clip = {'low': 0.0, 'high': 0.4, 'log': True}", "low"),
        ("PPO.clip = {'choices': ()}", "choices must be non-empty"),
        ("PPO.clip = {'low': 'a', 'high': 'b'}", "'a'"),
        ("PPO.torso = @MLP()", "a reference without quotes"),
        ("PPO.clip = 0.1", "none"),
    ],
)
def test_mistakes_in_spaces(tmp_path, line, got):
    with pytest.raises(UserError, match="Put the reference in quotes|Write .'low'") as error:
        search_space.read(file_of(tmp_path, line))
    assert got in str(error.value)


@pytest.mark.parametrize("pruner", ["median", "hyperband", "none"])
@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_samplers_and_pruners(tmp_path, sampler, pruner):
    """A bad trial behind eight good ones ends early; draws differ from process to process."""
    options = Options(tmp_path, sampler=sampler, pruner=pruner, evaluations=9)
    drawn, ends = [], []
    for number in range(9):
        made = options.open()  # as a process of its own does
        options.prepare(made)
        asked = made.ask()
        drawn.append(CLIP.choose(asked)["PPO.clip"])
        for step in range(1, 10):
            asked.report(-1.0 if number == 8 else 1.0, step)
            if asked.should_prune():
                break
        ends.append(step)
        made.tell(asked, 0.0)
    assert len(set(drawn)) == 9
    assert ends[-1] == {"median": 4, "none": 9}.get(pruner, ends[-1])
    assert ends[0] == 9 or pruner == "hyperband"


@pytest.mark.parametrize("name", ["ppo", "sac", "td3", "dqn"])
def test_shipped_spaces_fit_shipped_files(name):
    task = "pendulum" if name in ("sac", "td3") else "cartpole"
    file = f"{name}/tf_{task}.gin"
    assert search_space.default(file) == f"tune/{name}.gin"
    space = search_space.read(f"tune/{name}.gin", [file])
    trial._check_names(space)
    for seed in range(2):
        chosen, asked = ask(space, seed)
        made = settings.assemble([file], settings.binding_lines(chosen))
        assert len(asked.params) == len(space.entries) >= 5
        assert made.workflow.agent.discount == chosen[f"{name.upper()}.discount"]
    assert search_space.default("mine/of_mine.gin") is None


class Options:
    """The options of a study in a folder."""

    def __new__(cls, root, **changes):
        (root / "trials").mkdir(parents=True, exist_ok=True)
        given = {"storage": None, "sampler": "random", "pruner": "median", "startup": 2, "seed": 3}
        return study.StudyOptions(root, **{**given, "trials": 4, "evaluations": 4, **changes})


VALUES = types.SimpleNamespace(
    **{"gin_file": (CATCH,), "gin_bindings": ("PPO.discount=0.9",), "seed": 3, "tpu": None},
    **{"strategy": "one_device", "num_logical_cpus": 1, "deterministic_ops": False},
)
CLIP = search_space.SearchSpace("clip", {"PPO.clip": {"low": 0.1, "high": 0.5}})


@pytest.fixture(name="trained")
def fixture_trained(monkeypatch):
    """Trials whose k-th evaluation is -(6 - k) |clip - 0.3|, in this process."""
    calls = []

    def start(made, values, folder, *_, callbacks, **__):
        calls.append((made, folder))
        if how := made.how.pop(0) if made.how else None:
            raise how
        for k in range(1, 5):
            event = Event(10 * k, {"eval_return_mean": (k - 6) * abs(made.clip - 0.3)})
            if any(c.on_evaluate(event) for c in callbacks):
                for callback in callbacks:
                    callback.on_checkpoint(event)
        target = pathlib.Path(folder)
        target.mkdir(exist_ok=True)
        mean = -abs(made.clip - 0.3)
        (target / "summary.json").write_text(json.dumps({"eval_return_mean": mean}))
        return 0

    class Made(types.SimpleNamespace):
        eval_interval = 10

        def replace(self, **changes):
            assert changes == {"video": False}
            return self

    how = []

    def assemble(files, bindings):
        (line,) = [x for x in bindings if x.startswith("PPO.clip")]
        return Made(clip=float(line.partition("=")[2]), how=how)

    monkeypatch.setattr(termination.Termination, "install", lambda self: None)
    monkeypatch.setattr(trial.common_flags, "configure_tensorflow", lambda values: None)
    monkeypatch.setattr(trial, "_redirect", lambda log: os.close(log) or 1)
    monkeypatch.setattr(settings, "assemble", assemble)
    monkeypatch.setattr(api, "assemble", lambda make, *_: (make(), None))
    monkeypatch.setattr(api, "start", start)
    return types.SimpleNamespace(calls=calls, how=how)


def test_trials_are_reported_pruned_and_counted(trained, tmp_path):
    options = Options(tmp_path, trials=6)
    codes = [trial.run(options, CLIP, VALUES) for _ in range(7)]
    assert codes == [0] * 6 + [trial.NOTHING_LEFT]
    found = options.open().trials
    done = [t for t in found if t.state.name == "COMPLETE"]
    pruned = [t for t in found if t.state.name == "PRUNED"]
    assert len(done) + len(pruned) == 6 and pruned and len(done) >= 2
    for t in done:
        clip = t.params["PPO.clip"]
        assert t.value == pytest.approx(-abs(clip - 0.3))
        assert t.intermediate_values == pytest.approx(
            {k: (k - 6) * abs(clip - 0.3) for k in range(1, 5)}
        )
    for t in pruned:
        assert t.last_step >= 2
        assert t.user_attrs["ended"] == f"pruned at {10 * t.last_step:,} env steps"
    # Drawn anew in every process, and the same for the same seed.
    assert len({t.params["PPO.clip"] for t in found}) == 6
    best = max(done, key=lambda t: t.value)
    text = (tmp_path / best_gin.NAME).read_text()
    assert text.splitlines()[2:] == [
        f"include '{CATCH}'",
        "",
        "PPO.discount=0.9",
        f"PPO.clip = {best.params['PPO.clip']!r}",
    ]
    page = search_report.write(options.open(), tmp_path)
    assert page.read_text().count("data:image/png") == 4
    with (tmp_path / "search.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["trial"] == str(best.number) and rows[-1]["state"] == "pruned"
    assert (tmp_path / "search.md").read_text().count("\n") == 8


def test_trials_that_fail_and_that_are_stopped(trained, tmp_path, capfd):
    options = Options(tmp_path, pruner="none", trials=1)
    trained.how += [UserError("PPO.clip", expected="less", got="more"), SystemExit(143)]
    assert trial.run(options, CLIP, VALUES) == trial.FAILED
    with pytest.raises(SystemExit):
        trial.run(options, CLIP, VALUES)
    (failed, stopped, again) = options.open().trials
    assert (failed.state.name, stopped.state.name, again.state.name) == ("FAIL", "FAIL", "WAITING")
    assert "failed: PPO.clip: expected less, got more" in failed.user_attrs["ended"]
    # In the folder of the one that was stopped, with its settings.
    assert trial.run(options, CLIP, VALUES) == 0
    done = options.open().trials[2]
    assert (done.state.name, done.params) == ("COMPLETE", stopped.params)
    assert trained.calls[1][1] == trained.calls[2][1] == str(tmp_path / "trials" / "trial_0001")
    assert trial.run(options, CLIP, VALUES) == trial.NOTHING_LEFT
    assert "Trial 0: failed: PPO.clip" in capfd.readouterr().out


def test_a_trial_that_is_stopped_waits_for_who_gives_out_trials(tmp_path):
    """Between its end and its place in the queue nobody may find that nothing is left."""
    options = Options(tmp_path)
    made = options.open()
    asked = made.ask()
    CLIP.choose(asked)
    outcome = trial._Outcome(made, asked, tmp_path, options, VALUES)
    thread = threading.Thread(target=outcome.interrupted)
    with study.locked(tmp_path):
        thread.start()
        thread.join(0.2)
        assert [t.state.name for t in options.open().trials] == ["RUNNING"]
    thread.join(30)
    for _ in range(2):
        assert [t.state.name for t in options.open().trials] == ["FAIL", "WAITING"]
        outcome.interrupted()  # of a second signal


def test_trials_have_one_configuration(tmp_path):
    def check(*bindings, seed=3, file=CATCH):
        made = Options(tmp_path).open()
        study.check_configuration(made, tmp_path, study.configuration_of([file], bindings, seed))
        return made

    check("PPO.clp = 0.1")  # without a trial it is only recorded
    made = check("PPO.clip = 0")
    CLIP.choose(made.ask())
    check("PPO.clip = 0.0")
    with pytest.raises(UserError, match="PPO.clip = 0, as in its trials, got 0.1"):
        check("PPO.clip = 0.1")
    with pytest.raises(UserError, match="--seed = 3, as in its trials, got 4"):
        check("PPO.clip = 0", seed=4)
    with pytest.raises(UserError, match="as in its trials, got .*; different too"):
        check("PPO.clip = 0", file="ppo/tf_cartpole.gin")
    with pytest.raises(UserError, match="steps = 100000, as .*, got 900; .*train.total_env"):
        check("PPO.clip = 0", "total_steps = 900")


def test_trials_whose_process_died_are_tried_again(tmp_path):
    options = Options(tmp_path)
    made = options.open()
    for _ in range(2):
        CLIP.choose(made.ask())
    lives = study.take_log(tmp_path / "trials" / "trial_0001.log")
    tries = []
    for _ in range(5):
        study.requeue_dead(made, options.trials_dir)
        tries += [t.user_attrs["tries"] for t in study.waiting(made)]
        if study.waiting(made):
            CLIP.choose(made.ask())
    os.close(lives)
    assert tries == [2, 3, 4]  # then it is left alone
    first, living, *again = made.trials
    assert living.state.name == "RUNNING" and {t.state.name for t in (first, *again)} == {"FAIL"}
    assert all(t.params == first.params for t in again)
    assert {study.folder_of(t) for t in again} == {"trial_0000"}


def test_the_search_starts_trials_until_none_is_left(tmp_path, capsys, monkeypatch):
    """Codes of the processes: done, failed, then nothing left for both of two workers."""
    codes = tmp_path / "codes"
    codes.mkdir()
    script = (
        "import os, sys; n = len(os.listdir(sys.argv[1]));"
        "open(os.path.join(sys.argv[1], f'{os.getpid()}'), 'w').close();"
        "sys.exit({0: 0, 1: 4}.get(n, 3))"
    )
    bindings = []

    def command(_, values):
        bindings.append(values.gin_bindings)
        return [sys.executable, "-S", "-c", script, str(codes)]

    monkeypatch.setattr(tune, "command_of_trial", command)
    root = tmp_path / "search"
    options = Options(root)
    made = options.open()
    asked = made.ask()
    CLIP.choose(asked)
    asked.set_user_attr("bindings", ["PPO.clip = 0.3"])
    made.tell(asked, 2.0)
    args = (f"--root_dir={root}", f"--gin_file={CATCH}", "--parallel=2", "--total_env_steps=900")
    code, out, err = in_process(tune.main, capsys, *args)
    assert code == 0, err
    assert set(bindings) == {("total_steps = 900",)}
    assert 3 <= len(list(codes.iterdir())) <= 5
    assert out.splitlines()[-1] == f"tfrl-train --gin_file={root / 'best.gin'}"
    assert "PPO.clip = 0.3" in (root / "best.gin").read_text()


def test_a_search_gives_up_where_no_process_comes_to_a_result(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tune, "command_of_trial", lambda *_: [sys.executable, "-S", "-c", "1/0"])
    args = (f"--root_dir={tmp_path}", f"--gin_file={CATCH}")
    code, _, err = in_process(tune.main, capsys, *args)
    assert code == 2 and "expected trials, got none" in err
    code, _, err = in_process(tune.main, capsys, *args, "--gin_bindings=PPO.clip=0.1")
    assert code == 2 and "got a binding of the search space tune/ppo.gin" in err
    code, _, err = in_process(tune.main, capsys, *args, "--gin_bindings=train.eval_interval=None")
    assert code == 2 and "which the pruner compares" in err
    code, _, err = in_process(tune.main, capsys, args[0], "--gin_file=impala/tf_catch.gin")
    assert code == 2 and "none is shipped for impala" in err


def test_what_a_search_starts(tmp_path, monkeypatch):
    flags.FLAGS.unparse_flags()
    flags.FLAGS(["tune", "--trials=7", "--pruner=hyperband", "--seed=2"])
    made = tune.command_of_trial(tmp_path, VALUES)
    assert made[1:4] == ["-m", "tfrl", "tune"]
    assert made[4:6] == [f"--gin_file={CATCH}", "--gin_bindings=PPO.discount=0.9"]
    assert set(made[6:]) == {
        *("--trials=7", "--pruner=hyperband", "--seed=2"),
        *(f"--root_dir={tmp_path}", "--one_trial"),
    }


def test_the_panels_of_the_parameters():
    """Rows of four, with short names, readable ticks, and a colour for every trial."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    search = optuna.create_study()

    def play(trial):
        for name in ("A.lr", "B.lr", "B.clip", "B.discount", "B.eps"):
            trial.suggest_float(name, 1e-4, 5e-3, log=True)
        trial.suggest_categorical("B.hidden", ["(8,)", "(8, 8)"])
        return 1.0

    search.optimize(play, n_trials=3)
    panels = search_report.draw_parameters(search.trials)
    try:
        figure = panels[0, 0].figure
        figure.draw_without_rendering()
        assert panels.shape == (2, 4)
        labels = [axes.get_xlabel() for axes in panels.flat]
        assert labels == ["A.lr", "clip", "discount", "eps", "hidden", "B.lr", "", ""]
        ticks = {tick.get_text() for tick in panels[0, 1].get_xticklabels()}
        assert "0.001" in ticks and not any("$" in text for text in ticks)
        (bar,) = (axes for axes in figure.axes if axes not in panels)
        shown = [tick.get_text() for tick in bar.get_yticklabels()]
        assert {"0", "1", "2"} == set(shown)
        assert panels[0, 0].collections[0].get_facecolors()[:, :3].min(axis=1).max() < 0.5
    finally:
        pyplot.close(figure)


@pytest.mark.slow
def test_a_trial_trains(tmp_path):
    space = file_of(tmp_path, "PPO.clip = {'low': 0.1, 'high': 0.4}")
    root = tmp_path / "search"
    args = [*arguments(root, 64, "train.eval_interval=32"), f"--space={space}", "--one_trial"]
    done = forked.run(command("tune", *args, "--trials=1", f"--storage=sqlite:///{tmp_path}/s.db"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Trial 0: return ")
    assert "Trial 0: PPO.clip = 0." in (root / "trials" / "trial_0000.log").read_text()
    made = settings.assemble([str(root / "best.gin")])
    (found,) = optuna.load_study(study_name="search", storage=f"sqlite:///{tmp_path}/s.db").trials
    assert made.workflow.agent.clip == found.params["PPO.clip"]
    assert list(found.intermediate_values) == [1, 2]


PAGE = docs_helpers.ROOT / "docs" / "searching.md"


def commands_of(page):
    lines = [
        x for kind, code in docs_helpers.blocks(page) if kind == "bash" for x in code.splitlines()
    ]
    return [shlex.split(line) for line in lines]


def test_the_page_names_what_there_is(tmp_path, monkeypatch, capsys):
    """Commands of searches go as far as their processes, those of sweeps to their grid."""
    page = PAGE.read_text()
    written = docs_helpers.write_files(docs_helpers.blocks(page), tmp_path)
    assert written == ["my_space.gin", "my_spaces.py"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    started = []
    monkeypatch.setattr(tune.processes, "run_parallel", lambda jobs, n: started.append(len(jobs)))
    for words in commands_of(page):
        if words[0] == "tfrl-tune":
            code, _, err = in_process(tune.main, capsys, *words[1:])
            assert code == 2 and "expected trials, got none" in err, err  # none was started
    assert started == [2, 1, 1]
    names = {row.split("`")[1] for row in page.splitlines() if row.startswith("| `--")}
    assert names == {f"--{n}" for n in (*TUNE_FLAGS, "parallel")}
    chosen, _ = ask(search_space.read("my_space.gin", [CATCH]))
    assert chosen["OnPolicyWorkflow.num_epochs"] in range(2, 11) and "PPO.gae_lambda" in chosen
    settings.assemble([CATCH], settings.binding_lines(chosen))
    for seed in range(2):
        chosen, _ = ask(search_space.read("my_spaces:ppo", [CATCH]), seed)
        settings.assemble([CATCH], settings.binding_lines(chosen))


@pytest.mark.slow
def test_the_page_searches(tmp_path):
    """The page's first commands, with less to do."""
    tiny = [x for x in arguments("", 64)[1:] if "total_env_steps" not in x]
    tune_words, train_words, _ = commands_of(PAGE.read_text())[1:4]
    space = file_of(tmp_path, "PPO.clip = {'low': 0.1, 'high': 0.4}")
    for old, new in (("100_000", "64"), ("=10_000", "=32"), ("--trials=40", "--trials=3")):
        tune_words = [word.replace(old, new) for word in tune_words]
    words = tune_words[1:]
    done = subprocess.run(
        [sys.executable, docs_helpers.ROOT / "bin" / "tune.py", *words, f"--space={space}", *tiny],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(docs_helpers.ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith("best.gin")
    assert (tmp_path / "runs" / "search" / "search.html").is_file()
    train = [*train_words[1:], "--strategy=one_device"]
    finished = forked.run(command("train", *train), cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert json.loads((tmp_path / "runs/best/summary.json").read_text())["env_steps"] == 64

"""What people do after a training: load its policy, go on with it, look at it."""

import contextlib
import csv
import json
import shutil
import sys

import numpy as np
import pytest
from absl import flags

import tfrl
import tfrl.__main__ as tfrl_main
from tests.docs_helpers import ROOT, blocks
from tests.launch.launch_runs import arguments, copy_of, in_process, run
from tfrl.errors import UserError
from tfrl.experiment import comparison
from tfrl.experiment import report as report_lib
from tfrl.experiment.report import RunRecord
from tfrl.launch import app, report, sweep, termination, train

README = ROOT / "README.md"


@pytest.fixture(name="trained", scope="module")
def fixture_trained(tmp_path_factory):
    """A run of 128 env steps with two checkpoints and two evaluations."""
    root = tmp_path_factory.mktemp("played") / "run"
    args = arguments(root, 128, "train.video=False", "train.eval_interval=64",
                     "train.checkpoint_interval=64")  # fmt: skip
    done = run("train", *args)
    assert done.returncode == 0, done.stderr
    return root


def test_a_loaded_policy_predicts_and_plays(trained):
    policy = tfrl.load(trained)
    assert (policy.env_steps, policy.path.name) == (128, "ckpt-128")
    saved = tfrl.load(trained / "policy")
    obs = np.random.default_rng(0).normal(size=[64, 4]).astype(np.float32)
    action, state = policy.predict(obs)
    np.testing.assert_array_equal(action, saved.predict(obs)[0])
    assert state is None and policy.predict(obs[0])[0] == saved.predict(obs[0])[0] == action[0]
    for one in (obs[0].tolist(), tuple(map(tuple, obs[:2].tolist()))):
        np.testing.assert_array_equal(policy.predict(one)[0], saved.predict(one)[0])
    env = policy.env(3)
    played = env.reset(tfrl.seeding.key(0))
    assert env.step(played, policy.predict(played.obs.numpy())[0]).reward.shape == (3,)
    earlier = tfrl.load(trained, 64)
    assert (earlier.env_steps, tfrl.load(trained, "best").env_steps in (64, 128)) == (64, True)
    workflow, run_state = earlier.workflow()
    assert workflow.env_steps(run_state) == 64
    assert workflow.env_steps(workflow.step(run_state)[1]) == 96


def test_the_readme_lines(trained):
    (code,) = [code for kind, code in blocks(README.read_text()) if "tfrl.load" in code]
    assert len(code.splitlines()) == 3
    names = {"tfrl": tfrl}
    exec(code.replace("runs/ppo_tf_cartpole", str(trained)), names)
    assert names["action"] in (0, 1) and names["env"].num_envs == 4


def test_a_run_goes_on_from_its_folder_alone(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(termination.Termination, "install", lambda self: None)
    root = copy_of(trained, tmp_path / "run")
    # Two defaults that are written out are no other configuration.
    same = ["--gin_bindings=PPO.obs_clip=10.0", "--gin_bindings=eval/make_env.wrappers=()"]
    flags = [f"--root_dir={root}", "--total_env_steps=160", *same]
    code, out, err = in_process(train.main, capsys, *flags)
    assert code == 0, err
    assert "going on at 128 of 160 env steps" in out
    assert tfrl.train(root_dir=root, total_env_steps=192, strategy="one_device")["env_steps"] == 192
    assert "going on at 160 of 192 env steps" in capsys.readouterr().out
    code, _, err = in_process(train.main, capsys, *flags[:1], "--gin_bindings=PPO.clip=0.1")
    assert code == 2 and "PPO.clip = '0.1' (the run has '0.2')" in err
    # The schedule of the replaced rate is no mistake of the user's.
    code, _, err = in_process(train.main, capsys, *flags[:1], "--gin_bindings=ModuleConfig.lr=0.5")
    assert code == 2 and "ModuleConfig.lr = '0.5' (the run has" in err
    config = (root / "operative_config.gin").read_text()
    less = in_process(train.main, capsys, f"--root_dir={root}", "--total_env_steps=100")
    assert less[0] == 0 and "nothing to train" in less[1]
    assert (root / "operative_config.gin").read_text() == config
    done = (f"--root_dir={root}", "--total_env_steps=192")
    assert in_process(train.main, capsys, *done, "--quiet") == (0, "", "")
    with pytest.raises(UserError, match="expected the folder of a run, got no value"):
        tfrl.train(total_env_steps=32)


def test_learn_in_a_finished_folder_drops_the_summary(trained, tmp_path):
    root = copy_of(trained, tmp_path / "run")
    workflow, state = tfrl.load(root).workflow()
    options = {"root_dir": str(root), "progress": False}
    workflow.learn(state, total_env_steps=128, **options)
    assert (root / "summary.json").is_file()  # nothing to train
    workflow, state = tfrl.load(root).workflow()
    workflow.learn(state, total_env_steps=160, **options)
    assert not (root / "summary.json").exists()


def test_a_folder_with_code_asks_for_the_argument(trained, tmp_path):
    root = copy_of(trained, tmp_path / "run")
    config = root / "operative_config.gin"
    config.write_text("import foreign_code\n" + config.read_text())
    with pytest.raises(UserError, match="If you trust the folder, pass allow_code=True.$"):
        tfrl.load(root)


def test_mistakes_of_loading(trained, tmp_path):
    with pytest.raises(UserError, match="expected a run folder .* got no such folder"):
        tfrl.load(tmp_path / "missing")
    with pytest.raises(UserError, match="got neither"):
        tfrl.load(tmp_path)
    with pytest.raises(UserError, match="checkpoint 100 of"):
        tfrl.load(trained, 100)
    with pytest.raises(UserError, match="num_envs: expected a whole number of at least 1, got 0"):
        tfrl.load(trained).env(num_envs=0)
    with pytest.raises(UserError, match="expected checkpoint='latest', since a SavedModel"):
        tfrl.load(trained / "policy", "best")
    saved = tfrl.load(trained / "policy")
    with pytest.raises(UserError, match="Pass the run folder to tfrl.load"):
        saved.env()
    with pytest.raises(UserError, match="explore"):
        saved.predict(np.zeros(4), deterministic=False)
    with pytest.raises(
        UserError, match="obs: expected float32 of shape .4., or a batch, got float32"
    ):
        saved.predict(np.zeros(3, np.float32))


def test_a_saved_model_without_its_variables(trained, tmp_path):
    folder = tmp_path / "policy"
    shutil.copytree(trained / "policy", folder)
    shutil.rmtree(folder / "variables")
    with pytest.raises(UserError, match="expected a complete one: saved_model.pb and variables/"):
        tfrl.load(folder)
    for wrong in (None, 3):
        with pytest.raises(UserError, match="expected the path of a folder, got"):
            tfrl.load(wrong)


def test_the_module_runs_the_binaries(capsys, monkeypatch):
    def told(*args):
        monkeypatch.setattr(sys, "argv", ["tfrl", *args])
        with contextlib.suppress(SystemExit):
            tfrl_main.main()
        return capsys.readouterr().out

    assert told("--version") == told("train", "--version") == f"tfrl {tfrl.__version__}\n"
    assert told().startswith("Usage: python -m tfrl COMMAND")
    assert told("report", "--help").startswith("Draws curve.png and report.html")


def reported(capsys, *args):
    """Runs `tfrl-report`; returns exit code, lines and errors."""
    flags.FLAGS.unparse_flags()
    with pytest.raises(SystemExit) as end:
        app.run(report.main, argv=["program", *map(str, args)], takes_folders=True)
    out, err = capsys.readouterr()
    return end.value.code or 0, out.splitlines(), err


def test_the_report_of_a_run(trained, tmp_path, capsys):
    root = copy_of(trained, tmp_path / "run")
    code, lines, err = reported(capsys, root)
    assert (code, lines) == (0, [str(root / "report.html")]), err
    page = (root / "report.html").read_text()
    assert (root / "curve.png").read_bytes()[:4] == b"\x89PNG"
    summary = json.loads((root / "summary.json").read_text())
    assert f"{summary['eval_return_mean']:,.5g} +-" in page and "data:image/png;base64," in page
    # Bound at its default, and bound elsewhere.
    assert "<td>PPO.clip</td>" not in page
    assert "<td>make_env.num_envs</td><td>4</td><td>1</td>" in page
    evaluations = page.partition("<h2>Evaluations</h2>")[2].partition("<h2>")[0]
    assert evaluations.count("<tr>") == 3  # of the head, 64 and 128 env steps
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "<tr></tr>" not in page and '<meta name="viewport"' in page


def test_the_page_of_a_run(tmp_path):
    row = {"env_steps": 8, "eval_return_mean": 1.0, "eval_success_mean": 0.25}
    about = {"command": ["tfrl-train", "--gin_bindings=PPO.hidden = (8,)"]}
    page = report_lib.render(RunRecord(tmp_path, [row], about, {}), [])
    assert "<td>tfrl-train &#x27;--gin_bindings=PPO.hidden = (8,)&#x27;</td>" in page
    evaluations = page.partition("<h2>Evaluations</h2>")[2].partition("<h2>")[0]
    assert "<th>success_mean</th>" in evaluations and "<td>0.25</td>" in evaluations


def test_arguments_of_the_report_that_are_no_run(trained, tmp_path, capsys):
    root, link = copy_of(trained, tmp_path / "run"), tmp_path / "link"
    link.symlink_to(root)
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "empty").mkdir()
    code, lines, err = reported(capsys, *sorted(tmp_path.iterdir()), root)
    assert code == 0, err
    assert lines[:2] == [
        f"Skipped {tmp_path / name}: not a run folder, it has no metrics.jsonl."
        for name in ("empty", "notes.txt")
    ]
    assert lines[2:] == [str(link / "report.html")]  # one run, not a comparison with itself
    assert reported(capsys, root, "--quiet")[:2] == (0, [])
    code, _, err = reported(capsys, root, tmp_path / "missing")
    assert code == 2 and f"got {tmp_path / 'missing'}, which does not exist" in err
    code, lines, err = reported(capsys, tmp_path / "empty")
    assert code == 2 and "expected one run folder, or several to compare, got" in err
    assert not lines
    code, lines, err = reported(capsys, root, f"--comparison_dir={root / 'metrics.csv'}")
    assert (code, lines) == (2, []) and "expected a folder, got the file" in err


def test_a_comparison_without_rliable(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rliable", None)
    roots = [copy_of(trained, tmp_path / name) for name in "abc"]
    path = roots[2] / "metadata.json"
    path.write_text(path.read_text().replace('"PPO.clip": "0.2"', '"PPO.clip": "0.3"'))
    code, lines, err = reported(capsys, *roots, f"--comparison_dir={tmp_path / 'out'}")
    assert (code, lines[-1]) == (0, str(tmp_path / "out" / "comparison.html")), err
    assert "pip install 'tfrl[report]'" in lines[0]
    with (tmp_path / "out" / "comparison.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["group"], r["runs"]) for r in rows] == [("clip=0.2", "2"), ("clip=0.3", "1")]
    assert "| tf:CartPole-v1 | clip=0.2 | 2 |" in (tmp_path / "out" / "comparison.md").read_text()


def test_curves_over_seeds():
    def run(returns):
        rows = [{"env_steps": 10 * i, "episode_return": float(y), "time/call": 2.0}
                for i, y in enumerate(returns, 1)]  # fmt: skip
        return RunRecord("root", rows, {"configuration": {}}, {})

    runs = [run([0, 2, 4]), run([2, 4])]
    axis, mean, low, high = comparison.mean_curve(runs)
    assert (axis[0], axis[-1]) == (10, 20)  # as far as the shorter one
    np.testing.assert_allclose([mean[0], mean[-1]], [1, 3])
    np.testing.assert_allclose([low[0], high[0]], [0, 2])
    assert comparison.mean_curve(runs, "seconds")[0][-1] == 4.0
    assert [comparison.final_return(r) for r in runs] == [4, 4]


def test_a_comparison_of_unequal_runs(tmp_path):
    """An unfinished run is named; a group without a curve is a point, or has no legend entry."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    def run(name, steps, returns=None, **summary):
        rows = [
            {"env_steps": x, "episode_return": y}
            for x, y in zip(steps, returns or steps, strict=True)
        ]
        return RunRecord(tmp_path / name, rows, {"configuration": {}}, summary)

    full, nearly = run("full", [1000, 60_000]), run("nearly", [1000, 55_000])
    solved = run("solved", [1000, 40_000], stopped_by="target_return")
    groups = {"task": {
        "a": [full, nearly, run("short", [1000, 2000]), solved],
        "one row": [run("b", [60_000], env_steps_per_second=40_049.6)],
        "none": [run("c", [60_000], [float("nan")])],
    }}  # fmt: skip
    lines = []
    groups = comparison.finished(groups, lines.append)
    short = tmp_path / "short"
    assert lines == [f"Left out: {short} has 2,000 env steps, its group up to 60,000."]
    assert groups["task"]["a"] == [full, nearly, solved]
    several, one, _ = comparison.table(groups, with_rliable=False)
    assert (several["env_steps"], one["env_steps"]) == (60_000, 60_000)
    assert several["return_std"] > 0 and one["return_std"] is None
    shown = comparison.markdown_of([one])
    assert shown.endswith("| task | one row | 1 | 60,000 |  | 60,000 | 40,050 |")
    axes = Figure().subplots()
    comparison.draw_returns(axes, groups["task"])
    assert axes.get_legend_handles_labels()[1] == ["a (3)", "one row (1)"]
    drawn = Figure().subplots()
    report_lib.label_env_steps(drawn)
    drawn.set_xlim(0, 900_000)
    drawn.figure.draw_without_rendering()
    labels = [tick.get_text() for tick in drawn.get_xticklabels()]
    assert labels[:2] == ["0", "200k"] and len(labels) <= 6


def test_a_sweep_runs_all_and_compares_them(trained, tmp_path, capsys, monkeypatch):
    called = []

    def command(files, bindings, seed, folder):
        called.append((*files, *bindings, seed))
        copied = shutil.copytree(trained, folder)
        path = copied / "metadata.json"
        clip = bindings[-1].partition("=")[2]
        path.write_text(path.read_text().replace('"PPO.clip": "0.2"', f'"PPO.clip": "{clip}"'))
        return [sys.executable, "-c", f"raise SystemExit({int(clip == '0.3' and seed == 8)})"]

    monkeypatch.setattr(sweep, "command", command)
    root = tmp_path / "sweep"
    code, out, err = in_process(
        sweep.main, capsys, f"--root_dir={root}", "--gin_file=ppo/tf_catch.gin",
        "--grid=PPO.clip=[0.2, 0.3]", "--seeds=2", "--seed=7", "--parallel=2",
        "--gin_bindings=PPO.discount=0.9", "--total_env_steps=5_000",
    )  # fmt: skip
    fixed = ("ppo/tf_catch.gin", "PPO.discount=0.9", "total_steps = 5000")
    grid = [(f"PPO.clip={clip}", seed) for clip in (0.2, 0.3) for seed in (7, 8)]
    assert called == [(*fixed, *rest) for rest in grid]
    assert code == 1 and f"{root / 'clip=0.3,seed=8'}: ended with 1, see" in out, err
    text = (root / "comparison" / "comparison.md").read_text()
    assert "| clip=0.2 | 2 |" in text and "| clip=0.3 | 1 |" in text


@pytest.mark.parametrize("text", ["PPO.clip", "PPO.clip=0.1", "clip=[1]", "PPO.clip=[]", "a.b=[x]"])
def test_mistakes_of_a_grid(text):
    with pytest.raises(UserError, match="expected name.parameter=.value"):
        sweep.read_axis(text)


def test_a_grid_over_no_parameter_starts_nothing(tmp_path, capsys):
    root = tmp_path / "sweep"
    args = (f"--root_dir={root}", "--grid=ModuleConfig.nosuch=[1]")
    code, _, err = in_process(sweep.main, capsys, *args)
    assert code == 2 and "Gin binding ModuleConfig.nosuch" in err and not root.exists()


def test_what_a_sweep_starts(tmp_path):
    grid = [
        sweep.read_axis("PPO.torso=['@MLP()', None]"),
        sweep.read_axis("MLP.activation=['relu']"),
    ]
    first, second = sweep.combinations(grid)
    assert first == ["PPO.torso=@MLP()", "MLP.activation='relu'"]
    assert second[0] == "PPO.torso=None"
    assert sweep.folder_name(first, 3) == "torso=_MLP_,activation=_relu_,seed=3"
    made = sweep.command(["a.gin"], first, 3, tmp_path)
    assert made[1:4] == ["-m", "tfrl", "train"]
    assert made[4:6] == ["--gin_file=a.gin", "--gin_bindings=PPO.torso=@MLP()"]
    assert made[-2:] == ["--seed=3", f"--root_dir={tmp_path}"]


def test_interquartile_means_and_improvement():
    pytest.importorskip("rliable.library")

    def runs(*returns):
        return [RunRecord("root", [], {}, {"eval_return_mean": float(x)}) for x in returns]

    groups = {"task": {"a": runs(*range(8)), "b": runs(*range(100, 108))}}
    first, second = comparison.table(groups, with_rliable=True)
    assert first["iqm"] == np.mean([2, 3, 4, 5]) and first["iqm_low"] < 3.5 < first["iqm_high"]
    assert second["iqm"] == 103.5
    (row,) = comparison.improvements(groups)
    assert (row["pair"], row["probability"]) == ("a > b", 0.0)

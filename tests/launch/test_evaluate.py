import json
import shutil
import sys

import pytest

from tests.launch import launch_runs
from tests.launch.launch_runs import arguments, in_process, run
from tfrl.launch import evaluate, settings, train
from tfrl.storage import checkpoint_format


@pytest.fixture(name="trained", scope="module")
def fixture_trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("trained") / "run"
    args = arguments(root, 256, "train.video=False", "train.eval_interval=64",
                     "train.checkpoint_interval=64", "train.max_to_keep=10")  # fmt: skip
    done = run("train", *args)
    assert done.returncode == 0, done.stderr
    return root


@pytest.fixture(name="call")
def fixture_call(capsys):
    return lambda *args: in_process(evaluate.main, capsys, "--checkpoint=latest", *args)


def test_it_prints_a_table_and_one_json_line_and_changes_nothing(call, trained, tmp_path):
    before = launch_runs.tree(trained)
    video = tmp_path / "videos" / "v.gif"
    code, out, err = call(f"--root_dir={trained}", "--episodes=7", f"--video={video}")
    assert (code, err) == (0, "")
    title, *table, last = out.splitlines()
    assert title == f"{trained}, ckpt-256"
    figures = json.loads(last)
    assert figures["eval_episodes"] == 7
    assert figures["eval_return_mean"] >= 8
    assert figures["eval_return_std"] >= 0
    assert figures["env_steps"] == 256
    assert [line.split()[0] for line in table] == list(figures)
    assert video.read_bytes()[:3] == b"GIF"
    assert launch_runs.tree(trained) == before


def test_one_state_serves_all_checkpoints(trained):
    """As `watch` evaluates them."""
    made = settings.assemble([str(trained / "operative_config.gin")])
    options = {"episodes": 3, "seed": 0, "video": None}
    state, after_each_other = None, []
    for which in (64, 256, 64):
        figures, state = evaluate._evaluated(made, str(trained), state, checkpoint=which, **options)
        after_each_other.append(figures)
    assert after_each_other[0] == after_each_other[2]
    assert after_each_other[1] == evaluate.evaluate(made, str(trained), checkpoint=256, **options)
    assert [f["env_steps"] for f in after_each_other] == [64, 256, 64]


@pytest.mark.slow
def test_checkpoints_seeds_and_videos(call, trained, tmp_path):
    answers = {}
    for which in ("latest", "best", "64", "256"):
        code, out, err = call(f"--root_dir={trained}", "--episodes=5", f"--checkpoint={which}")
        assert (code, err) == (0, "")
        answers[which] = json.loads(out.splitlines()[-1])
    assert answers["latest"] == answers["256"]
    assert answers["64"]["env_steps"] == 64
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").open()]
    best = max((r["eval_return_mean"], r["env_steps"]) for r in rows if "eval_return_mean" in r)
    assert answers["best"]["env_steps"] == best[1]
    other = tmp_path / "v.mp4"
    code, out, err = call(f"--root_dir={trained}", "--episodes=5", "--seed=1", f"--video={other}")
    assert (code, err) == (0, "")
    assert (
        json.loads(out.splitlines()[-1])["eval_return_mean"]
        != (answers["latest"]["eval_return_mean"])
    )
    assert b"ftyp" in other.read_bytes()[:16]


def _paragraph(result):
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("Error: ") and err.count("\n") == 1
    return err.removeprefix("Error: ").rstrip("\n")


def test_mistakes(call, trained, tmp_path):
    assert _paragraph(call()).startswith("--root_dir: expected the folder of a run, got no value.")
    missing = tmp_path / "missing"
    assert _paragraph(call(f"--root_dir={missing}")) == (
        f"--root_dir={missing}: expected the folder of a run, with operative_config.gin in it, "
        f"got no folder at {missing}."
    )
    assert "got a folder without one" in _paragraph(call(f"--root_dir={tmp_path}"))
    assert _paragraph(call(f"--root_dir={trained}", "--checkpoint=100")) == (
        f"checkpoint 100 of {trained / 'checkpoints'}: expected latest, best, or one of the steps "
        "64, 128, 192, 256, got 100."
    )
    for which in ("newest", "-1", "1.5"):
        text = _paragraph(call(f"--root_dir={trained}", f"--checkpoint={which}"))
        assert text.startswith(f"--checkpoint={which}: expected latest, best, or a number of env")
    for flags, message in (
        ("--checkpoint=best", "--checkpoint=best: expected latest with --watch"),
        ("--wait_seconds=nan", "--wait_seconds=nan: expected a number of seconds above 0, or inf"),
    ):
        text = _paragraph(call(f"--root_dir={trained}", "--watch", flags))
        assert text.startswith(message)
    text = _paragraph(call(f"--root_dir={trained}", "--video=v.avi"))
    assert text.startswith("--video=v.avi: expected a name that ends in .mp4 or .gif")
    text = _paragraph(call(f"--root_dir={trained}", "--episodes=0"))
    assert text.startswith("Flag --episodes: expected a positive integer, got '0'")
    text = _paragraph(call(f"--root_dir={trained}", "--gin_bindings=PPO.discoun=1.0"))
    assert text.startswith("Gin binding PPO.discoun (--gin_bindings): expected a parameter of PPO")
    text = _paragraph(call(f"--root_dir={trained}", "--gin_bindings=PPO.hidden=(8,)"))
    assert "checkpoint" in text


def test_no_checkpoint_yet_and_no_best(call, trained, tmp_path):
    root = launch_runs.copy_of(trained, tmp_path / "run")
    for path in sorted((root / "checkpoints").iterdir()):
        path.rename(path.with_name(f".tmp-1-{path.name[5:]}"))
    before = launch_runs.tree(root)
    assert _paragraph(call(f"--root_dir={root}")) == (
        f"--root_dir={root}: expected a run with a checkpoint, got none so far. Wait for the "
        "first checkpoint of the training."
    )
    assert launch_runs.tree(root) == before, "the savers of a living run are left alone"


def test_a_damaged_checkpoint(call, trained, tmp_path):
    root = launch_runs.copy_of(trained, tmp_path / "run")
    launch_runs.damage(root / "checkpoints" / "ckpt-256")
    code, out, err = call(f"--root_dir={root}", "--episodes=2")
    assert (code, err) == (0, "")
    assert "ckpt-256 is damaged" in out and "using ckpt-192 instead" in out
    assert json.loads(out.splitlines()[-1])["env_steps"] == 192


def test_a_checkpoint_that_a_living_run_removes_meanwhile(call, trained, tmp_path, monkeypatch):
    root = launch_runs.copy_of(trained, tmp_path / "run")
    read = checkpoint_format.read

    def read_while_pruned(folder):
        if folder.name == "ckpt-256":
            shutil.rmtree(folder)
        return read(folder)

    monkeypatch.setattr(checkpoint_format, "read", read_while_pruned)
    code, out, err = call(f"--root_dir={root}", "--episodes=2")
    assert (code, err) == (0, "")
    assert "damaged" not in out
    assert json.loads(out.splitlines()[-1])["env_steps"] == 192


def _foreign(trained, tmp_path, *lines):
    """A run folder whose configuration somebody else has written."""
    root = tmp_path / "foreign"
    shutil.copytree(trained, root)
    config = root / "operative_config.gin"
    kept = [line for line in config.read_text().splitlines() if not line.startswith("env_id")]
    config.write_text("\n".join([*lines, *kept]) + "\n")
    return root


@pytest.mark.parametrize(
    ("env_id", "named"),
    [
        pytest.param("tf_agents:os:popen", "os", marks=pytest.mark.needs("tf_agents")),
        pytest.param(
            "tf_agents:suite_gym/os:CartPole-v0", "os", marks=pytest.mark.needs("tf_agents")
        ),
        ("gymnasium:antigravity:CartPole-v1", "antigravity"),
        ("pettingzoo:antigravity", "antigravity"),
    ],
)
def test_ids_of_a_run_folder_name_no_code(call, trained, tmp_path, env_id, named):
    root = _foreign(trained, tmp_path, f"env_id = '{env_id}'")
    mark = tmp_path / "ran"
    command = f"make_env.env_kwargs={{'cmd': 'touch {mark}'}}"
    text = _paragraph(call(f"--root_dir={root}", f"--gin_bindings={command}"))
    assert text == (
        f"environment {env_id}: expected no code in {root}/operative_config.gin, since it may "
        f"come from an untrusted source, got the Python module '{named}', which would be imported "
        "and run. If "
        "you trust the folder, pass --allow_code or import the module in your own --gin_file."
    )
    assert not mark.exists()


def test_imports_of_a_run_folder_need_the_callers_word(call, trained, tmp_path, monkeypatch):
    package = tmp_path / "code"
    package.mkdir()
    (package / "foreign_code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('x')")
    monkeypatch.syspath_prepend(package)
    root = _foreign(trained, tmp_path, "import foreign_code", "env_id = 'tf:CartPole-v1'")
    text = _paragraph(call(f"--root_dir={root}"))
    assert text.startswith(f"Gin import of foreign_code ({root}/operative_config.gin:1): expected")
    assert not (tmp_path / "ran").exists()
    own = tmp_path / "own.gin"
    own.write_text("import foreign_code\n")
    for word in (f"--gin_file={own}", "--allow_code"):
        monkeypatch.delitem(sys.modules, "foreign_code", raising=False)
        (tmp_path / "ran").unlink(missing_ok=True)
        code, _, err = call(f"--root_dir={root}", "--episodes=1", word)
        assert (code, err) == (0, "")
        assert (tmp_path / "ran").exists()


@pytest.mark.needs("tf_agents")
def test_a_resumed_training_runs_no_code_of_its_folder(capsys, trained, tmp_path):
    root = _foreign(trained, tmp_path, "env_id = 'tf_agents:os:popen'")
    text = _paragraph(in_process(train.main, capsys, f"--root_dir={root}"))
    assert "the Python module 'os', which would be imported" in text

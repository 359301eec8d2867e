"""benchmarks.results: restartable, and its table is made of finished runs only."""

import dataclasses
import json
import signal
import subprocess
import sys
import time

import pytest

from benchmarks import claims, curves, results
from benchmarks.claims import Claim
from tfrl.experiment import comparison
from tfrl.launch import gin_files

CLAIM = Claim("ppo/tf_cartpole.gin", 475, note="a note")
TWIN = Claim(
    "ppo/tf_cartpole.gin", 0.6, at_most=True, variant="blind", bindings=("PPO.clip = None",)
)
# Stands for bin/train.py: writes down that it was called, takes its time, ends as a run does.
FAKE = """
import json, pathlib, signal, sys, time
folder, seed, seconds = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
folder.mkdir(parents=True, exist_ok=True)
def saved(*_):
    (folder / "saved").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, saved)
with (folder.parent / "calls").open("a") as calls:
    calls.write(f"{seed}\\n")
if (folder / "broken").exists():
    sys.exit("no such luck")
time.sleep(seconds)
(folder / "metadata.json").write_text(json.dumps({"git_hash": "abc"}))
rows = [{"env_steps": 256}, {"env_steps": 512, "eval_return_mean": 7.0}]
(folder / "metrics.jsonl").write_text("\\n".join(map(json.dumps, rows)))
summary = {"env_steps": 512, "eval_return_mean": 400.0 + seed * 100, "wall_seconds": 10.0 + seed}
(folder / "summary.json").write_text(json.dumps(summary))
"""


def fake_command(claim, seed, folder, seconds=0.0):
    return [sys.executable, "-c", FAKE, str(folder), str(seed), str(seconds)]


@pytest.fixture(name="root")
def fixture_root(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "train_command", fake_command)
    return tmp_path / "results"


def calls(root, claim=CLAIM):
    return (root / claim.folder / "calls").read_text().split()


def test_a_finished_run_is_not_repeated(root):
    first = results.run(root, CLAIM, 0)
    assert results.run(root, CLAIM, 0) == first
    assert calls(root) == ["0"]
    results.run(root, CLAIM, 1)
    assert calls(root) == ["0", "1"]
    assert first == {
        "gin_file": "ppo/tf_cartpole.gin",
        "bindings": [],
        "seed": 0,
        "env_steps": 512,
        "eval_return_mean": 400.0,
        "wall_seconds": 10.0,
        "config": results.config_digest(CLAIM),
        "git_hash": "abc",
        "curve": [[512, 7.0]],
    }


def test_a_run_that_failed_is_named_and_leaves_no_record(root):
    broken = root / CLAIM.folder / "seed_0" / "broken"
    broken.parent.mkdir(parents=True)
    broken.touch()
    with pytest.raises(SystemExit, match=r"^ppo/tf_cartpole, seed 0, ended with 1:\nno such luck"):
        results.run(root, CLAIM, 0)
    assert results.read_records(root, CLAIM) == {}
    broken.unlink()
    results.run(root, CLAIM, 0)
    assert list(results.read_records(root, CLAIM)) == [0]


def test_a_kill_ends_the_run_and_the_next_start_goes_on(root):
    driver = f"""
import functools, pathlib, sys
sys.path.insert(0, {str(results.measure.ROOT / "tests")!r})
import test_results
from benchmarks import results
def command(claim, seed, folder):
    return test_results.fake_command(claim, seed, folder, seconds=60.0 * seed)
results.train_command = command
folders = [{f"--root_dir={root}"!r}, {f"--records={root}"!r}]
results.main(["--only=ppo/tf_cartpole.gin", "--seeds=3", *folders])
"""
    process = subprocess.Popen([sys.executable, "-c", driver], stderr=subprocess.DEVNULL)
    second = root / CLAIM.folder / "seed_1"
    deadline = time.monotonic() + 60
    while not second.is_dir() or len(calls(root)) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 143
    assert (second / "saved").exists()  # the run was asked to end, and did
    assert list(results.read_records(root, CLAIM)) == [0]
    for seed in range(3):
        results.run(root, CLAIM, seed)
    assert calls(root) == ["0", "1", "1", "2"]


def test_a_record_of_another_configuration_does_not_count(root):
    results.run(root, CLAIM, 0)
    other = dataclasses.replace(CLAIM, bindings=("PPO.clip = 0.3",))
    assert results.read_records(root, CLAIM) != {}
    assert results.read_records(root, other) == {}
    results.run(root, other, 0)
    assert calls(root) == ["0", "0"]


def test_comments_do_not_change_the_configuration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.gin").write_text("include 'ppo/tf_cartpole.gin'\nPPO.clip = 0.3\n")
    mine = Claim("mine.gin", 0)
    before = results.config_digest(mine)
    (tmp_path / "mine.gin").write_text("include 'ppo/tf_cartpole.gin'\n\nPPO.clip = 0.3  # Why.\n")
    assert results.config_digest(mine) == before
    (tmp_path / "mine.gin").write_text("include 'ppo/tf_cartpole.gin'\nPPO.clip = 0.4\n")
    assert results.config_digest(mine) != before


def test_the_table(root):
    missing = Claim("ppo/tf_acrobot.gin", -90)
    for seed in range(2):
        results.run(root, CLAIM, seed)
    results.run(root, TWIN, 0)
    # Seeds 0 and 1 returned 400 and 500: of the means of two draws half are 450.
    assert results.table(root, (CLAIM, TWIN, missing)) == (
        "| gin file | env steps | target | mean | 95% interval | reached | seeds | by seed | "
        "seconds |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
        "| `ppo/tf_cartpole.gin` | 512 | >= 475 | 450.0 | 400.0 to 500.0 | no | 2 of 5 "
        "| 400.0, 500.0 | 10 |\n"
        "| `ppo/tf_cartpole.gin`, blind | 512 | <= 0.6 | 400.0 | 400.0 to 400.0 | no | 1 of 5 "
        "| 400.0 | 10 |\n"
        "\n- `ppo/tf_cartpole.gin`: a note.\n"
        "\nNot run yet for this table: `ppo/tf_acrobot.gin`.\n"
        "\nOne run each, `S` being the seed:\n\n```bash\n"
        "python bin/train.py --gin_file=ppo/tf_cartpole.gin --seed=S\n"
        "python bin/train.py --gin_file=ppo/tf_cartpole.gin '--gin_bindings=PPO.clip = None' "
        "--seed=S\n```"
    )


def test_a_claim_without_a_target(root):
    beside = Claim("ppo/tf_cartpole.gin", None, seeds=1, tested=False)
    results.run(root, beside, 0)
    assert "| 512 |  | 400.0 | 400.0 to 400.0 |  | 1 |" in results.table(root, (beside,))
    assert beside.holds(-1e9)
    assert results.figures(beside, results.read_records(root, beside))["holds"] is None


def test_curves_by_task_in_light_and_dark(tmp_path):
    pytest.importorskip("matplotlib")
    files = ("evolution/ars_tf_cartpole.gin", "ppo/tf_cartpole.gin", "ppo/envpool_pong.gin")
    ars, ppo, pong = (Claim(file, -1, peer="Zoo") for file in files)
    given = [[[100, 1.0], [200, 3.0]], [[100, 5.0], [200, 5.0], [300, 9.0]]]
    records = {
        ars: {s: {"curve": c, "eval_return_mean": 9.0} for s, c in enumerate(given)},
        ppo: {0: {"eval_return_mean": 400.0, "env_steps": 512}},
        pong: {0: {"eval_return_mean": 19.0, "env_steps": 99}},
    }
    (tmp_path / pong.folder).mkdir()
    (tmp_path / pong.folder / "curve.csv").write_text("env_steps,episodes,return\n9,1,-20\n99,2,1")
    found = curves.by_panel(records, tmp_path)
    searches = "tf:CartPole-v1, evolution"
    assert {panel: list(lines) for panel, lines in found.items()} == {
        searches: ["ars"], "tf:CartPole-v1": ["ppo"], "envpool:Pong-v5": ["ppo"],
    }  # fmt: skip
    assert curves.peers_of(records)[searches] == {"Zoo: -1": -1}
    axis, mean, low, high = comparison.mean_curve(found[searches]["ars"])
    assert (axis[0], axis[-1], mean[0], mean[-1]) == (100, 200, 3.0, 4.0)
    assert (low[0], high[0]) == (1.0, 5.0)
    assert found["envpool:Pong-v5"]["ppo"][0].column("eval_return_mean")[1].tolist() == [-20, 1]
    assert curves.without_curves(records, tmp_path) == ["ppo/tf_cartpole"]
    light, dark = curves.draw(records, tmp_path)
    before = light.read_bytes()
    assert b"ppo (1)" in before and b"Zoo: -1" in before and before != dark.read_bytes()
    assert curves.draw(records, tmp_path)[0].read_bytes() == before


def test_the_records_of_the_page_are_all_drawn():
    for claim in claims.CLAIMS:
        assert curves.task_of(claim).count(":") == 1, claim
    names = [(curves.task_of(c), curves.algorithm_of(c)) for c in claims.CLAIMS]
    assert len(set(names)) == len(names)


def test_any_gin_file_has_results(root, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.gin").write_text("include 'ppo/tf_cartpole.gin'\n")
    monkeypatch.setattr(results.signal, "signal", lambda *_: None)
    args = ["--gin_files=mine.gin", "--bindings=PPO.clip = 0.3", "--seeds=2"]
    results.main([*args, "--root_dir=out"])
    out, _ = capsys.readouterr()
    assert json.loads(out)["by_seed"] == [400.0, 500.0]
    page = (tmp_path / "out" / "results.md").read_text()
    assert "| `mine.gin`, PPO.clip = 0.3 | 512 |  | 450.0 |" in page
    assert "](curves_dark.svg#gh-dark-mode-only)" in page
    assert (tmp_path / "out" / "curves_dark.svg").is_file()
    with pytest.raises(SystemExit, match="expected --gin_files, got none"):
        results.main(["--bindings=PPO.clip = 0.3"])


def test_five_seeds_are_enough(root):
    for seed in range(5):
        results.run(root, CLAIM, seed)
    assert " | yes | 5 | 400.0, 500.0, 600.0, 700.0, 800.0 | 12 |" in results.table(root, (CLAIM,))


def test_the_page_keeps_what_is_outside_of_the_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{results.BEGIN}\nold\n{results.END}\n\nafter\n")
    for _ in range(2):
        results.write_page(page, "new")
        text = f"before\n\n{results.BEGIN}\n\nnew\n\n{results.END}\n\nafter\n"
        assert page.read_text() == text
    page.write_text(f"{results.BEGIN}\n")
    with pytest.raises(SystemExit, match="expected the marks"):
        results.write_page(page, "new")


def test_claims_stand_for_shipped_files_and_have_folders_of_their_own():
    folder = gin_files.package_gin_dir()
    assert [c.gin_file for c in claims.CLAIMS if not (folder / c.gin_file).is_file()] == []
    assert len({c.folder for c in claims.CLAIMS}) == len(claims.CLAIMS)
    text = results.PAGE.read_text()
    assert text.count(results.BEGIN) == text.count(results.END) == 1
    missing = text.partition("Not run yet for this table: ")[2].partition("\n")[0]
    assert [name for name in results.without_claims() if f"`{name}`" not in missing] == []
    assert TWIN.folder == "ppo_tf_cartpole_blind"
    assert TWIN.holds(0.6) and not TWIN.holds(0.61) and CLAIM.holds(475) and not CLAIM.holds(474.9)


def test_claims_are_chosen_by_their_files():
    assert results.choose("") == claims.CLAIMS
    both = results.choose("ppo_rnn/tf_memory.gin")
    assert [c.variant for c in both] == ["", "feed-forward"]
    with pytest.raises(SystemExit, match=r"expected gin files of ppo/tf_.*; got ppo/tf_cart.gin$"):
        results.choose("ppo/tf_cart.gin,ppo/tf_pendulum.gin")


@pytest.mark.slow
def test_a_real_run(tmp_path):
    tiny = dataclasses.replace(
        CLAIM,
        bindings=("train.total_env_steps = 2048", "train.final_eval_episodes = 4"),
    )
    record = results.run(tmp_path, tiny, 3)
    assert record["env_steps"] == 2048 and record["eval_episodes"] == 4
    stored = json.loads((tmp_path / tiny.folder / "seed_3.json").read_text())
    assert stored == json.loads(json.dumps(record))
    assert not (tmp_path / tiny.folder / "seed_3" / "videos" / "final.mp4").exists()
    assert "2,048" in results.table(tmp_path, (tiny,))

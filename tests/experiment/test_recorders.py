import csv
import errno
import json
import math
import os
import pathlib
import re
import sys
import types

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests import docs_helpers
from tfrl.errors import UserError
from tfrl.experiment import recorders


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def steps_of(path):
    if path.suffix == ".csv":
        return [int(row["env_steps"]) for row in table(path)]
    return [json.loads(line)["env_steps"] for line in path.read_text().splitlines()]


FILES = [(recorders.CsvRecorder, "metrics.csv"), (recorders.JsonlRecorder, "metrics.jsonl")]


_NO_SPACE = tf.errors.ResourceExhaustedError(None, None, "x; No space left on device")


class TestCell:
    @pytest.mark.parametrize(
        "value,expected",
        [
            (np.float32(0.1), 0.1),
            (np.array(np.float16(0.5)), 0.5),
            (tf.constant(0.3), 0.3),
            (tf.Variable(7, dtype=tf.int64), 7),
            (np.bool_(True), 1),
            (True, 1),
            (2**40, 2**40),
            (0.1, 0.1),
            ("two\nlines", "two lines"),
        ],
    )
    def test_values(self, value, expected):
        found = recorders.cell("x", value)
        assert found == expected and type(found) in (int, float, str)

    def test_shortest_decimal_reads_back_as_the_same_float32(self):
        for value in np.random.default_rng(0).normal(size=200).astype(np.float32):
            assert np.float32(recorders.cell("x", value)) == value

    @pytest.mark.parametrize("value", [[1, 2], np.zeros(2), None, {}])
    def test_refused(self, value):
        with pytest.raises(TypeError, match="metric 'loss': expected a number or a string, got"):
            recorders.cell("loss", value)


class TestCsv:
    def test_columns_grow_in_the_order_of_arrival(self, tmp_path):
        path = tmp_path / "a" / "metrics.csv"
        recorder = recorders.CsvRecorder(path)
        recorder.write(1, {"loss": np.float32(0.1), "b": 2})
        recorder.write(2, {"b": 3, "a, quoted": 'say "x"'})
        recorder.write(3, {"loss": math.nan, "b": -math.inf, "env_steps": 3})
        recorder.close()
        assert path.read_text() == (
            'env_steps,loss,b,"a, quoted"\n1,0.1,2,\n2,,3,"say ""x"""\n3,nan,-inf,\n'
        )
        assert os.listdir(path.parent) == ["metrics.csv"]

    def test_goes_on_with_the_columns_that_are_there(self, tmp_path):
        path = tmp_path / "metrics.csv"
        with_columns = recorders.CsvRecorder(path)
        with_columns.write(1, {"b": 1, "a": 2})
        with_columns.close()
        again = recorders.CsvRecorder(path)
        again.write(2, {"a": 3, "c": 4})
        again.close()
        assert path.read_text() == "env_steps,b,a,c\n1,1,2,\n2,,3,4\n"

    def test_crash_while_columns_grow_keeps_the_old_table(self, tmp_path, monkeypatch):
        path = tmp_path / "metrics.csv"
        recorder = recorders.CsvRecorder(path)
        recorder.write(1, {"a": 1})
        recorder.flush()

        def crash(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as crashing:
            crashing.setattr(os, "replace", crash)
            with pytest.raises(KeyboardInterrupt):
                recorder.write(2, {"b": 2})
        assert path.read_text() == "env_steps,a\n1,1\n"
        assert steps_of(path) == [1]

    def test_foreign_table(self, tmp_path):
        path = tmp_path / "metrics.csv"
        path.write_text("time,x\n1,2\n")
        with pytest.raises(UserError) as error:
            recorders.CsvRecorder(path)
        assert str(error.value) == (
            f"metrics file {path}: expected a table whose first column is env_steps, with a name "
            "for each column, got the header 'time,x'. Repair or move the file, or choose another "
            "--root_dir; nothing was changed."
        )

    @pytest.mark.parametrize(
        "content",
        [
            *("env_steps\n1,2\n3,4\n", "1,2\n3,4\n", "env_steps,\n1,2\n"),
            *("env_steps,a,a\n1,2,3\n5", "env_\rsteps\n1\n"),
        ],
    )
    def test_a_damaged_header_changes_nothing(self, tmp_path, content):
        path = tmp_path / "metrics.csv"
        path.write_text(content, newline="")
        with pytest.raises(UserError, match="a name for each column, got the header"):
            recorders.CsvRecorder(path)
        assert path.read_bytes() == content.encode()

    def test_another_step_name(self, tmp_path):
        path = tmp_path / "metrics.csv"
        recorder = recorders.CsvRecorder(path, step_name="generation")
        recorder.write(4, {"env_steps": 90})
        recorder.close()
        assert path.read_text() == "generation,env_steps\n4,90\n"

    def test_contradicting_step(self, tmp_path):
        recorder = recorders.CsvRecorder(tmp_path / "metrics.csv")
        with pytest.raises(ValueError, match="row of step 4: env_steps is 5"):
            recorder.write(4, {"env_steps": 5})


class TestJsonl:
    def test_rows(self, tmp_path):
        path = tmp_path / "metrics.jsonl"
        recorder = recorders.JsonlRecorder(path)
        recorder.write(1, {"loss": np.float32(0.1), "n": np.int64(2**40), "name": "ä"})
        recorder.write(2, {"loss": math.nan, "b": math.inf})
        recorder.close()
        assert path.read_text().splitlines() == [
            '{"env_steps": 1, "loss": 0.1, "n": 1099511627776, "name": "\\u00e4"}',
            '{"env_steps": 2, "loss": null, "b": null}',
        ]


@pytest.mark.parametrize("make,name", FILES)
class TestResume:
    def test_truncate_drops_later_rows_only(self, tmp_path, make, name):
        path = tmp_path / name
        recorder = make(path)
        for step in (1, 2, 2, 3, 10):
            recorder.write(step, {"x": step})
        recorder.truncate(2)
        recorder.write(3, {"x": 33})
        recorder.close()
        assert steps_of(path) == [1, 2, 2, 3]
        assert "33" in path.read_text().splitlines()[-1]

    @pytest.mark.parametrize("cut", range(1, 9))
    def test_half_written_last_line(self, tmp_path, make, name, cut):
        path = tmp_path / name
        recorder = make(path)
        for step in (128, 256, 384):
            recorder.write(step, {"x": step})
        recorder.close()
        whole = path.read_bytes()
        path.write_bytes(whole[:-cut])
        again = make(path)
        again.truncate(256)
        assert steps_of(path) == [128, 256]
        again.write(384, {"x": 384})
        again.close()
        assert path.read_bytes() == whole

    def test_every_cut_of_the_file_can_be_gone_on_with(self, tmp_path, make, name):
        path = tmp_path / name
        recorder = make(path)
        for step in (1, 2, 3):
            recorder.write(step, {"x": step})
        recorder.close()
        whole = path.read_bytes()
        for length in range(len(whole) + 1):
            path.write_bytes(whole[:length])
            again = make(path)
            again.truncate(3)
            there = steps_of(path)
            for step in range(len(there) + 1, 4):
                again.write(step, {"x": step})
            again.close()
            assert path.read_bytes() == whole, length

    def test_a_damaged_line_is_named(self, tmp_path, make, name):
        path = tmp_path / name
        recorder = make(path)
        for step in (1, 2, 3):
            recorder.write(step, {"x": step})
        recorder.close()
        lines = path.read_bytes().splitlines(keepends=True)
        damaged = len(lines) - 2
        lines[damaged] = b"\0\0\0\n"
        path.write_bytes(b"".join(lines))
        again = make(path)
        with pytest.warns(UserWarning) as caught:
            again.truncate(9)
        assert str(caught[0].message) == f"{path}: line {damaged + 1} is damaged and dropped"
        assert steps_of(path) == [1, 3]
        again.close()

    def test_truncate_to_nothing(self, tmp_path, make, name):
        path = tmp_path / name
        recorder = make(path)
        recorder.truncate(0)
        recorder.write(5, {"x": 1})
        recorder.truncate(0)
        recorder.write(5, {"x": 2})
        recorder.close()
        assert steps_of(path) == [5]

    def test_flush_makes_rows_visible_and_close_is_repeatable(self, tmp_path, make, name):
        path = tmp_path / name
        recorder = make(path)
        recorder.write(5, {"x": 1})
        recorder.flush()
        assert steps_of(path) == [5]
        recorder.close()
        recorder.close()

    def test_unwritable(self, tmp_path, make, name):
        (tmp_path / "file").write_text("")
        with pytest.raises(UserError) as error:
            make(tmp_path / "file" / name)
        assert str(error.value) == (
            f"metrics file {tmp_path / 'file' / name}: expected a writable file, got "
            f"a file in place of a folder ({tmp_path / 'file'}). Choose another --root_dir, or "
            "make this folder writable."
        )

    def test_last_line_longer_than_a_block(self, tmp_path, make, name):
        path = tmp_path / name
        recorder = make(path)
        recorder.write(1, {"x": "short"})
        recorder.write(2, {"x": "y" * 200_000})
        recorder.close()
        path.write_bytes(path.read_bytes()[:-1])
        make(path).close()
        assert steps_of(path) == [1]


def events(folder):
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0})
    accumulator.Reload()
    return accumulator


class TestTensorBoard:
    def test_scalars(self, tmp_path):
        recorder = recorders.TensorBoardRecorder(tmp_path)
        recorder.write(1, {"loss": 0.5, "note": "text", "huge": 1e300})
        recorder.write(3, {"loss": math.nan, "n": np.int64(4)})
        recorder.flush()
        recorder.close()
        recorder.close()
        found = events(tmp_path)
        assert set(found.Tags()["scalars"]) == {"train/loss", "train/n", "train/huge"}
        loss = found.Scalars("train/loss")
        assert [e.step for e in loss] == [1, 3]
        assert loss[0].value == 0.5 and math.isnan(loss[1].value)
        assert found.Scalars("train/n")[0].value == 4.0
        assert math.isinf(found.Scalars("train/huge")[0].value)

    @pytest.mark.parametrize("half", [False, True])
    def test_resume_restarts_at_the_checkpoint(self, tmp_path, half):
        first = recorders.TensorBoardRecorder(tmp_path)
        for step in (1, 2, 3, 4):
            first.write(step, {"loss": float(step), "only_first": 0.0})
        first.close()
        old = next(tmp_path.iterdir())
        if half:  # killed while it wrote a record
            old.write_bytes(old.read_bytes()[:-5])
        second = recorders.TensorBoardRecorder(tmp_path)
        second.truncate(2)
        second.write(3, {"loss": 30.0})
        second.close()
        found = events(tmp_path)
        assert [(e.step, e.value) for e in found.Scalars("train/loss")] == [
            (1, 1.0),
            (2, 2.0),
            (3, 30.0),
        ]
        assert [e.step for e in found.Scalars("train/only_first")] == [1, 2]
        # The later points are gone from the file too, for readers without regard for START.
        assert [e.step for e in events(old).Scalars("train/loss")] == [1, 2]
        assert sorted("tfevents" in name for name in os.listdir(tmp_path)) == [True, True]

    def test_tags_without_groups_of_an_earlier_version_get_theirs(self, tmp_path, monkeypatch):
        with monkeypatch.context() as earlier:
            earlier.setattr(recorders, "tensorboard_tag", lambda name: name)
            first = recorders.TensorBoardRecorder(tmp_path)
            first.write(1, {"loss": 1.0, "time/call": 2.0, "eval_return_mean": 3.0})
            first.video("video", np.zeros([2, 4, 4, 3], np.uint8), 1)
            first.write(5, {"loss": 5.0})
            first.close()
        second = recorders.TensorBoardRecorder(tmp_path)
        second.truncate(1)
        second.write(2, {"loss": 2.0})
        second.close()
        found = events(tmp_path)
        assert [(e.step, e.value) for e in found.Scalars("train/loss")] == [(1, 1.0), (2, 2.0)]
        tags = found.Tags()
        assert set(tags["scalars"]) == {"train/loss", "time/call", "eval/return_mean"}
        assert tags["images"] == ["eval/video"]

    def test_a_tensorboard_that_has_read_later_points_is_told(self, tmp_path):
        first = recorders.TensorBoardRecorder(tmp_path)
        for step in (1, 2, 3, 4):
            first.write(step, {"loss": float(step)})
        first.close()
        living = events(tmp_path)
        assert len(living.Scalars("train/loss")) == 4
        second = recorders.TensorBoardRecorder(tmp_path)
        second.truncate(2)
        second.write(3, {"loss": 30.0})
        second.close()
        living.Reload()
        assert [e.value for e in living.Scalars("train/loss")] == [1.0, 2.0, 30.0]

    def test_video_is_an_animated_image(self, tmp_path):
        import io

        from PIL import Image

        recorder = recorders.TensorBoardRecorder(tmp_path)
        frames = np.zeros([5, 8, 6, 3], np.uint8)
        for t in range(5):
            frames[t, t] = 255
        recorder.video("policy", frames, 7, fps=10)
        recorder.close()
        event = events(tmp_path).Images("policy")[0]
        assert (event.step, event.width, event.height) == (7, 6, 8)
        image = Image.open(io.BytesIO(event.encoded_image_string))
        assert image.n_frames == 5 and image.info["duration"] == 100
        image.seek(2)
        assert np.asarray(image.convert("RGB"))[:, 0, 0].tolist() == [0, 0, 255, 0, 0, 0, 0, 0]

    @pytest.mark.parametrize(
        "frames", [np.zeros([2, 4, 4], np.uint8), np.zeros([2, 4, 4, 3]), np.zeros([0, 4, 4, 3])]
    )
    def test_bad_frames(self, tmp_path, frames):
        recorder = recorders.TensorBoardRecorder(tmp_path)
        with pytest.raises(ValueError, match=r"video 'v': expected uint8 frames \[T, H, W, 3\]"):
            recorder.video("v", frames, 0)
        recorder.close()

    def test_unwritable(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(
            UserError, match="TensorBoard folder .*/file/tb: expected a writable folder"
        ):
            recorders.TensorBoardRecorder(tmp_path / "file" / "tb")

    @pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), _NO_SPACE])
    def test_an_error_of_its_thread_is_raised_by_the_next_row(self, tmp_path, error):
        recorder = recorders.TensorBoardRecorder(tmp_path)
        recorder._writer._async_writer._worker.exception = error
        for call in (lambda: recorder.write(1, {"a": 1.0}), recorder.flush):
            with pytest.raises(UserError, match="TensorBoard folder .*writable.*got a full disk"):
                call()
        recorder._writer._async_writer._worker.exception = None
        recorder.close()


class TestConsole:
    def test_compact_and_rate_limited(self):
        lines, now = [], [0.0]
        recorder = recorders.ConsoleRecorder(10.0, print_line=lines.append, clock=lambda: now[0])
        for second, step in [(0, 1000), (4, 2000), (9.9, 3000), (10, 4000), (12, 5000)]:
            now[0] = second
            recorder.write(step, {"loss": 0.123456, "n": 12345, "kind": "ppo", "bad": math.nan})
        recorder.close()
        recorder.close()
        rest = "loss=0.1235 n=12,345 kind=ppo bad=nan"
        assert lines == [f"1,000  {rest}", f"4,000  {rest}", f"5,000  {rest}"]

    def test_names(self, capsys):
        recorder = recorders.ConsoleRecorder(0.0, names=("b", "c"))
        recorder.write(1, {"a": 1, "b": 2})
        recorder.write(2, {"a": 1})
        recorder.close()
        assert capsys.readouterr().out == "1  b=2\n"


class FakeRun:
    def __init__(self):
        self.rows, self.finished = [], 0

    def log(self, row, step):
        self.rows.append((step, row))

    def finish(self):
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch):
    module = types.ModuleType("wandb")
    module.run, module.arguments = FakeRun(), {}
    module.api = types.SimpleNamespace(api_key=None)

    def init(**arguments):
        module.arguments.update(arguments)
        return module.run

    module.init = init
    module.Video = lambda frames, fps, format: ("video", frames.shape, fps, format)
    monkeypatch.setitem(sys.modules, "wandb", module)
    for name in ("WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return module


class TestWandb:
    def test_rows_and_settings(self, tmp_path, wandb):
        recorder = recorders.WandbRecorder(
            tmp_path / "w", project="p", name="n", run_id="r", config={"a": np.float32(0.1)}
        )
        recorder.write(3, {"loss": tf.constant(0.5)})
        recorder.video("v", np.zeros([2, 4, 6, 3], np.uint8), 3, fps=20)
        recorder.truncate(2)
        recorder.flush()
        recorder.close()
        recorder.close()
        assert wandb.arguments == {
            "project": "p",
            "name": "n",
            "id": "r",
            "resume": "allow",
            "dir": str(tmp_path / "w"),
            "config": {"a": 0.1},
            "mode": "offline",
        }
        assert wandb.run.rows == [
            (3, {"loss": 0.5}),
            (3, {"v": ("video", (2, 3, 4, 6), 20, "gif")}),
        ]
        assert wandb.run.finished == 1

    def test_mode(self, monkeypatch, wandb):
        asked = []
        monkeypatch.setattr(recorders, "_reachable", lambda url: asked.append(url) or True)
        assert recorders.choose_mode(None) == "offline" and asked == []
        assert recorders.choose_mode("key") == "online"
        monkeypatch.setenv("WANDB_BASE_URL", "http://localhost:1")
        assert recorders.choose_mode("key") == "online"
        assert asked == ["https://api.wandb.ai", "http://localhost:1"]
        monkeypatch.setattr(recorders, "_reachable", lambda url: False)
        assert recorders.choose_mode("key") == "offline"
        monkeypatch.setenv("WANDB_MODE", "disabled")
        assert recorders.choose_mode("key") == "disabled"

    def test_reachable(self):
        import socket

        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            assert recorders._reachable(f"http://127.0.0.1:{port}")
        assert not recorders._reachable(f"http://127.0.0.1:{port}")

    def test_not_installed(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "wandb", None)
        with pytest.raises(UserError, match=r"pip install 'tfrl\[wandb\]'"):
            recorders.WandbRecorder(tmp_path)


class TestGroup:
    def test_fans_out(self, tmp_path):
        group = recorders.RecorderGroup(
            [make(tmp_path / name) for make, name in FILES]
            + [recorders.TensorBoardRecorder(tmp_path / "tb")]
        )
        for step in (1, 2, 3):
            group.write(step, {"x": step})
        group.truncate(1)
        group.write(2, {"x": 20})
        group.video("v", np.zeros([2, 4, 4, 3], np.uint8), 2)
        group.flush()
        for _, name in FILES:
            assert steps_of(tmp_path / name) == [1, 2]
        group.close()
        assert [e.value for e in events(tmp_path / "tb").Scalars("train/x")] == [1.0, 20.0]
        assert events(tmp_path / "tb").Tags()["images"] == ["v"]

    def test_closes_all_when_one_fails(self, tmp_path):
        class Failing(recorders.Recorder):
            def write(self, step, row):
                del step, row

            def close(self):
                raise OSError("disk")

        jsonl = recorders.JsonlRecorder(tmp_path / "m.jsonl")
        with pytest.raises(OSError, match="disk"):
            recorders.RecorderGroup([Failing(), jsonl]).close()
        assert jsonl._file.closed

    def test_a_killed_writer(self, tmp_path):
        """Rows that were flushed survive a kill; the resumed files equal uninterrupted ones."""

        def run(folder, until, resumed_from=None):
            group = recorders.RecorderGroup([make(folder / name) for make, name in FILES])
            if resumed_from is not None:
                group.truncate(resumed_from)
            for step in range((resumed_from or 0) + 1, until + 1):
                group.write(step, {"x": step / 3, **({"late": step} if step > 4 else {})})
                if step == 4:
                    group.flush()
            return group

        whole, killed = tmp_path / "whole", tmp_path / "killed"
        run(whole, 9).close()
        child = os.fork()
        if child == 0:
            run(killed, 7)
            os._exit(9)
        os.waitpid(child, 0)
        run(killed, 9, resumed_from=4).close()
        for _, name in FILES:
            assert (killed / name).read_bytes() == (whole / name).read_bytes()


def test_package_has_no_pickle():
    for file in pathlib.Path(recorders.__file__).parent.glob("*.py"):
        assert "pickle" not in file.read_text().replace("Nothing is pickled", "")


@pytest.mark.parametrize(("make", "name"), FILES)
class TestFilesOfRows:
    def test_a_link_is_not_followed(self, tmp_path, make, name):
        foreign = tmp_path / "foreign"
        foreign.write_text("a line\nand half of one")
        (tmp_path / name).symlink_to(foreign)
        with pytest.raises(UserError, match="a symbolic link, which is not followed"):
            make(tmp_path / name)
        assert foreign.read_text() == "a line\nand half of one"

    def test_rows_are_counted(self, tmp_path, make, name):
        recorder = make(tmp_path / name)
        for step in (1, 2, 3):
            recorder.write(step, {"a": step})
        assert recorders.RecorderGroup([recorder]).num_rows == {name: 3}
        recorder.close()
        again = make(tmp_path / name)
        again.truncate(2)
        again.write(3, {"a": 0})
        assert again.num_rows == 3


def test_columns_stand_in_groups():
    page = docs_helpers.ROOT / "docs" / "algorithms" / "README.md"
    rows = re.findall(r"^\| `([\w/]+)`[^|]*\| `(\w+/[\w/]+)` \|", page.read_text(), re.MULTILINE)
    assert len(rows) > 12
    assert {name: recorders.tensorboard_tag(name) for name, _ in rows} == dict(rows)
    assert recorders.tensorboard_tag("policy_0/loss") == "train/policy_0/loss"
    assert recorders.tensorboard_tag("eval/video") == "eval/video"
    assert recorders.tensorboard_tag("time") == "train/time"

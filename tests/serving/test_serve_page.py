"""docs/serving.md, run: its servers as processes, its clients as they stand."""

import ast
import contextlib
import inspect
import json
import re
import shlex
import urllib.error
import urllib.request

import pytest

from tests import docs_helpers, forked
from tests.launch.launch_runs import arguments, command, in_process, run, wait_until
from tfrl.launch import serve

PAGE = (docs_helpers.ROOT / "docs" / "serving.md").read_text()
BLOCKS = docs_helpers.blocks(PAGE)
COMMANDS = [shlex.split(code) for kind, code in BLOCKS if kind == "bash"]


def test_the_page_lists_the_flags():
    calls = [n for n in ast.walk(ast.parse(inspect.getsource(serve))) if isinstance(n, ast.Call)]
    defined = [n.args[0].value for n in calls if getattr(n.func, "attr", "").startswith("DEFINE_")]
    listed = re.findall(r"^\| `--(\w+)`", PAGE, re.MULTILINE)
    assert sorted(listed) == sorted(defined) and len(defined) > 7


def test_mistakes_of_the_command(tmp_path, capsys):
    code, _, err = in_process(serve.main, capsys)
    assert code == 2 and "--root_dir: expected a run folder" in err
    code, _, err = in_process(
        serve.main, capsys, f"--root_dir={tmp_path}", "--http_port=0", "--max_batch_size=3"
    )
    assert code == 2 and "max_batch_size: expected a power of two, got 3" in err
    code, _, err = in_process(serve.main, capsys, f"--root_dir={tmp_path}", "--http_port=0")
    assert code == 2 and "got neither" in err


@contextlib.contextmanager
def served(flags, log):
    """A server as a process; yields the place of its port in addresses, `:8501`."""
    log.write_text("")
    started = [*flags, "--http_port=0", "--max_batch_size=2"]
    process = forked.Process(command("serve", *started), stdout=log, stderr=log)
    try:
        wait_until(lambda: "Serving" in log.read_text() or process.poll() is not None)
        yield re.search(r"Serving policy, version \d+: http://127.0.0.1(:\d+)/", log.read_text())[1]
    finally:
        process.terminate()
        code = process.wait(30)
    assert code == 143, log.read_text()


@pytest.mark.slow
def test_the_page(tmp_path, monkeypatch):
    root = tmp_path / "runs" / "ppo_tf_cartpole"
    done = run("train", *arguments(root, 64, "train.video=False"))
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    asks, plays, trains = [code for kind, code in BLOCKS if kind == "python"]
    names, log = {}, tmp_path / "serve.log"
    first, second = [words[1:] for words in COMMANDS]
    with served(first, log) as port:
        exec(asks.replace(":8501", port), names)
        assert len(names["rows"]["predictions"]) == 2 and len(names["columns"]["outputs"]) == 1
        assert names["ask"]("/healthz") == {"status": "ok", "versions": [64]}
        with pytest.raises(urllib.error.HTTPError) as error:
            names["ask"]("/v1/models/policy:predict", {"instances": [[0.0] * 3]})
        (message,) = re.findall(r"`\{\"error\": \"(.*?) \.\.\.\"\}`", PAGE)
        assert json.load(error.value)["error"].startswith(message)
    with served(second, log) as port:
        exec(asks.replace(":8501", port), names)
        exec(plays, names)
    exec(trains, names)
    assert names["results"]["default_policy"]["gradient_steps"] == 1
    with served([f"--root_dir={root / 'policy'}"], log) as port:
        url = f"http://127.0.0.1{port}/v1/models/policy:predict"
        for signature, code in (("action", 200), ("explore", 400)):
            body = json.dumps({"instances": [[0.0] * 4], "signature_name": signature}).encode()
            if code == 400:
                with pytest.raises(urllib.error.HTTPError):
                    urllib.request.urlopen(url, body)
                continue
            with urllib.request.urlopen(url, body) as response:
                assert json.load(response)["predictions"][0] in (0, 1)

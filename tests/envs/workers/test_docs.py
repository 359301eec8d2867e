import sys

from tests.docs_helpers import ROOT, blocks, run

PAGE = (ROOT / "docs" / "workers.md").read_text()


def test_the_example_of_the_page_runs(tmp_path):
    ((kind, code),) = blocks(PAGE)
    assert kind == "python"
    (tmp_path / "example.py").write_text(code)
    assert run([sys.executable, "example.py"], tmp_path) == "4 True 0\n"


def test_the_page_names_what_there_is():
    from tfrl.envs import workers

    names = {"WorkerPool", "WorkerState", "WorkerError", "NoState", "episode_seed"}
    assert names <= set(workers.__all__)
    pool = ("restarts", "abandoned_threads", "next_episodes", "generation", "get_state")
    for name in names:
        assert f"`{name}" in PAGE or f"{name}(" in PAGE
    for name in pool:
        assert hasattr(workers.WorkerPool, name) and name in PAGE
    for name in ("start_timeout", "reset_timeout", "step_timeout", "max_restarts", "cleanup_time"):
        assert f"`{name}`" in PAGE
    limits = workers.WorkerLimits()
    assert (limits.backoff, limits.max_backoff) == (0.1, 10.0)
    assert "begins with 0.1 s and doubles\nup to 10 s" in PAGE

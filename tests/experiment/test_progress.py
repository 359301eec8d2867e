import io
import re

import rich.console

from tfrl.experiment.progress import Progress


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def terminal():
    stream = io.StringIO()
    return stream, rich.console.Console(file=stream, force_terminal=True, width=120)


def without_codes(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


class TestPlain:
    def test_lines_are_limited_and_the_last_state_is_told(self):
        stream, clock = io.StringIO(), Clock()
        progress = Progress(1_000_000, stream=stream, every_seconds=10, clock=clock)
        for second in range(1, 26):
            clock.now = float(second)
            progress.update(second * 1000, return_=second + 0.5)
        progress.close()
        progress.close()
        assert stream.getvalue().splitlines() == [
            "env steps   0% 1,000/1,000,000  1,000/s  eta 0:16:39  return=1.5",
            "env steps   1% 11,000/1,000,000  1,000/s  eta 0:16:29  return=11.5",
            "env steps   2% 21,000/1,000,000  1,000/s  eta 0:16:19  return=21.5",
            "env steps   2% 25,000/1,000,000  1,000/s  eta 0:16:15  return=25.5",
        ]

    def test_no_control_codes(self):
        stream = io.StringIO()
        with Progress(10, stream=stream) as progress:
            progress.update(10)
        assert re.fullmatch(r"env steps 100% 10/10  [\d,]+/s  eta 0:00:00\n", stream.getvalue())
        assert "\x1b" not in stream.getvalue() and "\r" not in stream.getvalue()

    def test_rate_counts_from_where_a_resumed_run_starts(self):
        stream, clock = io.StringIO(), Clock()
        progress = Progress(200, "generations", done=100, stream=stream, clock=clock)
        clock.now = 2.0
        progress.update(120)
        assert progress.rate == 10.0
        assert stream.getvalue() == "generations  60% 120/200  10/s  eta 0:00:08\n"

    def test_rate_forgets_the_slow_start(self):
        clock = Clock()
        progress = Progress(10**6, stream=io.StringIO(), clock=clock)
        clock.now = 100.0  # compilation
        for done in range(1000, 50_000, 1000):
            clock.now += 1.0
            progress.update(done)
        assert progress.rate == 1000.0

    def test_unknown_time_left_before_the_first_step(self):
        stream, clock = io.StringIO(), Clock()
        progress = Progress(10, stream=stream, clock=clock)
        progress.update(0)
        assert stream.getvalue() == "env steps   0% 0/10  ?/s  eta ?\n"

    def test_log(self):
        stream = io.StringIO()
        progress = Progress(10, stream=stream)
        progress.log("saved [bold]ckpt-5[/bold]")
        assert stream.getvalue() == "saved [bold]ckpt-5[/bold]\n"

    def test_standard_error_by_default(self, capsys):
        with Progress(4) as progress:
            progress.update(4)
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.startswith("env steps 100% 4/4")


class TestTerminal:
    def test_bar_with_rate_time_left_and_figures(self):
        stream, console = terminal()
        clock = Clock()
        progress = Progress(1000, console=console, clock=clock)
        clock.now = 1.0
        progress.update(250, return_=312.5, loss=0.1)
        progress.close()
        progress.close()
        last = without_codes(stream.getvalue()).strip().splitlines()[-1]
        assert re.match(
            r"env steps .+ 25% +250/1,000  250/s  eta 0:00:03  return=312.5 loss=0.1", last
        )
        assert "\x1b[?25h" in stream.getvalue()  # the cursor is back

    def test_prints_and_messages_stand_on_lines_of_their_own(self, monkeypatch):
        stream, console = terminal()
        monkeypatch.setattr("sys.stdout", stream)
        progress = Progress(100, console=console)
        progress.update(50)
        print("a user's print")
        progress.log("saved [bold]ckpt-5[/bold] " + "x" * 150)
        progress.update(60)
        progress.close()
        lines = without_codes(stream.getvalue()).replace("\r", "\n").splitlines()
        stripped = [line.rstrip() for line in lines]
        assert "a user's print" in stripped
        assert "saved [bold]ckpt-5[/bold] " + "x" * 150 in stripped

    def test_figures_are_not_markup(self):
        stream, console = terminal()
        with Progress(10, console=console) as progress:
            progress.update(5, kind="[red]")
        assert "kind=[red]" in without_codes(stream.getvalue())


class TestCompilation:
    def test_it_is_left_out_of_the_rate_and_of_the_time_left(self):
        stream, clock = io.StringIO(), Clock()
        progress = Progress(1000, stream=stream, every_seconds=0, clock=clock)
        clock.now = 60.0
        progress.update(100, compiled=True)  # a minute, mostly of compilation
        clock.now = 61.0
        progress.update(200)
        clock.now = 91.0
        progress.update(200, compiled=True)  # the first evaluation
        clock.now = 92.0
        progress.update(300)
        lines = stream.getvalue().splitlines()
        assert [line.partition("%")[2].strip() for line in lines] == [
            "100/1,000  ?/s  eta ?",
            "200/1,000  100/s  eta 0:00:08",
            "200/1,000  100/s  eta 0:00:08",
            "300/1,000  100/s  eta 0:00:07",
        ]

"""The frame of every binary: flags, help, exit codes, and one paragraph per user error.

Exit codes: 0 for success or help; 2 for a user error; 130 for a keyboard interrupt; the code of a
`SystemExit`; 1 with a traceback for a bug.
"""

import os
import pathlib
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from absl import app, flags, logging

from tfrl._version import __version__
from tfrl.envs.env_calls import HostErrors
from tfrl.errors import UserError, did_you_mean
from tfrl.loading import distrust, say_flags
from tfrl.storage import working_copy

_PACKAGE = pathlib.Path(__file__).resolve().parents[1]

_HELP = ("--help", "-help", "-h", "-?", "--helpshort", "-helpshort")
_HELP_FULL = ("--helpfull", "-helpfull")


def run(
    main: Callable[..., int | None],
    *,
    doc: str = "",
    argv: Sequence[str] | None = None,
    takes_folders: bool = False,
    without: Sequence[str] = (),
) -> NoReturn:
    """Parses the command line, calls `main` and exits.

    `main` reads its flags from `tfrl.launch.flags.common()` and `absl.flags.FLAGS`, and imports
    TensorFlow itself, so that `--help` and wrong flags are answered at once.

    Args:
      main: The program; its result is the exit code, None for 0.
      doc: The first paragraph of `--help`.
      argv: The command line; `sys.argv` by default.
      takes_folders: Whether the program takes positional arguments; `main` gets their list. This
        program does not have the common flags.
      without: Common flags that this program does not have.

    Raises:
      SystemExit: Always, with the exit code.
    """
    if not takes_folders:
        import tfrl.launch.flags  # noqa: F401  (defines the common flags)
    for name in set(without) & set(flags.FLAGS):
        delattr(flags.FLAGS, name)

    logging.set_verbosity(logging.WARNING)
    logging.set_stderrthreshold("warning")
    warnings.showwarning = _show_warning
    threading.excepthook = _show_thread_error
    # The working directory comes last, so that its modules do not shadow libraries.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    app.run(
        lambda rest: _call(main, *([rest[1:]] if takes_folders else [])),
        argv=list(sys.argv if argv is None else argv),
        flags_parser=lambda args: _parse(args, doc, takes_folders),
    )
    raise SystemExit(0)


def say(text: str) -> None:
    """Prints a line for the user, unless --quiet is given."""
    if not ("quiet" in flags.FLAGS and flags.FLAGS["quiet"].value):
        print(working_copy.named(text), flush=True)


def _show_thread_error(args: Any) -> None:
    """Prints the error of a thread; that of TensorBoard's writer is raised in the main one."""
    if not type(args.thread).__module__.startswith("tensorboard."):
        threading.__excepthook__(args)  # type: ignore[attr-defined]


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    """Prints tfrl's warnings as one line; drops other libraries' warnings."""
    del category, lineno, line
    if pathlib.Path(filename).is_relative_to(_PACKAGE):
        print(f"Warning: {working_copy.named(message)}", file=file or sys.stderr, flush=True)


def fail(error: UserError) -> NoReturn:
    """Prints a user error as one paragraph on standard error; exits with its code, usually 2.

    Args:
      error: The error.

    Raises:
      SystemExit: Always.
    """
    sys.stdout.flush()
    # gin appends its call chain to the message; only the error's parts form the paragraph.
    paragraph = UserError(error.thing, expected=error.expected, got=error.got, remedy=error.remedy)
    # Only the user's traceback shows where an environment failed.
    there = _user_traceback(error)
    if there:
        print(there.rstrip(), file=sys.stderr)
    print(f"Error: {working_copy.named(paragraph)}", file=sys.stderr, flush=True)
    if getattr(error, "exit_at_once", False):
        os._exit(error.exit_code)  # threads that wait for a lost server would hold the interpreter
    raise SystemExit(error.exit_code)


def _user_traceback(error: BaseException | None) -> str:
    """Returns the user's traceback of an error or of its causes."""
    while error is not None:
        for name in ("user_traceback", "worker_traceback"):
            if result := getattr(error, name, ""):
                return str(result)
        error = error.__cause__
    return ""


def _call(main: Callable[..., int | None], *args: Any) -> int | None:
    say_flags(True)
    try:
        return main(*args)
    except UserError as error:
        fail(error)
    except Exception as error:
        cause = HostErrors.cause_of(error)
        if cause is None:
            raise
        fail(cause)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr, flush=True)
        raise SystemExit(130) from None
    finally:
        say_flags(False)
        distrust(None)  # a run folder's names are distrusted only during its program


def _parse(argv: list[str], doc: str, takes_folders: bool) -> list[str]:
    """Parses `argv` for absl.app, with our exit codes."""
    own = argv[1 : argv.index("--")] if "--" in argv else argv[1:]
    if any(arg in _HELP or arg in _HELP_FULL for arg in own):
        _print_help(help_text(doc, full=any(arg in _HELP_FULL for arg in own)))
        raise SystemExit(0)
    if "--version" in own:
        print(f"tfrl {__version__}", flush=True)
        raise SystemExit(0)
    try:
        rest = flags.FLAGS(argv)
    except flags.UnrecognizedFlagError as error:
        fail(_unknown_flag(error.flagname))
    except flags.Error as error:
        fail(_bad_value(error))
    if takes_folders:
        return rest
    if len(rest) > 1:
        fail(
            UserError(
                f"Argument '{rest[1]}'",
                expected="flags of the form --name=value only",
                got=f"{len(rest) - 1} argument{'s' if len(rest) > 2 else ''} without a flag",
                remedy="Pass it with its flag, or leave it out; --help lists the flags.",
            )
        )
    from tfrl.launch.flags import capture

    capture()
    return rest


def _print_help(text: str) -> None:
    """Prints text; allows for a pipe whose reader (`head`, a pager) stops early."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The interpreter's flush at exit needs an open file.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _own_flags() -> dict[str, list[Any]]:
    """Returns tfrl's flags by module, without absl's and other libraries'."""
    by_module = flags.FLAGS.flags_by_module_dict()
    own = {m: f for m, f in by_module.items() if m.startswith("tfrl.") or m == sys.argv[0]}
    return own or by_module


def help_text(doc: str, full: bool = False) -> str:
    """Returns the text of `--help`.

    Args:
      doc: The description of the binary.
      full: Also list the flags of other libraries.

    Returns:
      The text, one paragraph per flag.
    """
    by_module = flags.FLAGS.flags_by_module_dict() if full else _own_flags()
    lines = [doc.strip(), "", "Flags:"] if doc.strip() else ["Flags:"]
    shown = set()
    for _, module_flags in sorted(by_module.items()):
        for flag in sorted(module_flags, key=lambda f: f.name):
            if flag.name in shown or flag.name in ("?", "help", "helpshort", "helpxml"):
                continue
            shown.add(flag.name)
            lines += _describe(flag)
    lines += ["  --version", "      Prints the version."]
    return "\n".join([*lines, "  --helpfull", "      Also lists the flags of the libraries below."])


def _describe(flag: Any) -> list[str]:
    values = getattr(flag.parser, "enum_values", None)
    form = f"=<{'|'.join(values)}>" if values else "" if flag.boolean else "=<value>"
    negation = "[no]" if flag.boolean else ""
    text = flag.help.partition(">: ")[2] if values else flag.help  # absl puts "<a|b>: " in front.
    text = text.partition(";\n")[0]  # absl appends "repeat this option".
    default = "" if flag.default in (None, []) else f" Default: {str(flag.default).lower()}."
    return [f"  --{negation}{flag.name}{form}", f"      {text}{default}"]


def _unknown_flag(name: str) -> UserError:
    names = [flag.name for group in _own_flags().values() for flag in group]
    return UserError(
        f"Flag --{name}",
        expected="a flag of this binary",
        got="an unknown flag",
        remedy=f"{did_you_mean(name, names)} --help explains them.",
    )


def _bad_value(error: flags.Error) -> UserError:
    # absl's message is "flag --seed=abc: <reason>", or names the flag elsewhere.
    text = str(error)
    head, _, why = text.partition(": ")
    if head.startswith("flag --") and why:
        name, _, value = head.removeprefix("flag --").partition("=")
        return UserError(
            f"Flag --{name}",
            expected=_expected(name),
            got=f"'{value}' ({why.rstrip('.')})",
            remedy="--help explains the flags.",
        )
    return UserError(
        "The command line",
        expected="flags of the form --name=value",
        got=text.rstrip("."),
        remedy="--help explains the flags.",
    )


def _expected(name: str) -> str:
    parser = flags.FLAGS[name].parser
    values = getattr(parser, "enum_values", None)
    if values:
        return f"one of {', '.join(values)}"
    return getattr(parser, "syntactic_help", "") or f"a {parser.flag_type()}"

"""`python -m tfrl train --gin_file=...`: the binaries, as `tfrl-train` and its like."""

import importlib
import sys

from tfrl._version import __version__

COMMANDS = (
    *("train", "evaluate", "export", "report", "serve", "sweep", "tune"),
    *("launch", "learn", "collect", "reverb-server"),
)
USAGE = f"""Usage: python -m tfrl COMMAND --flags

Commands: {", ".join(COMMANDS)}.
python -m tfrl COMMAND --help explains the flags of one; --version tells the version."""


def main() -> None:
    """Runs the binary that the first argument names."""
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if command in COMMANDS:
        sys.argv[:2] = [f"tfrl-{command}"]
        importlib.import_module(f"tfrl.launch.{command.replace('-', '_')}").run()
    elif command in ("--help", "-h"):
        print(USAGE)
    elif command == "--version":
        print(f"tfrl {__version__}")
    else:
        sys.exit(f"Error: no command '{command}'.\n{USAGE}")


if __name__ == "__main__":
    main()

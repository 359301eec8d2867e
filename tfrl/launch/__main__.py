"""`python -m tfrl.launch learn --gin_file=...`: a binary, as the launcher starts it."""

import importlib
import sys

BINARIES = ("collect", "evaluate", "export", "launch", "learn", "reverb_server", "train")

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in BINARIES:
        sys.exit(f"Usage: python -m tfrl.launch {{{','.join(BINARIES)}}} --flags")
    name = sys.argv.pop(1)
    sys.argv[0] = f"tfrl-{name.replace('_', '-')}"
    importlib.import_module(f"tfrl.launch.{name}").run()

#!/usr/bin/env python3
"""Runs tfrl.launch.serve, from a checkout or installed."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from tfrl.launch import serve  # noqa: E402

if __name__ == "__main__":
    serve.run()

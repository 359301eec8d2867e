"""Keeps TensorFlow's, CUDA's and gym's start-up lines away from users, by their own settings.

Everything here yields to the user: a variable or level that is already set stays as it is, and with
`TF_CPP_MIN_LOG_LEVEL=0` all of TensorFlow's lines are back. Two lines of the first function that
XLA compiles in a process ("Compiled cluster using XLA!") know no setting, and stay.
"""

import importlib
import importlib.util
import logging
import os

_DEFAULTS = {
    # 3, since TF 2.15 reports cuDNN, cuFFT and cuBLAS being registered twice as errors.
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "PYGAME_HIDE_SUPPORT_PROMPT": "1",
    # pygame, which draws some environments, else complains of machines without a sound card.
    "SDL_AUDIODRIVER": "dummy",
}


def install() -> None:
    """Sets the variables and levels; safe to call more than once."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    if importlib.util.find_spec("gym_notices") is not None:
        # The table from which gym, that tf_agents imports, prints its banner.
        importlib.import_module("gym_notices.notices").notices.clear()
    logger = logging.getLogger("tensorflow")
    if os.environ["TF_CPP_MIN_LOG_LEVEL"] != "0" and logger.level in (logging.NOTSET, logging.INFO):
        logger.setLevel(logging.WARNING)

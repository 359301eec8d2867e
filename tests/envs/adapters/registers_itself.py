"""A module that registers an environment when it is imported."""

import gymnasium

gymnasium.register("Self-v0", entry_point="tests.envs.adapters.gymnasium_fakes:Scripted")

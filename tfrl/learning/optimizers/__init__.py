"""Optimizers as functions over nests of parameters."""

from tfrl.learning.optimizers.adam import Adam, AdamW
from tfrl.learning.optimizers.bound import BoundOptimizer, Slot
from tfrl.learning.optimizers.core import Optimizer, Slots
from tfrl.learning.optimizers.lion import Lion
from tfrl.learning.optimizers.rmsprop import RMSprop
from tfrl.learning.optimizers.sgd import SGD

# Their names in settings.
BY_NAME: dict[str, type[Optimizer]] = {
    "adam": Adam,
    "adamw": AdamW,
    "rmsprop": RMSprop,
    "sgd": SGD,
    "lion": Lion,
}

__all__ = [
    "BY_NAME",
    "SGD",
    "Adam",
    "AdamW",
    "BoundOptimizer",
    "Lion",
    "Optimizer",
    "RMSprop",
    "Slot",
    "Slots",
]

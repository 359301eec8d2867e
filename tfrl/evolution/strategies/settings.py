"""Settings of evolution strategies: their checks, and optimizers by name."""

import math
from typing import Any

import tensorflow as tf

from tfrl import checks
from tfrl.errors import UserError
from tfrl.evolution.fitness import (
    FitnessShaping,
    centered_ranks,
    finite,
    log_utilities,
    standardized,
)
from tfrl.learning.optimizers import BY_NAME, Optimizer
from tfrl.ops.schedules import ExponentialSchedule, Schedule, check_schedule


def as_optimizer(name: str, optimizer: str | Optimizer) -> Optimizer:
    """Returns an optimizer, which may be given by name."""
    if not isinstance(optimizer, str):
        expected = f"an optimizer of tfrl.learning.optimizers, or one of {', '.join(BY_NAME)}"
        return checks.instance(name, optimizer, Optimizer, expected, remedy="Pass 'adam'.")
    return BY_NAME[checks.one_of(name, optimizer, BY_NAME)]()


def check_mirrored(name: str, pop_size: int, alternative: str = "") -> None:
    """Raises a UserError for an odd population of mirrored pairs."""
    why = "candidates are sampled in mirrored pairs"
    checks.even(f"{name}.pop_size", pop_size, why, alternative=alternative)


def check_shaping(name: str, fitness_shaping_fn: Any) -> None:
    """Raises a UserError for a shaping that is no function of the fitness."""
    expected = "a function of the fitness, such as tfrl.evolution.centered_ranks"
    checks.function(f"{name}.fitness_shaping_fn", fitness_shaping_fn, expected, classes=False)


def shaped(shaping: FitnessShaping, fitness: tf.Tensor) -> tf.Tensor:
    """Returns the weights of a fitness [P].

    For a function whose weights are not finite, lost candidates get the least finite fitness.
    """
    weights = shaping(fitness)
    if shaping in (centered_ranks, log_utilities, standardized):
        return weights
    is_finite = tf.reduce_all(tf.math.is_finite(weights))
    return tf.where(is_finite, weights, shaping(finite(fitness)))


def check_rate(name: str, rate: float | Schedule) -> None:
    """Raises a UserError for a learning rate below 0 at some generation."""
    check_schedule(name, rate, 0.0, math.inf, "Pass a number of at least 0, or a schedule.")


def check_noise(name: str, std: float | Schedule) -> None:
    """Raises a UserError for a standard deviation that is not above 0 at some generation."""
    remedy = "Pass a number above 0, or a schedule that stays above 0."
    schedule = check_schedule(name, std, 0.0, math.inf, remedy)
    approaches = isinstance(schedule, ExponentialSchedule) and schedule.start > 0.0
    if 0.0 in schedule.extremes() and not approaches:
        raise UserError(name, expected="a standard deviation above 0", got=std, remedy=remedy)

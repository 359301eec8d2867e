"""Schedules: numbers that depend on a step counter, for learning rates and coefficients.

A schedule is a frozen object, called with a step (int64 tensor or int) for a float32 scalar.
Schedules are compared by value and hashable, so they may be static fields. The caller chooses the
unit of steps (environment steps, learner steps). Steps are handled in float64, which keeps them
exact.
"""

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfrl.errors import UserError
from tfrl.loading import loadable


class Schedule(abc.ABC):
    """A function of the step counter."""

    @abc.abstractmethod
    def value(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the float64 value at a float64 step."""

    def __call__(self, step: Any) -> tf.Tensor:
        """Returns the value at a step.

        Args:
          step: int64 tensor (any shape) or int, at least 0.

        Returns:
          float32 of the shape of the step.
        """
        return tf.cast(self.value(tf.cast(step, tf.float64)), tf.float32)

    def extremes(self) -> tuple[float, ...]:
        """Returns values that bound the schedule, in any order; () if unknown.

        An infinite bound is never reached, nor is the 0 of a decay without an end. A class that
        overrides `value` must override this too.
        """
        return ()

    def _floats(self, *names: str) -> None:
        """Makes fields finite floats, so that 1 and 1.0 are the same schedule."""
        for name in names:
            number = _number(f"{type(self).__name__}.{name}", getattr(self, name))
            object.__setattr__(self, name, number)

    def _positive(self, *names: str) -> None:
        """Makes fields floats above 0."""
        self._floats(*names)
        for name in names:
            if getattr(self, name) <= 0:
                raise UserError(
                    f"{type(self).__name__}.{name}",
                    expected="a number above 0",
                    got=getattr(self, name),
                    remedy="Use a constant instead of a schedule without extent.",
                )


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _number(name: str, x: Any) -> float:
    if not _is_number(x) or not math.isfinite(x):
        raise UserError(name, expected="a finite number", got=repr(x))
    return float(x)


def _progress(step: tf.Tensor, steps: float) -> tf.Tensor:
    """The fraction of completed steps, in [0, 1]."""
    return tf.clip_by_value(step / steps, 0.0, 1.0)


@loadable
@dataclasses.dataclass(frozen=True)
class ConstantSchedule(Schedule):
    """The same value at every step.

    Attributes:
      constant: The value.
    """

    constant: float

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._floats("constant")

    def value(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the constant."""
        return tf.fill(tf.shape(step), tf.constant(self.constant, tf.float64))

    def extremes(self) -> tuple[float, ...]:
        """Returns the constant."""
        return (self.constant,)


@loadable
@dataclasses.dataclass(frozen=True)
class LinearSchedule(Schedule):
    """From start to end in a straight line, then the end.

      start + (end - start) min(1, step / steps)

    Attributes:
      start: Value at step 0.
      end: Value from step `steps` on.
      steps: Length of the line, above 0.
    """

    start: float
    end: float
    steps: float

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._floats("start", "end")
        self._positive("steps")

    def value(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the value on the line."""
        share = _progress(step, self.steps)
        # Weights, not a slope: the end is reached exactly.
        return (1.0 - share) * self.start + share * self.end

    def extremes(self) -> tuple[float, ...]:
        """Returns start and end."""
        return self.start, self.end


@loadable
@dataclasses.dataclass(frozen=True)
class PiecewiseLinearSchedule(Schedule):
    """Straight lines between points `[[0, v0], [t1, v1], ...]`, then the last value.

    Attributes:
      points: (step, value) pairs, at least two, the first at step 0, steps strictly increasing.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        """Checks the points and makes them tuples of floats."""
        name = type(self).__name__ + ".points"
        if not isinstance(self.points, Sequence) or not all(
            isinstance(p, Sequence) and len(p) == 2 and all(map(_is_number, p)) for p in self.points
        ):
            raise UserError(
                name,
                expected="a list of [step, value] pairs",
                got=repr(self.points),
                remedy="Write it as [[0, v0], [t1, v1], ...].",
            )
        points = tuple((_number(name, t), _number(name, v)) for t, v in self.points)
        steps = [t for t, _ in points]
        if len(points) < 2:
            expected, remedy = "at least two points", "Use a number for a constant."
        elif steps[0] != 0:
            expected, remedy = "the first point at step 0", "Add a point [0, value]."
        elif any(b <= a for a, b in zip(steps, steps[1:], strict=False)):
            expected, remedy = "strictly increasing steps", "Sort the points by step."
        else:
            object.__setattr__(self, "points", points)
            return
        raise UserError(name, expected=expected, got=repr(self.points), remedy=remedy)

    def value(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the value on the line segment of the step."""
        result = tf.fill(tf.shape(step), tf.constant(self.points[0][1], tf.float64))
        for (t0, v0), (t1, v1) in zip(self.points, self.points[1:], strict=False):
            share = _progress(step - t0, t1 - t0)
            result = tf.where(step >= t0, (1.0 - share) * v0 + share * v1, result)
        return result

    def extremes(self) -> tuple[float, ...]:
        """Returns the values of all points."""
        return tuple(v for _, v in self.points)


@loadable
@dataclasses.dataclass(frozen=True)
class ExponentialSchedule(Schedule):
    """Exponential decay (or growth): a factor `rate` per `steps` steps, bounded by `end`.

      start rate^(step / steps), not beyond end

    Attributes:
      start: Value at step 0.
      rate: Factor, above 0.
      steps: Steps for one factor, above 0.
      end: Bound of the value: the minimum for a rate below 1, else the maximum; or None.
    """

    start: float
    rate: float
    steps: float
    end: float | None = None

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._floats("start")
        self._positive("rate", "steps")
        if self.end is not None:
            self._floats("end")

    def value(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the decayed value."""
        result = self.start * tf.pow(tf.constant(self.rate, tf.float64), step / self.steps)
        if self.end is None:
            return result
        return tf.minimum(result, self.end) if self._grows else tf.maximum(result, self.end)

    @property
    def _grows(self) -> bool:
        return self.start * (self.rate - 1.0) > 0.0

    def extremes(self) -> tuple[float, ...]:
        """Returns the value at step 0 and the limit: the end, 0 or infinity."""
        if self.rate == 1.0 or self.start == 0.0:
            last = self.start
        else:
            last = 0.0 if self.rate < 1.0 else math.copysign(math.inf, self.start)
        if self.end is None:
            return self.start, last
        bound = min if self._grows else max
        return bound(self.start, self.end), bound(last, self.end)


@loadable
@dataclasses.dataclass(frozen=True)
class CosineSchedule(Schedule):
    """From start to end along half a cosine, then the end.

      end + (start - end) (1 + cos(pi min(1, step / steps))) / 2

    Source: Loshchilov and Hutter 2017, equation 5, https://arxiv.org/abs/1608.03983.

    Attributes:
      start: Value at step 0.
      end: Value from step `steps` on.
      steps: Length of the half wave, above 0.
    """

    start: float
    end: float
    steps: float

    def __post_init__(self) -> None:
        """Checks the fields."""
        self._floats("start", "end")
        self._positive("steps")

    def value(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the value on the half wave."""
        share = 0.5 * (1.0 + tf.cos(math.pi * _progress(step, self.steps)))
        return share * self.start + (1.0 - share) * self.end

    def extremes(self) -> tuple[float, ...]:
        """Returns start and end."""
        return self.start, self.end


def make_schedule(value: Any) -> Schedule:
    """Makes a schedule from a number, points or a schedule.

    Args:
      value: A number, a list of points `[[0, v0], [t1, v1], ...]`, or a schedule.

    Returns:
      A constant or piecewise-linear schedule, or the schedule itself.

    Raises:
      UserError: For any other value.
    """
    if isinstance(value, Schedule):
        return value
    if _is_number(value):
        return ConstantSchedule(value)
    if isinstance(value, list | tuple):
        return PiecewiseLinearSchedule(tuple(value))
    raise UserError(
        "schedule",
        expected="a number, a list [[0, v0], [t1, v1], ...] or a schedule object",
        got=repr(value),
    )


def check_schedule(name: str, value: Any, low: float, high: float, remedy: str) -> Schedule:
    """Makes the schedule of a bounded setting.

    Args:
      name: The setting's name in errors.
      value: What `make_schedule` takes.
      low: The smallest allowed value.
      high: The largest allowed value.
      remedy: The remedy for values outside, as a sentence.

    Returns:
      The schedule. A user-defined class is only checked if it returns `extremes`.

    Raises:
      UserError: When it is no schedule, or leaves the bounds at some step.
    """
    try:
        schedule = make_schedule(value)
    except UserError as e:
        raise UserError(name, expected=e.expected, got=e.got, remedy=e.remedy) from None
    for number in schedule.extremes():
        if not low <= number <= high:
            raise UserError(
                name, expected=f"values from {low:g} to {high:g}", got=number, remedy=remedy
            )
    return schedule

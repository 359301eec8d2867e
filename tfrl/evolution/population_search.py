"""The base of searches with a stored population: initial population and bounds."""

from typing import Any, TypeAlias

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.errors import UserError
from tfrl.evolution.core import EvoOptimizer
from tfrl.types import Nest

# (low, high): numbers for every parameter, or tuples of D numbers.
Bounds: TypeAlias = tuple[float | tuple[float, ...], float | tuple[float, ...]]


@struct.dataclass
class Space(struct.Struct):
    """The parameter space of a search, for operators.

    Attributes:
      low: float32 [D], minus infinity without bounds.
      high: float32 [D], infinity without bounds.
      units: int32 [D], the unit number of each parameter; see `unit_numbers`.
    """

    low: tf.Tensor
    high: tf.Tensor
    units: tf.Tensor

    def clip(self, x: tf.Tensor) -> tf.Tensor:
        """Clips candidates [..., D] to the bounds."""
        return tf.clip_by_value(x, self.low, self.high)


@struct.logic_dataclass
class PopulationSearch(EvoOptimizer):
    """A search whose state has the next candidates, `population` float32 [P, D].

    Attributes:
      init_std: The standard deviation of the normal first population around the initial parameters;
        None draws it uniformly within `bounds`.
      bounds: (low, high) of the parameters, each a number or a tuple of D; all candidates are
        clipped to them. None for no bounds.
    """

    init_std: float | None = 0.1
    bounds: Bounds | None = None

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        name = type(self).__name__
        checks.number(f"{name}.init_std", self.init_std, 0, closed=False, optional=True)
        if self.bounds is None:
            if self.init_std is None:
                raise UserError(
                    f"{name}.bounds",
                    expected="(low, high), the range of the first population with init_std=None",
                    got="None",
                    remedy="Pass bounds=(-1.0, 1.0), or a number as init_std.",
                )
            return
        check_bounds(f"{name}.bounds", self.bounds)

    def sample(self, search: Any, generation: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns the population."""
        return search.population

    def space(self, size: int, units: tf.Tensor | None = None) -> Space:
        """Returns the space of D = `size` parameters; by default each is a separate unit."""
        infinite = float("inf")
        low, high = (-infinite, infinite) if self.bounds is None else self.bounds
        units = tf.range(size) if units is None else units
        return Space(low=self._limit(low, size), high=self._limit(high, size), units=units)

    def first_population(self, mean: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Draws the first population [P, D], around `mean` [D] or within the bounds."""
        size = mean.shape[0]
        space = self.space(size)
        if self.init_std is None:
            unit = seeding.uniform(key, [self.pop_size, size])
            return space.low + (space.high - space.low) * unit
        return space.clip(mean + float(self.init_std) * seeding.normal(key, [self.pop_size, size]))

    def _limit(self, limit: Any, size: int) -> tf.Tensor:
        if isinstance(limit, tuple | list) and len(limit) != size:
            raise UserError(
                f"{type(self).__name__}.bounds",
                expected=f"two numbers, or two tuples of {size} numbers, one per parameter",
                got=f"a tuple of {len(limit)} numbers",
            )
        return tf.broadcast_to(tf.constant(limit, tf.float32), [size])


def check_bounds(name: str, bounds: Any) -> None:
    """Raises a UserError unless bounds are (low, high) with low below high."""
    try:
        low, high = (x if isinstance(x, tuple | list) else (x,) for x in bounds)
        size = max(len(low), len(high))
        pairs = zip(low * (size // len(low)), high * (size // len(high)), strict=True)
        fits = all(-float("inf") < a < b < float("inf") for a, b in pairs)
    except (TypeError, ValueError, ZeroDivisionError):
        fits = False
    if not fits:
        raise UserError(
            name,
            expected="(low, high), finite and with low < high",
            got=repr(bounds),
            remedy="Pass (-1.0, 1.0) to bound every parameter equally.",
        )


def unit_numbers(params: Nest) -> tf.Tensor:
    """Numbers the units of parameters: the parameters of one neuron of a leaf share a number.

    A unit is an index of the last axis of a leaf: a column of a kernel `[inputs, neurons]`, an
    element of a bias `[neurons]`.

    Args:
      params: A nest, D elements in all.

    Returns:
      int32 [D], in the order of `tfrl.evolution.ravel`.
    """
    numbers, count = [], 0
    for leaf in tf.nest.flatten(params):
        width = leaf.shape[-1] if leaf.shape.rank else 1
        rows = leaf.shape.num_elements() // width if width else 0
        numbers.append(count + tf.tile(tf.range(width), [rows]))
        count += width
    return tf.concat(numbers, axis=0)

"""One metric: its settings and its blocks of values."""

import dataclasses
import math
from typing import Any, Literal, get_args

import numpy as np

from tfrl import checks
from tfrl.errors import UserError
from tfrl.metrics import values
from tfrl.metrics.blocks import AllValues, Block, Ema, EmaFromFirst, Extreme, Sum, Window
from tfrl.metrics.values import Value

Reduce = Literal[
    "mean", "min", "max", "sum", "items", "ema", "lifetime_sum", "lifetime_min", "lifetime_max"
]
_KINDS: tuple[str, ...] = get_args(Reduce)
# Reductions over all values, which have no window.
_ENDLESS = ("ema", "lifetime_sum", "lifetime_min", "lifetime_max")

DEFAULT_EMA_COEFF = 0.01
# Maximum number of unconverted values.
_MAX_WAITING = 1024


@dataclasses.dataclass(frozen=True)
class MetricSettings:
    """Settings of a metric.

    Attributes:
      reduce: "mean", "min", "max" or "sum" of the values since the last `reduce()`, "items" for a
        list of them, "ema" for an exponential moving average, "lifetime_sum", "lifetime_min" and
        "lifetime_max", which are never cleared.
      window: For the first five: reduce the last `window` values, of any age.
      ema_coeff: The weight of a new value in an "ema".
      throughput: For sums: also report the amount per second.
      from_first: Whether an "ema" starts at the first value, instead of bias correction.
      clears: Whether `reduce()` clears values that would otherwise stay.
    """

    reduce: str = "mean"
    window: int | None = None
    ema_coeff: float | None = None
    throughput: bool = False
    from_first: bool = False
    clears: bool = False

    def check(self, name: str) -> "MetricSettings":
        """Returns the settings with defaults filled in.

        Raises:
          UserError: For the first invalid setting.
        """
        thing, endless = f"metric {name}: ", self.reduce in _ENDLESS
        checks.one_of(f"{thing}reduce", self.reduce, _KINDS)
        checks.at_least(f"{thing}window", self.window, 1, optional=True)
        checks.number(f"{thing}ema_coeff", self.ema_coeff, 0, 1, closed=False, optional=True)
        window = None if endless else self.window
        if self.throughput and (window is not None or self.reduce not in ("sum", "lifetime_sum")):
            raise UserError(
                f"{thing}throughput",
                expected="False unless reduce is 'lifetime_sum', or 'sum' without a window",
                got=f"True with reduce={self.reduce!r}, window={self.window!r}",
                remedy="Use throughput only with sums.",
            )
        coeff = float(self.ema_coeff or DEFAULT_EMA_COEFF) if self.reduce == "ema" else None
        return dataclasses.replace(self, window=window, ema_coeff=coeff)

    @property
    def stays(self) -> bool:
        """Whether the values stay after `reduce()`."""
        return not self.clears and (self.window is not None or self.reduce in _ENDLESS)

    def empty_block(self) -> Block:
        """Returns an empty block for these settings."""
        if self.ema_coeff is not None:
            return EmaFromFirst(self.ema_coeff) if self.from_first else Ema(self.ema_coeff)
        block: Block
        kind = self.reduce.removeprefix("lifetime_")
        if kind == "items":
            block = AllValues()
        elif kind in ("min", "max"):
            block = Extreme(greatest=kind == "max")
        else:
            block = Sum(mean=kind == "mean")
        return block if self.window is None else Window(self.window, block)


def as_rllib_says(
    name: str,
    reduce: str | None,
    window: float | None,
    ema_coeff: float | None,
    clear_on_reduce: bool,
    with_throughput: bool,
) -> MetricSettings:
    """Returns the settings for RLlib's arguments; see `MetricsLogger.log_value`.

    Raises:
      UserError: For an invalid combination.
    """
    thing = f"metric {name}: "
    checks.one_of(f"{thing}reduce", reduce, ("mean", "min", "max", "sum", None))
    if ema_coeff is not None and (window is not None or reduce != "mean"):
        raise UserError(
            f"{thing}ema_coeff",
            expected="a coefficient only with reduce='mean' and without a window",
            got=f"{ema_coeff} with reduce={reduce!r}, window={window!r}",
            remedy="Choose a window or a moving average.",
        )
    endless = window == math.inf
    if endless and not clear_on_reduce and reduce is not None:
        raise UserError(
            f"{thing}window",
            expected="a finite window, or clear_on_reduce=True",
            got="an infinite window that is never cleared",
            remedy="Set a window to bound the number of values.",
        )
    size = None if endless or window is None else int(window)
    kind = reduce or "items"
    if reduce == "mean" and window is None:
        kind = "ema"
    elif reduce in ("min", "max", "sum") and window is None and not clear_on_reduce:
        kind = f"lifetime_{reduce}"
    return MetricSettings(
        kind,
        size,
        ema_coeff,
        bool(with_throughput),
        from_first=kind == "ema",
        clears=bool(clear_on_reduce),
    ).check(name)


class Metric:
    """The values of one metric.

    Attributes:
      settings: Its settings.
      shape: The shape of a value.
      shown: The block for `result`.
      fresh: Values logged since the last `hand_over`.
      period: Values logged since the last `clear`, for the throughput.
    """

    def __init__(self, name: str, settings: MetricSettings, shape: tuple[int, ...]):
        """Starts without values."""
        self.name = name
        self.settings = settings
        self.shape = shape
        self.shown = settings.empty_block()
        self.fresh = settings.empty_block()
        self.period = Sum()
        self._waiting: list[Any] = []

    def log(self, held: Any) -> None:
        """Adds a value from `values.hold`.

        Raises:
          UserError: If its shape differs from the first value's.
        """
        shape = values.shape_of(held)
        if shape != self.shape:
            raise UserError(
                f"metric {self.name}",
                expected=f"a value of shape {self.shape}, as in the first call",
                got=f"a value of shape {shape}",
                remedy="Log values of other shapes under another name.",
            )
        self._waiting.append(held)
        if len(self._waiting) >= _MAX_WAITING:
            self.settle()

    def settle(self) -> "Metric":
        """Converts pending values, and returns the metric."""
        for held in self._waiting:
            value = values.convert(held)
            for block in self._blocks():
                block.add(value)
        self._waiting.clear()
        return self

    def _blocks(self) -> list[Block]:
        mine = [self.shown, self.fresh]
        return [*mine, self.period] if self.settings.throughput else mine

    def append(self, blocks: list[Block]) -> None:
        """Joins blocks of values logged elsewhere at the same time."""
        joined = blocks[0].joined(blocks[1:]) if len(blocks) > 1 else blocks[0]
        for block in self.settle()._blocks():
            block.append(joined)

    def result(self) -> Value:
        """Returns the reduced value."""
        result = self.settle().shown.result()
        return result.copy() if isinstance(result, np.ndarray) else result

    def rate(self, seconds: float) -> Value:
        """Returns the amount of this period per second."""
        amount = self.settle().period.total
        return amount / seconds if seconds > 0 else amount * math.nan

    def clear(self) -> None:
        """Begins a new period: clears values that do not stay."""
        if not self.settings.stays:
            self.shown = self.settings.empty_block()
        self.period = Sum()

    def hand_over(self) -> Block:
        """Returns the fresh block and starts another."""
        result, self.fresh = self.settle().fresh, self.settings.empty_block()
        return result

"""Reverb's tables out of their configuration, and the check of a server's tables."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfrl.errors import UserError
from tfrl.replay.reverb.library import reverb
from tfrl.replay.reverb.packing import as_served, check_form, leaves_of, stored_signature
from tfrl.replay.reverb.signature import check_signature, item_signature
from tfrl.replay.reverb.table_config import ONCE, TableConfig

if TYPE_CHECKING:
    from tfrl.replay.reverb.maker import ReverbReplay


def make_tables(replay: "ReverbReplay") -> list[Any]:
    """Returns a `reverb.Table` for each table of a maker, empty."""
    return [_table(config, stored_signature(replay, config)) for config in replay.table_configs]


def _table(config: TableConfig, signature: dict[str, Any]) -> Any:
    library = reverb()
    common = {"name": config.name, "max_size": config.capacity, "signature": signature}
    if config.kind in ONCE:
        make = library.Table.queue if config.kind == "fifo" else library.Table.stack
        return make(**common)
    uniform = library.selectors.Uniform()
    is_uniform = config.kind == "uniform"
    return library.Table(
        sampler=uniform if is_uniform else library.selectors.Prioritized(config.alpha),
        remover=library.selectors.Fifo(),
        rate_limiter=_limiter(config),
        **common,
    )


def _limiter(config: TableConfig) -> Any:
    limiters, least = reverb().rate_limiters, config.min_size or 1
    if not config.samples_per_insert:
        return limiters.MinSize(least)
    return limiters.SampleToInsertRatio(
        samples_per_insert=config.samples_per_insert,
        min_size_to_sample=least,
        error_buffer=config.error_buffer(),
    )


def check_tables(server_info: Mapping[str, Any], replay: "ReverbReplay") -> None:
    """Compares a server's tables with those of a maker: signatures first, then limits.

    Args:
      server_info: `{name: TableInfo}`, as `reverb.Client.server_info` gives it.
      replay: The maker.

    Raises:
      UserError: For a table that is missing; for a leaf of a signature that differs; and for a
        limit (size, sampler, remover, rate limiter) that is not the one asked for, such as that of
        a table restored from another run's checkpoint.
    """
    replay = as_served(replay, server_info)
    for config in replay.table_configs:
        if config.name not in server_info:
            raise UserError(
                f"Reverb table {config.name!r}",
                expected="a table of this name on the server",
                got=f"tables {', '.join(sorted(server_info))}",
                remedy="Start the server with the configuration of this experiment.",
            )
        signature = server_info[config.name].signature
        leaves, _ = leaves_of(signature)
        check_signature(config.name, item_signature(replay, config), leaves)
        check_form(replay, config, signature)
    for table in make_tables(replay):
        _check_limits(table.info, server_info[table.name])


def _check_limits(want: Any, got: Any) -> None:
    for what, wanted in _limits(want).items():
        found = _limits(got)[what]
        if wanted != found:
            raise UserError(
                f"Reverb table {want.name!r}, {what}",
                expected=wanted,
                got=found,
                remedy="A restored table keeps the limits of its checkpoint: ask for those, or "
                "start the server without the checkpoint.",
            )


def _limits(info: Any) -> dict[str, str]:
    limiter = info.rate_limiter_info
    return {
        "capacity": str(info.max_size),
        "samples of an item": str(max(info.max_times_sampled, 0)),
        "sampler": _selector(info.sampler_options),
        "remover": _selector(info.remover_options),
        "min_size": str(limiter.min_size_to_sample),
        "samples_per_insert": f"{limiter.samples_per_insert:g}",
        "tolerance": f"a difference from {limiter.min_diff:g} to {limiter.max_diff:g}",
    }


def _selector(options: Any) -> str:
    """Such as "uniform", or "prioritized (priority_exponent: 0.6)"."""
    found = []
    for field, value in options.ListFields():
        if field.name != "is_deterministic":
            inner = " ".join(str(value).split())
            found.append(field.name if value is True else f"{field.name} ({inner})")
    return " ".join(found)

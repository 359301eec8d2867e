"""The flag --resources: the resources of each process of a role, for Ray and Kubernetes."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from absl import flags

from tfrl.errors import UserError
from tfrl.launch.job import COLLECTOR, EVALUATOR, LEARNER, SERVER

flags.DEFINE_multi_string(
    "resources",
    [],
    "ROLE:NAME=AMOUNT,... per process of a role, where NAME is cpu, memory, gpu or tpu, such as "
    "learner:cpu=4,memory=16Gi,gpu=1; may be repeated (kubernetes, ray; local: gpu only).",
)

KINDS = (SERVER, LEARNER, COLLECTOR, EVALUATOR)
_AMOUNTS = {
    "cpu": r"[0-9]+(\.[0-9]{1,3})?|[0-9]+m",
    "memory": r"[0-9]+(Ki|Mi|Gi|Ti|k|M|G|T)?",
    "gpu": r"[0-9]+",
    "tpu": r"[0-9]+",
}
_UNITS = {
    **{"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40},
    **{"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12},
}


@dataclasses.dataclass(frozen=True)
class RoleResources:
    """Resources by role.

    Attributes:
      asked: Amounts by name, by role, in Kubernetes' notation.
    """

    asked: Mapping[str, Mapping[str, str]]

    def of(self, kind: str) -> Mapping[str, str]:
        """Returns the amounts of a role; one CPU core unless the flag says otherwise."""
        return {"cpu": "1", **self.asked.get(kind, {})}


def parsed(values: Sequence[str]) -> RoleResources:
    """Parses the values of `--resources`.

    Raises:
      UserError: For a malformed value.
    """
    asked: dict[str, dict[str, str]] = {}
    for value in values:
        kind, _, rest = value.partition(":")
        for part in rest.split(","):
            name, _, amount = part.partition("=")
            if kind not in KINDS or not re.fullmatch(_AMOUNTS.get(name, r"(?!)"), amount):
                raise UserError(
                    f"--resources={value}",
                    expected=f"ROLE:NAME=AMOUNT,..., ROLE one of {', '.join(KINDS)}, NAME one of "
                    f"{', '.join(_AMOUNTS)}, and Kubernetes' amounts such as 2, 0.5, 500m or 16Gi",
                    got=f"'{kind}:{part}'",
                    remedy="Write for example learner:cpu=4,memory=16Gi,gpu=1.",
                )
            asked.setdefault(kind, {})[name] = amount
    return RoleResources(asked)


def gpu_kinds(resources: RoleResources) -> list[str]:
    """Returns the roles whose processes see GPUs: the learner, and those that ask for them."""
    return [k for k in KINDS if int(resources.of(k).get("gpu", k == LEARNER))]


def in_cores(cpu: str) -> float:
    """Converts an amount of CPU, for example "2" or "500m", to cores."""
    return float(cpu[:-1]) / 1000 if cpu.endswith("m") else float(cpu)


def in_bytes(memory: str) -> int:
    """Converts an amount of memory, for example "16Gi", to bytes."""
    number, unit = re.fullmatch(r"(\d+)(\w*)", memory).groups()  # type: ignore[union-attr]
    return int(number) * _UNITS[unit]

"""The chart's settings for faults, from the environment: UNDERSTUDY_FAULT_SOURCES (faults.sources as JSON), and
UNDERSTUDY_NODE_FAULTS (namespace/name of the ConfigMap that records which nodes have failed jobs).

Read before anything starts: a wrong row ends the operator with a message that names the row, the field and the fix.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from understudy_operator.plan.verdicts.built_in import BUILT_IN
from understudy_operator.plan.verdicts.sources import FaultSource
from understudy_operator.plan.verdicts.table import table_of

ENV_SOURCES = "UNDERSTUDY_FAULT_SOURCES"
ENV_MEMORY = "UNDERSTUDY_NODE_FAULTS"


@dataclass(frozen=True)
class FaultSettings:
    table: tuple[FaultSource, ...] = BUILT_IN
    memory: tuple[str, str] | None = None  # namespace and name; None: only in the process's memory


def read_fault_settings(env: Mapping[str, str]) -> FaultSettings:
    """Raises ValueError with the cause."""
    place = env.get(ENV_MEMORY, "")
    namespace, _, name = place.partition("/")
    if place and not (namespace and name):
        raise ValueError(f"{ENV_MEMORY} is {place!r}: set it to a ConfigMap, as namespace/name")
    return FaultSettings(table_of(env.get(ENV_SOURCES, "")), (namespace, name) if place else None)

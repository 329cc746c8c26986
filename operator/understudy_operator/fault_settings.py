"""What the chart says about faults, from the environment: UNDERSTUDY_FAULT_SOURCES (faults.sources as JSON).

Read before anything is started: a wrong row ends the operator, and its message names the row, the field and the mend.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from understudy_operator.plan.faults.built_in import BUILT_IN
from understudy_operator.plan.faults.sources import Source
from understudy_operator.plan.faults.table import table_of

ENV_SOURCES = "UNDERSTUDY_FAULT_SOURCES"


@dataclass(frozen=True)
class FaultSettings:
    table: tuple[Source, ...] = BUILT_IN


def read_fault_settings(env: Mapping[str, str]) -> FaultSettings:
    """Raises ValueError, which says what is wrong."""
    return FaultSettings(table_of(env.get(ENV_SOURCES, "")))

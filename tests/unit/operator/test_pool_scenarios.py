"""Every scenario in tests/unit/operator/pool_scenarios has the plan that is written there: pool_scenario_plans.py."""

import pytest

from tests.unit.operator.golden_plans import read
from tests.unit.operator.pool_scenario_plans import FOLDER, SCHEMA, planned

SCENARIOS = read(FOLDER, SCHEMA)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str):
    assert planned(SCENARIOS[name]) == SCENARIOS[name]["plan"]

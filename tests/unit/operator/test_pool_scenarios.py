"""Every scenario in tests/unit/operator/pool_scenarios has the plan in its file: pool_scenario_plans.py."""

import pytest

from tests.unit.operator.golden_plans import read
from tests.unit.operator.pool_scenario_plans import FOLDER, SCHEMA, planned

SCENARIOS = read(FOLDER, SCHEMA)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_scenario_has_its_plan(name: str):
    assert planned(SCENARIOS[name]) == SCENARIOS[name]["plan"]

"""Every scenario in tests/unit/operator/scenarios has the plan that is written there. See scenario_plans.py."""

import pytest

from tests.unit.operator.golden_plans import read
from tests.unit.operator.scenario_plans import FOLDER, SCHEMA, planned

SCENARIOS = read(FOLDER, SCHEMA)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str):
    assert planned(SCENARIOS[name]) == SCENARIOS[name]["plan"]

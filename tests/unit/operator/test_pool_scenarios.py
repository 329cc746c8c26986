"""Every scenario in tests/unit/operator/pool_scenarios has the plan that is written there: pool_scenario_plans.py."""

import pytest

from tests.unit.operator.pool_scenario_plans import planned, scenarios

SCENARIOS = scenarios()


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str):
    assert planned(SCENARIOS[name]) == SCENARIOS[name]["plan"]

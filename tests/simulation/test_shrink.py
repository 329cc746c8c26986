"""A failing schedule is shrunken to a short one."""

from unittest import mock

import pytest

from tests.simulation.run import draw_case
from tests.simulation.shrink import shrink
from understudy_sidecar.membership import faults


def test_a_shrunken_case_omits_the_faults_that_do_not_matter() -> None:
    with mock.patch.object(faults, "lose_member"):  # a lost member is never replaced
        for seed in range(100):
            case = draw_case(seed)
            if len(case.faults) < 4:
                continue
            try:
                smallest, violation = shrink(case)
            except ValueError:
                continue
            assert len(smallest.faults) < len(case.faults)
            assert "replay" in str(violation)
            return
    pytest.fail("no seed with four faults broke anything")


def test_a_case_without_a_violation_cannot_be_shrunk() -> None:
    with pytest.raises(ValueError, match="breaks nothing"):
        shrink(draw_case(0))

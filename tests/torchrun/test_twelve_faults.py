"""`understudy local why` names the rank and the cause of each fault, with real processes and real gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.torch_install import torch_version
from tests.torchrun import twelve_faults
from tests.torchrun.twelve_faults import LOCAL, LocalFault

#: Nightly: some of the faults are times without a step, which a busy machine makes by itself.
pytestmark = [pytest.mark.timeout(1200), pytest.mark.nightly]

#: `why` names these by the collectives.
NEED_RECORDER = ("hang in a collective", "hang in a data loader")
WITHOUT_RECORDER = pytest.mark.skipif(
    torch_version().startswith("2.6."), reason="torch 2.6 does not record the collectives of gloo"
)
CASES = [
    pytest.param(fault, id=fault.name, marks=[WITHOUT_RECORDER] if fault.name in NEED_RECORDER else [])
    for fault in LOCAL
]


@pytest.mark.parametrize("fault", CASES)
def test_why_names_the_rank_and_the_cause(fault: LocalFault, tmp_path: Path, torch: Path) -> None:
    # given a training of four ranks in which this fault happens
    with twelve_faults.broken(fault, tmp_path, torch) as run:
        # when it has been detected
        answer = twelve_faults.explained(fault, run, tmp_path)
    # then `why` names the rank and the cause
    assert answer.is_right(fault), answer

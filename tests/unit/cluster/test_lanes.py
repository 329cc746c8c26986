"""The end-to-end tests that have to run in one lane."""

from __future__ import annotations

import pytest

from tests.e2e.lanes import unit_of

E2E = "tests/e2e"


@pytest.mark.parametrize(
    ("test", "unit"),
    [
        (f"{E2E}/test_story.py::test_a_killed_worker_restarts_in_place", "test_story.py"),
        (f"{E2E}/test_conformance.py::test_the_job_completes[group]", "test_conformance.py"),
        (f"{E2E}/test_inject.py::test_a_killed_worker_restarts_in_place[job]", "test_inject.py[job]"),
        (f"{E2E}/test_inject.py::test_a_killed_worker_restarts_in_place[jobset-torchrun]", "jobset"),
        (f"{E2E}/test_inject_page.py::test_the_three_steps_of_the_page_lead_to_a_training_with_a_spare", "jobset"),
        (f"{E2E}/test_inject_auto.py::test_a_killed_worker_of_torchrun_restarts_in_place", "jobset"),
        (f"{E2E}/test_inject_lives.py::test_a_job_that_is_suspended_continues[JobSet]", "jobset"),
    ],
)
def test_tests_that_share_a_job_or_a_controller_are_one_unit(test: str, unit: str) -> None:
    assert unit_of(test) == unit


@pytest.mark.parametrize(
    "test",
    [
        f"{E2E}/test_faults.py::test_deleting_a_running_job_leaves_no_objects",
        f"{E2E}/test_inject.py::test_exit_on_fault_alone_saves_unless_its_node_is_faulty[False]",
        f"{E2E}/test_inject_lives.py::test_a_job_that_is_suspended_continues[Job]",
    ],
)
def test_another_test_is_a_unit_of_its_own(test: str) -> None:
    assert unit_of(test) == test

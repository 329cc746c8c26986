"""The skips that a run of tests may have. Any other skip fails its test, because a test that is skipped without notice
tests nothing.

A skip belongs here only if the machine cannot have what the test needs. The Makefile installs all tools that can be
installed before the tests (`make tools`, `python -m tests.cluster binaries`), and a test that lacks one fails.
"""

import re
from collections.abc import Generator
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class PermittedSkip:
    """test: the start of its id. reason: a regular expression for the whole reason."""

    test: str
    reason: str

    def matches(self, reason: str) -> bool:
        return re.fullmatch(self.reason, reason) is not None


PERMITTED = (
    # The test needs a machine without a GPU.
    PermittedSkip(
        "tests/unit/launcher/test_device_check.py::test_a_spare_that_was_given_a_device_and_sees_none_is_not_ready",
        "this machine has a device",
    ),
    # The Python of users' images; a machine has some of them. `make pythons` installs all, and skips none.
    PermittedSkip("tests/unit/launcher/test_stub.py::test_it_runs_on_the_image_s_python[", r"no Python 3\.\d+ here"),
    # `make torches` also runs the oldest supported torch.
    PermittedSkip(
        "tests/torchrun/",
        r"torch 2\.6 (does not record the collectives of gloo|has no fully_shard without a GPU"
        r"|cannot save in one process of a group|does not cache plans)",
    ),
    # `make integration-kubernetes` also runs older versions of Kubernetes.
    PermittedSkip(
        "tests/integration/operator/test_queue.py::",
        "this Kubernetes has no MutatingAdmissionPolicy, with which the fake gates pods",
    ),
    PermittedSkip(
        "tests/integration/test_chart_applied.py::test_the_previous_chart_can_be_upgraded_and_rolled_back_to",
        "this Kubernetes rejects the CRDs of the previous chart",
    ),
    # Rights that only root has, and that root in a container may lack.
    PermittedSkip("tests/unit/launcher/test_launcher_process.py::", "no right to make a PID namespace"),
    PermittedSkip("tests/unit/sidecar/", "no right to make a network namespace"),
    PermittedSkip("tests/unit/benchmarks/test_network.py::", "no right to make a network namespace"),
    PermittedSkip("tests/unit/", "this process may not create a device"),
    PermittedSkip(
        "tests/unit/launcher/test_process_settings.py::",
        "the kernel has no memory policies, or refuses the system call",
    ),
)


def is_permitted(test: str, reason: str) -> bool:
    return any(test.startswith(skip.test) and skip.matches(reason) for skip in PERMITTED)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Also that of an expected failure (xfail)."""
    if report.outcome != "skipped":
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
    reason = reason.removeprefix("Skipped: ")
    if not is_permitted(report.nodeid, reason):
        report.outcome = "failed"
        report.longrepr = f"skipped, which tests/skips.py does not permit: {reason}"

"""The known vulnerabilities that fail `make scan`."""

from datetime import date
from typing import Any

import pytest

from release.scan import ALLOWED, Allowance, ScanFailed, Vulnerability, problems, read_allowances, read_report

TODAY = date(2026, 11, 23)
FOUND = Vulnerability("aiohttp", "3.14.5", "PYSEC-2027-1", "3.14.6", frozenset({"CVE-2027-11"}))


def allowance(identifier: str = "PYSEC-2027-1", package: str = "aiohttp", until: date = date(2027, 1, 1)) -> Allowance:
    return Allowance(identifier, package, "not called", until)


def test_a_vulnerability_that_is_not_allowed_is_named_with_its_fix() -> None:
    assert list(problems([FOUND], [], TODAY)) == [
        "aiohttp 3.14.5 has PYSEC-2027-1: update it to 3.14.6, or add it to release/allowed.toml with a reason"
    ]


@pytest.mark.parametrize("identifier", ["PYSEC-2027-1", "CVE-2027-11"])
def test_a_vulnerability_that_is_allowed_by_any_of_its_names_passes(identifier: str) -> None:
    assert list(problems([FOUND, FOUND], [allowance(identifier)], TODAY)) == []


def test_an_allowance_counts_for_its_package_only() -> None:
    assert len(list(problems([FOUND], [allowance(package="other")], TODAY))) == 2


def test_an_allowance_ends_on_its_day() -> None:
    assert list(problems([FOUND], [allowance(until=TODAY)], TODAY)) == []
    assert list(problems([FOUND], [allowance(until=date(2026, 11, 22))], TODAY)) == [
        "PYSEC-2027-1 of aiohttp was allowed until 2026-11-22: look at it again"
    ]


def test_an_allowance_that_is_not_needed_any_more_is_to_be_removed() -> None:
    assert list(problems([], [allowance()], TODAY)) == [
        "PYSEC-2027-1 of aiohttp is not found any more: remove it from release/allowed.toml"
    ]


def test_a_package_that_was_not_scanned_fails_the_scan() -> None:
    vulnerable: dict[str, Any] = {
        "name": "aiohttp",
        "version": "3.14.5",
        "vulns": [{"id": "PYSEC-2027-1", "fix_versions": ["3.14.6"], "aliases": ["CVE-2027-11"]}],
    }
    assert list(read_report({"dependencies": [vulnerable]})) == [FOUND]
    skipped = {"name": "pip", "skip_reason": "not found"}
    with pytest.raises(ScanFailed, match="pip was not looked at: not found"):
        list(read_report({"dependencies": [vulnerable, skipped]}))


@pytest.mark.parametrize(
    "entry",
    [
        'id = "a"\npackage = "b"\nuntil = 2027-01-01',
        'id = "a"\npackage = "b"\nreason = ""\nuntil = 2027-01-01',
        'id = "a"\npackage = "b"\nreason = "c"\nuntil = "soon"',
        'id = "a"\npackage = "b"\nreason = "c"\nuntil = 2027-01-01\nmore = 1',
    ],
)
def test_an_allowance_without_a_reason_or_an_end_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="entry 0 needs id, package, reason, and until"):
        read_allowances(f"[[allowed]]\n{entry}\n")


def test_the_projects_own_list_can_be_read() -> None:
    read_allowances(ALLOWED.read_text())
    text = '[[allowed]]\nid = "a"\npackage = "b"\nreason = "c"\nuntil = 2027-01-01\n'
    assert read_allowances(text) == (Allowance("a", "b", "c", date(2027, 1, 1)),)

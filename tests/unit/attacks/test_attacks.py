"""The table of `make attack`, from the JUnit files of a real pytest run."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.attacks import Attacked, main, read, rows, table
from tests.cluster.paths import CHECKOUT

TESTS = """
import pytest

@pytest.mark.attack("B2", "floods", before="stood still")
@pytest.mark.parametrize("size", [1, 2])
def test_a_flood_is_refused(size, record_property):
    record_property("now", f"{size} ms")

@pytest.mark.attack("A1", "sends garbage", before="crashed")
def test_garbage_is_refused():
    pass

@pytest.mark.attack("A1", "steals", before="got in")
@pytest.mark.parametrize("works", [False, True])
def test_a_thief_is_refused(works):
    assert not works, "the thief is in"

@pytest.mark.attack("C1", "waits", before="stayed")
def test_who_waits():
    pytest.skip("no API server")

def test_something_else():
    pass
"""
CONFIGURATION = """
[pytest]
junit_family = xunit1
markers = attack
pythonpath = {checkout}
"""


@pytest.fixture(scope="module")
def junit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The JUnit file of a run of TESTS."""
    folder = tmp_path_factory.mktemp("attacks")
    (folder / "pytest.ini").write_text(CONFIGURATION.format(checkout=CHECKOUT))
    (folder / "conftest.py").write_text("from tests.conftest import pytest_collection_modifyitems\n")
    (folder / "test_it.py").write_text(TESTS)
    words = ("-q", "-p", "no:cacheprovider", "--junitxml", "found.xml", "test_it.py")
    subprocess.run([sys.executable, "-m", "pytest", *words], cwd=folder, check=False, capture_output=True)
    return folder / "found.xml"


def test_each_attack_has_a_row_with_the_results_of_its_tests(junit: Path) -> None:
    found = rows(read([junit]))
    assert [(row.attack, row.before, row.now) for row in found] == [
        ("A1 sends garbage", "crashed", "refused"),
        (
            "A1 steals",
            "got in",
            "NOT REFUSED: test_it::test_a_thief_is_refused[True]: AssertionError: the thief is in",
        ),
        ("B2 floods", "stood still", "1 ms; 2 ms"),
        ("C1 waits", "stayed", "not run: no API server"),
    ]
    assert [row.is_refused for row in found] == [True, False, True, False]


def test_the_exit_code_reports_whether_all_are_refused(junit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(junit)]) == 1
    assert "2 of 4 attacks are refused or contained" in capsys.readouterr().out
    assert rows([Attacked("A1", "x", "y", "t")])[0].is_refused


def test_a_run_without_attacks_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.xml"
    empty.write_text("<testsuites><testsuite><testcase name='a'/></testsuite></testsuites>")
    assert main([str(empty)]) == 1
    assert "no attack was run" in capsys.readouterr().err


def test_the_columns_are_aligned(junit: Path) -> None:
    header, first, *_ = table(rows(read([junit]))).splitlines()
    assert header.index("BEFORE") == first.index("crashed")
    assert header.index("NOW") == first.index("refused")

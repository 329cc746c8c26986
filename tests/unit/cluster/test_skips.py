"""A skip that tests/skips.py does not permit fails its test, also under pytest-xdist and during collection."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.paths import CHECKOUT
from tests.skips import PERMITTED, is_permitted

CONFTEST = "from tests.skips import pytest_make_collect_report, pytest_runtest_makereport\n"
DEVICE = "tests/unit/launcher/test_device_check.py"
TESTS = """
import pytest

def test_it_passes():
    pass

def test_it_skips_itself():
    pytest.skip("promtool is not on the PATH")

@pytest.mark.skipif(True, reason="openssl is not installed")
def test_it_is_marked():
    pass

@pytest.fixture
def helm():
    pytest.skip("helm is not built")

def test_its_fixture_skips(helm):
    pass

@pytest.mark.xfail(reason="it is known to fail")
def test_it_is_expected_to_fail():
    assert False
"""
REFUSED = ("promtool is not on the PATH", "openssl is not installed", "helm is not built", "it is known to fail")


def run(folder: Path, tests: str, *words: str, file: str = "test_it.py") -> subprocess.CompletedProcess[str]:
    """A run of pytest over these tests."""
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {CHECKOUT}\naddopts = --import-mode=importlib\n")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", *words, file]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("words", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_skip_that_is_not_permitted_fails_the_run_and_gives_the_reason(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = run(tmp_path, TESTS, *words)
    assert done.returncode == 1
    for reason in REFUSED:
        assert f"skipped, which tests/skips.py does not permit: {reason}" in done.stdout
    summary = done.stdout.splitlines()[-1]
    assert "1 passed" in summary
    assert "skipped" not in summary
    assert "xfailed" not in summary


def test_a_file_that_is_skipped_while_it_is_collected_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, "import pytest\npytest.importorskip('no_such_module')\n")
    assert done.returncode not in (0, 5), done.stdout
    assert "skipped, which tests/skips.py does not permit: could not import 'no_such_module'" in done.stdout


def test_a_permitted_skip_is_a_skip(tmp_path: Path) -> None:
    name = "test_a_spare_that_was_given_a_device_and_sees_none_is_not_ready"
    done = run(tmp_path, f"import pytest\ndef {name}():\n    pytest.skip('this machine has a device')\n", file=DEVICE)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 skipped")


@pytest.mark.parametrize(
    ("test", "reason", "permitted"),
    [
        ("tests/unit/launcher/test_stub.py::test_it_runs_on_the_image_s_python[3.14]", "no Python 3.14 here", True),
        (
            "tests/unit/launcher/test_stub.py::test_it_runs_on_the_image_s_python[3.14]",
            "no Python 3.14 here, so",
            False,
        ),
        ("tests/unit/launcher/test_stub.py::test_another", "no Python 3.14 here", False),
        ("tests/unit/launcher/test_shared_files.py::test_x", "this process may not create a device", True),
        ("tests/integration/test_x.py::test_x", "this process may not create a device", False),
    ],
)
def test_the_test_and_the_whole_reason_count(test: str, reason: str, permitted: bool) -> None:
    assert is_permitted(test, reason) is permitted


def test_the_list_is_short() -> None:
    assert len(PERMITTED) == 10

"""The previous build is the one before the last change of messages, not of any change of the protocol's files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.e2e.previous_build import messages, previous_commit

FOLDER = "sidecar/understudy_protocol"
WIRE = "VERSION = 2\n"
MESSAGES = """
@dataclass(frozen=True)
class Welcome:
    token: str  # the round
"""


def git(checkout: Path, *words: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    command = ["git", "-C", str(checkout), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(checkout: Path, **files: str) -> str:
    """A commit in which these modules of the protocol have this text."""
    (checkout / FOLDER).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (checkout / FOLDER / f"{name}.py").write_text(text)
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "change", "--allow-empty")
    return git(checkout, "rev-parse", "HEAD")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    return tmp_path


@pytest.mark.parametrize(
    "change",
    [
        {"membership": MESSAGES + "    renews: bool = False\n"},
        {"membership": MESSAGES.replace("token: str", "token: int")},
        {"membership": MESSAGES + "class Word(Enum):\n    GONE = 'Gone'\n"},
        {"wire": "VERSION = 3\n"},
    ],
)
def test_it_is_the_parent_of_the_last_change_of_messages_or_version(checkout: Path, change: dict[str, str]) -> None:
    previous = commit(checkout, membership=MESSAGES, wire=WIRE)
    commit(checkout, **change)
    # when later commits change a comment, a function, or no file
    text = change.get("membership", MESSAGES)
    commit(checkout, membership=text.replace("# the round", "# of the round") + "\n\ndef send() -> None:\n    pass\n")
    commit(checkout)
    assert previous_commit(checkout) == previous


def test_a_history_without_a_change_has_none(checkout: Path) -> None:
    commit(checkout, wire=WIRE)
    commit(checkout, membership=MESSAGES, wire=WIRE)
    commit(checkout, membership=MESSAGES.replace("# the round", "#"))
    git(checkout, "checkout", "-q", "--orphan", "alone")
    commit(checkout)
    with pytest.raises(AssertionError, match="a clone with its history has the former build"):
        previous_commit(checkout)


def test_a_docstring_a_comment_and_a_method_are_no_messages() -> None:
    documented = MESSAGES + '    """What it says."""\n\n    def __str__(self) -> str:\n        return self.token\n'
    assert messages([documented]) == messages([MESSAGES])

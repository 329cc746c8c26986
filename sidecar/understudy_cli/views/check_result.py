"""The result of a check of `doctor`, and the reason why a fact could not be read."""

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    SKIPPED = "not checked"


@dataclass(frozen=True)
class CheckResult:
    """fix: the next step; empty if nothing has to be done."""

    check: str
    level: Level
    text: str
    fix: str = ""


@dataclass(frozen=True)
class Unreadable:
    """Why a fact could not be read."""

    why: str

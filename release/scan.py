"""`make scan`: known vulnerabilities of the locked Python packages, by pip-audit, which asks PyPI.

allowed.toml names those that do not concern the project, each with the reason and a day on which it is looked at
again. The scan fails if there is another one, if such a day is over, and if allowed.toml names one that is not found
any more.

Debian's packages in the images are not scanned: give the SBOMs of `make release` to a scanner that knows Debian.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ALLOWED = Path(__file__).with_name("allowed.toml")
LOCKS = ("pip", "operator", "sidecar", "cli", "release", "dev")
LIMIT_S = 600


class ScanFailed(Exception):
    """Nothing is known."""


@dataclass(frozen=True, order=True)
class Vulnerability:
    package: str
    version: str
    identifier: str
    fixed_in: str
    aliases: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Allowance:
    identifier: str
    package: str
    reason: str
    until: date


def read_allowances(text: str) -> tuple[Allowance, ...]:
    """Raises ValueError."""
    found = []
    for number, entry in enumerate(tomllib.loads(text).get("allowed", ())):
        if (
            set(entry) != {"id", "package", "reason", "until"}
            or not entry["reason"]
            or type(entry["until"]) is not date
        ):
            raise ValueError(
                f"allowed.toml: entry {number} needs id, package, reason, and until (a day such as 2027-01-31)"
            )
        found.append(Allowance(entry["id"], entry["package"], entry["reason"], entry["until"]))
    return tuple(found)


def read_report(report: dict[str, Any]) -> Iterator[Vulnerability]:
    """What pip-audit says in JSON. Raises ScanFailed."""
    for package in report["dependencies"]:
        if "skip_reason" in package:
            raise ScanFailed(f"{package['name']} was not looked at: {package['skip_reason']}")
        for found in package["vulns"]:
            fixed_in = ", ".join(found["fix_versions"])
            aliases = frozenset(found.get("aliases", ()))
            yield Vulnerability(package["name"], package["version"], found["id"], fixed_in, aliases)


def problems(found: Iterable[Vulnerability], allowed: Iterable[Allowance], today: date) -> Iterator[str]:
    unused = set(allowed)
    for each in sorted(set(found)):
        names = {each.identifier, *each.aliases}
        matching = [x for x in allowed if x.identifier in names and x.package == each.package]
        unused.difference_update(matching)
        if not matching:
            how = f"update it to {each.fixed_in}" if each.fixed_in else "no version is fixed yet"
            allow = "or add it to release/allowed.toml with a reason"
            yield f"{each.package} {each.version} has {each.identifier}: {how}, {allow}"
        for allowance in matching:
            if allowance.until < today:
                yield f"{each.identifier} of {each.package} was allowed until {allowance.until}: look at it again"
    for allowance in sorted(unused, key=lambda x: x.identifier):
        name = f"{allowance.identifier} of {allowance.package}"
        yield f"{name} is not found any more: remove it from release/allowed.toml"


def scan(lock: Path) -> list[Vulnerability]:
    """Raises ScanFailed."""
    words = (
        "--requirement",
        str(lock),
        "--require-hashes",
        "--disable-pip",
        "--format",
        "json",
        "--progress-spinner",
        "off",
    )
    command = [sys.executable, "-m", "pip_audit", *words]
    try:
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=LIMIT_S)
        return list(read_report(json.loads(done.stdout)))
    except (subprocess.TimeoutExpired, ValueError) as error:
        lines = done.stderr[-2000:] if isinstance(error, ValueError) else ""
        raise ScanFailed(f"pip-audit did not look at {lock.name}: {error}\n{lines}") from error


def main() -> int:
    try:
        allowed = read_allowances(ALLOWED.read_text())
        found = {each for name in LOCKS for each in scan(ROOT / "requirements" / f"{name}.lock")}
    except (ScanFailed, ValueError) as error:
        print(f"make scan: {error}", file=sys.stderr)
        return 2
    wrong = list(problems(found, allowed, datetime.now(UTC).date()))
    print(
        "\n".join(wrong) or f"make scan: {len(found)} known vulnerabilities in {', '.join(LOCKS)}, all of them allowed"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

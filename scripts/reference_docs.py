"""Write the generated parts of docs/reference/fields.md and names.md; --check only names stale ones.

fields.md has the fields of the API, from the CRDs (reference_fields.py). names.md has phases, conditions, reasons,
events, exit codes, labels, annotations and variables: the names come from the code, and their meanings from
reference_texts.py.
"""

import argparse
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts import reference_names as names
from scripts import reference_texts as texts
from scripts.message_tables import markdown
from scripts.protocol_docs import PageError, fill
from scripts.reference_fields import FieldError, fields_of
from scripts.reference_names import JOB, POOL, Name, UnknownName
from understudy_cli.command_errors import ExitCode
from understudy_launcher import __main__ as launcher
from understudy_launcher import supervise
from understudy_local import cluster
from understudy_operator.plan.facts.recovery_objects import Outcome
from understudy_operator.plan.facts.status import JOB_RESTART
from understudy_operator.plan.injection import settings
from understudy_protocol import enums, pod

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs/reference"
ENTRY_SCRIPT = ROOT / "sidecar/understudy_launcher/launch"
COMMAND = "scripts/py scripts/reference_docs.py"
#: Conditions that have the phase as their reason while they are False.
BY_PHASE = "the phase"
#: Events whose type depends on a condition that the parser does not evaluate. All others of these are Warnings.
NORMAL = ("Completed", "SpareClaimed", "Rolling")

K = TypeVar("K", str, int)


def main(arguments: list[str], pages: Path = PAGES) -> int:
    parser = argparse.ArgumentParser(description="Write the generated parts of docs/reference/fields.md and names.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a part is stale")
    options = parser.parse_args(arguments)
    code = 0
    try:
        wanted = {"fields.md": fields(), "names.md": all_names()}
        for file, parts in wanted.items():
            page = pages / file
            filled, stale = fill(page.read_text(encoding="utf-8"), parts)
            if not options.check:
                page.write_text(filled, encoding="utf-8")
                continue
            for name in stale:
                sys.stderr.write(f"{file}: the part {name!r} differs from the code: run `{COMMAND}` and commit it\n")
                code = 1
    except (PageError, FieldError, UnknownName) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return code


def fields() -> dict[str, str]:
    return {crd: fields_of(crd) for crd in ("trainingjobs", "hotsparepools", "injectedjobs", "recoveries")}


def all_names() -> dict[str, str]:
    """Every generated part of names.md."""
    return {
        "phases": described(("phase", "meaning"), names.phases(), texts.PHASES),
        "job conditions": conditions(JOB),
        "pool conditions": conditions(POOL),
        "reasons": reasons(),
        "events": events(),
        "faults": values(enums.Fault),
        "strategies": values(enums.Strategy, JOB_RESTART),
        "outcomes": values(Outcome),
        "classes": values(enums.FaultClass),
        "launcher exits": described(("code", "meaning"), launcher_exits(), texts.LAUNCHER_EXITS),
        "local exits": described(("code", "meaning"), local_exits(), texts.LOCAL_EXITS),
        "command exits": described(("code", "meaning"), map(int, ExitCode), texts.COMMAND_EXITS),
        "labels": constants("label", "LABEL_", texts.LABELS),
        "annotations": constants("annotation", "ANNOTATION_", texts.ANNOTATIONS),
        "finalizers": constants("finalizer", "FINALIZER_", texts.FINALIZERS),
        "injection annotations": ", ".join(f"`{pod.GROUP}/{name}`" for name in settings.ANNOTATIONS),
        "variables": constants("variable", "ENV_", texts.VARIABLES),
    }


def described(headings: tuple[str, str], found: Iterable[K], meanings: Mapping[K, str]) -> str:
    """A row for each name. Raises PageError if one has no meaning, or if a meaning has no name."""
    keys = list(found)
    compare(headings[0], keys, meanings)
    return markdown(headings, [(f"`{key}`", meanings[key]) for key in keys])


def compare(description: str, found: Collection[object], meanings: Collection[object]) -> None:
    for name in [name for name in found if name not in meanings]:
        raise PageError(f"the {description} {name} has no text: add one to scripts/reference_texts.py")
    for name in [name for name in meanings if name not in found]:
        raise PageError(f"the code has no {description} {name}: remove its text from scripts/reference_texts.py")


# Conditions and events -----------------------------------------------------------------------------------------------


def conditions(of: str) -> str:
    found: dict[str, list[str]] = {}
    for name in sorted(x for x in names.all_conditions() if x.of == of and is_possible(x)):
        found.setdefault(name.kind, []).append(name.reason)
    missing = [kind for kind in found if kind not in texts.CONDITIONS]
    if missing:
        raise PageError(f"the condition {missing[0]} has no text: add one to scripts/reference_texts.py")
    order = [kind for kind in texts.CONDITIONS if kind in found]
    meanings = texts.CONDITIONS | (texts.POOL_CONDITIONS if of == POOL else {})
    rows = [(f"`{kind}`", meanings[kind], ", ".join(shown(found[kind]))) for kind in order]
    return markdown(("condition", "True means", "reasons"), rows)


def shown(found: list[str]) -> Iterator[str]:
    """All phases together are one entry."""
    phases = set(names.phases())
    if phases <= set(found):
        yield BY_PHASE
        found = [reason for reason in found if reason not in phases]
    yield from (f"`{reason}`" for reason in found)


def is_possible(name: Name) -> bool:
    """The values of two expressions are found independently. The code excludes these combinations."""
    lasting = name.reason in ("InvalidSpec", "Rejected")
    match name.kind:
        case "Invalid":
            return lasting or name.reason == "Accepted"
        case "Blocked" if name.of == JOB:
            return not lasting
        case "Completed":
            return name.reason in (*names.phases(), "AllJobsCompleted")
        case "Failed":
            return name.reason == "Restarting" or not name.reason.startswith(("AllJobs", "Restart"))
        case "StartupPolicyInProgress" | "StartupPolicyCompleted":
            return name.reason.endswith(name.kind)
    return True


def reasons() -> str:
    found = {x.reason for x in names.all_conditions() if is_possible(x)} - (set(names.phases()) - {"Rolling"})
    compare("reason", found, texts.REASONS)
    compare("condition", {x.kind for x in names.all_conditions()}, texts.CONDITIONS)
    return markdown(("reason", "meaning"), [(f"`{name}`", text) for name, text in texts.REASONS.items()])


def events() -> str:
    found: dict[str, tuple[set[str], set[str]]] = {}
    for name in names.events():
        of, kinds = found.setdefault(name.reason, (set(), set()))
        of.update(name.of.split(", "))
        kinds.add(name.kind)
    compare("event", found, texts.EVENTS)
    rows = [
        (f"`{reason}`", type_of(reason, found[reason][1]), ", ".join(sorted(found[reason][0])), text)
        for reason, text in texts.EVENTS.items()
    ]
    return markdown(("event", "type", "on", "meaning"), rows)


def type_of(reason: str, found: set[str]) -> str:
    return found.pop() if len(found) == 1 else "Normal" if reason in NORMAL else "Warning"


def values(enum: type[Enum], *more: str) -> str:
    return described(("value", "meaning"), [*(str(one.value) for one in enum), *more], texts.VALUES[enum.__name__])


# Exit codes ----------------------------------------------------------------------------------------------------------


def launcher_exits() -> list[int]:
    of_words = [value for name, value in vars(enums).items() if name.endswith("_EXIT_CODE")]
    own = (launcher.USAGE, launcher.BROKEN, launcher.MISCONFIGURED)
    ends = (supervise.ENDED_BY_SIGTERM, supervise.KILLED_AT_GRACE_END, supervise.NO_CHECKPOINT)
    script = [int(code) for code in re.findall(r"^exit (\d+)$", ENTRY_SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)]
    return sorted({*enums.CLOSE_EXIT_CODES.values(), *of_words, *own, *ends, *script})


def local_exits() -> list[int]:
    return sorted({0, cluster.FAILED, cluster.INTERRUPTED, int(ExitCode.WRONG_CALL)})


# Labels, annotations, variables --------------------------------------------------------------------------------------


def constants(description: str, prefix: str, meanings: Mapping[str, str]) -> str:
    """The constants of the module `pod` whose names begin with the prefix."""
    found = [str(value) for name, value in vars(pod).items() if name.startswith(prefix)]
    return described((description, "meaning"), found, meanings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

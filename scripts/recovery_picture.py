"""Draw docs/images/recovery.svg from the demo's table in README.md; --check only says whether the picture is stale.

The upper part shows the recovery from a power-off to scale. The lower part has a bar for each fault of the table: the
time until the fault is detected, and from there to the first step of the next round.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "README.md"
PICTURE = ROOT / "docs/images/recovery.svg"
COMMAND = "scripts/py scripts/recovery_picture.py"
SHOWN = "power off a node"
ROW = re.compile(
    r"^(?P<act>\S.+?)\s{2,}\w+\s+\w+\s+(?P<detected>[\d.]+)\s+(?P<resumed>[\d.]+)\s+\d+\s+[\d.]+\s+[\d.]+$"
)
WIDTH, LEFT, RIGHT = 860, 190, 840
FIRST_S, LAST_S = -0.8, 3.7
TRAINS, WAITS, STALLS, STARTS, TEXT, FAINT, FAULT = (
    *("#0b6bcb", "#d9e8f7", "#eaeef2", "#f5d9a8"),
    *("#24292f", "#57606a", "#c62828"),
)


@dataclass(frozen=True)
class Act:
    name: str
    detected_s: float
    resumed_s: float


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Draw docs/images/recovery.svg from the demo's table in README.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the picture is stale")
    options = parser.parse_args(arguments)
    picture = draw(list(read_acts(PAGE.read_text(encoding="utf-8"))))
    if not options.check:
        PICTURE.write_text(picture, encoding="utf-8")
        return 0
    if PICTURE.exists() and PICTURE.read_text(encoding="utf-8") == picture:
        return 0
    sys.stderr.write(f"{PICTURE.name} differs from the demo's table in {PAGE.name}: run `{COMMAND}` and commit it\n")
    return 1


def read_acts(page: str) -> Iterator[Act]:
    for line in page.splitlines():
        if (row := ROW.match(line)) is not None:
            yield Act(row["act"], float(row["detected"]), float(row["resumed"]))


def draw(acts: list[Act]) -> str:
    shown = next(act for act in acts if act.name == SHOWN)
    lines = [*_lanes(shown), *_bars(acts, 330)]
    height = 372 + 30 * len(acts)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">\n'
        "<title>A node is powered off, a spare takes its ranks, and training continues</title>\n"
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff" stroke="#d0d7de"/>\n'
    )
    return head + "\n".join(lines) + "\n</svg>\n"


def _lanes(act: Act) -> Iterator[str]:
    found, again = act.detected_s, act.resumed_s
    yield _text(16, 28, f"{act.name.capitalize()}: measured in the demo", weight="bold")
    for pod, ranks in enumerate(("ranks 0, 1", "ranks 2, 3")):
        top = 62 + 40 * pod
        yield _text(16, top + 19, f"pod {pod}")
        yield _box(FIRST_S, 0, top, TRAINS, "training", "#ffffff")
        yield _box(0, found, top, STALLS, "waits for the lost ranks", TEXT)
        yield _box(found, again, top, STARTS, "restart", TEXT)
        yield _box(again, LAST_S, top, TRAINS, ranks, "#ffffff")
    yield _text(16, 161, "pod 2")
    yield _box(FIRST_S, 0, 142, TRAINS, "training", "#ffffff")
    yield f'<path d="M{_x(0) + 8:.0f} 148 l16 16 m0 -16 l-16 16" stroke="{FAULT}" stroke-width="4" fill="none"/>'
    yield _text(_x(0) + 36, 161, "its node loses power", fill=FAULT)
    yield _text(16, 201, "spare")
    yield _box(FIRST_S, found, 182, WAITS, "waits: torch is imported, no ranks", TEXT)
    yield _box(found, again, 182, STARTS, "start", TEXT)
    yield _box(again, LAST_S, 182, TRAINS, "ranks 4, 5", "#ffffff")
    for at, label in ((0.0, "0 s: fault"), (found, f"{found:.2f} s: detected"), (again, f"{again:.2f} s: first step")):
        yield f'<path d="M{_x(at):.0f} 52 V222" stroke="{FAINT}" stroke-dasharray="4 4" fill="none"/>'
        anchor, shift = ("start", 0) if at == again else ("end", 0) if at == found else ("middle", 0)
        yield _text(_x(at) + shift, 240, label, fill=FAINT, anchor=anchor)
    yield _text(
        16,
        268,
        "No pod is created or scheduled before training continues. The operator creates the next spare afterwards.",
        fill=FAINT,
    )


def _bars(acts: list[Act], top: int) -> Iterator[str]:
    yield f'<path d="M16 {top - 40} H{RIGHT}" stroke="#d0d7de" fill="none"/>'
    yield _text(16, top - 14, "Every fault of the demo, in seconds", weight="bold")
    scale = (RIGHT - LEFT - 60) / max(act.resumed_s for act in acts)
    for place, act in enumerate(acts):
        y = top + 30 * place
        detected, resumed = act.detected_s * scale, act.resumed_s * scale
        yield _text(16, y + 16, act.name)
        yield f'<rect x="{LEFT}" y="{y}" width="{max(detected, 1):.0f}" height="22" fill="{STALLS}" stroke="#d0d7de"/>'
        yield f'<rect x="{LEFT + detected:.0f}" y="{y}" width="{resumed - detected:.0f}" height="22" fill="{STARTS}"/>'
        yield _text(LEFT + resumed + 8, y + 16, f"{act.resumed_s:.2f}")
    y = top + 30 * len(acts) + 18
    yield f'<rect x="{LEFT}" y="{y - 12}" width="14" height="14" fill="{STALLS}" stroke="#d0d7de"/>'
    yield _text(LEFT + 20, y, "until the fault is detected", fill=FAINT)
    yield f'<rect x="{LEFT + 200}" y="{y - 12}" width="14" height="14" fill="{STARTS}"/>'
    yield _text(LEFT + 220, y, "until the first step of the next round", fill=FAINT)


def _x(at_s: float) -> float:
    return 80 + (at_s - FIRST_S) / (LAST_S - FIRST_S) * (RIGHT - 80)


def _box(start_s: float, end_s: float, top: int, fill: str, label: str, color: str) -> str:
    x, width = _x(start_s), _x(end_s) - _x(start_s)
    box = f'<rect x="{x:.0f}" y="{top}" width="{width:.0f}" height="28" rx="4" fill="{fill}"/>'
    return box + _text(x + width / 2, top + 19, label, fill=color, anchor="middle")


def _text(x: float, y: float, text: str, fill: str = TEXT, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{fill}" text-anchor="{anchor}" font-weight="{weight}">{text}</text>'


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

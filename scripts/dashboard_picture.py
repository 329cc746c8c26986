"""Draw the chart's Grafana dashboard with the data of a Prometheus: docs/images/dashboard.svg.

`scripts/py scripts/dashboard_picture.py http://localhost:9090 --minutes 15`. The server may be any that serves
/api/v1/query_range. The queries are those of the panels, so an empty panel shows up. Rules: the picture depends only on
the answers; a series that stays at 0 is not in the legend; times count from the start of the picture.
"""

import argparse
import json
import math
import re
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DASHBOARD = ROOT / "charts/understudy/files/dashboards/understudy.json"
PICTURE = ROOT / "docs/images/dashboard.svg"
COLUMNS, COLUMN_PX, ROW_PX, GAP_PX = 24, 50, 30, 8
TITLE_PX, LEGEND_PX, AXIS_PX, LEFT_PX = 24, 38, 16, 54
LETTER_PX = 6.2  # about the width of a letter in a legend
POINTS = 120  # of a series
SEEN = 10  # opacity of an area in percent: fainter areas are not drawn
COLOURS = ("#3274d9", "#56a64b", "#e0752d", "#a352cc", "#e02f44", "#0d9488", "#b7950b", "#6b7280")
#: The divisors of a panel's unit, with the text for each, from the smallest number on.
UNITS: Mapping[str, Sequence[tuple[float, str]]] = {
    "s": ((1e-6, " µs"), (1e-3, " ms"), (1.0, " s"), (60.0, " min"), (3600.0, " h")),
    "ops": ((1.0, "/s"),),
    "reqps": ((1.0, "/s"),),
    "percentunit": ((0.01, " %"),),
    "short": ((1.0, ""), (1e3, "k"), (1e6, "M")),
}

Panel = Mapping[str, Any]
Labels = Mapping[str, str]
Points = Sequence[tuple[float, float]]  # Unix time, value
#: The answer of a Prometheus to an expression.
Ask = Callable[[str], Sequence[tuple[Labels, Points]]]


@dataclass(frozen=True)
class Series:
    name: str
    points: Points

    @property
    def has_samples(self) -> bool:
        return any(value != 0 for _, value in self.points)


@dataclass(frozen=True)
class Span:
    begin: float
    end: float

    @property
    def step(self) -> float:
        return max(1.0, (self.end - self.begin) / POINTS)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Draw the dashboard with the data of a Prometheus.")
    parser.add_argument("prometheus", help="its URL")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--end", type=float, default=time.time(), help="Unix time; now unless set")
    parser.add_argument("--interval", default="1m", help="in place of Grafana's $__rate_interval")
    parser.add_argument("--out", type=Path, default=PICTURE)
    options = parser.parse_args(arguments)
    span = Span(options.end - 60 * options.minutes, options.end)
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))

    def ask(expression: str) -> Sequence[tuple[Labels, Points]]:
        return query(options.prometheus, expression.replace("$__rate_interval", options.interval), span)

    options.out.write_text(picture(dashboard["panels"], ask, span), encoding="utf-8")
    return 0


def query(url: str, expression: str, span: Span) -> list[tuple[Labels, Points]]:
    """Raises OSError if the server does not answer, or rejects the expression."""
    requests = urllib.parse.urlencode({"query": expression, "start": span.begin, "end": span.end, "step": span.step})
    with urllib.request.urlopen(f"{url}/api/v1/query_range?{requests}", timeout=60) as answer:  # noqa: S310 (the URL is the caller's)
        found = json.load(answer)["data"]["result"]
    return [(x["metric"], [(float(at), float(value)) for at, value in x["values"]]) for x in found]


def series_of(panel: Panel, ask: Ask) -> list[Series]:
    return [
        Series(legend(target["legendFormat"], labels), [(at, value) for at, value in points if math.isfinite(value)])
        for target in panel.get("targets", ())
        for labels, points in ask(target["expr"])
    ]


def legend(text: str, labels: Labels) -> str:
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), text)


# Drawing -------------------------------------------------------------------------------------------------------------


def picture(panels: Sequence[Panel], ask: Ask, span: Span) -> str:
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) * ROW_PX + GAP_PX
    width = COLUMNS * COLUMN_PX + GAP_PX
    drawn = "\n".join(_placed(panel, series_of(panel, ask), span) for panel in panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="11" fill="#374151">\n<rect width="{width}" height="{height}" fill="#f3f4f6"/>\n{drawn}\n</svg>\n'
    )


def _placed(panel: Panel, series: Sequence[Series], span: Span) -> str:
    at = panel["gridPos"]
    x, y = at["x"] * COLUMN_PX + GAP_PX, at["y"] * ROW_PX + GAP_PX
    width, height = at["w"] * COLUMN_PX - GAP_PX, at["h"] * ROW_PX - GAP_PX
    title = f'<text x="8" y="16" font-size="12" font-weight="bold">{escape(panel["title"])}</text>'
    if panel["type"] == "row":
        return f'<g transform="translate({x} {y})">{title}</g>'
    inside = _number(series, width, height) if panel["type"] == "stat" else _graph(panel, series, width, height, span)
    frame = f'<rect width="{width}" height="{height}" rx="3" fill="#fff" stroke="#d1d5db"/>'
    return f'<g transform="translate({x} {y})">{frame}{title}{inside}</g>'


def _number(series: Sequence[Series], width: float, height: float) -> str:
    newest = shown(series[0].points[-1][1], "short") if series and series[0].points else "no data"
    where = f'x="{width / 2:g}" y="{height / 2 + 16:g}" text-anchor="middle" font-size="40"'
    return f"<text {where}>{newest}</text>"


def _graph(panel: Panel, series: Sequence[Series], width: float, height: float, span: Span) -> str:
    defaults = panel["fieldConfig"]["defaults"]
    custom, unit = defaults.get("custom", {}), defaults.get("unit", "short")
    named = [each for each in series if each.has_samples]
    if custom.get("stacking", {}).get("mode") == "normal":
        bounds = stacked(named)
    else:
        bounds = [(each, [(at, 0.0, value) for at, value in each.points]) for each in named]
    top = nice(max((high for _, points in bounds for *_, high in points), default=0.0))
    area_w, area_h = width - LEFT_PX - 10, height - TITLE_PX - AXIS_PX - LEGEND_PX

    def px(at: float) -> float:
        return LEFT_PX + area_w * (at - span.begin) / (span.end - span.begin)

    def py(value: float) -> float:
        return TITLE_PX + area_h * (1 - value / top)

    parts = [_axes(top, unit, span, px, py, width - 10)]
    for (each, points), colour in zip(bounds, _colours(), strict=False):
        if custom.get("drawStyle") == "bars":
            bar = max(1.0, area_w / POINTS - 1)
            parts += [
                f'<rect x="{px(at) - bar:.1f}" y="{py(high):.1f}" width="{bar:.1f}" '
                f'height="{py(low) - py(high):.1f}" fill="{colour}"/>'
                for at, low, high in points
                if high > low and px(at) - bar >= LEFT_PX
            ]
        else:
            parts.append(_line(each, points, colour, custom.get("fillOpacity", 0), px, py))
    return "".join(parts) + _legend(named, len(series), height - LEGEND_PX + 14, width)


def stacked(series: Sequence[Series]) -> list[tuple[Series, list[tuple[float, float, float]]]]:
    """Time, lower and upper bound of each series: each is drawn on top of the previous ones."""
    below: dict[float, float] = {}
    found = []
    for each in series:
        points = []
        for at, value in each.points:
            low = below.get(at, 0.0)
            below[at] = low + value
            points.append((at, low, low + value))
        found.append((each, points))
    return found


def _line(
    series: Series,
    points: Sequence[tuple[float, float, float]],
    colour: str,
    opacity: float,
    px: Callable[[float], float],
    py: Callable[[float], float],
) -> str:
    upper = [f"{px(at):.1f},{py(high):.1f}" for at, _, high in points]
    lower = [f"{px(at):.1f},{py(low):.1f}" for at, low, _ in reversed(points)]
    area = ""
    if opacity >= SEEN:
        area = f'<polygon points="{" ".join(upper + lower)}" fill="{colour}" fill-opacity="{opacity / 100:g}"/>'
    name = f"<title>{escape(series.name)}</title>"
    return (
        f'{area}<polyline points="{" ".join(upper)}" fill="none" stroke="{colour}" stroke-width="1.5">{name}</polyline>'
    )


def _axes(
    top: float, unit: str, span: Span, px: Callable[[float], float], py: Callable[[float], float], right: float
) -> str:
    parts = []
    for part in (0.0, 0.5, 1.0):
        y = py(top * part)
        parts.append(f'<line x1="{LEFT_PX}" x2="{right:g}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        text = shown(top * part, unit)
        parts.append(f'<text x="{LEFT_PX - 5}" y="{y + 4:.1f}" text-anchor="end" font-size="10">{text}</text>')
    minutes = (span.end - span.begin) / 60
    for part, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        x, y = px(span.begin + (span.end - span.begin) * part), py(0.0) + 13
        text = f"{minutes * part:g}{' min' if part else ''}"
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="10">{text}</text>')
    return "".join(parts)


def _legend(named: Sequence[Series], total: int, y: float, width: float) -> str:
    """At most two lines. Series without room are counted."""
    if not total:
        return f'<text x="{width / 2:g}" y="{y - 60:g}" text-anchor="middle">no data</text>'
    parts, x, lines = [], 8.0, 1
    for number, (each, colour) in enumerate(zip(named, _colours(), strict=False)):
        wide = 20 + LETTER_PX * len(each.name)
        if x > 8 and x + wide > width - 50:
            if lines == 2:
                parts.append(f'<text x="{x:.0f}" y="{y:.0f}" font-size="10">+ {len(named) - number}</text>')
                break
            x, y, lines = 8.0, y + 14, 2
        parts.append(f'<rect x="{x:.0f}" y="{y - 8:.0f}" width="8" height="8" fill="{colour}"/>')
        parts.append(f'<text x="{x + 11:.0f}" y="{y:.0f}" font-size="10">{escape(each.name)}</text>')
        x += wide
    return "".join(parts)


def _colours() -> Sequence[str]:
    return COLOURS * 8


def nice(value: float) -> float:
    """The next of 1, 2 and 5 times a power of ten; 1 for 0 and less."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if value <= factor * power * (1 + 1e-9))


def shown(value: float, unit: str) -> str:
    steps = UNITS.get(unit, UNITS["short"])
    size, word = next(((size, word) for size, word in reversed(steps) if abs(value) >= size), steps[0])
    if value == 0:
        size, word = 1.0, ""
    return f"{round(value / size, 2):g}{word}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The picture of the dashboard is drawn from Prometheus' answers to the panels' own expressions."""

import json
import re
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlparse
from xml.etree import ElementTree

import pytest

from scripts.dashboard_picture import (
    DASHBOARD,
    Labels,
    Points,
    Series,
    Span,
    main,
    nice,
    picture,
    shown,
    stacked,
)

PANELS = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
SPAN = Span(1000.0, 1600.0)
TEXT = "{http://www.w3.org/2000/svg}text"
LINE = "{http://www.w3.org/2000/svg}polyline"


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(TEXT)]


def rising(labels: Labels) -> tuple[Labels, Points]:
    return labels, [(1000.0 + 60 * minute, float(minute)) for minute in range(11)]


def test_every_panel_has_the_series_that_it_selects() -> None:
    requests = []

    def ask(expression: str) -> Sequence[tuple[Labels, Points]]:
        requests.append(expression)
        return [rising({"phase": "Running", "strategy": "InPlace"})]

    drawn = picture(PANELS, ask, SPAN)
    assert requests == [target["expr"] for panel in PANELS for target in panel.get("targets", ())]
    assert {panel["title"] for panel in PANELS} <= set(texts(drawn))
    assert {"Running", "InPlace", "the job failed", "p99", "10 min"} <= set(texts(drawn))


def test_a_panel_without_data_states_it_and_a_series_that_stays_at_0_has_no_entry() -> None:
    panel = next(panel for panel in PANELS if panel["title"] == "Waiting")
    assert "no data" in texts(picture([panel], lambda _: [], SPAN))
    quiet = ({"phase": "Suspended"}, [(1000.0, 0.0), (1600.0, 0.0)])
    found = texts(picture([panel], lambda _: [rising({"phase": "Recovering"}), quiet], SPAN))
    assert ("Recovering" in found, "Suspended" in found, "no data" in found) == (True, False, False)


def test_a_value_that_is_no_number_leaves_no_gap_in_a_line() -> None:
    panel = next(panel for panel in PANELS if panel["title"] == "Recovery time")
    odd = [(1000.0, float("nan")), (1060.0, 2.0), (1120.0, float("inf")), (1180.0, 3.0)]
    drawn = picture([panel], lambda _: [({}, odd)], SPAN)
    lines = [element.attrib["points"].split() for element in ElementTree.fromstring(drawn).iter(LINE)]
    assert [len(points) for points in lines] == [2, 2]  # p50, p99
    assert not re.search("nan|inf", drawn.replace("font-family", ""))


def test_series_are_stacked_if_the_panel_stacks_them() -> None:
    one, other = Series("one", [(0.0, 1.0), (60.0, 2.0)]), Series("other", [(60.0, 3.0)])
    assert stacked([one, other]) == [(one, [(0.0, 0.0, 1.0), (60.0, 0.0, 2.0)]), (other, [(60.0, 2.0, 5.0)])]


@pytest.mark.parametrize(("value", "top"), [(0.0, 1.0), (0.3, 0.5), (1.0, 1.0), (1.1, 2.0), (4.0, 5.0), (61.0, 100.0)])
def test_an_axis_ends_at_a_round_number(value: float, top: float) -> None:
    assert nice(value) == pytest.approx(top)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "s", "0"),
        (0.005, "s", "5 ms"),
        (90.0, "s", "1.5 min"),
        (2500.0, "short", "2.5k"),
        (0.25, "reqps", "0.25/s"),
    ],
)
def test_numbers_have_the_panels_unit(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_prometheus_is_queried_for_the_span_with_a_rate_interval(tmp_path: Path) -> None:
    requests: list[dict[str, list[str]]] = []

    class Prometheus(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(parse_qs(urlparse(self.path).query))
            result = [{"metric": {"phase": "Running"}, "values": [[1590, "3"], [1600, "4"]]}]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"status": "success", "data": {"result": result}}).encode())

        def log_message(self, *_: object) -> None:
            """Not into the tests' output."""

    with HTTPServer(("127.0.0.1", 0), Prometheus) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert main([url, "--minutes", "10", "--end", "1600", "--out", str(tmp_path / "drawn.svg")]) == 0
        server.shutdown()
    assert {(each["start"][0], each["end"][0]) for each in requests} == {("1000.0", "1600.0")}
    assert not any("$__" in each["query"][0] for each in requests)
    assert any("[1m]" in each["query"][0] for each in requests)
    assert "Running" in texts((tmp_path / "drawn.svg").read_text())

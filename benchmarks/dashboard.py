"""`make bench-dashboard`: whether the dashboard's page stalls a browser, and how soon it shows a fault. Three minutes.

A real Chromium without a window shows the page of a fake API server: a fleet of 500 jobs, and a job of 5,000 pods.
While objects change 50 times a second, the page is scrolled and searched. A stall is the longest task of the page's
main thread (PerformanceObserver, `longtask`), from the navigation on. The browser does not report tasks below 50 ms, so
50 is the least. An update is the time from a changed object in the API server to the text in the page, the longest of
five. Browser, dashboard and API server share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence

from benchmarks.goals import UNDERSTUDY, Goal
from benchmarks.records import Sample
from benchmarks.report import add_arguments, open_journal, show
from tests.ui import large_fleets
from tests.ui.browser import Page, browser
from tests.ui.fake_cluster import FakeCluster, fake_cluster
from tests.ui.serving import serving
from tests.unit.cli import samples

RUNS = 5
CHANGES, CHANGE_S = 400, 0.02
UPDATES = 5
JOBS, PODS = 500, 5_000
LEAST_TASK_MS = 50.0
GOALS = (
    Goal("fleet", JOBS, "longest_task_ms", at_most=100.0),
    Goal("job", PODS, "longest_task_ms", at_most=100.0),
    Goal("fleet", JOBS, "update_s", at_most=1.0),
    Goal("job", PODS, "update_s", at_most=1.0),
)
_ADDRESS = {"fleet": "#/jobs", "job": "#/job/team-a/huge"}
_LABEL = {"fleet": "Jobs", "job": "Pods"}


async def measure(case: str, run: int) -> Sample:
    now = time.time()
    with fake_cluster() as cluster:
        size = JOBS if case == "fleet" else PODS
        if case == "fleet":
            large_fleets.fill_fleet(cluster, JOBS, now)
        else:
            large_fleets.fill_large_job(cluster, PODS, now)
        async with serving(cluster) as url, browser() as page:
            await page.open(url + _ADDRESS[case])
            await page.wait_for_text(f"Jobs ({JOBS})" if case == "fleet" else f"Pods: {PODS} members")
            await _disturb(page, cluster, case, now)
            updates = [await _update(page, cluster, case, number) for number in range(UPDATES)]
            longest = await page.run("Math.max(0, ...window.longTasks)")
            await page.open("about:blank")
    metrics = {"longest_task_ms": max(LEAST_TASK_MS, longest), "update_s": max(updates)}
    return Sample(UNDERSTUDY, case, size, run, metrics)


async def _disturb(page: Page, cluster: FakeCluster, case: str, now: float) -> None:
    """Change objects 50 times a second, while the table is scrolled, and filtered by a word and by none."""
    body = f"document.querySelector('[aria-label={_LABEL[case]}] .body')"
    field = "document.querySelector('input[type=search]')"
    await page.run(
        f"""(() => {{
          let at = 0;
          const scroll = setInterval(() => {{ {body}.scrollTop = (at += 531) % {body}.scrollHeight; }}, 40);
          const search = (text) => {{ {field}.value = text; {field}.dispatchEvent(new Event("input")); }};
          const type = setInterval(() => search({field}.value ? "" : "1"), 500);
          window.rest = () => {{ clearInterval(scroll); clearInterval(type); search(""); {body}.scrollTop = 0; }};
        }})()"""
    )
    for number in range(CHANGES):
        if case == "fleet":
            job = large_fleets.fleet_job(number % JOBS, now)
            job["status"]["progress"]["step"] += 1 + number
            cluster.put("trainingjobs", job)
        else:
            ready = {"type": "Ready", "status": str(number % 2 == 1)}
            status = {"phase": "Running", "conditions": [ready]}
            cluster.put("pods", large_fleets.large_pod("huge", number // 2 * 7 % PODS, now, status=status))
        await asyncio.sleep(CHANGE_S)
    await page.run("window.rest()")


async def _update(page: Page, cluster: FakeCluster, case: str, number: int) -> float:
    """Seconds from the change of a job to its text in the page."""
    text = f"{7_000_000 + number} / 5000"
    place = ".facts" if case == "job" else "[aria-label=Jobs] .body"
    seen = f"document.querySelector({json.dumps(place)}).textContent.includes({json.dumps(text)})"
    watching = (
        f"new Promise((done) => {{ const watch = setInterval(() => {{ if ({seen}) {{ clearInterval(watch);"
        " done(Date.now()) } }, 5) })"
    )
    waiting = asyncio.ensure_future(page.run(watching))
    await asyncio.sleep(0.3)  # the promise is there, and changes of before are shown
    name = "huge" if case == "job" else "aaa-first"
    members = {"desired": PODS, "active": PODS, "ready": PODS - 1}
    began = time.time()
    progress = {"step": 7_000_000 + number, "total": 5000}
    cluster.put("trainingjobs", samples.job(name, phase="Recovering", members=members, progress=progress))
    return float(await waiting) / 1000 - began


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-dashboard ARGS=…", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS)
    add_arguments(parser)
    requests = parser.parse_args(arguments)
    journal = open_journal("dashboard", requests)
    for case, size in (("fleet", JOBS), ("job", PODS)):
        for run in range(requests.runs):
            if not journal.has(UNDERSTUDY, case, size, run):
                journal.add([asyncio.run(measure(case, run))])
    journal.close()
    show(journal, GOALS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

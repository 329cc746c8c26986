"""The dashboard in a real Chromium, with the objects of a fake API server."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
import pytest_asyncio

from tests.ui import large_fleets
from tests.ui.browser import Page, browser
from tests.ui.fake_cluster import FakeCluster, fake_cluster
from tests.ui.large_fleets import written
from tests.ui.serving import serving, serving_board
from tests.unit.cli import samples
from understudy_cli.dashboard.server import Board
from understudy_cli.facts import Fleet
from understudy_cli.reading import read_job

#: The first test starts the browser, which takes long on a machine that does other things, too.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
JOB = "#/job/team-a/llm"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Job team-a/llm with two faults, three pods and three events."""
    with fake_cluster() as cluster:
        cluster.put("trainingjobs", samples.job())
        cluster.put("pods", *samples.pods())
        cluster.put("hotsparepools", samples.pool())
        cluster.put("nodes", *samples.nodes())
        for number, event in enumerate(samples.events()):
            about = {"metadata": {"name": f"e{number}"}, "involvedObject": {"uid": "uid-of-llm"}}
            cluster.put("events", event | about)
        yield cluster


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def chromium() -> AsyncIterator[Page]:
    async with browser() as page:
        yield page


@pytest_asyncio.fixture(loop_scope="module")
async def page(chromium: Page) -> Page:
    chromium.errors.clear()
    return chromium


@pytest_asyncio.fixture(loop_scope="module")
async def url(cluster: FakeCluster, page: Page) -> AsyncIterator[str]:
    async with serving(cluster) as url:
        yield url
        await page.open("about:blank")  # so that it does not report the end of the server
        assert page.errors == []


def rows_of(label: str) -> str:
    """An expression: the texts of the cells of each visible row of a table."""
    rows = f"""[...document.querySelectorAll('[aria-label="{label}"] .body .row:not([hidden])')]"""
    return f"{rows}.map((row) => [...row.children].map((cell) => cell.textContent))"


async def rows(page: Page, label: str) -> list[list[str]]:
    found: list[list[str]] = await page.run(rows_of(label))
    return found


async def test_the_fleet_has_each_job_with_its_newest_fault(page: Page, url: str) -> None:
    await page.open(url)
    await page.wait_for_text("Jobs (1)")
    ((phase, name, namespace, ready, spares, recoveries, fault, step, *_),) = await rows(page, "Jobs")
    assert (phase, name, namespace, ready, spares) == ("● Running", "llm", "team-a", "2/2", "0/1")
    assert (recoveries, fault.partition(",")[0], step) == ("2", "Node", "1200 / 5000")


async def test_a_job_has_its_pods_faults_picture_and_history(page: Page, url: str) -> None:
    await page.open(url + JOB)
    await page.wait_for_text("Faults (2)")
    # pods in the order of their ranks, then spares
    pods = [cells[:5] for cells in await rows(page, "Pods")]
    assert pods == [
        ["0-1", "llm-spare-x7k2p", "node-c", "● Running", "member"],
        ["2-3", "llm-workers-0-1", "node-b", "● Running", "★ coordinator"],
        ["spare", "llm-spare-new1", "node-d", "! ImagePullBackOff", "spare"],
    ]
    # faults, the newest first
    summaries = await page.run("[...document.querySelectorAll('summary')].map((summary) => summary.innerText)")
    assert ["it did not respond for 5.0 s" in text for text in summaries] == [True, False]
    # the picture as text, for people who do not see it
    assert ": 2 faults, 0 without an end" in await page.run("document.querySelector('.picture').ariaLabel")
    assert await page.run("document.querySelectorAll('.picture .fault').length") == 3  # the second one also in its lane
    assert [cells[2] for cells in await rows(page, "History")][-1] == "Created"
    assert "! SparesReady" in await page.text()


async def test_a_fault_appears_without_a_reload(page: Page, cluster: FakeCluster, url: str) -> None:
    # given a browser that shows the job
    await page.open(url + JOB)
    await page.wait_for_text("Faults (2)")
    # when a rank fails
    late = samples.recovery_object()
    late["metadata"] |= {"namespace": "team-a"}
    cluster.put("recoveries", late)
    cluster.put("trainingjobs", samples.job(phase="Recovering"))
    # then the page has the fault, its traceback, and the phase
    await page.wait_for_text("Faults (3)")
    await page.wait_for_text("↻ Recovering")
    await page.run("document.querySelector('summary').click()")
    await page.wait_for_text("batch = next(data)")
    # and the entry remains open when something else changes
    cluster.put("trainingjobs", samples.job(phase="Running"))
    await page.wait_for_text("● Running")
    assert await page.run("document.querySelector('details').open")


async def test_the_time_of_a_job_is_one_bar_with_numbers_and_grows(page: Page, cluster: FakeCluster, url: str) -> None:
    # given a job with three hours in its account, whose last step was made long ago
    await page.open(url + JOB)
    await page.wait_for_text("Time: ETTR")
    # then the parts are in the bar and in the list, with the same numbers, and the list has their shares
    label = await page.run("document.querySelector('.parts').ariaLabel")
    assert "3 detection 3.25 s, " in label
    table = await page.run(_table("Parts of the time"))
    names = [cells[0].strip() for cells in table]
    assert names == ["1 productive", "2 repeated", "3 detection", "4 restart", "6 starting", "11 sinceLastStep"]
    assert await page.run("document.querySelectorAll('.parts g').length") == 6
    assert table[2][1] == "3.25 s"
    assert await page.run(_table("Lost to")) == [["Node", "20.0 s", "80"], ["Process", "1.00 s", "4"]]
    assert await page.run(_table("On node")) == [
        ["node-a", "20.0 s", "80"],
        ["node-b", "0.60 s", "2"],
        ["not known", "0.40 s", "2"],
    ]
    # and when the job pauses, its pause grows without a message from the cluster
    cluster.put("trainingjobs", samples.job(goodput=samples.goodput(part="Restart", since=written(time.time()))))
    grown = "(cells) => cells[0].endsWith('restart') && parseFloat(cells[1]) > 7.5"
    await page.wait_for(f"{_table('Parts of the time')}.some({grown})")
    # and a job without an account has no bar
    cluster.put("trainingjobs", samples.job(goodput=None))
    await page.wait_for("!document.body.innerText.includes('Time: ETTR')")


def _table(label: str) -> str:
    """An expression: the texts of the cells of each row of a small table."""
    rows = f"""[...document.querySelectorAll('table[aria-label="{label}"] tbody tr')]"""
    return f"{rows}.map((row) => [...row.children].map((cell) => cell.textContent))"


async def test_a_deleted_job_and_a_deleted_pod_disappear(page: Page, cluster: FakeCluster, url: str) -> None:
    await page.open(url + JOB)
    await page.wait_for_text("llm-spare-new1")
    cluster.delete("pods", samples.pods()[0])
    await page.wait_for(f"{rows_of('Pods')}.length === 2")
    cluster.delete("trainingjobs", samples.job())
    await page.wait_for_text("There is no job llm in namespace team-a.")


async def test_spares_and_nodes(page: Page, url: str) -> None:
    await page.open(f"{url}#/spares")
    await page.wait_for_text("Jobs and pools (2)")
    assert [cells[1] for cells in await rows(page, "Owners of spares")] == ["job llm", "pool shared"]
    assert [cells[1] for cells in await rows(page, "Spare pods")] == ["llm-spare-new1"]
    await page.open(f"{url}#/nodes")
    await page.wait_for_text("Nodes (4, 2 with findings)")
    states = [cells[:2] for cells in await rows(page, "Nodes")]
    assert states == [["✕ NotReady", "node-a"], ["● Ready", "node-d"], ["● Ready", "node-b"], ["● Ready", "node-c"]]


async def test_headings_have_no_numbers_before_the_cluster_was_read(page: Page) -> None:
    # given a dashboard that has read a job, and no other kind of object
    board = Board()
    part = Fleet((read_job(samples.job()),), is_complete=False)
    board.show(part)
    headings = "[...document.querySelectorAll('h1, h2')].map((heading) => heading.textContent)"
    async with serving_board(board) as url:
        # when a browser opens its pages
        # then a heading has no number, which would be too small
        await page.open(url)
        await page.wait_for(f"{rows_of('Jobs')}.length === 1")
        assert await page.run(headings) == ["Jobs"]
        await page.open(f"{url}#/spares")
        await page.wait_for(f"{rows_of('Owners of spares')}.length === 1")
        assert await page.run(headings) == ["Spares", "Jobs and pools", "Spare pods"]
        await page.open(f"{url}#/nodes")
        await page.wait_for(f"{rows_of('Nodes')}.length === 1")
        assert await page.run(headings) == ["Nodes"]
        await page.open(url + JOB)
        await page.wait_for_text("it did not respond for 5.0 s")
        assert {"Faults", "Pods"} <= set(await page.run(headings))
        # and has it as soon as all was read
        board.show(replace(part, is_complete=True))
        await page.wait_for_text("Faults (2)")
        await page.wait_for_text("Pods: 0 members, 0 spares, 0 ended")
        await page.open("about:blank")
    assert page.errors == []


async def test_a_missing_right_to_list_nodes_is_reported(page: Page, cluster: FakeCluster) -> None:
    cluster.forbidden = {"nodes", "events", "recoveries"}
    async with serving(cluster) as url:
        await page.open(f"{url}#/nodes")
        await page.wait_for_text("this account may not list and watch nodes")
        await page.wait_for_text("? not known")
        await page.open("about:blank")
    assert "nodes" not in cluster.watches


async def test_the_keyboard_alone_finds_and_opens_a_job(page: Page, cluster: FakeCluster, url: str) -> None:
    large_fleets.fill_fleet(cluster, 30, time.time())
    await page.open(url)
    await page.wait_for_text("Jobs (31)")
    # when a user searches, leaves the field, and chooses the second row
    await page.press("/")
    await page.type("team-b embed")
    await page.wait_for_text("Jobs (3 of 31)")
    await page.press("Tab")  # the table, whose headers follow
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        await page.press(key)
    # then its page opens
    await page.wait_for_text("/ team-b /")
    assert await page.run("location.hash") == "#/job/team-b/embed-017"


async def test_a_table_is_sorted_by_its_headers_and_filtered_by_phases(
    page: Page, cluster: FakeCluster, url: str
) -> None:
    large_fleets.fill_fleet(cluster, 17, time.time())
    await page.open(url)
    await page.wait_for_text("Jobs (18)")
    await page.run(
        "[...document.querySelectorAll('.states button')].find((b) => b.innerText.includes('Failed')).click()"
    )
    await page.wait_for_text("Jobs (1 of 18)")
    await page.run("document.querySelector('.states button[aria-pressed=true]').click()")
    await page.wait_for_text("Jobs (18)")
    await page.run("[...document.querySelectorAll('.head button')].find((b) => b.innerText === 'Step').click()")
    steps = [int(cells[7].partition(" ")[0]) for cells in await rows(page, "Jobs")]
    assert steps == sorted(steps, reverse=True)
    assert await page.run("document.querySelector('[aria-sort]').ariaSort") == "descending"


async def test_text_of_the_cluster_stays_text(page: Page, cluster: FakeCluster, url: str) -> None:
    # given a fault whose every text is HTML, and a job whose phase is a name of JavaScript
    evil = "<img src=x onerror='window.owned = true'><script>window.owned = true</script>"
    cause = {"rank": 1, "pod": evil, "node": evil, "message": evil}
    fault = samples.recovery(fault=evil, strategy="SpareSwap", reason=evil, cause=cause)
    cluster.put("trainingjobs", samples.job(phase="constructor", recoveries=[fault], lastRecovery=fault))
    # when all of it is shown
    await page.open(url + JOB)
    await page.wait_for_text("! constructor")
    await page.run("document.querySelector('summary').click()")
    # then it is there as text, and no element was made of it
    assert (await page.text()).count("<img src=x") >= 2
    assert await page.run("document.querySelectorAll('main img, main script').length") == 0
    assert await page.run("window.owned") is None


async def test_the_page_runs_no_inline_script_and_calls_no_other_server(page: Page, url: str) -> None:
    await page.open(url)
    await page.wait_for_text("Jobs (1)")
    inline = "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.owned = 1'}))"
    await page.run(inline)
    assert await page.run("window.owned") is None
    assert await page.run("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    rejected = [error for error in page.errors if "Content Security Policy" in error]
    assert len(rejected) == len(page.errors) >= 2
    page.errors.clear()


async def test_only_the_visible_rows_of_5_000_pods_are_drawn(page: Page, cluster: FakeCluster, url: str) -> None:
    large_fleets.fill_large_job(cluster, 5_000, time.time())
    await page.open(f"{url}#/job/team-a/huge")
    await page.wait_for_text("Pods: 5000 members, 2 spares, 0 ended")
    assert await page.run("document.querySelectorAll('[aria-label=Pods] .body .row').length") < 60
    assert await page.run("document.querySelector('[aria-label=Pods]').ariaRowCount") == "5003"
    # when a user jumps to the end
    await page.run("document.querySelector('[aria-label=Pods]').focus()")
    await page.press("End")
    # then the last pods are there
    await page.wait_for_text("huge-spare-1")
    assert "huge-workers-0-0" not in str(await rows(page, "Pods"))


async def test_a_browser_connects_again_after_the_dashboard_has_restarted(page: Page, cluster: FakeCluster) -> None:
    async with serving(cluster) as url:
        await page.open(url)
        await page.wait_for_text("● live")
    await page.wait_for_text("✕ not connected")
    cluster.put("trainingjobs", samples.job("other"))
    cluster.delete("trainingjobs", samples.job())
    async with serving(cluster, port=int(url.rstrip("/").rpartition(":")[2])):
        await page.wait_for_text("● live")
        await page.wait_for(f"JSON.stringify({rows_of('Jobs')}.map((cells) => cells[1])) === '[\"other\"]'")
        await page.open("about:blank")
    page.errors = [error for error in page.errors if "ERR_" not in error]


async def test_light_and_dark_follow_the_system_and_texts_have_contrast(page: Page, url: str) -> None:
    grounds = []
    for is_dark in (False, True):
        await page.look(is_dark=is_dark)
        await page.open(f"{url}?{is_dark}{JOB}")
        await page.wait_for_text("Faults (2)")
        grounds.append(await page.run("getComputedStyle(document.body).backgroundColor"))
        assert await page.run(_LOWEST_CONTRAST) >= 4.5
    assert grounds == ["rgb(255, 255, 255)", "rgb(20, 23, 26)"]


async def test_browsers_share_one_watch_of_each_kind(page: Page, cluster: FakeCluster, url: str) -> None:
    await page.open(url)
    await page.wait_for_text("Jobs (1)")
    streams = (
        "new Promise((done) => { const s = new EventSource('/events?view=fleet'); s.onmessage = () => done(true) })"
    )
    assert await page.run(f"Promise.all([{streams}, {streams}])") == [True, True]
    kinds = ["events", "hotsparepools", "injectedjobs", "nodes", "pods", "recoveries", "trainingjobs"]
    await asyncio.to_thread(cluster.wait_for_watches, len(kinds))
    assert sorted(cluster.watches) == kinds


#: The lowest contrast of a visible text and its ground, as WCAG computes it.
_LOWEST_CONTRAST = """(() => {
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parts(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const texts = [...document.querySelectorAll("body *:not(svg *)")].filter((one) =>
    one.checkVisibility() && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
  return Math.min(...texts.map((one) => {
    const [a, b] = [light(parts(getComputedStyle(one).color)), light(ground(one))].sort((a, b) => a - b);
    return (b + 0.05) / (a + 0.05);
  }));
})()"""

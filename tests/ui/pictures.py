"""`make pictures`: pictures of the dashboard for its page of the documentation, in light and dark.

A fake API server has a fleet of 120 jobs, and a job with the history of a day.
"""

import asyncio
import sys
import time

from tests.cluster.paths import CHECKOUT
from tests.ui import fleets
from tests.ui.browser import Page, browser
from tests.ui.fake_cluster import fake_cluster
from tests.ui.serving import serving

FOLDER = CHECKOUT / "docs" / "images"
WIDTH = 1200
#: By view: its address, its height, and a text that it has when it is complete.
VIEWS = {
    "fleet": ("#/jobs", 620, "Jobs (121)"),
    "job": ("#/job/team-a/llm-70b-main", 1130, "Faults (10)"),
}


async def take(page: Page, url: str) -> None:
    for name, (address, height, text) in VIEWS.items():
        for scheme in ("light", "dark"):
            await page.look(is_dark=scheme == "dark", width=WIDTH, height=height)
            await page.open("about:blank")
            await page.open(url + address)
            await page.wait_for_text(text)
            file = FOLDER / f"dashboard-{name}-{scheme}.webp"
            file.write_bytes(await page.picture(format="webp", quality=80))
            print(f"{file.relative_to(CHECKOUT)}: {file.stat().st_size // 1024} KiB")
    await page.open("about:blank")


async def main() -> None:
    now = time.time()
    with fake_cluster() as cluster:
        fleets.fill_fleet(cluster, 120, now)
        fleets.fill_story(cluster, now)
        async with serving(cluster) as url, browser() as page:
            await take(page, url)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

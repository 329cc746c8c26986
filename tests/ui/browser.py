"""Chromium without a window, driven through its DevTools protocol: a page that tests read, click and type in.

Only what the tests need: https://chromedevtools.github.io/devtools-protocol.
"""

import asyncio
import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

LIMIT_S = 100.0
POLL_S = 0.05
#: Keys that are no characters, with the codes that Chromium needs for its own actions, such as scrolling.
KEYS = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "End": 35, "Home": 36, "PageDown": 34}
#: Each main thread task of more than 50 ms, in milliseconds, since the page was opened.
OBSERVER = """
window.longTasks = [];
new PerformanceObserver((list) => list.getEntries().forEach((task) => window.longTasks.push(task.duration)))
  .observe({ type: "longtask", buffered: true });
"""


class Page:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.errors: list[str] = []  # what the page has thrown or logged as an error
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            content = json.loads(message.data)
            if "id" in content:
                self._answers.pop(content["id"]).set_result(content)
            elif content["method"] == "Runtime.exceptionThrown":
                self.errors.append(str(content["params"]["exceptionDetails"]))
            elif content["method"] == "Log.entryAdded" and content["params"]["entry"]["level"] == "error":
                self.errors.append(content["params"]["entry"]["text"])

    async def call(self, method: str, **given: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": given})
        answer = await asyncio.wait_for(self._answers[number], LIMIT_S)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        given = {"expression": script, "returnByValue": True, "awaitPromise": True}
        answer = await self.call("Runtime.evaluate", **given)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def text(self) -> str:
        """The text that a reader of the page sees."""
        found: str = await self.run("document.body ? document.body.innerText : ''")
        return found

    async def wait_for(self, script: str) -> Any:
        """The first value of the expression that counts as true."""
        deadline = asyncio.get_running_loop().time() + LIMIT_S
        while not (value := await self.run(script)):
            assert asyncio.get_running_loop().time() < deadline, (script, await self.text(), self.errors)
            await asyncio.sleep(POLL_S)
        return value

    async def wait_for_text(self, text: str) -> None:
        await self.wait_for(f"document.body?.innerText.includes({json.dumps(text)})")

    async def press(self, key: str) -> None:
        text = {"Enter": "\r"}.get(key, "" if key in KEYS else key)
        code = {"windowsVirtualKeyCode": KEYS[key]} if key in KEYS else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, **code)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    async def type(self, text: str) -> None:
        await self.call("Input.insertText", text=text)

    async def look(self, *, is_dark: bool, width: int = 1200, height: int = 800, scale: float = 1.0) -> None:
        """The color scheme of the system, and the size of the window."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)

    async def picture(self, **given: Any) -> bytes:
        """The window as it looks. given: of Page.captureScreenshot, such as its format."""
        return base64.b64decode((await self.call("Page.captureScreenshot", **given))["data"])


@asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    program = shutil.which("chromium")
    assert program, "chromium is missing: make ui installs it, or apt-get install chromium"
    folder = Path(tempfile.mkdtemp(prefix="understudy-ui-"))
    words = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    words += [
        "--remote-debugging-port=0",
        "--disable-background-networking",
        f"--user-data-dir={folder}",
        "about:blank",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)  # noqa: ASYNC220
    try:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{await _port(folder, process)}/json/list") as answer:
                (target,) = [each for each in await answer.json() if each["type"] == "page"]
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await page.call(f"{domain}.enable")
                await page.call("Page.addScriptToEvaluateOnNewDocument", source=OBSERVER)
                yield page
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


async def _port(folder: Path, process: "subprocess.Popen[bytes]") -> str:
    file = folder / "DevToolsActivePort"
    deadline = asyncio.get_running_loop().time() + LIMIT_S
    while not (file.exists() and file.read_text().strip()):
        is_late = asyncio.get_running_loop().time() > deadline
        assert process.poll() is None and not is_late, (folder / "log").read_text()  # noqa: PT018
        await asyncio.sleep(POLL_S)
    return file.read_text().splitlines()[0]

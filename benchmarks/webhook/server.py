"""The webhook's own server, with a certificate for this run. Prints its port, and serves until it is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from understudy_webhook import openssl
from understudy_webhook.serving import Serving


async def serve(folder: str, image: str) -> None:
    made = await openssl.make_certificate(["localhost"], 86400.0)
    files = {"tls.crt": made.certificate, "tls.key": made.key, "ca.crt": made.authority}
    for name, text in files.items():
        await asyncio.to_thread((Path(folder) / name).write_text, text)
    serving = Serving(image)
    serving.load(Path(folder) / "tls.crt", Path(folder) / "tls.key")
    print(await serving.listen(0), flush=True)
    await asyncio.Event().wait()

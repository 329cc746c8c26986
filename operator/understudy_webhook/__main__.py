"""Start the webhook: `python -m understudy_webhook`, with UNDERSTUDY_SIDECAR_IMAGE set.

UNDERSTUDY_CERTIFICATES is the folder with tls.crt and tls.key, which kubelets mount. UNDERSTUDY_PORT (8443) is the port
for the API server, and UNDERSTUDY_HEALTH_PORT (8080) for the kubelet. UNDERSTUDY_METRICS_PORT (none) serves GET
/metrics. This process sends no requests: its account has no token and no rights.

UNDERSTUDY_HOST_NETWORK_PORTS (FIRST-LAST) is the range of ports for pods with hostNetwork. UNDERSTUDY_SIDECAR_RUN_AS
(USER:GROUP) has the IDs with which sidecars run; an empty ID leaves the choice to the pod, its namespace or the image.

UNDERSTUDY_CLIENT_CA (PEM in base64; none) is the authority of the API server's client certificates, and
UNDERSTUDY_CLIENT_NAMES (separated by commas; any) are their names. Other callers are rejected.
"""

import asyncio
import base64
import logging
import os
import signal
import ssl
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from understudy_operator.metrics.serving import port_of, serve
from understudy_operator.plan.facts.sidecar_settings import read_sidecar_settings
from understudy_operator.runtime.probe_server import ProbeServer
from understudy_protocol import logs
from understudy_webhook.certificates import CertificateFiles
from understudy_webhook.serving import Clients, Serving, answer_probe

CLIENT_CA, CLIENT_NAMES = "UNDERSTUDY_CLIENT_CA", "UNDERSTUDY_CLIENT_NAMES"
#: The removal of this replica from the endpoints must reach all nodes before it stops accepting calls.
DRAIN_S = 3.0
log = logging.getLogger(__name__)


async def _serve(image: str, certificates: Path) -> int:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with AsyncExitStack() as stack:
        serving = Serving(
            image,
            clients=read_clients(os.environ),
            sidecar_settings=read_sidecar_settings(os.environ),
        )
        keeping = asyncio.create_task(CertificateFiles(certificates, serving).run(), name="certificate")
        probes = ProbeServer(partial(answer_probe, serving))
        await probes.listen(int(os.environ.get("UNDERSTUDY_HEALTH_PORT") or 8080))
        stack.push_async_callback(probes.close)
        if (metrics_port := port_of(os.environ)) is not None:
            metrics = await serve(serving.metrics.book.text, metrics_port)
            stack.push_async_callback(metrics.close)
        await serving.listen(int(os.environ.get("UNDERSTUDY_PORT") or 8443))
        stack.push_async_callback(serving.close)
        stopped = asyncio.create_task(ended.wait(), name="until SIGTERM")
        await asyncio.wait((stopped, keeping), return_when=asyncio.FIRST_COMPLETED)
        if keeping.done():
            log.error("the certificate is no longer renewed: %r", keeping.exception())
            stopped.cancel()
            return 1
        serving.is_stopping = True
        await asyncio.sleep(float(os.environ.get("UNDERSTUDY_DRAIN_S") or DRAIN_S))
        keeping.cancel()
    return 0


def read_clients(env: Mapping[str, str]) -> Clients | None:
    """None: answer every caller. Raises ValueError."""
    encoded = env.get(CLIENT_CA, "")
    names = frozenset(name.strip() for name in env.get(CLIENT_NAMES, "").split(",") if name.strip())
    if not encoded:
        if names:
            raise ValueError(
                f"{CLIENT_NAMES} is set, but {CLIENT_CA} is not (chart: webhook.clients.caBundle): set both, or "
                f"unset {CLIENT_NAMES}"
            )
        return None
    try:
        authority = base64.b64decode(encoded, validate=True).decode("ascii")
        ssl.create_default_context(cadata=authority)
    except (ValueError, ssl.SSLError) as error:
        raise ValueError(
            f"{CLIENT_CA} is not a certificate: {error}; set it to PEM in base64 (chart: webhook.clients.caBundle)"
        ) from None
    return Clients(authority, names)


def main() -> int:
    try:
        logs.configure(os.environ, "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s")
    except ValueError as error:
        logging.error("%s", error)
        return 2
    image, certificates = os.environ.get("UNDERSTUDY_SIDECAR_IMAGE"), os.environ.get("UNDERSTUDY_CERTIFICATES")
    if not image:
        log.error("UNDERSTUDY_SIDECAR_IMAGE is not set: set it to the image of the sidecar (chart: sidecar.image)")
        return 2
    if not certificates:
        log.error("UNDERSTUDY_CERTIFICATES is not set: set it to the folder with tls.crt and tls.key")
        return 2
    try:
        port_of(os.environ)
        read_clients(os.environ)
        read_sidecar_settings(os.environ)
    except ValueError as error:
        log.error("%s", error)
        return 2
    return asyncio.run(_serve(image, Path(certificates)))


if __name__ == "__main__":
    sys.exit(main())

"""Start the webhook: `python -m understudy_webhook`, with UNDERSTUDY_SIDECAR_IMAGE set.

UNDERSTUDY_CERTIFICATES is a folder with tls.crt and tls.key that somebody else keeps, or `self-made`; then
UNDERSTUDY_WEBHOOK (namespace/name) names the Service, the Secret (<name>-tls) and both webhook configurations, and
UNDERSTUDY_SCRATCH a folder in memory. UNDERSTUDY_PORT (8443) takes the API server's calls, and UNDERSTUDY_HEALTH_PORT
(8080) the kubelet's; UNDERSTUDY_METRICS_PORT (none) is where GET /metrics answers.
"""

import asyncio
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from kubernetes.aio import client, config

from understudy_operator.apply.api import Api
from understudy_operator.metrics.serving import port_of, serve
from understudy_protocol import logs
from understudy_webhook.certificates import Files, SelfMade, SelfMadeSettings
from understudy_webhook.serving import Serving, listen_for_probes

SELF_MADE = "self-made"
#: Endpoints without this replica have to arrive everywhere before it takes no more calls.
DRAIN_S = 3.0
log = logging.getLogger(__name__)


async def _serve(image: str, certificates: str) -> int:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with AsyncExitStack() as stack:
        serving = Serving(image, log_format=logs.read_format(os.environ))
        keeper = await _keeper(certificates, serving, stack)
        keeping = asyncio.create_task(keeper.run(), name="certificate")
        probes = await listen_for_probes(serving, int(os.environ.get("UNDERSTUDY_HEALTH_PORT") or 8080))
        stack.push_async_callback(probes.cleanup)
        if (metrics_port := port_of(os.environ)) is not None:
            metrics = await serve(serving.metrics.book.text, metrics_port)
            stack.push_async_callback(metrics.cleanup)
        await serving.listen(int(os.environ.get("UNDERSTUDY_PORT") or 8443))
        stack.push_async_callback(serving.close)
        asked = asyncio.create_task(ended.wait(), name="until SIGTERM")
        await asyncio.wait((asked, keeping), return_when=asyncio.FIRST_COMPLETED)
        if keeping.done():
            log.error("the certificate is not looked after any more: %r", keeping.exception())
            asked.cancel()
            return 1
        serving.leaves = True
        await asyncio.sleep(float(os.environ.get("UNDERSTUDY_DRAIN_S") or DRAIN_S))
        keeping.cancel()
    return 0


async def _keeper(certificates: str, serving: Serving, stack: AsyncExitStack) -> Files | SelfMade:
    if certificates != SELF_MADE:
        return Files(Path(certificates), serving)
    namespace, _, name = os.environ["UNDERSTUDY_WEBHOOK"].partition("/")
    await config.load_config()  # type: ignore[no-untyped-call]
    api_client = client.ApiClient()
    stack.push_async_callback(api_client.close)
    kinds = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
    settings = SelfMadeSettings(
        namespace,
        f"{name}-tls",
        (f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local", f"{name}.{namespace}"),
        tuple(f"{kind}/{name}" for kind in kinds),
        Path(os.environ["UNDERSTUDY_SCRATCH"]),
    )
    return SelfMade(settings, Api(api_client), serving)


def main() -> int:
    try:
        logs.configure(os.environ, "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s")
    except ValueError as error:
        logging.error("%s", error)
        return 2
    image, certificates = os.environ.get("UNDERSTUDY_SIDECAR_IMAGE"), os.environ.get("UNDERSTUDY_CERTIFICATES")
    if not image:
        log.error("UNDERSTUDY_SIDECAR_IMAGE is not set: it names the image of the sidecar (chart: sidecar.image)")
        return 2
    if not certificates:
        log.error("UNDERSTUDY_CERTIFICATES is not set: it names a folder with tls.crt and tls.key, or is %s", SELF_MADE)
        return 2
    if certificates == SELF_MADE:
        where, scratch = os.environ.get("UNDERSTUDY_WEBHOOK", ""), os.environ.get("UNDERSTUDY_SCRATCH")
        if not all(where.partition("/")) or not scratch:
            log.error("self-made certificates need UNDERSTUDY_WEBHOOK=namespace/name and UNDERSTUDY_SCRATCH=folder")
            return 2
    try:
        port_of(os.environ)
    except ValueError as error:
        log.error("%s", error)
        return 2
    return asyncio.run(_serve(image, certificates))


if __name__ == "__main__":
    sys.exit(main())

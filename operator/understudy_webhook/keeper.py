"""Renew the webhook's self-signed certificate: `python -m understudy_webhook.keeper`. This process serves nothing.

UNDERSTUDY_WEBHOOK (namespace/name) names the Service and both webhook configurations; the Secret is <name>-tls. TMPDIR
is a folder in memory, in which openssl writes keys.

Rules: the webhook serves the Secret's certificate, which kubelets mount, and has no rights on the API server. The API
server trusts a new authority, beside the previous one, SETTLE_S before the Secret has the new certificate. If a keeper
ends in between, the served certificate has not changed, and the next keeper creates another one. If two keepers renew
at the same time, the Secret's resourceVersion lets one win. A Secret that cert-manager manages is never written.
"""

import asyncio
import base64
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kubernetes.aio import client, config

from understudy_operator.runtime.api import API_FAILURES, Api, ApiError
from understudy_protocol import logs
from understudy_webhook import openssl
from understudy_webhook.openssl import OpensslFailed
from understudy_webhook.rotation import (
    BUNDLE,
    CERTIFICATE,
    KEY,
    LIFE_S,
    CertificateSet,
    is_renewal_due,
    other_keeper,
    with_bundle,
)

EVERY_S = 5.0
RETRY_S = 1.0
#: API servers receive a changed webhook configuration through a watch.
SETTLE_S = 5.0
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
log = logging.getLogger(__name__)


class ManagedByAnother(Exception):
    """Another program writes the Secret."""


@dataclass(frozen=True)
class KeeperSettings:
    namespace: str
    secret: str
    names: Sequence[str]  # DNS names of the Service
    configurations: Sequence[str]  # mutatingwebhookconfigurations/NAME, validatingwebhookconfigurations/NAME
    life_s: float = LIFE_S
    every_s: float = EVERY_S
    settle_s: float = SETTLE_S


def settings_for(webhook: str) -> KeeperSettings:
    """webhook: namespace/name. Raises ValueError."""
    namespace, _, name = webhook.partition("/")
    if not namespace or not name:
        raise ValueError(f"UNDERSTUDY_WEBHOOK is {webhook!r}: set it to the webhook's namespace/name")
    kinds = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
    return KeeperSettings(
        namespace,
        f"{name}-tls",
        (f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local", f"{name}.{namespace}"),
        tuple(f"{kind}/{name}" for kind in kinds),
    )


class CertificateKeeper:
    def __init__(self, settings: KeeperSettings, api: Api, now: Callable[[], float] = time.time) -> None:
        self._settings, self._api, self._now = settings, api, now
        self._path = f"/api/v1/namespaces/{settings.namespace}/secrets"

    async def run(self) -> None:
        while True:
            try:
                await self.run_once()
            except (*API_FAILURES, OpensslFailed, ManagedByAnother) as error:
                log.warning("the certificate could not be checked or renewed; retrying: %r", error)
                await asyncio.sleep(RETRY_S)
                continue
            await asyncio.sleep(self._settings.every_s)

    async def run_once(self) -> None:
        """Renew the certificate if that is due, and make the API server trust it."""
        raw = await self._found()
        if raw is not None and (keeper := other_keeper(raw)):
            raise ManagedByAnother(
                f"Secret {self._settings.secret} is managed by {keeper}: delete it, or let {keeper} manage the "
                "certificate (chart: webhook.certificates.mode)"
            )
        current = None if raw is None else await _read(raw)
        if is_renewal_due(current, self._now(), self._settings.life_s):
            await self._renew(raw, current)
        else:
            assert raw is not None
            await self._trust(raw["data"][BUNDLE])

    async def _renew(self, raw: dict[str, Any] | None, previous: CertificateSet | None) -> None:
        renewed = await openssl.make_certificate(self._settings.names, self._settings.life_s)
        data = {CERTIFICATE: renewed.certificate, KEY: renewed.key, BUNDLE: renewed.bundle(previous)}
        encoded = {name: base64.b64encode(text.encode()).decode() for name, text in data.items()}
        await self._trust(encoded[BUNDLE])
        await asyncio.sleep(self._settings.settle_s)
        try:
            if raw is not None:
                await self._api.replace(f"{self._path}/{self._settings.secret}", {**raw, "data": encoded})
            else:
                await self._api.create(self._path, self._manifest(encoded))
        except ApiError as error:
            if error.status != 409:
                raise
            log.info("another process has renewed the certificate at the same time")
            await self.run_once()
        else:
            log.info("made a certificate for %s", self._settings.names[0])

    def _manifest(self, data: dict[str, str]) -> dict[str, Any]:
        metadata = {"name": self._settings.secret, "namespace": self._settings.namespace}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/tls", "data": data}

    async def _found(self) -> dict[str, Any] | None:
        try:
            return await self._api.get(f"{self._path}/{self._settings.secret}")
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    async def _trust(self, bundle: str) -> None:
        for name in self._settings.configurations:
            path = f"{_CONFIGURATIONS}/{name}"
            try:
                changed = with_bundle(await self._api.get(path), bundle)
                if changed is not None:
                    await self._api.replace(path, changed)
                    log.info("%s trusts the newest certificate", name)
            except ApiError as error:
                if error.status != 404:  # 404: it is not installed
                    raise


async def _read(raw: dict[str, Any]) -> CertificateSet | None:
    """The certificate in a Secret; None if it cannot be served."""
    data = raw.get("data") or {}
    try:
        certificate, key, bundle = (base64.b64decode(data[name]).decode() for name in (CERTIFICATE, KEY, BUNDLE))
        return CertificateSet(certificate, key, bundle, await openssl.ends_at(certificate))
    except (KeyError, ValueError, OpensslFailed) as error:
        log.warning("Secret %s has no certificate: %r; a new one replaces it", raw["metadata"]["name"], error)
        return None


async def _keep(settings: KeeperSettings) -> None:
    """Run until SIGTERM."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await config.load_config()  # type: ignore[no-untyped-call]
    async with client.ApiClient() as api_client, asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(CertificateKeeper(settings, Api(api_client)).run(), name="certificate")
        await ended.wait()
        keeping.cancel()


def main() -> int:
    try:
        logs.configure(os.environ, "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s")
        settings = settings_for(os.environ.get("UNDERSTUDY_WEBHOOK", ""))
    except ValueError as error:
        logging.error("%s", error)
        return 2
    asyncio.run(_keep(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())

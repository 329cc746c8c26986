"""The certificate that is served: from files that somebody else keeps, or self-made and kept in a Secret.

Rules: neither needs a restart. Files (cert-manager's, or one's own, in a mounted Secret) are looked at every EVERY_S
and served as soon as they have changed; a pair that does not fit (half of it is written) is tried again, and the
former one served meanwhile. Of a self-made one every replica keeps the Secret, the trust of the API server and its own
server in line, in that order; who is first to renew wins, by the Secret's resourceVersion, and the others take what
they find. A new one is served from the second look on at which the API server is told to trust it: API servers hear
of that a moment later. A Secret that cert-manager keeps is never written.
"""

import asyncio
import base64
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy_operator.apply.api import TROUBLE, Api, ApiError
from understudy_webhook import openssl
from understudy_webhook.openssl import OpensslFailed
from understudy_webhook.rotation import BUNDLE, CERTIFICATE, KEY, LIFE_S, Made, is_due, other_keeper, with_bundle
from understudy_webhook.serving import Serving

EVERY_S = 5.0
RETRY_S = 1.0
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
log = logging.getLogger(__name__)


class KeptByAnother(Exception):
    """The Secret is somebody else's to write."""


class Files:
    """A certificate that somebody else keeps in a folder."""

    def __init__(self, folder: Path, serving: Serving, every_s: float = EVERY_S) -> None:
        self._folder, self._serving, self._every_s = folder, serving, every_s
        self._served: tuple[bytes, bytes] | None = None

    async def run(self) -> None:
        while True:
            if await asyncio.to_thread(self._look):
                await self._tell_end()
            await asyncio.sleep(self._every_s)

    async def _tell_end(self) -> None:
        assert self._served is not None, "one is served"
        try:
            self._serving.metrics.certificate_ends(await openssl.ends_at(self._served[0].decode()))
        except (OpensslFailed, ValueError) as error:
            log.warning("when the certificate in %s ends is not known: %s", self._folder, error)

    def _look(self) -> bool:
        """Whether another one is served from now on."""
        certificate, key = self._folder / CERTIFICATE, self._folder / KEY
        try:
            found = (certificate.read_bytes(), key.read_bytes())
            if found == self._served:
                return False
            self._serving.load(certificate, key)
        except OSError as error:
            log.warning("the certificate in %s cannot be served yet: %s", self._folder, error)
            return False
        self._served = found
        log.info("serves the certificate in %s", self._folder)
        return True


@dataclass(frozen=True)
class SelfMadeSettings:
    namespace: str
    secret: str
    names: Sequence[str]  # DNS names of the Service
    configurations: Sequence[str]  # mutatingwebhookconfigurations/NAME, validatingwebhookconfigurations/NAME
    folder: Path  # in memory: the server reads its key from a file
    life_s: float = LIFE_S
    every_s: float = EVERY_S


class SelfMade:
    def __init__(
        self, settings: SelfMadeSettings, api: Api, serving: Serving, now: Callable[[], float] = time.time
    ) -> None:
        self._settings, self._api, self._serving, self._now = settings, api, serving, now
        self._path = f"/api/v1/namespaces/{settings.namespace}/secrets"
        self._served = ""  # the certificate
        self._looked_at = ""  # the bundle of the look before

    async def run(self) -> None:
        while True:
            try:
                await self.once()
            except (*TROUBLE, OpensslFailed, KeptByAnother) as error:
                log.warning("the certificate could not be looked after, which is tried again: %r", error)
                await asyncio.sleep(RETRY_S)
                continue
            await asyncio.sleep(self._settings.every_s)

    async def once(self) -> None:
        """Renew it if that is due; have it trusted; serve it."""
        raw = await self._found()
        if raw is not None and (keeper := other_keeper(raw)):
            raise KeptByAnother(
                f"Secret {self._settings.secret} is kept by {keeper}: delete it, or let {keeper} keep it"
            )
        made = None if raw is None else await _read(raw)
        if is_due(made, self._now(), self._settings.life_s):
            raw = await self._renew(raw, made)
            if raw is None:
                return  # another replica was faster: the next look finds what it made
        assert raw is not None
        bundle = raw["data"][BUNDLE]
        changed = await self._trust(bundle)
        is_known = bundle == self._looked_at and not changed
        self._looked_at = bundle
        if is_known or not self._served:
            await self._serve(raw["data"])  # else at the next look: by then the API server has heard of it

    async def _renew(self, raw: dict[str, Any] | None, former: Made | None) -> dict[str, Any] | None:
        made = await openssl.make(self._settings.names, self._settings.life_s)
        data = {CERTIFICATE: made.certificate, KEY: made.key, BUNDLE: made.bundle(former)}
        encoded = {name: base64.b64encode(text.encode()).decode() for name, text in data.items()}
        try:
            if raw is not None:
                told = await self._api.replace(f"{self._path}/{self._settings.secret}", {**raw, "data": encoded})
            else:
                told = await self._api.create(self._path, self._manifest(encoded))
        except ApiError as error:
            if error.status == 409:
                return None
            raise
        log.info("made a certificate for %s", self._settings.names[0])
        return told

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

    async def _trust(self, bundle: str) -> bool:
        """Whether anything had to be changed for it."""
        any_changed = False
        for name in self._settings.configurations:
            path = f"{_CONFIGURATIONS}/{name}"
            try:
                changed = with_bundle(await self._api.get(path), bundle)
                if changed is not None:
                    await self._api.replace(path, changed)
                    any_changed = True
                    log.info("%s trusts the newest certificate", name)
            except ApiError as error:
                if error.status == 404:
                    continue  # not installed: nobody calls
                raise  # 409: another replica has just done the same, and the next look finds it done
        return any_changed

    async def _serve(self, data: dict[str, str]) -> None:
        if data[CERTIFICATE] == self._served:
            return
        ends_at = await openssl.ends_at(base64.b64decode(data[CERTIFICATE]).decode())
        await asyncio.to_thread(self._load, data)
        self._served = data[CERTIFICATE]
        self._serving.metrics.certificate_ends(ends_at)

    def _load(self, data: dict[str, str]) -> None:
        for name in (CERTIFICATE, KEY):
            file = self._settings.folder / name
            file.touch(mode=0o600)
            file.write_bytes(base64.b64decode(data[name]))
        self._serving.load(self._settings.folder / CERTIFICATE, self._settings.folder / KEY)
        log.info("serves the newest certificate")


async def _read(raw: dict[str, Any]) -> Made | None:
    """What a Secret has; None where it has no certificate that could be served."""
    data = raw.get("data") or {}
    try:
        certificate, key, bundle = (base64.b64decode(data[name]).decode() for name in (CERTIFICATE, KEY, BUNDLE))
        return Made(certificate, key, bundle, await openssl.ends_at(certificate))
    except (KeyError, ValueError, OpensslFailed) as error:
        log.warning("Secret %s has no certificate: %r; it is made anew", raw["metadata"]["name"], error)
        return None

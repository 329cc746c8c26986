"""Loads the served certificate from files in a folder, which kubelets or other programs write.

Rules: a renewed certificate needs no restart. The folder is read every EVERY_S, and new connections get a changed pair.
A pair whose parts do not match (half of it is written) is read again, and the previous one stays meanwhile. keeper.py
writes self-signed certificates; cert-manager or the administrator write all others.
"""

import asyncio
import logging
from pathlib import Path

from understudy_webhook import openssl
from understudy_webhook.openssl import OpensslFailed
from understudy_webhook.rotation import CERTIFICATE, KEY
from understudy_webhook.serving import Serving

EVERY_S = 5.0
log = logging.getLogger(__name__)


class CertificateFiles:
    """A certificate that another program writes into a folder."""

    def __init__(self, folder: Path, serving: Serving, every_s: float = EVERY_S) -> None:
        self._folder, self._serving, self._every_s = folder, serving, every_s
        self._served: tuple[bytes, bytes] | None = None

    async def run(self) -> None:
        while True:
            if await asyncio.to_thread(self._load_if_changed):
                await self._report_expiry()
            await asyncio.sleep(self._every_s)

    async def _report_expiry(self) -> None:
        assert self._served is not None, "one is served"
        try:
            self._serving.metrics.certificate_ends(await openssl.ends_at(self._served[0].decode()))
        except (OpensslFailed, ValueError) as error:
            log.warning("could not find out when the certificate in %s expires: %s", self._folder, error)

    def _load_if_changed(self) -> bool:
        """Returns whether a new certificate is served from now on."""
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

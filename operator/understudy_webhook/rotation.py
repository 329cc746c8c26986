"""When a self-signed certificate is renewed, and which authorities the API server trusts meanwhile. Pure.

Rules: each certificate has a separate authority, whose key is deleted, so an attacker could only steal the key in use.
A certificate is renewed when a third of its life is left. The API server's bundle has the new authority and the
previous one, so that replicas with the previous certificate stay trusted. The bundle is written before the new
certificate is served, and only into a configuration that the chart has annotated as managed by the webhook: after a
change of mode, a replica of the previous mode runs for a while, and must not replace the bundle of the new mode.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LIFE_S = 90 * 24 * 3600.0
RENEWED_AT = 1 / 3  # the part of its life that is left
CERTIFICATE, KEY, BUNDLE = "tls.crt", "tls.key", "ca.crt"
CERT_MANAGER = "cert-manager.io/certificate-name"  # an annotation: the Secret's Certificate
#: An annotation of webhook configurations, and the chart's mode of certificates that permits to write them.
CERTIFICATE_MODE, SELF_SIGNED = "understudy.dev/certificate-mode", "SelfSigned"
_END = "-----END CERTIFICATE-----"

Raw = Mapping[str, Any]


@dataclass(frozen=True)
class CertificateSet:
    """A certificate with its key and its authority, as PEM, and its expiry (Unix time)."""

    certificate: str
    key: str
    authority: str
    until: float

    def bundle(self, previous: "CertificateSet | None") -> str:
        if previous is None:
            return self.authority
        return f"{self.authority.strip()}\n{first_of(previous.authority)}\n"


def is_renewal_due(current: CertificateSet | None, now: float, life_s: float = LIFE_S) -> bool:
    """Whether a new certificate is needed."""
    return current is None or current.until - now < life_s * RENEWED_AT


def other_keeper(secret: Raw) -> str:
    """The program that writes this Secret, if it is not the webhook."""
    annotations = secret["metadata"].get("annotations") or {}
    return f"cert-manager (Certificate {annotations[CERT_MANAGER]})" if CERT_MANAGER in annotations else ""


def first_of(bundle: str) -> str:
    """The first certificate of several."""
    return bundle[: bundle.index(_END) + len(_END)].strip() if _END in bundle else bundle.strip()


def with_bundle(configuration: Raw, bundle_base64: str) -> dict[str, Any] | None:
    """The webhook configuration with that caBundle in each of its webhooks.

    None if it is there already, or if the webhook does not manage the configuration.
    """
    annotations = configuration["metadata"].get("annotations") or {}
    if annotations.get(CERTIFICATE_MODE) != SELF_SIGNED:
        return None
    webhooks = configuration.get("webhooks", [])
    if all(webhook["clientConfig"].get("caBundle") == bundle_base64 for webhook in webhooks):
        return None
    changed = [{**x, "clientConfig": {**x["clientConfig"], "caBundle": bundle_base64}} for x in webhooks]
    return {**configuration, "webhooks": changed}

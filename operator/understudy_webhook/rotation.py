"""When a self-made certificate is made anew, and what the API server is to trust meanwhile. Pure.

Rules: each certificate has an authority of its own, whose key is thrown away: there is nothing to steal but the key in
use. It is renewed once a third of its life is left. The bundle that the API server trusts has the new authority and the
former one, so that replicas which still serve the former certificate are believed; it is written before the new
certificate is served. It is written only into a configuration that the chart has annotated as the webhook's to keep:
after a change of mode, a replica of the former mode runs for a while, and must not replace the trust in the new one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LIFE_S = 90 * 24 * 3600.0
RENEWED_AT = 1 / 3  # of its life left
CERTIFICATE, KEY, BUNDLE = "tls.crt", "tls.key", "ca.crt"
CERT_MANAGER = "cert-manager.io/certificate-name"  # an annotation: which Certificate a Secret is of
KEEPER, SELF_MADE = "understudy.dev/certificates", "SelfMade"  # an annotation: the chart's mode of certificates
_END = "-----END CERTIFICATE-----"

Raw = Mapping[str, Any]


@dataclass(frozen=True)
class CertificateSet:
    """A certificate with its key and its authority, as PEM, and when it ends (Unix time)."""

    certificate: str
    key: str
    authority: str
    until: float

    def bundle(self, previous: "CertificateSet | None") -> str:
        if previous is None:
            return self.authority
        return f"{self.authority.strip()}\n{first_of(previous.authority)}\n"


def is_renewal_due(current: CertificateSet | None, now: float, life_s: float = LIFE_S) -> bool:
    """Whether another one is to be made."""
    return current is None or current.until - now < life_s * RENEWED_AT


def other_keeper(secret: Raw) -> str:
    """Who writes this Secret, if it is not the webhook."""
    annotations = secret["metadata"].get("annotations") or {}
    return f"cert-manager (Certificate {annotations[CERT_MANAGER]})" if CERT_MANAGER in annotations else ""


def first_of(bundle: str) -> str:
    """The first certificate of several."""
    return bundle[: bundle.index(_END) + len(_END)].strip() if _END in bundle else bundle.strip()


def with_bundle(configuration: Raw, bundle_base64: str) -> dict[str, Any] | None:
    """The webhook configuration with that caBundle in each of its webhooks.

    None where it has it already, and where another than the webhook keeps it.
    """
    annotations = configuration["metadata"].get("annotations") or {}
    if annotations.get(KEEPER) != SELF_MADE:
        return None
    webhooks = configuration.get("webhooks", [])
    if all(webhook["clientConfig"].get("caBundle") == bundle_base64 for webhook in webhooks):
        return None
    changed = [{**x, "clientConfig": {**x["clientConfig"], "caBundle": bundle_base64}} for x in webhooks]
    return {**configuration, "webhooks": changed}

"""A fake cert-manager, as far as the chart relies on it: openssl issues the certificates of its kinds.

It follows cert-manager's documentation. tests/integration/test_chart_applied.py compares the chart's objects with
cert-manager's CRDs; the fake has not been compared with cert-manager itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from understudy_webhook.openssl import run

Raw = dict[str, Any]
Secret = Mapping[str, str]
INJECTED_FROM = "cert-manager.io/inject-ca-from"
KEY_USAGES = {
    "digital signature": "digitalSignature",
    "key encipherment": "keyEncipherment",
    "cert sign": "keyCertSign",
}
EXTENDED = {"server auth": "serverAuth"}


@dataclass
class CertManager:
    """Keeps one Secret for each Certificate, and recreates it on request."""

    items: list[Raw]
    folder: Path
    secrets: dict[str, Secret] = field(default_factory=dict)

    async def issue(self, name: str) -> Secret:
        """The Certificate of that name. Creates the authority that it needs first, if there is none yet."""
        spec = self._of("Certificate", name)["spec"]
        issuer = self._of(spec["issuerRef"]["kind"], spec["issuerRef"]["name"])["spec"]
        authority: Secret | None = None
        if "ca" in issuer:
            wanted = issuer["ca"]["secretName"]
            if wanted not in self.secrets:
                (above,) = [x for x in self._all("Certificate") if x["spec"]["secretName"] == wanted]
                await self.issue(above["metadata"]["name"])
            authority = self.secrets[wanted]
        else:
            assert issuer == {"selfSigned": {}}
        secret = await self._sign(spec, authority)
        self.secrets[spec["secretName"]] = secret
        return secret

    def bundle(self, configuration: Raw) -> str:
        """The CA bundle that is injected into a webhook configuration."""
        namespace, _, name = configuration["metadata"]["annotations"][INJECTED_FROM].partition("/")
        certificate = self._of("Certificate", name)
        assert certificate["metadata"]["namespace"] == namespace
        return self.secrets[certificate["spec"]["secretName"]]["ca.crt"]

    def _all(self, kind: str) -> list[Raw]:
        return [item for item in self.items if item["kind"] == kind]

    def _of(self, kind: str, name: str) -> Raw:
        (found,) = [item for item in self._all(kind) if item["metadata"]["name"] == name]
        return found

    async def _sign(self, spec: Raw, authority: Secret | None) -> Secret:
        previous = self.secrets.get(spec["secretName"])
        key, request, extensions, certificate = (self.folder / f"{i}" for i in ("key", "request", "extensions", "made"))
        if previous is not None and spec["privateKey"]["rotationPolicy"] == "Never":
            key.write_text(previous["tls.key"])
        else:
            await run("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key))
        extensions.write_text("\n".join(_extensions(spec)) + "\n")
        subject = f"/CN={spec['commonName']}" if "commonName" in spec else "/"
        await run("req", "-new", "-key", str(key), "-subj", subject, "-out", str(request))
        signer = ["-signkey", str(key)]
        if authority is not None:
            for name in ("tls.crt", "tls.key"):
                (self.folder / name).write_text(authority[name])
            signer = ["-CA", str(self.folder / "tls.crt"), "-CAkey", str(self.folder / "tls.key"), "-CAcreateserial"]
        made = ("-in", str(request), "-extfile", str(extensions), "-days", "90", "-out", str(certificate))
        await run("x509", "-req", *signer, *made)
        signed_by = certificate.read_text() if authority is None else authority["tls.crt"]
        return {"tls.crt": certificate.read_text(), "tls.key": key.read_text(), "ca.crt": signed_by}


def _extensions(spec: Raw) -> list[str]:
    lines = [f"basicConstraints=critical,CA:{'TRUE' if spec.get('isCA') else 'FALSE'}"]
    lines.append("keyUsage=critical," + ",".join(KEY_USAGES[x] for x in spec["usages"] if x in KEY_USAGES))
    if extended := [EXTENDED[usage] for usage in spec["usages"] if usage in EXTENDED]:
        lines.append("extendedKeyUsage=" + ",".join(extended))
    if "dnsNames" in spec:
        lines.append("subjectAltName=critical," + ",".join(f"DNS:{name}" for name in spec["dnsNames"]))
    return lines


class Mounted:
    """A Secret's volume in one pod, as a kubelet writes it: all files change at once, by one rename."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._versions = folder, 0
        folder.mkdir()

    def write(self, secret: Secret) -> None:
        self._versions += 1
        version = self.folder / f"..{self._versions}"
        version.mkdir()
        for name, text in secret.items():
            (version / name).write_text(text)
            link = self.folder / name
            if not link.is_symlink():
                link.symlink_to(Path("..data") / name)
        newest = self.folder / "..data_tmp"
        newest.symlink_to(version.name)
        newest.rename(self.folder / "..data")

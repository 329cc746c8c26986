"""Creates certificates with the program `openssl`, which every image with CA certificates has. No library is needed."""

import asyncio
import calendar
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from understudy_webhook.rotation import CertificateSet

LIMIT_S = 30.0
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class OpensslFailed(Exception):
    """The program is missing, or has failed with this message."""


async def make_certificate(names: Sequence[str], life_s: float) -> CertificateSet:
    """A certificate for these DNS names, from a new authority whose key is deleted. Raises OpensslFailed."""
    with tempfile.TemporaryDirectory() as folder:
        return await _make(Path(folder), names, life_s)


async def _make(folder: Path, names: Sequence[str], life_s: float) -> CertificateSet:
    days = str(max(1, int(life_s // 86400)))
    files = {name: str(folder / name) for name in ("ca.crt", "ca.key", "tls.crt", "tls.key", "tls.csr", "extensions")}
    extensions = [
        "basicConstraints=critical,CA:FALSE",
        "keyUsage=critical,digitalSignature",
        "extendedKeyUsage=serverAuth",
        "subjectAltName=" + ",".join(f"DNS:{name}" for name in names),
    ]
    await asyncio.to_thread(Path(files["extensions"]).write_text, "\n".join(extensions) + "\n")
    # The number in the subject distinguishes successive authorities.
    authority = ("-subj", f"/CN=understudy-webhook-ca-{time.time_ns()}", "-days", days)
    await run("req", "-x509", *_CURVE, "-keyout", files["ca.key"], *authority, "-out", files["ca.crt"])
    subject = ("-subj", f"/CN={names[0][:64]}")
    await run("req", "-new", *_CURVE, "-keyout", files["tls.key"], *subject, "-out", files["tls.csr"])
    signed_by = ("-CA", files["ca.crt"], "-CAkey", files["ca.key"], "-CAcreateserial", "-days", days)
    files_of_request = ("-in", files["tls.csr"], "-extfile", files["extensions"], "-out", files["tls.crt"])
    await run("x509", "-req", *signed_by, *files_of_request)
    certificate, key, authority_pem = [
        await asyncio.to_thread(Path(files[name]).read_text) for name in ("tls.crt", "tls.key", "ca.crt")
    ]
    return CertificateSet(certificate, key, authority_pem, await ends_at(certificate))


async def ends_at(certificate: str) -> float:
    """Raises OpensslFailed, also if it is not a certificate."""
    output = await run("x509", "-noout", "-enddate", stdin=certificate)
    return parse_end(output)


def parse_end(output: str) -> float:
    """Reads `notAfter=Nov 21 23:26:06 2026 GMT`."""
    return float(calendar.timegm(time.strptime(output.strip().removeprefix("notAfter="), "%b %d %H:%M:%S %Y %Z")))


async def run(*words: str, stdin: str = "") -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            "openssl",
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.environ.get("PATH", os.defpath)},
        )
    except OSError as error:
        raise OpensslFailed(
            f"openssl cannot be run: {error}; use an image that has it, or another mode of webhook.certificates"
        ) from error
    try:
        async with asyncio.timeout(LIMIT_S):
            out, err = await process.communicate(stdin.encode())
    except (TimeoutError, asyncio.CancelledError) as error:
        process.kill()
        await process.communicate()
        if isinstance(error, asyncio.CancelledError):
            raise
        raise OpensslFailed(f"openssl {words[0]} took more than {LIMIT_S:g} s") from None
    if process.returncode != 0:
        raise OpensslFailed(
            f"openssl {words[0]} ended with {process.returncode}: {err.decode(errors='replace')[-500:]}"
        )
    return out.decode()

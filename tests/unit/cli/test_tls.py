"""Certificates of the API server and of the client, with real TLS connections."""

import ssl
import subprocess
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.cli.server import Answer, scripted
from understudy_cli.command_errors import NoAnswer

VERSION = {"/version": [Answer({"major": "1"})]}


@dataclass(frozen=True)
class Pair:
    """A certificate that is its own authority, and its key."""

    certificate: Path
    key: Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


def pair(folder: Path, name: str, names: str) -> Pair:
    made = Pair(folder / f"{name}.crt", folder / f"{name}.key")
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    words += ["-subj", f"/CN={name}", "-addext", f"subjectAltName={names}", "-keyout", str(made.key)]
    subprocess.run([*words, "-out", str(made.certificate)], check=True, capture_output=True)
    return made


@pytest.fixture(scope="module")
def by_address(folder: Path) -> Pair:
    return pair(folder, "by-address", "IP:127.0.0.1")


@pytest.fixture(scope="module")
def by_name(folder: Path) -> Pair:
    return pair(folder, "by-name", "DNS:kubernetes")


def serving(server: Pair, client: Pair | None = None) -> ssl.SSLContext:
    """client: the only client whose certificate the server accepts; None: it asks for none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    if client is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client.certificate)
    return context


def test_the_authority_of_the_kubeconfig_is_trusted(by_address: Pair) -> None:
    with scripted(VERSION, serving(by_address)) as server:
        assert server.api(authority=by_address.certificate).get("/version") == {"major": "1"}


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_the_comments_of_a_bundle_may_have_any_characters(by_address: Pair, encoding: str) -> None:
    bundle = "# Autorit\u00e9 de certification\n".encode(encoding) + by_address.certificate.read_bytes()
    with scripted(VERSION, serving(by_address)) as server:
        assert server.api(authority=bundle).get("/version") == {"major": "1"}


def test_another_authority_is_not_trusted_and_the_message_names_the_fix(by_address: Pair, by_name: Pair) -> None:
    with scripted(VERSION, serving(by_address)) as server, pytest.raises(NoAnswer) as raised:
        server.api(authority=by_name.certificate).get("/version")
    assert "is not trusted" in str(raised.value)
    assert "get a new kubeconfig" in str(raised.value)


def test_a_certificate_for_another_name_needs_the_name_of_the_kubeconfig(by_name: Pair) -> None:
    with scripted(VERSION, serving(by_name)) as server:
        with pytest.raises(NoAnswer, match="is not trusted"):
            server.api(authority=by_name.certificate).get("/version")
        named = server.api(authority=by_name.certificate, server_name="kubernetes")
        assert named.get("/version") == {"major": "1"}


def test_a_user_may_skip_the_check_without_a_warning(by_address: Pair) -> None:
    with warnings.catch_warnings(record=True) as seen, scripted(VERSION, serving(by_address)) as server:
        assert server.api(verify=False).get("/version") == {"major": "1"}
    assert seen == []


def test_the_client_shows_its_certificate_and_leaves_no_file_with_its_key(
    by_address: Pair, by_name: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a server that accepts one client
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = {"certificate": by_name.certificate.read_bytes(), "key": by_name.key}
    with scripted(VERSION, serving(by_address, client=by_name)) as server:
        # when that client calls, and one without a certificate
        assert server.api(authority=by_address.certificate, **mine).get("/version") == {"major": "1"}
        with pytest.raises(NoAnswer, match="does not respond"):
            server.api(authority=by_address.certificate).get("/version")
    # then the key was not left in a file
    assert list(tmp_path.iterdir()) == []

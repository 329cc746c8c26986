"""Finds the kubeconfig, and gets a token or a client certificate for each connection."""

import base64
import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from understudy_cli import fields
from understudy_cli.command_errors import NoAnswer, WrongCall
from understudy_cli.kubeconfig import SERVICE_ACCOUNT, Access, ConfigFile, Exec, in_cluster, read_access
from understudy_cli.untrusted import one_line

FILE_BYTES = 4 << 20
EXEC_LIMIT_S = 120.0  # a person may have to log in
#: A token is replaced this long before it expires.
EARLY_S = 10.0


def find_access(kubeconfig: str, context: str, env: Mapping[str, str]) -> Access:
    """kubeconfig, context: "" unless an option names one. Raises WrongCall."""
    named = [kubeconfig] if kubeconfig else [path for path in env.get("KUBECONFIG", "").split(os.pathsep) if path]
    paths = [Path(os.path.expanduser(path)) for path in named or ["~/.kube/config"]]
    there = [path for path in paths if _exists(path)]
    if kubeconfig and not there:
        raise WrongCall(f"--kubeconfig {kubeconfig}: the file does not exist")
    files = [ConfigFile(path.absolute(), _read_yaml(path)) for path in there]
    if files:
        return read_access(files, context)
    host = env.get("KUBERNETES_SERVICE_HOST", "")
    if host and (SERVICE_ACCOUNT / "token").exists():
        namespace = (SERVICE_ACCOUNT / "namespace").read_text().strip()
        return in_cluster(host, env.get("KUBERNETES_SERVICE_PORT", "443"), namespace)
    listed = ", ".join(map(str, paths))
    raise WrongCall(
        f"there is no kubeconfig at {listed}: set KUBECONFIG, or use --kubeconfig. "
        "For a local run, use understudy local"
    )


def _exists(path: Path) -> bool:
    """Raises WrongCall if that cannot be found out."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # a CI system often has the content in a variable: it may be secret
            raise WrongCall(
                "--kubeconfig or KUBECONFIG has a path that is too long: expected the path of a file, and not its "
                "content"
            ) from None
        raise WrongCall(f"cannot read kubeconfig {path}: {error.strerror}") from error
    return True


def _read_yaml(path: Path) -> Mapping[str, object]:
    try:
        if path.stat().st_size > FILE_BYTES:
            raise WrongCall(f"kubeconfig {path} has more than {FILE_BYTES} bytes")
        content = yaml.load(path.read_bytes(), Loader=yaml.SafeLoader)
    except OSError as error:
        raise WrongCall(f"cannot read kubeconfig {path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise WrongCall(f"kubeconfig {path} is not YAML: {one_line(str(error))}") from error
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise WrongCall(f"kubeconfig {path}: expected an object")
    return content


@dataclass(frozen=True)
class Credentials:
    """The output of a program that a kubeconfig names. expires_at: Unix seconds; None: it does not expire."""

    token: str = field(repr=False)
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    expires_at: float | None = None

    def is_due(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at - EARLY_S


def run_exec(program: Exec, access: Access) -> Credentials:
    """Raises WrongCall if the program is missing, NoAnswer if it fails."""
    command = program.command
    if os.sep in command and not os.path.isabs(command):
        command = str(program.folder / command)
    if shutil.which(command) is None:
        hint = f". {program.install_hint}" if program.install_hint else ""
        raise WrongCall(f"the kubeconfig gets its credentials from {command!r}, which is not installed{hint}")
    info: dict[str, object] = {
        "apiVersion": program.api_version,
        "kind": "ExecCredential",
        "spec": {"interactive": sys.stdin.isatty()},
    }
    if program.needs_cluster:
        data = base64.b64encode(_content(access.authority)).decode() if access.authority is not None else None
        cluster = {"server": access.server, "certificate-authority-data": data}
        info["spec"] = {"interactive": sys.stdin.isatty(), "cluster": {k: v for k, v in cluster.items() if v}}
    try:
        done = subprocess.run(
            [command, *program.arguments],
            env={**os.environ, **program.environment, "KUBERNETES_EXEC_INFO": json.dumps(info)},
            stdout=subprocess.PIPE,
            timeout=EXEC_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswer(f"{command}, which gets the credentials of the kubeconfig, failed: {error}") from error
    if done.returncode != 0:
        raise NoAnswer(f"{command}, which gets the credentials of the kubeconfig, ended with {done.returncode}: log in")
    return read_credentials(done.stdout[:FILE_BYTES], command)


def read_credentials(output: bytes, command: str) -> Credentials:
    """The ExecCredential that a program printed. Raises NoAnswer."""
    try:
        status = fields.table(json.loads(output), "status")
    except (ValueError, RecursionError) as error:
        raise NoAnswer(f"{command} printed no JSON; run it to see why") from error
    token, certificate, key = (fields.get(status, name) for name in ("token", "clientCertificateData", "clientKeyData"))
    if not isinstance(token, str) and not (isinstance(certificate, str) and isinstance(key, str)):
        raise NoAnswer(f"{command} printed neither a token nor a client certificate; run it to see why")
    return Credentials(
        token if isinstance(token, str) else "",
        certificate.encode() if isinstance(certificate, str) else None,
        key.encode() if isinstance(key, str) else None,
        fields.time(status, "expirationTimestamp"),
    )


class Bearer:
    """The token of the next request, and the client certificate. A program or a file is read again when it is due.

    May be used by several threads: the program runs once for all of them.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._from_exec: Credentials | None = None
        self._lock = threading.Lock()

    def token(self) -> str:
        """Without the line end that a file, or `token: |`, has after it."""
        if self._access.token:
            return self._access.token.strip()
        if self._access.token_file is not None:
            return _content(self._access.token_file).decode(errors="replace").strip()
        found = self._credentials()
        return "" if found is None else found.token.strip()

    def certificate(self) -> tuple[bytes, bytes] | None:
        """Certificate and key, in PEM."""
        if self._access.certificate is not None and self._access.key is not None:
            return _content(self._access.certificate), _content(self._access.key)
        found = self._credentials()
        if found is None or found.certificate is None or found.key is None:
            return None
        return found.certificate, found.key

    def forget(self) -> bool:
        """The API server has rejected the credentials. Returns whether there may be newer ones."""
        self._from_exec = None
        return self._access.credentials is not None or self._access.token_file is not None

    def _credentials(self) -> Credentials | None:
        if self._access.credentials is None:
            return None
        with self._lock:
            if self._from_exec is None or self._from_exec.is_due(time.time()):
                self._from_exec = run_exec(self._access.credentials, self._access)
            return self._from_exec


def _content(source: bytes | Path) -> bytes:
    if isinstance(source, bytes):
        return source
    try:
        return source.read_bytes()
    except OSError as error:
        raise WrongCall(f"cannot read {source}, which the kubeconfig names: {error.strerror}") from error


def authority_of(access: Access) -> str | None:
    """The certificates, in PEM, that the API server's certificate is checked against; None: those of the system."""
    return None if access.authority is None else fields.pem_text(_content(access.authority))

"""Which API server, with which credentials: the rules of a kubeconfig. Pure.

The official client is not used: it imports 700 modules, which takes seconds from a zip file, and this client needs six
paths. Several files merge as in kubectl: the first file that has a name, or the current context, wins.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from understudy_cli.command_errors import WrongCall
from understudy_cli.fields import entries, flag, get, table, text

DEFAULT_NAMESPACE = "default"
#: Characters of a header's name besides letters, digits and those that quote() keeps.
_IN_HEADER_NAMES = "!#$&'*+^`|"
#: The folder in which the kubelet mounts a pod's service account.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class Exec:
    """A program that prints credentials, as cloud providers ship them."""

    command: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    api_version: str
    install_hint: str
    needs_cluster: bool
    folder: Path  # of the kubeconfig: a relative command with a slash is relative to it


@dataclass(frozen=True)
class Access:
    """server: https://host:port[/path]. Certificates and keys are in PEM; None: those of the system, or none."""

    server: str
    namespace: str
    context: str
    authority: bytes | Path | None = None
    verify: bool = True
    server_name: str = ""
    proxy: str = ""
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    certificate: bytes | Path | None = None
    key: bytes | Path | None = field(default=None, repr=False)
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    credentials: Exec | None = None
    impersonation: tuple[tuple[str, str], ...] = ()  # the headers for it; a name may repeat


@dataclass(frozen=True)
class ConfigFile:
    path: Path
    content: Mapping[str, Any]


def read_access(files: Sequence[ConfigFile], context: str = "") -> Access:
    """context: "" for the current one. Raises WrongCall."""
    name = context or next((found for file in files if (found := text(file.content, "current-context"))), "")
    if not name:
        raise WrongCall(
            "the kubeconfig has no current context: choose one with --context, or kubectl config use-context"
        )
    _, chosen = _named(files, "contexts", "context", name, "--context")
    cluster_name, user_name = text(chosen, "cluster"), text(chosen, "user")
    cluster_file, cluster = _named(files, "clusters", "cluster", cluster_name, f"the cluster of context {name}")
    user_file, user = _named(files, "users", "user", user_name, f"the user of context {name}") if user_name else _NOBODY
    server = text(cluster, "server").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise WrongCall(
            f"cluster {cluster_name} of the kubeconfig has the server {server!r}: expected an https:// address"
        )
    if get(user, "auth-provider") is not None:
        raise WrongCall(
            f"user {user_name} of the kubeconfig has an auth-provider, which kubectl does not support since 1.26: "
            "use the exec plugin of your provider"
        )
    token_file = text(user, "tokenFile")
    return Access(
        server=server,
        namespace=text(chosen, "namespace") or DEFAULT_NAMESPACE,
        context=name,
        authority=_pem(cluster, "certificate-authority", cluster_file),
        verify=not flag(cluster, "insecure-skip-tls-verify"),
        server_name=text(cluster, "tls-server-name"),
        proxy=text(cluster, "proxy-url"),
        token=_secret(user, "token"),
        token_file=user_file.path.parent / token_file if token_file else None,
        certificate=_pem(user, "client-certificate", user_file),
        key=_pem(user, "client-key", user_file),
        user=_secret(user, "username"),
        password=_secret(user, "password"),
        credentials=_exec(user, user_file),
        impersonation=tuple(_impersonation(user, user_name)),
    )


_NOBODY: tuple[ConfigFile, Mapping[str, Any]] = (ConfigFile(Path(), {}), {})


def in_cluster(host: str, port: str, namespace: str) -> Access:
    """The access of a pod, through its service account."""
    address = f"[{host}]" if ":" in host else host
    return Access(
        server=f"https://{address}:{port}",
        namespace=namespace or DEFAULT_NAMESPACE,
        context="in-cluster",
        authority=SERVICE_ACCOUNT / "ca.crt",
        token_file=SERVICE_ACCOUNT / "token",
    )


def _named(
    files: Sequence[ConfigFile], plural: str, singular: str, name: str, asked: str
) -> tuple[ConfigFile, Mapping[str, Any]]:
    for file in files:
        for entry in entries(file.content, plural):
            if text(entry, "name") == name:
                return file, table(entry, singular)
    known = sorted(text(entry, "name") for file in files for entry in entries(file.content, plural))
    raise WrongCall(f"{asked}: the kubeconfig has no {singular} {name!r}; it has {', '.join(known) or 'none'}")


def _secret(raw: Mapping[str, Any], name: str) -> str:
    """A text without any change."""
    value = get(raw, name)
    return value if isinstance(value, str) else ""


def _impersonation(user: Mapping[str, Any], name: str) -> Iterator[tuple[str, str]]:
    """The headers of the account as which a user acts. Raises WrongCall."""
    account, uid = _secret(user, "as"), _secret(user, "as-uid")
    groups, extra = _texts(user, "as-groups"), table(user, "as-user-extra")
    if not account:
        if uid or groups or extra:
            raise WrongCall(
                f"user {name} of the kubeconfig has as-uid, as-groups or as-user-extra, but not as: set as to the "
                "name of an account, or remove them"
            )
        return
    yield "Impersonate-User", account
    if uid:
        yield "Impersonate-Uid", uid
    for group in groups:
        yield "Impersonate-Group", group
    for key in (key for key in extra if isinstance(key, str)):
        for value in _texts(extra, key):
            yield f"Impersonate-Extra-{quote(key, safe=_IN_HEADER_NAMES)}", value


def _texts(raw: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = get(raw, name)
    return tuple(word for word in (value if isinstance(value, list) else ()) if isinstance(word, str))


def _pem(raw: Mapping[str, Any], name: str, file: ConfigFile) -> bytes | Path | None:
    data = _secret(raw, f"{name}-data")
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise WrongCall(f"{name}-data in {file.path} is not base64: write the kubeconfig again") from error
    path = text(raw, name)
    return file.path.parent / path if path else None


def _exec(user: Mapping[str, Any], file: ConfigFile) -> Exec | None:
    given = table(user, "exec")
    if not given:
        return None
    environment = {_secret(entry, "name"): _secret(entry, "value") for entry in entries(given, "env")}
    return Exec(
        command=_secret(given, "command"),
        arguments=_texts(given, "args"),
        environment=environment,
        api_version=_secret(given, "apiVersion"),
        install_hint=text(given, "installHint"),
        needs_cluster=flag(given, "provideClusterInfo"),
        folder=file.path.parent,
    )

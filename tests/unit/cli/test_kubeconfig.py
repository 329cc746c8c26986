"""A kubeconfig as kubectl understands it."""

import base64
from pathlib import Path
from typing import Any

import pytest

from understudy_cli.command_errors import WrongCall
from understudy_cli.kubeconfig import Access, ConfigFile, in_cluster, read_access


def config(path: str = "/home/me/.kube/config", **changes: Any) -> ConfigFile:
    content: dict[str, Any] = {
        "current-context": "prod",
        "contexts": [
            {"name": "prod", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}},
            {"name": "bare", "context": {"cluster": "c"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443/", "certificate-authority": "ca.crt"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    return ConfigFile(Path(path), content | changes)


def test_the_current_context_decides() -> None:
    assert read_access([config()]) == Access(
        server="https://10.0.0.1:6443",
        namespace="team-a",
        context="prod",
        authority=Path("/home/me/.kube/ca.crt"),
        token="secret",
    )


def test_an_option_chooses_another_context_whose_namespace_is_the_default_one() -> None:
    access = read_access([config()], "bare")
    assert (access.context, access.namespace, access.token) == ("bare", "default", "")


def test_the_first_of_several_files_wins_and_paths_are_relative_to_their_own_file() -> None:
    # given a first file with the context and the user, and a second one with a cluster and another user of that name
    first = config("/a/config", clusters=[])
    second = config(
        "/b/config",
        **{"current-context": "other"},
        users=[{"name": "u", "user": {"token": "wrong"}}],
    )
    # when both are named in KUBECONFIG
    access = read_access([first, second])
    # then each is found in the first file that has it
    assert (access.context, access.token, access.authority) == ("prod", "secret", Path("/b/ca.crt"))


def test_data_in_the_file_replaces_the_path() -> None:
    data = base64.b64encode(b"PEM").decode()
    user = {"client-certificate-data": data, "client-key-data": data, "client-certificate": "ignored"}
    access = read_access([config(users=[{"name": "u", "user": user}])])
    assert (access.certificate, access.key) == (b"PEM", b"PEM")


def test_a_program_for_credentials_is_read() -> None:
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "./login",
            "args": ["--cluster", "c"],
            "env": [{"name": "PROFILE", "value": "me"}],
            "installHint": "install it with apt",
            "provideClusterInfo": True,
        }
    }
    found = read_access([config(users=[{"name": "u", "user": user}])]).credentials
    assert found is not None
    assert (found.command, found.arguments, found.environment) == ("./login", ("--cluster", "c"), {"PROFILE": "me"})
    assert (found.folder, found.needs_cluster, found.install_hint) == (
        Path("/home/me/.kube"),
        True,
        "install it with apt",
    )


def test_secrets_are_not_in_the_text_of_an_access() -> None:
    assert "secret" not in repr(read_access([config()]))


@pytest.mark.parametrize(
    ("changes", "context", "text"),
    [
        ({"current-context": ""}, "", "the kubeconfig has no current context: choose one with --context"),
        ({}, "nope", "--context: the kubeconfig has no context 'nope'; it has bare, prod"),
        ({"clusters": []}, "", "the cluster of context prod: the kubeconfig has no cluster 'c'; it has none"),
        ({"users": []}, "", "the user of context prod: the kubeconfig has no user 'u'; it has none"),
        ({"clusters": [{"name": "c", "cluster": {"server": "file:///x"}}]}, "", "expected an https:// address"),
        ({"users": [{"name": "u", "user": {"auth-provider": {}}}]}, "", "use the exec plugin of your provider"),
        (
            {"users": [{"name": "u", "user": {"client-key-data": "%%%"}}]},
            "",
            "client-key-data in /home/me/.kube/config is not base64",
        ),
    ],
)
def test_a_wrong_file_is_reported_with_its_part(changes: dict[str, Any], context: str, text: str) -> None:
    with pytest.raises(WrongCall) as raised:
        read_access([config(**changes)], context)
    assert text in str(raised.value)


def test_a_pod_uses_its_service_account() -> None:
    access = in_cluster("fd00::1", "443", "jobs")
    assert (access.server, access.namespace) == ("https://[fd00::1]:443", "jobs")
    assert access.token_file == Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def test_a_user_who_acts_as_another_account_has_its_groups_its_uid_and_its_other_data() -> None:
    user = {
        "as": "ada",
        "as-uid": "1234",
        "as-groups": ["trainers", "viewers"],
        "as-user-extra": {"example.com/project": ["llm", "vision"]},
    }
    assert read_access([config(users=[{"name": "u", "user": user}])]).impersonation == (
        ("Impersonate-User", "ada"),
        ("Impersonate-Uid", "1234"),
        ("Impersonate-Group", "trainers"),
        ("Impersonate-Group", "viewers"),
        ("Impersonate-Extra-example.com%2Fproject", "llm"),
        ("Impersonate-Extra-example.com%2Fproject", "vision"),
    )


@pytest.mark.parametrize("user", [{"as-groups": ["a"]}, {"as-uid": "1"}, {"as-user-extra": {"a": ["b"]}}])
def test_groups_without_an_account_are_rejected_as_by_kubectl(user: dict[str, Any]) -> None:
    with pytest.raises(WrongCall, match="user u of the kubeconfig has as-uid, as-groups or as-user-extra, but not as"):
        read_access([config(users=[{"name": "u", "user": user}])])

"""Files and programs from which credentials come."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from understudy_cli.command_errors import NoAnswer, WrongCall
from understudy_cli.credentials import Bearer, Credentials, find_access, read_credentials
from understudy_cli.kubeconfig import Access, Exec

MINIMAL = """
current-context: a
contexts: [{name: a, context: {cluster: c}}]
clusters: [{name: c, cluster: {server: 'https://x:6443'}}]
"""


def program(folder: Path, *lines: str) -> Access:
    path = folder / "login"
    path.write_text("#!/bin/sh\n" + "\n".join(lines) + "\n")
    path.chmod(0o755)
    found = Exec("./login", (), {}, "client.authentication.k8s.io/v1", "get it from your provider", False, folder)
    return Access("https://x:6443", "default", "a", credentials=found)


def credential(**status: str) -> str:
    return json.dumps({"kind": "ExecCredential", "status": status})


def test_the_files_of_the_variable_are_read(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(MINIMAL)
    variables = {"KUBECONFIG": f"{tmp_path}/absent:{tmp_path}/config"}
    assert find_access("", "", variables).server == "https://x:6443"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("[1, 2]", "expected an object"),
        ("a: [", "is not YAML"),
        ("!!python/object/apply:os.getcwd []", "is not YAML"),
        ("\x00", "is not YAML"),
        ("current-context: 2001-99-99", "is not YAML"),
        ("", "no current context"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, content: str, text: str) -> None:
    (tmp_path / "config").write_text(content)
    with pytest.raises(WrongCall) as raised:
        find_access(str(tmp_path / "config"), "", {})
    assert text in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match=r"--kubeconfig .*: the file does not exist"):
        find_access(str(tmp_path / "config"), "", {})
    with pytest.raises(WrongCall, match=r"there is no kubeconfig at .*absent"):
        find_access("", "", {"KUBECONFIG": str(tmp_path / "absent")})


def test_the_content_of_a_kubeconfig_in_place_of_its_path_is_not_printed() -> None:
    content = "apiVersion: v1\nusers:\n- user: {client-key-data: " + 3000 * "c2VjcmV0" + "}"
    with pytest.raises(WrongCall) as raised:
        find_access("", "", {"KUBECONFIG": content})
    expected = "KUBECONFIG has a path that is too long: expected the path of a file, and not its content"
    assert expected in str(raised.value)
    assert "c2VjcmV0" not in str(raised.value)


def test_the_home_of_a_user_that_does_not_exist_is_reported() -> None:
    with pytest.raises(WrongCall, match=r"--kubeconfig ~no-such-user/config: the file does not exist"):
        find_access("~no-such-user/config", "", {})


def test_a_process_without_a_home_is_told_to_name_a_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a user that has neither HOME nor an entry in the list of users, as in a container
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    # when the program looks for a kubeconfig, then it says what to set
    with pytest.raises(WrongCall, match=r"at ~/\.kube/config: set KUBECONFIG, .* For a local run,"):
        find_access("", "", {})


def test_a_kubeconfig_is_utf_8_in_every_locale(tmp_path: Path) -> None:
    # given a kubeconfig with a name that the locale cannot represent
    content = MINIMAL.replace("cluster: c}", "cluster: zürich}").replace("name: c,", "name: zürich,")
    (tmp_path / "config").write_text(content, encoding="utf-8")
    search = f"from understudy_cli.credentials import *\nprint(find_access('{tmp_path}/config', '', {{}}).server)"
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    # when it is read
    printed = subprocess.run(
        [sys.executable, "-c", search],
        env={**os.environ, **locale, "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    # then its names are found
    assert (printed.stdout, printed.stderr) == ("https://x:6443\n", "")


def test_a_token_of_a_program_is_used_until_it_is_rejected(tmp_path: Path) -> None:
    # given a program that counts its calls in its token
    calls = tmp_path / "calls"
    count = f"echo x >> {calls}; n=$(wc -l < {calls})"
    bearer = Bearer(program(tmp_path, count, """echo '{"status": {"token": "t'$n'"}}'"""))
    # when two requests follow each other, and the second one is rejected
    first, second = bearer.token(), bearer.token()
    has_newer = bearer.forget()
    # then the program runs once for both, and again for the third
    assert (first, second, has_newer, bearer.token()) == ("t1", "t1", True, "t2")


def test_a_token_is_due_ten_seconds_before_it_expires() -> None:
    found = Credentials("t", expires_at=1000.0)
    assert [found.is_due(now) for now in (989.0, 990.0, 2000.0)] == [False, True, True]
    assert not Credentials("t").is_due(1e12)


@pytest.mark.parametrize(
    ("lines", "error", "text"),
    [
        (["exit 3"], NoAnswer, "ended with 3: log in"),
        (["echo no"], NoAnswer, "printed no JSON"),
        (["echo '{}'"], NoAnswer, "printed neither a token nor a client certificate"),
    ],
)
def test_a_program_that_fails_is_named(tmp_path: Path, lines: list[str], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as raised:
        Bearer(program(tmp_path, *lines)).token()
    assert text in str(raised.value)


def test_a_program_that_is_not_installed_is_named_with_the_hint() -> None:
    found = Exec("understudy-no-such-program", (), {}, "v1", "get it from your provider", False, Path("/"))
    with pytest.raises(WrongCall, match=r"which is not installed\. get it from your provider"):
        Bearer(Access("https://x", "default", "a", credentials=found)).token()


def test_a_client_certificate_of_a_program_is_read() -> None:
    text = credential(clientCertificateData="C", clientKeyData="K", expirationTimestamp="2026-11-20T12:00:00Z")
    assert read_credentials(text.encode(), "login") == Credentials("", b"C", b"K", 1795176000.0)


def test_a_token_file_is_read_for_each_request(tmp_path: Path) -> None:
    path = tmp_path / "token"
    bearer = Bearer(Access("https://x", "default", "a", token_file=path))
    for text in ("first", "second"):
        path.write_text(f"{text}\n")
        assert bearer.token() == text

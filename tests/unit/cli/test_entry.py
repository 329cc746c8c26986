"""The installed command: its errors for users, and its exit codes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli import samples
from tests.unit.cli.server import Answer, scripted
from understudy_cli import entry

COMMAND = "import sys; sys.modules[{package!r}] = None; from understudy_cli.entry import main; sys.exit(main())"
JOBS = "/apis/understudy.dev/v1alpha1/namespaces/team-a"


def call(monkeypatch: pytest.MonkeyPatch, *words: str, program: str = "understudy") -> int:
    """The exit code of the command."""
    monkeypatch.setattr(sys, "argv", [f"/usr/bin/{program}", *words])
    try:
        return entry.main()
    except SystemExit as ended:
        return int(ended.code or 0)


def kubeconfig(folder: Path, url: str) -> str:
    path = folder / "config"
    path.write_text(
        "{current-context: a, contexts: [{name: a, context: {cluster: c, namespace: team-a}}], "
        f"clusters: [{{name: c, cluster: {{server: '{url}'}}}}]}}"
    )
    return str(path)


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [("typer", [], "cli"), ("rich", ["get"], "cli"), ("uvloop", ["local", "--", "true"], "local")],
)
def test_a_missing_package_is_named_in_one_line_with_the_fix(package: str, words: list[str], extra: str) -> None:
    # given an installation without one of the packages
    # when a user runs the command
    ended = subprocess.run(
        [sys.executable, "-c", COMMAND.format(package=package), *words],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": os.environ["PATH"]},
    )
    # then one line names the package and the extra that contains it
    assert ended.returncode == 2
    assert ended.stderr == (
        f"understudy: the package {package} is missing: install the extra `{extra}` of understudy-training, "
        f"with pip install 'PATH[{extra}]', where PATH is the wheel or the checkout\n"
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["gett"], "No such command 'gett'"),
        (["why"], "Missing argument 'JOB'"),
        (["get", "-o", "xml"], "'xml' is not one of"),
        (["get", "-w", "-o", "json"], "-w with -o json"),
        (["get", "llm", "-A"], "-A with a JOB"),
        (["logs", "llm", "--rank", "-1"], "--rank"),
        (["get", "--kubeconfig", "/no/such/file"], "--kubeconfig /no/such/file: the file does not exist"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_names_the_part(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    assert call(monkeypatch, *words) == 2
    assert text in capsys.readouterr().err


def test_a_job_that_does_not_exist_ends_with_3_and_the_jobs_that_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    missing = Answer({"message": "not found"}, 404)
    answers = {
        f"{JOBS}/trainingjobs/llm2": [missing],
        f"{JOBS}/trainingjobs": [Answer({"items": [samples.job()]})],
        f"{JOBS}/injectedjobs": [Answer({"items": []})],
    }
    with scripted(answers) as server:
        code = call(monkeypatch, "get", "llm2", "--kubeconfig", kubeconfig(tmp_path, server.url))
    assert code == 3
    said = "understudy: there is no job llm2 in namespace team-a; its jobs: llm. Choose a namespace with -n\n"
    assert capsys.readouterr().err == said


def test_a_server_that_does_not_respond_ends_with_4(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with scripted({}) as server:
        url = server.url
    assert call(monkeypatch, "get", "--kubeconfig", kubeconfig(tmp_path, url)) == 4
    assert "does not respond" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["get"], ["get", "-w"], ["get", "llm"], ["dashboard", "--port", "0"]])
def test_a_cluster_without_the_kinds_is_not_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str]
) -> None:
    with scripted({}) as server:
        assert call(monkeypatch, *words, "--kubeconfig", kubeconfig(tmp_path, server.url)) == 3
    assert "the cluster has no trainingjobs of understudy.dev: install Understudy" in capsys.readouterr().err


def test_a_name_that_would_leave_the_path_is_not_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with scripted({}) as server:
        assert call(monkeypatch, "get", "../../secrets", "--kubeconfig", kubeconfig(tmp_path, server.url)) == 3
        assert server.requests == []
    assert "cannot be the name of a job" in capsys.readouterr().err


@pytest.mark.parametrize(
    "verb",
    ["get", "why", "timeline", "goodput", "logs", "stacks", "spares", "nodes", "doctor", "drain", "drill", "local"],
)
def test_the_help_of_each_verb_has_an_example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    assert call(monkeypatch, verb, "--help") == 0
    assert f"Example: understudy {verb}" in capsys.readouterr().out


def test_the_version_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.metadata.version", {"understudy-training": "1.2.3"}.__getitem__)
    assert (call(monkeypatch, "--version"), capsys.readouterr().out) == (0, "understudy 1.2.3\n")


def test_hints_have_the_words_that_the_user_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job = samples.job(recoveries=[samples.recovery()])
    with scripted({f"{JOBS}/trainingjobs/llm": [Answer(job)], f"{JOBS}/recoveries": [Answer({}, 404)]}) as server:
        config = kubeconfig(tmp_path, server.url)
        assert call(monkeypatch, "why", "llm", "--kubeconfig", config, program="kubectl-understudy") == 0
    assert "kubectl understudy logs llm --rank 3 --round 0" in capsys.readouterr().out


def test_a_terminal_without_a_character_shows_another_one(tmp_path: Path) -> None:
    answers = {
        f"{JOBS}/trainingjobs/llm": [Answer(samples.job())],
        "/api/v1/namespaces/team-a/pods": [Answer({"items": []})],
    }
    with scripted(answers) as server:
        config = kubeconfig(tmp_path, server.url)
        ended = subprocess.run(
            [sys.executable, "-m", "understudy_cli", "get", "llm", "--kubeconfig", config],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env={"PYTHONPATH": ":".join(filter(None, sys.path)), "PYTHONIOENCODING": "ascii", "PATH": ""},
        )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "?? no pods" in ended.stdout


@pytest.mark.parametrize(("typed", "completed"), [("", ["llm", "vision"]), ("v", ["vision"])])
def test_the_shell_completes_the_names_of_jobs(tmp_path: Path, typed: str, completed: list[str]) -> None:
    # given a namespace with two jobs
    answers = {
        f"{JOBS}/trainingjobs": [Answer({"items": [samples.job("vision"), samples.job("llm")]})],
        f"{JOBS}/injectedjobs": [Answer({"items": []})],
    }
    # when bash asks for the words after `why --kubeconfig PATH`
    with scripted(answers) as server:
        words = f"understudy why --kubeconfig {kubeconfig(tmp_path, server.url)} {typed}"
        ended = complete(words)
    # then it gets the jobs that begin with the typed letters
    assert ended.stdout.split() == completed


def test_the_shell_gets_no_error_if_the_cluster_cannot_be_read(tmp_path: Path) -> None:
    ended = complete("understudy why --kubeconfig /no/such/file ")
    assert (ended.stdout.strip(), ended.stderr) == ("", "")


def test_kubectl_completes_the_verbs_and_the_jobs_of_its_plugin(tmp_path: Path) -> None:
    # given the program under the name that kubectl calls for the completion of a plugin, and a path with a space
    folder = tmp_path / "a folder"
    folder.mkdir()
    answers = {
        f"{JOBS}/trainingjobs": [Answer({"items": [samples.job("vision"), samples.job("llm")]})],
        f"{JOBS}/injectedjobs": [Answer({"items": []})],
    }
    with scripted(answers) as server:
        config = kubeconfig(folder, server.url)
        # when kubectl asks for the word after `dr`, and for the jobs after `why`
        verbs = complete_for_kubectl("dr")
        jobs = complete_for_kubectl("why", "--kubeconfig", config, "")
    # then each line has a word, and perhaps a tab and its meaning
    assert verbs.stdout.splitlines() == [
        "drain\tMove the ranks of a pod to a spare.",
        "drill\tBreak a job on purpose, and show what a...",
    ]
    assert jobs.stdout.splitlines() == ["llm", "vision"]
    assert (verbs.returncode, jobs.returncode) == (0, 0)


def test_kubectl_gets_no_error_if_the_cluster_cannot_be_read() -> None:
    ended = complete_for_kubectl("why", "--kubeconfig", "/no/such/file", "a b'c")
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "", "")


def complete_for_kubectl(*words: str) -> subprocess.CompletedProcess[str]:
    """As kubectl asks for the completion of the last word of `kubectl understudy`."""
    start = "import sys; sys.argv[0] = '/bin/kubectl_complete-understudy'; "
    start += "from understudy_cli.entry import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", start, *words],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": os.environ["PATH"]},
    )


def complete(words: str) -> subprocess.CompletedProcess[str]:
    """As bash asks for the completion of the last word."""
    asked = {"_UNDERSTUDY_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    start = "import sys; sys.argv[0] = 'understudy'; from understudy_cli.entry import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", start],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": os.environ["PATH"]} | asked,
    )


def test_a_reader_that_ends_early_causes_no_error(tmp_path: Path) -> None:
    """As in `understudy get | head -0`."""
    answers = {
        f"{JOBS}/trainingjobs": [Answer({"items": [samples.job()]})],
        f"{JOBS}/injectedjobs": [Answer({"items": []})],
    }
    # given a pipe that nobody reads any more
    reader, writer = os.pipe()
    os.close(reader)
    # when a command writes its output there
    with scripted(answers) as server:
        ended = subprocess.run(
            [sys.executable, "-m", "understudy_cli", "get", "--kubeconfig", kubeconfig(tmp_path, server.url)],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
            check=False,
            env={"PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": ""},
        )
    os.close(writer)
    # then it ends without a message
    assert (ended.returncode, ended.stderr) == (0, "")


def test_ctrl_c_before_the_command_line_is_read_causes_no_traceback() -> None:
    # given a program that gets SIGINT while it imports its packages
    start = (
        "import sys, signal; from understudy_cli.entry import main\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': signal.raise_signal(signal.SIGINT)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Interrupted()); sys.exit(main())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", start],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": ""},
    )
    assert (ended.returncode, ended.stderr) == (130, "")


def test_a_missing_right_to_read_events_hides_only_the_events(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answers = {
        f"{JOBS}/trainingjobs/llm": [Answer(samples.job())],
        f"{JOBS}/recoveries": [Answer({}, 404)],
        "/api/v1/namespaces/team-a/events": [Answer({"message": "events is forbidden"}, 403)],
    }
    with scripted(answers) as server:
        assert call(monkeypatch, "timeline", "llm", "--kubeconfig", kubeconfig(tmp_path, server.url)) == 0
    shown = capsys.readouterr()
    assert "Node, pod llm-workers-0-0, node node-a: it did not respond for 5.0 s" in shown.out
    assert "the events of the job are not readable" in shown.err


def test_why_needs_no_right_to_read_pods(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # given a hang, whose first failure the logs of the pods would show
    job = samples.job(recoveries=[samples.recovery(fault="Hang")])
    answers = {
        f"{JOBS}/trainingjobs/llm": [Answer(job)],
        f"{JOBS}/recoveries": [Answer({}, 404)],
        "/api/v1/namespaces/team-a/pods": [Answer({"message": "pods is forbidden"}, 403)],
    }
    with scripted(answers) as server:
        assert call(monkeypatch, "why", "llm", "--kubeconfig", kubeconfig(tmp_path, server.url)) == 0
    # then the failure is that of status
    shown = capsys.readouterr()
    assert "rank 3, pod llm-workers-0-1, node node-b" in shown.out
    assert "the logs of the pods are not readable" in shown.err


def test_a_job_that_does_not_exist_is_not_found_without_the_right_to_list_jobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    forbidden = Answer({"message": "trainingjobs is forbidden"}, 403)
    with scripted({f"{JOBS}/trainingjobs": [forbidden]}) as server:
        code = call(monkeypatch, "get", "llm2", "--kubeconfig", kubeconfig(tmp_path, server.url))
    assert code == 3
    assert "there is no job llm2 in namespace team-a; this account may not list its jobs" in capsys.readouterr().err


def test_no_lines_are_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pods = "/api/v1/namespaces/team-a/pods"
    answers = {
        f"{JOBS}/trainingjobs/llm": [Answer(samples.job())],
        pods: [Answer({"items": [samples.pod("a", "n", rank=0)]})],
        f"{pods}/a/log": [Answer("")],
    }
    with scripted(answers) as server:
        words = ["logs", "llm", "--kubeconfig", kubeconfig(tmp_path, server.url)]
        assert call(monkeypatch, *words, "--tail", "0") == 0
        assert call(monkeypatch, *words) == 3
    assert capsys.readouterr().out == ""


def test_a_job_that_replaces_a_watched_one_is_another_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As after `kubectl replace --force`."""
    other = samples.job()
    other["metadata"]["uid"] = "another-uid"

    def listed(*items: dict[str, Any]) -> list[Answer]:
        return [Answer({"metadata": {"resourceVersion": "7"}, "items": list(items)}), Answer(stays=True)]

    answers = {
        f"{JOBS}/trainingjobs/llm": [Answer(samples.job())],
        f"{JOBS}/trainingjobs": listed(other),
        "/apis/understudy.dev/v1alpha1": [Answer({"resources": []})],
        "/api/v1/namespaces/team-a/pods": listed(),
    }
    with scripted(answers) as server:
        assert call(monkeypatch, "get", "llm", "-w", "--kubeconfig", kubeconfig(tmp_path, server.url)) == 3
    assert "job llm was deleted" in capsys.readouterr().err

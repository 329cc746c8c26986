"""`kubectl-understudy` is one file that a Python without any package runs."""

import json
import re
import subprocess
import sys
import urllib.request
import zipfile
from datetime import UTC, datetime
from importlib.metadata import distribution
from pathlib import Path

from release.plugin import kept, write_plugin
from tests.cluster.paths import CHECKOUT
from tests.ui.fake_cluster import fake_cluster
from tests.unit.cli import samples

COMMITTED = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
#: The packages of requirements/cli.lock.
LOCK = CHECKOUT / "requirements" / "cli.lock"


def locked() -> list[str]:
    return [line.partition("==")[0] for line in LOCK.read_text().splitlines() if "==" in line]


def install(folder: Path) -> Path:
    """Copy the packages of the lock from this environment, as pip would install them into the folder."""
    for name in locked():
        for file in distribution(name).files or ():
            target = folder / file
            if ".." not in file.parts and "__pycache__" not in file.parts:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(Path(str(file.locate())).read_bytes())
    return folder


def test_a_python_without_packages_runs_the_file(tmp_path: Path) -> None:
    # given the file with all packages of its lock
    plugin = tmp_path / "kubectl-understudy"
    write_plugin(plugin, CHECKOUT, install(tmp_path / "installed"), "1.2.3", COMMITTED)
    # when a Python without site-packages runs it
    alone = [sys.executable, "-I", "-S", str(plugin)]
    version = subprocess.run([*alone, "--version"], capture_output=True, text=True, check=False)
    verbs = subprocess.run([*alone, "--help"], capture_output=True, text=True, check=False)
    config = subprocess.run([*alone, "get", "--kubeconfig", "/none"], capture_output=True, text=True, check=False)
    # then it works, and has the verbs for a cluster
    assert (version.returncode, version.stdout, version.stderr) == (0, "understudy 1.2.3\n", "")
    assert all(verb in verbs.stdout for verb in ("get", "why", "timeline", "logs", "doctor"))
    assert "local" not in verbs.stdout.split()
    assert (config.returncode, config.stderr) == (2, "understudy: --kubeconfig /none: the file does not exist\n")


def test_the_file_serves_the_dashboard(tmp_path: Path) -> None:
    # given the file, and a cluster with one job
    plugin, kubeconfig = tmp_path / "kubectl-understudy", tmp_path / "kubeconfig"
    write_plugin(plugin, CHECKOUT, install(tmp_path / "installed"), "1.2.3", COMMITTED)
    with fake_cluster() as cluster:
        cluster.put("trainingjobs", samples.job())
        context = {"name": "c", "context": {"cluster": "c", "user": "c"}}
        user = {"name": "c", "user": {"token": "secret"}}
        server = {"name": "c", "cluster": {"server": cluster.url}}
        config = {"current-context": "c", "contexts": [context], "users": [user], "clusters": [server]}
        kubeconfig.write_text(json.dumps(config))
        # when a Python without site-packages runs it
        words = ["-I", "-S", str(plugin), "dashboard", "-A", "--port", "0", "--kubeconfig", str(kubeconfig)]
        with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            url = re.findall(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())[0]
            # then it serves the page and its stream, until SIGTERM
            for name, content in (
                ("", "<title>Understudy</title>"),
                ("dashboard.js", "EventSource"),
                ("dashboard.css", ""),
            ):
                assert content in read(url + name)
            with urllib.request.urlopen(f"{url}events?view=fleet", timeout=30) as stream:
                while b'"team-a/llm"' not in stream.readline():
                    pass
            process.terminate()
            assert process.wait(30) == 0


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def test_the_same_inputs_have_the_same_bytes_and_no_compiled_module(tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    for name in ("yaml/__init__.py", "yaml/_yaml.cpython-311-x86_64-linux-gnu.so", "bin/tool"):
        (installed / name).parent.mkdir(parents=True, exist_ok=True)
        (installed / name).write_text("x")
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        write_plugin(file, CHECKOUT, installed, "1.2.3", COMMITTED)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].read_bytes().startswith(b"#!/usr/bin/env python3\n")
    assert files[0].stat().st_mode & 0o777 == 0o755
    names = zipfile.ZipFile(files[0]).namelist()
    assert {"__main__.py", "yaml/__init__.py", "understudy_cli/app.py", "understudy_protocol/pod.py"} <= set(names)
    assert "understudy_cli/dashboard/assets/index.html" in names
    assert not [name for name in names if name.endswith((".so", "/local.py")) or name.startswith("bin/")]


def test_licenses_stay_and_records_of_the_installation_do_not() -> None:
    names = ["rich-15.dist-info/licenses/LICENSE", "rich-15.dist-info/RECORD", "rich/a.py", "rich/__pycache__/a.pyc"]
    assert kept(names) == ["rich-15.dist-info/licenses/LICENSE", "rich/a.py"]

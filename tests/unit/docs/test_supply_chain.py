"""No other project can provide, under our name, a package that users or images install, and none changes without a
commit.
"""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.cluster.dockerfile import Dockerfile
from tests.cluster.paths import CHECKOUT

LOCKS = ("pip", "operator", "sidecar", "cli", "release", "dev")
#: An install command, with the rest of the line or of the code.
INSTALL = re.compile(r"(?:\bpip3?|\bpipx|\buv tool|\buv)\s+install\s+([^\n`#]*)")
#: A requirement by the name of the project: neither a path nor an import name.
BY_NAME = re.compile(r"(?:^|\s)['\"]?understudy(?:[-_]training)?(?![\w/-])", re.IGNORECASE)


def texts() -> dict[str, str]:
    listed = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout
    endings = (".md", ".py", ".yaml", ".toml", ".txt", ".in", "Dockerfile", "Makefile")
    paths = [x for x in listed.split() if x.endswith(endings) or x.startswith("scripts/")]
    return {x: (CHECKOUT / x).read_text(encoding="utf-8") for x in paths if (CHECKOUT / x).is_file()}


def installed_by_name(text: str) -> list[str]:
    """Install commands of the project by its name; a command may be broken over two lines."""
    whole = re.sub(r"\b(pip3?|pipx|install)\s*\n\s*", r"\1 ", text)
    return [command for command in INSTALL.findall(whole) if BY_NAME.search(command)]


@pytest.mark.attack(
    "F", "owns the name understudy on PyPI", before="docs/how-to/rl.md told users to install that project"
)
def test_no_page_installs_the_project_by_its_name() -> None:
    found = {path: commands for path, text in texts().items() if (commands := installed_by_name(text))}
    assert found == {}, "nothing is published: install a checkout (pip install '.[local]') or a file of `make release`"


@pytest.mark.parametrize(
    ("command", "is_by_name"),
    [
        ("pip {} understudy", True),
        ("pip\n{} 'understudy[rollout]'", True),
        ("pip3 {} -U understudy-training==0.1.0", True),
        ("uv tool {} understudy", True),
        ("pip {} '.[rollout]'", False),
        ("pip {} 'build/release/understudy_training-0.1.0-py3-none-any.whl[rollout]'", False),
        ("helm {} understudy charts/understudy", False),
    ],
)
def test_an_install_by_name_is_found(command: str, is_by_name: bool) -> None:
    assert bool(installed_by_name(command.format("install"))) is is_by_name


def test_the_distribution_has_a_name_of_its_own_and_the_commands_keep_theirs() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "understudy-training"
    assert set(project["scripts"]) == {"understudy", "kubectl-understudy", "kubectl_complete-understudy"}


@pytest.mark.attack("F", "replaces the base image behind its tag", before="the next build was based on it")
def test_images_are_based_on_a_digest() -> None:
    dockerfile = Dockerfile.parse((CHECKOUT / "Dockerfile").read_text())
    (base,) = [line for line in dockerfile.preamble if line.startswith("ARG BASE=")]
    assert re.fullmatch(r"ARG BASE=docker\.io/library/python:3\.11\.\d+-slim-bookworm@sha256:[0-9a-f]{64}", base)
    assert {stage.parent for stage in dockerfile.stages.values()} - dockerfile.stages.keys() == {"${BASE}"}


@pytest.mark.attack(
    "F", "publishes another version of a dependency, of pip, or of a build tool", before="images took any pip"
)
def test_images_install_only_wheels_with_known_hashes() -> None:
    text = (CHECKOUT / "Dockerfile").read_text()
    installs = re.findall(r"pip install[^\\\n]*", text)
    assert len(installs) == 4
    for command in installs:
        assert "--require-hashes" in command
        assert "--only-binary=:all:" in command
    assert re.findall(r"-r /build/(\w+)\.lock", text) == ["pip", "operator", "pip", "sidecar"]


def test_only_the_dockerfile_of_an_example_is_not_pinned() -> None:
    """A limit that docs/explanation/security.md states."""
    dockerfiles = {path: text for path, text in texts().items() if path.endswith("Dockerfile")}
    assert sorted(path for path, text in dockerfiles.items() if "@sha256:" not in text) == ["examples/jax/Dockerfile"]


@pytest.mark.parametrize("name", LOCKS)
def test_each_requirement_of_a_lock_is_one_version_with_its_hashes(name: str) -> None:
    text = (CHECKOUT / "requirements" / f"{name}.lock").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        assert re.fullmatch(r"[\w.-]+(\[[\w,-]+\])?==\S+( ; [^-]+)?(\s+--hash=sha256:[0-9a-f]{64})+\s*", line), line


@pytest.mark.attack("F", "owns the default images' registry", before="ghcr.io/understudy is not the project's")
def test_default_images_of_the_chart_have_a_registry_that_does_not_exist() -> None:
    values = (CHECKOUT / "charts/understudy/values.yaml").read_text()
    images = re.findall(r"^  image: (\S+)", values, re.MULTILINE)
    assert [image.partition("/")[0] for image in images] == ["registry.invalid"] * 2


def test_the_way_to_report_is_stated() -> None:
    page = Path(CHECKOUT / "SECURITY.md").read_text(encoding="utf-8")
    assert "## Report a vulnerability" in page

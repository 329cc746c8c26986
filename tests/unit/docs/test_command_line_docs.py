"""The page of the command line has each verb and each option of the program, and no other."""

import re

import typer

from tests.cluster.paths import CHECKOUT
from understudy_cli.app import app
from understudy_cli.command_errors import ExitCode

PAGE = (CHECKOUT / "docs" / "reference" / "command-line.md").read_text()
#: Described in the text: they belong to the shell.
OF_COMPLETION = {"--install-completion", "--show-completion"}


def section(title: str) -> str:
    return PAGE.partition(f"# {title}\n")[2].partition("\n#")[0]


def test_each_verb_is_on_the_page() -> None:
    command = typer.main.get_command(app)
    on_page = set(re.findall(r"^\| `(\w+)", section("Verbs"), re.MULTILINE))
    assert on_page == set(command.commands) - {"local"}  # type: ignore[attr-defined]


def test_each_option_is_on_the_page() -> None:
    command = typer.main.get_command(app)
    verbs = [verb for name, verb in command.commands.items() if name != "local"]  # type: ignore[attr-defined]
    known = {option for verb in [command, *verbs] for parameter in verb.params for option in parameter.opts}
    options = {option for option in known if option.startswith("-")} - OF_COMPLETION
    cells = re.findall(r"^\| (`-.*?) \|", section("Options"), re.MULTILINE)
    on_page = {option for cell in cells for option in re.findall(r"`(-[\w-]+)", cell)}
    assert on_page == options | {"-h", "--help"}


def test_each_exit_code_is_on_the_page() -> None:
    on_page = re.findall(r"^\| (\d+) \|", section("Exit codes"), re.MULTILINE)
    assert [int(code) for code in on_page] == [int(code) for code in ExitCode]

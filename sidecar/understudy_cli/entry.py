"""The command `understudy`. An error of a user is one line on stderr. If a package is missing, it names the extra."""

import io
import os
import shlex
import sys
from pathlib import Path

#: kubectl calls this program for the completion of its plugin, with the words after `kubectl understudy`.
KUBECTL_COMPLETES = "kubectl_complete-understudy"
PLUGIN = "kubectl-understudy"


def main() -> int:
    """The exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may not have each character of a message
    try:
        return _complete_for_kubectl() if Path(sys.argv[0]).name == KUBECTL_COMPLETES else _run()
    except KeyboardInterrupt:
        return 130  # Ctrl-C before typer handles it, or after that
    finally:
        _flush()


def _run() -> int:
    """The exit code. Raises SystemExit, too."""
    try:
        from understudy_cli import app
        from understudy_cli.command_errors import CommandFailed
    except ModuleNotFoundError as error:
        return missing(error, "cli")
    try:
        app.run()
    except CommandFailed as failed:
        sys.stderr.write(f"understudy: {failed}\n")
        return int(failed.code)
    except ModuleNotFoundError as error:
        return missing(error, "local")
    return 0


def _complete_for_kubectl() -> int:
    """kubectl expects lines with a word, a tab and the meaning of the word, which are the lines for fish."""
    words, sys.argv = [PLUGIN, *sys.argv[1:]], [PLUGIN]
    os.environ |= {
        "_KUBECTL_UNDERSTUDY_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": shlex.join(words),
    }
    try:
        return _run()
    except SystemExit:  # click exits with 1 if a completion is done
        return 0


def _flush() -> None:
    """The reader of a pipe, such as `head`, may have ended. Without this, Python writes an error at its exit."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())


def missing(error: ModuleNotFoundError, extra: str) -> int:
    package = (error.name or "").partition(".")[0]
    sys.stderr.write(
        f"understudy: the package {package} is missing: install the extra `{extra}` of understudy-training, "
        f"with pip install 'PATH[{extra}]', where PATH is the wheel or the checkout\n"
    )
    return 2

"""The command `understudy`. An error of a user is one line on stderr. If a package is missing, it names the extra."""

import io
import os
import sys


def main() -> int:
    """The exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may not have each character of a message
    try:
        return _run()
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

"""Runs a program in this process as the interpreter would: `PYTHON FILE`, `PYTHON -m MODULE`, `PYTHON -c CODE`.

Rules: `__main__` is a separate module that stays in sys.modules until the end, so that threads and exit handlers can
pickle its objects. sys.argv, sys.path[0] and sys.orig_argv have their usual values. The traceback of an exception
begins in the program. It is reported to the launcher at once (uncaught.py). An exit with a text, sys.exit("no data"),
counts as an exception.
"""

import builtins
import os
import runpy
import sys
import types
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, SourceFileLoader

from understudy_zygote import uncaught

FILE, MODULE, CODE = "file", "module", "code"
_SWITCHES = {FILE: [], MODULE: ["-m"], CODE: ["-c"]}
#: Entries of sys.orig_argv before the target: this package's __main__.py, the control socket's number, and the kind.
_OURS = 3


@dataclass(frozen=True)
class Program:
    kind: str
    target: str
    arguments: tuple[str, ...]


def prepare(program: Program, own_arguments: int) -> None:
    """Set up what the interpreter sets up before it runs a program. own_arguments: how many our command line has for
    it.
    """
    argv0 = {FILE: program.target, MODULE: "-m", CODE: "-c"}[program.kind]
    sys.argv[:] = [argv0, *program.arguments]
    if hasattr(sys, "orig_argv"):  # since Python 3.10
        options = sys.orig_argv[: -1 - own_arguments - _OURS]
        sys.orig_argv[:] = [*options, *_SWITCHES[program.kind], program.target, *program.arguments]
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        sys.path.insert(0, first_path(program))


def run(program: Program) -> None:
    """Run the program to its end. Raises SystemExit."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if "__annotations__" in vars(sys.modules["__main__"]):  # not in every version
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    worker = os.getpid()
    try:
        _execute(program, main)
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            _remove_own_frames(error)
            uncaught.report(error, worker)
        raise
    except BaseException as error:  # noqa: BLE001 - reported as the interpreter does
        _remove_own_frames(error)
        uncaught.report(error, worker)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def _remove_own_frames(error: BaseException) -> None:
    """From the start of its traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace


def _execute(program: Program, main: types.ModuleType) -> None:
    if program.kind == MODULE:
        runpy._run_module_as_main(program.target)  # type: ignore[attr-defined]
    elif program.kind == CODE:
        main.__loader__ = BuiltinImporter
        exec(compile(program.target, "<string>", "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - the user's program
    else:
        path = os.path.abspath(program.target)
        main.__file__ = path
        main.__dict__["__cached__"] = None
        main.__loader__ = SourceFileLoader("__main__", path)
        source = _read(path)
        exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - the user's program


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        python = getattr(sys, "orig_argv", [sys.executable])[0]
        sys.stderr.write(f"{python}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
        sys.exit(2)


def first_path(program: Program) -> str:
    if program.kind == MODULE:
        return os.getcwd()
    return "" if program.kind == CODE else os.path.dirname(os.path.realpath(program.target))

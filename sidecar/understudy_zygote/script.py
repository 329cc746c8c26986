"""Runs a program in this process as the interpreter would: `PYTHON FILE`, `PYTHON -m MODULE`, `PYTHON -c CODE`.

Rules: `__main__` is a separate module that stays in sys.modules until the end, so that threads and exit handlers can
pickle its objects. sys.argv, sys.path[0] and sys.orig_argv have their usual values. The traceback of an exception
begins in the program. Its text is written to torch's error file, unless torch's `@record` has written that, so the
launcher can report the exception that ended a worker. An exit with a text, sys.exit("no data"), counts as an exception.
Then a byte in the worker's bell (understudy_torch/progress.py) makes the launcher read the file at once, because the
process may need some time to end.
"""

import builtins
import contextlib
import json
import os
import runpy
import stat
import sys
import time
import traceback
import types
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, SourceFileLoader

FILE, MODULE, CODE = "file", "module", "code"
_SWITCHES = {FILE: [], MODULE: ["-m"], CODE: ["-c"]}
#: Entries of sys.orig_argv before the target: this package's __main__.py, the control socket's number, and the kind.
_OURS = 3
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_STEP_FD = "UNDERSTUDY_STEP_FD"
#: The first word of a page: see understudy_torch/progress.py.
_MAGIC = 0x75_6E_64_73_74_65_70_31


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
            _report(error, worker)
        raise
    except BaseException as error:  # noqa: BLE001 - reported as the interpreter does
        _remove_own_frames(error)
        _report(error, worker)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def _remove_own_frames(error: BaseException) -> None:
    """From the start of its traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace


def _report(error: BaseException, worker: int) -> None:
    """worker: the process that has started the script. The exception of its forked child does not end it."""
    if os.getpid() == worker:
        _write_error_file(error)
        _ring_bell()


def _ring_bell() -> None:
    """Only a pipe and a page: the script may have closed them, and other files may have their numbers."""
    with contextlib.suppress(Exception):
        bell, page = map(int, os.environ[_STEP_FD].split(","))
        is_page = os.pread(page, 8, 0) == _MAGIC.to_bytes(8, sys.byteorder)
        if is_page and stat.S_ISFIFO(os.fstat(bell).st_mode):
            os.write(bell, b"!")


def _write_error_file(error: BaseException) -> None:
    with contextlib.suppress(Exception):  # no variable, a file written by @record, or an exception without a text
        callstack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        details = {"py_callstack": callstack, "timestamp": str(int(time.time()))}
        error_text = {"message": f"{type(error).__name__}: {error}", "extraInfo": details}
        with open(os.environ[_ERROR_FILE], "x", encoding="utf-8") as file:
            json.dump({"message": error_text}, file)


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

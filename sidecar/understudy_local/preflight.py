"""Detects before the start that a command cannot run: one line in place of a traceback for each rank.

Rules: only certain errors are rejected: a missing script, a syntax error, and a missing module among the imports at the
top of the script. The imports are checked in order, up to the first statement that could change where the next modules
are found: one that is no import, or an import of a module that was not installed with the interpreter. The user's
interpreter runs the check, because its version and environment may differ from this one's. No code of the user is run.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from understudy_launcher.command_parser import FILE, python_call, python_program

LOOK_WITHIN_S = 20.0
#: Prints the error as its only line. argv: the kind of program, its target, and the folder with our packages.
_LOOK = r"""
import ast, importlib.util, os, sys, sysconfig

def syntax_error(source, name):
    try:
        compile(source, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        return "%s, line %s: %s: %s" % (name, error.lineno, type(error).__name__, error.msg)
    return ""

def imports(source):
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield statement.lineno, alias.name
        elif isinstance(statement, ast.ImportFrom) and not statement.level:
            yield statement.lineno, statement.module
        elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            return

def installed(spec):
    if spec.origin in ("built-in", "frozen"):
        return True
    folders = {os.path.realpath(path) for path in sysconfig.get_paths().values()}
    folders.add(os.path.realpath(sys.argv[3]))
    origin = os.path.realpath(spec.origin or "")
    return any(origin.startswith(folder + os.sep) for folder in folders)

def missing(source, name):
    for line, module in imports(source):
        top = module.partition(".")[0]
        spec = importlib.util.find_spec(top)
        if spec is None:
            return (
                "%s, line %s: it imports %s, which %s does not have: install it there, or start the script with the "
                "Python that has it" % (name, line, top, sys.executable)
            )
        if not installed(spec):
            return ""
    return ""

kind, target = sys.argv[1:3]
if kind == "file":
    sys.path[0] = os.path.dirname(os.path.realpath(target))
    source, name = open(target, "rb").read(), target
else:
    source, name = target, "<string>"
if kind == "module":
    top = target.partition(".")[0]
    found = "" if importlib.util.find_spec(top) else "%s has no module %r" % (sys.executable, top)
else:
    found = syntax_error(source, name) or missing(source, name)
print(found)
"""


def refusal(command: Sequence[str], shipped: Path, env: Mapping[str, str]) -> str:
    """Why this command cannot start; "" if it may. shipped: the folder with the packages that workers may import."""
    program = python_call(command)
    if program is None:
        return ""
    if program.kind == FILE and not os.path.exists(program.target):
        return f"there is no file {program.target!r}"
    if python_program(command) is None:
        return ""  # a folder, a zip file or a compiled file
    path = ":".join(part for part in (env.get("PYTHONPATH"), str(shipped)) if part)
    look = [program.interpreter, *program.options, "-c", _LOOK, program.kind, program.target, str(shipped)]
    try:
        done = subprocess.run(
            look,
            env={**env, **dict(program.env), "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LOOK_WITHIN_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""

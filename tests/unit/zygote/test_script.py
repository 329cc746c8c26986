"""A script in a fork sees the same state as in its own process."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.unit.zygote.conftest import Make
from tests.unit.zygote.forking import fresh
from understudy_launcher import error_files

#: The state that a script can query about itself, and the ways in which it can end.
PROBE = """
import __main__, atexit, json, os, pickle, sys, threading
own = {k: repr(v) for k, v in sorted(vars(__main__).items()) if k.startswith("__") and k != "__builtins__"}
print(json.dumps({"argv": sys.argv, "path": sys.path, "orig": getattr(sys, "orig_argv", [None])[1:], "own": own,
                  "name": __name__, "cwd": os.getcwd(), "modules": __main__ is sys.modules["__main__"]}))
class Own:
    pass
atexit.register(lambda: print("at exit", type(pickle.loads(pickle.dumps(Own()))).__qualname__))
threading.Thread(target=lambda: (threading.main_thread().join(), print("a thread")), daemon=False).start()
def fail():
    raise ValueError("the script's own")
end = sys.argv[1] if len(sys.argv) > 1 else ""
if end == "fails":
    fail()
if end == "hook":
    sys.excepthook = lambda *error: print("hook", error[0].__name__)
    fail()
if end == "text":
    sys.exit("a last word")
if end == "os":
    os._exit(9)
if end.isdigit():
    sys.exit(int(end))
"""
ENDS = ["", "0", "1", "42", "fails", "hook", "text", "os"]


def same(text: str) -> str:
    """Removes the parts in which two processes may differ."""
    return re.sub(r"0x[0-9a-f]+", "0x…", text)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end or "none")
@pytest.mark.parametrize(
    "words",
    [("train.py",), ("-u", "train.py"), ("-I", "train.py"), ("sub/train.py",), ("link.py",)],
    ids=" ".join,
)
def test_a_file(folder: Path, forking: Make, words: tuple[str, ...], end: str) -> None:
    (folder / "sub").mkdir()
    for name in ("train.py", "sub/train.py"):
        (folder / name).write_text(PROBE)
    (folder / "link.py").symlink_to(folder / "sub" / "train.py")
    arguments = [end] if end else []
    expected = fresh(sys.executable, *words, *arguments)
    seen = forking(*words, *arguments).run()
    assert (seen.code, seen.err) == (expected.code, expected.err)
    assert same(seen.out) == same(expected.out)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end or "none")
@pytest.mark.parametrize("module", ["package", "package.train", "missing"])
def test_a_module(folder: Path, forking: Make, module: str, end: str) -> None:
    (folder / "package").mkdir()
    for name in ("__init__", "__main__", "train"):
        (folder / "package" / f"{name}.py").write_text("" if name == "__init__" else PROBE)
    words = ["-m", module, *([end] if end else [])]
    expected = fresh(sys.executable, *words)
    seen = forking(*words).run()
    assert (seen.code, seen.err) == (expected.code, expected.err)
    assert same(seen.out) == same(expected.out)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end or "none")
def test_code(forking: Make, end: str) -> None:
    words = ["-c", PROBE.replace("pickle.loads(pickle.dumps(Own()))", "Own()"), *([end] if end else [])]
    expected = fresh(sys.executable, *words)
    seen = forking(*words).run()
    assert (seen.code, same(seen.out), seen.err) == (expected.code, same(expected.out), expected.err)


def test_a_neighboring_file_is_imported_and_not_shadowed_by_ours(folder: Path, forking: Make) -> None:
    for name in ("serve", "script", "child", "store"):
        (folder / f"{name}.py").write_text(f"said = {name!r}")
    (folder / "train.py").write_text("import serve, script, child, store\nprint(serve.said, script.said, store.said)")
    assert forking("train.py").run().out == "serve script store\n"


def test_an_argument_parser_names_the_script(folder: Path, forking: Make) -> None:
    (folder / "train.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()")
    expected = fresh(sys.executable, "train.py", "--wrong")
    seen = forking("train.py", "--wrong").run()
    assert (seen.code, seen.err) == (expected.code, expected.err)
    assert "train.py: error" in seen.err


def test_each_fork_reads_the_current_script(folder: Path, forking: Make) -> None:
    (folder / "train.py").write_text("print('first')")
    both = forking("train.py")
    assert both.run().out == "first\n"
    (folder / "train.py").write_text("print('second')")
    assert both.run().out == "second\n"


def test_a_missing_script_is_reported_as_by_python(folder: Path, forking: Make) -> None:
    (folder / "train.py").write_text("")
    forks = forking("train.py")
    (folder / "train.py").unlink()
    seen = forks.run()
    expected = fresh(sys.executable, "train.py")
    assert (seen.code, seen.err) == (expected.code, expected.err)


@pytest.mark.parametrize("recorded", [False, True])
def test_the_exception_is_in_torchs_error_file_unless_torch_has_written_it(
    folder: Path, forking: Make, recorded: bool
) -> None:
    file = folder / "error.json"
    record = f"open({str(file)!r}, 'w').write('torch was first')\n" if recorded else ""
    (folder / "train.py").write_text(f"{record}raise ValueError('no data')")
    assert forking("train.py", env={"TORCHELASTIC_ERROR_FILE": str(file)}).run().code == 1
    if recorded:
        assert file.read_text() == "torch was first"
    else:
        failure = error_files.read(str(file))
        assert failure.message == "ValueError: no data"
        # and so is its traceback, which begins in the script
        first, frame, *_, last = failure.traceback.splitlines()
        assert (first, last) == ("Traceback (most recent call last):", "ValueError: no data")
        assert frame.endswith('train.py", line 1, in <module>')


def test_the_text_of_an_exit_is_in_torchs_error_file(folder: Path, forking: Make) -> None:
    file = folder / "error.json"
    (folder / "train.py").write_text("import sys\nsys.exit('no data in /data')")
    seen = forking("train.py", env={"TORCHELASTIC_ERROR_FILE": str(file)}).run()
    assert (seen.code, seen.err) == (1, "no data in /data\n")
    failure = error_files.read(str(file))
    assert failure.message == "SystemExit: no data in /data"
    assert failure.traceback.splitlines()[1].endswith('train.py", line 2, in <module>')


@pytest.mark.parametrize("code", ["", "None", "0", "3", "True"])
def test_an_exit_without_a_text_writes_no_error_file(folder: Path, forking: Make, code: str) -> None:
    (folder / "train.py").write_text(f"import sys\nsys.exit({code})")
    forking("train.py", env={"TORCHELASTIC_ERROR_FILE": str(folder / "error.json")}).run()
    assert not (folder / "error.json").exists()

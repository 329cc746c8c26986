"""Which state a fork inherits from its zygote, and which not."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.launcher.fake_sidecar import alive, wait_for
from tests.unit.zygote.conftest import Make
from tests.unit.zygote.forking import Forking, fresh
from understudy_launcher import events as e
from understudy_launcher.log_process import Outputs
from understudy_launcher.step_page import StepFiles
from understudy_launcher.zygote import ForkRequest, WorkerStatus


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


def pythonpath(folder: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(folder)}


# Imports --------------------------------------------------------------------------------------------------------------


def test_a_preloaded_module_is_imported_once(folder: Path, forking: Make) -> None:
    write(folder, big="print('imported')", train="import sys; print('big' in sys.modules)")
    forks = forking("train.py", preload=["big"], env=pythonpath(folder))
    assert forks.said()[0] == "imported\n"
    assert [forks.run().out for _ in range(2)] == ["True\n", "True\n"]


@pytest.mark.parametrize("wrong", ["import missing_too", "1/0", "class"])
def test_a_module_that_cannot_be_preloaded_is_named_and_the_others_are_preloaded(
    folder: Path, forking: Make, wrong: str
) -> None:
    write(folder, broken=wrong, fine="", train="import sys; print('fine' in sys.modules)")
    forks = forking("train.py", preload=["broken", "missing", "fine"], env=pythonpath(folder))
    assert isinstance(forks.start, e.ZygoteReady)
    assert set(forks.start.missing) == {"broken", "missing"}
    assert forks.start.missing["missing"] == "ModuleNotFoundError: No module named 'missing'"
    assert forks.run().out == "True\n"


def test_the_output_of_a_preload_is_not_repeated_by_each_fork(folder: Path, forking: Make) -> None:
    write(folder, loud="import sys; sys.stdout.write('no newline'); sys.stderr.write('nor here')", train="")
    forks = forking("train.py", preload=["loud"], env=pythonpath(folder))
    for _ in range(3):
        forks.run()
    assert forks.said() == ("no newline", "nor here")


# Fork safety ----------------------------------------------------------------------------------------------------------


def test_a_zygote_with_a_thread_of_a_preloaded_module_is_not_forked(folder: Path, forking: Make) -> None:
    write(folder, threads="import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()")
    write(folder, train="")
    forks = forking("train.py", preload=["threads"], env=pythonpath(folder))
    assert isinstance(forks.start, e.ZygoteLost)
    assert forks.start.is_final
    assert re.fullmatch(
        r"the import of threads starts a thread \(Thread-1.*\), and a process with threads cannot be forked safely. "
        r"Remove the module from launcher.preload, or configure it to start no threads during its import",
        forks.start.reason,
    )
    assert forks.fork(0) == []


#: A thread that Python does not know, with the name of the arrow allocator's thread.
THREAD_OF_C = """
import ctypes, time
libc = ctypes.CDLL(None)
libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, ctypes.cast(libc.pause, ctypes.c_void_p), None)
others = lambda: [t for t in __import__("os").listdir("/proc/self/task") if int(t) != __import__("os").getpid()]
while not others(): time.sleep(0.01)
open(f"/proc/self/task/{others()[0]}/comm", "w").write("jemalloc_bg_thd")
"""


def test_the_module_at_fault_is_named_with_its_thread_even_if_that_is_not_pythons(folder: Path, forking: Make) -> None:
    write(folder, innocent="", pool=THREAD_OF_C, fine="", train="")
    forks = forking("train.py", preload=["innocent", "pool", "fine"], env=pythonpath(folder))
    assert isinstance(forks.start, e.ZygoteLost)
    assert forks.start.reason.startswith("the import of pool starts a thread (jemalloc_bg_thd), ")


def test_the_reason_against_a_fork_is_reported_even_if_the_zygote_has_ended(folder: Path, forking: Make) -> None:
    late = """
import os, threading
thread = threading.Thread(target=threading.Event().wait, daemon=True)
os.register_at_fork(after_in_parent=lambda: thread.ident or thread.start())
"""
    write(folder, late=late, train="")
    forks = forking("train.py", preload=["late"], env=pythonpath(folder))
    forks.fork(0)
    forks.zygote._send({"check": 1})
    wait_for(lambda: not alive(forks.zygote.pid), "the end of the zygote")
    assert forks.fork(0) == []
    gone = forks.hear(e.ZygoteLost)
    assert isinstance(gone, e.ZygoteLost)
    assert (gone.is_final, gone.reason[:8]) == (True, "a thread")


def test_at_most_five_threads_are_named(folder: Path, forking: Make) -> None:
    starts = (
        "import threading\nfor n in range(9): threading.Thread(target=threading.Event().wait, name=f't{n}').start()"
    )
    write(folder, many=starts, train="")
    forks = forking("train.py", preload=["many"], env=pythonpath(folder))
    assert isinstance(forks.start, e.ZygoteLost)
    assert forks.start.reason.startswith("the import of many starts 9 threads (t")
    assert forks.start.reason.partition("), and")[0].count(",") == 4


def test_a_thread_that_starts_after_the_imports_is_named(folder: Path, forking: Make) -> None:
    late = "import threading\nt = threading.Timer(0.3, threading.Event().wait)\n"
    late += "import os\nos.register_at_fork(after_in_parent=lambda: t.start() if not t.ident else None)"
    write(folder, late=late, train="")
    forks = forking("train.py", preload=["late"], env=pythonpath(folder))
    assert isinstance(forks.start, e.ZygoteReady)
    forks.fork(0)
    forks.zygote.fork({1: ForkRequest({}, (-1, -1))})
    gone = forks.hear(e.ZygoteLost)
    assert isinstance(gone, e.ZygoteLost)
    assert re.match(
        r"a thread \(Thread-1.*\) started after the imports, .* Find the module that starts them", gone.reason
    )


def test_threads_that_end_at_a_fork_are_no_obstacle(folder: Path, forking: Make) -> None:
    """As OpenBLAS's threads do."""
    write(
        folder,
        pool="""
import os, threading
go = threading.Event()
thread = threading.Thread(target=go.wait, daemon=True)
thread.start()
def end():
    go.set()
    thread.join()
os.register_at_fork(before=end)
""",
        train="print('forked')",
    )
    forks = forking("train.py", preload=["pool"], env=pythonpath(folder))
    assert forks.run().out == "forked\n"


def test_a_fork_in_which_cuda_would_fail_becomes_a_fresh_process(folder: Path, forking: Make) -> None:
    (folder / "torch").mkdir()
    write(folder / "torch", __init__="class G:\n def seed(self): pass\ndefault_generator = G()")
    write(folder / "torch", cuda="import os; home = os.getpid()\ndef _is_in_bad_fork(): return os.getpid() != home")
    write(folder, train="import sys, os; print('torch.cuda' in sys.modules, sys.argv[1:], os.environ['RANK'])")
    forks = forking("train.py", "--lr", "1", preload=["json", "torch.cuda"], env=pythonpath(folder))
    assert isinstance(forks.start, e.ZygoteReady)
    assert forks.start.cuda == "torch.cuda"
    (pid,) = forks.fork(0, RANK="3")
    assert forks.code(pid) == 0
    assert forks.said()[0] == "False ['--lr', '1'] 3\n"


# A machine that cannot fork -------------------------------------------------------------------------------------------

#: While the file `full` exists, the container has as many processes as it may have.
LIMITED = """
import errno, os
fork = os.fork
def limited():
    if os.path.exists("full"):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    return fork()
os.fork = limited
"""


@pytest.fixture
def full(folder: Path, forking: Make) -> tuple[Forking, int]:
    """A zygote that cannot fork any more, and its worker, which waits for the file `end`."""
    write(folder, limited=LIMITED, train="import os, time\nwhile not os.path.exists('end'): time.sleep(0.01)")
    forks = forking("train.py", preload=["limited"], env=pythonpath(folder))
    (worker,) = forks.fork(0)
    (folder / "full").touch()
    return forks, worker


def test_a_worker_that_cannot_be_forked_ends_no_other(folder: Path, full: tuple[Forking, int]) -> None:
    forks, worker = full
    assert forks.fork(1) == []
    (folder / "full").unlink()
    (folder / "end").touch()
    (later,) = forks.fork(1)
    assert (forks.code(worker), forks.code(later)) == (0, 0)


def test_a_store_that_cannot_be_forked_is_reported_and_ends_no_worker(folder: Path, full: tuple[Forking, int]) -> None:
    forks, worker = full
    forks.zygote.make_store(())
    failed = forks.hear(e.StoreFailed, e.ZygoteLost)
    assert failed == e.StoreFailed("[Errno 11] Resource temporarily unavailable")
    (folder / "end").touch()
    assert forks.code(worker) == 0


def test_a_second_zygote_that_cannot_be_forked_ends_no_worker(folder: Path, full: tuple[Forking, int]) -> None:
    forks, worker = full
    second = forks.zygote.start_learning(["json"], [], None)
    assert wait_for(second.receive, "its end") == [e.LearningEnded()]
    (folder / "end").touch()
    assert forks.code(worker) == 0


# Random numbers -------------------------------------------------------------------------------------------------------


GENERATOR = "import os\nclass G:\n drawn = 0\n def seed(self): self.drawn = os.urandom(8).hex()\n"


def test_two_forks_draw_different_numbers(folder: Path, forking: Make) -> None:
    for package in ("torch", "numpy"):
        (folder / package).mkdir()
    write(folder / "torch", __init__=f"{GENERATOR}default_generator = G()")
    write(folder / "numpy", __init__="", random=f"{GENERATOR}state = G()\nseed = state.seed")
    drawn = "random.random(), torch.default_generator.drawn, n.state.drawn"
    write(folder, train=f"import random, torch, numpy.random as n\nprint({drawn})")
    forks = forking("train.py", preload=["random", "torch", "numpy.random"], env=pythonpath(folder))
    first, second = (forks.run() for _ in range(2))
    assert (first.err, len(first.out.split())) == ("", 3)
    assert all(one != other for one, other in zip(first.out.split(), second.out.split(), strict=True))


# Environment, files, signals ------------------------------------------------------------------------------------------


def test_a_fork_has_the_rounds_variables_beside_the_zygotes(folder: Path, forking: Make) -> None:
    write(folder, train="import os; print(os.environ['RANK'], os.environ['KEPT'], os.getenv('RANK'))")
    forks = forking("train.py", env={"KEPT": "yes", "RANK": "none yet"})
    assert forks.run(RANK="5").out == "5 yes 5\n"
    assert forks.run(RANK="6").out == "6 yes 6\n"


def test_the_step_files_are_inherited_under_high_numbers_and_nothing_else_is(folder: Path, forking: Make) -> None:
    write(
        folder,
        train="""
import os, subprocess
bell, page = map(int, os.environ["UNDERSTUDY_STEP_FD"].split(","))
os.write(bell, b"!")
os.pwrite(page, b"step", 0)
open_here = {int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}
print(min(bell, page) >= 200, sorted(open_here - {0, 1, 2, bell, page}))
listed = ["sh", "-c", f"ls /proc/self/fd | grep -c -e {bell} -e {page}"]
print(subprocess.run(listed, close_fds=False, capture_output=True).stdout)
""",
    )
    forks = forking("train.py")
    files = StepFiles(str(folder))
    pids = forks.zygote.fork({0: ForkRequest({}, files.inherited)})
    files.given()
    assert forks.code(pids[0]) == 0
    assert os.read(files.bell, 100) == b"!"
    assert os.read(files.bell, 100) == b"", "no other process has the pipe open"
    assert os.pread(files.inherited[1], 4, 0) == b"step"
    files.close()
    assert forks.said()[0] == "True []\nb'2\\n'\n"


def test_a_fork_writes_to_its_own_outputs(folder: Path, forking: Make) -> None:
    write(folder, train="import os, sys; print('out'); os.system('echo err >&2'); sys.stdin.fileno()")
    forks = forking("train.py")
    (out_read, out), (err_read, err) = os.pipe(), os.pipe()
    files = StepFiles(str(folder))
    pids = forks.zygote.fork({0: ForkRequest({}, files.inherited, Outputs(out, err))})
    files.given()
    for fd in (out, err):
        os.close(fd)
    assert forks.code(pids[0]) == 0
    assert (os.read(out_read, 100), os.read(err_read, 100)) == (b"out\n", b"err\n")
    assert (os.read(out_read, 100), os.read(err_read, 100)) == (b"", b""), "no other process has the pipes open"
    files.close()
    for fd in (out_read, err_read):
        os.close(fd)
    assert forks.said() == ("", "")


SIGNALS = """
import signal
for number in sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}):
    print(number, str(signal.getsignal(number)).partition(" at ")[0])
print(signal.set_wakeup_fd(-1), signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""


def test_signals_are_as_python_sets_them(folder: Path, forking: Make) -> None:
    write(folder, train=SIGNALS)
    assert forking("train.py").run().out == fresh(sys.executable, "train.py").out


def test_each_fork_leads_its_own_session(folder: Path, forking: Make) -> None:
    write(folder, train="import os; print(os.getsid(0) == os.getpgid(0) == os.getpid())")
    assert forking("train.py").run().out == "True\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_a_forks_death_by_a_signal_is_reported(folder: Path, forking: Make, number: int) -> None:
    write(folder, train="import time; time.sleep(600)")
    forks = forking("train.py")
    (pid,) = forks.fork(0)
    os.kill(pid, number)
    assert forks.code(pid) == -number


def test_forks_die_with_the_zygote(folder: Path, forking: Make) -> None:
    write(folder, train="print('runs', flush=True); import time; time.sleep(600)")
    forks = forking("train.py")
    pids = forks.fork(0, 1)
    wait_for(lambda: forks.said()[0].count("runs") == 2, "both to run")
    forks.zygote.end()
    wait_for(lambda: not any(alive(pid) for pid in pids), "the end of both")


def test_the_zygote_ends_when_the_launcher_has_ended(folder: Path, forking: Make) -> None:
    write(folder, train="import os, time; print(os.getppid(), flush=True); time.sleep(600)")
    forks = forking("train.py")
    (pid,) = forks.fork(0)
    wait_for(lambda: "\n" in forks.said()[0], "the fork to run")
    zygote = int(forks.said()[0])
    forks.zygote._hang_up()  # like a launcher that has ended
    wait_for(lambda: not alive(zygote), "the end of the zygote")
    wait_for(lambda: not alive(pid), "the end of its fork")


def test_a_frozen_zygote_is_given_up_and_ended(folder: Path, forking: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy_launcher.zygote.FORKS_WITHIN_S", 0.2)
    write(folder, train="")
    forks = forking("train.py")
    frozen = forks.zygote.pid
    os.kill(frozen, signal.SIGSTOP)
    assert forks.fork(0, 1) == []
    gone = forks.hear(e.ZygoteLost)
    assert gone == e.ZygoteLost("it did not fork within 0.2 s", is_final=False)
    os.waitpid(frozen, 0)


def test_of_workers_that_have_ended_a_killed_one_is_reported_first(folder: Path, forking: Make) -> None:
    """The others may have ended because of it, and the first that the launcher learns of becomes the cause."""
    end_with_1 = "signal.signal(signal.SIGTERM, lambda *_: os._exit(1))"
    write(folder, train=f"import os, signal, time; {end_with_1}; print('runs', flush=True); time.sleep(600)")
    forks = forking("train.py")
    older, newer = forks.fork(0, 1)
    wait_for(lambda: forks.said()[0] == "runs\nruns\n", "both workers to run")
    # given a zygote that has not looked since the older worker exited and the newer one was killed
    os.kill(forks.zygote.pid, signal.SIGSTOP)
    os.kill(older, signal.SIGTERM)
    wait_for(lambda: not alive(older), "the end of the older worker")
    os.kill(newer, signal.SIGKILL)
    wait_for(lambda: not alive(newer), "the end of the newer worker")
    # when it looks, then it reports the killed one first
    os.kill(forks.zygote.pid, signal.SIGCONT)
    assert [forks.hear(WorkerStatus) for _ in range(2)] == [WorkerStatus(newer, 9), WorkerStatus(older, 1 << 8)]


@pytest.fixture
def many_open_files() -> Iterator[None]:
    """This process has more open files than select(2) allows."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    yield
    for file in files:
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.usefixtures("many_open_files")
def test_the_launcher_of_many_workers_has_many_open_files(folder: Path, forking: Make) -> None:
    write(folder, train="print('trains')")
    assert forking("train.py").run().out == "trains\n"


def test_a_command_that_is_too_long_for_an_order_is_not_forked_and_the_zygote_stays(
    folder: Path, forking: Make
) -> None:
    write(folder, train="")
    forks = forking("train.py", *["x" * 100_000] * 3)
    assert forks.fork(0, 1) == []
    forks.zygote.check(7)
    assert forks.hear(e.ZygoteChecked, e.ZygoteLost) == e.ZygoteChecked(7)


# Children of scripts --------------------------------------------------------------------------------------------------

POOL = """
import multiprocessing as mp, os, sys
class Own:
    value = 7
def work(own):
    return own.value, os.getppid() == int(os.environ["PARENT"]) or sys.argv[1] == "forkserver"
if __name__ == "__main__":
    os.environ["PARENT"] = str(os.getpid())
    with mp.get_context(sys.argv[1]).Pool(2) as pool:
        print(pool.map(work, [Own(), Own()]))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(folder: Path, forking: Make, method: str) -> None:
    write(folder, train=POOL)
    forks = forking("train.py", method, preload=["multiprocessing"])
    first, second = forks.run(), forks.run()
    assert (first.out, first.err, first.code) == ("[(7, True), (7, True)]\n", "", 0)
    assert second == first


def test_forks_of_one_order_run_in_parallel(folder: Path, forking: Make) -> None:
    write(folder, train="import os; print(os.environ['RANK'], flush=True); import time; time.sleep(600)")
    forks = forking("train.py")
    start = time.monotonic()
    pids = forks.fork(*range(8), RANK="x")
    assert len(set(pids)) == 8
    wait_for(lambda: forks.said()[0].count("x") == 8, "all of them to run")
    assert time.monotonic() - start < 30

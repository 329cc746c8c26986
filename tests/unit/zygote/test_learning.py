"""The fork server imports the modules that a worker has imported, unless a fork would run differently with one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.unit.launcher.fake_sidecar import wait_for
from tests.unit.zygote.forking import MODULE
from understudy_launcher import events as e
from understudy_launcher.command_parser import python_program
from understudy_launcher.fork_server import ForkServer
from understudy_launcher.zygote import ForkRequest, WorkerStatus, ZygoteMessage

#: The first line of each script: whether the module `big` is imported already.
HAS_BIG = "import sys; open(sys.argv[1], 'w').write(str('big' in sys.modules))"


class Training:
    """A fork server, and a script that is run by forks of it."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        command = [sys.executable, str(folder / "train.py"), str(folder / "out")]
        program = python_program(command)
        assert program is not None
        self._folder, self._messages = folder, list[ZygoteMessage]()
        self.server = ForkServer(program, command, MODULE, lambda fd: None, lambda fd: None)
        self.record = os.memfd_create("imports")
        os.ftruncate(self.record, 1 << 18)
        self._env = {**os.environ, **env}
        self.start()

    def start(self) -> None:
        self.server.start(self._env, ["json"])
        self.hear(e.ZygoteReady)

    def hear(self, kind: type[ZygoteMessage], pid: int | None = None) -> ZygoteMessage:
        """The next message of this kind, or of the end of this worker."""

        def found() -> ZygoteMessage | None:
            self._messages += self.server.receive()
            of_kind = (message for message in self._messages if isinstance(message, kind))
            return next((one for one in of_kind if pid is None or getattr(one, "pid", None) == pid), None)

        message = wait_for(found, kind.__name__)
        assert message is not None
        self._messages.remove(message)
        return message

    def run(self, *, recorded: bool = False, **env: str) -> str:
        """Run the script in a fork. Return what it has written."""
        files = os.pipe()
        record = self.record if recorded else None
        (pid,) = self.server.fork({0: ForkRequest({"RANK": "0", **env}, files[::-1], record=record)}).values()
        for file in files:
            os.close(file)
        assert self.hear(WorkerStatus, pid) == WorkerStatus(pid, 0)
        return (self._folder / "out").read_text()

    def learn(self, *left_out: str, modules: Sequence[str] | None = None) -> e.ModulesLearned:
        self.server.learn(e.Learn(None if modules is None else tuple(modules), left_out), self.record)
        learned = self.hear(e.ModulesLearned)
        assert isinstance(learned, e.ModulesLearned)
        return learned

    def refusal(self) -> tuple[str, str]:
        """Let it learn. Return the module that it refuses, and the reason."""
        self.server.learn(e.Learn(None), self.record)
        refused = self.hear(e.ModuleRefused)
        assert isinstance(refused, e.ModuleRefused)
        return refused.module, refused.reason


Train = Callable[..., Training]


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Train]:
    """Creates a training: the text of its script, and of the modules that are installed."""
    trainings: list[Training] = []

    def make(script: str, **installed: str) -> Training:
        site = tmp_path / "site"
        (site / "thing-1.dist-info").mkdir(parents=True)
        for name, text in installed.items():
            (site / f"{name}.py").write_text(text)
        (tmp_path / "train.py").write_text(script)
        trainings.append(Training(tmp_path, {"PYTHONPATH": str(site)}))
        return trainings[-1]

    yield make
    for training in trainings:
        training.server.end()
        os.close(training.record)


def test_later_workers_have_the_modules_that_a_worker_has_imported(train: Train) -> None:
    script = f"{HAS_BIG}; import big"
    training = train(script, big="import decimal")
    assert training.run(recorded=True) == "False"
    assert "big" in training.learn().modules
    assert training.run() == "True"


def test_only_modules_whose_import_is_needed_are_named(train: Train) -> None:
    training = train(f"{HAS_BIG}; import big, json", big="import small", small="import smaller", smaller="")
    training.run(recorded=True)
    assert training.learn().modules == ("big",)


def test_a_module_that_the_worker_only_looks_for_is_not_learned(train: Train) -> None:
    script = f"{HAS_BIG}; import importlib.util; importlib.util.find_spec('heavy'); import big, last"
    training = train(script, heavy="", big="", last="")
    training.run(recorded=True)
    assert training.learn().modules == ("big",)  # of the last import is not known whether it succeeds


def test_the_scripts_own_modules_are_not_learned(train: Train, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import big, small")
    training = train(f"{HAS_BIG}; import mine, small", big="", small="")
    training.run(recorded=True)
    assert training.learn().modules == ("big",)


def test_an_installed_module_that_the_script_replaces_by_its_own_is_not_learned(train: Train, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "common.py").write_text("")
    script = f"{HAS_BIG}; import sys; sys.path.insert(0, {str(tmp_path / 'other')!r}); import common, big, last"
    training = train(script, common="", big="", last="")
    training.run(recorded=True)
    assert training.learn().modules == ("big",)


def test_imports_of_the_workers_children_are_not_recorded(train: Train) -> None:
    fork = (
        "import os; child = os.fork() or (__import__('heavy'), __import__('last'), os._exit(0)); os.waitpid(child, 0)"
    )
    training = train(f"{HAS_BIG}\n{fork}\nimport big, last", heavy="", big="", last="")
    training.run(recorded=True)
    assert training.learn().modules == ("big",)


def test_modules_that_another_pod_has_learned_are_imported(train: Train) -> None:
    training = train(f"{HAS_BIG}; import big", big="")
    assert training.learn(modules=["big", "missing"]).modules == ("big",)
    assert training.run() == "True"


# What a fork would run differently ------------------------------------------------------------------------------------


def test_a_second_zygote_that_has_imported_no_more_ends(train: Train) -> None:
    training = train(f"{HAS_BIG}; import json")
    before = training.server.pids
    training.run(recorded=True)
    assert training.learn().modules == ()
    assert training.server.pids == before
    training.run()


def test_a_module_that_starts_a_thread_is_refused_and_later_forks_work(train: Train) -> None:
    threads = "import threading; threading.Thread(target=threading.Event().wait, daemon=True, name='bg').start()"
    training = train(f"{HAS_BIG}; import big, bad, last", bad=threads, big="", last="")
    training.run(recorded=True)
    module, reason = training.refusal()
    assert module == "bad"
    assert reason == "its import starts a thread (bg), and a process with threads cannot be forked safely"
    assert training.learn("bad").modules == ("big",)
    assert training.run() == "True"


def test_modules_of_a_package_that_is_left_out_are_left_out_too(train: Train) -> None:
    training = train(f"{HAS_BIG}; import big")
    assert training.learn("xml", modules=["xml.dom", "xmlrpc.client"]).modules == ("xmlrpc.client",)


@pytest.mark.parametrize("read", ["os.environ['RANK']", "os.getenv('RANK')", "'RANK' in os.environ"])
def test_a_module_that_reads_a_variable_of_the_round_is_refused(train: Train, read: str) -> None:
    training = train(f"{HAS_BIG}; import ranked, last", ranked=f"import os; {read} if 1 else 0", last="")
    training.run(recorded=True)
    assert training.refusal() == ("ranked", "its import reads RANK, which has another value in each worker or round")


def test_a_module_that_reads_a_variable_that_the_script_sets_before_is_refused(train: Train, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import os; os.environ['THING_HOME'] = '/data'")
    thing = "import os; os.environ.get('THING_HOME')"
    training = train(f"{HAS_BIG}; import mine, thing, last", thing=thing, last="")
    training.run(recorded=True)
    assert training.refusal() == ("thing", "its import reads THING_HOME, which the script sets before")


def test_a_module_that_reads_a_variable_which_another_installed_module_sets_is_learned(train: Train) -> None:
    script = f"{HAS_BIG}; import setter, thing, last"
    setter, thing = "import os; os.environ['THING_HOME'] = '/data'", "import os; os.environ['THING_HOME']"
    training = train(script, setter=setter, thing=thing, last="")
    training.run(recorded=True)
    assert training.learn().modules == ("setter", "thing")


def test_a_module_that_reads_variables_which_the_scripts_text_sets_is_refused(train: Train) -> None:
    script = f"import os; os.environ['HF_HOME'] = '/data'; {HAS_BIG}; import datasets, last"
    training = train(script, datasets="", last="")
    training.run(recorded=True)
    module, reason = training.refusal()
    assert module == "datasets"
    assert reason.startswith("line 1 sets HF_HOME before the script imports datasets")


def test_the_output_of_an_import_is_not_repeated(train: Train, capfd: pytest.CaptureFixture[str]) -> None:
    training = train(f"{HAS_BIG}; import loud, last", loud="print('imported', flush=True)", last="")
    training.run(recorded=True)
    assert training.learn().modules == ("loud",)
    assert capfd.readouterr().out == "imported\n"


# The two zygotes ------------------------------------------------------------------------------------------------------


@pytest.fixture
def learned(train: Train) -> Training:
    """Its second zygote is ready. A signal makes it unfit: it is a thread that starts after the imports."""
    threads = "import signal, threading; start = threading.Thread(target=threading.Event().wait, daemon=True).start"
    training = train(
        f"{HAS_BIG}; import big, last",
        big=f"{threads}; signal.signal(signal.SIGUSR1, lambda *signal: start())",
        last="",
    )
    training.run(recorded=True)
    training.learn()
    return training


def test_the_first_zygote_forks_if_the_second_one_ends_before_its_first_fork(learned: Training) -> None:
    first, second = learned.server.pids
    os.kill(second, 9)
    assert learned.hear(e.SecondZygoteLost) == e.SecondZygoteLost("it has ended")
    assert (learned.server.pids, learned.server.pid) == ((first,), first)
    assert learned.run() == "False"


@pytest.mark.parametrize("order", ["store", "check", "fork"])
def test_the_first_zygote_forks_if_the_second_one_cannot_fork_any_more(learned: Training, order: str) -> None:
    first, second = learned.server.pids
    os.kill(second, signal.SIGUSR1)
    if order == "store":
        learned.server.make_store([])
    elif order == "check":
        learned.server.check(7)
    else:
        assert learned.server.fork({0: ForkRequest({}, (-1, -1))}) == {}
    lost = learned.hear(e.SecondZygoteLost)
    assert isinstance(lost, e.SecondZygoteLost)
    assert "started after the imports" in lost.reason
    if order == "check":
        assert learned.hear(e.ZygoteChecked) == e.ZygoteChecked(7)  # of the first zygote
    assert learned.server.pid == first
    assert learned.run() == "False"


def test_an_import_that_does_not_end_is_killed(train: Train, tmp_path: Path) -> None:
    slow = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    training = train(f"{HAS_BIG}; import big", slow=slow)
    training.server.learn(e.Learn(("slow",)), None)
    pid = int(wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the import"))
    training.server.receive()
    training.server.end_learning()
    assert training.hear(WorkerStatus, pid) == WorkerStatus(pid, 9)


def test_the_end_of_a_second_zygote_with_workers_is_a_loss_and_the_next_start_imports_what_was_learned(
    learned: Training,
) -> None:
    assert learned.run() == "True"
    first, second = learned.server.pids
    os.kill(second, 9)
    assert learned.hear(e.ZygoteLost) == e.ZygoteLost("it has ended", is_final=False)
    assert learned.server.pids == (0,)
    learned.start()
    assert learned.server.pid not in (first, second)
    assert learned.run() == "True"


def test_the_second_zygote_ends_with_the_first(train: Train) -> None:
    training = train(f"{HAS_BIG}; import big, last", big="", last="")
    training.run(recorded=True)
    training.learn()
    first, second = training.server.pids
    os.kill(first, 9)
    wait_for(
        lambda: not os.path.exists(f"/proc/{second}") or "Z" in Path(f"/proc/{second}/stat").read_text(), "its end"
    )


def test_a_damaged_record_teaches_nothing(train: Train) -> None:
    training = train(HAS_BIG)
    os.pwrite(training.record, b"\xff" * 64, 0)
    assert training.learn().modules == ()

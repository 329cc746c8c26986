"""A bare jax.distributed.initialize() in a worker gets the address, the number and the processes of its round."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.unit.zygote.conftest import Make
from tests.unit.zygote.forking import Forking
from understudy_zygote import jax_cluster

#: As jax has them: subclasses put themselves on a list, and the first one that is present is asked.
CLUSTERS = """
import os
class ClusterEnv:
    _cluster_types = []
    name = ""
    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        cls._cluster_types.append(cls)
    @classmethod
    def get_local_process_id(cls):
        return None
    @classmethod
    def detect(cls, timeout_secs):
        env = next(x for x in cls._cluster_types if x.is_env_present())
        port = os.environ.get("JAX_COORDINATOR_PORT")
        address = env.get_coordinator_address(timeout_secs=timeout_secs, override_coordinator_port=port)
        return env.name, address, env.get_process_count(), env.get_process_id(), env.get_local_process_id()
class K8sCluster(ClusterEnv):
    name = "k8s"
    @classmethod
    def is_env_present(cls):
        return True
    @classmethod
    def get_coordinator_address(cls, timeout_secs, override_coordinator_port):
        return "10.0.0.9:55527"
    @classmethod
    def get_process_count(cls):
        return 9
    @classmethod
    def get_process_id(cls):
        return 8
"""
#: A store whose keys are files.
DISTRIBUTED = """
import os, time
class TCPStore:
    def __init__(self, host, port, world_size, is_master, timeout):
        assert (host, port, is_master, timeout.total_seconds()) == ("127.0.0.1", 29500, False, 7), (host, port, timeout)
    def _file(self, key):
        return "store-" + key.replace("/", "-")
    def set(self, key, value):
        with open(self._file(key) + "~", "w") as file:
            file.write(value)
        os.rename(self._file(key) + "~", self._file(key))
    def get(self, key):
        while not os.path.exists(self._file(key)):
            time.sleep(0.01)
        return open(self._file(key), "rb").read()
"""
SCRIPT = """
import os
from jax._src.clusters import ClusterEnv
line = " ".join(map(str, ClusterEnv.detect(timeout_secs=7)))
os.write(1, f"{line}\\n".encode())  # at once: two processes write
"""
#: As jax's coordinator in process 0: it listens after the call, and here until a process has connected.
COORDINATOR = """
import socket
if os.environ["RANK"] == "0":
    socket.create_server(("127.0.0.1", int(line.split()[1].partition(":")[2]))).accept()
"""
ROUND = {
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "RANK": "0",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "TORCHELASTIC_USE_AGENT_STORE": "False",
}


@pytest.fixture(params=["jax._src.clusters", "json"])
def forks(folder: Path, forking: Make, request: pytest.FixtureRequest) -> Forking:
    """A zygote that has imported jax, or one whose script imports it."""
    clusters = folder / "jax" / "_src" / "clusters"
    clusters.mkdir(parents=True)
    for package in (clusters.parent, clusters.parent.parent):
        (package / "__init__.py").touch()
    (clusters / "__init__.py").write_text(CLUSTERS)
    (clusters.parent / "cloud_tpu_init.py").write_text("running_in_cloud_tpu_vm = False\n")
    distributed = folder / "torch" / "distributed"
    distributed.mkdir(parents=True)
    (folder / "torch" / "__init__.py").touch()
    (distributed / "__init__.py").write_text(DISTRIBUTED)
    (folder / "train.py").write_text(SCRIPT)
    return forking("train.py", preload=[request.param], env={"PYTHONPATH": str(folder)})


def detected(forks: Forking, **env: str) -> str:
    run = forks.run(**ROUND | env)
    assert (run.code, run.err) == (0, "")
    return run.out.strip()


def test_jax_gets_the_processes_of_the_round_and_the_port_of_its_store_if_no_store_listens(forks: Forking) -> None:
    assert detected(forks) == "understudy 127.0.0.1:29500 4 0 None"


def test_if_a_pod_has_several_workers_each_has_one_device(forks: Forking) -> None:
    assert detected(forks, LOCAL_RANK="1", LOCAL_WORLD_SIZE="2") == "understudy 127.0.0.1:29500 4 0 1"


def test_an_address_of_ipv6_has_brackets(forks: Forking) -> None:
    assert detected(forks, MASTER_ADDR="fd00::1") == "understudy [fd00::1]:29500 4 0 None"


def test_a_port_that_the_user_sets_is_used(forks: Forking) -> None:
    listens = {"TORCHELASTIC_USE_AGENT_STORE": "True", "JAX_COORDINATOR_PORT": "1234"}
    assert detected(forks, **listens) == "understudy 127.0.0.1:1234 4 0 None"


def test_if_a_store_listens_the_process_of_rank_0_chooses_the_port_and_the_others_wait_until_it_listens_there(
    folder: Path, forks: Forking
) -> None:
    (folder / "train.py").write_text(SCRIPT + COORDINATOR)
    listens = {**ROUND, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    (waits,) = forks.fork(0, **{**listens, "RANK": "2"})
    (chooses,) = forks.fork(0, **listens)
    assert [forks.code(pid) for pid in (waits, chooses)] == [0, 0], forks.said()
    port = (folder / "store-understudy-jax-1").read_text()
    assert 1024 <= int(port) <= 65535
    assert sorted(forks.said()[0].splitlines()) == [
        f"understudy 127.0.0.1:{port} 4 0 None",
        f"understudy 127.0.0.1:{port} 4 2 None",
    ]


def test_after_the_timeout_jax_gets_an_address_at_which_nothing_listens(folder: Path, forks: Forking) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        (folder / "train.py").write_text(SCRIPT.replace("timeout_secs=7", "timeout_secs=0.05"))
        assert detected(forks, RANK="2", MASTER_PORT=str(port)) == f"understudy 127.0.0.1:{port} 4 2 None"


def test_a_worker_that_waits_for_long_calls_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = [0.0], []

    def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        now[0] += pause_s

    def refuse(*_: object) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("socket.create_connection", refuse)
    jax_cluster._wait_until_listens("10.0.0.1", 29500, 30.0)
    assert now[0] == pytest.approx(30.0, abs=0.25)
    assert pauses[0] == 0.01
    assert pauses == sorted(pauses)
    assert pauses[-1] == 0.25


def test_on_a_tpu_jax_asks_its_own_clusters(folder: Path, forks: Forking) -> None:
    (folder / "train.py").write_text(
        f"import jax._src.cloud_tpu_init as init\ninit.running_in_cloud_tpu_vm = True\n{SCRIPT}"
    )
    assert detected(forks) == "k8s 10.0.0.9:55527 9 8 None"


def test_a_program_without_the_variables_of_a_round_is_no_process_of_it(folder: Path, forks: Forking) -> None:
    (folder / "train.py").write_text(f"import os\ndel os.environ['RANK']\n{SCRIPT}")
    assert detected(forks) == "k8s 10.0.0.9:55527 9 8 None"


def test_a_jax_without_such_a_list_is_left_as_it_is(folder: Path, forking: Make) -> None:
    (folder / "jax" / "_src").mkdir(parents=True)
    (folder / "jax" / "_src" / "clusters.py").write_text("class ClusterEnv:\n    pass\n")
    (folder / "train.py").write_text("from jax._src.clusters import ClusterEnv\nprint(ClusterEnv.__subclasses__())\n")
    run = forking("train.py", preload=["json"], env={"PYTHONPATH": str(folder)}).run(**ROUND)
    assert (run.code, run.out, run.err) == (0, "[]\n", "")

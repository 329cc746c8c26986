"""The variables of a worker's environment."""

from __future__ import annotations

import pytest

from understudy_launcher.environment import (
    single_threaded,
    worker_environment,
    worker_grace_period_s,
    zygote_environment,
)
from understudy_protocol import pod
from understudy_protocol.enums import RoundToken
from understudy_protocol.launcher import StartWorkers

START = StartWorkers(
    RoundToken(1, 2, 7),
    group_rank=3,
    group_world_size=5,
    rank_offset=24,
    world_size=40,
    master_addr="10.1.2.3",
    master_port=31234,
)


def env(launcher: dict[str, str] | None = None, nproc: int = 8, error_file: str | None = "/e.json") -> dict[str, str]:
    return worker_environment(launcher or {}, START, 2, nproc, (200, 201), error_file)


def test_a_worker_gets_the_rounds_variables_as_from_torchrun() -> None:
    assert env() == {
        "RANK": "26",
        "LOCAL_RANK": "2",
        "WORLD_SIZE": "40",
        "LOCAL_WORLD_SIZE": "8",
        "GROUP_RANK": "3",
        "GROUP_WORLD_SIZE": "5",
        "NODE_RANK": "3",
        "ROLE_NAME": "default",
        "ROLE_RANK": "26",
        "ROLE_WORLD_SIZE": "40",
        "MASTER_ADDR": "10.1.2.3",
        "MASTER_PORT": "31234",
        "TORCHELASTIC_RUN_ID": "understudy",
        "TORCHELASTIC_RESTART_COUNT": "7",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": "/e.json",
        "OMP_NUM_THREADS": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "UNDERSTUDY_ROUND": "1.2.7",
        "UNDERSTUDY_STEP_FD": "200,201",
        "JOB_COMPLETION_INDEX": "3",
        "PYTHONPATH": "/understudy/python",
    }


@pytest.mark.parametrize(
    "name", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "JOB_COMPLETION_INDEX", "TORCHELASTIC_RESTART_COUNT"]
)
def test_the_round_overrides_the_manifest(name: str) -> None:
    assert env({name: "from-the-manifest"})[name] == env()[name]


@pytest.mark.parametrize("name", ["HOME", "NCCL_DEBUG", "TORCHELASTIC_RUN_ID", "UNDERSTUDY_OF_MY_OWN"])
def test_a_worker_keeps_the_users_variables(name: str) -> None:
    assert env({name: "mine"})[name] == "mine"


def test_a_worker_does_not_get_the_pods_internal_variables() -> None:
    torchruns = {"ENV_STEP_FIFO", "ENV_TORCHRUN", "ENV_FORK_FALLBACK"}  # torchrun runs without the launcher
    constants = {constant for constant in vars(pod) if constant.startswith("ENV_")} - torchruns
    internal = {getattr(pod, constant): "x" for constant in constants}
    for_workers = {pod.ENV_ROLLOUTS, pod.ENV_ROLLOUTS_SOCKET, pod.ENV_ROLLOUT_TOKEN_FILE, pod.ENV_START_TIMEOUT}
    for_workers |= {pod.ENV_SLOW_RANK_PERCENT, pod.ENV_SNAPSHOT_STORAGE_PATH}
    assert internal.keys() & env(internal).keys() == {
        pod.ENV_ROUND,
        pod.ENV_STEP_FD,
        pod.ENV_AUTOMATIC_STEPS,
        *for_workers,
    }


def test_a_worker_gets_the_number_of_its_file_for_snapshots() -> None:
    given = worker_environment({}, START, 0, 1, (7, 8), None, 9)
    assert given[pod.ENV_SNAPSHOT_FD] == "9"


def test_a_worker_gets_the_folder_of_snapshots_only_without_memory_for_them() -> None:
    launcher = {pod.ENV_SNAPSHOT_STORAGE_PATH: "/checkpoints"}
    given = [worker_environment(launcher, START, 0, 1, (7, 8), None, file) for file in (9, None)]
    assert [env.get(pod.ENV_SNAPSHOT_STORAGE_PATH) for env in given] == [None, "/checkpoints"]


def test_the_workers_package_comes_last_on_the_path() -> None:
    assert env({"PYTHONPATH": "/a:/b"})["PYTHONPATH"] == "/a:/b:/understudy/python"
    assert env({"UNDERSTUDY_FOLDER": "/shared"})["PYTHONPATH"] == "/shared/python"


def test_a_worker_gets_no_error_file_variable_if_no_folder_is_writable() -> None:
    assert "TORCHELASTIC_ERROR_FILE" not in env({"TORCHELASTIC_ERROR_FILE": "/of/torchrun"}, error_file=None)


@pytest.mark.parametrize(
    ("nproc", "manifest", "expected"),
    [(1, {}, None), (2, {}, "1"), (1, {"OMP_NUM_THREADS": "4"}, "4"), (8, {"OMP_NUM_THREADS": "4"}, "4")],
)
def test_the_number_of_threads_is_the_users_or_else_torchruns(
    nproc: int, manifest: dict[str, str], expected: str | None
) -> None:
    assert env(manifest, nproc).get("OMP_NUM_THREADS") == expected
    assert single_threaded(manifest, nproc) is (expected == "1")


DUMP, BUFFER, FORMER_BUFFER = "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"


@pytest.mark.parametrize(
    ("asked_s", "variables", "grace_s"),
    [
        (None, {}, 0.0),
        (None, {DUMP: "1"}, 5.0),
        (None, {DUMP: "True"}, 5.0),
        (None, {BUFFER: "2000"}, 5.0),
        (None, {FORMER_BUFFER: "20000"}, 5.0),
        (None, {BUFFER: "0"}, 0.0),
        (None, {BUFFER: "many"}, 0.0),
        (None, {BUFFER: "2000", DUMP: "0"}, 0.0),
        (None, {"TORCH_NCCL_BLOCKING_WAIT": "1"}, 0.0),
        (0.0, {DUMP: "1"}, 0.0),
        (30.0, {}, 30.0),
    ],
)
def test_healthy_workers_have_a_grace_if_the_flight_recorder_dumps_or_the_job_sets_one(
    asked_s: float | None, variables: dict[str, str], grace_s: float
) -> None:
    assert worker_grace_period_s(asked_s, variables) == grace_s


@pytest.mark.parametrize(
    ("variables", "size"),
    [
        ({}, "2000"),
        ({"UNDERSTUDY_SLOW_RANK_PERCENT": "200"}, "2000"),
        ({"UNDERSTUDY_SLOW_RANK_PERCENT": "0"}, None),
        ({BUFFER: "500"}, "500"),
        ({BUFFER: "0"}, "0"),
        ({FORMER_BUFFER: "500"}, None),
    ],
)
def test_workers_record_their_collectives_unless_the_job_or_the_user_wants_it_otherwise(
    variables: dict[str, str], size: str | None
) -> None:
    assert env(variables).get(BUFFER) == size
    assert zygote_environment(variables, 2).get(BUFFER) == size


def test_the_launchers_own_variables_for_slow_ranks_ask_for_no_grace() -> None:
    """They must not count as a user's request for dumps."""
    assert DUMP not in env()
    assert worker_grace_period_s(None, {"UNDERSTUDY_SLOW_RANK_PERCENT": "200"}) == 0.0


def test_arrows_allocator_starts_no_thread_in_a_zygote_unless_the_user_sets_it() -> None:
    name = "JE_ARROW_MALLOC_CONF"
    assert zygote_environment({}, 8)[name] == "background_thread:false"
    assert zygote_environment({name: "narenas:1"}, 8)[name] == "narenas:1"
    assert name not in env()

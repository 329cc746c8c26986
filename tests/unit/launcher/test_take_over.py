"""A pool's spare that a job claims: the program of its workers, and the zygote that forks them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.launcher.driven import PORT, Driven, start
from tests.unit.launcher.fake_sidecar import Launched, children, round_, wait_for
from understudy_launcher import environment
from understudy_launcher import events as e
from understudy_protocol import pod
from understudy_protocol.launcher import (
    CheckReadiness,
    Learned,
    NextPort,
    Preload,
    Readiness,
    TakeOver,
    WorkersFinished,
)

Launch = Callable[..., Launched]
READY = e.ZygoteReady(2.0, {})
ORDER = TakeOver(("python", "train.py"), {"LR": "0.1"})
#: Prints its arguments, variables and modules in one line.
PRINT_START = "import os, sys; print(sys.argv[1:], os.environ.get('LR'), os.environ.get('GONE'), 'json' in sys.modules)"


def warm() -> Driven:
    driven = Driven(zygote=True)
    driven.do(READY)
    return driven


def spawned(effects: list[e.Effect]) -> list[bool]:
    return [effect.is_warmup_done for effect in effects if isinstance(effect, e.Spawn)]


# When a claim is accepted ---------------------------------------------------------------------------------------------


def test_a_spare_that_waits_is_taken_over_and_its_first_round_is_forked() -> None:
    driven = warm()
    assert driven.do(ORDER) == [e.ReplaceCommand(ORDER)]
    assert spawned(driven.do(start())) == [True]


def test_the_same_order_again_changes_nothing() -> None:
    driven = warm()
    driven.do(ORDER)
    assert driven.do(ORDER) == []
    driven.do(start())
    assert driven.do(ORDER) == []
    assert "dropped" not in "".join(driven.log)


def test_a_claimed_spare_reports_no_readiness() -> None:
    driven = warm()
    driven.do(CheckReadiness(1), e.ZygoteChecked(1), ORDER)
    assert driven.do(e.ZygoteLost("it has ended", is_final=False)) == [e.StartZygote()]


def test_a_member_that_has_trained_is_not_taken_over() -> None:
    driven = warm()
    driven.do(start())
    assert driven.do(ORDER) == []
    assert "ignored a TakeOver" in driven.log[-1]


def test_a_zygote_that_the_job_cannot_use_is_replaced_and_the_round_waits_for_it() -> None:
    driven = warm()
    driven.do(e.StoreReady(5000), ORDER)
    assert driven.do(e.ZygoteEnded(was_wanted=True)) == [e.StartZygote(), e.Report(NextPort(PORT, 0))]
    assert spawned(driven.do(start())) == []
    assert spawned(driven.do(READY)) == [True]


def test_a_command_that_cannot_be_forked_starts_as_a_fresh_process() -> None:
    driven = warm()
    driven.do(ORDER, e.ZygoteEnded(was_wanted=False))
    assert spawned(driven.do(start())) == [False]


# Variables ------------------------------------------------------------------------------------------------------------


def test_the_jobs_variables_replace_the_pools() -> None:
    of_the_pool = {pod.ENV_TEMPLATE_VARIABLES: '["LR", "ONLY_OF_THE_POOL"]', "LR": "1", "ONLY_OF_THE_POOL": "x"}
    env = environment.environment_after_take_over({"FROM_A_SECRET": "1", **of_the_pool}, ORDER)
    assert env.pop(pod.ENV_TEMPLATE_VARIABLES)
    assert env == {"FROM_A_SECRET": "1", "LR": "0.1"}


@pytest.mark.parametrize("name", ["PYTHONPATH", "LD_PRELOAD", "OMP_NUM_THREADS", "TORCH_LOGS", "TORCHINDUCTOR_X"])
def test_a_variable_that_is_read_at_start_needs_another_zygote(name: str) -> None:
    assert name in environment.fresh_start_reason({}, {name: "x"})
    assert name in environment.fresh_start_reason({name: "x"}, {})
    assert environment.fresh_start_reason({name: "x"}, {name: "x"}) == ""


@pytest.mark.parametrize("name", ["LR", "NCCL_DEBUG", "TORCH_NCCL_BLOCKING_WAIT", "CUDA_VISIBLE_DEVICES"])
def test_a_variable_that_is_read_later_needs_no_other_zygote(name: str) -> None:
    assert environment.fresh_start_reason({}, {name: "x"}) == ""


def test_variables_that_do_not_fit_into_a_packet_need_another_zygote() -> None:
    assert "differ by" in environment.fresh_start_reason({}, {"DATA": "x" * 100_000})


# A launcher's process -------------------------------------------------------------------------------------------------


@pytest.fixture
def launched(launch: Launch) -> Launched:
    """A warm spare of a pool."""
    return ready_spare(launch, **{pod.ENV_PRELOAD: "json"})


def ready_spare(launch: Launch, **env: str) -> Launched:
    of_the_pool = {pod.ENV_TEMPLATE_VARIABLES: '["LR", "GONE"]', "LR": "1", "GONE": "x"}
    spare = launch("python3", "-c", "print('the pool')", **of_the_pool, **env)
    spare.join()
    number, ready = 0, False
    while not ready:
        number += 1
        spare.sidecar.send(CheckReadiness(number))
        ready = spare.sidecar.expect(Readiness).is_ready
    return spare


def zygotes(launched: Launched) -> list[int]:
    found = children(launched.process.pid)
    return [pid for pid in found if "understudy_zygote" in Path(f"/proc/{pid}/cmdline").read_text()]


def first_round(launched: Launched, order: TakeOver) -> None:
    launched.sidecar.send(order, round_(0))
    launched.sidecar.expect(WorkersFinished)


def test_its_zygote_forks_the_jobs_program_with_the_jobs_variables(launched: Launched) -> None:
    before = zygotes(launched)
    first_round(launched, TakeOver(("python3", "-c", PRINT_START, "7B"), {"LR": "0.1"}))
    launched.prints("[rank 0] ['7B'] 0.1 None True\n")
    assert zygotes(launched) == before


def test_a_job_with_another_interpreters_options_gets_a_zygote_of_its_own(launched: Launched) -> None:
    before = zygotes(launched)
    first_round(launched, TakeOver(("python3", "-u", "-c", PRINT_START), {"LR": "1", "GONE": "x"}))
    launched.prints("[rank 0] [] 1 x True\n")
    assert zygotes(launched) != before
    launched.logs("the job cannot use the spare's fork server, which ends: the command starts another interpreter")


def test_a_job_whose_command_is_no_python_starts_fresh_processes(launched: Launched) -> None:
    first_round(launched, TakeOver(("sh", "-c", 'echo "$LR $GONE"'), {"LR": "2"}))
    launched.prints("[rank 0] 2 \n")
    # the launcher kills it and does not wait for its exit before it starts the workers
    wait_for(lambda: not zygotes(launched), "the pool's zygote exits")


def test_a_zygote_that_is_lost_after_a_take_over_is_restarted_for_the_job(launched: Launched) -> None:
    order = TakeOver(("python3", "-c", PRINT_START), {"LR": "0.1"})
    first_round(launched, order)
    os.kill(zygotes(launched)[0], 9)
    launched.logs("the launcher restarts it")
    launched.sidecar.send(round_(1))
    launched.sidecar.expect(WorkersFinished)
    launched.prints("[rank 0] [] 0.1 None True\n" * 2)


#: Prints whether the fork server has imported `lib`, and the variables that its import has read.
PRINT_LIB = "import sys; has_lib = 'lib' in sys.modules; import lib; print(has_lib, *lib.READ)"


def test_a_module_that_another_pod_has_learned_reads_the_jobs_variables(launch: Launch, folder: Path) -> None:
    # given a spare of a pool that a job has claimed, and an installed module
    (folder / "site" / "lib.dist-info").mkdir(parents=True)
    (folder / "site" / "lib.py").write_text("import os\nREAD = os.environ.get('LR'), os.environ.get('GONE')")
    launched = ready_spare(launch, PYTHONPATH=str(folder / "site"))
    launched.sidecar.send(TakeOver(("python3", "-c", PRINT_LIB), {"LR": "0.1"}))
    # when it gets the modules of the job
    launched.sidecar.send(Preload(("lib",)))
    assert launched.sidecar.expect(Learned).modules == ("lib",)
    # then its workers have the module, as if they had imported it themselves
    launched.sidecar.send(round_(0))
    launched.sidecar.expect(WorkersFinished)
    launched.prints("[rank 0] True 0.1 None\n")


def test_a_job_with_another_value_of_a_variable_that_a_preloaded_module_reads_gets_a_zygote_of_its_own(
    launch: Launch, folder: Path
) -> None:
    # given a spare whose pool preloads a module
    (folder / "site").mkdir()
    (folder / "site" / "lib.py").write_text("import os\nREAD = os.environ.get('LR'), os.getenv('GONE')")
    launched = ready_spare(launch, PYTHONPATH=str(folder / "site"), **{pod.ENV_PRELOAD: "json,lib"})
    before = zygotes(launched)
    # when a job claims it
    first_round(launched, TakeOver(("python3", "-c", PRINT_LIB), {"LR": "1", "GONE": "y"}))
    # then the module has read the variables of the job
    launched.prints("[rank 0] True 1 y\n")
    assert zygotes(launched) != before
    launched.logs("which ends: the job sets GONE to another value, and Python or a module reads it only at start")

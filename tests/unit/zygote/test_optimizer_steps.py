"""Steps that are reported for a script that never calls step(): those of its torch optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.zygote.conftest import Make
from understudy_launcher.step_page import StepFiles, StepReading
from understudy_launcher.zygote import ForkRequest
from understudy_protocol import pod
from understudy_torch import progress
from understudy_zygote.optimizer_steps import OptimizerSteps

#: Replaces torch: optimizers with the global hook.
TORCH = {
    "torch/__init__.py": """
class G:
    def seed(self): pass
default_generator = G()
from torch import compiler, optim
""",
    "torch/compiler.py": "compiling = False\ndef is_compiling(): return compiling",
    "torch/optim/__init__.py": "from torch.optim.optimizer import Optimizer",
    "torch/optim/optimizer.py": """
from collections import OrderedDict
hooks = OrderedDict()
class Handle:
    def __init__(self, number): self.number = number
    def remove(self): del hooks[self.number]
def register_optimizer_step_post_hook(hook):
    hooks[len(hooks)] = hook
    return Handle(len(hooks) - 1)
class Optimizer:
    def __init__(self, made=None):
        self.state = {} if made is None else {0: {"step": made}}
    def step(self):
        for state in self.state.values(): state["step"] += 1
        for hook in hooks.values(): hook(self, (), {})
""",
}


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StepFiles]:
    """The launcher's real files, which this process has inherited."""
    made = StepFiles(str(tmp_path))
    for name, value in (("_files", None), ("_page", None), ("_looked", False)):
        monkeypatch.setattr(progress, name, value)
    monkeypatch.setenv(pod.ENV_STEP_FD, ",".join(map(str, made.inherited)))
    yield made
    made.given()
    made.close()


def optimizer(made: object = None) -> SimpleNamespace:
    """made: the steps that it has made, in its own state; None: it does not count them."""
    return SimpleNamespace(state={} if made is None else {"weight": {"step": made}})


def steps_of(files: StepFiles) -> tuple[int, int, bool] | None:
    """The number of reports, the newest step, and whether it is a count of this round; None if nothing is new."""
    seen = files.page.read()
    return None if seen is None else (seen.calls, seen.step, seen.is_counted)


def train(steps: OptimizerSteps, *optimizers: Any) -> list[bool]:
    return [steps.on_step(one) for one in optimizers]


# Which steps count ----------------------------------------------------------------------------------------------------


def test_each_step_of_one_optimizer_counts_from_the_first(files: StepFiles) -> None:
    steps, one = OptimizerSteps(progress, is_imported=False), optimizer()
    assert train(steps, one) == [True]
    assert steps_of(files) == (1, 1, True)
    train(steps, one, one)
    assert steps_of(files) == (3, 3, True)


@pytest.mark.parametrize("many", [2, 5, 300])
def test_of_optimizers_that_take_turns_one_counts(files: StepFiles, many: int) -> None:
    steps, optimizers = OptimizerSteps(progress, is_imported=False), [optimizer() for _ in range(many)]
    for _ in range(7):
        train(steps, *optimizers)
    assert steps_of(files) == (7, 7, True)


def test_another_optimizer_takes_over_if_the_first_is_not_used_any_more(files: StepFiles) -> None:
    steps, first, second = OptimizerSteps(progress, is_imported=False), optimizer(), optimizer()
    train(steps, first, first, second, second, second)
    assert steps_of(files) == (4, 4, True)


def test_the_optimizers_own_number_continues_after_a_checkpoint(files: StepFiles) -> None:
    steps, one = OptimizerSteps(progress, is_imported=False), optimizer(501.0)
    train(steps, one, one)
    assert steps_of(files) == (2, 502, False)


@pytest.mark.parametrize("state", [{"weight": [1, 2]}, {"weight": {"step": "many"}}, {"weight": {"step": None}}])
def test_the_steps_of_an_optimizer_with_a_state_of_another_kind_are_counted(files: StepFiles, state: object) -> None:
    one = SimpleNamespace(state=state)
    train(OptimizerSteps(progress, is_imported=False), one, one)
    assert steps_of(files) == (2, 2, True)


def test_a_number_on_a_gpu_is_not_waited_for(files: StepFiles) -> None:
    on_gpu = SimpleNamespace(device=SimpleNamespace(type="cuda"))
    train(OptimizerSteps(progress, is_imported=False), optimizer(on_gpu))
    assert steps_of(files) == (1, 1, True)


# The script's own step() ----------------------------------------------------------------------------------------------


def test_a_script_that_calls_step_itself_is_left_alone(files: StepFiles) -> None:
    steps, one = OptimizerSteps(progress, is_imported=True), optimizer()
    assert train(steps, one) == [True]
    assert steps_of(files) is None
    progress.step(400, 1000)
    assert train(steps, one) == [False]
    assert steps_of(files) == (1, 400, False)


def test_a_script_that_only_imports_the_module_is_counted_from_its_third_step(files: StepFiles) -> None:
    steps, one = OptimizerSteps(progress, is_imported=True), optimizer()
    train(steps, one, one)
    assert steps_of(files) is None
    train(steps, one)
    assert steps_of(files) == (1, 3, True)


def test_a_first_step_later_on_turns_it_off(files: StepFiles) -> None:
    steps, one = OptimizerSteps(progress, is_imported=False), optimizer()
    train(steps, one, one, one)
    progress.step(10)
    assert train(steps, one) == [False]
    assert steps_of(files) == (4, 10, False)


# In forks -------------------------------------------------------------------------------------------------------------


def reported(folder: Path, forking: Make, script: str, preload: str, env: Mapping[str, str]) -> StepReading | None:
    """The report of a fork that has run the script."""
    for name, text in TORCH.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "train.py").write_text(script)
    sidecar = str(Path(progress.__file__).parents[1])
    forks = forking("train.py", preload=[preload], env={"PYTHONPATH": f"{folder}:{sidecar}"})
    files = StepFiles(str(folder))
    try:
        (pid,) = forks.zygote.fork({0: ForkRequest(env, files.inherited)}).values()
        assert forks.code(pid) == 0, forks.said()
        return files.page.read()
    finally:
        files.given()
        files.close()


TRAIN = "from torch.optim import Optimizer\none = Optimizer()\nfor _ in range(5): one.step()\n"


@pytest.mark.parametrize("preload", ["torch", "json"])
def test_a_fork_reports_steps_also_if_the_script_imports_torch_itself(
    folder: Path, forking: Make, preload: str
) -> None:
    seen = reported(folder, forking, TRAIN, preload, {})
    assert seen is not None
    assert (seen.calls, seen.step, seen.total, seen.is_counted) == (5, 5, None, True)


def test_the_setting_turns_it_off(folder: Path, forking: Make) -> None:
    assert reported(folder, forking, TRAIN, "torch", {"UNDERSTUDY_AUTOMATIC_STEPS": "false"}) is None


def test_the_steps_of_the_optimizer_are_not_reported_any_more_when_the_script_calls_step(
    folder: Path, forking: Make
) -> None:
    script = f"from understudy_torch import step\n{TRAIN}step(7)\none.step()\none.step()"
    seen = reported(folder, forking, script, "torch", {})
    assert seen is not None
    assert (seen.calls, seen.step) == (4, 7)  # the script has imported understudy_torch: steps 3 to 5, and its own


def test_a_script_that_calls_step_may_have_a_hook_of_its_own(folder: Path, forking: Make) -> None:
    own = "import torch.optim.optimizer as module\nmodule.register_optimizer_step_post_hook(lambda *all: None)\n"
    script = f"from understudy_torch import step\n{own}{TRAIN}step(7)\none.step()"
    seen = reported(folder, forking, script, "torch", {})
    assert seen is not None
    assert seen.step == 7


def test_a_step_that_is_being_compiled_does_not_count(folder: Path, forking: Make) -> None:
    script = f"import torch\ntorch.compiler.compiling = True\n{TRAIN}"
    assert reported(folder, forking, script, "torch", {}) is None


def test_another_module_of_that_name_does_no_harm(folder: Path, forking: Make) -> None:
    (folder / "understudy_torch.py").write_text("")
    assert reported(folder, forking, TRAIN, "torch", {}) is None


def test_torch_is_not_imported_for_a_script_that_does_not_import_it(folder: Path, forking: Make) -> None:
    script = "import sys, json; assert 'torch' not in sys.modules"
    assert reported(folder, forking, script, "json", {}) is None

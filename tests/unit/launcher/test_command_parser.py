"""Which commands a zygote can run, and how they are parsed for it."""

from __future__ import annotations

import sys
import time
import zipfile
from pathlib import Path

import pytest

from understudy_launcher.command_parser import CODE, FILE, MODULE, PythonProgram, calls_torchrun, python_program


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A script `train.py` in the working directory."""
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return "train.py"


def program(*command: str) -> PythonProgram:
    found = python_program(command)
    assert found is not None
    return found


@pytest.mark.parametrize("python", ["python", "python3", "python3.12", "/usr/local/bin/python3"])
def test_a_script_with_its_arguments(script: str, python: str) -> None:
    assert program(python, script, "--lr", "1", "-m") == PythonProgram(python, (), FILE, script, ("--lr", "1", "-m"))


@pytest.mark.parametrize(
    "options",
    [
        ("-u",),
        ("-uB",),
        ("-W", "ignore"),
        ("-Wignore",),
        ("-X", "faulthandler", "-OO"),
        ("--check-hash-based-pycs", "always"),
    ],
    ids=" ".join,
)
def test_the_interpreters_options_stay_with_it(script: str, options: tuple[str, ...]) -> None:
    assert program("python3", *options, script, "x") == PythonProgram("python3", options, FILE, script, ("x",))


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (("-m", "pkg.train"), ()),
        (("-mpkg.train",), ()),
        (("-u", "-m", "pkg.train"), ("-u",)),
        (("-um", "pkg.train"), ("-u",)),
    ],
    ids=["-m", "attached", "apart", "in-one"],
)
def test_a_module(words: tuple[str, ...], options: tuple[str, ...]) -> None:
    assert program("python3", *words, "-x", "1") == PythonProgram("python3", options, MODULE, "pkg.train", ("-x", "1"))


def test_code() -> None:
    assert program("python3", "-c", "import x", "a") == PythonProgram("python3", (), CODE, "import x", ("a",))


def test_a_program_gets_the_variables_that_env_sets_before_it(script: str) -> None:
    found = program("env", "A=1", "B=x=y", "python3", script)
    assert (found.interpreter, found.env) == ("python3", (("A", "1"), ("B", "x=y")))


@pytest.mark.parametrize("first", ["#!/usr/bin/env python3", "#!/usr/bin/python3 -u", "#! /opt/conda/bin/python"])
def test_an_executable_script_by_its_first_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    (tmp_path / "train").write_text(f"{first}\nprint(1)\n")
    (tmp_path / "train").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = program("train", "--lr", "1")
    assert (found.kind, found.target, found.arguments) == (FILE, str(tmp_path / "train"), ("--lr", "1"))
    assert found.options == (("-u",) if first.endswith("-u") else ())


@pytest.mark.parametrize(
    "command",
    [
        ("sh", "-c", "python3 train.py"),
        ("python3",),
        ("python3", "-"),
        ("python3", "-i", "train.py"),
        ("python3", "-V"),
        ("python3", "--help"),
        ("python3", "-m"),
        ("python3", "missing.py"),
        ("python3", "."),
        ("python3", "app.pyz"),
        ("python3", "train.pyc"),
        ("env", "-i", "python3", "train.py"),
        ("env",),
        ("no-such-program",),
        ("pythonista", "train.py"),
    ],
    ids=" ".join,
)
def test_a_command_that_is_no_program_for_a_zygote_starts_as_a_fresh_process(
    script: str, command: tuple[str, ...]
) -> None:
    with zipfile.ZipFile("app.pyz", "w") as app:
        app.writestr("__main__.py", "")
    Path("train.pyc").write_bytes(b"")
    assert python_program(command) is None


# torchrun -------------------------------------------------------------------------------------------------------------


def test_a_shell_script_that_the_command_names_is_read(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\nset -e\nexec torchrun train.py\n")
    script.chmod(0o755)
    assert calls_torchrun(["bash", str(script), "x"], {})
    assert calls_torchrun([str(script)], {})


@pytest.mark.parametrize(
    "text",
    [
        "./run.sh",
        "bash run.sh --lr 1",
        "set -e; . env.sh && exec ./run.sh",
        "cd app && ./run.sh",
        "cd {here} && cd 'app'; bash run.sh",
        "cd $HERE/app\nbash run.sh",
        "bash $HERE/app/run.sh",
        "A=1 nohup timeout -k 5 1h /bin/bash -x run.sh",
        "if true; then sh run.sh; fi",
        '"{here}/app/run.sh" | tee log',
    ],
)
def test_a_shell_script_that_the_text_of_a_shell_names_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "app").mkdir()
    script = tmp_path / ("app" if "app" in text else ".") / "run.sh"
    script.write_text("pip install x\ntorchrun train.py\n")
    monkeypatch.chdir(tmp_path)
    command = ["bash", "-c", text.format(here=tmp_path)]
    assert calls_torchrun(command, {"HERE": str(tmp_path)})
    script.write_text("pip install x\npython train.py\n")
    assert not calls_torchrun(command, {"HERE": str(tmp_path)})


@pytest.mark.parametrize("text", ["chmod +x run.sh; python train.py", "python train.py --script run.sh", "cat run.sh"])
def test_a_shell_script_that_the_text_does_not_run_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "run.sh").write_text("torchrun train.py\n")
    monkeypatch.chdir(tmp_path)
    assert not calls_torchrun(["bash", "-c", text], {})


def test_a_long_text_is_read_in_a_moment(tmp_path: Path) -> None:
    for part in (";/", "a=1 ", "sh ", "-x ", "\n", "then ", " ", "cd a;"):
        began = time.process_time()
        calls_torchrun(["bash", "-c", part * (1_000_000 // len(part))], {})
        assert time.process_time() - began < 5.0, part


@pytest.mark.parametrize("name", ["train.py", "train", "README.md"])
@pytest.mark.parametrize(
    "command", ["numactl -N0 python {}", "uv run {}", "tini -- python {}", "conda run -n x python {}", "time ./{}"]
)
def test_a_python_script_may_mention_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    shebang = "#!/usr/bin/env python3\n" if name == "train" else ""
    Path(name).write_text(f'{shebang}"""To train on one node:\n$ torchrun --standalone train.py\n"""\n')
    assert not calls_torchrun(command.format(name).split(), {})
    assert not calls_torchrun(["bash", "-c", command.format(name)], {})


@pytest.mark.parametrize(
    "content",
    [
        b"python train.py  # not torchrun-like\n",
        b"# torchrun train.py\n",
        b"\x7fELF\0 torchrun train.py\n",
        b" " * (1 << 20) + b"\ntorchrun train.py\n",
    ],
)
def test_a_file_that_calls_no_torchrun_is_none(tmp_path: Path, content: bytes) -> None:
    script = tmp_path / "run.sh"
    script.write_bytes(content)
    assert not calls_torchrun(["bash", str(script)], {})


def test_a_python_script_is_not_read_even_with_a_shebang(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"#!{sys.executable}\n# like torchrun train.py\nrun = 'torchrun train.py'\n")
    script.chmod(0o755)
    assert not calls_torchrun([sys.executable, str(script)], {})
    assert not calls_torchrun([str(script)], {})


def test_the_installed_program_torchrun_is_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "torchrun"
    program.write_text(f"#!{sys.executable}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert calls_torchrun(["torchrun", "train.py"], {})
    assert calls_torchrun([str(program), "train.py"], {})
    assert not calls_torchrun([], {})


# accelerate's configuration -------------------------------------------------------------------------------------------

YAML = "compute_environment: LOCAL_MACHINE\ndistributed_type: {}\nmachine_rank: 0\nnum_processes: 8\n"


@pytest.mark.parametrize(
    "kind", ["MULTI_GPU", "MULTI_XPU", "FSDP", "DEEPSPEED", "'MEGATRON_LM'"], ids=lambda kind: kind.strip("'")
)
def test_the_default_configuration_of_accelerate_is_read(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "accelerate"
    folder.mkdir()
    (folder / "default_config.yaml").write_text(YAML.format(kind))
    assert calls_torchrun(["accelerate", "launch", "train.py"], {"HF_HOME": str(tmp_path)})
    assert calls_torchrun(["python", "-m", "accelerate.commands.launch", "train.py"], {"HF_HOME": str(tmp_path)})
    assert not calls_torchrun(["accelerate", "launch", "--cpu", "train.py"], {"HF_HOME": str(tmp_path)})
    assert not calls_torchrun(["accelerate", "launch", "train.py"], {"HF_HOME": str(tmp_path / "other")})


@pytest.mark.parametrize("cache", ["{home}/.cache", "{home}/xdg"])
def test_its_folder_follows_the_variables_as_accelerate_does(tmp_path: Path, cache: str) -> None:
    folder = Path(cache.format(home=tmp_path)) / "huggingface" / "accelerate"
    folder.mkdir(parents=True)
    (folder / "default_config.yaml").write_text(YAML.format("FSDP"))
    env = {"HOME": str(tmp_path)} | ({"XDG_CACHE_HOME": "~/xdg"} if "xdg" in cache else {})
    assert calls_torchrun(["accelerate", "launch", "train.py"], env)


@pytest.mark.parametrize(
    "command",
    [
        "accelerate launch --config_file accelerate.yaml train.py",
        "accelerate launch --config-file=accelerate.yaml train.py --config_file other.yaml",
        "bash -c|pip install x && accelerate launch --config_file $HERE/accelerate.yaml train.py",
        'bash -c|cd . && exec accelerate launch --config_file "${HERE}/accelerate.yaml" train.py',
        "bash run.sh",
    ],
)
def test_a_named_configuration_of_accelerate_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "accelerate.yaml").write_text(YAML.format("MULTI_GPU"))
    (tmp_path / "run.sh").write_text("accelerate launch \\\n  --config_file accelerate.yaml train.py")
    words = command.replace("|", " | ").split(" | ") if "|" in command else command.split()
    words = [*words[0].split(), *words[1:]]
    assert calls_torchrun(words, {"HERE": "."})
    (tmp_path / "accelerate.yaml").write_text(YAML.format("MULTI_CPU"))
    assert not calls_torchrun(words, {"HERE": "."})


@pytest.mark.parametrize(
    ("options", "devices", "calls"),
    [
        ("", "8", True),
        ("--num_processes 8 --mixed_precision bf16", "8", True),
        ("--num_processes=16 --num_machines 2", "8", True),
        ("--num_processes 1", "8", False),
        ("--cpu --num_processes 8", "8", False),
        ("", "1", False),
        ("--num_processes 2", "", False),
    ],
)
@pytest.mark.parametrize("form", ["{}", "bash -c|exec {}", "python -m accelerate.commands.launch {}"])
def test_without_a_configuration_accelerate_uses_all_devices(
    tmp_path: Path, form: str, options: str, devices: str, calls: bool
) -> None:
    launch = options if form.startswith("python") else f"accelerate launch {options}"
    text = form.format(f"{launch} train.py")
    words = [*text.partition("|")[0].split(), text.partition("|")[2]] if "|" in text else text.split()
    assert calls_torchrun(words, {"HF_HOME": str(tmp_path), "UNDERSTUDY_DEVICES": devices}) is calls


@pytest.mark.parametrize(("visible", "calls"), [("0,1", True), ("GPU-1, GPU-2", True), ("3", False), ("", False)])
def test_accelerate_uses_only_visible_devices(tmp_path: Path, visible: str, calls: bool) -> None:
    env = {"HF_HOME": str(tmp_path), "UNDERSTUDY_DEVICES": "8", "CUDA_VISIBLE_DEVICES": visible}
    assert calls_torchrun(["accelerate", "launch", "train.py"], env) is calls
    assert calls_torchrun(["accelerate", "launch", "train.py"], {**env, "UNDERSTUDY_DEVICES": "1"}) is calls


def test_with_a_default_configuration_it_uses_the_devices_of_that(tmp_path: Path) -> None:
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "default_config.yaml").write_text(YAML.format("'NO'"))
    assert not calls_torchrun(
        ["accelerate", "launch", "train.py"], {"HF_HOME": str(tmp_path), "UNDERSTUDY_DEVICES": "8"}
    )


@pytest.mark.parametrize("content", ["accelerate launch --config_file c.yaml train.py", "bash run.sh"])
def test_a_configuration_is_found_in_a_folder_that_the_command_has_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "c.yaml").write_text(YAML.format("MULTI_GPU"))
    (tmp_path / "app" / "run.sh").write_text("accelerate launch --config_file c.yaml train.py")
    monkeypatch.chdir(tmp_path)
    assert calls_torchrun(["bash", "-c", f"cd app && {content}"], {})
    (tmp_path / "app" / "c.yaml").write_text(YAML.format("MULTI_CPU"))
    assert not calls_torchrun(["bash", "-c", f"cd app && {content}"], {})


@pytest.mark.parametrize(
    ("content", "calls"),
    [
        ('{"distributed_type": "MULTI_GPU", "num_processes": 2}', True),
        ('{\n  "compute_environment": "LOCAL_MACHINE",\n  "distributed_type": "FSDP"\n}', True),
        ("distributed_type: NO", False),
        ("distributed_type: XLA", False),
        ("# distributed_type: MULTI_GPU", False),
        ("fsdp_config:\n  fsdp_version: 2\n", False),
        ("\n" * 500_000 + ",{ " * 100_000, False),
    ],
)
def test_its_type_decides_whether_accelerate_calls_torchrun(tmp_path: Path, content: str, calls: bool) -> None:
    path = tmp_path / "accelerate.json"
    path.write_text(content)
    assert calls_torchrun(["accelerate", "launch", "--config_file", str(path), "train.py"], {}) is calls


def test_a_configuration_that_does_not_exist_or_is_a_folder_calls_nothing(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.yaml"):
        assert not calls_torchrun(["accelerate", "launch", "--config_file", str(path), "train.py"], {})

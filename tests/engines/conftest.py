"""Real servers, each for all tests of its module, with models that are created here: nothing is downloaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import tiny_llama
from tests.engines.server import CHECKOUT, started

PLUGIN = "[vllm.general_plugins]\nunderstudy_gloo = tests.engines.gloo_plugin:register\n"
STAND_INS = CHECKOUT / "tests/engines/stand_ins"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of each of the first versions."""
    folder = tmp_path_factory.mktemp("models")
    for version in range(3, 10):
        tiny_llama.write(folder / str(version), version)
    return folder


@pytest.fixture(scope="module")
def vllm(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL. It runs in its development mode, and starts with version 3."""
    folder = tmp_path_factory.mktemp("vllm")
    plugin = folder / "understudy_gloo-0.dist-info"
    plugin.mkdir()
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: understudy-gloo\nVersion: 0\n")
    (plugin / "entry_points.txt").write_text(PLUGIN)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(models / "3")]
    command += ["--served-model-name", "tiny", "--skip-tokenizer-init"]
    command += ["--enforce-eager", "--dtype", "float32", "--max-model-len", "64", "--max-num-seqs", "4"]
    command += ["--weight-transfer-config", '{"backend": "gloo"}']
    ours = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with started(command, ours, [folder], "/health", folder / "log") as url:
        yield url


@pytest.fixture(scope="module")
def sglang(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL. It starts with version 3."""
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(models / "3")]
    command += ["--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32", "--enable-memory-saver"]
    command += ["--skip-tokenizer-init", "--skip-server-warmup", "--grammar-backend", "none", "--disable-cuda-graph"]
    command += ["--disable-overlap-schedule", "--max-total-tokens", "256", "--max-running-requests", "4"]
    command += ["--context-length", "64"]
    log = tmp_path_factory.mktemp("sglang") / "log"
    with started(command, {"SGLANG_USE_CPU_ENGINE": "1"}, [STAND_INS], "/server_info", log) as url:
        yield url

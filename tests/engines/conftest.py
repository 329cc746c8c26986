"""One vLLM for all tests, in its development mode, with a model that is made here: nothing is fetched."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import tiny_llama

CHECKOUT = Path(__file__).resolve().parents[2]
UP_S = 300.0
PLUGIN = "[vllm.general_plugins]\nunderstudy_gloo = tests.engines.gloo_plugin:register\n"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of each of the first versions."""
    folder = tmp_path_factory.mktemp("models")
    for version in range(3, 10):
        tiny_llama.write(folder / str(version), version)
    return folder


@pytest.fixture(scope="session")
def vllm(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL; it starts with version 3."""
    folder = tmp_path_factory.mktemp("vllm")
    plugin = folder / "understudy_gloo-0.dist-info"
    plugin.mkdir()
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: understudy-gloo\nVersion: 0\n")
    (plugin / "entry_points.txt").write_text(PLUGIN)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(models / "3")]
    command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), "--skip-tokenizer-init"]
    command += ["--enforce-eager", "--dtype", "float32", "--max-model-len", "64", "--max-num-seqs", "4"]
    command += ["--weight-transfer-config", '{"backend": "gloo"}']
    ours = {
        "PYTHONPATH": os.pathsep.join([str(folder), str(CHECKOUT), str(CHECKOUT / "sidecar")]),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(command, env=os.environ | ours, stdout=output, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        _until_up(url, process, log)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + UP_S
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(url + "/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise RuntimeError(f"vLLM does not come up:\n{log.read_text()[-6000:]}")

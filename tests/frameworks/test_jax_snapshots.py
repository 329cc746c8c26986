"""snapshot.save() and load() of understudy_jax with a real JAX: all kinds of states, shards, damage, two processes."""

from __future__ import annotations

import os
import site
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.snapshot_rounds import Rounds, begin_worker, token
from understudy_jax import snapshot
from understudy_protocol.snapshots import SavedStep

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

PAGE, MIB = 4096, 1 << 20
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", autouse=True)
def packages(environment: Path) -> None:
    """Of the frameworks' environment, also those that its .pth file names. This process has four CPU devices."""
    (folder,) = environment.glob("lib/python3*/site-packages")
    site.addsitedir(str(folder))
    import jax

    jax.config.update("jax_num_cpu_devices", 4)


@pytest.fixture
def rounds() -> Iterator[Rounds]:
    made = Rounds(MIB)
    made.next()
    yield made
    made.close()


@pytest.fixture
def worker(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes this process the worker of the newest round, as after its start."""
    begin_worker(rounds, monkeypatch)
    return lambda: begin_worker(rounds, monkeypatch)


Worker = Callable[[], None]


def begin_next(rounds: Rounds, worker: Worker, step: int) -> None:
    """The next round begins, and restores this step of the round before."""
    saved = SavedStep(token(rounds.number), step)
    assert saved in rounds.next()
    rounds.choose(saved)
    worker()


def mesh_sharding(*axes: str | None) -> Any:
    import jax
    import numpy as np

    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))


def assert_equal(found: Any, expected: Any) -> None:
    """The same types, dtypes and values; NaN is equal to itself."""
    import numpy as np

    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray | np.generic):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_equal(found[key], value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    else:
        assert repr(found) == repr(expected)


# States


def test_a_state_of_all_kinds_of_values_is_restored_without_like(rounds: Rounds, worker: Worker) -> None:
    import ml_dtypes
    import numpy as np

    # given a state with arrays of numpy and all plain values
    state = {
        "float64": np.linspace(0, 1, 7),
        "transposed": np.arange(6, dtype=np.int16).reshape(2, 3).T,
        "empty": np.empty((0, 3), np.float32),
        "no dimension": np.array(5, np.uint8),
        "bool": np.array([True, False, True]),
        "complex": np.array([1 + 2j], np.complex64),
        "bfloat16": np.array([1.5, -2.0, np.nan], ml_dtypes.bfloat16),
        "float8": np.array([0.5, 1.0], ml_dtypes.float8_e4m3fn),
        "int4": np.array([-8, 7, 3], ml_dtypes.int4),
        "scalar": np.float32(0.1),
        "big": np.arange(30_001, dtype=np.int64),
        "nested": [1, (2.5, None, "tëxt \ud800", b"\x00bytes"), {3: True, 4: ()}, [], {}],
        "numbers": [0.1, float("inf"), float("-inf"), float("nan"), -0.0, 1 - 2j, -(10**4000)],
    }
    assert snapshot.save(5, state)
    # when the next round loads it
    begin_next(rounds, worker, 5)
    # then it is equal
    assert_equal(snapshot.load(), state)
    assert snapshot.reason() == ""


def test_jax_arrays_are_restored_as_numpy_arrays_without_like(rounds: Rounds, worker: Worker) -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np

    values = np.arange(32, dtype=np.float32).reshape(4, 8)
    # given arrays that this process has as a whole: on one device, replicated, and in shards
    state = {
        "one": jnp.asarray(values),
        "replicated": jax.device_put(values, mesh_sharding()),
        "shards": jax.device_put(values, mesh_sharding("x", "y")),
        "bfloat16": jnp.asarray(values, jnp.bfloat16),
    }
    assert snapshot.save(5, state)
    begin_next(rounds, worker, 5)
    found = snapshot.load()
    assert found is not None
    for name in ("one", "replicated", "shards"):
        assert_equal(found[name], values)
    assert (found["bfloat16"].dtype, found["bfloat16"].tolist()) == (jnp.bfloat16, values.tolist())


def test_a_replicated_array_is_stored_once(rounds: Rounds, worker: Worker) -> None:
    import jax
    import numpy as np

    # given memory of 1 MiB, and an array of 0.75 MiB on four devices
    state = jax.device_put(np.ones(3 * MIB // 16, np.float32), mesh_sharding())
    assert len(state.addressable_shards) == 4
    # then it fits
    assert snapshot.save(5, {"array": state})


def test_like_restores_shardings_and_any_structure(rounds: Rounds, worker: Worker) -> None:
    import jax
    import jax.numpy as jnp
    import optax

    # given a state of optax, which consists of NamedTuples, with shards on four devices, and uncommitted arrays
    def made(seed: int) -> dict[str, Any]:
        key = jax.random.key(seed)
        weight = jax.device_put(jax.random.normal(key, (4, 8), jnp.bfloat16), mesh_sharding("x", "y"))
        parameters = {"weight": weight, "bias": jax.device_put(jnp.full(8, seed, jnp.float32), mesh_sharding("y"))}
        return {"parameters": parameters, "optimizer": optax.adamw(1e-3).init(parameters), "key": key, "step": seed}

    saved = made(7)
    assert snapshot.save(7, saved)
    begin_next(rounds, worker, 7)
    # when another state of the same structure is given
    like = made(0)
    found = snapshot.load(like=like)
    # then it has the structure and the shardings of that state, and the saved values
    assert found is not None
    assert found["step"] == 7
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(like)
    assert found["parameters"]["weight"].sharding == mesh_sharding("x", "y")
    assert found["parameters"]["weight"].tolist() == saved["parameters"]["weight"].tolist()
    assert found["parameters"]["bias"].tolist() == [7.0] * 8
    assert not found["optimizer"][0].count.committed  # so a function may use it on any mesh
    assert found["key"].dtype == saved["key"].dtype
    assert jax.random.uniform(found["key"]) == jax.random.uniform(saved["key"])


def test_like_may_consist_of_shapes(rounds: Rounds, worker: Worker) -> None:
    import jax
    import numpy as np

    values = np.arange(16, dtype=np.float32).reshape(4, 4)
    assert snapshot.save(1, {"weight": jax.device_put(values, mesh_sharding("x"))})
    begin_next(rounds, worker, 1)
    # given a description with another sharding of an array that this process has as a whole
    wanted = jax.ShapeDtypeStruct((4, 4), np.float32, sharding=mesh_sharding(None, "y"))
    found = snapshot.load(like={"weight": wanted})
    assert found is not None
    assert found["weight"].sharding == mesh_sharding(None, "y")
    assert found["weight"].tolist() == values.tolist()


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("has_like", [True, False])
def test_prng_keys_are_restored(rounds: Rounds, worker: Worker, implementation: str, has_like: bool) -> None:
    import jax

    keys = jax.random.split(jax.random.key(3, impl=implementation), 5)
    assert snapshot.save(1, {"keys": keys})
    begin_next(rounds, worker, 1)
    found = snapshot.load(
        like={"keys": jax.random.split(jax.random.key(0, impl=implementation), 5)} if has_like else None
    )
    assert found is not None
    assert str(jax.random.key_impl(found["keys"])) == implementation
    assert jax.random.key_data(found["keys"]).tolist() == jax.random.key_data(keys).tolist()


def test_a_named_tuple_without_like_is_an_error_and_stays_in_memory(rounds: Rounds, worker: Worker) -> None:
    import jax.numpy as jnp
    import optax

    state = {"optimizer": optax.adamw(1e-3).init({"weight": jnp.ones(3)})}
    assert snapshot.save(1, state)
    begin_next(rounds, worker, 1)
    with pytest.raises(ValueError, match=r"state\['optimizer'\]\[0\] was saved as a optax\..*ScaleByAdamState: pass"):
        snapshot.load()
    # then the next round can restore it
    assert SavedStep(token(0), 1) in rounds.next()


@pytest.mark.parametrize(
    ("like", "said"),
    [
        (lambda np: {"a": np.zeros(3)}, r"state\['b'\] was saved, and `like` has no such leaf"),
        (lambda np: {"a": np.zeros(3), "b": 1, "c": 2}, r"`like` has state\['c'\], which was not saved"),
        (lambda np: {"a": np.zeros(4, np.float32), "b": 1}, r"shape \(3,\) .* `like` has \(4,\)"),
        (lambda np: {"a": np.zeros(3, np.int32), "b": 1}, r"dtype float32, and `like` has \(3,\) and int32"),
    ],
    ids=["a leaf less", "a leaf more", "a shape", "a dtype"],
)
def test_a_like_that_does_not_fit_is_an_error_with_the_place(
    rounds: Rounds, worker: Worker, like: Callable[[Any], Any], said: str
) -> None:
    import jax.numpy as jnp
    import numpy as np

    assert snapshot.save(1, {"a": jnp.zeros(3), "b": 1})
    begin_next(rounds, worker, 1)
    with pytest.raises(ValueError, match=said):
        snapshot.load(like=like(np))


# States that cannot be stored


class Custom:
    pass


def _donated() -> Any:
    import jax
    import jax.numpy as jnp

    array = jnp.ones(4)
    jax.jit(lambda x: x + 1, donate_argnums=0)(array)
    return array


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (lambda np: {"a": [Custom()]}, "test_jax_snapshots.Custom, which cannot be restored: save its content"),
        (lambda np: {("a", "b"): 1}, "state has a builtins.tuple, which cannot be restored"),
        (lambda np: {"a": 1, 2: 3}, "jax cannot flatten the state"),
        (lambda np: {10**5000: 1}, "jax cannot flatten the state"),
        (lambda np: {10**5000: None}, "jax cannot flatten the state"),
        (lambda np: {"a": np.array(["text"])}, "state['a'] is an array of dtype('<U4'): expected numbers"),
        (lambda np: {"a": np.zeros(2, ">f4")}, "state['a'] is an array of dtype('>f4'): expected numbers in the byte"),
        (lambda np: {"a": np.array([Custom()])}, "state['a'] is an array of dtype('O')"),
        (lambda np: {"a": np.zeros(2, "M8[s]")}, "state['a'] is an array of dtype('<M8[s]')"),
        (lambda np: {"a": _donated()}, "state['a'] was donated to a function (donate_argnums)"),
    ],
    ids=[
        "an object",
        "a key",
        "keys of two kinds",
        "a key too long for a text",
        "the same without a leaf",
        "texts",
        "byte order",
        "objects",
        "times",
        "donated",
    ],
)
def test_a_state_that_cannot_be_restored_fails_its_save_with_its_place(
    rounds: Rounds, worker: Worker, capfd: pytest.CaptureFixture[str], state: Callable[[Any], Any], said: str
) -> None:
    import numpy as np

    assert not snapshot.save(1, state(np))
    assert said in capfd.readouterr().err
    assert rounds.next() == ()


def test_a_save_inside_of_jit_stores_nothing(rounds: Rounds, worker: Worker, capfd: pytest.CaptureFixture[str]) -> None:
    import jax
    import jax.numpy as jnp

    def step(x: Any) -> Any:
        assert not snapshot.save(1, {"x": x})
        return x

    jax.jit(step)(jnp.ones(2))
    assert "state['x'] is traced by a transformation: call snapshot.save() outside of jax.jit" in capfd.readouterr().err


# Damage


def test_a_flipped_bit_is_refused_and_the_snapshot_is_discarded(rounds: Rounds, worker: Worker) -> None:
    import jax.numpy as jnp

    assert snapshot.save(1, {"a": jnp.arange(100_000, dtype=jnp.int16), "b": "text"})
    file = rounds.memory.files[0]
    size = struct.unpack("<q", os.pread(file, 8, PAGE + 64))[0]
    assert size > 200_000
    at = 2 * PAGE + size - 3  # in the last, incomplete block
    os.pwrite(file, bytes([os.pread(file, 1, at)[0] ^ 4]), at)
    begin_next(rounds, worker, 1)
    with pytest.raises(snapshot.DamagedSnapshotError, match=r"damaged \(its digest is wrong\), and is discarded"):
        snapshot.load()
    assert rounds.next() == ()


def test_block_sums_are_those_of_understudy_torch(rounds: Rounds) -> None:
    """The sums are 64-bit integers that overflow: of 64 KiB each, then of the rest, then the last bytes."""
    import numpy as np

    content = np.full(65536 + 16 + 3, 255, np.uint8)
    content[65536:65544] = 1, 0, 0, 0, 0, 0, 0, 0
    assert snapshot.block_sums(content) == struct.pack("<2q", -8192, 0) + b"\xff\xff\xff"


def test_the_snapshot_of_another_library_is_an_error_and_stays_in_memory(
    rounds: Rounds, worker: Worker, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a snapshot that understudy_jax has saved
    from understudy_torch import snapshot as of_torch

    assert snapshot.save(1, {})
    begin_next(rounds, worker, 1)
    # when the script of the next round uses understudy_torch
    monkeypatch.setitem(sys.modules, "torch", sys)  # it is not needed for this answer
    with pytest.raises(ValueError, match=r"was saved with understudy_jax: load it with understudy_jax\.snapshot"):
        of_torch.load()
    assert SavedStep(token(0), 1) in rounds.next()


# Two processes

TRAINING = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from understudy_jax import snapshot

port, rank = sys.argv[1:]
jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(rank))
assert "torch" not in sys.modules
mesh = Mesh(jax.devices(), ("x",))
sharded, other = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("x",), (None, "x")))

def made(start, sharding=sharded):
    values = np.arange(8.0, dtype=np.float32).reshape(2, 4) + start
    weight = jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])
    return {"weight": weight, "count": jnp.int32(start)}

restored = snapshot.load(like=made(0, other if "other" in sys.argv[0] else sharded))
if restored is None:
    assert snapshot.save(5, made(5))
else:
    total = jax.jit(lambda state: state["weight"].sum() + state["count"])(restored)
    print(restored["weight"].addressable_data(0).tolist(), float(total))
"""


def run_two(rounds: Rounds, environment: Path, script: Path) -> list[tuple[int, str, str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in (0, 1):
        file = rounds.memory.files[rank]
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(REPOSITORY / "sidecar"),
            "UNDERSTUDY_SNAPSHOT_FD": str(file),
            "UNDERSTUDY_ROUND": str(token(rounds.number)),
            "JAX_PLATFORMS": "cpu",
        }
        command = [str(environment / "bin/python"), str(script), str(port), str(rank)]
        processes.append(
            subprocess.Popen(
                command, env=env, pass_fds=[file], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    ended = [(process.communicate(timeout=200), process.returncode) for process in processes]
    return [(code, out, err) for (out, err), code in ended]


def test_each_of_two_processes_stores_its_shards_and_restores_them(environment: Path, tmp_path: Path) -> None:
    # given two processes with an array of one row in each of them, whose round had no snapshot
    rounds, script = Rounds(MIB, ranks=2), tmp_path / "train.py"
    script.write_text(TRAINING)
    rounds.next()
    rounds.choose(None)
    for code, _, err in run_two(rounds, environment, script):
        assert code == 0, err
    # when the next round restores the snapshot that they have saved
    assert rounds.next() == (SavedStep(token(0), 5),)
    rounds.choose(SavedStep(token(0), 5))
    ended = run_two(rounds, environment, script)
    # then each process has its row, and both compute with the array: 5 + 6 + ... + 12, and the count of 5
    assert [(code, out.splitlines()[-1:]) for code, out, _ in ended] == [
        (0, ["[[5.0, 6.0, 7.0, 8.0]] 73.0"]),
        (0, ["[[9.0, 10.0, 11.0, 12.0]] 73.0"]),
    ], ended
    # and a process whose `like` has columns instead of rows fails with the reason
    rounds.next()
    rounds.choose(SavedStep(token(0), 5))
    other = tmp_path / "other.py"
    other.write_text(TRAINING)
    for code, _, err in run_two(rounds, environment, other):
        assert code == 1
        assert "state['weight'] was saved with other shards than `like` has" in err
    rounds.close()

"""Each process of a jax training writes to its compilation cache, so that no worker compiles again in the next round.

jax lets only process 0 write, because on some shared file systems many writers delay each other. But the other pods do
not see a folder on the disk of process 0's pod. And on CPUs each process has its own entries, because their keys depend
on the process.

Rules: on a shared file system, only process 0 writes, as in jax. Every entry appears complete, by a rename, because the
launcher kills workers, and jax never replaces an incomplete entry. If a version of jax lacks the expected functions, it
stays as it is.
"""

import contextlib
import copy
import ctypes
import functools
import os
import sys
import tempfile
from types import FunctionType, SimpleNamespace
from typing import Any

from understudy_zygote.on_import import after_import

_COMPILER, _CACHE = "jax._src.compiler", "jax._src.lru_cache"
#: File systems of one machine, as statfs(2) numbers them: ext2 to ext4, xfs, btrfs, zfs, f2fs, overlay, tmpfs.
_LOCAL = (0xEF53, 0x58465342, 0x9123683E, 0x2FC12FC1, 0xF2F52010, 0x794C7630, 0x01021994)
_STATFS_BYTES = 512  # more than any struct statfs
_libc = ctypes.CDLL(None, use_errno=True)


def write_in_each_process() -> None:
    """Called in a fork before its script runs."""
    after_import(_COMPILER, _replace_writes)


def _replace_writes(compiler: Any) -> None:
    write, folder = compiler._cache_write, compiler.config.compilation_cache_dir
    _write_whole_entries(sys.modules[_CACHE])
    # a copy of the function, because other code reads the number of the process at the same time
    as_first = SimpleNamespace(global_state=SimpleNamespace(process_id=0))
    write_as_first = FunctionType(write.__code__, {**write.__globals__, "distributed": as_first})
    write_as_first.__defaults__, write_as_first.__kwdefaults__ = write.__defaults__, write.__kwdefaults__

    @functools.wraps(write)
    def cache_write(*args: Any, **options: Any) -> None:
        if _is_local(folder.value or ""):
            with contextlib.suppress(AttributeError):  # another version of jax may read more than the number
                write_as_first(*args, **options)
                return
        write(*args, **options)

    compiler._cache_write = cache_write


def _write_whole_entries(lru_cache: Any) -> None:
    put = lru_cache.LRUCache.put

    @functools.wraps(put)
    def put_whole(self: Any, *args: Any, **options: Any) -> None:
        # if the size of the folder is limited, put() also removes entries; gs://bucket is no folder of this system
        if getattr(self, "eviction_enabled", True) or not os.path.isdir(self.path):
            put(self, *args, **options)
            return
        with tempfile.TemporaryDirectory(prefix=".understudy-", dir=self.path) as folder:
            elsewhere = copy.copy(self)
            elsewhere.path = type(self.path)(folder)
            put(elsewhere, *args, **options)
            for name in os.listdir(folder):
                os.replace(os.path.join(folder, name), os.path.join(self.path, name))

    lru_cache.LRUCache.put = put_whole


def _is_local(folder: str) -> bool:
    """Whether no other machine sees the folder. False if it is unknown, or does not exist."""
    status = ctypes.create_string_buffer(_STATFS_BYTES)
    return _libc.statfs(os.fsencode(folder), status) == 0 and ctypes.c_long.from_buffer(status).value in _LOCAL

"""Whether a container sees the devices that it was given (nvidia.com/gpu). Asked in a process of its own: device_check.

Rules: NVIDIA's management library is asked, which makes no CUDA context. Each device is asked for its memory: one that
has fallen off the bus, hangs, or may not be opened any more (the container's cgroup was written anew) does not answer.
A GPU that is divided (MIG) counts by its parts. Where NVIDIA_VISIBLE_DEVICES names the devices, one that is named twice
is one. Where the image has no such library, the files in /dev say whether any device can be opened, and no more.
"""

import os
import re
from collections.abc import Mapping
from typing import Any, Optional

LIBRARY = "libnvidia-ml.so.1"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
MAX_NAMED = 3
_SUCCESS, _NO_PERMISSION = 0, 4


def visible_devices(told: int, env: Mapping[str, str]) -> int:
    """How many different devices. told: how many the manifest asks for."""
    named = {word.strip() for word in env.get(VISIBLE, "").split(",") if word.strip()}
    known = bool(named) and all(word.startswith(("GPU-", "MIG-")) for word in named)
    return min(told, len(named)) if known else told


def missing_devices_reason(wanted: int) -> str:
    """Why not so many devices answer; "" if they do."""
    library = _load()
    return by_files("/dev") if library is None else by_library(library, wanted)


def by_library(nvml: Any, wanted: int) -> str:
    from ctypes import byref, c_uint, c_void_p

    code = nvml.nvmlInit_v2()
    if code != _SUCCESS:
        return f"0 of {wanted} devices answer: {_error_text(nvml, code)}"
    count, answer, silent = c_uint(), 0, []
    code = nvml.nvmlDeviceGetCount_v2(byref(count))
    if code != _SUCCESS:
        return f"0 of {wanted} devices answer: {_error_text(nvml, code)}"
    for index in range(count.value):
        handle = c_void_p()
        code = nvml.nvmlDeviceGetHandleByIndex_v2(c_uint(index), byref(handle))
        if code == _NO_PERMISSION:
            continue  # the node's, and not this container's
        parts = _parts(nvml, handle) if code == _SUCCESS else None
        if code == _SUCCESS and parts is None:
            code = _ask(nvml, handle)
        answer += (parts or 0) if parts is not None else int(code == _SUCCESS)
        silent += [f"GPU {index}: {_error_text(nvml, code)}"] if code != _SUCCESS else []
    if answer >= wanted:
        return ""
    name = "; ".join(silent[:MAX_NAMED])
    return f"{answer} of {wanted} devices answer" + (f": {name}" if name else "")


def by_files(folder: str) -> str:
    """Whether there is a device at all."""
    troubles = []
    for name in sorted(name for name in os.listdir(folder) if re.fullmatch(r"nvidia[0-9]+", name)):
        path = os.path.join(folder, name)
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
        except OSError as error:
            troubles.append(f"{path}: {error.strerror}")
        else:
            return ""
    message = "; ".join(troubles[:MAX_NAMED]) or f"there is neither {folder}/nvidia0 nor {LIBRARY}"
    return f"no device can be opened: {message}"


def _ask(nvml: Any, handle: Any) -> int:
    """Something that only the device itself can answer."""
    from ctypes import byref, c_ulonglong

    total_free_used = (c_ulonglong * 3)()
    code: int = nvml.nvmlDeviceGetMemoryInfo(handle, byref(total_free_used))
    return code


def _parts(nvml: Any, handle: Any) -> Optional[int]:
    """How many parts of a divided GPU the container has; None of one that is whole."""
    from ctypes import byref, c_uint, c_void_p

    mode = getattr(nvml, "nvmlDeviceGetMigMode", None)  # older libraries know of none
    current, pending, most = c_uint(), c_uint(), c_uint()
    if mode is None or mode(handle, byref(current), byref(pending)) != _SUCCESS or current.value != 1:
        return None
    nvml.nvmlDeviceGetMaxMigDeviceCount(handle, byref(most))
    seen = 0
    for part in range(most.value):
        code: int = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, c_uint(part), byref(c_void_p()))
        seen += code == _SUCCESS
    return seen


def _error_text(nvml: Any, code: int) -> str:
    text = nvml.nvmlErrorString(code)
    return f"{text.decode(errors='replace')} (NVML {code})" if text else f"NVML {code}"


def _load() -> Any:
    try:
        import ctypes  # some minimal builds of Python lack it

        library = ctypes.CDLL(LIBRARY)
    except (ImportError, OSError):
        return None
    library.nvmlErrorString.restype = ctypes.c_char_p
    return library

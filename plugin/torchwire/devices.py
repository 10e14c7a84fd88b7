"""What a worker tells its group about its devices."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

import torch

from torchwire import device_report
from torchwire.device_map import DeviceMap

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")  # the latter two with ROCm


def describe(maps: dict[str, DeviceMap], automatic: bool, given: list[torch.device]) -> dict[str, Any]:
    """What the agent's constructor takes: the device maps by worker, whether the other workers get automatic ones, the
    devices that the options name, and the last of each type that there is."""
    return {"maps": maps, "automatic": automatic, "given": given, "last": _last_of_each_type()}


def _last_of_each_type() -> list[torch.device]:
    counts = {"cuda": _cuda_count(*map(os.environ.get, _VISIBLE))}
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and accelerator.type not in counts:
        counts[accelerator.type] = torch.accelerator.device_count()
    return [torch.device(kind, count - 1) for kind, count in counts.items() if count > 0]


@functools.cache
def has_driver() -> bool:
    """Whether a driver for CUDA's devices may be installed. Asked on import: the search takes 0.2 ms of init_rpc.

    Initializes nothing, so that this process may still fork.
    """
    if not torch.version.cuda or any(map(_loads, (device_report.NVML, "libcuda.so.1"))):
        return True
    return _runtime_finds_driver()  # perhaps where the loader does not


def _runtime_finds_driver() -> bool:
    version = ctypes.c_int()
    try:
        ctypes.CDLL(None).cudaDriverGetVersion(ctypes.byref(version))
    except AttributeError:  # a torch whose libraries keep CUDA's runtime to themselves
        return True
    return version.value != 0


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


@functools.lru_cache(maxsize=1)
def _cuda_count(*_visible: str | None) -> int:
    # By NVML if PyTorch can, which leaves CUDA uninitialized, so that this process may still fork.
    return torch.cuda.device_count() if has_driver() else 0

"""A stand-in for CUDA's libraries: PyTorch's own CUDA, on machines without a GPU (test/support/cuda/README.md).

    done = run_script(script, environment=cuda_stand_in.environment(MAX_DELAY_US=500))

In the script, `torch.device("cuda:1")` works, but for kernels; the functions here but build() and environment() are for
use there.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator
from pathlib import Path

import build_folder
import torch

_LIBRARY = "libtorchwire_cuda_stand_in.so"
_NCCL = "libnccl.so.2"


def is_available() -> bool:
    """Whether the stand-in is here, or can be built: not without CUDA's headers, which torch for the CPU lacks."""
    headers = Path(torch.__file__).parents[1] / "nvidia/cu13/include/cuda_runtime_api.h"
    return "TORCHWIRE_TEST_CUDA_LIBRARIES" in os.environ or headers.exists()


def build() -> Path:
    """The folder of the libraries, which are up to date then. TORCHWIRE_TEST_CUDA_LIBRARIES names another one."""
    if named := os.environ.get("TORCHWIRE_TEST_CUDA_LIBRARIES"):
        return Path(named)
    build_folder.build("test_cuda_stand_in")
    return build_folder.path() / "test/support/cuda"


def environment(devices: int = 2, **variables: object) -> dict[str, str]:
    """What a process needs, from its start, to have the stand-in. The variables are those that start with
    TORCHWIRE_TEST_CUDA_, without that."""
    folder = build()
    return {
        # NCCL's too: torch's libraries have a path of their own to it, which comes before LD_LIBRARY_PATH.
        "LD_PRELOAD": f"{folder / _LIBRARY} {folder / _NCCL}",
        "LD_LIBRARY_PATH": str(folder),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(devices))),
        "TORCHWIRE_TEST_CUDA_DEVICES": str(devices),
        **{f"TORCHWIRE_TEST_CUDA_{name}": str(value) for name, value in variables.items()},
    }


# ---- in a process that has it ----


@functools.cache
def library() -> ctypes.CDLL:
    """For functions of CUDA's, and the stand-in's own."""
    loaded = ctypes.CDLL(_LIBRARY, os.RTLD_NOLOAD | os.RTLD_NOW)
    loaded.torchwire_test_cuda_count.restype = ctypes.c_int64
    loaded.torchwire_test_cuda_count_name.restype = ctypes.c_char_p
    return loaded


def counts() -> dict[str, int]:
    """What has happened in this process so far."""
    found: dict[str, int] = {}
    while (name := library().torchwire_test_cuda_count_name(len(found))) is not None:
        found[name.decode()] = library().torchwire_test_cuda_count(name)
    return found


def fail_next(kind: str, times: int = 1, error: int = 0) -> None:
    """The next uses fail, with that cudaError_t; -1 `times` are all. The kinds are in the README."""
    if not library().torchwire_test_cuda_fail_next(kind.encode(), ctypes.c_int64(times), error):
        raise ValueError(f"nothing of the kind {kind} can fail")


@contextlib.contextmanager
def held(device: int) -> Iterator[None]:
    """Nothing on the device's streams begins to run until the end of the block."""
    library().torchwire_test_cuda_hold(device)
    try:
        yield
    finally:
        library().torchwire_test_cuda_release(device)

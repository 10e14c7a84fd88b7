"""A stand-in accelerator: four devices `standin:0` to `standin:3` that only tests use, on machines without a GPU.

    import accelerator
    accelerator.load()
    ones = torch.ones(3, device="standin:1")  # written some time later, on a stream's thread
    with torch.standin.stream(torch.Stream("standin:1")):
        ones + 1                               # does not wait for that: poison, with luck

What it does to those who forget to synchronize is in test/support/accelerator/README.md. It takes PyTorch's PrivateUse1
for the whole process; what needs it therefore runs in a process of its own (processes.py), with ENVIRONMENT.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path

import build_folder
import torch

NAME = "standin"
# What a process needs to see that has the accelerator: pinned memory would be CUDA's where there is a GPU.
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": ""}
_MODULE = "torchwire_test_accelerator"


def path() -> Path:
    """Where the module is, or will be once it is built: TORCHWIRE_TEST_ACCELERATOR names the file, or it is in the
    build folder of this Python and torch (tools/setup)."""
    if named := os.environ.get("TORCHWIRE_TEST_ACCELERATOR"):
        return Path(named)
    return build_folder.path() / "test/support/accelerator" / (_MODULE + sysconfig.get_config_var("EXT_SUFFIX"))


def build() -> Path:
    """The path of the module, which is up to date then."""
    module = path()
    if "TORCHWIRE_TEST_ACCELERATOR" in os.environ:
        return module
    build_folder.build("test_accelerator")
    return module


def load() -> types.ModuleType:
    """The module; `torch.device("standin:1")`, `torch.standin` and so on work from now on."""
    if _MODULE in sys.modules:
        return sys.modules[_MODULE]
    spec = importlib.util.spec_from_file_location(_MODULE, path())
    if spec is None or spec.loader is None:
        raise ImportError(f"{path()} is no extension module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[_MODULE] = module
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _device_module(module))
    torch.utils.generate_methods_for_privateuse1_backend()
    return module


@contextlib.contextmanager
def held(device: int, stream: torch.Stream | None = None) -> Iterator[None]:
    """Nothing of the device, or of the stream, begins to run until the end of the block."""
    module = load()
    stream_id = None if stream is None else stream.stream_id
    module.hold(device, stream_id)
    try:
        yield
    finally:
        module.release(device, stream_id)


def _device_module(extension: types.ModuleType) -> types.ModuleType:
    """`torch.standin`, with what programs use of `torch.cuda`."""
    module = types.ModuleType(f"torch.{NAME}")
    for function in (
        current_device,
        current_stream,
        default_stream,
        manual_seed_all,
        set_device,
        set_stream,
        stream,
        synchronize,
        _is_in_bad_fork,
        _lazy_init,
    ):
        setattr(module, function.__name__, function)
    module.device_count = extension.device_count
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module.device = _DeviceContext
    module.Stream = torch.Stream
    module.Event = torch.Event
    return module


# ---- torch.standin --------------------------------------------------------------------------------


def current_device() -> int:
    return torch.accelerator.current_device_index()


def set_device(device: torch.device | str | int) -> None:
    torch.accelerator.set_device_index(_index_of(device))


def current_stream(device: torch.device | str | int | None = None) -> torch.Stream:
    return torch.accelerator.current_stream(_index_of(device))


def default_stream(device: torch.device | str | int | None = None) -> torch.Stream:
    return torch.Stream(stream_id=0, device_index=_index_of(device), device_type=_device_type())


def set_stream(stream: torch.Stream) -> None:
    torch.accelerator.set_stream(stream)


def synchronize(device: torch.device | str | int | None = None) -> None:
    load().synchronize(_index_of(device))


@contextlib.contextmanager
def stream(chosen: torch.Stream) -> Iterator[None]:
    """The stream is current, and its device, in the block; of other devices, the current streams stay."""
    with _DeviceContext(chosen.device_index):
        outer = current_stream(chosen.device_index)
        set_stream(chosen)
        try:
            yield
        finally:
            set_stream(outer)


class _DeviceContext:
    """The device is current in the block."""

    def __init__(self, device: torch.device | str | int):
        self._index = _index_of(device)
        self._outer = -1

    def __enter__(self) -> None:
        self._outer = current_device()
        set_device(self._index)

    def __exit__(self, *_: object) -> None:
        set_device(self._outer)


def manual_seed_all(seed: int) -> None:
    """Random numbers are drawn by the CPU's generator, which torch.manual_seed() seeds."""


def _is_in_bad_fork() -> bool:
    return False


def _lazy_init() -> None:
    """torch.accelerator takes a device without this function for one that nobody has used yet."""


def _index_of(device: torch.device | str | int | None) -> int:
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return current_device() if index is None else index


def _device_type() -> int:
    return torch.Stream(NAME).device_type

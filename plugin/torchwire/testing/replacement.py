"""torchwire in the place of FAULTY_TENSORPIPE, PyTorch's own backend that fails, for programs that name it."""

from __future__ import annotations

import importlib
from typing import Any

import torch.distributed.rpc as rpc
from torch.distributed.rpc.backend_registry import BackendValue

from torchwire import backend_type, registration, torch_parts
from torchwire.testing import backend
from torchwire.testing.options import FaultyTorchwireRpcBackendOptions

# What FAULTY_TENSORPIPE is by itself, while torchwire is in its place.
_stock: BackendValue | None = None


def replace_faulty_tensorpipe() -> None:
    """From now on, in this process, FAULTY_TENSORPIPE takes and makes FAULTY_TORCHWIRE's options, and starts its agent.

    Its member of BackendType stays the same object, unless this is what registers it. Calling it again changes
    nothing. Raises RuntimeError when this PyTorch has no such backend. Not thread-safe.
    """
    global _stock
    member = _member()
    own = backend._init_backend  # pyright: ignore[reportPrivateUsage] - pickled by its name, which it keeps
    if member.value.init_backend_handler is not own:
        _stock = member.value
        backend_type.set_value(member, BackendValue(_construct_options, own))


def restore_faulty_tensorpipe() -> None:
    """Undoes replace_faulty_tensorpipe(). Does nothing when FAULTY_TENSORPIPE is itself. Not thread-safe.

    Raises as replace_faulty_tensorpipe does.
    """
    global _stock
    if _stock is not None:
        backend_type.set_value(_member(), _stock)
        _stock = None


# Not backend's own: a member is pickled as its value, so two must not have the same.
def _construct_options(rpc_timeout: float, init_method: str, **others: Any) -> FaultyTorchwireRpcBackendOptions:
    return FaultyTorchwireRpcBackendOptions(rpc_timeout=rpc_timeout, init_method=init_method, **others)


def _member() -> rpc.BackendType:
    # Importing it registers the backend, and so splits the enum; see backend_type.
    importlib.import_module("torch.distributed.rpc._testing")
    registration.register()
    backend.register()
    if not torch_parts.backend_registered("FAULTY_TENSORPIPE"):
        raise RuntimeError("this PyTorch was built without FAULTY_TENSORPIPE; use BackendType.FAULTY_TORCHWIRE instead")
    return rpc.BackendType["FAULTY_TENSORPIPE"]

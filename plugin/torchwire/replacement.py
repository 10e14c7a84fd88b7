"""torchwire in the place of TENSORPIPE, for programs that name TENSORPIPE or no backend at all."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import torch.distributed.rpc as rpc
from torch.distributed.rpc.backend_registry import BackendValue

from torchwire import backend_type, registration, torch_parts

# Set in processes that shall have torchwire in the place of TENSORPIPE; _torchwire_autoload.py looks at it too.
ENVIRONMENT_VARIABLE = "TORCHWIRE_REPLACE_TENSORPIPE"

_ON = ("1", "true")
_OFF = ("", "0", "false")

# PyTorch's way to start a TENSORPIPE agent, while torchwire's is in its place.
_stock_init_backend: Callable[..., Any] | None = None


def replace_tensorpipe() -> None:
    """From now on, init_rpc starts torchwire where it would start TENSORPIPE: in this process and all that it starts.

    Processes inherit the wish through the environment variable TORCHWIRE_REPLACE_TENSORPIPE, so a fork server that runs
    already does not hear of it. Options stay PyTorch's own TensorPipeRpcBackendOptions. Calling it again
    changes nothing. Raises RuntimeError when RPC is initialized in this process. Not thread-safe.
    """
    global _stock_init_backend
    registration.register()  # TENSORPIPE must be looked up in the enum that init_rpc uses
    value = rpc.BackendType["TENSORPIPE"].value
    # Which is pickled by its name, so it keeps the one that it has.
    own = registration._init_backend  # pyright: ignore[reportPrivateUsage]
    if value.init_backend_handler is not own:
        _refuse_while_initialized()
        _stock_init_backend = value.init_backend_handler
        _set_init_backend(own)
    os.environ[ENVIRONMENT_VARIABLE] = "1"
    _warn_without_autoload()


def replace_if_requested() -> None:
    """Calls replace_tensorpipe() if the environment asks for it.

    Raises ValueError when the variable holds something that is neither yes nor no.
    """
    text = os.environ.get(ENVIRONMENT_VARIABLE, "")
    word = text.strip().lower()
    if word in _ON:
        replace_tensorpipe()
    elif word not in _OFF:
        raise ValueError(
            f"environment variable {ENVIRONMENT_VARIABLE} is {text!r}; "
            "set it to 1 (torchwire takes the place of TENSORPIPE) or to 0, or unset it"
        )


def restore_tensorpipe() -> None:
    """Undoes replace_tensorpipe(), for this process and those that it starts later. Not thread-safe.

    Does nothing when TENSORPIPE is itself. A running agent goes on as what it is.
    """
    global _stock_init_backend
    os.environ.pop(ENVIRONMENT_VARIABLE, None)
    if _stock_init_backend is None:
        return
    registration.register()
    _set_init_backend(_stock_init_backend)
    _stock_init_backend = None


def _set_init_backend(handler: Callable[..., Any]) -> None:
    # The member keeps its identity, because programs hold it and compare with it. Its options handler stays PyTorch's:
    # init_rpc must go on to recognize TensorPipeRpcBackendOptions as TENSORPIPE's.
    member = rpc.BackendType["TENSORPIPE"]
    backend_type.set_value(member, BackendValue(member.value.construct_rpc_backend_options_handler, handler))


def _refuse_while_initialized() -> None:
    if not torch_parts.is_current_rpc_agent_set():
        return
    worker, agent_type = torch_parts.get_worker_info().name, type(torch_parts.get_current_rpc_agent()).__name__
    raise RuntimeError(
        f"torchwire.replace_tensorpipe(): worker {worker!r} already runs on {agent_type}; "
        "call it before rpc.init_rpc, or after rpc.shutdown"
    )


def _warn_without_autoload() -> None:
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
        return
    warnings.warn(
        "TORCH_DEVICE_BACKEND_AUTOLOAD keeps PyTorch from loading plugins, so processes started from this one run on "
        "TENSORPIPE unless they import torchwire themselves; unset it to have torchwire there too",
        stacklevel=3,
    )

"""How long a worker of a dynamic group tries to reach the rendezvous store.

torch.distributed makes the store's client before it asks a backend for anything. It waits half an hour for a server
that is gone, and for ever for one that stands still. The workers of a static group may well start that far apart, so
theirs is left as it is. Who comes to a dynamic group comes to one that runs: there the wait ends with the time-out of
calls.

A function of torch.distributed is replaced once, when torchwire is imported, and for good. It asks at every call
whether the options are torchwire's.
"""

# The functions of PyTorch's that are replaced here are private, and have no types.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportUnknownMemberType=false

from __future__ import annotations

import datetime
import functools
import threading
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlparse

import torch.distributed as dist

from torchwire.options import TorchwireRpcBackendOptions
from torchwire.torch_parts import Store, rendezvous_helper

_REACHED_BY_NETWORK = ("tcp", "env")

_installed = False


def install() -> None:
    """Replaces the function. May be called again; not thread-safe."""
    global _installed
    if _installed:
        return
    original = cast("Callable[..., Any]", dist._create_store_from_options)

    @functools.wraps(original)
    def create_store_from_options(backend_options: Any, rank: int) -> Store:
        if not isinstance(backend_options, TorchwireRpcBackendOptions) or backend_options.rpc_timeout == 0:
            return original(backend_options, rank)
        return _create_store(backend_options.init_method, rank, backend_options.rpc_timeout)

    dist._create_store_from_options = create_store_from_options
    _installed = True


def _create_store(init_method: str, rank: int, timeout: float) -> Store:
    """Raises RuntimeError if the store cannot be reached."""
    arguments: dict[str, Any] = {}
    if urlparse(init_method).scheme in _REACHED_BY_NETWORK:
        arguments["timeout"] = datetime.timedelta(seconds=timeout)
    try:
        store, _, _ = within(timeout, lambda: next(rendezvous_helper(init_method, rank, None, **arguments)))
    except (dist.DistError, TimeoutError) as error:
        raise RuntimeError(
            f"the worker with rank {rank} could not join the RPC group: the rendezvous store (init_method, MASTER_ADDR "
            f"and MASTER_PORT) did not answer: {reason_of(error)}"
        ) from None
    return store


def reason_of(error: Exception) -> str:
    """What an error of a store's says, without the stack trace that PyTorch appends."""
    return str(error).partition("\n")[0]


def within(seconds: float, function: Callable[[], Any], thread_name: str = "torchwire store") -> Any:
    """What `function` returns or raises; TimeoutError if that takes longer. It goes on running then."""
    outcome: list[Any] = []
    error: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(function())
        except BaseException as caught:
            error.append(caught)

    thread = threading.Thread(target=run, name=thread_name, daemon=True)
    thread.start()
    thread.join(seconds)
    if error:
        raise error[0]
    if not outcome:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return outcome[0]

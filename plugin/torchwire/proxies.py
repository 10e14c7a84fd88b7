"""Calls by the proxies of RRefs: `rref.rpc_sync()`, `rref.rpc_async()` and `rref.remote()`.

PyTorch asks the owner for the type of the value, and only then calls its method. It keeps the future of the type with
the RRef, also where that has failed; and an error that a future keeps holds the frames that it has come through, and so
the RRef. The function that does this is replaced once, when torchwire is imported; on other backends it does what it
always did.
"""

# The functions of PyTorch's that are replaced here are private, and have no types.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from torch._C._distributed_rpc import PyRRef
from torch.distributed.rpc import api, rref_proxy

from torchwire import _C
from torchwire.current_agent import current_agent
from torchwire.interrupts import is_interrupt
from torchwire.replaced import PROXY, for_good


def install() -> None:
    """Replaces the function. Not thread-safe."""
    for_good(f"{PROXY}._invoke_rpc", _replacing)


def _replacing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def invoke(rref: PyRRef[Any], rpc_api: Any, method: str, timeout: float, /, *args: Any, **kwargs: Any) -> Any:
        agent = current_agent()
        if agent is None:
            return original(rref, rpc_api, method, timeout, *args, **kwargs)
        agent.expect_of_this_lifetime(rref)
        call = functools.partial(_call, rref, rpc_api, method, timeout, args, kwargs)
        if rpc_api is not api.rpc_async:
            return call(_C.type_of(rref, timeout))
        kind = _C.future_type_of(rref, timeout)
        if not agent.devices:
            future: torch.futures.Future[Any] = torch.futures.Future()
            _C.chain(kind, _C.in_current_context(call), future)
            return future
        # Such a future would be of a call that is sent from a callback, on other streams than those that fill the
        # arguments, and would know of no streams.
        try:
            known = kind.wait()
        except Exception as error:
            if is_interrupt(error):
                raise
            return kind
        return call(known)

    return invoke


def _call(rref: PyRRef[Any], rpc_api: Any, method: str, timeout: float, args: Any, kwargs: Any, kind: Any) -> Any:
    is_async = False
    if not issubclass(kind, (torch.jit.ScriptModule, torch._C.ScriptModule)):
        is_async = hasattr(getattr(kind, method), "_wrapped_async_rpc_function")
    function = cast("Any", rref_proxy._local_invoke_async_execution if is_async else rref_proxy._local_invoke)
    return rpc_api(rref.owner(), function, args=(rref, method, args, kwargs), timeout=timeout)

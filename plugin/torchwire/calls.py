"""Calls take a shorter way on a torchwire agent, and threads that wait for a call of theirs help to bring its answer.

What PyTorch's `rpc_sync` and `rpc_async` call, and its `Future.wait`, are replaced once, when torchwire is imported.
Each looks at every call who the current agent is; on any other backend they do what they always did. `rpc_sync` of a
Python function makes no future. What else `rpc_sync` and `RRef.to_here` send is awaited as it is sent. What else sends
calls notes which call a thread has sent last; `RRef._get_future`, whose creation its future is of. A thread that waits
for the future of a Python function's call, or for that of its latest other one, reads the answer itself: no other
thread has to be woken.

A callback of a future runs in the autograd context in which it was added: PyTorch runs it in none, and the gradients of
what it calls are lost. A process that it forks ends with it.
"""

# The functions of PyTorch's that are replaced here are private, and have no types.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_rpc import PyRRef
from torch.distributed.rpc import api, internal
from torch.distributed.rpc.constants import UNSET_RPC_TIMEOUT

from torchwire import _C
from torchwire.current_agent import current_agent
from torchwire.replaced import API, RREF, for_good
from torchwire.torch_parts import find_builtin

_FUTURE = "torch.Future"
_INVOKE = ("_invoke_rpc_builtin", "_invoke_rpc_python_udf", "_invoke_rpc_torchscript")
# Those by which an RRef is passed on, proxies find out what to call, and an owner gets at its value; and whether they
# need the value.
_OF_CREATED = {"_serialize": False, "_get_type": True, "local_value": True}
_SYNC = internal.RPCExecMode.SYNC
_ASYNC = internal.RPCExecMode.ASYNC
_PICKLER = internal._internal_rpc_pickler


def install() -> None:
    """Replaces the functions. Not thread-safe."""
    for name in _INVOKE:
        for_good(f"{API}.{name}", _C.noting_calls)
    for_good(f"{API}._invoke_rpc", _invoking)
    for_good(f"{RREF}.to_here", _awaiting)
    for name in _OF_CREATED:
        for_good(f"{RREF}.{name}", lambda original, name=name: _of_created(original, name))
    for_good(f"{RREF}._get_future", _noting_creation)
    for_good(f"{_FUTURE}.wait", _waiting)
    for name in ("then", "add_done_callback"):
        for_good(f"{_FUTURE}.{name}", _in_context)


class _Done:
    """In the place of a future, for a call that has been waited for."""

    __slots__ = ("_result",)

    def __init__(self, result: Any) -> None:
        self._result = result

    def wait(self) -> Any:
        return self._result


def _invoking(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def invoke(
        to: Any, func: Any, rpc_type: Any, args: Any = None, kwargs: Any = None, rpc_timeout: float = UNSET_RPC_TIMEOUT
    ) -> Any:
        if is_python(func) and _has_own_pickler():
            is_async = hasattr(func, "_wrapped_async_rpc_function")
            named: Any = kwargs or {}
            call = to, func, args or (), named, rpc_timeout, is_async
            if rpc_type is _SYNC:  # rpc_sync waits at once for what it gets
                done = _C.call_python(*call)
                if done is not None:
                    return _Done(done[0])
            elif rpc_type is _ASYNC:
                future = _C.call_python_async(*call)
                if future is not None:
                    return future
        return _C.call_sending(rpc_type is _SYNC, original, to, func, rpc_type, args, kwargs, rpc_timeout)

    return invoke


def is_python(func: Any) -> bool:
    """Whether calls of it are of a Python function: not of an operator or a TorchScript function."""
    wrapped = getattr(func, "_wrapped_async_rpc_function", func)
    return callable(func) and find_builtin(func) is None and not isinstance(wrapped, torch.jit.ScriptFunction)


def _has_own_pickler() -> bool:
    """Whether _use_rpc_pickler has no say in what is sent."""
    return api._default_pickler is _PICKLER


def _awaiting(original: Any) -> Any:
    return _C.awaiting_method(original, "to_here", original.__doc__)


def _of_created(original: Any, name: str) -> Any:
    return _C.method_of_created(original, name, original.__doc__ or "", _OF_CREATED[name])


def _noting_creation(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _get_future(self: PyRRef[Any]) -> Any:
        future = original(self)
        _C.note_creation(self, future)
        return future

    return _get_future


def _waiting(original: Any) -> Any:
    return _C.waiting_method(original, original.__doc__ or "")


def _in_context(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def then(self: torch._C.Future[Any], callback: Callable[..., Any]) -> Any:
        if current_agent() is not None and callable(callback):
            callback = _C.in_current_context(callback)
        return original(self, callback)

    return then

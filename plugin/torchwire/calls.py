"""Calls from Python take a shorter way on a torchwire agent, and threads that wait for a call read its answer.

What PyTorch's `rpc_sync` and `rpc_async` call, `RRef.to_here` and `Future.wait` are replaced once, when torchwire is
imported. Each looks at every call who the current agent is; on any other backend they do what they always did.
`rpc_sync` and `to_here` make no future. The futures of `rpc_async` and of RRefs' creations know their calls
(torchwire.call_future): a thread that waits for one reads the answer itself, and no other thread has to be woken.
PyTorch makes the calls that its legacy profiler records, and those that it finds something wrong with.

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
from torch.distributed.rpc import api, internal
from torch.distributed.rpc.constants import UNSET_RPC_TIMEOUT

from torchwire import _C, call_future
from torchwire.current_agent import current_agent
from torchwire.replaced import API, RREF, for_good
from torchwire.torch_parts import find_builtin

_FUTURE = "torch.Future"
# Those by which an RRef is passed on, proxies find out what to call, and an owner gets at its value; and whether they
# need the value.
_OF_CREATED = {"_serialize": False, "_get_type": True, "local_value": True}
_SYNC = internal.RPCExecMode.SYNC
_ASYNC = internal.RPCExecMode.ASYNC
_PICKLER = internal._internal_rpc_pickler


def install() -> None:
    """Replaces the functions. Not thread-safe."""
    for_good(f"{API}._invoke_rpc", _invoking)
    for_good(f"{RREF}.to_here", _fetching)
    for name in _OF_CREATED:
        for_good(f"{RREF}.{name}", lambda original, name=name: _of_created(original, name))
    for_good(f"{RREF}._get_future", _knowing_creation)
    for_good(f"{_FUTURE}.wait", _waiting)
    for name in ("then", "add_done_callback"):
        for_good(f"{_FUTURE}.{name}", _in_context)
    call_future.install()


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
        if callable(func) and (rpc_type is _SYNC or rpc_type is _ASYNC):
            name, is_async = _script_of(func)
            if name is not None and current_agent() is not None:
                args, kwargs = _unpacked(*(args or ()), **(kwargs or {}))
            named: Any = kwargs or {}
            call = to, func, name, args or (), named, rpc_timeout, is_async, not _has_default_pickler()
            if rpc_type is _ASYNC:
                future = _C.call_async(*call)
                if future is not None:
                    return future
            else:  # rpc_sync waits at once for what it gets
                done = _C.call(*call)
                if done is not None:
                    return _Done(done[0])
        return _C.call_through(original, to, func, rpc_type, args, kwargs, rpc_timeout)

    return invoke


def _unpacked(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments out of any iterable and any mapping, which PyTorch takes for operators."""
    return args, kwargs


def is_python(func: Any) -> bool:
    """Whether calls of it are of a Python function: not of an operator or a TorchScript function."""
    return callable(func) and _script_of(func)[0] is None


def _script_of(func: Any) -> tuple[str | None, bool]:
    """The qualified name of an operator or a TorchScript function, None for one of Python; and whether it is async."""
    operator = find_builtin(func)
    if operator is not None:
        return operator, False
    wrapped = getattr(func, "_wrapped_async_rpc_function", None)
    script = func if wrapped is None else wrapped
    return (script.qualified_name if isinstance(script, torch.jit.ScriptFunction) else None), wrapped is not None


def _has_default_pickler() -> bool:
    """Whether _use_rpc_pickler has no say in what is sent."""
    return api._default_pickler is _PICKLER


def _fetching(original: Any) -> Any:
    return _C.fetching_method(original, original.__doc__)


def _of_created(original: Any, name: str) -> Any:
    return _C.method_of_created(original, name, original.__doc__ or "", _OF_CREATED[name])


def _knowing_creation(original: Any) -> Any:
    return _C.creation_future_method(original, original.__doc__ or "")


def _waiting(original: Any) -> Any:
    return _C.waiting_method(original, original.__doc__ or "")


def _in_context(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def then(self: torch._C.Future[Any], callback: Callable[..., Any]) -> Any:
        if current_agent() is not None and callable(callback):
            callback = _C.in_current_context(callback)
        return original(self, callback)

    return then

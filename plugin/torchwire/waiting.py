"""Threads that wait for a call of theirs help to bring its answer.

PyTorch's `Future.wait` and what sends calls are replaced once, when torchwire is imported. Each looks at every call who
the current agent is; on any other backend they do what they always did. What sends calls notes which call a thread has
sent last, and a thread that waits for that one's future reads the answer itself: no other thread has to be woken.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.distributed.rpc import api

from torchwire import _C

_INVOKE = ("_invoke_rpc_builtin", "_invoke_rpc_python_udf", "_invoke_rpc_torchscript")

_installed = False


def install() -> None:
    """Replaces the functions. May be called again; not thread-safe."""
    global _installed
    if _installed:
        return
    for name in _INVOKE:
        setattr(api, name, _C.noting_calls(getattr(api, name)))
    _replace_wait()
    _installed = True


def _replace_wait() -> None:
    original = torch._C.Future.wait

    @functools.wraps(original)
    def wait(self: torch._C.Future) -> Any:
        _C.await_call(self)
        return original(self)

    torch._C.Future.wait = wait

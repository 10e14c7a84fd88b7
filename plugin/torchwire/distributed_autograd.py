"""The ways from Python into PyTorch's distributed autograd that a TORCHWIRE group takes to torchwire's own engine.

Functions of torch.distributed.autograd are replaced once, when torchwire is imported, and for good: a module that
imports them by name keeps what it got, so they must be the right ones before the first group starts and after the last
one ends.
Each asks at every call who the current agent is, and any other backend's calls go where they always went.

TorchScript knows functions by identity: a script that calls one of them compiles to an operator. So the operator behind
torch.distributed.autograd.backward is replaced too, and the new function made known as another name for it.
"""

# The functions of PyTorch's that are replaced here are private, and have no types.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportUnknownMemberType=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed.autograd as dist_autograd
from torch._C._distributed_rpc import PyRRef
from torch.jit import _builtins

from torchwire import _C
from torchwire.current_agent import agent_for, current_agent, forked_agent
from torchwire.records import AutogradContextInfo
from torchwire.replaced import AUTOGRAD, AUTOGRAD_C, RREF, for_good

_NO_CONTEXT = -1
_BACKWARD_OPERATOR = "aten::dist_backward"


def install() -> None:
    """Replaces the functions. Not thread-safe."""
    _C.replace_script_operator()
    for_good(f"{AUTOGRAD}.backward", _backward_of)
    for_good(f"{AUTOGRAD_C}.backward", lambda _: dist_autograd.backward)
    for_good(f"{RREF}.backward", _backward_of_rref)
    for module in (AUTOGRAD, AUTOGRAD_C):
        for_good(f"{module}._new_context", lambda _: _new_context)
        for_good(f"{module}._release_context", lambda _: _release_context)
    # PyTorch's are in Python: what a signal's handler raises in them would leave the thread in the context for good.
    for_good(f"{AUTOGRAD}.context.__enter__", lambda _: _C.enter_context)
    for_good(f"{AUTOGRAD}.context.__exit__", lambda _: _C.exit_context)


def autograd_contexts() -> list[AutogradContextInfo]:
    """One `torchwire.AutogradContextInfo` for each distributed autograd context that is open on this worker.

    Raises RuntimeError when RPC is not initialized or runs on another backend.
    """
    agent = agent_for("autograd_contexts")
    names = {worker.id: worker.name for worker in agent.get_worker_infos()}
    contexts = agent.autograd_contexts()
    for context in contexts:
        context["creator"] = names.get(context["creator"], context["creator"])
        context["known_workers"] = [names.get(rank, rank) for rank in context["known_workers"]]
    return [AutogradContextInfo(context) for context in contexts]


def _backward_of(original: Callable[..., None]) -> Callable[..., None]:
    @_as_pytorchs
    @functools.wraps(original)
    def backward(contextId: int, roots: list[Any], retain_graph: bool = False) -> None:
        agent = current_agent()
        if agent is None:
            _refuse_in_forked_child()
            original(contextId, roots, retain_graph)
        else:
            agent.backward(contextId, roots, retain_graph)

    for function in (original, backward):
        _name_in_scripts(function, _BACKWARD_OPERATOR)
    return backward


def _backward_of_rref(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def backward(self: PyRRef[Any], dist_autograd_ctx_id: int = _NO_CONTEXT, retain_graph: bool = False) -> None:
        agent = current_agent()
        if agent is None:
            _refuse_in_forked_child()
            original(self, dist_autograd_ctx_id, retain_graph)
        else:
            agent.backward_from_rref(self, dist_autograd_ctx_id, retain_graph)

    return backward


def _refuse_in_forked_child() -> None:
    forked = forked_agent()
    if forked is not None:
        raise RuntimeError(forked.refusal)


def _as_pytorchs(function: Callable[..., Any]) -> Callable[..., Any]:
    # By this name it can be pickled and sent to another worker, which then finds its own.
    function.__module__ = dist_autograd.__name__
    function.__qualname__ = function.__name__
    return function


@_as_pytorchs
@functools.wraps(dist_autograd._new_context)
def _new_context() -> Any:
    return _C.new_context()


@_as_pytorchs
@functools.wraps(dist_autograd._release_context)
def _release_context(context_id: int) -> None:
    _C.release_context(context_id)


def _name_in_scripts(function: Callable[..., Any], operator: str) -> None:
    # PyTorch makes the table from this list when it compiles the first script.
    _builtins._builtin_ops.append((function, operator))
    if _builtins._builtin_table is not None:
        _builtins._register_builtin(function, operator)

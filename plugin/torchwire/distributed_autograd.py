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
from torch._C import _distributed_autograd
from torch._C._distributed_rpc import PyRRef
from torch.jit import _builtins

from torchwire import _C
from torchwire.current_agent import agent_for, current_agent, forked_agent

_NO_CONTEXT = -1
_BACKWARD = "backward"
_BACKWARD_OPERATOR = "aten::dist_backward"

_installed = False


def install() -> None:
    """Replaces the functions. May be called again; not thread-safe."""
    global _installed
    if _installed:
        return
    _replace_backward()
    _replace_rref_backward()
    _replace_contexts()
    _installed = True


def autograd_contexts() -> list[dict[str, Any]]:
    """One dict for each distributed autograd context that is open on this worker.

    id: as `with dist_autograd.context() as id` gives it.
    creator: name of the worker that opened it, or its rank where that worker has left.
    known_workers: names of the workers with which this one has exchanged calls in it.
    send_functions, recv_functions, gradients: how many it has here.
    age: seconds since it was first seen here.
    calls: how many of its calls run here just now. released: it has been released, and waits for these.
    backward: the backward pass that runs here, in a few words, or None.

    Raises RuntimeError when RPC is not initialized or runs on another backend.
    """
    agent = agent_for("autograd_contexts")
    names = {worker.id: worker.name for worker in agent.get_worker_infos()}
    contexts = agent.autograd_contexts()
    for context in contexts:
        context["creator"] = names.get(context["creator"], context["creator"])
        context["known_workers"] = [names.get(rank, rank) for rank in context["known_workers"]]
    return contexts


def _replace_backward() -> None:
    original = dist_autograd.backward

    @functools.wraps(original)
    def backward(contextId: int, roots: list[Any], retain_graph: bool = False) -> None:
        agent = current_agent()
        if agent is None:
            _refuse_in_forked_child()
            original(contextId, roots, retain_graph)
        else:
            agent.backward(contextId, roots, retain_graph)

    _C.replace_script_operator()
    for function in (original, backward):
        _name_in_scripts(function, _BACKWARD_OPERATOR)
    _put_in_place(backward)


def _replace_rref_backward() -> None:
    original: Callable[..., None] = getattr(PyRRef, _BACKWARD)  # PyTorch's stub of the class lacks it

    @functools.wraps(original)
    def backward(self: PyRRef[Any], dist_autograd_ctx_id: int = _NO_CONTEXT, retain_graph: bool = False) -> None:
        agent = current_agent()
        if agent is None:
            _refuse_in_forked_child()
            original(self, dist_autograd_ctx_id, retain_graph)
        else:
            agent.backward_from_rref(self, dist_autograd_ctx_id, retain_graph)

    # torch.distributed.rpc.RRef looks its methods up in this class at each call.
    setattr(PyRRef, _BACKWARD, backward)


def _refuse_in_forked_child() -> None:
    forked = forked_agent()
    if forked is not None:
        raise RuntimeError(forked.refusal)


def _replace_contexts() -> None:
    @functools.wraps(dist_autograd._new_context)
    def _new_context() -> Any:
        return _C.new_context()

    @functools.wraps(dist_autograd._release_context)
    def _release_context(context_id: int) -> None:
        _C.release_context(context_id)

    _put_in_place(_new_context)
    _put_in_place(_release_context)
    # PyTorch's are in Python: what a signal's handler raises in them would leave the thread in the context for good.
    dist_autograd.context.__enter__ = _C.enter_context
    dist_autograd.context.__exit__ = _C.exit_context


def _put_in_place(function: Callable[..., Any]) -> None:
    # Its own name in the module that users know, so that it can be pickled and sent to another worker, which then
    # finds its own.
    function.__module__ = dist_autograd.__name__
    function.__qualname__ = function.__name__
    setattr(dist_autograd, function.__name__, function)
    setattr(_distributed_autograd, function.__name__, function)


def _name_in_scripts(function: Callable[..., Any], operator: str) -> None:
    # PyTorch makes the table from this list when it compiles the first script.
    _builtins._builtin_ops.append((function, operator))
    if _builtins._builtin_table is not None:
        _builtins._register_builtin(function, operator)

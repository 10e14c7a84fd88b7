"""A process that is forked from a worker, as by os.fork, multiprocessing's start method "fork" or a DataLoader.

The child has copies of the parent's agent, RRefs and futures, but none of the threads behind them, and the connections
are the parent's. So its current agent is a ForkedAgent, which refuses whatever is to be sent and says why
(backend/agent/forked_agent.h); RRefs that it drops tell nobody. What else the parent has set up in Python is undone
here. `rpc.shutdown()` has nothing to do in the child, and `init_rpc` makes it a worker of its own.
"""

# The functions and states of PyTorch's that are replaced or reset here are private, and have no types.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportPrivateImportUsage=false

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, cast

import torch.distributed.rpc as rpc

from torchwire import (
    _C,
    concurrent_shutdown,
    creation_sites,
    graceful_shutdown,
    passed_rrefs,
    secret_watch,
    torch_parts,
)
from torchwire.current_agent import forked_agent
from torchwire.observe import observers
from torchwire.replaced import API, AUTOGRAD, Replacements, Until

_replaced = Replacements(Until.LEFT)
_installed = False


def install() -> None:
    """Takes care of children that are forked from now on. May be called again; not thread-safe."""
    global _installed
    if not _installed:
        os.register_at_fork(after_in_child=_begin)
        _installed = True


def _begin() -> None:
    if forked_agent() is None:
        return
    graceful_shutdown.uninstall()
    creation_sites.uninstall()
    passed_rrefs.uninstall()
    observers.leave_to_parent()
    _C.leave_context()  # or the calls of a worker that this process becomes would be in it
    secret_watch.leave_to_parent()
    _replaced.undo()  # of a parent that was itself forked
    cast("Any", rpc)._init_counter = 0  # the prefix in the store is that of workers whose process has just begun
    _replaced.replace(concurrent_shutdown.SHUTDOWN, _leaving_instead)
    # A child that is forked amid a shutdown goes on in it; what the parent's threads were to do it would wait for.
    for name in ("_all_gather", "_barrier", "_wait_all_workers", "_delete_all_user_and_unforked_owner_rrefs"):
        _replaced.replace(f"{API}.{name}", _refusing)
    _replaced.replace(f"{API}._finalize_shutdown", _leaving_instead)
    # The first that init_rpc does with what it would find of the parent's.
    _replaced.replace(f"{AUTOGRAD}._init", _leaving_first)


def _leave() -> None:
    """Forgets the parent's group."""
    _replaced.undo()
    if forked_agent() is not None:
        torch_parts.reset_current_rpc_agent()


def _refusing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def refuse(*args: Any, **options: Any) -> Any:
        forked = forked_agent()
        if forked is None:  # somebody has kept this function
            return original(*args, **options)
        raise RuntimeError(forked.refusal)

    return refuse


def _leaving_instead(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def shutdown(*_args: Any, **_options: Any) -> None:
        _leave()

    return shutdown


def _leaving_first(original: Callable[[int], None]) -> Callable[[int], None]:
    @functools.wraps(original)
    def _init(worker_id: int) -> None:
        _leave()
        original(worker_id)

    return _init

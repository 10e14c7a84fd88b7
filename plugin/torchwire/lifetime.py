"""RPC lifetimes: a process may call init_rpc again after rpc.shutdown(), as another worker, and on another backend.

PyTorch keeps in the process what it has set up for the first one: its tables of RRefs with their agent, its autograd
contexts with their worker's rank, its counts of all-gathers. Two functions of PyTorch's are replaced for good, since
what comes next may be another backend's: `_init` of torch.distributed.autograd, which refuses another rank, and
`_set_and_start_rpc_agent`, by which other backends start. What is torchwire's own is in rref/context_lifetime.h and
autograd/context_lifetime.h.
"""

# The functions and states of PyTorch's that are replaced or reset here are private, and have no types.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportUnknownMemberType=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.distributed.rpc import api

from torchwire import _C, torch_parts
from torchwire.replaced import API, AUTOGRAD, for_good


def install() -> None:
    """Replaces the functions. Not thread-safe."""
    for_good(f"{AUTOGRAD}._init", _moving_contexts)
    for_good(f"{API}._set_and_start_rpc_agent", _beginning_lifetime)


def forget_gathers() -> None:
    """Has the next all-gather of each set of workers be their first, as it is for those that are new in the group.

    For when no agent serves.
    """
    with api._all_gather_dict_lock:
        api._all_gather_sequence_id.clear()
        api._all_gather_sequence_id_to_states.clear()


def _moving_contexts(original: Callable[[int], None]) -> Callable[[int], None]:
    @functools.wraps(original)
    def _init(worker_id: int) -> None:
        if not torch_parts.is_current_rpc_agent_set():
            _C.move_contexts_to(worker_id)
        original(worker_id)

    return _init


def _beginning_lifetime(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(original)
    def start(agent: Any) -> None:
        _C.TorchwireAgent.begin_foreign_lifetime(agent)
        original(agent)

    return start

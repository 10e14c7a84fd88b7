"""The backend `FAULTY_TORCHWIRE`: torchwire's agent with an interceptor of faults around its links."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed.rpc as rpc
from torch.distributed.rpc.backend_registry import BackendValue

from torchwire import backend_type, registration, worker_checks
from torchwire._C import FaultInterceptor, TorchwireAgent
from torchwire.failed_start import Start
from torchwire.testing import control, fault, options
from torchwire.testing.options import FaultyTorchwireRpcBackendOptions
from torchwire.testing.plan_watch import PlanWatch
from torchwire.torch_parts import Store

NAME = "FAULTY_TORCHWIRE"


def register() -> None:
    """Makes FAULTY_TORCHWIRE a backend of torch.distributed.rpc. May be called again; not thread-safe.

    It comes before TORCHWIRE: its options are also some of TORCHWIRE's, and init_rpc takes the first that fits.
    """
    backend_type.add_backend(NAME, BackendValue(_construct_options, _init_backend))


# Both handlers are functions of the module, under these names, because an enum member is pickled as its value: these.


def _construct_options(rpc_timeout: float, init_method: str, **others: Any) -> FaultyTorchwireRpcBackendOptions:
    return FaultyTorchwireRpcBackendOptions(rpc_timeout=rpc_timeout, init_method=init_method, **others)


def _init_backend(
    store: Store,
    name: str,
    rank: int,
    world_size: int | None,
    rpc_backend_options: rpc.RpcBackendOptions,
) -> TorchwireAgent:
    """Like TORCHWIRE's. Raises OSError and ValueError for a plan that cannot be read, and OSError for a log folder."""
    worker_checks.check_store(store, name)
    with Start(store, name, rank, world_size) as start:
        start.announce()
        checked = options.from_any(rpc_backend_options)
        name = worker_checks.check_name(name)
        plan = options.plan_of(checked)
        interceptor = FaultInterceptor(name, plan.to_interceptor(revision=0), _log_path(checked, name))
        watch = PlanWatch(store, name, interceptor, plan)
        try:
            agent = registration.start_agent(start, checked, interceptors=[interceptor], before_leaving=watch.stop)
        except BaseException:
            watch.stop()
            raise
    watch.start()
    control.take(agent, interceptor, watch)
    return agent


def _log_path(checked: FaultyTorchwireRpcBackendOptions, name: str) -> str:
    folder = options.log_folder_of(checked)
    if folder is None:
        return ""
    os.makedirs(folder, exist_ok=True)
    return str(fault.path_in(folder, name))

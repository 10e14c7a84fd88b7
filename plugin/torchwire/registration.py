"""The backend `TORCHWIRE`: what torch.distributed.rpc calls to make its options and to start its agent."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch.distributed.rpc as rpc
from torch.distributed.rpc.backend_registry import BackendValue

from torchwire import (
    backend_type,
    creation_sites,
    ending,
    exit_hook,
    file_store,
    gathering,
    graceful_shutdown,
    group_secret,
    lifetime,
    passed_rrefs,
    rendezvous,
    secret_watch,
    torch_parts,
    worker_checks,
)
from torchwire._C import LinkInterceptor, TorchwireAgent
from torchwire.failed_start import Start
from torchwire.observe import observers, trace
from torchwire.options import TorchwireRpcBackendOptions, as_agent_options, from_any
from torchwire.torch_parts import Store

if TYPE_CHECKING:
    from torchwire.observe.prometheus import MetricsServer

logger = logging.getLogger(__name__)

NAME = "TORCHWIRE"

_STORE_TIMEOUT = datetime.timedelta(minutes=30)


def register() -> None:
    """Makes TORCHWIRE a backend of torch.distributed.rpc. May be called again; not thread-safe.

    Calling it again is of use after somebody's `register_backend`: see backend_type.add_backend.
    """
    backend_type.add_backend(NAME, BackendValue(_construct_options, _init_backend))


# Both handlers are functions of the module, under these names, because an enum member is pickled as its value: these.


def _construct_options(rpc_timeout: float, init_method: str, **others: Any) -> TorchwireRpcBackendOptions:
    return TorchwireRpcBackendOptions(rpc_timeout=rpc_timeout, init_method=init_method, **others)


def _nothing() -> None:
    pass


def _init_backend(
    store: Store,
    name: str,
    rank: int,
    world_size: int | None,
    rpc_backend_options: rpc.RpcBackendOptions,
) -> TorchwireAgent:
    """Makes the agent of this worker, starts it and returns it; `world_size` None stands for a dynamic group.

    Raises TypeError and ValueError for bad arguments, before anything is opened, and whatever stops the agent from
    starting; RPC is then as uninitialized as before.
    """
    worker_checks.check_store(store, name)
    with Start(store, name, rank, world_size) as start:
        start.announce()
        return start_agent(start, from_any(rpc_backend_options))


def start_agent(
    start: Start,
    checked: TorchwireRpcBackendOptions,
    interceptors: Sequence[LinkInterceptor] = (),
    before_leaving: Callable[[], None] = _nothing,
) -> TorchwireAgent:
    """Like _init_backend, in the body of `start`, with options of torchwire's own.

    `interceptors` wrap the links, the innermost first, inside those that the options ask for. `before_leaving`
    is called when the agent shuts down, while the group and its store are still there; perhaps several times.
    """
    if checked.rpc_timeout == 0:
        # init_rpc gives the store the time-out of calls, and a store takes 0 not for "none" but for "at once".
        start.store.set_timeout(_STORE_TIMEOUT)
    exit_hook.install()  # before there are threads: main may return while this one, a daemon, is in init_rpc
    options = as_agent_options(checked)
    secrets: list[bytes] = options["secrets"]
    agent, metrics = _make_agent(start, checked, options, interceptors)
    start.agent = agent
    try:
        start.expect_wanted()  # from here on the agent does
        _start(agent)
        start.group_runs = True
        file_store.keep(checked.init_method, start.store)  # all have opened theirs by now
        observers.open_for(agent, metrics, checked.status_socket)
        secret_watch.open_for(group_secret.path_of(checked.secret, checked.secret_file), secrets)
        graceful_shutdown.install(before_leaving)
        creation_sites.install(record=checked.record_creation_site)
        passed_rrefs.install()
    except BaseException as error:  # whoever interrupts a start by hand does not want half an agent either
        if metrics is not None:
            metrics.close()
        _abandon(agent, error)
        raise
    return agent


def _make_agent(
    start: Start,
    checked: TorchwireRpcBackendOptions,
    options: dict[str, Any],
    interceptors: Sequence[LinkInterceptor],
) -> tuple[TorchwireAgent, MetricsServer | None]:
    if not options["secrets"]:
        file_store.check(checked.init_method)
        if start.rank == 0:
            rendezvous.warn_of_open_store(start.store)
    options["store_thread"] = start.store_thread
    options["interceptors"] = [*interceptors, *options["interceptors"]]
    name = worker_checks.check_name(start.name)
    world_size = worker_checks.check_world_size(start.world_size, name)
    rank = worker_checks.check_rank(start.rank, name)
    trace.check_requested(rank)
    metrics = observers.metrics_server(checked)  # a port in use is found before others see this worker
    try:
        agent = TorchwireAgent(start.store, name, rank, world_size, options)
        trace.start_if_requested(agent)  # peers call it as soon as it has started
    except BaseException:
        if metrics is not None:
            metrics.close()
        raise
    return agent, metrics


def _start(agent: TorchwireAgent) -> None:
    # init_rpc would do this once it has the agent, but would leave one that fails to start behind as the current one.
    lifetime.forget_gathers()
    gathering.begin_session()
    torch_parts.set_and_start_rpc_agent(agent)


def _abandon(agent: TorchwireAgent, error: BaseException) -> None:
    steps = [lambda: ending.explain(agent, ending.of_start(error), process_ends=False), agent.shutdown]
    # Another thread's init_rpc may have been faster; then the current agent is not ours to reset.
    if torch_parts.is_current_rpc_agent_set() and torch_parts.get_current_rpc_agent() is agent:
        steps += [secret_watch.close, observers.close, torch_parts.cleanup_python_rpc_handler]
        steps += [torch_parts.reset_current_rpc_agent, agent.end_lifetime]
    for step in steps:
        try:
            step()
        except Exception:  # the caller is about to see why the start failed, which matters more
            logger.warning("clean-up after a failed start of torchwire failed in %r", step, exc_info=True)

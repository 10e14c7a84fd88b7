"""What stands open for observers while a worker runs: its port for metrics, its status socket, SIGUSR2."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from torchwire import option_checks
from torchwire._C import TorchwireAgent
from torchwire.current_agent import current_agent
from torchwire.observe import dump_signal, status_socket
from torchwire.observe.status_socket import StatusSocket
from torchwire.options import TorchwireRpcBackendOptions
from torchwire.worker_events import on_worker_lost

if TYPE_CHECKING:
    from torchwire.observe.prometheus import MetricsServer

_logger = logging.getLogger(__name__)

PORT_VARIABLE = "TORCHWIRE_METRICS_PORT"

_open: list[Callable[[], None]] = []


def metrics_server(options: TorchwireRpcBackendOptions) -> MetricsServer | None:
    """Has the port where metrics are to be served, by the options or else by the environment; None: nowhere.

    Closes what is still open for an agent that was dropped without a shutdown: it may have that port.

    Raises ValueError for an environment variable that makes no sense, RuntimeError when nothing can be served there.
    """
    address = options.metrics_port or option_checks.metrics_port(PORT_VARIABLE, os.environ.get(PORT_VARIABLE) or None)
    if current_agent() is None:
        close()
    if address is None:
        return None
    from torchwire.observe.prometheus import MetricsServer  # with all of Python's HTTP, which few need

    host, _, port = address.rpartition(":")
    return MetricsServer(host.strip("[]"), int(port))


def open_for(agent: TorchwireAgent, metrics: MetricsServer | None, has_status_socket: bool) -> None:
    """Opens what is asked for; `metrics` as of metrics_server()."""
    if metrics is not None:
        from torchwire.doctor.reachability import Place

        _open.append(metrics.close)
        metrics.start(agent)
        _logger.warning("metrics are served at http://%s/metrics", Place(*metrics.address))
    if has_status_socket:
        _open_status_socket()
    dump_signal.install()


def close() -> None:
    """Closes it. May be called again."""
    while _open:
        _open.pop()()


def leave_to_parent() -> None:
    """In a forked child: closes its copies, and leaves alone what they are of."""
    close()
    dump_signal.uninstall()


def _open_status_socket() -> None:
    try:
        _open.append(StatusSocket().close)
        _open.append(on_worker_lost(_remove_leftovers).remove)
    except (OSError, RuntimeError) as error:  # a worker is of use without it
        _logger.warning("this worker has no status socket, and `python -m torchwire top` does not see it: %s", error)


def _remove_leftovers(_worker: object, _error: object) -> None:
    """One that was killed may have left its socket on this host."""
    try:
        status_socket.remove_leftovers()
    except (OSError, RuntimeError) as error:
        _logger.info("what dead workers have left in %s stays there: %s", status_socket.folder(), error)

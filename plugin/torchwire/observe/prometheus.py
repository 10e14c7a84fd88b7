"""Metrics for Prometheus, by `prometheus_client`: a collector for a registry of the program's own, or a port.

Names are those of docs/metrics.md; units are seconds and bytes, as Prometheus wants them.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from torchwire._C import TorchwireAgent
from torchwire.current_agent import current_agent
from torchwire.observe.metrics import metrics_of

_FOREVER = 1e6  # seconds
_CLIENT_PATIENCE = 10.0  # seconds that a client may take to send or to read; while others wait, in all
_END_PATIENCE = 0.2  # seconds, for one that is hung up on
_MOST_CLIENTS = 8  # that are served at a time

_logger = logging.getLogger(__name__)

# name in metrics(), name for Prometheus, help
_COUNTERS = (
    ("requests_cancelled", "requests_cancelled", "Requests that came and that their callers have given up."),
    ("gil_waits", "gil_waits", "Waits for the global interpreter lock, while GIL profiling is on."),
    ("gil_wait_seconds", "gil_wait_seconds", "Time in which the global interpreter lock was waited for."),
    ("strangers_rejected", "strangers_rejected", "Connections that this process has refused."),
    ("backward_passes", "backward_passes", "Distributed backward passes that began here."),
)
_GAUGES = (
    ("calls_in_flight", "calls_in_flight", "Calls of this worker that are under way."),
    ("requests_active", "requests_active", "Requests that came and are not answered."),
    ("requests_async", "requests_async", "Of these, those whose function has left a future."),
    ("threads", "worker_threads", "Threads for requests, at most."),
    ("threads_idle", "worker_threads_idle", "Of these, those that could start a request at once."),
    ("bytes_in_flight", "request_bytes_in_flight", "Bytes of requests that are under way."),
    ("requests_waiting", "requests_waiting", "Requests that wait for room to be sent."),
    ("buffer_bytes_lent", "receive_buffer_lent_bytes", "Memory of tensors that were received and are in use."),
    ("buffer_bytes_kept", "receive_buffer_kept_bytes", "Memory that is kept for tensors to come."),
)
_HISTOGRAMS = (
    ("latency", "call_latency_seconds", "From when a call was sent until it was answered or failed."),
    ("wire", "call_wire_seconds", "Of that, the time in which the callee did not have the request."),
    ("queue", "request_queue_seconds", "From when a request came until it began to run."),
    ("run", "request_run_seconds", "From then until its answer was ready."),
)
_TRAFFIC = (
    ("bytes_sent", "sent_bytes", "Bytes sent to a peer, by the transport and channel that carried them."),
    ("bytes_received", "received_bytes", "Bytes received from a peer, by the same."),
)


class TorchwireCollector:
    """For `prometheus_client.CollectorRegistry.register`: the metrics of this process's worker, and none while there is
    no worker on torchwire. Reads them when it is asked. Thread-safe."""

    def __init__(self, agent: TorchwireAgent | None = None) -> None:
        self._agent = agent

    def describe(self) -> list[Any]:
        """Nothing: the registry need not ask for values to know the names."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yields prometheus_client's metric families."""
        agent = self._agent or current_agent()
        if agent is not None:
            yield from _families(metrics_of(agent), agent.histogram_bounds)


def _families(values: Mapping[str, Any], bounds: list[float]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    worker, counts = values["worker"], values["counts"]
    info = {name: str(worker[name]) for name in ("name", "rank", "torch", "torchwire")}
    yield InfoMetricFamily("torchwire_worker", "Who this worker is.", value=info)
    yield GaugeMetricFamily("torchwire_resident_memory_bytes", "Resident memory.", value=worker["memory_bytes"])
    for name, exported, text in _COUNTERS:
        yield CounterMetricFamily(f"torchwire_{exported}", text, value=counts[name])
    for name, exported, text in _GAUGES:
        yield GaugeMetricFamily(f"torchwire_{exported}", text, value=counts[name])
    yield GaugeMetricFamily(
        "torchwire_autograd_contexts", "Open distributed autograd contexts.", value=values["autograd_contexts"]
    )
    rrefs = GaugeMetricFamily("torchwire_rrefs", "RRefs by what this worker is to them.", labels=["role"])
    for role, count in values["rrefs"].items():
        rrefs.add_metric([role], count)
    yield rrefs
    yield from _of_functions(values["functions"], bounds)
    yield from _of_peers(values["peers"])


def _of_functions(functions: list[dict[str, Any]], bounds: list[float]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    labels = ["kind", "function"]
    for name, exported, text in _HISTOGRAMS:
        family = HistogramMetricFamily(f"torchwire_{exported}", text, labels=labels)
        for function in functions:
            histogram = function[name]
            if histogram["count"]:
                family.add_metric(
                    [function["kind"], function["function"]], _buckets(histogram["counts"], bounds), histogram["sum"]
                )
        yield family
    failed = CounterMetricFamily(
        "torchwire_calls_failed", "Calls of this worker without an answer.", labels=[*labels, "reason"]
    )
    for function in functions:
        for reason, count in function["failures"].items():
            failed.add_metric([function["kind"], function["function"], reason], count)
    yield failed
    errors = CounterMetricFamily(
        "torchwire_request_errors",
        "Requests to this worker whose function has raised, or could not run.",
        labels=labels,
    )
    for function in functions:
        if function["run"]["count"]:
            errors.add_metric([function["kind"], function["function"]], function["errors"])
    yield errors


def _buckets(counts: list[int], bounds: list[float]) -> list[tuple[str, float]]:
    """Cumulative, at every other doubling: a series for each of the bounds would be more than Prometheus likes."""
    totals = list(itertools.accumulate(counts))
    # Up to 4 us each bucket is one; from then on each doubling has four, and ends with the last of them.
    ends = range(11, len(bounds), 8)
    return [*((repr(bounds[i]), float(totals[i])) for i in ends), ("+Inf", float(totals[-1]))]


def _of_peers(peers: list[dict[str, Any]]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for name, exported, text in _TRAFFIC:
        family = CounterMetricFamily(f"torchwire_{exported}", text, labels=["peer", "transport", "channel"])
        for peer in peers:
            for carried in peer["carried"]:
                family.add_metric([peer["name"], carried["transport"], carried["channel"]], carried[name])
        yield family
    lost = CounterMetricFamily("torchwire_links_lost", "Connections to a peer that have broken.", labels=["peer"])
    for peer in peers:
        lost.add_metric([peer["name"]], peer["links_lost"])
    yield lost
    connected = GaugeMetricFamily(
        "torchwire_peer_connected", "1 for a peer to which there is a connection, else 0.", labels=["peer", "state"]
    )
    for peer in peers:
        connected.add_metric([peer["name"], peer["state"]], float(peer["state"] == "connected"))
    yield connected


class MetricsServer:
    """Serves a worker's metrics at http://HOST:PORT/metrics from start() until it is closed. Thread-safe."""

    def __init__(self, host: str, port: int) -> None:
        """Has the port from now on; who connects waits for start(). `port` 0: any that is free.

        Raises RuntimeError, with a remedy, when it cannot listen there.
        """
        try:
            from prometheus_client import CollectorRegistry, make_wsgi_app  # pyright: ignore[reportUnknownVariableType]
        except ImportError:
            raise RuntimeError(
                "metrics_port needs prometheus_client, which is not installed: pip install prometheus-client"
            ) from None
        self._registry = CollectorRegistry()
        # prometheus_client does not say its type.
        application = cast("Callable[..., Any]", make_wsgi_app(self._registry))
        server_class = _ServerV6 if ":" in host else _Server
        try:
            self._server = make_server(host, port, application, server_class, handler_class=_Handler)
        except OSError as error:
            raise RuntimeError(
                f"metrics cannot be served at {host}, port {port}: {error.strerror or error}. Choose another "
                "metrics_port; 0 takes any that is free"
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_FOREVER,), name="torchwire-prom", daemon=True
        )

    def start(self, agent: TorchwireAgent) -> None:
        """Serves what this agent has counted. To be called once."""
        self._registry.register(TorchwireCollector(agent))
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def close(self) -> None:
        """Returns once nothing listens any more. A client that is being answered is left to it. Idempotent."""
        if not self._thread.is_alive():
            self._server.server_close()
            return
        # The server looks whether it is to end only when somebody connects.
        ending = threading.Thread(target=self._server.shutdown, daemon=True)
        ending.start()
        while ending.is_alive():
            try:
                socket.create_connection(self.address, timeout=1).close()
            except OSError:  # it has ended meanwhile
                pass
            ending.join(0.05)
        self._server.server_close()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._places = threading.BoundedSemaphore(_MOST_CLIENTS)
        self._since: dict[socket.socket, float] = {}  # by who is being answered

    def process_request(self, request: Any, client_address: Any) -> None:
        """Each client has a thread; one too many is hung up on, unless another has taken too long."""
        has_place = self._places.acquire(blocking=False)
        if not has_place and self._hang_up_on_the_slow():
            has_place = self._places.acquire(timeout=_END_PATIENCE)
        if not has_place:
            self.shutdown_request(request)
            return
        self._since[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._leave_place(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave_place(request)

    def _leave_place(self, request: Any) -> None:
        del self._since[request]
        self._places.release()

    def _hang_up_on_the_slow(self) -> bool:
        """Whether there are any."""
        now = time.monotonic()
        slow = [request for request, since in list(self._since.items()) if now - since > _CLIENT_PATIENCE]
        for request in slow:
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)
        return bool(slow)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Of a client that stalls or goes: that is no news, and a program's output is its own."""
        _logger.debug("metrics could not be given to %s", client_address, exc_info=True)

    def server_bind(self) -> None:
        # Not WSGIServer's, which looks the host's name up, for seconds where there is no name server.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_PATIENCE  # of a client that stalls

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: a program's output is its own."""

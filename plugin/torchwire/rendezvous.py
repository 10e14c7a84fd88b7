"""How long a worker tries to reach the rendezvous store.

torch.distributed makes the store's client before it asks a backend for anything. It waits half an hour for a server
that is gone, for ever for one that stands still, and runs no handlers of signals meanwhile. The workers of a static
group may well start half an hour apart. But one that has reached the server's host, where somebody listens, and gets no
answer, waits for the time-out of calls. Who comes to a dynamic group comes to one that runs: there the whole wait ends
then.

The client's own attempts become rare, up to 90 s apart, so that it is made only once somebody listens.

Who hosts a store on an address of the loopback interface listens there alone, where PyTorch would listen on all:
whoever reaches the store reads the secret that the group draws, and can say where its workers are. For the same reason
a store's file is made for this user alone.

Two functions of torch.distributed are replaced once, when torchwire is imported, and for good. At every call they look
into init_rpc, which calls them, whether the backend is torchwire's: it does not tell them.
"""

# The functions of PyTorch's that are replaced here are private, and have no types.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportUnknownMemberType=false

from __future__ import annotations

import codecs
import contextlib
import datetime
import functools
import ipaddress
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple
from urllib.parse import urlparse

import torch.distributed as dist
import torch.distributed.rpc as rpc

from torchwire import _C, file_store, group_secret
from torchwire.backend_type import is_torchwires
from torchwire.doctor import interfaces
from torchwire.replaced import for_good
from torchwire.torch_parts import PrefixStore, Store, TCPStore, rendezvous_helper, rendezvous_uses_agent_store

_REACHED_BY_NETWORK = ("tcp", "env")
_PROBE_INTERVAL = 1.0  # seconds
_CHECK_INTERVAL = 0.2
_SHORTEST_PAUSE = 0.001  # most workers come within milliseconds of the store's host
_BACKLOG = 2048  # of a store, as PyTorch's
_DYNAMIC = -1  # the world size of a group whose workers come and go
_LONGEST_START = dist.default_pg_timeout.total_seconds()  # PyTorch's limit

_warned = False  # of an open store

logger = logging.getLogger(__name__)


def install() -> None:
    """Replaces the functions. Not thread-safe."""
    codecs.lookup("idna")  # socket imports it for its first name of a host, which would be in init_rpc
    for_good("torch.distributed._create_store_from_options", _creating_store)
    for_good("torch.distributed.rendezvous", _with_patience)


def _creating_store(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create_store_from_options(backend_options: Any, rank: int) -> Store:
        start = _start_of(sys._getframe(1))
        with start.place_for_secret(backend_options.init_method):
            if start.patience is None:
                return original(backend_options, rank)
            return _create_store(backend_options.init_method, rank, start.patience or _LONGEST_START)

    return create_store_from_options


def _create_store(init_method: str, rank: int, timeout: float) -> Store:
    """Raises RuntimeError if the store cannot be reached."""
    arguments: dict[str, Any] = {}
    if urlparse(init_method).scheme in _REACHED_BY_NETWORK:
        arguments["timeout"] = datetime.timedelta(seconds=timeout)
    try:
        store, _, _ = within(
            timeout,
            lambda: (
                _store_on_loopback(init_method, rank, _DYNAMIC, **arguments)
                or next(rendezvous_helper(init_method, rank, None, **arguments))
            ),
        )
    except (dist.DistError, TimeoutError) as error:
        raise RuntimeError(
            f"the worker with rank {rank} could not join the RPC group: the rendezvous store (init_method, MASTER_ADDR "
            f"and MASTER_PORT) did not answer: {reason_of(error)}"
        ) from None
    return store


def _with_patience(original: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(original)
    def rendezvous(url: str, rank: int = -1, world_size: int = -1, **arguments: Any) -> Iterator[Any]:
        iterator = original(url, rank, world_size, **arguments)
        start = _start_of(sys._getframe(1))
        if start.patience is None:
            return iterator
        _C.stop_threads_where_python_ends()  # main may return while this thread, a daemon, makes the store
        if urlparse(url).scheme not in _REACHED_BY_NETWORK:
            return _in_place_for_secret(iterator, url, start)
        return _patiently(iterator, url, rank, world_size, start.patience)

    return rendezvous


class _Start(NamedTuple):
    """What init_rpc begins."""

    patience: float | None = None  # the time-out of calls, in seconds (0: none); None: not with torchwire
    draws_secret: bool = False

    def place_for_secret(self, url: str) -> contextlib.AbstractContextManager[None]:
        return file_store.private(url) if self.draws_secret else contextlib.nullcontext()


def _start_of(caller: FrameType) -> _Start:
    if caller.f_code is not rpc.init_rpc.__code__:
        return _Start()
    backend, options = (caller.f_locals[name] for name in ("backend", "rpc_backend_options"))
    if not is_torchwires(backend):
        return _Start()
    secret, file = (getattr(options, name, None) for name in ("secret", "secret_file"))  # PyTorch's have none
    return _Start(float(options.rpc_timeout), not group_secret.is_given(secret, file))


def _in_place_for_secret(iterator: Iterator[Any], url: str, start: _Start) -> Iterator[Any]:
    with start.place_for_secret(url):  # no sooner: init_rpc drops an earlier store first, which takes its file along
        store = next(iterator)
    yield store
    yield from iterator


def _patiently(iterator: Iterator[Any], url: str, rank: int, world_size: int, patience: float) -> Iterator[Any]:
    hosts_store = rank == 0 and not rendezvous_uses_agent_store()
    probe = None if hosts_store or patience == 0 else _Probe(url, patience)
    try:
        if not hosts_store:
            _await_listener(url)
        yield within(
            threading.TIMEOUT_MAX, lambda: _store_on_loopback(url, rank, world_size) or next(iterator), check=probe
        )
    except TimeoutError as error:
        raise RuntimeError(
            f"the worker with rank {rank} could not join the RPC group: the rendezvous store {error}"
        ) from None
    yield from iterator


def _store_on_loopback(
    url: str, rank: int, world_size: int, timeout: datetime.timedelta = dist.default_pg_timeout
) -> tuple[Store, int, int] | None:
    """What a rendezvous finds where this worker hosts the store; None where PyTorch is to make it."""
    if rank != 0 or rendezvous_uses_agent_store() or urlparse(url).scheme not in _REACHED_BY_NETWORK:
        return None
    if urlparse(url).query:
        return None
    listening = _listen_on_loopback(url)
    if listening is None:
        return None
    host, port = _address_of(url)
    store = TCPStore(host, port, world_size, True, timeout, multi_tenant=True, master_listen_fd=listening.detach())
    return store, rank, world_size


def _listen_on_loopback(url: str) -> socket.socket | None:
    """None where the address is another one, or not to be had: a store of this process may listen there already."""
    try:
        host, port = _address_of(url)
        addresses = _addresses_of(host)
        address = min(addresses, key=lambda one: one.version)  # who says localhost may mean ::1
        if port == 0 or not all(one.is_loopback for one in addresses):
            return None
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        return socket.create_server((str(address), port), family=family, backlog=_BACKLOG)
    except (OSError, KeyError, ValueError, OverflowError):
        return None


def _addresses_of(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Raises OSError where there are none."""
    return [ipaddress.ip_address(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


def _is_loopback(host: str) -> bool:
    try:
        return all(one.is_loopback for one in _addresses_of(host))
    except (OSError, ValueError):
        return False


def _listens_for_other_hosts(port: int) -> bool:
    """Whether who listens at that port of the loopback interface listens on other addresses of this host, too.

    PyTorch's stores do, whatever address they are given.
    """
    for interface in interfaces.all_interfaces():
        if interface.is_usable() and not interface.is_loopback:
            for address in interface.addresses:
                with contextlib.suppress(OSError):
                    socket.create_connection((address, port), _PROBE_INTERVAL).close()
                    return True
    return False


def _address_of(url: str) -> tuple[str, int]:
    parts = urlparse(url)
    if parts.scheme == "env":
        return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return parts.hostname or "", parts.port or 0


def _is_listening(url: str) -> bool:
    try:
        socket.create_connection(_address_of(url), _PROBE_INTERVAL).close()
    except OSError:
        return False
    return True


def _await_listener(url: str) -> None:
    """Raises TimeoutError once that has taken as long as PyTorch would wait."""
    end = time.monotonic() + _LONGEST_START
    with contextlib.suppress(KeyError, ValueError, OverflowError):  # PyTorch says what is wrong with the address
        pause = _SHORTEST_PAUSE
        while not _is_listening(url):
            if time.monotonic() > end:
                host, port = _address_of(url)
                raise TimeoutError(f"is not there: for {_LONGEST_START:g} s nobody has listened at {host}:{port}")
            time.sleep(pause)
            pause = min(1.3 * pause, _CHECK_INTERVAL)


class _Probe:
    """To be called while there is no answer: raises TimeoutError once somebody has listened there for a while."""

    def __init__(self, url: str, patience: float) -> None:
        self._url, self._patience = url, patience
        self._next = time.monotonic() + _PROBE_INTERVAL
        self._reached: float | None = None  # since when

    def __call__(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _PROBE_INTERVAL
        if not _is_listening(self._url):
            self._reached = None
            return
        self._reached = self._reached or now
        if now - self._reached >= self._patience:
            host, port = _address_of(self._url)
            raise TimeoutError(
                f"at {host}:{port} takes connections, but has not answered for {self._patience:g} s: the "
                f"process that hosts it stands still, or is no store"
            )


def innermost(store: Store) -> Store:
    """The store behind the prefixes."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def warn_of_open_store(store: Store) -> None:
    """Once, where the secret that a group draws is for all who reach the host of its TCP store."""
    global _warned
    inner = innermost(store)
    if _warned or not isinstance(inner, TCPStore):
        return
    if _is_loopback(inner.host) and not _listens_for_other_hosts(inner.port):
        return
    _warned = True
    logger.warning(
        "the group draws its secret, and keeps it in the rendezvous store at %s:%s, which other hosts can reach: "
        "whoever connects there, or listens on the way, can join the group, and so run code in its workers. Unless "
        "only those can whom you trust, give all workers a secret of their own: `python -m torchwire secret FILE` "
        "makes one, and TORCHWIRE_SECRET_FILE names it",
        inner.host,
        inner.port,
    )


def reason_of(error: Exception) -> str:
    """What an error of a store's says, without the stack trace that PyTorch appends."""
    return str(error).partition("\n")[0]


def within(
    seconds: float,
    function: Callable[[], Any],
    thread_name: str = "torchwire store",
    check: Callable[[], None] | None = None,
) -> Any:
    """What `function` returns or raises; TimeoutError if that takes longer. It goes on running then.

    Where this process can start no more threads, the function runs on this one, for as long as it takes.

    check: called now and then meanwhile; what it raises ends the wait.
    Raises RuntimeError in a process that a signal's handler forks meanwhile, which has no such thread.
    """
    process = os.getpid()
    outcome: list[Any] = []
    error: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(function())
        except BaseException as caught:
            error.append(caught)

    thread = threading.Thread(target=run, name=thread_name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return function()
    end = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < end:
        thread.join(min(end - time.monotonic(), _CHECK_INTERVAL))
        if check is not None and thread.is_alive():
            check()
    if os.getpid() != process:
        raise RuntimeError("this process was forked from one that waited for a thread; it has to end, or to begin anew")
    if error:
        raise error[0]
    if not outcome:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return outcome[0]

"""The rendezvous store: whether it can be reached and answers. Nothing in it is changed."""

from __future__ import annotations

import datetime
import fcntl
import os
import tempfile
from collections.abc import Callable
from urllib.parse import urlparse

from torchwire import file_store, group_secret
from torchwire.doctor import child, interfaces, reachability
from torchwire.doctor.check import Check, failed, ok, warning
from torchwire.doctor.reachability import Place
from torchwire.torch_parts import TCPStore

_LIMIT = 6.0  # seconds for an answer
_NAME = "store"
_LISTENER = "the store (as a rule the worker with rank 0)"
_A_KEY = "torchwire-doctor"  # only asked for


def checks_of(init_method: str) -> list[Check]:
    """For a URL as init_rpc takes it. Raises ValueError when it is none that can be checked."""
    try:
        url = urlparse(init_method)
    except ValueError as error:  # for brackets that are not closed
        raise ValueError(f"--init-method: {init_method!r} is not a URL: {error}; write tcp://HOST:PORT") from None
    if url.scheme == "file":
        return [_file_store(url.path)]
    if url.scheme == "tcp":
        return _tcp_store(_place_in(init_method, url.hostname, lambda: url.port))
    if url.scheme == "env":
        return _env_store()
    raise ValueError(f"--init-method: {init_method!r} does not begin with tcp://, file:// or env://")


def answers(place: Place) -> None:
    """Runs in a child: connects to a TCP store and asks for a key that nobody has. Raises when that fails."""
    client(place).check([_A_KEY])


def client(place: Place) -> TCPStore:
    """A client of the TCP store there. May hang where something else listens."""
    timeout = datetime.timedelta(seconds=_LIMIT)
    return TCPStore(place.host, place.port, is_master=False, wait_for_workers=False, timeout=timeout)


def _place_in(init_method: str, host: str | None, port: Callable[[], int | None]) -> Place:
    try:
        number = port()
    except ValueError:  # urlparse's, for a port that is none
        number = None
    if not host or not number:
        raise ValueError(f"--init-method: {init_method!r} does not name a store; write tcp://HOST:PORT")
    reachability.check_host("--init-method", host)
    return Place(host, number)


def _env_store() -> list[Check]:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        return [
            failed(
                _NAME,
                f"{' and '.join(missing)} not set, so env:// names no store",
                "set both to where the worker with rank 0 runs, or start workers by torchrun",
            )
        ]
    host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    if not port.isdecimal() or not 0 < int(port) < 65536:
        return [failed(_NAME, f"MASTER_PORT is {port!r}", "set it to a number from 1 to 65535")]
    return _tcp_store(Place(host, int(port)))


def _tcp_store(place: Place) -> list[Check]:
    problem = reachability.problem_with(place, _LISTENER)
    if problem:
        return [failed(_NAME, problem.found, problem.remedy)]
    try:
        child.run(answers, place, limit=_LIMIT)
    except child.ChildError as error:
        return [
            failed(
                _NAME,
                f"{place} takes connections, but does not answer as a store: {error}",
                f"look whether it is {_LISTENER} that has this port, and start it anew if it hangs",
            )
        ]
    return [ok(_NAME, f"the one at {place} answers"), _route(place)]


def _route(place: Place) -> Check:
    name = "route"
    named = interfaces.named()
    if named:
        return ok(name, f"workers listen on the interface {named[1]}, as {named[0]} says")
    address = reachability.route_to(place)
    if address is None:
        return failed(name, f"no address of this machine leads to {place}", "bring up the interface to it")
    interface = interfaces.owner_of(address)
    through = f", of {interface.name}" if interface else ""
    found = f"workers here announce {address}{through}, on the way to the store"
    if address.startswith("127.") and not place.host.startswith("127.") and place.host != "localhost":
        return warning(
            name,
            f"{place.host} is a name for loopback here ({address}), which other machines cannot reach",
            "correct it in /etc/hosts, or set bind_address or TP_SOCKET_IFNAME",
        )
    return ok(name, found)


def _file_store(path: str) -> Check:
    folder = os.path.dirname(path) or "/"
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".torchwire-doctor-") as beside:
            fcntl.flock(beside, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return failed(
            _NAME,
            f"no file can be made and locked in {folder!r}: {error.strerror}",
            "name a file in a folder that all workers may write to, on a file system with locks",
        )
    try:
        with open(path, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return ok(_NAME, f"{path} is not there yet, and its folder can be written to")
    except OSError as error:
        return failed(
            _NAME, f"{path} cannot be opened: {error.strerror}", "make it writable for this user, or remove it"
        )
    if size:
        return warning(
            _NAME,
            f"{path} holds {size} bytes already, of a group that runs or of one that has ended",
            "remove it if no group runs on it, or name another file",
        )
    if not group_secret.is_given(None, None):
        try:
            file_store.check(f"file://{path}")
        except ValueError as error:
            found, _, remedy = str(error).partition(": ")
            return warning(_NAME, found, remedy)
    return ok(_NAME, f"{path} is empty and can be written to")

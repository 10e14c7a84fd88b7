"""Where the status of workers comes from: status sockets on this host, by one of these its group, or the network."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchwire.observe import answer_shape, status_socket
from torchwire.observe.parallel import of_each
from torchwire.observe.remote_group import RemoteGroup, RemoteWorker

_PATIENCE = 3.0  # seconds for a worker to answer
_GROUP_PATIENCE = 10.0  # for one that asks all others


@dataclass(frozen=True)
class Answer:
    """What a worker says of itself, or why it says nothing."""

    key: str  # tells workers apart from one look to the next
    name: str
    status: Mapping[str, Any] | None
    error: str = ""
    rank: int = -1  # where it is known without a status


Source = Callable[[], list[Answer]]


def of_this_host() -> list[Answer]:
    """All workers of this user on this host; of a process that has died nothing, or that it does not answer.

    Raises RuntimeError when the folder with the sockets is not to be trusted.
    """
    return [answer for answer in of_each(_one, status_socket.sockets()) if answer is not None]


def of_group(process: int) -> Source:
    """All workers of the group of that process, which is on this host, wherever they are."""

    def look() -> list[Answer]:
        paths = [path for path in status_socket.sockets() if status_socket.process_of(path) == process]
        if not paths:
            raise RuntimeError(
                f"process {process} has no status socket in {status_socket.folder()}: it is no torchwire worker of "
                "this user on this host, or has ended, or was started with status_socket=False"
            )
        try:
            answers = ask(paths[-1], {"ask": "group"}, _GROUP_PATIENCE)
        except RuntimeError as error:
            raise RuntimeError(f"process {process} {error}") from None
        return [_passed_on(name, status) for name, status in answers.items()]

    return look


def of_remote(group: RemoteGroup) -> Source:
    """All workers on the group's list, each asked over the network."""

    def one(worker: RemoteWorker) -> Answer:
        key = f"{worker.rank} {worker.name}"
        try:
            status = group.ask(worker, "status", _PATIENCE)
        except RuntimeError as error:
            return Answer(key, worker.name, None, str(error), worker.rank)
        other = status["worker"]
        if (other["name"], other["rank"]) != (worker.name, worker.rank):
            problem = f"has ended: its address is now that of worker {other['name']!r} (rank {other['rank']})"
            return Answer(key, worker.name, None, problem, worker.rank)
        return Answer(key, worker.name, status)

    return lambda: list(of_each(one, group.workers()))


def ask(path: Path, question: Mapping[str, Any], patience: float = _PATIENCE) -> Any:
    """What the worker with that socket answers.

    Raises RuntimeError, in a sentence, when it does not.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(patience)
            connection.connect(str(path))
            connection.sendall(json.dumps(question).encode() + b"\n")
            text = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    except TimeoutError:
        raise RuntimeError(
            f"does not answer within {patience:g} s: it is stopped, or a thread holds Python's global lock"
        ) from None
    except OSError as error:
        raise RuntimeError(f"cannot be asked: {error.strerror or error}") from None
    return answer_shape.read(question["ask"], text)


def _passed_on(name: str, status: Any) -> Answer:
    """What another worker says that one of its name has said to it."""
    try:
        return Answer(name, name, answer_shape.understood("status", status))
    except RuntimeError as error:
        return Answer(name, name, None, str(error))


def _one(path: Path) -> Answer | None:
    process = status_socket.process_of(path)
    try:
        status = ask(path, {"ask": "status"})
    except RuntimeError as error:
        if not Path(f"/proc/{process}").exists():
            return None
        return Answer(path.name, f"process {process}", None, str(error))
    return Answer(path.name, status["worker"]["name"], status)

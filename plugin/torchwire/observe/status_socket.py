"""Where a worker answers what an observer on its host asks: a Unix socket in a folder of the user's.

The observer sends one line of JSON (answers.py) and reads one; then the connection ends. Only processes of the same
user (and root) are answered: the folder keeps others from connecting at all. A thread waits in accept(), so that an
idle worker does nothing. Each observer is answered on a thread of its own, four at a time while others wait, and within
a second or two: one that stalls is left.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
import stat
import struct
import tempfile
import threading
import time
from pathlib import Path

from torchwire.observe import answers, background

_logger = logging.getLogger(__name__)

_PATIENCE = 2.0  # seconds for an observer to ask, and to read
_AT_A_TIME = 4  # observers, so that some that stall keep no other waiting
_LONGEST_QUESTION = 4096
_SUFFIX = ".sock"
_UNREADY_SUFFIX = ".new"
_LONG_READY = 60.0  # seconds after which a socket with that name is nobody's

_count = itertools.count()


def folder() -> Path:
    """Where the sockets of this user's workers are: in XDG_RUNTIME_DIR, or else in the folder for temporary files."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "torchwire" if runtime else Path(tempfile.gettempdir()) / f"torchwire-{os.getuid()}"


def sockets() -> list[Path]:
    """Those of workers that run, by their process's id; removes those of workers that have died.

    Raises RuntimeError when the folder is another user's.
    """
    remove_leftovers()
    return sorted(folder().glob(f"*{_SUFFIX}"), key=lambda path: (process_of(path) or 0, path.name))


def process_of(path: Path) -> int | None:
    """The process whose socket it is; None for what is none."""
    process = path.name.split("-")[0]
    return int(process) if process.isdigit() else None


def remove_leftovers() -> None:
    """Removes the sockets of this user's workers that have died: a process that is killed cannot do it by itself."""
    where = folder()
    if where.exists():
        _check(where)
        _remove_leftovers(where)


class StatusSocket:
    """Answers observers until it is closed. Thread-safe."""

    def __init__(self) -> None:
        """Raises OSError or RuntimeError when there can be no socket."""
        where = folder()
        where.mkdir(mode=0o700, exist_ok=True)
        _check(where)
        _remove_leftovers(where)
        self.path = where / f"{os.getpid()}-{next(_count)}{_SUFFIX}"
        self._process = os.getpid()
        self._closed = False
        self._free = threading.Semaphore(_AT_A_TIME)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Under another name until it listens: one that does not is taken for a dead worker's, and removed.
            unready = self.path.with_suffix(_UNREADY_SUFFIX)
            unready.unlink(missing_ok=True)  # of an earlier process of that id
            self._socket.bind(str(unready))
            self._socket.listen()
            unready.rename(self.path)
            background.start(self._serve)
        except (OSError, RuntimeError):
            self._socket.close()
            self.path.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        """Nobody is answered any more. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._process == os.getpid():
            self.path.unlink(missing_ok=True)
            with contextlib.suppress(OSError, RuntimeError):  # the folder has gone, or is another user's by now
                remove_leftovers()
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._socket.close()

    def _serve(self) -> None:
        while not self._closed:
            self._free.acquire()
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if not self._closed:
                    _logger.warning("the status socket %s has failed: %s", self.path, error)
                return
            try:
                threading.Thread(target=self._serve_one, args=(connection,), name="torchwire-stat", daemon=True).start()
            except RuntimeError:  # no more threads are to be had
                self._serve_one(connection)

    def _serve_one(self, connection: socket.socket) -> None:
        with connection:
            try:
                _answer(connection)
            except OSError:  # the observer has gone, or stalls
                pass
            finally:
                self._free.release()


def _answer(connection: socket.socket) -> None:
    if _user_of(connection) not in (os.getuid(), 0):
        return
    connection.settimeout(_PATIENCE)
    deadline = time.monotonic() + _PATIENCE
    question = b""
    while not question.endswith(b"\n"):
        part = connection.recv(_LONGEST_QUESTION)
        question += part
        if not part or len(question) > _LONGEST_QUESTION or time.monotonic() > deadline:
            return
    try:
        text = answers.answer(question.decode())
    except Exception as error:  # whatever is wrong, the observer is told
        text = answers.error(error)
    connection.sendall(text.encode() + b"\n")


def _user_of(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[1]


def _check(where: Path) -> None:
    status = where.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise RuntimeError(
            f"{where} must be a folder that belongs to this user and that nobody else may enter; remove it, or set "
            "XDG_RUNTIME_DIR to another place"
        )


def _remove_leftovers(where: Path) -> None:
    # A socket that is not ready yet may be of a worker in another PID namespace, which cannot be seen.
    files = list(where.iterdir())
    abandoned = [path for path in files if path.suffix == _UNREADY_SUFFIX and _age(path) > _LONG_READY]
    for path in [*(path for path in files if path.suffix == _SUFFIX), *abandoned]:
        process = process_of(path)
        if process is not None and not _runs(process) and _is_refused(path):
            path.unlink(missing_ok=True)


def _age(path: Path) -> float:
    """In seconds; 0 for one that has gone."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0


def _runs(process: int) -> bool:
    """False also for one of another PID namespace, which cannot be seen from here."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"  # dead, though its parent has not taken note


def _is_refused(path: Path) -> bool:
    """Whether nobody listens there any more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:  # gone already, or too busy to take another connection
            pass
        return False

"""Has a worker go on with other secrets once the file that holds them has changed, while the group runs."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence

from torchwire import group_secret
from torchwire.current_agent import current_agent

_logger = logging.getLogger(__name__)

_INTERVAL = 2.0  # seconds
_PATIENCE = 10.0  # seconds, for a change that is under way at the end

_watches: list[_Watch] = []


def open_for(path: str | None, secrets: Sequence[bytes]) -> None:
    """Looks at the file from now on, of which these were the secrets; None: there is none.

    Looks no more at that of an agent which was dropped without a shutdown. What is no file, as a pipe, is read once.
    """
    close()
    if path is not None and os.path.isfile(path):
        _watches.append(_Watch(os.path.abspath(path), secrets))


def close(patience: float = _PATIENCE) -> None:
    """Looks no more, and waits so many seconds for a change that is under way. May be called again."""
    while _watches:
        _watches.pop().close(patience)


def leave_to_parent() -> None:
    """In a forked child, which has no such thread."""
    _watches.clear()


class _Watch:
    """Its first look is at once: the file may have changed since it was read, while the group's other workers came."""

    def __init__(self, path: str, secrets: Sequence[bytes]) -> None:
        self._path, self.secrets = path, list(secrets)
        self._tried: list[bytes] = []  # of a change that has not been made in all places
        self._seen: tuple[int, int, int] | None = None
        self._complaint = ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torchwire secret", daemon=True)
        self._thread.start()

    def close(self, patience: float) -> None:
        self._closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(patience)

    def _run(self) -> None:
        while not self._closed.is_set():
            self._look()
            self._closed.wait(_INTERVAL)

    def _look(self) -> None:
        """Once more each time, until it has worked."""
        try:
            status = os.stat(self._path)
            state = status.st_ino, status.st_size, status.st_mtime_ns
            if state != self._seen:
                self._take_over(group_secret.in_file(self._path, f"the file {self._path!r}"))
                self._seen, self._complaint = state, ""
        except FileNotFoundError:  # as a launcher may have it once the workers have started
            self._say(logging.INFO, f"the file {self._path!r} is gone: the group's secrets stay as they are")
        except Exception as error:  # a warning that the program has made an error, too
            self._say(
                logging.WARNING,
                f"this worker has not followed a change of the group's secret, and tries again: {error}",
            )

    def _say(self, level: int, complaint: str) -> None:
        """Once, until something else is to be said."""
        if complaint != self._complaint and not self._closed.is_set():
            self._complaint = complaint
            _logger.log(level, "%s", complaint)

    def _take_over(self, secrets: list[bytes]) -> None:
        if secrets == self.secrets:
            return
        if not set(secrets) & {*self.secrets, *self._tried}:
            raise ValueError(f"the file {self._path!r} holds none of the secrets that this worker has known so far")
        agent = current_agent()
        if agent is not None and not self._closed.is_set():
            self._tried = secrets
            agent.change_secrets(secrets)
            self.secrets, self._tried = secrets, []
            _logger.info("the group's secrets are those that %s holds now", self._path)

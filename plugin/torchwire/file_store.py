"""The file of a rendezvous by `file://`, which holds the secret that a group draws.

Whoever can read it can join the group, and so run code in its workers; whoever can write it can say where they are.
PyTorch makes it as the umask has it, as a rule for all to read.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator
from urllib.parse import urlparse

from torchwire.torch_parts import Store

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHER_WAYS = "or give the group a secret (secret_file)"

_newest: Store | None = None


@contextlib.contextmanager
def private(init_method: str) -> Generator[None]:
    """Has a store that is made meanwhile in a file for this user alone, unless there is one that is not."""
    path = _path_of(init_method)
    is_private = path is not None and _make(path)
    yield
    if path is not None and is_private:
        # The end of an earlier store, in another worker, may have removed the file, and the new one made it anew.
        with contextlib.suppress(OSError):
            os.chmod(path, 0o600)


def keep(init_method: str, store: Store) -> None:
    """Has the store live until the next session has started, for whose workers its file may be the same.

    The last worker that drops its store removes the file, also if another one has just opened it again: that one's
    entries are lost, and all wait for ever.
    """
    global _newest
    _newest = store if _path_of(init_method) is not None else None


def check(init_method: str) -> None:
    """Raises ValueError if another user may read, write or replace the file. (Root may in any case.)"""
    path = _path_of(init_method)
    if path is None:
        return
    path = os.path.realpath(path)
    try:
        places = [path]
        while (parent := os.path.dirname(places[-1])) != places[-1]:
            places.append(parent)
        file, *folders = map(os.stat, places)
    except OSError:  # PyTorch says what is wrong
        return
    of_file = f"the file of init_method {init_method!r}"
    who = "who could join the group by the secret that it draws there"
    if file.st_uid not in (os.geteuid(), 0):
        raise ValueError(
            f"{of_file} belongs to another user (id {file.st_uid}), {who}: name another file, {_OTHER_WAYS}"
        )
    for place, folder in zip(places[1:], folders):
        if folder.st_mode & stat.S_IWOTH and not folder.st_mode & stat.S_ISVTX:
            raise ValueError(
                f"{of_file} can be replaced by other users (mode {_mode(folder)} of the folder {place!r}), {who}: "
                f"chmod o-w or +t that folder, name a file in a folder of your own, {_OTHER_WAYS}"
            )
    if file.st_mode & _OTHERS and folders[0].st_mode & _OTHERS:
        raise ValueError(
            f"{of_file} is open to other users (mode {_mode(file)}), {who}: chmod 600 {path}, {_OTHER_WAYS}"
        )


def _path_of(init_method: str) -> str | None:
    """None where the store is no file."""
    parts = urlparse(init_method)
    return parts.path if parts.scheme == "file" and parts.path else None


def _make(path: str) -> bool:
    """Makes the file, unless it is there; returns whether it is for this user alone. PyTorch says what is wrong."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o600))
        found = os.stat(path)
    except (OSError, ValueError):
        return False
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS


def _mode(status: os.stat_result) -> str:
    return f"{stat.S_IMODE(status.st_mode):03o}"

"""The file of a rendezvous by `file://`, which holds the secret that a group draws.

Whoever can read it can join the group, and so run code in its workers; whoever can write it can say where they are.
PyTorch makes it as the umask has it, as a rule for all to read.
"""

from __future__ import annotations

import contextlib
import os
import stat
from urllib.parse import urlparse

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make(init_method: str) -> None:
    """Makes the file, if there is none, so that this user alone may read it. What is wrong with it PyTorch says."""
    path = _path_of(init_method)
    if path:
        with contextlib.suppress(OSError, ValueError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def check(init_method: str) -> None:
    """Raises ValueError if another user may read or write the file. (Root may in any case.)"""
    path = _path_of(init_method)
    if not path or not os.path.exists(path):
        return
    found = os.stat(path)
    if found.st_uid not in (os.geteuid(), 0):
        raise ValueError(
            f"the file of init_method {init_method!r} belongs to another user (id {found.st_uid}), who could join the "
            "group by the secret that it draws there: name another file, or give the group a secret (secret_file)"
        )
    folder = os.stat(os.path.dirname(os.path.abspath(path)))
    if found.st_mode & _OTHERS and folder.st_mode & _OTHERS:
        raise ValueError(
            f"the file of init_method {init_method!r} is open to other users (mode {stat.S_IMODE(found.st_mode):03o}), "
            f"who could join the group by the secret that it draws there: chmod 600 {path}, or give the group a secret "
            "(secret_file)"
        )


def _path_of(init_method: str) -> str | None:
    """None where the store is no file."""
    parts = urlparse(init_method)
    return parts.path if parts.scheme == "file" else None

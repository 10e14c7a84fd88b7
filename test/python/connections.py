"""Breaks what connects this process to other workers, as a router or a firewall would, and leaves its listeners."""

import contextlib
import os
import socket
import stat


def break_all(unix_names, but_to=None):
    """Shuts down all TCP connections of this process but those to that port, and the Unix ones with one of these names.

    Returns how many.
    """
    broken = 0
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # gone since, a listener, or not connected yet
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                broken += _break(number, unix_names, but_to)
    return broken


def _break(number, unix_names, but_to):
    with contextlib.closing(socket.socket(fileno=os.dup(number))) as connection:
        names = (connection.getpeername(), connection.getsockname())  # fails where nobody is connected
        if connection.family == socket.AF_UNIX and not any(_text(name) in unix_names for name in names):
            return 0
        if connection.family != socket.AF_UNIX and names[0][1] == but_to:
            return 0
        connection.shutdown(socket.SHUT_RDWR)
        return 1


def _text(name):
    return name.decode() if isinstance(name, bytes) else name

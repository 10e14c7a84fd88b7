"""What a process listens on and has open, by /proc."""

import os
import re

_LISTENING = "0A"  # the state, in /proc/net/tcp
_ACCEPTS = 0x10000  # the flag, in /proc/net/unix


def open_files(pid):
    """What each file descriptor of the process leads to."""
    files = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            files.append(os.readlink(f"/proc/{pid}/fd/{number}"))
        except FileNotFoundError:
            pass  # closed in the meantime
    return files


def tcp_ports(pid):
    """The TCP ports on which the process listens, as often as it does so."""
    sockets = _socket_numbers(pid)
    ports = []
    for table in ("tcp", "tcp6"):
        for fields in _table(pid, table):
            if fields[3] == _LISTENING and fields[9] in sockets:
                ports.append(int(fields[1].rpartition(":")[2], 16))
    return ports


def unix_names(pid):
    """The Unix sockets on which the process listens; abstract ones begin with a zero byte, as Python writes them."""
    sockets = _socket_numbers(pid)
    return [
        re.sub("^@", "\0", fields[7])
        for fields in _table(pid, "unix")
        if int(fields[3], 16) & _ACCEPTS and fields[6] in sockets
    ]


def _socket_numbers(pid):
    return {match[1] for match in map(re.compile(r"socket:\[(\d+)\]").fullmatch, open_files(pid)) if match}


def _table(pid, name):
    """Of the network namespace in which the process is."""
    with open(f"/proc/{pid}/net/{name}") as file:
        next(file)
        return [line.split() for line in file]

"""What torchwire needs of the kernel and of this Python: each is tried, not looked up."""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import socket
import threading

from torchwire.doctor import child, process_memory, thread_limit
from torchwire.doctor.check import Check, failed, ok, warning

_LIMIT = 10.0  # seconds for what a child does
_RING = 4 << 20  # bytes; about what the two rings of a connection take
_THREADS = 64  # of a worker with default options: three pools of 16, and some more

# The first size seals of fcntl(2), which Python names from 3.11 on.
_F_ADD_SEALS = 1033
_F_GET_SEALS = 1034
_SIZE_SEALS = 0x0002 | 0x0004
_SEAL_SEAL = 0x0001


def memory_file() -> Check:
    """Shared memory of `wire_shm`: a sealed file without a name, mapped and written."""
    name = "memfd"
    try:
        descriptor = os.memfd_create("torchwire-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, _RING)
            fcntl.fcntl(descriptor, _F_ADD_SEALS, _SIZE_SEALS | _SEAL_SEAL)
            with mmap.mmap(descriptor, _RING) as memory:
                memory[_RING - 1] = 1
            sealed = fcntl.fcntl(descriptor, _F_GET_SEALS) & _SIZE_SEALS == _SIZE_SEALS
        finally:
            os.close(descriptor)
    except OSError as error:
        return warning(
            name,
            f"no sealed shared memory: {error.strerror}, so workers on this host use wire_tcp",
            "permit memfd_create and its seals in the container's seccomp profile, and enough memory in its cgroup",
        )
    assert sealed
    return ok(name, f"{_RING >> 20} MiB made, sealed, mapped and written")


def unix_sockets() -> Check:
    """Where `wire_shm` listens: an abstract Unix socket, which passes a descriptor and tells the peer's user."""
    name = "Unix sockets"
    address = f"\0torchwire-doctor-{os.getpid()}-{secrets.token_hex(8)}"
    try:
        with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as dialing:
            listening.bind(address)
            listening.listen()
            dialing.settimeout(_LIMIT)
            dialing.connect(address)
            listening.settimeout(_LIMIT)
            accepted, _ = listening.accept()
            with accepted:
                accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                _pass_descriptor(dialing, accepted)
    except OSError as error:
        return warning(
            name,
            f"no abstract Unix sockets: {error.strerror or error}, so workers on this host use wire_tcp",
            "permit abstract Unix sockets in the AppArmor or Landlock rules of these processes, or in the container's "
            "seccomp profile",
        )
    return ok(name, "an abstract one listens, and passes a descriptor")


def _pass_descriptor(sender: socket.socket, receiver: socket.socket) -> None:
    receiver.settimeout(_LIMIT)
    socket.send_fds(sender, [b"1"], [sender.fileno()])
    _, descriptors, _, _ = socket.recv_fds(receiver, 1, 1)
    for descriptor in descriptors:
        os.close(descriptor)
    if not descriptors:
        raise OSError("a descriptor did not arrive")


def reading_memory() -> Check:
    """The channel `cma`: whether the kernel lets a worker read another one, and whether TensorPipe sees it so."""
    name = "process_vm_readv"
    error = process_memory.read_own()
    if error:
        return _slower(
            name,
            f"not permitted even for one's own memory: {os.strerror(error)}",
            "permit process_vm_readv in the container's seccomp profile, or add the capability SYS_PTRACE to it",
        )
    if not process_memory.is_dumpable():
        return _slower(
            name,
            "this process is not dumpable, so others may not read it",
            "make the Python interpreter readable for its user, and start workers without prctl(PR_SET_DUMPABLE, 0)",
        )
    if not process_memory.has_equal_ids():
        return _slower(
            name,
            "this process has several user or group ids at a time",
            "start workers as one user and group, and not through a set-user-id program",
        )
    scope = process_memory.yama_scope()
    if scope is not None and scope > 1:
        return _slower(
            name,
            f"Yama's ptrace_scope is {scope}",
            "set it to 1 or less: sysctl kernel.yama.ptrace_scope=1"
            + (" (from 3, only after a restart of the machine)" if scope == 3 else ""),
        )
    return _tried(name, "" if scope is None else f"; Yama's ptrace_scope is {scope}")


def _tried(name: str, about_yama: str) -> Check:
    try:
        error = child.run(process_memory.read_sibling, limit=_LIMIT)
    except child.ChildError as problem:
        return failed(name, f"it could not be tried: {problem}", thread_limit.remedy(_THREADS))
    if error:
        # TensorPipe does not look at other security modules: it would choose cma, and large tensors would fail.
        return failed(
            name,
            f"a process may not read another one of the same user: {os.strerror(error)}",
            "permit ptrace between the workers in the security module's policy, or leave cma out of `_channels`",
        )
    return ok(name, f"one process reads another{about_yama}")


def _slower(name: str, found: str, remedy: str) -> Check:
    return warning(name, f"{found}, so large tensors on this host are copied through the transport", remedy)


def threads() -> Check:
    """That a worker can start its threads."""
    name = "threads"
    try:
        started = child.run(count_of_threads, _THREADS, limit=_LIMIT)
    except child.ChildError as problem:
        return failed(name, f"it could not be tried: {problem}", thread_limit.remedy(_THREADS))
    if started < _THREADS:
        return failed(
            name,
            f"only {started} of {_THREADS} threads could be started in one process",
            thread_limit.remedy(_THREADS),
        )
    return ok(name, f"{started} started in one process")


def count_of_threads(wanted: int) -> int:
    """How many of them run at the same time."""
    end = threading.Event()
    running: list[threading.Thread] = []
    try:
        for _ in range(wanted):
            thread = threading.Thread(target=end.wait, daemon=True)
            thread.start()
            running.append(thread)
    except RuntimeError:
        pass  # as Python says that there are no more to be had
    end.set()
    return len(running)


ALL = (memory_file, unix_sockets, reading_memory, threads)

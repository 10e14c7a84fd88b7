"""Faults that a process makes for itself and for all that it starts."""

import ctypes
import errno
import os
import resource
import socket
import struct
import uuid

_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_PR_SET_KEEPCAPS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 8, 47, 2
_CAP_DAC_OVERRIDE, _CAPABILITY_VERSION_3 = 1, 0x20080522
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # of a packet filter
_FIRST_ARGUMENT = 16  # its lower half, in struct seccomp_data
_ALLOW, _FAIL_WITH = 0x7FFF0000, 0x00050000

# By machine: there is no table of these in Python.
NUMBERS = {
    "x86_64": {"process_vm_readv": 310, "memfd_create": 319, "socket": 41},
    "aarch64": {"process_vm_readv": 270, "memfd_create": 279, "socket": 198},
}.get(os.uname().machine)

_KERNEL = "/proc/sys/kernel"
YAMA = f"{_KERNEL}/yama/ptrace_scope"

libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def deny(system_call, first_argument=None):
    """Has the system call, with any or with this first argument, fail with EPERM, as a container's seccomp does."""
    with_argument = [(_LOAD, 0, 0, _FIRST_ARGUMENT), (_JUMP_IF_EQUAL, 0, 1, first_argument)]
    only_with = with_argument if first_argument is not None else []
    instructions = [
        (_LOAD, 0, 0, 0),  # the number of the system call
        (_JUMP_IF_EQUAL, 0, 1 + len(only_with), NUMBERS[system_call]),
        *only_with,
        (_RETURN, 0, 0, _FAIL_WITH | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    program = _Program(len(instructions), code)
    must(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    must(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0))


def restrict_tracing(scope):
    """Lets Yama's ptrace_scope be this for all that read it, also on kernels without Yama."""
    with open(f"{_KERNEL}/random/boot_id") as file:
        boot = file.read()
    must(libc.unshare(_CLONE_NEWNS))
    must(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    must(libc.mount(b"tmpfs", _KERNEL.encode(), b"tmpfs", 0, None))
    for path, text in ((f"{_KERNEL}/random/boot_id", boot), (YAMA, f"{scope}\n")):
        os.mkdir(os.path.dirname(path))
        with open(path, "w") as file:
            file.write(text)


def move_to_another_host():
    """Lets this host have started at another time, for all that read it: others do not know this process's number."""
    must(libc.unshare(_CLONE_NEWNS))
    must(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    must(libc.mount(b"tmpfs", f"{_KERNEL}/random".encode(), b"tmpfs", 0, None))
    with open(f"{_KERNEL}/random/boot_id", "w") as file:
        file.write(f"{uuid.uuid4()}\n")


def small_file_system(path, size):
    """Lets another file system be at that path, for this process and those that it starts."""
    must(libc.unshare(_CLONE_NEWNS))
    must(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    must(libc.mount(b"tmpfs", path.encode(), b"tmpfs", 0, f"size={size}".encode()))


def limit_files(soft, hard=None):
    """As ulimit -n does."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if hard is None else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, limit))


def deny_unix_sockets():
    """But for pairs of them, which have no address."""
    deny("socket", socket.AF_UNIX)


def limit_user(user, soft, hard=None):
    """Goes on as that user, who may have so many processes and threads: root is exempt from ulimit -u.

    It may read and write all files, as Python's may be in a folder that is root's alone.
    """
    must(libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setgroups([])
    os.setresuid(user, user, user)
    lower = 1 << _CAP_DAC_OVERRIDE
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    must(libc.capset(header, struct.pack("6I", lower, lower, lower, 0, 0, 0)))
    must(libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE, 0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (soft, soft if hard is None else hard))


class Cgroup:
    """One of the controller pids, for as long as the with statement lasts, and what has it."""

    ROOT = "/sys/fs/cgroup/pids"  # of version 1

    def __init__(self, limit):
        self._path = f"{self.ROOT}/torchwire-test-{os.getpid()}"
        self._limit = limit

    def __enter__(self):
        os.mkdir(self._path)
        self.raise_to(self._limit)
        return self

    def __exit__(self, *_):
        os.rmdir(self._path)

    def enter(self):
        with open(f"{self._path}/cgroup.procs", "w") as file:
            file.write("0")

    def raise_to(self, limit):
        with open(f"{self._path}/pids.max", "w") as file:
            file.write(str(limit))


def may_make_cgroups():
    return os.access(Cgroup.ROOT, os.W_OK) and os.path.exists(f"{Cgroup.ROOT}/cgroup.procs")


def must(result):
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))

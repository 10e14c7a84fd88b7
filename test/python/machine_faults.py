"""Faults that a process makes for itself and for all that it starts."""

import ctypes
import errno
import os
import resource
import struct

_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # of a packet filter
_ALLOW, _FAIL_WITH = 0x7FFF0000, 0x00050000

# By machine: there is no table of these in Python.
NUMBERS = {
    "x86_64": {"process_vm_readv": 310, "memfd_create": 319},
    "aarch64": {"process_vm_readv": 270, "memfd_create": 279},
}.get(os.uname().machine)

_KERNEL = "/proc/sys/kernel"
YAMA = f"{_KERNEL}/yama/ptrace_scope"

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def deny(system_call):
    """Has the system call fail with EPERM, as a container's seccomp profile does."""
    instructions = [
        (_LOAD, 0, 0, 0),  # the number of the system call
        (_JUMP_IF_EQUAL, 0, 1, NUMBERS[system_call]),
        (_RETURN, 0, 0, _FAIL_WITH | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    program = _Program(len(instructions), code)
    _must(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _must(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0))


def restrict_tracing(scope):
    """Lets Yama's ptrace_scope be this for all that read it, also on kernels without Yama."""
    with open(f"{_KERNEL}/random/boot_id") as file:
        boot = file.read()
    _must(_libc.unshare(_CLONE_NEWNS))
    _must(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    _must(_libc.mount(b"tmpfs", _KERNEL.encode(), b"tmpfs", 0, None))
    for path, text in ((f"{_KERNEL}/random/boot_id", boot), (YAMA, f"{scope}\n")):
        os.mkdir(os.path.dirname(path))
        with open(path, "w") as file:
            file.write(text)


def limit_files(soft, hard=None):
    """As ulimit -n does."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if hard is None else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, limit))


def _must(result):
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))

"""Two small networks of their own, as two hosts would have them: namespaces that cables (veth pairs) connect."""

import functools
import os
import shutil
import subprocess

from machine_faults import libc, move_to_another_host, must

_CLONE_NEWNET = 0x40000000


def why_impossible():
    """Why this machine cannot have such networks, or None."""
    if os.geteuid() != 0:
        return "needs root"
    if not shutil.which("ip"):
        return "needs the command ip (iproute2)"
    try:
        with Hosts():
            return None
    except subprocess.CalledProcessError as error:
        return f"the kernel does not allow it: {error.stderr.strip()}"


class Hosts:
    """Two namespaces, `hosts[0]` and `hosts[1]`, joined by two cables; all of it ends with the with statement.

    cable   interface   addresses of host h (1 or 2)
    first   net0        10.77.0.h, fd00:77::h
    second  net1        10.78.0.h
    """

    ADDRESSES = (("10.77.0.1", "10.77.0.2"), ("10.78.0.1", "10.78.0.2"))
    V6_ADDRESSES = ("fd00:77::1", "fd00:77::2")

    def __init__(self):
        self._names = [f"torchwire-{os.getpid()}-{side}" for side in "ab"]

    def __getitem__(self, side):
        return self._names[side]

    def __enter__(self):
        try:
            for name in self._names:
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            for cable in (0, 1):
                self._connect(cable)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self._names:
            if os.path.exists(_file_of(name)):
                _ip("netns", "delete", name)  # which takes its ends of the cables along

    def _connect(self, cable):
        interface, (near, far) = f"net{cable}", self._names
        # Between namespaces from the start: the machine's own network never sees these names.
        _ip("-n", near, "link", "add", interface, "type", "veth", "peer", "name", interface, "netns", far)
        for side, name in enumerate(self._names):
            _ip("-n", name, "address", "add", f"{self.ADDRESSES[cable][side]}/24", "dev", interface)
            if cable == 0:
                _ip("-n", name, "address", "add", f"{self.V6_ADDRESSES[side]}/64", "dev", interface, "nodad")
            _ip("-n", name, "link", "set", interface, "up")

    def plug(self, cable, state):
        """Pulls a cable ("down") or puts it back ("up")."""
        _ip("-n", self._names[1], "link", "set", f"net{cable}", state)

    def ip(self, side, *arguments):
        """What the command ip does in a namespace."""
        _ip("-n", self._names[side], *arguments)

    def entrances(self):
        """For each namespace, a function that moves the calling process into it, before it has started threads."""
        return [functools.partial(_enter, name) for name in self._names]

    def machines(self):
        """The same, and the kernel is another one by the id of its boot, by which processes tell hosts apart."""
        return [functools.partial(_enter_machine, name) for name in self._names]


def _file_of(name):
    return f"/run/netns/{name}"


def _enter(name):
    with open(_file_of(name)) as namespace:
        must(libc.setns(namespace.fileno(), _CLONE_NEWNET))


def _enter_machine(name):
    _enter(name)
    move_to_another_host()


def _ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)

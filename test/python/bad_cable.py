"""A cable between two network namespaces that loses, delays and reorders packets: a thread of this process has them."""

import contextlib
import fcntl
import heapq
import os
import random
import selectors
import struct
import threading
import time

_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADER = 0x0002 | 0x1000
_IPV4 = 0x0800
_DONT_FRAGMENT = 0x4000
_LARGEST = 2048  # bytes of a packet, and more than any has


class BadCable:
    """Joins two tap devices as long as the with statement lasts.

    `hosts` names the namespaces (see network.Hosts), which get the interface `name` with the addresses 10.79.0.1 and
    10.79.0.2. `loss` and `reorder` are probabilities; a packet takes `delay` seconds, and one that is reordered
    arrives half of that later, behind others. A packet of IPv4 with more than `mtu` bytes is lost where it may not be
    fragmented, and nobody is told. cut() and heal() are for one way of the cable at a time.
    """

    ADDRESSES = ("10.79.0.1", "10.79.0.2")

    def __init__(self, hosts, name="net2", *, loss=0.0, delay=0.0, reorder=0.0, mtu=None, seed=1):
        self._loss, self._delay, self._reorder, self._mtu = loss, delay, reorder, mtu
        self._random = random.Random(seed)
        self._name = name
        self._hosts = hosts
        self._under_way = []  # (when it arrives, number, to which end, packet)
        self._number = 0
        self._cut = None  # the end that nothing arrives at
        self.passed = self.lost = self.reordered = self.too_long = 0

    def __enter__(self):
        with contextlib.ExitStack() as undo:
            self._ends = []
            for side, address in enumerate(self.ADDRESSES):
                end = _in_namespace(self._hosts.entrances()[side], lambda: _open_tap(self._name))
                undo.callback(os.close, end)
                self._ends.append(end)
                self._hosts.ip(side, "address", "add", f"{address}/24", "dev", self._name)
                self._hosts.ip(side, "link", "set", self._name, "up")
            self._stopped = threading.Event()
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_):
        self._stopped.set()
        self._thread.join()
        self._undo.close()  # which takes the devices along

    def cut(self, to):
        """From now on nothing arrives at that side, 0 or 1; the other hears it as before."""
        self._cut = self._ends[to]

    def heal(self):
        self._cut = None

    def _run(self):
        with selectors.DefaultSelector() as selector:
            for side, end in enumerate(self._ends):
                selector.register(end, selectors.EVENT_READ, self._ends[1 - side])
            while not self._stopped.is_set():
                for key, _ in selector.select(self._patience()):
                    self._take(os.read(key.fd, _LARGEST), key.data)
                self._deliver()

    def _patience(self):
        if not self._under_way:
            return 0.05
        return max(0.0, min(0.05, self._under_way[0][0] - time.monotonic()))

    def _take(self, packet, to):
        if to == self._cut or self._random.random() < self._loss:
            self.lost += 1
            return
        if self._mtu is not None and _too_long(packet, self._mtu):
            self.too_long += 1
            return
        late = self._random.random() < self._reorder
        self.reordered += late
        self._number += 1
        due = time.monotonic() + self._delay * (1.5 if late else 1)
        heapq.heappush(self._under_way, (due, self._number, to, packet))

    def _deliver(self):
        while self._under_way and self._under_way[0][0] <= time.monotonic():
            _, _, to, packet = heapq.heappop(self._under_way)
            with contextlib.suppress(BlockingIOError, OSError):  # its queue is full, or it is down: lost
                os.write(to, packet)
                self.passed += 1


def _too_long(frame, mtu):
    kind, _, length, _, flags = struct.unpack_from("!HHHHH", frame, 12)
    return kind == _IPV4 and length > mtu and flags & _DONT_FRAGMENT != 0


def _open_tap(name):
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH", name.encode(), _TAP_WITHOUT_HEADER))
    return end


def _in_namespace(enter, function):
    """On a thread of its own, since who enters a namespace stays there."""
    results = []

    def run():
        enter()
        results.append(function())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]

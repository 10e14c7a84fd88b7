"""Very many connections of unknown peers, at each place where a worker listens, do not harm its group."""

import contextlib
import os
import re
import struct
import time

import torch
import torch.distributed.rpc as rpc
import unknown_peers
from group import Group, HostedStore, init
from processes import WorkerProcess, close_all, wait_until
from repetition import Repetition, begin, count, stop
from sockets import open_files, tcp_ports, unix_names

# Connections to each endpoint.
COUNT = int(os.environ.get("TORCHWIRE_TEST_UNKNOWN_PEERS", "3000"))

SECRET = "this is thirty-two bytes, or more"
MAX_PENDING = 256  # in the handshake, at each endpoint: AcceptorLimits
MAX_GROWTH = 12.0  # MiB of memory
MAX_LINES = 11  # in the log, in ten seconds, about each endpoint: RejectionLog

# ---- what the workers run ----


class Traffic(Repetition):
    """Calls without pause."""

    def __init__(self, to):
        super().__init__()
        self._to = to
        self._large = torch.ones(300_000)
        self._longest = 0.0

    def outcome(self):
        """The number of calls, and how many seconds the longest took."""
        return self.done(), self._longest

    def step(self):
        begin = time.monotonic()
        number = self.done()
        if number % 50:
            assert rpc.rpc_sync(self._to, echo, (number,)) == number
        else:
            assert torch.equal(rpc.rpc_sync(self._to, echo, (self._large,)), self._large)
        self._longest = max(self._longest, time.monotonic() - begin)


def echo(value):
    return value


def join_call_and_leave(init_method, names):
    init(init_method, name="late", rank=7, secret=SECRET)
    for name in names:
        assert rpc.rpc_sync(name, echo, (name,)) == name
        assert rpc.rpc_sync(name, torch.add, (torch.ones(500_000), 1)).sum() == 1_000_000
    rpc.shutdown()


# ---- what the test looks at ----


def endpoints_of(pid):
    names = [name for name in unix_names(pid) if name.startswith("\0")]  # the status socket's folder keeps others away
    return [unknown_peers.tcp(port) for port in tcp_ports(pid)] + [unknown_peers.unix(name) for name in names]


def memory_of(pid):
    """MiB of its own; what it shares with peers is not in it."""
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"^RssAnon:\s+(\d+) kB$", file.read(), re.MULTILINE)[1]) / 1024


def group_id_in(store):
    _magic, _version, group_id = struct.unpack_from("<IIQ", store.get("rpc_prefix_0/torchwire/credentials"))
    return group_id


@contextlib.contextmanager
def processes(count):
    started = [WorkerProcess(f"unknown{number}") for number in range(count)]
    try:
        yield started
    finally:
        close_all(started)


def test_unknown_peers_by_the_thousand_do_no_harm():
    store = HostedStore()
    with Group(2, store.environment) as group, Group(1, store.environment) as outside:
        group.all(init, store.init_method, secret=SECRET)
        victim = group[0].pid
        endpoints = endpoints_of(victim)
        assert len(endpoints) == 2
        with processes(len(endpoints)) as bullies:
            group_id = group_id_in(store)
            recorded = [unknown_peers.recorded_handshake(each, group_id, SECRET.encode()) for each in endpoints]
            group[0].run(begin, Traffic, "worker1")
            group[1].run(begin, Traffic, "worker0")
            wait_until(lambda: min(group.all(count)) >= 500)
            files = len(open_files(victim))

            began = time.monotonic()
            for seed, (bully, endpoint, words) in enumerate(zip(bullies, endpoints, recorded)):
                bully.run(begin, unknown_peers.Storm, endpoint, words, seed)
            outside[0].run(join_call_and_leave, store.init_method, ["worker0", "worker1"])
            # By now everything has taken the memory that it needs in any case.
            memory = memory_of(victim)
            wanted = [bully.run(count) + COUNT for bully in bullies]
            most_files = 0

            def storm_is_over():
                nonlocal most_files
                most_files = max(most_files, len(open_files(victim)))
                return all(bully.run(count) >= enough for bully, enough in zip(bullies, wanted))

            wait_until(storm_is_over, limit=60 + COUNT / 100)
            connections, let_in = zip(*(bully.run(stop) for bully in bullies))
            seconds = time.monotonic() - began
            traffic = group.all(stop)

        assert let_in == (0,) * len(endpoints)
        wait_until(lambda: len(open_files(victim)) <= files)
        growth = memory_of(victim) - memory
        told = group[0].output()
        lines = told.count("refused")
        print(f"{connections} connections in {seconds:.1f} s; memory +{growth:.1f} MiB; {lines} lines in the log")
        print(f"files: {files} before, at most {most_files} meanwhile, {len(open_files(victim))} afterwards")
        for (calls, longest), worker in zip(traffic, group):
            print(f"{worker.name}: {calls} calls, of which the longest took {1000 * longest:.0f} ms")
        assert growth < MAX_GROWTH
        assert most_files <= files + (MAX_PENDING + 10) * len(endpoints)
        assert "wire_tcp (127.0.0.1:" in told and "wire_shm (@" in told
        assert lines <= MAX_LINES * len(endpoints) * (seconds // 10 + 2)
        assert max(longest for _, longest in traffic) < 5.0
        group.all(call_each_other)
        group.shut_down()


def call_each_other():
    for name in ("worker0", "worker1"):
        assert rpc.rpc_sync(name, echo, (1,)) == 1

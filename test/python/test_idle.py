"""What a group costs while it has nothing to do."""

import contextlib
import os
import time

import pytest
import torch
import torch.distributed.rpc as rpc
from group import Group, running
from network import Hosts, why_impossible
from sockets import open_files, tcp_ports, unix_names

SECONDS = 10.0
SETTLED = 21.0  # s: a session is found idle after 2.5 s, and memory is given back after 10 to 20 s
MAX_CPU = 0.001  # of one core, per process
MAX_THREADS = 20
MAX_FILES = 60
MAX_FILES_PER_PEER = 5  # of which one watches its process


def warm_up(others):
    """Makes enough calls that all connections are there; one at a time, since threads grow with what runs at once."""
    for other in others:
        for size in (1, 100_000) * 20:
            rpc.rpc_sync(other, torch.add, (torch.ones(size), 1))


def warm_up_all(group):
    """One worker after the other, so that no two dial each other at once."""
    for worker in group:
        worker.run(warm_up, [other.name for other in group if other is not worker])


def cpu_seconds(pid):
    """Of all its threads, by the scheduler's clock."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e9


@pytest.mark.slow
@pytest.mark.alone
def test_an_idle_worker_uses_next_to_no_cpu_and_few_threads_and_files(tmp_path):
    with running(2, tmp_path) as group:
        warm_up_all(group)
        time.sleep(SETTLED)  # on a virtual machine, microseconds of what is left to do may be charged as milliseconds
        before = [cpu_seconds(worker.pid) for worker in group]
        time.sleep(SECONDS)
        for worker, begin in zip(group, before):
            cpu = (cpu_seconds(worker.pid) - begin) / SECONDS
            threads, files = (len(os.listdir(f"/proc/{worker.pid}/{what}")) for what in ("task", "fd"))
            print(f"{worker.name}: {100 * cpu:.3f} % of a core, {threads} threads, {files} open files")
            assert cpu < MAX_CPU
            assert threads <= MAX_THREADS
            assert files <= MAX_FILES


@contextlib.contextmanager
def running_on_one_host(size, folder):
    with running(size, folder) as group:
        yield group


@contextlib.contextmanager
def running_across_hosts(size, folder, **options):
    """The second worker on one host, all others on the other: not the first, which hosts the store."""
    with Hosts() as hosts:
        near, far = hosts.entrances()
        with Group(size, prepare=[near, far, near, near, near][:size]) as group:
            group.init(f"tcp://{Hosts.ADDRESSES[0][0]}:29500", **options)
            yield group
            group.shut_down()


def running_across_machines(size, folder):
    """As running_across_hosts; but no worker can read another's memory."""
    return running_across_hosts(size, folder, _channels=["basic"])


needs_networks = pytest.mark.skipif(why_impossible() is not None, reason=f"two networks: {why_impossible()}")


@pytest.mark.parametrize(
    "arranged",
    [
        running_on_one_host,
        pytest.param(running_across_hosts, marks=needs_networks),
        pytest.param(running_across_machines, marks=needs_networks),
    ],
)
def test_a_worker_listens_on_one_port_and_one_socket_and_opens_few_files_for_each_peer(tmp_path, arranged):
    files = {}
    for size in (2, 5):
        folder = tmp_path / str(size)
        folder.mkdir()
        with arranged(size, folder) as group:
            warm_up_all(group)
            observed = group[1].pid
            assert len(tcp_ports(observed)) == 1
            assert len(unix_names(observed)) == 2  # of wire_shm, and for observers
            files[size] = len(open_files(observed))
    per_peer = (files[5] - files[2]) / 3
    print(f"{files[2]} files with one peer, {files[5]} with four: {per_peer:.1f} a peer")
    assert per_peer <= MAX_FILES_PER_PEER

"""What a group costs while it has nothing to do."""

import os
import time

import pytest
import torch
import torch.distributed.rpc as rpc
from group import running

SECONDS = 5.0
MOST_CPU = 0.02  # of one core, per process
MOST_THREADS = 20
MOST_FILES = 60


def warm_up(to):
    """Makes enough calls that all connections are there; one at a time, since threads grow with what runs at once."""
    for size in (1, 100_000) * 20:
        rpc.rpc_sync(to, torch.add, (torch.ones(size), 1))


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system time


@pytest.mark.slow
def test_an_idle_worker_uses_next_to_no_cpu_and_few_threads_and_files(tmp_path):
    with running(2, tmp_path) as group:
        results = [group[0].start(warm_up, "worker1"), group[1].start(warm_up, "worker0")]
        [result.result() for result in results]
        before = [cpu_seconds(worker.pid) for worker in group]
        time.sleep(SECONDS)
        for worker, begin in zip(group, before):
            cpu = (cpu_seconds(worker.pid) - begin) / SECONDS
            threads, files = (len(os.listdir(f"/proc/{worker.pid}/{what}")) for what in ("task", "fd"))
            print(f"{worker.name}: {100 * cpu:.2f} % of a core, {threads} threads, {files} open files")
            assert cpu < MOST_CPU
            assert threads <= MOST_THREADS
            assert files <= MOST_FILES

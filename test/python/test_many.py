"""Groups as large as one machine can hold."""

import os
import time

import pytest
import torch.distributed.rpc as rpc
from group import Group, file_in
from processes import wait_until
from sockets import open_files

SIZE = 64
MAX_FILES = 40 + 5 * (SIZE - 1)  # per process; of those of a peer one watches its process


def my_name():
    return rpc.get_worker_info().name


def call_all(names):
    futures = [rpc.rpc_async(name, my_name) for name in names]
    assert [future.wait() for future in futures] == names


def most_open(group):
    return max(len(open_files(worker.pid)) for worker in group)


@pytest.mark.slow
@pytest.mark.alone
def test_a_group_of_64_starts_calls_and_ends(tmp_path):
    with Group(SIZE) as group:
        begin = time.monotonic()
        group.init(file_in(tmp_path))
        started = time.monotonic()
        group.all(call_all, [worker.name for worker in group])
        called = time.monotonic()
        most_files = most_open(group)
        threads = max(len(os.listdir(f"/proc/{worker.pid}/task")) for worker in group)
        # Where two dialed each other at once, both links stand for a while.
        wait_until(lambda: most_open(group) <= MAX_FILES)
        before_end = time.monotonic()
        group.shut_down()
        ended = time.monotonic()
    print(
        f"start {started - begin:.2f} s, {SIZE}x{SIZE} calls {called - started:.2f} s, end {ended - before_end:.2f} s"
    )
    print(f"at most {threads} threads and {most_files} files a process, later {MAX_FILES}")

"""Many RRefs that come and go."""

import gc

import pytest
import torch
import torch.distributed.rpc as rpc
from group import running
from rref_counts import wait_until_none_is_left


def touch(rref):
    """Runs on a worker that gets an RRef for the time of a call."""
    return rref.is_owner()


def live_through(count, seed):
    """Creates RRefs on all workers, lets all workers have them for a moment, and drops them."""
    pending = []
    for number in range(count):
        owner = f"worker{(seed + number) % 4}"
        rref = rpc.remote(owner, torch.add, args=(torch.ones(16), number))
        # Two others get it from here, and one of them hands it on.
        pending.append(rpc.rpc_async(f"worker{(number + 1) % 4}", touch, (rref,)))
        pending.append(
            rpc.rpc_async(f"worker{(number + 2) % 4}", touch_and_pass_on, (rref, f"worker{(number + 3) % 4}"))
        )
        # Those that hand on wait on a request thread for a call of theirs: fewer of them than there are threads.
        if len(pending) >= 8:
            torch.futures.wait_all(pending)
            pending.clear()
    torch.futures.wait_all(pending)


def touch_and_pass_on(rref, to):
    return rpc.rpc_sync(to, touch, (rref,))


def fill_rings():
    """Sends each peer more than a ring of wire_shm takes, because a ring's memory becomes resident as it is used."""
    for peer in range(4):
        for _ in range(30):
            rpc.rpc_sync(f"worker{peer}", len, (bytes(100_000),))


def resident_memory():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


ROUNDS, PER_ROUND = 10, 250  # of each of four workers
# From the middle to the end, when each worker has created 1,250 RRefs and owned as many. What is remembered of their
# forks is some 500 KiB by then.
MAX_GROWTH = 2 * 2**20


@pytest.mark.slow
@pytest.mark.alone
def test_ten_thousand_rrefs_come_and_go_without_a_trace(tmp_path):
    with running(4, tmp_path) as group:
        group.all(fill_rings)
        memory = []
        for turn in range(ROUNDS):
            group.all(live_through, PER_ROUND, turn)
            wait_until_none_is_left(group)
            memory.append(group.all(resident_memory))
        growth = [after - before for before, after in zip(memory[ROUNDS // 2 - 1], memory[-1])]
        print(f"resident memory grew by {[f'{bytes / 2**20:.1f} MiB' for bytes in growth]} in the second half")
        assert max(growth) < MAX_GROWTH

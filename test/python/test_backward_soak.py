"""Many contexts, some of which end in errors, leave nothing behind.

TORCHWIRE_TEST_CONTEXTS chooses how many: 1000 unless set.
"""

import contextlib
import ctypes
import gc
import os

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from backward_modes import SMART
from backward_steps import along, doubled, expect_nothing_left, fail_in_backward, fail_in_forward, fail_in_hook
from group import running

CONTEXTS = int(os.environ.get("TORCHWIRE_TEST_CONTEXTS", 1000))
WORKERS = 4
ELEMENTS = 32 * 1024  # of each tensor: 128 KiB

# How much more memory a worker may have at the end than after the first third. One tensor kept of every tenth context
# would be more, with as many contexts as there are by default.
MAX_GROWTH = 8 << 20

# ---- what the workers run ----


def weighted(tensor):
    """Has a leaf of its own on the callee."""
    return tensor * torch.ones(ELEMENTS, requires_grad=True)


def others():
    """The names of the other workers, the next one first."""
    rank = rpc.get_worker_info().id
    return [f"worker{(rank + number) % WORKERS}" for number in range(1, WORKERS)]


def use_all(a, context):
    dist_autograd.backward(context, [along(others(), weighted, a).sum()])


def leave_one_unused(a, context):
    used, _unused = [rpc.rpc_async(to, along, (others(), weighted, a)) for to in others()[:2]]
    _unused.wait()
    dist_autograd.backward(context, [used.wait().sum()])


def pass_twice(a, context):
    loss = along(others(), doubled, a).sum()
    dist_autograd.backward(context, [loss], retain_graph=True)
    dist_autograd.backward(context, [loss])


def run_no_pass(a, context):
    along(others(), weighted, a)


def fail_before_the_pass(a, context):
    used = along(others(), doubled, a)
    with contextlib.suppress(ValueError):
        along(others(), fail_in_forward, a)
    dist_autograd.backward(context, [used.sum()])


def fail_in_function(a, context):
    _expect_failure(a, context, fail_in_backward)


def fail_in_a_hook(a, context):
    _expect_failure(a, context, fail_in_hook)


def _expect_failure(a, context, function):
    loss = (along(others(), function, a) + along(others()[:1], doubled, a)).sum()
    with pytest.raises(RuntimeError, match="Error on Node"):
        dist_autograd.backward(context, [loss])


KINDS = [use_all, leave_one_unused, pass_twice, run_no_pass, fail_before_the_pass, fail_in_function, fail_in_a_hook]


def run_contexts(count):
    for number in range(count):
        a = torch.ones(ELEMENTS, requires_grad=True)
        with dist_autograd.context() as context:
            KINDS[number % len(KINDS)](a, context)


def resident_bytes():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free is no leak, wherever it is
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ---- the test ----


@pytest.mark.slow
@pytest.mark.alone
def test_contexts_leave_nothing_behind(tmp_path):
    with running(WORKERS, tmp_path, rpc_timeout=30, **SMART) as group:
        third = CONTEXTS // 3 // WORKERS
        memory = []
        for count in (third, CONTEXTS // WORKERS - third):
            for one in [worker.start(run_contexts, count) for worker in group]:
                one.result(limit=60 + CONTEXTS)
            expect_nothing_left(group)
            memory.append(group.all(resident_bytes))
        growth = [after - before for before, after in zip(*memory, strict=True)]
        print("growth in KiB:", [one >> 10 for one in growth], "of MiB:", [one >> 20 for one in memory[0]])
        assert max(growth) < MAX_GROWTH

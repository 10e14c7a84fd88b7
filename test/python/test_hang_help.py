"""What is said of calls that take long: in the log, in the error of a time-out, in a dump."""

import io
import re
import signal
import threading
import time

import observed
import pytest
import torch.distributed.rpc as rpc
import torchwire
from group import running
from processes import wait_until


def wait_for_output(worker, text):
    wait_until(lambda: re.search(text, worker.output(), re.DOTALL))


def dumped():
    text = io.StringIO()
    torchwire.dump(text)
    return text.getvalue()


def test_a_slow_call_is_logged_once_with_the_stack_of_its_handler(tmp_path):
    with running(2, tmp_path, slow_call_warning=0.5) as group:
        group[0].run(observed.begin_nap, "worker1", 3)
        wait_for_output(
            group[0],
            r"call \d+ of observed.nap_in_a_handler to worker 'worker1' \(rank 1\) has taken 0\.\d s: it has been "
            r"running at worker 'worker1' for 0\.\d s, in\n.*in nap_in_a_handler\n +time\.sleep",
        )
        group[0].run(observed.wait_for_pending)
        assert group[0].output().count("has taken") == 1


def test_a_slow_call_behind_others_is_queued(tmp_path):
    with running(2, tmp_path, slow_call_warning=0.5, num_worker_threads=1) as group:
        for _ in range(2):
            group[0].run(observed.begin_nap, "worker1", 1.5)
        wait_for_output(
            group[0], r"it has been queued at worker 'worker1' for .* s: all 1 of its threads .* run other requests"
        )
        group[0].run(observed.wait_for_pending)


_held = threading.Lock()


def call_back_with_the_lock(names):
    """Holds this worker's lock, and calls the first of `names`, which calls the next; the last one takes the lock."""
    with _held:
        try_the_rest(names)


def try_the_rest(names):
    if names:
        rpc.rpc_sync(names[0], try_the_rest, (names[1:],), timeout=3)
    else:
        _held.acquire(timeout=2.5)


def test_calls_that_wait_for_a_lock_of_their_callers_form_a_cycle(tmp_path):
    with running(3, tmp_path, slow_call_warning=0.5) as group:
        group[0].run(observed.begin, "worker1", call_back_with_the_lock, (["worker2", "worker1"],))
        wait_for_output(
            group[0],
            r"call_back_with_the_lock to worker 'worker1' \(rank 1\) has taken .* it has been running at worker "
            r"'worker1' for 0\.\d s and has had another call under way for 0\.\d s,\n  call \d+ of "
            r"test_hang_help.try_the_rest to worker 'worker2' \(rank 2\): it has been running at worker 'worker2' for "
            r".*,\n  call \d+ of test_hang_help.try_the_rest to worker 'worker1' \(rank 1\): it has been running at "
            r"worker 'worker1' for 0\.\d s; these calls form a cycle, 'worker1' -> 'worker2' -> 'worker1': it "
            r"may wait for what one of them holds, such as a lock, in\n.*acquire",
        )
        group[0].run(observed.wait_for_pending)


def call_each_other(to, back, depth):
    if depth > 0:
        rpc.rpc_sync(to, call_each_other, (back, to, depth - 1), timeout=2.5)


def test_calls_that_wait_for_threads_of_each_other_form_a_cycle(tmp_path):
    with running(2, tmp_path, slow_call_warning=0.5, num_worker_threads=1, num_spare_threads=1) as group:
        group[0].run(observed.begin, "worker1", call_each_other, ("worker0", "worker1", 6))
        wait_for_output(
            group[0],
            r"it has been queued at worker 'worker\d' for 0\.\d s: all 1 of its threads \(num_worker_threads\) run "
            r"other requests or wait, as do 1 spare ones \(num_spare_threads\); the oldest that waits, "
            r"test_hang_help.call_each_other of worker '.*; these calls form a cycle, .*: none of them can go on; ",
        )
        group[0].run(observed.error_of_pending)


_other = []


def wait_for_the_other():
    """The value of an RRef, which depends on that of another one."""
    wait_until(lambda: _other)
    return _other.pop().to_here(2.5)


def take_other(rref):
    _other.append(rref)


def create_two_that_wait_for_each_other():
    first, second = (rpc.remote(worker, wait_for_the_other) for worker in ("worker1", "worker2"))
    rpc.rpc_sync("worker1", take_other, (second,))
    rpc.rpc_sync("worker2", take_other, (first,))
    _other.extend((first, second))  # kept until the group ends


def test_rrefs_that_wait_for_each_other_form_a_cycle(tmp_path):
    with running(3, tmp_path, slow_call_warning=0.5) as group:
        group[0].run(create_two_that_wait_for_each_other)
        wait_for_output(
            group[1],
            r"call \d+ of a call \(fetch\) to worker 'worker2' \(rank 2\) has taken .*: the RRef has had no value at "
            r"worker 'worker2' for 0\.\d s: as to its creation, it has been running at worker 'worker2' for .* and "
            r"has had another call under way for .*these calls form a cycle, .*: none of them can go on",
        )


def test_a_slow_async_function_has_returned(tmp_path):
    with running(2, tmp_path, slow_call_warning=0.5) as group:
        group[0].run(observed.begin_never, "worker1")
        wait_for_output(
            group[0], r"its function at worker 'worker1' has returned a future, which has not been complete"
        )
        group[1].run(observed.end_pending)
        group[0].run(observed.wait_for_pending)


def test_a_slow_call_to_a_worker_that_stands_still(tmp_path):
    with running(2, tmp_path, slow_call_warning=0.5, session_timeout=30) as group:
        group[0].run(observed.call_many, "worker1", 1)
        group[1].signal(signal.SIGSTOP)
        group[0].run(observed.begin_nap, "worker1", 0)
        wait_for_output(group[0], "its request has been sent, and the worker does not answer when asked where it is")
        group[1].signal(signal.SIGCONT)
        group[0].run(observed.wait_for_pending)


def test_warnings_can_be_switched_off(tmp_path):
    with running(2, tmp_path, slow_call_warning=0) as group:
        group[0].run(observed.begin_nap, "worker1", 1)
        group[0].run(observed.wait_for_pending)
        assert "has taken" not in group[0].output()


def test_the_error_of_a_time_out_says_where_the_call_was(tmp_path):
    with running(2, tmp_path) as group:
        group[0].run(observed.begin_nap, "worker1", 2.5, timeout=1.6)
        error = group[0].run(observed.error_of_pending)
        assert error.startswith("RPCErr:1:RPC ran for more than set timeout (1600 ms)")
        assert re.search(
            r"when it had taken 1\.[2-5] s, it has been running at worker 'worker1' for 1\.\d s, in\n", error
        )
        assert "in nap_in_a_handler" in error
        group[0].run(observed.begin_never, "worker1", timeout=1.6)
        assert "has returned a future" in group[0].run(observed.error_of_pending)
        group[1].run(observed.end_pending)


def test_a_dump_has_calls_of_both_sides(tmp_path):
    with running(2, tmp_path) as group:
        group[0].run(observed.begin_nap, "worker1", 2)
        wait_until(lambda: "nap_in_a_handler" in group[1].run(dumped))  # else it may not have arrived
        made = group[0].run(dumped)
        assert "torchwire: worker 'worker0' (rank 0, process " in made
        assert "1 calls of this worker are under way" in made
        assert re.search(r"call \d+ of observed.nap_in_a_handler to 'worker1': 0\.\d+ s; it has been running", made)
        assert "in nap_in_a_handler" in made
        assert "0 requests to this worker are not answered" in made
        assert "threads of this process:" in made
        served = group[1].run(dumped)
        assert re.search(r"nap_in_a_handler from 'worker0': .*; running for .*nap_in_a_handler", served, re.DOTALL)
        group[0].run(observed.wait_for_pending)


def block(to):
    rpc.rpc_sync(to, observed.nap_in_a_handler, (2,))


def test_a_signal_dumps_while_the_main_thread_waits(tmp_path):
    with running(2, tmp_path) as group:
        waiting = group[0].start(block, "worker1")
        wait_until(lambda: "nap_in_a_handler" in group[1].run(dumped))
        group[0].signal(signal.SIGUSR2)
        wait_for_output(group[0], r"1 calls of this worker are under way.*nap_in_a_handler to 'worker1'")
        assert "in block" in group[0].output()  # what faulthandler has written
        waiting.result()
        group[0].signal(signal.SIGUSR2)  # a second time
        wait_for_output(group[0], "0 calls of this worker are under way")


def handle_own():
    signal.signal(signal.SIGUSR2, lambda *_: print("the program's own", flush=True))


def test_a_programs_own_handler_stays(tmp_path):
    from group import Group, file_in

    with Group(1, prepare=[handle_own]) as group:
        group.init(file_in(tmp_path))
        group[0].signal(signal.SIGUSR2)
        group[0].run(time.sleep, 0)
        wait_for_output(group[0], "the program's own")
        assert "under way" not in group[0].output()
        group.shut_down()


@pytest.mark.slow
def test_a_peer_that_is_dead_keeps_no_dump(tmp_path):
    with running(3, tmp_path, session_timeout=30) as group:
        for worker in ("worker1", "worker2"):
            group[0].run(observed.call_many, worker, 1)
            group[0].run(observed.begin_nap, worker, 5)
        group[2].signal(signal.SIGSTOP)
        begun = time.monotonic()
        text = group[0].run(dumped)
        assert time.monotonic() - begun < 10
        assert "it has been running at worker 'worker1'" in text
        assert "to 'worker2'" in text and "does not answer" in text
        group[2].signal(signal.SIGCONT)
        group[0].run(observed.wait_for_pending)

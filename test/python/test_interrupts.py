"""Signals that come while the main thread waits: their handlers run at once, what they raise is raised, and peers hear.

A worker is interrupted once it is known to wait: by a key in the store, or by the functions that its main thread is in.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from group import Group, HostedStore, environment_of_store, errors, init
from processes import LIMIT, WorkerProcess, wait_until
from torchwire import registration

# A wait looks for signals every 50 ms, but the machine may be busy. Without that each of these lasts a minute.
PROMPT = 3.0

INTERRUPTED = "worker 'worker0' (rank 0) was interrupted in "
IN_SHUTDOWN = f"the RPC group cannot shut down gracefully: {INTERRUPTED}rpc.shutdown()"

SIGNALS = pytest.mark.parametrize("number, raised", [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "Stopped")])

# ---- what the workers run ----

_kept = []


class Stopped(Exception):
    """What the program's handler of SIGTERM raises."""


def interrupted(function, *args, **kwargs):
    """What a handler of a signal has raised out of the function: its type, when the handler ran, and when this came."""
    ran = []

    def handle(number, frame):
        ran.append(time.monotonic())
        if number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        raise Stopped("by the program's handler")

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    try:
        value = function(*args, **kwargs)
    except (KeyboardInterrupt, Stopped) as raised:
        return type(raised).__name__, ran, time.monotonic()
    raise AssertionError(f"it returned {value!r}")


def interrupted_in(name, number, function, *args, **kwargs):
    """The same for a signal that comes once the main thread is in the function of this name; and when that was."""
    main = threading.main_thread().ident
    return interrupted_while(lambda: _is_in(sys._current_frames()[main], name), number, function, *args, **kwargs)


def interrupted_while(condition, number, function, *args, **kwargs):
    """The same for a signal that comes once the condition holds."""
    sent = []

    def interrupt_there():
        wait_until(condition)
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt_there, daemon=True).start()
    return *interrupted(function, *args, **kwargs), sent[0]


def _is_in(frame, name):
    while frame is not None:
        if frame.f_code.co_name == name and frame.f_globals["__name__"] != "threading":
            return True
        frame = frame.f_back
    return False


def until_cancelled():
    call = torchwire.current_call()
    while not call.cancelled:
        time.sleep(0.01)


NEVER = threading.Event()  # of a worker process: the function has begun


def never_return():
    NEVER.set()
    while True:
        time.sleep(0.01)


def call_what_never_returns(to, calls_before=0):
    for _ in range(calls_before):
        rpc.rpc_sync(to, int)
    rpc.rpc_sync(to, never_return)


def joins_pools():
    """Whether this process waits for functions that run here."""
    names = []
    for file in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            names.append(file.read_text().strip())
    return "torchwire_join" in names


MADE = threading.Event()  # of a worker process: Slow may be made


class Slow:
    def __init__(self):
        MADE.wait(LIMIT)

    def state(self):
        return "ready"


def let_it_be_made():
    MADE.set()


def use_proxy_twice(proxy):
    rref = rpc.remote("worker1", Slow)
    name, *_ = interrupted_in("call_state", signal.SIGINT, call_state, rref, "rpc_sync")
    assert name == "KeyboardInterrupt"
    rpc.rpc_sync("worker1", let_it_be_made)
    return call_state(rref, proxy)


def call_state(rref, proxy):
    state = getattr(rref, proxy)().state()
    return {"rpc_sync": lambda: state, "rpc_async": lambda: state.wait(), "remote": lambda: state.to_here()}[proxy]()


def interrupt_reader():
    signal.raise_signal(signal.SIGINT)


class InterruptsReader:
    def __reduce__(self):
        return interrupt_reader, ()


def give_what_interrupts():
    time.sleep(0.05)  # as long as the caller takes to wait: who waits reads the answer
    return InterruptsReader()


def read_what_interrupts(in_context):
    with dist_autograd.context() if in_context else contextlib.nullcontext():
        for call in (
            lambda: rpc.rpc_sync("worker1", give_what_interrupts),
            lambda: rpc.rpc_async("worker1", give_what_interrupts).wait(),
            lambda: rpc.remote("worker1", give_what_interrupts).to_here(),
        ):
            with pytest.raises(KeyboardInterrupt):
                call()
        return rpc.rpc_sync("worker1", int)


def call_sync():
    rpc.rpc_sync("worker1", until_cancelled)


def call_async():
    rpc.rpc_async("worker1", until_cancelled).wait()


def fetch():
    rpc.remote("worker1", until_cancelled).to_here()


def slow_root(seconds):
    time.sleep(seconds)
    return torch.ones(1, requires_grad=True).sum()


def start_backward_of(owner):
    rref = rpc.remote(owner, slow_root, (LIMIT,))
    with dist_autograd.context() as context:
        rref.backward(context)


def call_oneself():
    rpc.rpc_sync("worker0", time.sleep, (1,))  # for the end of which the shutdown waits


def shut_down_by_a_handler(wait):
    """What the wait raises, and how long that takes."""

    def handle(number, frame):
        rpc.shutdown(graceful=False)

    signal.signal(signal.SIGTERM, handle)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    began = time.monotonic()
    try:
        wait()
    except RuntimeError as error:
        return str(error), time.monotonic() - began
    raise AssertionError("it returned")


def use_own(use):
    use(rpc.remote("worker0", never_return))


def local_value(rref):
    rref.local_value()


def call_by_proxy(rref):
    rref.rpc_sync().bit_length()


def function_runs():
    return NEVER.is_set()


def await_function_that_never_returns():
    assert NEVER.wait(LIMIT)


def note_signals(path):
    signal.signal(signal.SIGHUP, lambda *_: path.touch())


def call_and_shut_down(callee):
    _kept.append(rpc.rpc_async(callee, until_cancelled))
    rpc.shutdown()


def create_and_shut_down(owner):
    _kept.append(rpc.remote(owner, until_cancelled))
    rpc.shutdown()


def calls():
    _kept[:] = [rpc.rpc_async("worker1", until_cancelled) for _ in range(2)]
    return _kept


def cancel_calls():
    for future in _kept:
        torchwire.cancel(future)


def wait_all():
    torch.futures.wait_all(calls())


def collect_all():
    torch.futures.collect_all(calls()).wait()


def then():
    calls()[0].then(lambda future: future.wait()).wait()


def unset():
    torch.futures.Future().wait()


def host_store():
    _kept.append(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    return _kept[-1].port


def shut_down_at_once():
    rpc.shutdown(graceful=False)


def is_initialized():
    return rpc.api._is_current_rpc_agent_set()


# ---- how they are interrupted ----


@pytest.fixture
def store():
    return HostedStore()


def await_key(store, name):
    """Waits until the workers, whose first group this is, have written the key."""
    wait_until(lambda: store.has(f"rpc_prefix_0/torchwire/{name}"))


def interrupt(worker, pending, number=signal.SIGINT):
    """Sends the signal; checks that it ends the wait at once, and returns the name of what was raised."""
    sent = time.monotonic()
    os.kill(worker.pid, number)
    name, ran, raised = pending.result()
    assert len(ran) == 1
    check_prompt(sent, ran[0], raised)
    return name


def check_prompt(sent, ran, raised):
    assert ran - sent < PROMPT
    assert raised - sent < 2 * PROMPT


def sentences(pending):
    return [error.message.partition("\n")[0] for error in errors(pending)]


@contextlib.contextmanager
def hosted(size, store, **options):
    """A group that the test shuts down, or kills."""
    with Group(size, store.environment) as group:
        group.init(store.init_method, **options)
        yield group


# ---- init_rpc ----


@SIGNALS
def test_init_rpc(store, number, raised):
    with Group(3, store.environment) as group:
        waiting = group[0].start(interrupted, init, store.init_method, world_size=3)
        other = group[1].start(init, store.init_method, world_size=3)
        await_key(store, "roster")
        assert not other.is_there(0.5)
        assert interrupt(group[0], waiting, number) == raised
        late = group[2].start(init, store.init_method, world_size=3)
        assert sentences([other, late]) == [INTERRUPTED + "init_rpc"] * 2
        assert group.all(is_initialized) == [False] * 3


def init_interrupted_before(name, *args, **kwargs):
    """In Python, before or after what the agent does."""
    original = getattr(registration, name)

    def raise_there(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGINT)
        return original(*args, **kwargs)

    setattr(registration, name, raise_there)
    return interrupted(init, *args, **kwargs)[0]


@pytest.mark.parametrize("name", ["start_agent", "_make_agent", "_start"])
def test_init_rpc_before_the_agent_starts(store, name):
    with Group(2, store.environment) as group:
        other = group[1].start(init, store.init_method, world_size=2)
        assert group[0].run(init_interrupted_before, name, store.init_method, world_size=2) == "KeyboardInterrupt"
        assert sentences([other]) == ["worker 'worker0' (rank 0) could not start: KeyboardInterrupt"]


def init_interrupted_after_the_start(*args, **kwargs):
    def raise_there(*_):
        rpc.rpc_sync("worker1", os.getpid)  # which hears the goodbye then
        os.kill(os.getpid(), signal.SIGINT)

    registration.observers.open_for = raise_there
    return interrupted(init, *args, **kwargs)[0], is_initialized()


def test_init_rpc_after_the_agent_has_started(store):
    with Group(2, store.environment) as group:
        other = group[1].start(init, store.init_method, world_size=2)
        ended = group[0].run(init_interrupted_after_the_start, store.init_method, world_size=2)
        assert ended == ("KeyboardInterrupt", False)
        other.result()
        (sentence,) = sentences([group[1].start(rpc.rpc_sync, "worker0", os.getpid)])
        assert sentence.endswith("has left the RPC group: its init_rpc failed: KeyboardInterrupt")


def test_init_rpc_whose_store_stands_still():
    host = WorkerProcess("store")
    environment = environment_of_store(host.run(host_store))
    worker = WorkerProcess("worker0", environment)
    try:
        host.signal(signal.SIGSTOP)
        store = f"tcp://127.0.0.1:{environment['MASTER_PORT']}"
        calling = worker.start(interrupted_in, "within", signal.SIGINT, init, store, world_size=2)
        name, ran, raised, sent = calling.result()
        assert name == "KeyboardInterrupt"
        check_prompt(sent, ran[0], raised)
    finally:
        host.kill()
        worker.close()


# ---- rpc.shutdown() ----


@SIGNALS
@pytest.mark.parametrize("transport", ["wire_shm", "wire_tcp"])
def test_a_shutdown_to_which_others_do_not_come(store, transport, number, raised):
    with hosted(3, store, _transports=[transport]) as group:
        waiting = group[0].start(interrupted, rpc.shutdown)
        other = group[1].start(rpc.shutdown)
        for rank in range(2):
            await_key(store, f"shutdown/reach0/of/{rank}")
        assert interrupt(group[0], waiting, number) == raised
        assert group[0].run(is_initialized) is False
        late = group[2].start(rpc.shutdown)
        assert sentences([other, late]) == [IN_SHUTDOWN] * 2


def test_a_handler_that_does_not_raise_runs_and_the_shutdown_goes_on(store, tmp_path):
    with hosted(2, store) as group:
        group[0].run(note_signals, tmp_path / "noted")
        waiting = group[0].start(rpc.shutdown)
        await_key(store, "shutdown/reach0/of/0")
        group[0].signal(signal.SIGHUP)
        wait_until((tmp_path / "noted").exists, PROMPT)
        group[1].run(rpc.shutdown)
        waiting.result()


@SIGNALS
def test_a_shutdown_while_a_call_of_its_own_runs(store, number, raised):
    with hosted(3, store) as group:
        waiting = group[0].start(interrupted, call_and_shut_down, "worker1")
        others = [worker.start(rpc.shutdown) for worker in group[1:]]
        for rank in (1, 2):
            await_key(store, f"shutdown/join1/of/{rank}")
        assert interrupt(group[0], waiting, number) == raised
        assert sentences(others) == [IN_SHUTDOWN] * 2


def test_a_shutdown_while_a_call_of_another_runs(store):
    with hosted(3, store) as group:
        others = [group[1].start(call_and_shut_down, "worker2"), group[2].start(rpc.shutdown)]
        waiting = group[0].start(interrupted, rpc.shutdown)
        for rank in (0, 2):
            await_key(store, f"shutdown/join1/of/{rank}")
        assert interrupt(group[0], waiting) == "KeyboardInterrupt"
        assert sentences(others) == [IN_SHUTDOWN] * 2


def test_a_shutdown_while_an_rref_of_its_own_is_created(store):
    with hosted(2, store) as group:
        waiting = group[0].start(interrupted, create_and_shut_down, "worker1")
        other = group[1].start(rpc.shutdown)
        await_key(store, "shutdown/join1/of/1")
        assert interrupt(group[0], waiting) == "KeyboardInterrupt"
        assert sentences([other]) == [IN_SHUTDOWN]


@pytest.mark.parametrize("wait", [call_sync, call_async, fetch, call_oneself])
def test_a_handler_that_shuts_down_while_a_call_is_waited_for(store, wait):
    """As a program's handler of SIGTERM may."""
    with hosted(2, store) as group:
        text, seconds = group[0].run(shut_down_by_a_handler, wait)
        assert "shut its RPC agent down" in text
        assert seconds < PROMPT
        group[1].run(rpc.shutdown, graceful=False)


@pytest.mark.parametrize("use", [local_value, call_by_proxy])
def test_a_wait_for_a_value_of_ones_own(store, use):
    with hosted(1, store) as group:
        waiting = group[0].start(interrupted_while, function_runs, signal.SIGINT, use_own, use)
        name, ran, raised, sent = waiting.result()
        assert name == "KeyboardInterrupt" and len(ran) == 1
        check_prompt(sent, ran[0], raised)


@SIGNALS
@pytest.mark.parametrize("owner", ["worker0", "worker1"])
def test_a_backward_pass_of_an_rref(store, owner, number, raised):
    with hosted(2, store, rpc_timeout=2 * LIMIT) as group:
        name, ran, came, sent = group[0].run(interrupted_in, "backward", number, start_backward_of, owner)
        assert name == raised and len(ran) == 1
        check_prompt(sent, ran[0], came)
        group.kill()  # the function goes on


@pytest.mark.parametrize("in_context", [False, True])
def test_a_handler_that_raises_while_a_result_is_read(store, in_context):
    with hosted(2, store) as group:
        assert group[0].run(read_what_interrupts, in_context) == 0


@pytest.mark.parametrize("proxy", ["rpc_sync", "rpc_async", "remote"])
def test_a_proxy_is_of_use_after_its_first_call_was_interrupted(store, proxy):
    with hosted(2, store) as group:
        assert group[0].run(use_proxy_twice, proxy) == "ready"


@SIGNALS
@pytest.mark.parametrize("calls_before", [0, 300])  # which have the next one run on the loop's thread
def test_a_shutdown_without_the_others_while_a_handler_never_returns(store, number, raised, calls_before):
    with hosted(2, store) as group:
        call = group[1].start(call_what_never_returns, "worker0", calls_before)
        group[0].run(await_function_that_never_returns)
        waiting = group[0].start(interrupted_while, joins_pools, number, rpc.shutdown, graceful=False)
        name, ran, came, sent = waiting.result()
        assert name == raised and len(ran) == 1
        check_prompt(sent, ran[0], came)
        assert errors([call])
        assert group[0].run(is_initialized) is False


def test_a_shutdown_says_for_which_function_it_waits(store):
    with hosted(2, store) as group:
        call = group[1].start(call_what_never_returns, "worker0")
        group[0].run(await_function_that_never_returns)
        waiting = group[0].start(rpc.shutdown, graceful=False)
        said = "rpc.shutdown() waits for functions that run here: test_interrupts.never_return for worker 'worker1'"
        wait_until(lambda: said in group[0].output())
        assert errors([call])
        group[0].kill()
        assert errors([waiting])


def test_the_shutdown_of_a_dynamic_group(tmp_path):
    with Group(2) as group:
        for worker in group:
            worker.run(init, f"file://{tmp_path}/store")
        calling = group[0].start(interrupted_in, "shutdown", signal.SIGINT, call_and_shut_down, "worker1")
        name, ran, raised, sent = calling.result()
        assert name == "KeyboardInterrupt"
        check_prompt(sent, ran[0], raised)
        group[1].run(rpc.shutdown)


def test_a_shutdown_whose_store_stands_still():
    host = WorkerProcess("store")
    try:
        environment = environment_of_store(host.run(host_store))
        with Group(2, environment) as group:
            group.init(f"tcp://127.0.0.1:{environment['MASTER_PORT']}")
            host.signal(signal.SIGSTOP)
            waiting = group[0].start(interrupted_in, "wait_all_workers", signal.SIGINT, rpc.shutdown)
            name, ran, raised, sent = waiting.result()
            assert name == "KeyboardInterrupt"
            check_prompt(sent, ran[0], raised)
            group[1].run(shut_down_at_once)
    finally:
        host.kill()


# ---- futures ----


@SIGNALS
@pytest.mark.parametrize("wait", [wait_all, collect_all, then, unset])
def test_a_wait_for_futures(pair, wait, number, raised):
    name, ran, raised_at, sent = pair[0].run(interrupted_in, wait.__name__, number, wait)
    pair[0].run(cancel_calls)
    assert name == raised
    check_prompt(sent, ran[0], raised_at)

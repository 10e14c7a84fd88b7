"""RRefs: their creation, sharing and end; torchwire.rrefs(); creation sites; what is said of those that leak."""

import contextlib
import gc
import os
import signal
import threading
from unittest import mock

import pytest
import torch
import torch.distributed.rpc as rpc
import torchwire
from group import Group, HostedStore, init, running
from processes import LIMIT, WorkerError, WorkerProcess, close_all, wait_until
from rref_counts import counts, wait_until_none_is_left
from torch._C._distributed_rpc import _rref_context_get_debug_info

HELD = {}  # of a worker process: RRefs under names
GATE = threading.Event()
PROMISES = []  # futures that async functions have returned
CALLS = []  # futures of calls that this worker has made
RUNS = []  # arguments that counted() was run with


@pytest.fixture(scope="module")
def _shared_quartet(tmp_path_factory):
    with running(4, tmp_path_factory.mktemp("group"), record_creation_site=True) as group:
        yield group


@pytest.fixture
def quartet(_shared_quartet):
    """A running group of four that records creation sites, without RRefs before and after."""
    wait_until_none_is_left(_shared_quartet)
    yield _shared_quartet
    _shared_quartet.all(drop)
    wait_until_none_is_left(_shared_quartet)


# ---- what the workers run ----


def drop(*names):
    for name in names or list(HELD):
        del HELD[name]


def hold(name, rref):
    HELD[name] = rref


def pass_on(name, to):
    """Gives `to` the RRef that is held here."""
    rpc.rpc_sync(to, hold, (name, HELD[name]))


def tensor_that_cannot_be_sent(why):
    return torch.empty(2, device="meta") if why == "device" else torch.rand(2, 2).to_mkldnn()


def fail_to_pass_on(name, to, call, why):
    """Its call has another argument that cannot be sent."""
    with pytest.raises(RuntimeError, match="tensor"):
        future = call(to, hold, ((name, tensor_that_cannot_be_sent(why)), HELD[name]))
        if isinstance(future, torch.futures.Future):
            future.wait()


def fail_to_give(name, why):
    return HELD[name], tensor_that_cannot_be_sent(why)


def fail_to_get(name, of, why):
    with pytest.raises(RuntimeError, match="tensor"):
        rpc.rpc_sync(of, fail_to_give, (name, why))


def create(name, to, function, args=()):
    # A function of TorchScript cannot be pickled, so the test names it.
    HELD[name] = rpc.remote(to, globals()[function] if isinstance(function, str) else function, args=args)


def create_here(name, value):
    HELD[name] = rpc.RRef(value)


def value_of(name):
    return HELD[name].to_here()


def doubled(value):
    return 2 * value


def failing(text):
    raise ValueError(text)


@rpc.functions.async_execution
def doubled_later(value):
    return rpc.rpc_async("worker3", doubled, (value,))


@rpc.functions.async_execution
def failing_later(text):
    return rpc.rpc_async("worker3", failing, (text,))


@rpc.functions.async_execution
def promised():
    PROMISES.append(torch.futures.Future())
    return PROMISES[-1]


def keep_promise(value):
    """Whether there was one."""
    if not PROMISES:
        return False
    PROMISES.pop().set_result(value)
    return True


@torch.jit.script
def scripted(value: torch.Tensor) -> torch.Tensor:
    if bool(value.sum() < 0):
        raise RuntimeError("it is negative")
    return 2 * value


def counted(value):
    RUNS.append(value)
    return value


def runs():
    return RUNS


def forget_runs():
    RUNS.clear()


def my_rrefs(role):
    return [rref for rref in torchwire.rrefs() if rref["role"] == role]


def when_held_by(owner, holders):
    """What the owner says of its one RRef, once it has heard of these holders: a creation may come after a fork."""
    wait_until(lambda: [rref["holders"] for rref in owner.run(my_rrefs, "owner")] == [holders])
    return owner.run(my_rrefs, "owner")


def wait_at_gate():
    return GATE.wait(LIMIT)


def occupy(to, threads):
    """Lets this many request threads of worker `to` wait for its gate."""
    CALLS.extend(rpc.rpc_async(to, wait_at_gate) for _ in range(threads))


def results_of_calls():
    return [call.wait() for call in CALLS]


def share_here_and_fetch(rref):
    """Runs on the owner, to which somebody has given its own RRef: gives it to itself, and then wants the value."""
    rpc.rpc_sync(rpc.get_worker_info().name, touch, (rref,))
    RUNS.append("shared")
    return rref.to_here()


def fetch_here(rref):
    """Runs on the owner, to which somebody has given its own RRef."""
    RUNS.append("fetching")
    return rref.to_here()


def touch(rref):
    return rref.is_owner()


def have_the_owner(function, name):
    return rpc.rpc_sync(HELD[name].owner(), function, (HELD[name],))


def deletes_are_acknowledged():
    return _rref_context_get_debug_info()["num_pending_futures"] == "0"


def open_gate():
    GATE.set()


def close_gate():
    GATE.clear()


def idle_threads():
    return int(rpc._get_current_rpc_agent().get_metrics()["agent.num_idle_threads"])


# ---- creation ----

SIX = torch.tensor([6.0])


@pytest.mark.parametrize("to", ["worker1", "worker0"])
class TestCreation:
    @pytest.mark.parametrize(
        "function, args",
        [
            (doubled, (torch.tensor([3.0]),)),
            (doubled_later, (torch.tensor([3.0]),)),
            (torch.add, (torch.tensor([3.0]), 3)),
            ("scripted", (torch.tensor([3.0]),)),
        ],
        ids=["python", "async", "builtin", "script"],
    )
    def test_of_every_kind_of_function_gives_its_value(self, quartet, to, function, args):
        quartet[0].run(create, "it", to, function, args)
        assert torch.equal(quartet[0].run(value_of, "it"), SIX)

    @pytest.mark.parametrize(
        "function, args, sentence",
        [
            (failing, ("on purpose",), "ValueError.*on purpose"),
            (failing_later, ("on purpose",), "ValueError.*on purpose"),
            (torch.add, (torch.ones(2), torch.ones(3)), "must match"),
            ("scripted", (-torch.ones(1),), "it is negative"),
        ],
        ids=["python", "async", "builtin", "script"],
    )
    def test_that_fails_tells_whoever_asks_for_the_value(self, quartet, to, function, args, sentence):
        quartet[0].run(create, "it", to, function, args)
        for _ in range(2):
            with pytest.raises(WorkerError, match=f"(?s){sentence}"):
                quartet[0].run(value_of, "it")


# ---- a worker whose request threads are all busy ----


def create_impatiently(to):
    """Creates an RRef, hears that this takes too long, and drops it; returns when the owner knows."""
    rref = rpc.remote(to, counted, args=("late",), timeout=0.1)
    with pytest.raises(RuntimeError, match="timeout|longer"):
        rref._get_future().wait()
    wait_until(lambda: counts()["pending_users"] == 0)
    del rref
    gc.collect()
    wait_until(deletes_are_acknowledged)


@pytest.fixture
def busy_pair(tmp_path):
    """Two workers; the second has no request thread left until its gate is opened. It owns "it" of the first."""
    with running(2, tmp_path, num_worker_threads=2) as group:
        group[0].run(create, "it", "worker1", doubled, (21,))
        group[0].run(occupy, "worker1", 2)
        wait_until(lambda: group[1].run(idle_threads) == 0)
        yield group
        group[1].run(open_gate)
        assert group[0].run(results_of_calls) == [True, True]
        group[0].run(drop)
        wait_until_none_is_left(group)


def test_rref_messages_do_not_wait_for_functions_that_block(busy_pair):
    assert busy_pair[0].run(value_of, "it") == 42
    busy_pair[0].run(drop, "it")
    wait_until_none_is_left(busy_pair)


def test_a_value_that_its_creator_has_deleted_before_it_was_made_is_made_once_and_does_not_stay(busy_pair):
    busy_pair[0].run(create_impatiently, "worker1")
    assert busy_pair[1].run(runs) == []
    busy_pair[1].run(open_gate)
    wait_until(lambda: busy_pair[1].run(runs) == ["late"])
    busy_pair[0].run(drop)
    wait_until_none_is_left(busy_pair)


# ---- messages that come more than once ----


def frames_sent_to(peer):
    return {entry["name"]: entry["frames_sent"] for entry in torchwire.peers()}[peer]


def give_patiently(name, to):
    """Gives `to` the RRef, where the call may take longer than the time-out of others."""
    CALLS.append(rpc.rpc_async(to, hold, (name, HELD[name]), timeout=LIMIT))


def all_threads_are_stopped(pid):
    states = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat") as file:
            states.append(file.read().rpartition(")")[2].split()[0])
    return set(states) == {"T"}


@contextlib.contextmanager
def stopped(worker, senders):
    """`worker` reads nothing until each of the senders has repeated to it what it has to say."""
    worker.signal(signal.SIGSTOP)
    wait_until(lambda: all_threads_are_stopped(worker.pid))  # the signal returns before they are
    try:
        before = [sender.run(frames_sent_to, worker.name) for sender in senders]
        yield
        for sender, sent in zip(senders, before):
            wait_until(lambda: sender.run(frames_sent_to, worker.name) >= sent + 2)
    finally:
        worker.signal(signal.SIGCONT)


def test_fork_requests_and_deletes_that_come_several_times_count_once(tmp_path):
    with running(3, tmp_path, rpc_timeout=1) as group:
        group[2].run(rpc.rpc_sync, "worker1", doubled, (1,))  # a connection, which cannot be made later
        group[0].run(create, "it", "worker1", doubled, (21,))
        assert group[0].run(value_of, "it") == 42
        with stopped(group[1], [group[2]]):
            group[0].run(give_patiently, "it", "worker2")
        assert group[0].run(results_of_calls) == [None]
        (owner,) = group[1].run(my_rrefs, "owner")
        assert owner["holders"] == ["worker0", "worker2"]
        assert len(owner["forks"]) == 2
        with stopped(group[1], [group[0]]):
            group[0].run(drop, "it")
        assert group[2].run(value_of, "it") == 42
        with stopped(group[1], [group[2]]):
            group[2].run(drop, "it")
        wait_until_none_is_left(group)


# ---- sharing ----


class TestSharing:
    def test_the_value_lives_until_the_last_worker_has_dropped_it(self, quartet):
        quartet[0].run(create, "it", "worker1", doubled, (21,))
        quartet[0].run(pass_on, "it", "worker2")
        quartet[2].run(pass_on, "it", "worker3")
        quartet[0].run(drop, "it")
        quartet[2].run(drop, "it")
        assert quartet[3].run(value_of, "it") == 42
        assert quartet[1].run(counts)["owners"] == 1

    def test_an_owner_gives_its_own_value_away_and_gets_it_back(self, quartet):
        quartet[0].run(create_here, "it", "mine")
        for other in ("worker1", "worker2", "worker3"):
            quartet[0].run(pass_on, "it", other)
        quartet[0].run(drop, "it")
        quartet[1].run(pass_on, "it", "worker0")
        quartet[1].run(drop, "it")
        assert quartet[0].run(value_of, "it") == "mine"
        assert [quartet[i].run(value_of, "it") for i in (2, 3)] == ["mine"] * 2

    def test_a_fetch_waits_for_a_value_that_is_not_there_yet(self, quartet):
        quartet[0].run(create, "it", "worker1", promised)
        pending = quartet[0].start(value_of, "it")
        wait_until(lambda: quartet[1].run(keep_promise, "kept"))
        assert pending.result() == "kept"

    def test_a_value_that_is_shared_before_it_is_there_is_shared(self, quartet):
        quartet[0].run(create, "it", "worker1", promised)
        quartet[0].run(pass_on, "it", "worker2")
        quartet[0].run(drop, "it")
        wait_until(lambda: quartet[1].run(keep_promise, "kept"))
        assert quartet[2].run(value_of, "it") == "kept"

    def test_an_owner_that_shares_with_itself_what_is_still_being_made_gets_the_value(self, quartet):
        quartet[1].run(forget_runs)
        quartet[0].run(create, "it", "worker1", wait_at_gate)
        pending = quartet[0].start(have_the_owner, share_here_and_fetch, "it")
        wait_until(lambda: quartet[1].run(runs) == ["shared"])
        quartet[1].run(open_gate)
        assert pending.result() is True
        quartet[1].run(close_gate)

    def test_an_owner_gets_what_is_still_being_made_though_an_earlier_user_has_gone(self, quartet):
        quartet[1].run(forget_runs)
        quartet[0].run(create, "it", "worker1", wait_at_gate)
        quartet[0].run(pass_on, "it", "worker2")
        pending = quartet[0].start(have_the_owner, fetch_here, "it")
        wait_until(lambda: quartet[1].run(runs) == ["fetching"])
        quartet[2].run(drop, "it")
        wait_until(lambda: quartet[2].run(deletes_are_acknowledged))
        quartet[1].run(open_gate)
        assert pending.result() is True
        quartet[1].run(close_gate)


def test_a_worker_that_takes_the_place_of_one_that_left_can_create_rrefs(tmp_path):
    store = HostedStore()  # outlives both
    first = WorkerProcess("worker0", store.environment)
    try:
        first.run(init, store.init_method)
        for turn in range(2):
            second = WorkerProcess("worker1", store.environment)
            second.run(init, store.init_method)
            for number in range(3):  # under the same ids each turn
                second.run(create, "it", "worker0", counted, ((turn, number),))
                assert second.run(value_of, "it") == (turn, number)
                second.run(drop, "it")
            wait_until_none_is_left([first, second])
            second.run(rpc.shutdown)
            second.close()
        first.run(rpc.shutdown)
    finally:
        close_all([first])


# ---- torchwire.rrefs() ----


class TestList:
    def test_an_owner_names_all_holders_whoever_gave_them_their_fork(self, quartet):
        quartet[0].run(create, "it", "worker1", doubled, (21,))
        quartet[0].run(pass_on, "it", "worker2")
        quartet[0].run(create_here, "mine", 5)
        quartet[0].run(pass_on, "mine", "worker2")
        quartet[0].run(pass_on, "mine", "worker3")
        (its,) = when_held_by(quartet[1], ["worker0", "worker2"])
        assert sorted(its["forks"].values()) == ["worker0", "worker2"]
        assert (its["owner"], its["type"], its["state"]) == ("worker1", "PyObject", "confirmed")
        (mine,) = when_held_by(quartet[0], ["worker2", "worker3"])
        assert mine["owner"] == "worker0"

    def test_a_user_is_listed_under_the_owners_id(self, quartet):
        quartet[0].run(create, "it", "worker1", doubled, (21,))
        quartet[0].run(pass_on, "it", "worker2")
        (owner,) = when_held_by(quartet[1], ["worker0", "worker2"])
        for holder in (quartet[0], quartet[2]):
            wait_until(lambda: [rref["state"] for rref in holder.run(my_rrefs, "user")] == ["confirmed"])
            (user,) = holder.run(my_rrefs, "user")
            assert (user["id"], user["owner"], user["holders"]) == (owner["id"], "worker1", [holder.name])
            assert owner["forks"][next(iter(user["forks"]))] == holder.name

    def test_an_owner_is_pending_until_its_value_is_there(self, quartet):
        quartet[0].run(create, "it", "worker1", promised)
        wait_until(lambda: [rref["state"] for rref in quartet[1].run(my_rrefs, "owner")] == ["pending"])
        wait_until(lambda: quartet[1].run(keep_promise, "kept"))
        wait_until(lambda: [rref["state"] for rref in quartet[1].run(my_rrefs, "owner")] == ["confirmed"])

    def test_an_owner_whose_function_still_runs_is_listed_without_a_type(self, quartet):
        quartet[0].run(create, "it", "worker1", wait_at_gate)
        wait_until(lambda: [rref["type"] for rref in quartet[1].run(my_rrefs, "owner")] == [None])
        quartet[1].run(open_gate)
        assert quartet[0].run(value_of, "it")
        quartet[1].run(close_gate)

    def test_ages_grow(self, quartet):
        quartet[0].run(create, "it", "worker1", doubled, (21,))
        for worker, role in ((quartet[0], "user"), (quartet[1], "owner")):
            wait_until(lambda: worker.run(my_rrefs, role))
            (before,) = worker.run(my_rrefs, role)
            assert 0 <= before["age"] < LIMIT
            wait_until(lambda: worker.run(my_rrefs, role)[0]["age"] > before["age"])

    def test_is_refused_without_rpc(self):
        with pytest.raises(RuntimeError, match=r"torchwire.rrefs\(\): RPC is not initialized"):
            torchwire.rrefs()


class TestCreationSites:
    @pytest.mark.parametrize("to", ["worker1", "worker0"])
    @pytest.mark.parametrize("function, args", [(doubled, (1,)), (torch.add, (1, 1)), ("scripted", (torch.ones(1),))])
    def test_the_owner_knows_where_an_rref_was_created(self, quartet, to, function, args):
        quartet[0].run(create, "it", to, function, args)
        quartet[0].run(pass_on, "it", "worker2")  # else a worker lets go of what it has created on itself
        owner = quartet[int(to[-1])]

        def sites():
            return [rref["creation_site"] for rref in owner.run(my_rrefs, "owner")]

        wait_until(lambda: sites() not in ([], [None]))  # a creation may come after the fork
        (site,) = sites()
        assert site.split(" < ")[0].startswith(__file__)
        assert site.split(" < ")[0].endswith(" in create")
        assert "site-packages/torch" not in site

    def test_a_local_rref_has_one(self, quartet):
        quartet[0].run(create_here, "it", 1)
        quartet[0].run(pass_on, "it", "worker1")
        (owner,) = quartet[0].run(my_rrefs, "owner")
        assert owner["creation_site"].split(" < ")[0].endswith(" in create_here")

    def test_nothing_is_recorded_unless_asked_for(self, pair):
        pair[0].run(create, "it", "worker1", doubled, (1,))
        assert [rref["creation_site"] for rref in pair[0].run(my_rrefs, "user")] == [None]
        pair[0].run(drop, "it")
        wait_until_none_is_left(pair)


def test_functions_of_pytorch_are_back_after_the_shutdown(tmp_path):
    with Group(1) as group:
        before = group[0].run(identities)
        group.init(f"file://{tmp_path}/store")
        group.shut_down()
        assert group[0].run(identities) == before


def identities():
    names = ("_invoke_remote_builtin", "_invoke_remote_torchscript", "_invoke_remote_python_udf", "_finalize_shutdown")
    return [id(getattr(rpc.api, name)) for name in names]


# ---- leaks ----


def shut_down_with_leaks(ignore):
    """What rpc.shutdown() raises where PyTorch does not delete the RRefs that are left."""
    rpc.api._ignore_rref_leak = ignore
    with mock.patch.object(rpc.api, "_delete_all_user_and_unforked_owner_rrefs"):
        try:
            rpc.shutdown()
        except RuntimeError as error:
            return str(error)
    return None


@pytest.mark.parametrize("record", [True, False])
def test_the_report_of_leaks_names_holders_and_creation_site(tmp_path, record):
    with Group(3) as group:
        group.init(f"file://{tmp_path}/store", record_creation_site=record)
        group[0].run(create, "it", "worker1", doubled, (21,))
        group[0].run(pass_on, "it", "worker2")
        group[1].run(create_here, "mine", 5)
        group[1].run(pass_on, "mine", "worker0")
        leaks = group.all(shut_down_with_leaks, False)
        assert leaks[0] is None and leaks[2] is None
        lines = leaks[1].splitlines()
        assert len(lines) == 4
        for line, holder in zip(sorted(lines[:3], key=lambda line: line.split(": ")[1]), (0, 0, 2)):
            assert line.startswith("Leaking RRef GloballyUniqueId(")
            assert f"held by worker 'worker{holder}'" in line
            assert ("created at " in line and " in create" in line) == record
            assert ("creation site not recorded" in line) != record
        assert "Drop them before" in lines[3]


def test_leaks_are_not_reported_unless_asked_for(tmp_path):
    with Group(2) as group:
        group.init(f"file://{tmp_path}/store")
        group[0].run(create, "it", "worker1", doubled, (21,))
        assert group.all(shut_down_with_leaks, True) == [None, None]


@pytest.mark.parametrize("call", [rpc.rpc_sync, rpc.rpc_async, rpc.remote])
@pytest.mark.parametrize("owner", ["worker0", "worker1"])
@pytest.mark.parametrize("why", ["device", "layout"])
def test_an_rref_in_a_call_that_cannot_be_sent_is_not_passed_on(quartet, owner, call, why):
    quartet[0].run(create, "one", owner, doubled, (21,))
    quartet[0].run(fail_to_pass_on, "one", "worker2", call, why)
    quartet[0].run(drop, "one")
    wait_until_none_is_left(quartet)


@pytest.mark.parametrize("owner", ["worker0", "worker1"])
@pytest.mark.parametrize("why", ["device", "layout"])
def test_an_rref_in_an_answer_that_cannot_be_sent_is_not_passed_on(quartet, owner, why):
    quartet[0].run(create, "one", owner, doubled, (21,))
    quartet[2].run(fail_to_get, "one", "worker0", why)
    quartet[0].run(drop, "one")
    wait_until_none_is_left(quartet)

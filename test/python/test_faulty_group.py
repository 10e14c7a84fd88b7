"""What those who look at a group are told while one worker is dead, one is slow and one is cut off."""

import io
import time

import observed
import pytest
import torch.distributed.rpc as rpc
import torchwire
from group import Group, init, results
from network import Hosts
from processes import wait_until
from test_metrics import sample, scrape
from test_trace import calls, check_nesting, slices_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
]

NAMES = [f"worker{rank}" for rank in range(8)]
SLOW, DEAD, CUT_OFF = "worker2", "worker5", "worker7"
WELL = [name for name in NAMES if name not in (DEAD, CUT_OFF)]
PORT = 9400  # the namespace has all ports to itself
CABLE = 1  # of the two between the hosts; the store is reached by the other


# ---- what the workers run ----


def call_each(names):
    return [rpc.rpc_sync(name, observed.add, (1, 2)) for name in names]


def counts():
    return torchwire.metrics()["counts"]


def states():
    return {peer["name"]: peer["state"] for peer in torchwire.peers()}


def seconds_since(begun):
    return time.monotonic() - begun


def metrics_in_time():
    begun = time.monotonic()
    return torchwire.metrics(), seconds_since(begun)


def dump_in_time():
    begun, out = time.monotonic(), io.StringIO()
    torchwire.dump(out)
    return out.getvalue(), seconds_since(begun)


def explain_all():
    return {name: (found.state, str(found)) for name in NAMES for found in [torchwire.explain(name)]}


def trace_in_time(path, names):
    begun = time.monotonic()
    with torchwire.trace(path):
        call_each(names)
    return seconds_since(begun)


# ---- the group ----


@pytest.fixture(scope="module")
def group(hosts):
    """Eight workers on two hosts, after the faults.

    worker0 has a call under way to the one that is cut off, worker1 one to the one that is slow.
    """
    near, far = hosts.entrances()
    store = f"tcp://{Hosts.ADDRESSES[0][0]}:29500"
    with Group(8, {"TP_SOCKET_IFNAME": f"net{CABLE}"}, [near] * 7 + [far]) as workers:
        started = [
            worker.start(init, store, world_size=8, session_timeout=600, metrics_port=port)
            for worker, port in zip(workers, [PORT] + [None] * 7)
        ]
        results(started)
        workers.all(call_each, NAMES)
        workers[0].run(observed.begin_never, CUT_OFF)
        workers[1].run(observed.begin_nap, SLOW, 600)
        wait_until(lambda: workers[7].run(counts)["requests_async"] == 1)
        wait_until(lambda: workers[2].run(counts)["requests_active"] == 1)
        workers[5].kill()
        hosts.plug(CABLE, "down")
        for name, worker in zip(NAMES, workers):
            if name in WELL:
                wait_until(lambda: faults_are_seen_by(worker))

        yield workers
        workers.kill()


def faults_are_seen_by(worker):
    found = worker.run(states)
    return (found[DEAD], found[CUT_OFF]) == ("dead", "resuming")


# ---- the tests ----


def test_metrics_say_who_is_gone_and_what_is_under_way(group):
    caller, seconds = group[1].run(metrics_in_time)
    assert seconds < 1
    assert caller["counts"]["calls_in_flight"] == 1
    assert {peer["name"] for peer in caller["peers"] if peer["state"] == "connected"} >= set(WELL) - {"worker1"}
    slow, _ = group[2].run(metrics_in_time)
    assert slow["counts"]["requests_active"] == 1
    assert slow["counts"]["threads_idle"] == slow["counts"]["threads"] - 1


def test_prometheus_reads_the_same(group):
    families = group[0].run(scrape, PORT)
    for name, state, connected in ((SLOW, "connected", 1), (DEAD, "dead", 0), (CUT_OFF, "resuming", 0)):
        assert sample(families, "torchwire_peer_connected", peer=name, state=state) == connected
    assert sample(families, "torchwire_links_lost_total", peer=CUT_OFF) == 1
    assert sample(families, "torchwire_links_lost_total", peer=SLOW) == 0
    assert sample(families, "torchwire_calls_in_flight") == 1


def test_explain_says_what_has_become_of_the_worker(group):
    found = group[0].run(explain_all)
    assert found[SLOW][0] == "connected" and found[SLOW][1].startswith(f"to worker '{SLOW}'\n")
    assert found[DEAD][0] == "dead" and f"to worker '{DEAD}', which is dead. The last connection:" in found[DEAD][1]
    assert found[CUT_OFF][0] == "resuming" and "The connection has broken, and is being made again" in found[CUT_OFF][1]
    assert "by wire_tcp" in found[CUT_OFF][1] and "by wire_shm" in found[DEAD][1]


def test_dump_says_where_the_calls_are(group):
    to_the_slow, seconds = group[1].run(dump_in_time)
    assert seconds < 6
    assert f"observed.nap_in_a_handler to '{SLOW}'" in to_the_slow and "running" in to_the_slow
    assert "time.sleep(seconds)" in to_the_slow or "in nap_in_a_handler" in to_the_slow
    to_the_cut_off, seconds = group[0].run(dump_in_time)
    assert seconds < 6
    assert f"observed.never to '{CUT_OFF}'" in to_the_cut_off
    served, _ = group[2].run(dump_in_time)
    assert "observed.nap_in_a_handler from 'worker1'" in served and "in nap_in_a_handler" in served


def test_a_trace_has_all_that_can_be_reached_and_waits_for_nobody_else(group, tmp_path):
    path = tmp_path / "trace.json"
    assert group[0].run(trace_in_time, path, WELL[1:]) < 15
    tracks = slices_of(path)
    check_nesting(tracks)
    served = calls(tracks, requests=True)
    for name in WELL[1:]:
        assert served[int(name.removeprefix("worker")), "observed.add"] == 1
    for name in (DEAD, CUT_OFF):
        assert f"worker '{name}' may not be in the trace" in group[0].output()


def test_once_the_cable_is_back_the_call_ends_well_and_the_next_trace_has_that_worker_too(group, hosts, tmp_path):
    """The former trace's beginning, which it has not been told in time, keeps it from no other."""
    hosts.plug(CABLE, "up")
    group[7].run(observed.end_pending)
    group[0].run(observed.wait_for_pending)
    path = tmp_path / "trace.json"
    group[0].run(trace_in_time, path, [CUT_OFF])
    assert calls(slices_of(path), requests=True)[7, "observed.add"] == 1

"""Who dials with a secret that the others have dropped, wherever their rendezvous store is by then."""

import shutil
import signal

import connections
import pytest
import torch.distributed.rpc as rpc
import torchwire
from group import Group, errors, init
from processes import WorkerError, wait_until
from test_secret_change import command, held
from test_store import call
from test_store_death import store_apart
from torchwire import secret_watch

DIFFER = "the group secrets differ: give all workers the same secret"

# ---- what the workers run ----


def look_often():
    """At the file with the secret."""
    secret_watch._INTERVAL = 0.05


def call_anew(to):
    """On a link that is made anew, once this worker has noticed that the former one is broken."""
    while True:
        try:
            return call(to)
        except torchwire.WorkerUnreachable as error:
            if "lost the connection" not in str(error):
                raise


def labels():
    return torchwire.metrics()["secrets"]


# ---- the group ----


def come(worker, store, path):
    worker.run(init, store.init_method, secret_file=str(path), _transports=["wire_tcp"], session_timeout=0)


def break_all_links(group, store):
    assert sum(worker.run(connections.break_all, (), but_to=store.port) for worker in group) > 0


def expect_refusal(dialer, accepter):
    [error] = errors([dialer.start(call_anew, accepter.name)])
    assert DIFFER in error.message, error
    wait_until(lambda: "refused a connection from 127.0.0.1:" in accepter.output() and DIFFER in accepter.output())


@pytest.mark.parametrize("away", [None, "dead", "standing still"])
def test_who_dials_with_a_dropped_secret_is_refused(tmp_path, away):
    path, left_behind = tmp_path / "secret", tmp_path / "left_behind"
    command(path)
    [old] = held(path)
    shutil.copy2(path, left_behind)
    with store_apart() as store, Group(5, store.environment) as group:
        group.all(look_often)
        first, second, late, *newcomers = group
        for worker, its_path in ((first, path), (second, path), (late, left_behind)):
            come(worker, store, its_path)
        [used] = first.run(labels)
        new = command(path, "--add").encode()
        command(path, "--use", new[-6:].decode())
        wait_until(lambda: all(worker.run(labels)[1:] == [used] for worker in (first, second)))
        break_all_links((first, late), store)
        assert late.run(call_anew, first.name) == 3  # with the old one, which is not dropped yet

        if away == "dead":
            store.kill()
        elif away:
            store.signal(signal.SIGSTOP)
        command(path, "--drop", old[-6:].decode())
        wait_until(lambda: all(len(worker.run(labels)) == 1 for worker in (first, second)))
        break_all_links((first, second, late), store)
        expect_refusal(late, first)
        expect_refusal(first, late)
        assert first.run(call_anew, second.name) == second.run(call_anew, first.name) == 3
        if away == "dead":
            for worker in (first, second):
                wait_until(lambda: "has not followed a change of the group's secret" in worker.output())
        else:
            if away:
                store.signal(signal.SIGCONT)
            come(newcomers[0], store, path)
            assert newcomers[0].run(call, first.name) == 3
            with pytest.raises(WorkerError, match="another group secret"):
                come(newcomers[1], store, left_behind)

        shutil.copy2(path, left_behind)
        for worker in group[:3]:
            worker.run(rpc.shutdown)

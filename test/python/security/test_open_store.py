"""The store that init_rpc makes: who can reach it, and whom init_rpc warns of that."""

import socket

import pytest
import torch.distributed.rpc as rpc
from group import Group, free_port, init
from network import Hosts

ADDRESS = Hosts.ADDRESSES[0][0]
SECRET = "a secret of thirty-two bytes or more, at least"
WARNING = "the group draws its secret, and keeps it in the rendezvous store at "

# ---- what the workers run ----


def init_and_end(*arguments, **options):
    init(*arguments, **options)
    rpc.shutdown()


# ---- who is warned ----


@pytest.mark.parametrize("world_size", [1, None], ids=["static", "dynamic"])
def test_init_rpc_warns_once_of_a_store_that_other_hosts_can_reach(hosts, world_size):
    with Group(1, prepare=hosts.entrances()[:1]) as group:
        for port in (29500, 29501):
            group.all(init_and_end, f"tcp://{ADDRESS}:{port}", world_size=world_size)
        output = group[0].output()
        assert output.count(WARNING) == output.count(f"{WARNING}{ADDRESS}:29500, which other hosts can reach: ") == 1
        assert "`python -m torchwire secret FILE` makes one" in output


@pytest.mark.parametrize(
    "host, options", [(ADDRESS, {"secret": SECRET}), ("127.0.0.1", {})], ids=["a secret of their own", "on loopback"]
)
def test_init_rpc_does_not_warn_where_nobody_else_learns_the_secret(hosts, host, options):
    with Group(1, prepare=hosts.entrances()[:1]) as group:
        for port, world_size in ((29500, 1), (29501, None)):
            group.all(init_and_end, f"tcp://{host}:{port}", world_size=world_size, **options)
        assert WARNING not in group[0].output()


# ---- who can reach it ----


@pytest.mark.parametrize("rpc_timeout", [60, 0], ids=["60 s", "no time-out"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_store_of_a_dynamic_group_on_loopback_listens_there_alone(host, rpc_timeout):
    port = free_port()
    with Group(2) as group:
        for worker in group:
            worker.run(init, f"tcp://{host}:{port}", rpc_timeout=rpc_timeout)
        socket.create_connection(("127.0.0.1", port), 5).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), 5)
        group.shut_down()

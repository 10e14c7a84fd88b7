"""Tensors between CUDA devices of two hosts: NCCL, which does not encrypt them, only where nothing is encrypted.

On the stand-in for CUDA's libraries and NCCL (cuda_stand_in.py), and hosts that differ by the ids of their boots.
"""

import contextlib
import os
import tempfile

import pytest
import torch.distributed.rpc as rpc
from cuda_bodies import on_cuda, peer
from cuda_stand_in import counts
from machine_faults import move_to_another_host
from test_cuda_paths import LARGE, echo, numbers, start, there
from test_nccl_lane import serve_worker1, try_paths

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

ELSEWHERE = "it runs on another host"
TO_BE_SET = "set encryption=False on all workers, or leave nccl out"


def serve_elsewhere(connection, path, encryption):
    move_to_another_host()
    serve_worker1(connection, path, True, [], {"encryption": encryption})


@contextlib.contextmanager
def two_hosts(encryption):
    """This process as worker0, and worker1 on another host."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        other = peer(serve_elsewhere, path, encryption)
        start(0, path, nccl=True, device_maps={"worker1": {0: 1}}, encryption=encryption)
        yield
        other.close()
        rpc.shutdown()


@on_cuda()
def test_nccl_is_refused_between_hosts_with_the_line_to_set():
    with two_hosts("auto"):
        path, reason = try_paths()
        assert path == "host" and reason.startswith(ELSEWHERE), reason
        assert reason.endswith(TO_BE_SET), reason
        echo(numbers(LARGE))
        assert (counts()["nccl_loads"], there(counts)["nccl_loads"]) == (0, 0)


@on_cuda()
def test_nccl_is_used_between_hosts_where_nothing_is_encrypted():
    with two_hosts(False):
        assert try_paths() == ("nccl", "bytes have come through it")

"""What torchwire tells of a worker reads as dicts and as objects, whose fields are what there is."""

import copy
import inspect
import json
import pickle

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from group import running
from torchwire.records import PeerInfo


def add(a, b):
    return a + b


def told(to):
    rref = rpc.remote(to, add, (torch.ones(2), 1))
    rref.to_here()
    with dist_autograd.context():
        rpc.rpc_sync(to, add, (torch.ones(2, requires_grad=True), 1))
        return torchwire.peers(), torchwire.rrefs(), torchwire.autograd_contexts()


def test_the_fields_are_what_there_is(tmp_path):
    with running(2, tmp_path) as group:
        lists = group[0].run(told, "worker1")
    kinds = (torchwire.PeerInfo, torchwire.RRefInfo, torchwire.AutogradContextInfo)
    for kind, [record] in zip(kinds, lists, strict=True):
        assert type(record) is kind
        assert list(record) == list(inspect.get_annotations(kind))
        assert all(getattr(record, name) is value for name, value in record.items())


def test_a_record_is_a_dict():
    record = PeerInfo(name="worker1", state="idle")
    assert json.loads(json.dumps(record)) == {"name": "worker1", "state": "idle"} == record
    for other in (pickle.loads(pickle.dumps(record)), copy.deepcopy(record)):
        assert type(other) is PeerInfo and other == record
    assert not hasattr(record, "rank")
    with pytest.raises(AttributeError, match="'PeerInfo' object has no attribute 'rank'"):
        record.rank  # noqa: B018

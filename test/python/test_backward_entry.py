"""Every way into a distributed backward pass leads to torchwire's engine on a TORCHWIRE group, and only there."""

import inspect
import pickle
import re
import threading

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in, running
from processes import run_script
from torch.distributed.autograd import backward as imported_by_name

# The stock agent takes its address from the host's name, which leads nowhere on some machines.
LOOPBACK = {"TP_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}

# ---- what the workers run ----


def passes_started():
    return int(rpc.api._get_current_rpc_agent().get_debug_info()["agent.backward_passes"])


@torch.jit.script
def backward_in_script(context_id: int, loss: torch.Tensor):
    dist_autograd.backward(context_id, [loss])


@torch.jit.script
def backward_by_name_in_script(context_id: int, loss: torch.Tensor):
    imported_by_name(context_id, [loss], retain_graph=False)


def by_module(context_id, loss):
    dist_autograd.backward(context_id, [loss])


def by_keywords(context_id, loss):
    dist_autograd.backward(contextId=context_id, roots=[loss], retain_graph=False)


def by_name(context_id, loss):
    imported_by_name(context_id, [loss])


def by_private_module(context_id, loss):
    torch._C._distributed_autograd.backward(context_id, [loss])


def by_rref(context_id, loss):
    rpc.RRef(loss).backward(context_id)


def by_rref_with_keywords(context_id, loss):
    rpc.RRef(loss).backward(dist_autograd_ctx_id=context_id, retain_graph=False)


def by_private_rref(context_id, loss):
    rpc.PyRRef.backward(rpc.RRef(loss), context_id)


def by_script(context_id, loss):
    backward_in_script(context_id, loss)


def by_name_in_script(context_id, loss):
    backward_by_name_in_script(context_id, loss)


WAYS = [
    by_module,
    by_keywords,
    by_name,
    by_private_module,
    by_rref,
    by_rref_with_keywords,
    by_private_rref,
    by_script,
    by_name_in_script,
]


def gradients_by(way, to):
    """Runs a pass that began `way` over a call to `to`; returns the gradients of its two leaves."""
    a, b = (torch.tensor([2.0, 3.0], requires_grad=True), torch.tensor([5.0, 7.0], requires_grad=True))
    with dist_autograd.context() as context_id:
        way(context_id, rpc.rpc_sync(to, torch.mul, (a, b)).sum())
        gradients = dist_autograd.get_gradients(context_id)
        assert a.grad is None and b.grad is None
        return gradients[a].tolist(), gradients[b].tolist()


def counted(function, *arguments):
    """The function's result, and how many passes it has started here."""
    before = passes_started()
    return function(*arguments), passes_started() - before


RIGHT = ([5.0, 7.0], [2.0, 3.0])


@pytest.mark.parametrize("way", WAYS)
def test_every_way_leads_to_our_engine(pair, way):
    assert pair[0].run(counted, gradients_by, way, "worker1") == (RIGHT, 1)


# ---- RRef.backward on a user ----


_leaf = None


def squares():
    global _leaf
    _leaf = torch.tensor([2.0, 3.0], requires_grad=True)
    return (_leaf * _leaf).sum()


def gradient_of_leaf(context_id):
    return dist_autograd.get_gradients(context_id)[_leaf].tolist()


def gradient_by_user():
    with dist_autograd.context() as context_id:
        loss = rpc.remote("worker1", squares)
        loss.backward(context_id)
        return rpc.rpc_sync("worker1", gradient_of_leaf, (context_id,))


def test_the_backward_of_a_user_starts_at_the_owner(pair):
    before = pair[1].run(passes_started)
    assert pair[0].run(counted, gradient_by_user) == ([4.0, 6.0], 0)
    assert pair[1].run(passes_started) == before + 1


_to_come = None
_passes = []


@rpc.functions.async_execution
def squares_to_come():
    global _to_come
    _to_come = torch.futures.Future()
    return _to_come


def let_them_come():
    _to_come.set_result(squares())


def begin_backward_of_value_to_come():
    loss = rpc.remote("worker1", squares_to_come)
    context = dist_autograd.context()
    context_id = context.__enter__()
    _passes.append(threading.Thread(target=loss.backward, args=(context_id,)))
    _passes[0].start()
    return context_id


def gradient_of_value_that_came(context_id):
    _passes.pop().join()
    gradient = rpc.rpc_sync("worker1", gradient_of_leaf, (context_id,))
    dist_autograd._release_context(context_id)
    return gradient


def test_the_owner_waits_for_the_value_without_a_thread(tmp_path):
    with running(2, tmp_path, num_worker_threads=1) as (user, _):
        context_id = user.run(begin_backward_of_value_to_come)
        user.run(rpc.rpc_sync, "worker1", let_them_come)
        assert user.run(gradient_of_value_that_came, context_id) == [4.0, 6.0]


def gradient_without_context():
    a = torch.tensor([2.0, 3.0], requires_grad=True)
    rpc.RRef((a * a).sum()).backward()
    return a.grad.tolist()


def test_without_a_context_it_is_an_ordinary_backward(pair):
    assert pair[0].run(counted, gradient_without_context) == ([4.0, 6.0], 0)


def gradients_of_two_passes(way):
    a = torch.tensor([2.0, 3.0], requires_grad=True)
    with dist_autograd.context() as context_id:
        loss = (rpc.rpc_sync("worker1", torch.mul, (a, a))).sum()
        way(context_id, loss, True)
        way(context_id, loss, False)
        return dist_autograd.get_gradients(context_id)[a].tolist()


def pass_of_list(context_id, loss, retain_graph):
    dist_autograd.backward(context_id, [loss], retain_graph)


def pass_of_rref(context_id, loss, retain_graph):
    rpc.RRef(loss).backward(context_id, retain_graph)


@pytest.mark.parametrize("way", [pass_of_list, pass_of_rref])
def test_the_graph_can_be_retained_for_a_second_pass(pair, way):
    assert pair[0].run(counted, gradients_of_two_passes, way) == ([8.0, 12.0], 2)


# ---- what is refused ----


def sentence_of(function):
    try:
        function()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("it did not fail")


def backward_without_context_as_user():
    return sentence_of(rpc.remote("worker1", squares).backward)


def test_a_user_has_to_name_the_context(pair):
    assert "User RRefs require 'dist_autograd_ctx_id' to be specified" in pair[0].run(backward_without_context_as_user)


def backward_of_text():
    with dist_autograd.context() as context_id:
        own, others = rpc.RRef("text"), rpc.remote("worker1", str, ("text",))
        return [sentence_of(lambda: one.backward(context_id)) for one in (own, others)]


def test_an_rref_without_a_tensor_is_refused(pair):
    for text in pair[0].run(backward_of_text):
        assert "RRef should contain a tensor for .backward()" in text


def backward_in_unknown_context():
    loss = torch.ones(1, requires_grad=True).sum()
    return [
        sentence_of(lambda: function(12345, loss)) for function in (by_module, by_private_module, by_rref, by_script)
    ]


def test_an_unknown_context_is_refused(pair):
    for text in pair[0].run(backward_in_unknown_context):
        assert "Could not find autograd context with id: 12345" in text


def wrong_arguments():
    for arguments in ((), (1,), ("1", []), (1, [1])):
        with pytest.raises(TypeError):
            dist_autograd.backward(*arguments)


def test_wrong_arguments_are_type_errors(pair):
    pair[0].run(wrong_arguments)


# ---- the functions themselves ----


def test_the_replacements_look_like_the_originals():
    for function in (dist_autograd.backward, rpc.PyRRef.backward):
        assert function.__name__ == "backward"
        assert "backward pass" in function.__doc__
    assert str(inspect.signature(dist_autograd.backward, follow_wrapped=False)).startswith(
        "(contextId: 'int', roots: 'list[Any]', retain_graph: 'bool' = False)"
    )
    assert re.search(r"ctx_id.*=.* -1.*retain_graph.*=.*False", rpc.PyRRef.backward.__doc__.split("\n")[0])


def test_the_replacement_travels_by_name():
    assert pickle.loads(pickle.dumps(dist_autograd.backward)) is dist_autograd.backward


def test_a_second_installation_changes_nothing():
    before = dist_autograd.backward
    torchwire.distributed_autograd.install()
    assert dist_autograd.backward is before


# ---- other backends in the same process ----

_agents = []


def gradients_on(backend, init_method, rank):
    """One life of a group on this backend, with a pass in every way; returns how often our engine was used."""
    options = (
        torchwire.TorchwireRpcBackendOptions(init_method=init_method)
        if backend == "TORCHWIRE"
        else rpc.TensorPipeRpcBackendOptions(init_method=init_method, _transports=["uv"])
    )
    rpc.init_rpc(
        f"worker{rank}",
        backend=rpc.BackendType[backend],
        rank=rank,
        world_size=2,
        rpc_backend_options=options,
    )
    if backend == "TORCHWIRE":
        _agents.append(rpc.api._get_current_rpc_agent())
    results = [gradients_by(way, f"worker{1 - rank}") for way in WAYS]
    rpc.shutdown()
    assert results == [RIGHT] * len(WAYS)
    # Agents that have ended still know how many they have started.
    return sum(int(agent.get_debug_info()["agent.backward_passes"]) for agent in _agents)


def test_other_backends_keep_their_engine_before_and_after(tmp_path):
    with Group(2, LOOPBACK) as group:
        used = []
        for turn, backend in enumerate(["TENSORPIPE", "TORCHWIRE", "TENSORPIPE", "TORCHWIRE"]):
            folder = tmp_path / str(turn)
            folder.mkdir()
            pending = [worker.start(gradients_on, backend, file_in(folder), rank) for rank, worker in enumerate(group)]
            used.append([one.result() for one in pending])
        ways = len(WAYS)
        assert used == [[0, 0], [ways, ways], [ways, ways], [2 * ways, 2 * ways]]


# ---- scripts, and when they were compiled ----

SCRIPT = """
import sys
import torch, torch.distributed.rpc as rpc, torch.distributed.autograd as dist_autograd
from torch.distributed.autograd import backward

def run_backward(context_id: int, loss: torch.Tensor):
    backward(context_id, [loss])

{before}
import torchwire
{after}

options = torchwire.TorchwireRpcBackendOptions(init_method="file://" + sys.argv[1])
rpc.init_rpc("w", backend=rpc.BackendType.TORCHWIRE, rank=0, world_size=1, rpc_backend_options=options)
a = torch.tensor([2.0, 3.0], requires_grad=True)
with dist_autograd.context() as context_id:
    compiled(context_id, rpc.rpc_sync("w", torch.mul, (a, a)).sum())
    assert dist_autograd.get_gradients(context_id)[a].tolist() == [4.0, 6.0]
print(rpc._get_current_rpc_agent().get_debug_info()["agent.backward_passes"])
rpc.shutdown()
"""
COMPILE = "compiled = torch.jit.script(run_backward)"


@pytest.mark.parametrize(
    "before, after",
    [
        pytest.param(COMPILE, "", id="compiled before the import"),
        pytest.param("", COMPILE, id="the first to be compiled, after the import"),
        pytest.param("import torch.jit._builtins as b; b._get_builtin_table()", COMPILE, id="compiled after others"),
    ],
)
def test_a_script_that_knows_the_original_leads_to_our_engine(tmp_path, before, after):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(before=before, after=after))
    process = run_script(path, tmp_path / "store")
    assert process.stdout == "1\n", process.stderr
    assert process.returncode == 0, process.stderr

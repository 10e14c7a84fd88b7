"""Distributed autograd, optimizers, remote modules and the profiler run; PyTorch's own suites test them in depth."""

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from processes import WorkerError
from torch.distributed.nn import RemoteModule
from torch.distributed.optim import DistributedOptimizer

# ---- what worker0 runs, with worker1 ----


def gradients_through_a_call():
    a, b = torch.full((2,), 3.0, requires_grad=True), torch.full((2,), 4.0, requires_grad=True)
    with dist_autograd.context() as context:
        product = rpc.rpc_sync("worker1", torch.mul, (a, b))
        dist_autograd.backward(context, [product.sum()])
        gradients = dist_autograd.get_gradients(context)
        return gradients[a].tolist(), gradients[b].tolist()


def back_and_forth(tensor, depth):
    if depth == 0:
        return tensor * 2
    to = "worker0" if rpc.get_worker_info().name == "worker1" else "worker1"
    return rpc.rpc_sync(to, back_and_forth, (tensor * 2, depth - 1))


def gradients_through_nested_calls(depth):
    a = torch.ones(3, requires_grad=True)
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [back_and_forth(a, depth).sum()])
        return dist_autograd.get_gradients(context)[a].tolist()


def fail_in_backward():
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor):
            return tensor.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("no gradient today")

    a = torch.ones(1, requires_grad=True)
    with dist_autograd.context() as context:
        result = rpc.rpc_sync("worker1", torch.mul, (Failing.apply(a), 2))
        dist_autograd.backward(context, [result.sum()])


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, features):
        return self.layer(features)

    def parameter_rrefs(self):
        return [rpc.RRef(parameter) for parameter in self.parameters()]


def losses_of_training(steps):
    """Trains a model that lives on worker1, from worker0."""
    model = rpc.remote("worker1", Linear)
    optimizer = DistributedOptimizer(torch.optim.SGD, model.rpc_sync().parameter_rrefs(), lr=0.1)
    features = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    targets = features.sum(1, keepdim=True)
    losses = []
    for _ in range(steps):
        with dist_autograd.context() as context:
            loss = torch.nn.functional.mse_loss(model.rpc_sync().forward(features), targets)
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
            losses.append(loss.item())
    return losses


def local_losses_of_training(steps):
    model = Linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    features = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    targets = features.sum(1, keepdim=True)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(features), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def use_remote_module():
    module = RemoteModule("worker1/cpu", torch.nn.Linear, args=(3, 2))
    features = torch.ones(5, 3)
    asynchronous = module.forward_async(features).wait()
    weight, bias = (rref.to_here() for rref in module.remote_parameters())
    expected = torch.nn.functional.linear(features, weight, bias)
    return torch.equal(module.forward(features), expected) and torch.equal(asynchronous, expected)


def profiled_names():
    with torch.autograd.profiler_legacy.profile() as profile:  # the one that knows of RPC
        rpc.rpc_sync("worker1", torch.add, (torch.ones(1), 1))
    return [event.name for event in profile.function_events]


class Counter:
    def __init__(self):
        self.count = 0

    def add(self, number):
        self.count += number
        return self.count


def add_through(rref, number):
    return rref.rpc_sync().add(number)


def use_rrefs():
    counter = rpc.remote("worker1", Counter)
    sums = [
        counter.rpc_sync().add(1),
        counter.rpc_async().add(2).wait(),
        counter.remote().add(3).to_here(),
        rpc.rpc_sync("worker1", add_through, (counter, 4)),  # where the object lives
        rpc.rpc_sync("worker0", add_through, (counter, 5)),
    ]
    mine = rpc.RRef(Counter())
    rpc.rpc_sync("worker1", add_through, (mine, 6))  # a reference to something here
    return sums, mine.local_value().count, counter.owner_name(), mine.is_owner()


# ---- the tests ----


def test_gradients_flow_through_a_call(pair):
    assert pair[0].run(gradients_through_a_call) == ([4, 4], [3, 3])


def test_gradients_flow_through_nested_calls(pair):
    assert pair[0].run(gradients_through_nested_calls, 4) == [2.0**5] * 3


def test_an_error_in_backward_reaches_its_root(pair):
    with pytest.raises(WorkerError, match="no gradient today"):
        pair[0].run(fail_in_backward)
    assert pair[0].run(gradients_through_a_call) == ([4, 4], [3, 3])


def test_a_distributed_optimizer_trains_as_a_local_one(pair):
    losses = pair[0].run(losses_of_training, 10)
    assert losses == pytest.approx(local_losses_of_training(10))
    assert losses[-1] < losses[0] / 2


def test_a_remote_module_computes_where_it_lives(pair):
    assert pair[0].run(use_remote_module)


def test_the_profiler_shows_the_call_and_what_ran_remotely(pair):
    names = pair[0].run(profiled_names)
    assert "rpc_sync#aten::add(worker0 -> worker1)" in names
    assert "rpc_sync#aten::add(worker0 -> worker1)#remote_op: aten::add" in names


def test_remote_references_are_used_by_all(pair):
    assert pair[0].run(use_rrefs) == ([1, 3, 6, 10, 15], 6, "worker1", True)

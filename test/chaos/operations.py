"""The operations of the load: each makes calls and checks all that comes back.

An operation is a function of a Caller. It raises WrongResult if something is not as it has to be, and lets errors of
RPC pass.
"""

import os
import subprocess
from collections.abc import Callable
from typing import NamedTuple

import services
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from caller import Caller


class WrongResult(Exception):
    """Wrong data, or none where some was due: never right, whatever fault there was."""


class Operation(NamedTuple):
    name: str
    function: Callable[[Caller], None]
    waits: int  # how many time-outs it can run into, one after the other
    rrefs: bool  # whether it makes RRefs
    defect: bool  # see defects.py


ALL: dict[str, Operation] = {}


def operation(waits, rrefs=False, defect=False):
    def enter(function):
        ALL[function.__name__] = Operation(function.__name__, function, waits, rrefs, defect)
        return function

    return enter


def expect(got, wanted, what):
    if got != wanted:
        raise WrongResult(f"{what}: {got!r}, and not {wanted!r}")


def expect_tensor(got, wanted, what):
    if got.dtype != wanted.dtype or not torch.equal(got, wanted):
        raise WrongResult(f"{what}: a tensor of {describe(got)}, and not of {describe(wanted)}")


def describe(tensor):
    return f"{tuple(tensor.shape)} {tensor.dtype} with checksum {services.checksum(tensor):#x}"


# ---- calls ----


@operation(waits=1)
def echo(caller):
    sent = services.piece(*caller.piece())
    arrived, back = caller.call(caller.anyone(), services.echo, sent)
    expect(arrived, services.checksum(sent), "what arrived")
    expect_tensor(back, sent, "what came back")


@operation(waits=1)
def fan_out(caller):
    """Calls of a builtin and of a function, all under way at the same time."""
    sent = [torch.full((caller.random.choice((1, 1000, 100_000)),), float(number)) for number in range(4)]
    sums = [caller.begin(caller.anyone(), torch.add, tensor, 1) for tensor in sent]
    echoes = [caller.begin(caller.anyone(), services.echo, tensor) for tensor in sent]
    added, echoed = torch.futures.wait_all(sums), torch.futures.wait_all(echoes)
    for tensor, more, (arrived, back) in zip(sent, added, echoed):
        expect_tensor(more, tensor + 1, "a sum")
        expect(arrived, services.checksum(tensor), "what arrived")
        expect_tensor(back, tensor, "what came back")


@operation(waits=1)
def nested_calls(caller):
    route, sent = caller.route(4), services.piece(*caller.piece())
    names, back = caller.call(route[0], services.visit, route[1:], sent, caller.timeout)
    expect(names, route, "the route")
    expect_tensor(back, sent, "what came back")


@operation(waits=1)
def async_chain(caller):
    route, sent = caller.walk(5), torch.arange(float(caller.random.randint(1, 5000)))
    back = caller.call(route[0], services.relay, route[1:], sent, caller.timeout)
    expect_tensor(back, sent + 2 * len(route) - 1, "what came back")


@operation(waits=1)
def exceptions(caller):
    text = f"as asked by {caller.random.random()}"
    route = caller.route(3)
    attempt = caller.random.choice(
        (
            lambda: caller.call(route[0], services.fail_after, route[1:], text, caller.timeout),
            lambda: caller.begin(route[0], services.fail, text).wait(),
        )
    )
    expect_error(attempt, text)


def expect_error(attempt, text):
    try:
        value = attempt()
    except ValueError as error:
        expect(text in str(error), True, f"the error {error}")
    else:
        raise WrongResult(f"it returned {value!r}, where an error was due")


# ---- RRefs ----


@operation(waits=1, rrefs=True)
def failing_creation(caller):
    text = f"as asked by {caller.random.random()}"
    rref = caller.remote(caller.anyone(), services.fail, text)
    expect_error(lambda: rref.to_here(caller.timeout), text)


@operation(waits=1, rrefs=True)
def remote_value(caller):
    piece = caller.piece()
    rref = caller.remote(caller.anyone(), services.piece, *piece)
    expect_tensor(rref.to_here(caller.timeout), services.piece(*piece), "the value")


@operation(waits=2, rrefs=True)
def rref_among_three(caller):
    """The value is on the last of a route, along which the RRef goes; and someone else keeps it."""
    *route, owner = caller.route(4)
    piece = caller.piece()
    rref = caller.remote(owner, services.piece, *piece)
    holders = route or [owner]
    fetched = caller.call(holders[0], services.fetch_after, holders[1:], rref, caller.timeout)
    expect(fetched, services.checksum(services.piece(*piece)), "the value's checksum")
    caller.call(caller.anyone(), services.keep, rref)


@operation(waits=3, rrefs=True)
def own_rref(caller):
    """Others fetch and keep a value of this worker's, and drop what they have kept."""
    value = services.piece(*caller.small_piece())
    rref = rpc.RRef(value)
    caller.call(caller.anyone(), services.keep, rref)
    fetched = caller.call(caller.anyone(), services.fetch_after, [], rref, caller.timeout)
    expect(fetched, services.checksum(value), "the value's checksum")
    if caller.random.random() < 0.1:
        caller.call(caller.anyone(), services.let_go)


@operation(waits=1, rrefs=True)
def rrefs_in_bulk(caller):
    """RRefs that are made, passed, and dropped before anybody can have confirmed them."""
    pieces = [caller.small_piece() for _ in range(5)]
    rrefs = [caller.remote(caller.anyone(), services.piece, *piece) for piece in pieces]
    kept = [caller.begin(caller.anyone(), services.keep, rref) for rref in rrefs]
    del rrefs
    torch.futures.wait_all(kept)


@operation(waits=4, rrefs=True)
def class_proxy(caller):
    """Methods of an object elsewhere. The first use of such a proxy asks for the object's type."""
    begin, size = caller.small_piece()
    box = caller.remote(caller.anyone(), services.Box, begin, size)
    whole = services.piece(begin, size)
    expect(box.rpc_sync(caller.timeout).checksum(), services.checksum(whole), "the checksum")
    middle = size // 2
    parts = box.rpc_async(caller.timeout).part(0, middle), box.remote(caller.timeout).part(middle, size)
    expect_tensor(parts[0].wait(), whole[:middle], "the first half")
    expect_tensor(parts[1].to_here(caller.timeout), whole[middle:], "the second half")


# ---- processes ----


@operation(waits=1)
def forked_child(caller):
    """A child that is forked amid the calls of other threads: it is refused what is its parent's, and ends."""
    value = torch.ones(1)  # before: another thread may use the operator for the first time, which holds a lock
    child = os.fork()
    if child == 0:
        os._exit(0 if _is_refused(caller, value) else 1)
    expect(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0, "the child's exit status")


def _is_refused(caller, value):
    try:
        caller.call(caller.anyone(), services.echo, value)
    except RuntimeError as error:
        return "this process was forked from worker" in str(error)
    return False


@operation(waits=0)
def other_program(caller):
    expect(subprocess.run(["/bin/true"]).returncode, 0, "the program's exit status")


# ---- distributed autograd ----


@operation(waits=2)
def gradients(caller):
    """A backward pass over 1 to 3 hops."""
    with dist_autograd.context() as context:
        leaf, route = leaf_of(caller), caller.route(3)
        check_gradient(context, leaf, [doubled(caller, route, leaf)], 2.0 ** len(route))


@operation(waits=4)
def gradients_of_two(caller):
    """Two ways from the roots to the leaf, and a result that the roots do not use."""
    with dist_autograd.context() as context:
        leaf, routes = leaf_of(caller), [caller.route(2), caller.route(2)]
        results = [doubled(caller, route, leaf) for route in routes]
        doubled(caller, [caller.anyone()], leaf)
        check_gradient(context, leaf, results, sum(2.0 ** len(route) for route in routes))


def leaf_of(caller):
    return torch.ones(caller.random.choice((1, 1000, 100_000)), requires_grad=True)


def doubled(caller, route, tensor):
    result = caller.call(route[0], services.double, route[1:], tensor, caller.timeout)
    expect_tensor(result.detach(), tensor.detach() * 2 ** len(route), "the result")
    return result


def check_gradient(context, leaf, results, factor):
    dist_autograd.backward(context, [result.sum() for result in results])
    expect_tensor(dist_autograd.get_gradients(context)[leaf], torch.full_like(leaf, factor), "the gradient")


def chosen(settings):
    """The operations of a run."""
    names = settings.operations
    unknown = set(names) - set(ALL)
    if unknown:
        raise ValueError(f"no operation is called {', '.join(sorted(unknown))}; there are {', '.join(usual())}")
    if names:
        return [ALL[name] for name in names]
    # PyTorch's RRefs stay with the first agent of their process: those of a second group fail, on any backend.
    return [ALL[name] for name in usual() if not (settings.reuse and ALL[name].rrefs)]


def usual():
    return [name for name, operation in ALL.items() if not operation.defect]

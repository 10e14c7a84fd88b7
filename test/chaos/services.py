"""What the workers of a load call on each other.

All of it may run twice or late without harm, because a fault plan may have that happen.
"""

import collections
import zlib

import torch
import torch.distributed.rpc as rpc

MIB = 1 << 20

# The same in every process, so that whoever knows where a piece begins knows what has to be in it.
_bytes = torch.randint(0, 256, (2 * MIB,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def piece(begin, size):
    """A tensor of `size` bytes, which repeat themselves after 1 MiB. `begin` is below 1 MiB."""
    if size <= MIB:
        return _bytes[begin : begin + size].clone()
    return _bytes[begin : begin + MIB].repeat(-(-size // MIB))[:size]


def checksum(tensor):
    return zlib.crc32(tensor.contiguous().view(torch.uint8).numpy())


def echo(tensor):
    """The tensor, and the checksum of what has arrived."""
    return checksum(tensor), tensor


def fail(text):
    raise ValueError(text)


# ---- functions that call on ----


def visit(route, tensor, timeout):
    """Goes along the route and back; returns the names of those visited, and the tensor."""
    me = rpc.get_worker_info().name
    if not route:
        return [me], tensor
    names, tensor = rpc.rpc_sync(route[0], visit, (route[1:], tensor, timeout), timeout=timeout)
    return [me, *names], tensor


def fail_after(route, text, timeout):
    """Raises at the end of the route."""
    if not route:
        fail(text)
    return rpc.rpc_sync(route[0], fail_after, (route[1:], text, timeout), timeout=timeout)


@rpc.functions.async_execution
def relay(route, tensor, timeout):
    """As visit(), but no thread waits meanwhile. Each adds 1 on the way there, and all but the last on the way back."""
    tensor = tensor + 1
    if not route:
        end = torch.futures.Future()
        end.set_result(tensor)
        return end
    call = rpc.rpc_async(route[0], relay, (route[1:], tensor, timeout), timeout=timeout)
    return call.then(lambda answered: answered.wait() + 1)


def double(route, tensor, timeout):
    """Doubles on each worker of the route, differentiably."""
    tensor = tensor * 2
    return rpc.rpc_sync(route[0], double, (route[1:], tensor, timeout), timeout=timeout) if route else tensor


# ---- RRefs ----

_kept = collections.deque(maxlen=20)


def keep(rref):
    """Has the RRef live on here, until twenty others have come."""
    _kept.append(rref)


def let_go():
    _kept.clear()


def fetch_after(route, rref, timeout):
    """Hands the RRef on along the route; the last one fetches the value, and returns its checksum."""
    if not route:
        return checksum(rref.to_here(timeout))
    return rpc.rpc_sync(route[0], fetch_after, (route[1:], rref, timeout), timeout=timeout)


class Box:
    """An object with methods, for its owner's callers."""

    def __init__(self, begin, size):
        self._tensor = piece(begin, size)

    def checksum(self):
        return checksum(self._tensor)

    def part(self, begin, end):
        return self._tensor[begin:end]

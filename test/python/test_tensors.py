"""Every tensor that PyTorch can send arrives as it was, and what cannot be sent is refused in words."""

import gc

import numpy
import pytest
import tensor_cases
import torch
import torch.distributed.rpc as rpc
from processes import WorkerError
from tensor_cases import LARGE, arrived, digest

# ---- what the workers run ----


def make(name):
    torch.manual_seed(0)
    return tensor_cases.CASES[name]()


def send(to, name):
    """The digests of a tensor before it is sent and after."""
    tensor = make(name)
    return digest(tensor), rpc.rpc_sync(to, digest, (tensor,))


def fetch(to, name):
    """The digests of a tensor before it is returned and after."""
    return digest(make(name)), digest(rpc.rpc_sync(to, make, (name,)))


@pytest.mark.parametrize("to", ["worker1", "worker0"])
class TestATensorArrivesAsItWas:
    @pytest.mark.parametrize("name", tensor_cases.CASES)
    def test_as_an_argument(self, pair, to, name):
        assert arrived(*pair[0].run(send, to, name))

    @pytest.mark.parametrize("name", tensor_cases.CASES)
    def test_as_a_result(self, pair, to, name):
        assert arrived(*pair[0].run(fetch, to, name))


# ---- several at once ----


def echo(value):
    return value


def digests(tensors):
    return list(map(digest, tensors))


def send_all_cases_at_once():
    tensors = list(map(make, tensor_cases.CASES))
    there = rpc.rpc_sync("worker1", digests, (tensors,))
    return [name for name, *both in zip(tensor_cases.CASES, digests(tensors), there) if not arrived(*both)]


def send_many(count):
    """Sends small and large tensors mixed, nested in Python containers."""
    sizes = [(i * 7919) % 50_000 for i in range(count)]
    value = {i: [torch.full((size,), float(i)), (i, torch.tensor(size))] for i, size in enumerate(sizes)}
    returned = rpc.rpc_sync("worker1", echo, (value,))
    return all(
        torch.equal(returned[i][0], value[i][0]) and returned[i][1][1].item() == size for i, size in enumerate(sizes)
    )


def send_through_builtin():
    sparse, dense = tensor_cases.coo(), torch.randn(6, 6)
    result = rpc.rpc_sync("worker1", torch.add, (dense, sparse))
    return torch.equal(result, dense + sparse)


def test_all_kinds_of_tensors_travel_in_one_message(pair):
    assert pair[0].run(send_all_cases_at_once) == []


def test_hundreds_of_tensors_travel_in_one_message(pair):
    assert pair[0].run(send_many, 300)


def test_tensors_of_different_layouts_are_arguments_of_one_operator(pair):
    assert pair[0].run(send_through_builtin)


# ---- what the receiver may do with them ----


def change_in_place(tensor):
    count = tensor.numel()
    tensor.add_(1)
    tensor.resize_(2 * count)
    tensor[count:] = 5
    tensor.unsqueeze_(0).t_()
    tensor.requires_grad_()
    return tensor


def resize_storage(tensor):
    tensor.untyped_storage().resize_(8 * tensor.numel())
    return tensor.untyped_storage().nbytes()


def grow(size):
    returned = rpc.rpc_sync("worker1", change_in_place, (torch.zeros(size),))
    assert returned.shape == (2 * size, 1) and returned.requires_grad
    assert returned.sum().item() == size + 5 * size
    mine = rpc.rpc_sync("worker1", echo, (torch.zeros(size),))
    return change_in_place(mine).sum().item(), rpc.rpc_sync("worker1", resize_storage, (torch.zeros(size),))


def alignment(tensor):
    return tensor.data_ptr() % 64


def alignments():
    tensors = [torch.zeros(3), torch.zeros(7, dtype=torch.bool), torch.zeros(LARGE)]
    return [rpc.rpc_sync("worker1", alignment, (tensor,)) for tensor in tensors]


# The memory of a small tensor comes from PyTorch's allocator, that of a large one from torchwire's.
@pytest.mark.parametrize("size", [10, LARGE])
def test_a_received_tensor_can_be_changed_and_resized_in_place(pair, size):
    assert pair[0].run(grow, size) == (6 * size, 8 * size)


def test_received_memory_is_aligned_for_vector_instructions(pair):
    assert pair[0].run(alignments) == [0, 0, 0]


# ---- memory that PyTorch does not own ----


def send_numpy_memory_and_free_it(count):
    futures = []
    for i in range(count):
        array = numpy.full(LARGE, i, dtype=numpy.float32)
        futures.append(rpc.rpc_async("worker1", torch.sum, (torch.from_numpy(array),)))
        del array
    gc.collect()
    return [future.wait().item() for future in futures]


def answer_with_numpy_memory(value):
    return torch.from_numpy(numpy.full(LARGE, value, dtype=numpy.int64))


def receive_numpy_memory(count):
    futures = [rpc.rpc_async("worker1", answer_with_numpy_memory, (i,)) for i in range(count)]
    return [future.wait().unique().tolist() for future in futures]


def test_memory_of_numpy_outlives_the_array_until_it_is_sent(pair):
    assert pair[0].run(send_numpy_memory_and_free_it, 20) == [i * LARGE for i in range(20)]
    assert pair[0].run(receive_numpy_memory, 20) == [[i] for i in range(20)]


# ---- what cannot be sent ----


def strided_nested():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def meta():
    return torch.empty(3, 4, device="meta")


def mkldnn():
    return torch.ones(3, 4).to_mkldnn()


def send_what(make_it):
    return rpc.rpc_sync("worker1", echo, (make_it(),))


def return_what(make_it):
    return rpc.rpc_sync("worker1", make_it)


def check_that_calls_work():
    assert rpc.rpc_sync("worker1", torch.add, (torch.ones(2), 1)).tolist() == [2, 2]


NO_NESTED = r"cannot send a nested tensor over RPC: send its components, which unbind\(\) gives"
NO_META = "(?s)device mapping is not available.*A device map cannot help"
NO_MKLDNN = r"shape \[3, 4\], layout Mkldnn.*convert it with \.to_dense\(\)"

UNSENDABLE = [
    (send_what, strided_nested, NO_NESTED),
    (send_what, meta, NO_META),
    (send_what, mkldnn, NO_MKLDNN),
    (return_what, strided_nested, NO_NESTED),
    (return_what, meta, NO_META),
    (return_what, mkldnn, NO_MKLDNN),
]


@pytest.mark.parametrize("direction, make_it, sentence", UNSENDABLE)
def test_a_tensor_that_cannot_be_sent_is_refused_in_words(pair, direction, make_it, sentence):
    with pytest.raises(WorkerError, match=sentence):
        pair[0].run(direction, make_it)
    pair[0].run(check_that_calls_work)

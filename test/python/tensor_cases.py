"""The tensors that the tests send, by name, and how two are compared."""

import numpy
import torch

LARGE = 300_000  # bytes: beyond what travels inside a frame


def _all_dtypes():
    return sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)


QUANTIZED_DTYPES = (torch.qint8, torch.quint8, torch.qint32)
# PyTorch makes no tensors of these by itself: they belong to a quantization scheme that it has given up.
_UNUSABLE_DTYPES = (torch.quint4x2, torch.quint2x4)
PLAIN_DTYPES = [d for d in _all_dtypes() if d not in QUANTIZED_DTYPES + _UNUSABLE_DTYPES]


def plain(dtype, count):
    """A tensor of `count` elements with all kinds of bits, NaNs among them."""
    generator = torch.Generator().manual_seed(count)
    if dtype is torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).to(torch.bool)
    bits = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    return bits.view(dtype)


def per_tensor(dtype, *sizes):
    return torch.quantize_per_tensor(torch.randn(*sizes), 0.1, 3 if dtype is not torch.qint32 else 0, dtype)


def per_channel(axis, *sizes):
    scales, zero_points = torch.rand(sizes[axis]) + 0.1, torch.arange(sizes[axis]) % 100
    return torch.quantize_per_channel(torch.randn(*sizes), scales, zero_points, axis, torch.qint8)


def coo(coalesced=True, dense=(), count=6, **kwargs):
    indices = torch.stack([torch.arange(count) // 2, torch.arange(count) // 2])  # every place twice
    values = torch.randn(count, *dense)
    result = torch.sparse_coo_tensor(indices, values, (count, count, *dense), **kwargs)
    return result.coalesce() if coalesced else result


def blocks():
    return torch.eye(8) + torch.eye(8).roll(2)


def neg_view():
    result = torch.randn(5, dtype=torch.complex64).conj().imag
    assert result.is_neg()
    return result


def channels_last(*sizes):
    return torch.randn(*sizes).to(memory_format=torch.channels_last)


def overlapping():
    return torch.arange(11.0).as_strided((4, 4), (2, 1), 1)


SPARSE = {
    "coo coalesced": coo,
    "coo not coalesced": lambda: coo(coalesced=False),
    "coo hybrid": lambda: coo(dense=(3, 2)),
    "coo empty": lambda: torch.sparse_coo_tensor(size=(3, 4)),
    "coo of no dimensions": lambda: torch.sparse_coo_tensor(torch.zeros(0, 2).long(), torch.ones(2), ()),
    "coo large": lambda: coo(count=50_000),
    "coo large hybrid": lambda: coo(coalesced=False, dense=(100,), count=2000),
    "coo that requires grad": lambda: coo(coalesced=False, requires_grad=True),
    "csr": lambda: blocks().to_sparse_csr(),
    "csr of 32-bit indices": lambda: torch.sparse_csr_tensor(
        torch.tensor([0, 1, 2]).int(), torch.tensor([1, 0]).int(), torch.ones(2), (2, 2)
    ),
    "csr batched": lambda: torch.stack([blocks(), blocks() * 2]).to_sparse_csr(),
    "csr hybrid": lambda: torch.randn(3, 3, 4).to_sparse_csr(dense_dim=1),
    "csr large": lambda: torch.randn(300, 300).to_sparse_csr(),
    "csc": lambda: blocks().to_sparse_csc(),
    "bsr": lambda: blocks().to_sparse_bsr((2, 2)),
    "bsc": lambda: blocks().to_sparse_bsc((2, 4)),
}

STRIDED = {
    "no dimensions": lambda: torch.tensor(3.5),
    "no dimensions, out of many": lambda: torch.randn(LARGE)[7],
    "empty": lambda: torch.empty(0),
    "empty of three dimensions": lambda: torch.empty(3, 0, 5),
    "empty at the end of a storage": lambda: torch.randn(10)[10:],
    "empty with odd strides": lambda: torch.empty_strided((0, 7), (1, 100)),
    "transposed": lambda: torch.randn(7, 5).t(),
    "transposed, large": lambda: torch.randn(700, 500).t(),
    "permuted": lambda: torch.randn(2, 3, 4, 5).permute(3, 0, 2, 1),
    "channels last": lambda: channels_last(2, 3, 4, 5),
    "channels last, large": lambda: channels_last(8, 3, 64, 64),
    "every second": lambda: torch.randn(20)[::2],
    "every second column, large": lambda: torch.randn(500, 500)[:, ::2],
    "one column of many": lambda: torch.randn(100, 1000)[:, 17],
    "the middle": lambda: torch.randn(100)[40:60],
    "the middle, large": lambda: torch.randn(LARGE)[1000:-1000],
    "expanded": lambda: torch.randn(3, 1).expand(3, 1000),
    "expanded from one": lambda: torch.randn(1).expand(1000, 1000),
    "overlapping": overlapping,
    "diagonal": lambda: torch.randn(50, 50).diagonal(),
    "flipped": lambda: torch.randn(5, 5).flip(0),
    "complex conjugate": lambda: torch.randn(5, dtype=torch.complex64).conj(),
    "complex conjugate, transposed and large": lambda: torch.randn(300, 200, dtype=torch.complex64).mH,
    "negative view": neg_view,
    "real part": lambda: torch.randn(9, dtype=torch.complex128).real,
    "imaginary part": lambda: torch.randn(9, dtype=torch.complex128).imag,
    "requires grad": lambda: torch.randn(5, requires_grad=True),
    "requires grad, large": lambda: torch.randn(LARGE, requires_grad=True),
    "not a leaf": lambda: torch.randn(5, requires_grad=True) * 2,
    "detached": lambda: torch.randn(5, requires_grad=True).detach(),
    "parameter": lambda: torch.nn.Parameter(torch.randn(5, 5)),
    "parameter without grad": lambda: torch.nn.Parameter(torch.arange(5), requires_grad=False),
    "parameter, large": lambda: torch.nn.Parameter(torch.randn(LARGE)),
    "many dimensions": lambda: torch.randn([2] * 12),
    "from numpy": lambda: torch.from_numpy(numpy.arange(12.0).reshape(3, 4).T),
    "from numpy, large": lambda: torch.from_numpy(numpy.arange(LARGE)),
    "from a buffer": lambda: torch.frombuffer(bytearray(range(100)), dtype=torch.uint8)[3:],
    "made in inference mode": lambda: _in_inference_mode(),
}

QUANTIZED = {
    **{f"per tensor {dtype}": lambda dtype=dtype: per_tensor(dtype, 5, 7) for dtype in QUANTIZED_DTYPES},
    "per tensor, large": lambda: per_tensor(torch.qint8, 700, 700),
    "per tensor, transposed": lambda: per_tensor(torch.quint8, 5, 7).t(),
    "per tensor, a slice": lambda: per_tensor(torch.quint8, 50, 70)[3:5, 7:9],
    "per channel 0": lambda: per_channel(0, 5, 7),
    "per channel 1": lambda: per_channel(1, 5, 7),
    "per channel, large": lambda: per_channel(0, 700, 700),
}

DTYPES = {
    **{f"{dtype}": lambda dtype=dtype: plain(dtype, 37) for dtype in PLAIN_DTYPES},
    **{f"{dtype}, large": lambda dtype=dtype: plain(dtype, LARGE) for dtype in PLAIN_DTYPES},
}

CASES = {**DTYPES, **STRIDED, **SPARSE, **QUANTIZED}


def _in_inference_mode():
    with torch.inference_mode():
        return torch.randn(5) + 1


def digest(tensor):
    """Everything about a tensor that must arrive, as plain values; see arrived()."""
    facts = {
        "type": type(tensor).__name__,
        "dtype": str(tensor.dtype),
        "layout": str(tensor.layout),
        "shape": tuple(tensor.shape),
        "requires_grad": tensor.requires_grad,
    }
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        facts["coalesced"] = tensor.is_coalesced()
        facts["parts"] = [digest(tensor._indices()), digest(tensor._values())]
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        facts["parts"] = [digest(part) for part in (tensor.crow_indices(), tensor.col_indices(), tensor.values())]
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        facts["parts"] = [digest(part) for part in (tensor.ccol_indices(), tensor.row_indices(), tensor.values())]
    elif tensor.is_quantized:
        facts["quantizer"] = _quantizer(tensor)
        facts["strides"] = tensor.stride()
        facts["bytes"] = _bytes(tensor.int_repr())
    else:
        facts["bits"] = (tensor.is_conj(), tensor.is_neg())
        facts["bytes"] = _bytes(tensor)
        # Those of a view that leaves gaps, or visits places twice, are not promised.
        if torch.ops.aten.is_non_overlapping_and_dense(tensor):
            facts["strides"] = tensor.stride()
    return facts


def arrived(sent, received):
    """Whether the digest `received` has all that the digest `sent` has."""
    if isinstance(sent, dict):
        return all(key in received and arrived(value, received[key]) for key, value in sent.items())
    if isinstance(sent, (list, tuple)):
        return len(sent) == len(received) and all(map(arrived, sent, received))
    return sent == received


def _quantizer(tensor):
    if tensor.qscheme() == torch.per_tensor_affine:
        return tensor.q_scale(), tensor.q_zero_point()
    scales, zero_points = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return tensor.q_per_channel_axis(), digest(scales), digest(zero_points)


def _bytes(tensor):
    resolved = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return resolved.view(torch.uint8).numpy().tobytes() if resolved.numel() else b""

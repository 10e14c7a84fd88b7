"""How many CUDA devices a test needs, by its decorator skip_if_lt_x_gpu, and what a skip for want of them says.

Counting needs NVML only (PYTORCH_NVML_BASED_CUDA_CHECK, which runner_process.py sets) and initializes nothing of CUDA.
"""

import os
import re

# 1: tests that need more devices than there are get their processes all the same, in which PyTorch skips them.
ATTEMPT_ALL = "TORCHWIRE_TEST_ATTEMPT_ALL"

_MESSAGE = re.compile(r"Need at least (\d+) CUDA devices?")


def there():
    """The number of CUDA devices that tests can use."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def needed(test):
    """The number of CUDA devices without which PyTorch skips this test method; 0 where it runs anywhere."""
    counts = [0]
    while test is not None:
        counts.append(_count_of(test))
        test = getattr(test, "__wrapped__", None)
    return max(counts)


def missing(test):
    """The reason, in PyTorch's words, why this test method is skipped here; None where it is to be run."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    count = needed(test)
    return TEST_SKIPS[f"multi-gpu-{count}"].message if count > there() else None


def wanted(reason):
    """The number of devices for want of which PyTorch says that it skips; None where the reason is another."""
    found = _MESSAGE.fullmatch(reason.strip())
    return int(found[1]) if found else None


def is_early():
    """Whether tests that need more devices than there are get no processes."""
    return os.environ.get(ATTEMPT_ALL) != "1"


def _count_of(function):
    """What the decorator was given, if this is the function that it has made."""
    from torch.testing._internal.common_distributed import skip_if_lt_x_gpu

    code = getattr(function, "__code__", None)
    # Names are those of the test, since the decorator copies them; the code is the same for all that it makes.
    if code is not skip_if_lt_x_gpu(1)(_nothing).__code__:
        return 0
    values = dict(zip(code.co_freevars, (cell.cell_contents for cell in function.__closure__)))
    return 0 if values.get("allow_cpu") and there() == 0 else values["x"]


def _nothing():
    pass

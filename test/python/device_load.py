"""What makes real devices late, and forgotten waits visible, in workers of test_devices.py. The stand-in accelerator
does both of itself (test/support/accelerator/README.md), so that on it nothing here does anything.

    start()       kernels of random length run all the time on streams of their own
    late(device)  the current stream first computes something else for a while, in memory that it then gives free
"""

import contextlib
import os
import random
import threading
import time

import device_kind
import torch

_MOST_CYCLES = 4_000_000  # of one delay: two milliseconds or so; most are much shorter
_LONGEST_PAUSE = 0.005  # seconds between kernels of the load: processes of other tests share the device
_MOST_ELEMENTS = 1 << 20
_STREAMS = 2  # of the load, on each device
_MOST_UNDER_WAY = 4  # kernels of the load, on each stream
_random = random.Random(int(os.environ.get("TORCHWIRE_TEST_ACCELERATOR_SEED", "0")))


def start():
    """Begins the load, on a thread that ends with the process."""
    if device_kind.IS_STANDIN:
        return
    threading.Thread(target=_load, name="device load", daemon=True).start()


def late(device, size=1024):
    """What is written next on the current stream is written late. Who reads it too early finds NaN, if its memory is
    that of `size` elements which is given free here, as the allocator does where it can."""
    device = torch.device(device)
    if device.type != "cuda":
        return
    with torch.cuda.device(device):
        torch.full((size,), float("nan"), device=device)  # freed at once, for the next tensor of this size
        torch.cuda._sleep(_cycles())


def _load():
    streams = [torch.cuda.Stream(index) for index in range(device_kind.count()) for _ in range(_STREAMS)]
    under_way = {stream: [] for stream in streams}
    while True:
        stream = _random.choice(streams)
        if len(under_way[stream]) == _MOST_UNDER_WAY:
            under_way[stream].pop(0).synchronize()  # without the GIL
        with torch.cuda.stream(stream):
            with contextlib.suppress(torch.OutOfMemoryError):  # a test may have filled the device up
                _kernel(torch.device("cuda", stream.device_index))
            event = torch.cuda.Event()
            event.record()
        under_way[stream].append(event)
        time.sleep(_random.uniform(0, _LONGEST_PAUSE))


def _kernel(device):
    """A sleep, a product or a fill with NaN, whose memory others may get next."""
    kind = _random.randrange(3)
    if kind == 0:
        torch.cuda._sleep(_cycles())
    elif kind == 1:
        side = _random.randrange(64, 1024)
        torch.ones(side, side, device=device) @ torch.ones(side, side, device=device)
    else:
        torch.full((_random.randrange(1, _MOST_ELEMENTS),), float("nan"), device=device)


def _cycles():
    return int(_MOST_CYCLES * _random.random() ** 6)

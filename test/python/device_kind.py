"""Which devices test_devices.py uses: those of the stand-in accelerator, or real ones.

TORCHWIRE_TEST_DEVICE_TYPE  "standin" (default) or "cuda"
TORCHWIRE_TEST_ACCELERATOR_DEVICES  how many the stand-in has (default 4); CUDA has as many as there are
TORCHWIRE_TEST_DEVICE_MAPS  of a worker of such a test, "crossing" (default) or "same"; see maps()
TORCHWIRE_TEST_DEVICE_SEEDS how many seeds (default 3), or which, as in "0,8,16" and "8,"

Asks CUDA for its number of devices only, which NVML answers, so that whoever imports this may still fork.
"""

import os

import torch

TYPE = os.environ.get("TORCHWIRE_TEST_DEVICE_TYPE") or "standin"
IS_STANDIN = TYPE == "standin"
_STANDINS = int(os.environ.get("TORCHWIRE_TEST_ACCELERATOR_DEVICES", "4"))


def count():
    """How many devices there are."""
    return _STANDINS if IS_STANDIN else torch.cuda.device_count()


def device(index):
    return f"{TYPE}:{index}"


def first():
    return device(0)


def second():
    """Where there is only one, or the maps have one only, this is the first, too."""
    return device(1) if count() > 1 and _maps() == "crossing" else first()


def last():
    return device(count() - 1)


def maps(name=None):
    """From devices of worker0 to those of the other worker: "crossing" from each of the first two to the other, and
    the third to itself; "same" the first to itself. `name`: default is this process's."""
    if (name or _maps()) == "same":
        return {device(0): device(0)}
    crossing = {device(0): device(1), device(1): device(0), device(2): device(2)}
    return dict(list(crossing.items())[: count()])


def without_mapping(name=None):
    """A device that those maps do not have; None where they have all."""
    return None if last() in maps(name) else last()


def why_missing(needed):
    """Why a test that needs so many devices is skipped; None where they are there."""
    there = count()
    if there >= needed:
        return None
    devices = "device" if needed == 1 else "devices"
    return f"needs {needed} {TYPE} {devices}, of which {there} {'is' if there == 1 else 'are'} here"


def seeds():
    """The seeds of devices' delays, and of the load on real ones."""
    text = os.environ.get("TORCHWIRE_TEST_DEVICE_SEEDS", "3")
    return [int(seed) for seed in text.split(",") if seed] if "," in text else list(range(int(text)))


def module():
    """torch.cuda, or what the stand-in has in its place."""
    return getattr(torch, TYPE)


def _maps():
    return os.environ.get("TORCHWIRE_TEST_DEVICE_MAPS") or "crossing"

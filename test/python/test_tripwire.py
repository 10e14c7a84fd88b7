"""What of libtorch is called where RRefs and autograd are used: none of it on torchwire (test/stock/tripwire.py)."""

import ctypes
import importlib.util
from pathlib import Path

import pytest
import torch
from processes import run_script

STOCK = Path(__file__).resolve().parents[1] / "stock"

# The stock agent takes its address from the host's name, which leads nowhere on some machines.
LOOPBACK = {"TP_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}

# What RequestCallbackImpl overrides, so that its base class's own is never called in a process with Python.
OVERRIDDEN = {
    "rpc::RequestCallbackNoPython::" + method
    for method in (
        "processScriptRemoteCall",
        "processPythonRemoteCall",
        "processPythonRRefFetchCall",
        "processRRefBackward",
        "handleRRefDelete",
    )
}


def load_tripwire():
    spec = importlib.util.spec_from_file_location("tripwire", STOCK / "tripwire.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tripwire = load_tripwire()
pytestmark = pytest.mark.skipif(not tripwire.is_possible(), reason="the tripwire exists for x86-64 only")


@pytest.fixture(scope="module")
def library():
    return tripwire.build()


def trips(library, backend, folder):
    """The symbols that the control program calls on this backend."""
    file = folder / "trips"
    environment = {**LOOPBACK, **tripwire.environment(library, file)}
    done = run_script(STOCK / "tripwire_control.py", backend, folder, environment=environment)
    assert done.returncode == 0, done.stderr
    return tripwire.Trips(file).new()


def test_torch_has_every_function_that_is_watched(library):
    folder = Path(torch.__file__).parent / "lib"
    watched = tripwire.watched(library)
    assert len(watched) > 20
    missing = [symbol for symbol, name in watched.items() if not hasattr(ctypes.CDLL(str(folder / name)), symbol)]
    assert missing == []


@pytest.mark.long
def test_on_tensorpipe_every_function_that_can_be_called_is(library, tmp_path):
    called = trips(library, "TENSORPIPE", tmp_path)
    not_called = set(tripwire.watched(library)).difference(called)
    assert {tripwire.readable(symbol) for symbol in not_called} == OVERRIDDEN


@pytest.mark.slow
def test_on_torchwire_none_is(library, tmp_path):
    assert [tripwire.readable(symbol) for symbol in trips(library, "TORCHWIRE", tmp_path)] == []

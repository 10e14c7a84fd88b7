"""RRefs whose function never runs at the owner: whoever asks for the value gets the reason at once, with its type."""

import runpy
import sys
import tempfile
import time
import types

import pytest
import torch
import torch.distributed.rpc as rpc
from group import running
from processes import LIMIT
from rref_counts import wait_until_none_is_left
from torch.autograd import profiler_legacy

OWNER, OTHER = "worker1", "worker2"
SOON = LIMIT / 4  # s: far below the time-outs, of LIMIT and more
MISSING = "module_of_the_creator_alone"


@pytest.fixture(scope="module")
def _shared_trio(tmp_path_factory):
    with running(3, tmp_path_factory.mktemp("group"), rpc_timeout=2 * LIMIT) as group:
        yield group


@pytest.fixture
def trio(_shared_trio):
    yield _shared_trio
    wait_until_none_is_left(_shared_trio, collects=True)


# ---- what the workers run ----


def create_of_a_missing_module(to):
    module = types.ModuleType(MISSING)
    exec("def function(): return 1", module.__dict__)
    sys.modules[MISSING] = module
    return rpc.remote(to, module.function)


class Unreadable:
    def __reduce__(self):
        return refuse, ("an argument that cannot be read",)


def refuse(text):
    raise KeyError(text)


class Value:
    def __init__(self, *_):
        pass

    def get(self):
        return 1


def create_with_an_unreadable_argument(to):
    return rpc.remote(to, Value, (Unreadable(),))


def create_beside_an_rref(to):
    return rpc.remote(to, Value, (rpc.RRef(1), Unreadable()))


def create_under_a_profiler(to):
    with profiler_legacy.profile():
        return rpc.remote(to, Value, (Unreadable(),))


def create_in_an_autograd_context(to):
    with torch.distributed.autograd.context():
        return rpc.remote(to, Value, (torch.ones(2, requires_grad=True), Unreadable()))


@rpc.functions.async_execution
def returns_none():
    return None


def create_by_an_async_function(to):
    return rpc.remote(to, returns_none)


class Garbler:
    """A pickler of the user's, of which the owner cannot read anything."""

    def serialize(self, _):
        return b"\x00", []


def create_with_another_pickler(to):
    with rpc.api._use_rpc_pickler(Garbler()):
        return rpc.remote(to, Value)


def create_by_an_operator_that_fails(to):
    return rpc.remote(to, torch.add, (torch.ones(2), torch.ones(3)))


def create_of_unknown_script(to):
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:  # TorchScript reads the source
        file.write("import torch\n@torch.jit.script\ndef unknown(x: int):\n    return x\n")
        file.flush()
        names = runpy.run_path(file.name, run_name="of_the_creator_alone")
    return rpc.remote(to, names["unknown"], (1,))


def outcome(function, *args):
    """The names of the types of what it raises, its text, and how long that took."""
    began = time.monotonic()
    try:
        function(*args)
    except Exception as error:
        return [kind.__name__ for kind in type(error).__mro__], str(error), time.monotonic() - began
    return [], "", time.monotonic() - began


def to_here(rref):
    return rref.to_here(LIMIT)


def local_value(rref):
    return rref.local_value()


def fetch(create, to):
    return outcome(to_here, create(to))


def fetch_when_confirmed(create, to):
    rref = create(to)
    rref._get_future().wait()
    return outcome(to_here, rref)


def fetch_elsewhere(create, to):
    return outcome(rpc.rpc_sync, OTHER, to_here, (create(to),))


def use_at_the_owner(create, to):
    return outcome(rpc.rpc_sync, to, local_value, (create(to),))


def use_a_proxy(create, to):
    return outcome(lambda: create(to).rpc_sync(LIMIT).get())


CREATIONS = [
    (create_of_a_missing_module, "ModuleNotFoundError", MISSING),
    (create_with_an_unreadable_argument, "KeyError", "an argument that cannot be read"),
    (create_beside_an_rref, "KeyError", "an argument that cannot be read"),
    (create_under_a_profiler, "KeyError", "an argument that cannot be read"),
    (create_in_an_autograd_context, "KeyError", "an argument that cannot be read"),
    (create_by_an_async_function, "RuntimeError", "must return a torch.futures.Future object, but got None"),
    (create_with_another_pickler, "UnpicklingError", ""),
    (create_by_an_operator_that_fails, "RuntimeError", "must match the size"),
]


def assert_told_at_once(group, create, uses, kind, text):
    for use in uses:
        kinds, said, seconds = group[0].run(use, create, OWNER)
        assert kind in kinds, use
        assert text in said, use
        assert seconds < SOON, use


USES = [fetch, fetch_when_confirmed, fetch_elsewhere, use_at_the_owner, use_a_proxy]


@pytest.mark.parametrize("create, kind, text", CREATIONS, ids=[row[0].__name__ for row in CREATIONS])
def test_who_uses_an_rref_that_cannot_be_made_gets_the_reason_at_once(trio, create, kind, text):
    assert_told_at_once(trio, create, USES, kind, text)


def test_so_does_who_asks_for_what_a_script_should_return_that_the_owner_lacks(trio):
    assert_told_at_once(trio, create_of_unknown_script, USES[:3], "RuntimeError", "unknown")


@pytest.mark.parametrize("create", [create_with_an_unreadable_argument, create_by_an_async_function])
def test_so_does_its_owner_who_has_created_it_itself(trio, create):
    kinds, _, seconds = trio[1].run(fetch, create, OWNER)
    assert {"KeyError", "RuntimeError"} & set(kinds)
    assert seconds < SOON


@pytest.mark.parametrize(
    "operator, args, results",
    [(torch.manual_seed, (1,), "nothing"), (torch.max, (torch.ones(2, 2), 0), "2 values")],
    ids=["none", "two"],
)
def test_an_operator_without_exactly_one_result_is_refused_where_it_is_called(trio, operator, args, results):
    kinds, said, _ = trio[0].run(outcome, rpc.remote, OWNER, operator, args)
    assert kinds[0] == "ValueError"
    assert f"returns {results}" in said and "Python function" in said


def fetch_largest(to):
    return rpc.remote(to, torch.max, (torch.ones(2, 2),)).to_here().item()


def test_an_overload_of_it_with_one_result_is_called(trio):
    assert trio[0].run(fetch_largest, OWNER) == 1

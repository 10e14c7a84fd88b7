"""Calls of Python functions that torchwire writes without pickle: nobody but a clock can tell them from the others."""

import collections
import contextlib
import enum
import math
import random
import re
import signal
import sys
import threading
import types

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from group import running
from processes import LIMIT
from pytorchs_way import pytorchs_way
from torch.autograd import profiler_legacy
from torch.distributed.rpc import api, internal
from torchwire import _C


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A running group of two."""
    with running(2, tmp_path_factory.mktemp("direct")) as group:
        yield group


# ---- values ----


class Word(str):
    pass


Point = collections.namedtuple("Point", "x y")


class Color(enum.IntEnum):
    red = 1


def nested(depth):
    return () if depth == 0 else (nested(depth - 1),)


DIRECT = {
    "None": None,
    "True": True,
    "False": False,
    "zero": 0,
    "smallest": -(2**63),
    "largest": 2**63 - 1,
    "negative zero": -0.0,
    "infinity": math.inf,
    "empty text": "",
    "text": "déjà vu \0 漢字 🙂",
    "bytes": bytes(range(256)),
    "empty": ((), [], {}),
    "nested": {"a": [1, (2.5, None), {"b": b"c"}], 2: "d", (3, 4): [True]},
    "order": dict.fromkeys("zyxabc"),
    "long": list(range(5000)),
    "depth 15": nested(15),
}
PICKLED = {
    "beyond 64 bits": 2**63,
    "lone surrogate": "\ud800",
    "str subclass": Word("a"),
    "namedtuple": Point(1, 2),
    "ordered dict": collections.OrderedDict(a=1),
    "enum": Color.red,
    "set": {1, 2},
    "complex": 1j,
    "dtype": torch.float16,
    "size": torch.Size([2, 3]),
    "depth 100": nested(100),
    "inside": [1, {"a": (Color.red,)}],
}


def same(a, b):
    """Equal, with equal types all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    if isinstance(a, float):
        return math.copysign(1, a) == math.copysign(1, b) and a == b
    return a == b


def echo(*args, **kwargs):
    return args, kwargs


def give_back(*args, **kwargs):
    return rpc.rpc_sync("worker1", echo, args, kwargs), rpc.rpc_async("worker1", echo, args, kwargs).wait()


@pytest.mark.parametrize("name", [*DIRECT, *PICKLED])
def test_a_value_arrives_as_it_left(pair, name):
    value = (DIRECT | PICKLED)[name]
    assert (_C._encode_value(value) is not None) == (name in DIRECT)
    for args, kwargs in pair[0].run(give_back, value, 7, key=value):
        assert same(args, (value, 7))
        assert same(kwargs, {"key": value})


def call_with_tensors():
    base = torch.arange(12.0).reshape(3, 4)
    large = torch.ones(300, 300)
    wholes = [base.t(), torch.tensor([], dtype=torch.int8), large, torch.eye(3).to_sparse(), torch.tensor(True)]
    (back,), _ = rpc.rpc_sync("worker1", echo, (wholes,))
    assert all(torch.equal(a.to_dense(), b.to_dense()) for a, b in zip(wholes, back))
    assert [t.dtype for t in back] == [t.dtype for t in wholes]
    assert [type(t) for t in back] == [torch.Tensor] * len(wholes)
    (parameter,), _ = rpc.rpc_sync("worker1", echo, (torch.nn.Parameter(base),))
    assert type(parameter) is torch.nn.Parameter
    (left, right), _ = rpc.rpc_async("worker1", echo, (base[:2], base[1:])).wait()
    left[1] = 100
    assert torch.equal(right[0], left[1])  # they share their storage, as they did
    with torch.inference_mode():
        (tensor,), _ = rpc.rpc_sync("worker1", echo, (base,))
    assert not tensor.is_inference()


def test_tensors_arrive_as_they_left(pair):
    pair[0].run(call_with_tensors)


def are_same(a, b):
    return a is b


def call_with_twins():
    values, tensor = [1], torch.ones(1)
    assert rpc.rpc_sync("worker1", are_same, (values, values))
    assert rpc.rpc_sync("worker1", are_same, (tensor, tensor))
    assert not rpc.rpc_sync("worker1", are_same, ([1], [1]))
    (pair_of_one,), _ = rpc.rpc_sync("worker1", echo, ([values, values],))
    assert pair_of_one[0] is pair_of_one[1]
    circle = []
    circle.append(circle)
    for value in ("a" * 100, bytes(100), (1, [2]), ()):
        assert rpc.rpc_sync("worker1", are_same, (value, value))
    (round_trip,), _ = rpc.rpc_sync("worker1", echo, (circle,))
    assert round_trip[0] is round_trip


def test_what_is_one_object_stays_one(pair):
    pair[0].run(call_with_twins)


def test_damaged_bytes_give_an_error_and_nothing_worse():
    generator = random.Random(4)
    tensors = [torch.ones(2)]
    value = {"a": [1, (2.5, None), {"b": b"c"}], 2: "déjà", (3, 4): [True, tensors[0]]}
    whole, _ = _C._encode_value(value)
    for cut in range(len(whole)):
        with pytest.raises(RuntimeError):
            _C._decode_value(whole[:cut], tensors)
    read = 0
    for _ in range(20000):
        damaged = bytearray(whole)
        for _ in range(generator.randint(1, 4)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        try:
            _C._decode_value(bytes(damaged), tensors)
            read += 1
        except (RuntimeError, TypeError, UnicodeDecodeError):  # of the format; an unhashable key; no UTF-8
            pass
    assert 0 < read < 20000
    with pytest.raises(RuntimeError, match="too deeply"):
        _C._decode_value(b"\x08\x01\x00\x00\x00" * 100 + b"\x00", [])
    with pytest.raises(RuntimeError, match="tensor 1, which did not come"):
        _C._decode_value(b"\x07\x01\x00\x00\x00", tensors)


# ---- functions ----


class Box:
    def __init__(self, content):
        self.content = content

    def __eq__(self, other):
        return self.content == other.content

    @staticmethod
    def twice(x):
        return 2 * x

    @classmethod
    def of_two(cls, x):
        return cls(2 * x)

    def __call__(self, x):
        return self.content + x


def call_all_sorts():
    return [
        rpc.rpc_sync("worker1", Box, (1,)).content,
        rpc.rpc_sync("worker1", Box.twice, (1,)),
        rpc.rpc_sync("worker1", Box.of_two, (1,)).content,
        rpc.rpc_sync("worker1", Box(3), (1,)),
        rpc.rpc_sync("worker1", math.sqrt, (4.0,)),
        rpc.rpc_sync("worker1", divmod, (7, 2)),
        rpc.rpc_sync(1, Box.twice, [1]),
        rpc.rpc_sync(rpc.get_worker_info("worker1"), Box.twice, kwargs={"x": 1}),
        rpc.rpc_sync("worker0", Box.twice, (1,)),
    ]


def test_whatever_can_be_called(pair):
    assert pair[0].run(call_all_sorts) == [1, 2, 2, 4, 2.0, (3, 1), 2, 2, 2]


def say(text):
    return text


def replace_say():
    globals()["say"] = lambda text: text.upper()


def call_replaced():
    before = rpc.rpc_sync("worker1", say, ("a",))
    rpc.rpc_sync("worker1", replace_say)
    return before, rpc.rpc_sync("worker1", say, ("a",))


def test_the_function_is_what_has_its_name_at_the_callee_now(pair):
    assert pair[0].run(call_replaced) == ("a", "A")


def text_of(call):
    with pytest.raises(Exception) as error:
        call()
    return type(error.value), str(error.value)


def sync_and_async(function, args, kwargs):
    return [
        text_of(lambda: rpc.rpc_sync("worker1", function, args, kwargs)),
        text_of(lambda: rpc.rpc_async("worker1", function, args, kwargs).wait()),
    ]


def without_stack(text):
    return re.sub(r"(  .*\n)*$", "", text.partition("\nAt:\n")[0])  # it differs with who waits


def errors_of(function, *args):
    """Type and text as PyTorch's own way gives them, which those of direct and pickled calls have to be as well: only
    that the type may be a narrower one."""
    found = sync_and_async(function, args, {"unused": 1}) + sync_and_async(function, args, {"unused": Word("a")})
    with pytorchs_way():
        stock, _ = sync_and_async(function, args, {"unused": 1})
    for kind, text in found:
        assert issubclass(kind, stock[0])
        assert without_stack(text) == without_stack(stock[1])
    return stock


def call_what_is_not_there():
    here = types.ModuleType("only_here")
    exec("def function(*args, **kwargs): pass", here.__dict__)
    sys.modules["only_here"] = here
    no_module = errors_of(here.function)
    exec("def late(*args, **kwargs): pass", sys.modules[__name__].__dict__)
    return no_module, errors_of(late)  # noqa: F821


def test_a_function_that_is_not_there_is_named(pair):
    no_module, no_function = pair[0].run(call_what_is_not_there)
    assert "No module named 'only_here'" in no_module[1]
    assert "late" in no_function[1]
    assert "does not serialize" in no_function[1]


class OwnError(Exception):
    pass


def fail(kind, unused=None):
    raise kind("it failed\nin two lines")


RAISED = [
    ValueError,
    TypeError,
    UnicodeError,
    KeyError,
    StopIteration,
    AttributeError,
    RuntimeError,
    SystemExit,
    OwnError,
]


@pytest.mark.parametrize("kind", RAISED)
def test_what_a_function_raises_is_raised_as_pytorch_does(pair, kind):
    raised, text = pair[0].run(errors_of, fail, kind)
    assert raised in (ValueError, TypeError, RuntimeError)
    assert "it failed" in text
    if kind is not SystemExit:
        assert "On WorkerInfo(id=1, name=worker1)" in text
        assert "in fail" in text  # the traceback


def hide(unused=None):
    return lambda: None


def test_a_result_that_cannot_be_pickled_is_an_error(pair):
    assert "pickle" in pair[0].run(errors_of, hide)[1]


def import_in_the_midst(folder):
    """Two calls of a function in a module whose import takes its time."""
    sys.path.insert(0, str(folder))
    rpc.rpc_sync("worker1", add_to_path, (str(folder),))
    import slow_module

    first = rpc.rpc_async("worker1", slow_module.answer)
    rpc.rpc_sync("worker1", await_import)
    second = rpc.rpc_async("worker1", slow_module.answer)
    rpc.rpc_sync("worker1", open_slow_module_gate)
    return first.wait(), second.wait()


def add_to_path(folder):
    sys.path.insert(0, folder)
    sys.slow_module_gate, sys.slow_module_begun = threading.Event(), threading.Event()


def await_import():
    assert sys.slow_module_begun.wait(LIMIT)


def open_slow_module_gate():
    sys.slow_module_gate.set()


def test_a_function_waits_for_the_import_of_its_module(pair, tmp_path):
    (tmp_path / "slow_module.py").write_text(
        "import sys\n"
        "def answer(): return LATER\n"
        "if hasattr(sys, 'slow_module_gate'):\n"
        "    sys.slow_module_begun.set()\n"
        "    sys.slow_module_gate.wait(60)\n"
        "LATER = 5\n"
    )
    assert pair[0].run(import_in_the_midst, tmp_path) == (5, 5)


def call_badly():
    return [
        text_of(lambda: rpc.rpc_sync("nobody", say, ("a",))),
        text_of(lambda: rpc.rpc_sync(17, say, ("a",))),
        text_of(lambda: rpc.rpc_sync(None, say, ("a",))),
        text_of(lambda: rpc.rpc_sync("worker1", 5)),
        text_of(lambda: rpc.rpc_sync("worker1", say, (lambda: None,))),
    ]


def test_bad_calls_say_why(pair):
    nobody, no_id, none, number, closure = pair[0].run(call_badly)
    assert "nobody" in nobody[1]
    assert "17" in no_id[1]
    assert none[0] is ValueError
    assert number == (TypeError, "function should be callable.")
    assert "pickle" in closure[1]


# ---- async functions and futures ----


@rpc.functions.async_execution
def add_elsewhere(x, y):
    return rpc.rpc_async("worker0", sum, ((x, y),))


@rpc.functions.async_execution
def no_future(*args, **kwargs):
    return 5


def call_async_functions():
    assert rpc.rpc_sync("worker1", add_elsewhere, (1, 2)) == 3
    assert rpc.rpc_async("worker1", add_elsewhere, (1, 2)).wait() == 3
    return errors_of(no_future)


def test_functions_that_return_a_future(pair):
    assert "must return a torch.futures.Future object" in pair[0].run(call_async_functions)[1]


def use_futures():
    future = rpc.rpc_async("worker1", Box.twice, (4,))
    assert future.then(lambda done: done.value() + 1).wait() == 9
    assert future.done()
    assert future.value() == future.wait() == 8
    heard = torch.futures.Future()
    future.add_done_callback(lambda done: heard.set_result(done.wait()))
    assert heard.wait() == 8
    many = [rpc.rpc_async("worker1", echo, ({"i": i, "t": torch.full((2,), i)},)) for i in range(50)]
    for i, ((value,), _) in enumerate(torch.futures.wait_all(many)):
        assert value["i"] == i == value["t"][1]
    # What waits for several at a time, and in another order.
    later = [rpc.rpc_async("worker1", Box.twice, (i,)) for i in range(100)]
    assert [one.wait() for one in reversed(later)] == [2 * i for i in reversed(range(100))]
    first = rpc.rpc_async("worker1", echo, ([],))
    assert first.wait() is first.value()  # one object, however often one asks
    failed = rpc.rpc_async("worker1", fail, (OwnError,))
    with pytest.raises(RuntimeError, match="OwnError"):  # as PyTorch has it, for what a callback raises
        failed.then(lambda done: done.wait()).wait()
    with pytest.raises(RuntimeError, match="OwnError"):
        failed.wait()


def test_futures_are_futures(pair):
    pair[0].run(use_futures)


released = threading.Event()


def wait_for_release():
    return released.wait(LIMIT)


def release():
    released.set()


def wait_for_all():
    """An error ends the wait at once, as its future is one that has failed."""
    rpc.rpc_sync("worker1", renew)
    blocked = rpc.rpc_async("worker1", wait_for_release)
    failed = rpc.rpc_async("worker1", fail, (ValueError,))
    with pytest.raises(ValueError, match="it failed"):
        torch.futures.wait_all([blocked, failed])
    assert not blocked.done()
    rpc.rpc_sync("worker1", release)
    assert blocked.wait()


def test_an_error_ends_a_wait_for_several(pair):
    pair[0].run(wait_for_all)


def renew():
    released.clear()


def wait_too_long():
    rpc.rpc_sync("worker1", renew)
    texts = [
        text_of(lambda: rpc.rpc_sync("worker1", wait_for_release, timeout=0.2)),
        text_of(lambda: rpc.rpc_async("worker1", wait_for_release, timeout=0.2).wait()),
    ]
    rpc.rpc_sync("worker1", release)
    return texts


def test_time_outs_hold(pair):
    for kind, text in pair[0].run(wait_too_long):
        assert issubclass(kind, RuntimeError)
        assert "ran for more than set timeout" in text


def signal_while_waiting(kind, result):
    """The handler's exception comes out of the wait, whatever the result is; the workers go on."""
    before = signal.signal(signal.SIGALRM, lambda *_: fail(kind))
    try:
        for call in (rpc.rpc_sync, lambda *it: rpc.rpc_async(*it).wait()):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(kind, match="it failed"):
                call("worker1", return_later, (0.3, result))
    finally:
        signal.signal(signal.SIGALRM, before)


def return_later(seconds, result):
    threading.Event().wait(seconds)
    return result


@pytest.mark.parametrize("kind", [KeyboardInterrupt, OwnError])
@pytest.mark.parametrize("result", [None, Word("pickled")])
def test_what_a_signals_handler_raises_comes_out_of_the_wait(pair, kind, result):
    pair[0].run(signal_while_waiting, kind, result)


def states_of_callbacks():
    seen = []
    rpc.rpc_sync("worker1", renew)
    with torch.no_grad():
        for function, timeout in ((say, 0), (hide, 0), (wait_for_release, 0.2)):
            heard = threading.Event()

            def note(done, heard=heard):
                seen.append(torch.is_grad_enabled())
                heard.set()

            args = () if function is wait_for_release else ("a",)
            rpc.rpc_async("worker1", function, args, timeout=timeout).add_done_callback(note)
            assert heard.wait(LIMIT)
    rpc.rpc_sync("worker1", release)
    return seen


def test_callbacks_run_in_the_callers_state(pair):
    assert pair[0].run(states_of_callbacks) == [False] * 3


# ---- with picklers, reducers, contexts and a profiler ----


class CountingPickler(internal._InternalRPCPickler):
    count = 0

    def serialize(self, obj):
        self.count += 1
        return super().serialize(obj)


def call_with_a_pickler():
    pickler = CountingPickler()
    with api._use_rpc_pickler(pickler):
        assert rpc.rpc_sync("worker1", Box.twice, (1,)) == 2
        assert rpc.rpc_async("worker1", Box.twice, (1,)).wait() == 2
    return pickler.count


def test_a_pickler_of_the_users_is_asked(pair):
    assert pair[0].run(call_with_a_pickler) == 2


class TaggedPickler(internal._InternalRPCPickler):
    """Begins each pickle with a byte."""

    def __init__(self, tag):
        super().__init__()
        self._tag = bytes([tag])

    def serialize(self, obj):
        pickle, tensors = super().serialize(obj)
        return self._tag + pickle, tensors

    def deserialize(self, binary_data, tensor_table):
        assert binary_data.startswith(self._tag)
        return super().deserialize(binary_data[1:], tensor_table)


_entered = contextlib.ExitStack()


def enter_tagged_pickler(tag):
    _entered.enter_context(api._use_rpc_pickler(TaggedPickler(tag)))


def leave_pickler():
    _entered.close()


def call_each_way():
    found = []
    for scope in (contextlib.nullcontext, dist_autograd.context):
        with scope():
            x = torch.ones(2, requires_grad=True)
            found.append(rpc.rpc_sync("worker1", multiply, (x, 2)).tolist())
            found.append(rpc.rpc_async("worker1", multiply, (x, 3)).wait().tolist())
    return found


@pytest.mark.parametrize("tag", range(6))
def test_a_pickler_of_the_users_writes_what_it_likes(pair, tag):
    pair.all(enter_tagged_pickler, tag)
    try:
        assert pair[0].run(call_each_way) == [[2, 2], [3, 3]] * 2
    finally:
        pair.all(leave_pickler)


class Reduced:
    def __init__(self, content):
        self.content = content


def rebuild(content):
    return Reduced(content + 1)


def identity(it):
    return it


def reduce_tensors():
    internal._internal_rpc_pickler._register_reducer(torch.Tensor, lambda it: (rebuild, (it.item(),)))


def forget_reducers():
    pickler = internal._internal_rpc_pickler
    pickler._class_reducer_dict.pop(torch.Tensor, None)
    pickler._dispatch_table[torch.Tensor] = pickler._tensor_reducer


def call_with_reducers():
    pickler = internal._internal_rpc_pickler
    try:
        pickler._register_reducer(Reduced, lambda it: (rebuild, (it.content,)))
        (args, _) = rpc.rpc_sync("worker1", echo, (Reduced(1), 5))
        assert args[0].content == 2
        reduce_tensors()
        (args, _) = rpc.rpc_sync("worker1", echo, (torch.tensor(3),))
        assert args[0].content == 4
        forget_reducers()
        rpc.rpc_sync("worker1", reduce_tensors)  # a callee's own, for its results
        assert rpc.rpc_sync("worker1", identity, (torch.tensor([3]),)).content == 4
        rpc.rpc_sync("worker1", forget_reducers)
    finally:
        forget_reducers()
        pickler._class_reducer_dict.pop(Reduced)
        pickler._dispatch_table.pop(Reduced)


def test_reducers_are_asked(pair):
    pair[0].run(call_with_reducers)


def multiply(x, y):
    return x * y


def backward_through_a_call():
    x = torch.full((2,), 3.0, requires_grad=True)
    with dist_autograd.context() as context:
        y = rpc.rpc_sync("worker1", multiply, (x, 2)) + rpc.rpc_async("worker1", multiply, (x, 3)).wait()
        dist_autograd.backward(context, [y.sum()])
        return dist_autograd.get_gradients(context)[x]


def test_autograd_goes_through_calls(pair):
    assert torch.equal(pair[0].run(backward_through_a_call), torch.full((2,), 5.0))


def profiled_events():
    with profiler_legacy.profile() as profile:  # the only profiler that PyTorch's RPC knows
        rpc.rpc_sync("worker1", multiply, (torch.ones(1), 2))
    return [event.name for event in profile.function_events]


def test_a_profiler_sees_the_call(pair):
    names = pair[0].run(profiled_events)
    assert any(name.startswith("rpc_sync#") and "multiply" in name for name in names), names

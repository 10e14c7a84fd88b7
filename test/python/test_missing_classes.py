"""What a caller cannot unpickle, or must not: it is raised as an error, not returned, and does not end the caller."""

import contextlib
import io
import signal
import sys
import tracemalloc
import types

import pytest
import torch
import torch.distributed.rpc as rpc
from group import running
from pytorchs_way import pytorchs_way
from torch.distributed.rpc import api, internal
from torchwire import bounded_pickle
from torchwire.pickling import words_of

# ---- what the workers run ----


def of_this_process(module, name, base):
    """A class that no other process has: in __main__, as a script defines its own, or in a module that is only here."""
    here = sys.modules["__main__"] if module == "__main__" else sys.modules.setdefault(module, types.ModuleType(module))
    if not hasattr(here, name):
        exec(f"class {name}({base}): pass", here.__dict__)
    return getattr(here, name)


def raise_own(module):
    error = of_this_process(module, "OwnError", "Exception")("it has failed", 3)
    error.__notes__ = ["a note"]
    raise error from KeyError("the cause")


def return_own(module):
    return of_this_process(module, "OwnResult", "object")()


def return_own_function(module):
    return [of_this_process(module, "OwnResult", "object")]


class Raising:
    """Raises when it is unpickled."""

    def __init__(self, kind):
        self._kind = kind

    def __reduce__(self):
        return _raise, (self._kind,)


def _raise(kind):
    raise kind("when unpickled")


def return_raising(kind):
    return Raising(kind)


class RaisingError(Exception):
    def __reduce__(self):
        return _raise, (SystemExit,)


def raise_raising_error():
    raise RaisingError("a text")


def raise_kind(kind):
    raise kind("in the function")


class Interrupting:
    def __reduce__(self):
        return signal.raise_signal, (signal.SIGINT,)


def return_interrupting():
    return Interrupting()


def return_attribute_error():
    return AttributeError("it is the result")


class NoExceptionWithoutWords(BaseException):
    def __repr__(self):
        raise ValueError("no words")

    __str__ = __repr__


class Unprintable(Exception):
    def __repr__(self):
        raise ValueError("no words")


def raise_unprintable():
    raise Unprintable


class Unreadable(Exception):
    def __getattr__(self, name):
        raise ValueError("no attributes")


def raise_unreadable():
    raise Unreadable("a text")


def raise_text():
    raise OSError("caf\u00e9 \\U \\x")


# ---- in which ways they call ----


def sync(function, *args):
    return rpc.rpc_sync("worker1", function, args)


def waiting(function, *args):
    return rpc.rpc_async("worker1", function, args).wait()


def then(function, *args):
    return rpc.rpc_async("worker1", function, args).then(lambda future: future.wait()).wait()


def fetching(function, *args):
    return rpc.remote("worker1", function, args).to_here()


class Holder:
    def call(self, function, *args):
        return function(*args)


def by_proxy(function, *args):
    return rpc.remote("worker1", Holder).rpc_sync().call(function, *args)


@contextlib.contextmanager
def another_pickler():
    with api._use_rpc_pickler(internal._InternalRPCPickler()):
        yield


def sync_with_a_pickler(function, *args):
    with another_pickler():
        return sync(function, *args)


def waiting_with_a_pickler(function, *args):
    with another_pickler():
        return waiting(function, *args)


def pytorchs(function, *args):
    with pytorchs_way():
        return sync(function, *args)


WAYS = [sync, waiting, then, fetching, by_proxy, sync_with_a_pickler, waiting_with_a_pickler, pytorchs]
each_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
each_module = pytest.mark.parametrize("module", ["__main__", "only_there"])


def failure_of(way, function, *args):
    try:
        result = way(function, *args)
    except BaseException as error:
        assert sync(torch.add, torch.ones(1), 1) == 2
        return {
            "kinds": [kind.__name__ for kind in type(error).__mro__],
            "text": str(error),
            "notes": getattr(error, "__notes__", []),
            "cause": words_of(error.__cause__),
        }
    raise AssertionError(f"it returned {result!r}")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with running(2, tmp_path_factory.mktemp("group")) as group:
        yield group


# ---- classes that are not here ----


@each_way
@each_module
def test_an_exception_whose_class_is_not_here_is_raised(pair, way, module):
    failure = pair[0].run(failure_of, way, raise_own, module)
    assert "RuntimeError" in failure["kinds"]
    assert "OwnError was raised, a class that cannot be imported here" in failure["text"] or way is then
    assert "OwnError" in failure["text"] and "define it in a module that both workers can import" in failure["text"]
    assert "On WorkerInfo(id=1, name=worker1):" in failure["text"]
    assert "it has failed" in failure["text"] and ", in raise_own" in failure["text"]


@pytest.mark.parametrize("way", [sync, waiting, fetching], ids=lambda way: way.__name__)
def test_what_else_there_is_of_it_is_kept(pair, way):
    failure = pair[0].run(failure_of, way, raise_own, "only_there")
    assert failure["notes"] == ["a note"] and failure["cause"] == "KeyError('the cause')"


@each_way
@each_module
@pytest.mark.parametrize("function", [return_own, return_own_function])
def test_a_result_whose_class_is_not_here_is_an_error(pair, way, module, function):
    failure = pair[0].run(failure_of, way, function, module)
    assert "RuntimeError" in failure["kinds"] or "ModuleNotFoundError" in failure["kinds"]
    assert "a result of worker 'worker1' is of a class, or refers to a function, that" in failure["text"]
    assert ("OwnResult" if module == "__main__" else "No module named 'only_there'") in failure["text"]
    assert "Define it in a module that both workers can import" in failure["text"]


def is_attribute_error(way):
    result = way(return_attribute_error)
    return type(result) is AttributeError and str(result) == "it is the result"


@each_way
def test_an_attribute_error_that_is_the_result_is_returned(pair, way):
    assert pair[0].run(is_attribute_error, way)


# ---- errors in unpickling ----


@each_way
@pytest.mark.parametrize("kind", [ValueError, TypeError, OSError, AttributeError])
def test_an_error_in_unpickling_a_result_has_the_type_that_pytorch_gives_it_or_its_own(pair, way, kind):
    failure = pair[0].run(failure_of, way, return_raising, kind)
    pytorchs = kind.__name__ if kind in (ValueError, TypeError) and way is not then else "RuntimeError"
    assert {pytorchs, kind.__name__} & set(failure["kinds"]) and "when unpickled" in failure["text"]


@each_way
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_is_no_exception_is_an_error_where_a_result_raises_it(pair, way, kind):
    failure = pair[0].run(failure_of, way, return_raising, kind)
    assert "RuntimeError" in failure["kinds"]
    assert f"cannot be unpickled: an object in it raised {kind.__name__}('when unpickled')" in failure["text"]
    assert "a result of worker 'worker1'" in failure["text"]


@each_way
def test_what_is_no_exception_and_has_no_words_is_an_error(pair, way):
    failure = pair[0].run(failure_of, way, return_raising, NoExceptionWithoutWords)
    assert "RuntimeError" in failure["kinds"]
    assert "an object in it raised <test_missing_classes.NoExceptionWithoutWords object at 0x" in failure["text"]


@each_way
def test_what_an_exception_raises_when_it_is_unpickled_ends_nothing(pair, way):
    failure = pair[0].run(failure_of, way, raise_raising_error)
    assert "RuntimeError" in failure["kinds"] and "RaisingError('a text')" in failure["text"]


@each_way
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_is_no_exception_is_an_error_where_a_function_raises_it(pair, way, kind):
    failure = pair[0].run(failure_of, way, raise_kind, kind)
    assert "RuntimeError" in failure["kinds"]
    assert f"{kind.__name__}('in the function')" in failure["text"] and ", in raise_kind" in failure["text"]


def interrupted(way):
    """Whether a signal that arrives while a result is unpickled interrupts this program, as it does any other."""
    try:
        way(return_interrupting)
    except KeyboardInterrupt:
        return True
    return False


@pytest.mark.parametrize("way", [sync, fetching], ids=lambda way: way.__name__)
def test_a_signal_still_interrupts_while_a_result_is_unpickled(pair, way):
    assert pair[0].run(interrupted, way)


def tables_after_errors():
    tables = internal._thread_local_tensor_tables
    for function in (lambda: internal.serialize(io), lambda: internal.deserialize(b"no pickle", [torch.ones(1)])):
        with contextlib.suppress(Exception):
            function()
    return [name for name in ("send_tables", "recv_tables") if getattr(tables, name, None) is not None]


def test_an_error_keeps_no_tensors():
    assert tables_after_errors() == []


# ---- texts ----


@pytest.mark.parametrize("way", [sync, waiting, fetching], ids=lambda way: way.__name__)
def test_a_text_arrives_as_it_is(pair, way):
    assert "caf\u00e9 \\\\U \\\\x" in pair[0].run(failure_of, way, raise_text)["text"]


@pytest.mark.parametrize("way", [sync, fetching], ids=lambda way: way.__name__)
def test_an_exception_without_words_arrives(pair, way):
    assert "Unprintable" in pair[0].run(failure_of, way, raise_unprintable)["kinds"]


def test_an_exception_without_attributes_arrives(pair):
    assert "Unreadable('a text')" in pair[0].run(failure_of, sync, raise_unreadable)["text"]


# ---- sizes ----


@pytest.mark.parametrize(
    "make",
    [
        lambda size: torch.zeros(size // 4),
        lambda size: torch.zeros(size // 4)[:1],
        lambda size: torch.zeros(size // 4).untyped_storage(),
        lambda size: torch.zeros(size // 4).numpy(),
        lambda size: bytes(size),
        lambda size: bytearray(size),
        lambda size: "a" * size,
        lambda size: [torch.full((size // 4000,), float(i)) for i in range(1000)],
    ],
)
def test_what_is_too_large_is_not_pickled_first(make):
    error = Exception("large")
    error.attachment = [make(64 << 20)]
    tracemalloc.start()
    try:
        assert bounded_pickle.dumps(error, 1 << 20) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_what_is_small_is_pickled_whole():
    value = {"a": torch.arange(3), "b": [bytes(100), "text", None, 2.5]}
    found = internal.pickle.loads(bounded_pickle.dumps(value, 1 << 20))
    assert found["a"].tolist() == [0, 1, 2] and found["b"] == value["b"]

"""What functions raise on another worker, as the caller gets it: of its own type, in PyTorch's words."""

import builtins
import dataclasses
import pickle
import sys
import threading

import pytest
import torch.distributed.rpc as rpc
import torchwire
from group import running

ATTACHMENT = 1 << 16  # bytes

# ---- what the workers run ----


class NeedsTwo(Exception):
    def __init__(self, code, where):
        super().__init__(f"code {code} at {where}")
        self.code = code


class CannotBePickled(Exception):
    def __init__(self):
        super().__init__("it has a lock")
        self.lock = threading.Lock()


class CannotBeUnpickled(Exception):
    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise ValueError("not to be unpickled")


class Sealed(Exception):
    def __init_subclass__(cls):
        raise TypeError("no subclasses")


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no words")

    __repr__ = object.__repr__


class Plain(Exception):
    pass


class MadeByNew(Exception):
    def __new__(cls, code, where):
        return super().__new__(cls, code, where)

    def __init__(self, code, where):
        super().__init__(f"code {code} at {where}")
        self.code = code


class Slotted(Exception):
    __slots__ = ("__where", "code", "error", "unset")

    def __init__(self, code, *, where):
        super().__init__(code)
        self.code, self.error, self.__where = code, "of the program's", where

    def where(self):
        return self.__where


class TakingClassArguments(Exception):
    def __init_subclass__(cls, code):
        cls.code = code


class OfAClassArgument(TakingClassArguments, code=7):
    pass


class Listing(type):
    """As of an enumeration: a class is as long as its list, and takes an argument."""

    def __new__(mcs, name, bases, names, listed):
        return super().__new__(mcs, name, bases, names)

    def __init__(cls, name, bases, names, listed):
        super().__init__(name, bases, names)
        cls.listed = listed

    def __len__(cls):
        return len(cls.listed)


class Listed(Exception, metaclass=Listing, listed=()):
    code = 7


class Empty(Exception):
    code = 7

    def __len__(self):
        return 0


class ReducedByProtocol(Exception):
    def __init__(self, code, where):
        super().__init__(code, where)
        self.code = code

    def __reduce_ex__(self, protocol):
        return type(self), (self.code, "a pickle")


class ReducedToNoException(Exception):
    code = 7

    def __reduce__(self):
        return str, ("no exception",)


class MadeAsAnother(Exception):
    code = 7

    def __new__(cls, *args):
        return KeyError(*args) if args else super().__new__(cls)


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int
    where: str


GROUPS = hasattr(builtins, "ExceptionGroup")  # from Python 3.11 on

if GROUPS:

    class GroupOfOneArgument(ExceptionGroup):  # noqa: F821
        def __new__(cls, errors):
            return super().__new__(cls, "several", errors)


def raise_key_error():
    raise KeyError("weights")


def raise_value_error():
    raise ValueError("no such value")


def raise_type_error():
    raise TypeError("no such type")


def raise_unicode_error():
    b"\xff".decode()


def raise_os_error():
    open("/nonexistent/file")


def raise_needs_two():
    raise NeedsTwo(7, "the callee")


def raise_cannot_be_pickled():
    raise CannotBePickled


def raise_cannot_be_unpickled():
    raise CannotBeUnpickled("a text")


def raise_sealed():
    raise Sealed("a text")


def raise_large():
    error = Plain("large")
    error.attachment = bytes(1 << 22)
    raise error


def raise_with_an_attachment():
    error = Plain("large")
    error.attachment = bytes(ATTACHMENT)
    raise error


def raise_local():
    class Local(Exception):
        pass

    raise Local("here only")


def raise_unprintable():
    raise Unprintable


def raise_lone_surrogate():
    raise ValueError("half \ud800")


def raise_made_by_new():
    raise MadeByNew(7, "the callee")


def raise_slotted():
    raise Slotted(7, where="the callee")


def raise_of_a_class_argument():
    raise OfAClassArgument


def raise_listed():
    raise Listed


def raise_empty():
    raise Empty


def raise_reduced_by_protocol():
    raise ReducedByProtocol(7, "the callee")


def raise_reduced_to_no_exception():
    raise ReducedToNoException


def raise_made_as_another():
    raise MadeAsAnother


def raise_frozen():
    raise Frozen(7, "the callee") from KeyError("a cause")


def raise_group():
    raise ExceptionGroup("several", [ValueError("first"), KeyError("second")])  # noqa: F821


def raise_group_of_one_argument():
    raise GroupOfOneArgument([ValueError("first"), KeyError("second")])


def raise_group_that_cannot_be_pickled():
    raise ExceptionGroup("several", [CannotBePickled()])  # noqa: F821


def raise_with_a_cause():
    try:
        try:
            raise NeedsTwo(1, "first")
        except NeedsTwo as error:
            raise KeyError("second") from error
    except KeyError as error:
        raise OSError(5, "third") from error


def raise_with_a_cause_that_cannot_be_pickled():
    raise RuntimeError("outer") from CannotBePickled()


def raise_with_notes():
    error = Plain("noted")
    error.__notes__ = ["first note", "second note"]
    raise error


class Unreachable:
    """An argument in whose unpickling a call fails, as an RRef's that tells its owner of itself."""

    def __reduce__(self):
        return _fail_to_call, ()


def _fail_to_call():
    raise torchwire.WorkerUnreachable("worker 'worker7' has left", "worker7", "no")


def take(value):
    raise AssertionError("it was not to run")


def take_on_worker0(_):
    rpc.rpc_sync("worker0", take, (Unreachable(),))


def send_unreachable(to, function):
    rpc.rpc_sync(to, function, (Unreachable() if function is take else None,))


def create_with_unreachable(to, function):
    rpc.remote(to, function, (Unreachable() if function is take else None,)).to_here()


def raise_key_error_from_worker0():
    rpc.rpc_sync("worker0", raise_key_error)


def raise_value_error_from_worker0():
    rpc.rpc_sync("worker0", raise_value_error)


def raise_needs_two_from_worker0():
    rpc.rpc_sync("worker0", raise_needs_two)


raise_from_worker0 = {
    raise_key_error: raise_key_error_from_worker0,
    raise_value_error: raise_value_error_from_worker0,
    raise_needs_two: raise_needs_two_from_worker0,
}


class Unreadable:
    """An argument in whose unpickling an exception is raised that has no words."""

    def __reduce__(self):
        return raise_unprintable, ()


def send_unreadable(to, function):
    rpc.rpc_sync(to, function, (Unreadable(),))


def create_with_unreadable(to, function):
    rpc.remote(to, function, (Unreadable(),)).to_here()


def through_others(way, names, function):
    """Calls the function at the last of the workers, by way of the others."""
    way(names[0], *((through_others, way, names[1:]) if len(names) > 1 else ()), function)


def synchronously(to, function, *args):
    rpc.rpc_sync(to, function, args)


def waiting(to, function, *args):
    rpc.rpc_async(to, function, args).wait()


def fetching(to, function, *args):
    rpc.remote(to, function, args).to_here()


each_way = pytest.mark.parametrize("way", [synchronously, waiting, fetching], ids=lambda way: way.__name__)


def observed(way, to, function, look=None):
    """Facts of the exception, which are the same after a pickle; `look`: makes one more of the exception."""
    error = raised(way, to, function)
    facts = facts_of(error, look)
    assert facts_of(pickle.loads(pickle.dumps(error)), look) == facts
    return facts


def observed_as_it_is(way, *args):
    return facts_of(raised(way, *args))


def observed_through_others(way, names, function, look):
    error = raised(through_others, way, names, function)
    facts = facts_of(error, look)
    assert facts_of(pickle.loads(pickle.dumps(error)), look) == facts
    return facts


def raised(way, *args):
    try:
        way(*args)
    except Exception as error:
        return error
    raise AssertionError("it did not fail")


def facts_of(error, look=None):
    return {
        "name": type(error).__name__,
        "kinds": [kind.__name__ for kind in type(error).__mro__],
        "text": str(error),
        "args_are_the_text": error.args == (str(error),),
        "notes": getattr(error, "__notes__", []),
        "causes": list(causes_of(error)),
        "look": look and look(error),
    }


def causes_of(error):
    while error.__cause__ is not None:
        error = error.__cause__
        yield type(error).__name__, str(error)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with running(2, tmp_path_factory.mktemp("group")) as group:
        yield group


# ---- types ----


@each_way
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (raise_key_error, "KeyError"),
        (raise_os_error, "FileNotFoundError"),
        (raise_needs_two, "NeedsTwo"),
        (raise_cannot_be_pickled, "CannotBePickled"),
        (raise_cannot_be_unpickled, "CannotBeUnpickled"),
        (raise_large, "Plain"),
    ],
)
def test_an_exception_has_its_type_and_is_what_programs_catch(pair, way, function, name):
    facts = pair[0].run(observed, way, "worker1", function)
    assert facts["name"] == name
    assert {name, "RuntimeError"} <= set(facts["kinds"])
    assert "On WorkerInfo(id=1, name=worker1):" in facts["text"] and function.__name__ in facts["text"]


@each_way
@pytest.mark.parametrize(
    ("function", "name", "builtin"),
    [
        (raise_value_error, "ValueError", "ValueError"),
        (raise_type_error, "TypeError", "TypeError"),
        (raise_unicode_error, "UnicodeDecodeError", "ValueError"),
    ],
)
def test_what_pytorch_raises_as_it_is_stays_so(pair, way, function, name, builtin):
    facts = pair[0].run(observed, way, "worker1", function)
    assert facts["name"] == name and builtin in facts["kinds"] and "RuntimeError" not in facts["kinds"]


@each_way
def test_a_type_that_allows_no_subclass_is_kept(pair, way):
    facts = pair[0].run(observed, way, "worker1", raise_sealed)
    assert facts["name"] == "Sealed" and "RuntimeError" in facts["kinds"]
    assert "On WorkerInfo(id=1, name=worker1):" in facts["text"]


# ---- texts ----


@pytest.mark.parametrize("way", [synchronously, waiting], ids=lambda way: way.__name__)
def test_the_text_begins_as_pytorchs(pair, way):
    facts = pair[0].run(observed, way, "worker1", raise_value_error)
    begin = "ValueError: On WorkerInfo(id=1, name=worker1):\nValueError('no such value')\nTraceback (most recent call"
    assert facts["text"].startswith(begin) and facts["args_are_the_text"]


def test_the_text_of_an_rrefs_error_begins_as_pytorchs(pair):
    facts = pair[0].run(observed, fetching, "worker1", raise_value_error)
    assert facts["text"].startswith("On WorkerInfo(id=1, name=worker1):\nValueError('no such value')\nTraceback")


@each_way
@pytest.mark.parametrize(
    ("function", "begin"),
    [
        (raise_made_as_another, "MadeAsAnother()"),
        (raise_unprintable, "<test_remote_errors.Unprintable object at 0x"),
    ],
)
def test_the_text_is_the_remote_errors_where_the_constructor_makes_something_else(pair, way, function, begin):
    facts = pair[0].run(observed, way, "worker1", function)
    prefix = "" if way is fetching else f"{facts['name']}: "
    assert facts["text"].startswith(f"{prefix}On WorkerInfo(id=1, name=worker1):\n{begin}")
    assert function.__name__ in facts["text"]


# ---- what else there is ----


def original_of(error):
    original = error.original
    return original and (type(original).__name__, str(original), getattr(original, "errno", None))


@each_way
def test_the_original_is_there_where_it_can_be_sent(pair, way):
    run = pair[0].run
    assert run(observed, way, "worker1", raise_key_error, original_of)["look"] == ("KeyError", "'weights'", None)
    assert run(observed, way, "worker1", raise_os_error, original_of)["look"][2] == 2
    for function in (raise_needs_two, raise_cannot_be_pickled, raise_cannot_be_unpickled, raise_large):
        assert run(observed, way, "worker1", function, original_of)["look"] is None


def code_of(error):
    return error.code


@each_way
@pytest.mark.parametrize("function", [raise_key_error, raise_value_error, raise_needs_two])
def test_an_exception_passes_through_a_worker_between(pair, way, function):
    facts = pair[0].run(observed, way, "worker1", raise_from_worker0[function])
    assert facts["name"] == {raise_key_error: "KeyError", raise_value_error: "ValueError"}.get(function, "NeedsTwo")
    assert "On WorkerInfo(id=0, name=worker0):" in facts["text"]
    assert "On WorkerInfo(id=1, name=worker1):" in facts["text"]


PASSING = [
    (raise_needs_two, "NeedsTwo"),
    (raise_made_by_new, "MadeByNew"),
    (raise_slotted, "Slotted"),
    (raise_of_a_class_argument, "OfAClassArgument"),
    (raise_listed, "Listed"),
    (raise_empty, "Empty"),
    (raise_reduced_by_protocol, "ReducedByProtocol"),
    (raise_reduced_to_no_exception, "ReducedToNoException"),
    (raise_made_as_another, "MadeAsAnother"),
    (raise_frozen, "Frozen"),
]
ROUTES = [["worker1"], ["worker1", "worker0"], ["worker1", "worker0", "worker1"]]
each_route = pytest.mark.parametrize("names", ROUTES, ids=[1, 2, 3])


@each_way
@each_route
@pytest.mark.parametrize(("function", "name"), PASSING)
def test_the_type_and_the_attributes_pass_through_any_number_of_workers(pair, way, names, function, name):
    facts = pair[0].run(observed_through_others, way, names, function, code_of)
    assert facts["name"] == name and {name, "RuntimeError"} <= set(facts["kinds"])
    assert facts["look"] == 7 and function.__name__ in facts["text"]
    assert facts["text"].count("On WorkerInfo") >= len(names)


def members_of(error):
    return error.message, [repr(member) for member in error.exceptions]


@each_way
@each_route
@pytest.mark.skipif(not GROUPS, reason="this Python has no groups")
@pytest.mark.parametrize("function", [raise_group, raise_group_of_one_argument])
def test_a_group_of_exceptions_passes_through_any_number_of_workers(pair, way, names, function):
    facts = pair[0].run(observed_through_others, way, names, function, members_of)
    assert facts["name"] == {raise_group: "ExceptionGroup"}.get(function, "GroupOfOneArgument")
    assert facts["look"] == ("several", ["ValueError('first')", "KeyError('second')"])
    assert function.__name__ in facts["text"]


def kinds_of_members(error):
    return [type(member).__name__ for member in error.exceptions]


@each_way
@each_route
@pytest.mark.skipif(not GROUPS, reason="this Python has no groups")
def test_a_group_that_cannot_be_pickled_is_one_of_its_text(pair, way, names):
    function = raise_group_that_cannot_be_pickled
    facts = pair[0].run(observed_through_others, way, names, function, kinds_of_members)
    assert facts["name"] == "ExceptionGroup" and facts["look"] == ["RuntimeError"]
    assert "it has a lock" in facts["text"]


def where_of(error):
    return error.where()


@each_way
@each_route
def test_attributes_in_slots_are_kept(pair, way, names):
    assert pair[0].run(observed_through_others, way, names, raise_slotted, where_of)["look"] == "the callee"


def size_of_a_pickle(way, names):
    return len(pickle.dumps(raised(through_others, way, names, raise_with_an_attachment)))


@each_way
def test_what_is_sent_of_an_exception_does_not_double_at_each_worker(pair, way):
    # Once as it was raised, and once more at each worker.
    assert pair[0].run(size_of_a_pickle, way, ROUTES[-1]) < (1 + len(ROUTES[-1]) + 1) * ATTACHMENT


@pytest.mark.parametrize("way", [send_unreadable, create_with_unreadable])
def test_an_exception_without_words_while_arguments_are_unpickled_is_of_its_type(pair, way):
    facts = pair[0].run(observed_as_it_is, way, "worker1", take)
    assert facts["name"] == "Unprintable" and "<test_remote_errors.Unprintable object at 0x" in facts["text"]
    assert "On WorkerInfo(id=1, name=worker1):" in facts["text"]


@pytest.mark.parametrize("function", [take, take_on_worker0])
@pytest.mark.parametrize("way", [send_unreachable, create_with_unreachable])
def test_what_a_call_fails_with_while_arguments_are_unpickled_is_of_its_type(pair, way, function):
    facts = pair[0].run(observed_as_it_is, way, "worker1", function)
    assert {"WorkerUnreachable", "RpcError"} <= set(facts["kinds"])
    assert "worker 'worker7' has left" in facts["text"]


@each_way
def test_attributes_are_kept(pair, way):
    assert pair[0].run(observed, way, "worker1", raise_needs_two, code_of)["look"] == 7


@each_way
def test_causes_are_kept(pair, way):
    facts = pair[0].run(observed, way, "worker1", raise_with_a_cause)
    assert facts["causes"][0] == ("KeyError", "'second'")
    assert facts["causes"][1][0] == "RuntimeError" and facts["causes"][1][1].endswith("NeedsTwo: code 1 at first")
    facts = pair[0].run(observed, way, "worker1", raise_with_a_cause_that_cannot_be_pickled)
    [(name, text)] = facts["causes"]
    assert name == "RuntimeError" and text.endswith("CannotBePickled: it has a lock")


@each_way
def test_notes_are_kept(pair, way):
    facts = pair[0].run(observed, way, "worker1", raise_with_notes)
    assert facts["notes"] == ["first note", "second note"]
    if sys.version_info >= (3, 11):
        assert "second note" in facts["text"]


# ---- nothing fails that does not fail with PyTorch ----


@each_way
def test_a_type_that_cannot_be_sent(pair, way):
    facts = pair[0].run(observed_as_it_is, way, "worker1", raise_local)
    assert "RuntimeError" in facts["kinds"] and "Local" in facts["text"]


@each_way
def test_an_exception_that_has_no_words(pair, way):
    assert pair[0].run(observed_as_it_is, way, "worker1", raise_unprintable)["name"] == "Unprintable"


@each_way
def test_an_exception_whose_text_is_no_utf_8(pair, way):
    facts = pair[0].run(observed_as_it_is, way, "worker1", raise_lone_surrogate)
    assert "ValueError" in facts["kinds"] and r"half \ud800" in facts["text"]

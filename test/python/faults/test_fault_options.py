"""Options of FAULTY_TORCHWIRE, how the backend is registered, and how it takes FAULTY_TENSORPIPE's place."""

import pickle

import pytest
import torch.distributed.rpc as rpc
import torchwire
from torchwire.options import as_agent_options
from torchwire.testing import (
    FaultyTorchwireRpcBackendOptions,
    Plan,
    Rule,
    replace_faulty_tensorpipe,
    restore_faulty_tensorpipe,
)
from torchwire.testing.options import from_any, log_folder_of, plan_of

PLAN = Plan([Rule("drop", nth=2)], seed=5)


@pytest.fixture(autouse=True)
def no_plan_in_the_environment(monkeypatch):
    monkeypatch.delenv("TORCHWIRE_FAULT_PLAN", raising=False)
    monkeypatch.delenv("TORCHWIRE_FAULT_LOG", raising=False)


def test_nothing_goes_wrong_by_default():
    options = FaultyTorchwireRpcBackendOptions()
    assert plan_of(options) == Plan()
    assert log_folder_of(options) is None


def test_pytorchs_options_become_rules():
    options = FaultyTorchwireRpcBackendOptions(
        messages_to_fail=["RREF_USER_DELETE", "BACKWARD_AUTOGRAD_REQ"],
        messages_to_delay={"PYTHON_CALL": 1.5, "SCRIPT_CALL": 0},
        num_fail_sends=3,
        fault_plan=PLAN,
    )
    fails = Rule(
        "fail", name="messages_to_fail", messages=["RREF_USER_DELETE", "GRADIENTS"], at_most=3, each_message=True
    )
    delays = Rule("delay", name="messages_to_delay", messages="PYTHON_CALL", seconds=1.5)
    assert plan_of(options) == Plan([fails, delays, *PLAN.rules], seed=5)
    assert options.messages_to_fail == ["RREF_USER_DELETE", "BACKWARD_AUTOGRAD_REQ"]  # as given
    assert options.messages_to_delay == {"PYTHON_CALL": 1.5, "SCRIPT_CALL": 0}


def test_no_sends_fail_when_none_is_to():
    assert plan_of(FaultyTorchwireRpcBackendOptions(messages_to_fail=["PYTHON_CALL"])) == Plan()


def test_the_plan_may_be_in_a_file(tmp_path, monkeypatch):
    path = tmp_path / "plan.toml"
    options = FaultyTorchwireRpcBackendOptions(fault_plan=path)
    path.write_text(PLAN.to_toml())
    assert plan_of(options) == PLAN  # read now, and not when the options were made
    monkeypatch.setenv("TORCHWIRE_FAULT_PLAN", str(path))
    assert plan_of(FaultyTorchwireRpcBackendOptions()) == PLAN
    assert plan_of(FaultyTorchwireRpcBackendOptions(fault_plan=Plan(seed=2))) == Plan(seed=2)


def test_the_log_folder_may_be_in_the_environment(monkeypatch):
    monkeypatch.setenv("TORCHWIRE_FAULT_LOG", "/there")
    assert log_folder_of(FaultyTorchwireRpcBackendOptions()) == "/there"
    assert log_folder_of(FaultyTorchwireRpcBackendOptions(fault_log="here")) == "here"


def test_frames_have_checksums_unless_told_otherwise():
    assert len(as_agent_options(FaultyTorchwireRpcBackendOptions())["interceptors"]) == 1
    assert as_agent_options(FaultyTorchwireRpcBackendOptions(checksums=False))["interceptors"] == []
    assert from_any(torchwire.TorchwireRpcBackendOptions()).checksums
    assert from_any(rpc.TensorPipeRpcBackendOptions()).checksums


def test_there_are_no_sessions():
    assert as_agent_options(FaultyTorchwireRpcBackendOptions())["session_timeout"] == 0
    assert from_any(torchwire.TorchwireRpcBackendOptions(session_timeout=7)).session_timeout == 0
    assert from_any(rpc.TensorPipeRpcBackendOptions()).session_timeout == 0
    with pytest.raises(ValueError, match="session_timeout must be 0 where faults are injected, got 7"):
        FaultyTorchwireRpcBackendOptions(session_timeout=7)


def test_repr_shows_the_options_of_both_classes():
    shown = repr(FaultyTorchwireRpcBackendOptions(num_worker_threads=3, num_fail_sends=2, fault_plan=PLAN))
    assert shown.startswith("FaultyTorchwireRpcBackendOptions(num_worker_threads=3, ")
    assert f"num_fail_sends=2, fault_plan={PLAN!r}" in shown


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"messages_to_fial": []}, TypeError, "FaultyTorchwire.* has no option .*did you mean 'messages_to_fail'"),
        ({"num_worker_thread": 3}, TypeError, "FaultyTorchwire.* has no option .*did you mean 'num_worker_threads'"),
        ({"num_worker_threads": 0}, ValueError, "num_worker_threads must be at least 1"),
        ({"messages_to_fail": ["X"]}, ValueError, "messages_to_fail: No mapping to rpc::MessageType exists for X"),
        ({"messages_to_fail": "X"}, TypeError, "messages_to_fail must be a list of message types, got 'X'"),
        ({"messages_to_delay": {"X": 1}}, ValueError, "messages_to_delay: No mapping to rpc::MessageType exists for X"),
        ({"messages_to_delay": {"PYTHON_CALL": -1}}, ValueError, r"messages_to_delay\['PYTHON_CALL'\] must be finite"),
        ({"messages_to_delay": ["PYTHON_CALL"]}, TypeError, "messages_to_delay must be a dict .*, got list"),
        ({"num_fail_sends": -1}, ValueError, "num_fail_sends should be non-negative"),
        ({"num_fail_sends": 1.5}, TypeError, "num_fail_sends must be an integer"),
        ({"fault_plan": 3}, TypeError, "fault_plan must be a path"),
        ({"fault_log": ""}, ValueError, "fault_log is empty"),
    ],
)
def test_a_bad_option_is_refused_with_a_sentence(options, kind, sentence):
    with pytest.raises(kind, match=sentence):
        FaultyTorchwireRpcBackendOptions(**options)


def test_options_of_other_backends_are_taken():
    plain = torchwire.TorchwireRpcBackendOptions(num_worker_threads=3, rpc_timeout=7, secret="sixteen or more bytes")
    taken = from_any(plain)
    assert (taken.num_worker_threads, taken.rpc_timeout, taken.secret) == (3, 7, plain.secret)
    taken = from_any(rpc.TensorPipeRpcBackendOptions(num_worker_threads=4, _transports=["uv"]))
    assert (taken.num_worker_threads, taken._transports) == (4, ["uv"])
    with pytest.raises(TypeError, match="must be a `FaultyTensorPipeRpcBackendOptions` or a `FaultyTorchwireRpcBac"):
        from_any(rpc.RpcBackendOptions())


def test_options_of_pytorchs_faulty_backend_are_taken(faulty_tensorpipe):
    taken = from_any(
        rpc._testing.FaultyTensorPipeRpcBackendOptions(
            num_worker_threads=5,
            rpc_timeout=7,
            init_method="env://",
            messages_to_fail=["PYTHON_CALL"],
            messages_to_delay={"SCRIPT_CALL": 1.5},
            num_fail_sends=2,
        )
    )
    assert (taken.num_worker_threads, taken.num_fail_sends, taken.messages_to_fail) == (5, 2, ["PYTHON_CALL"])
    assert taken.messages_to_delay == {"SCRIPT_CALL": 1.5}


# ---- the enum ----


def test_the_backend_comes_before_the_one_whose_options_its_own_derive_from():
    names = list(rpc.BackendType.__members__)
    assert names.index("FAULTY_TORCHWIRE") < names.index("TORCHWIRE")
    member = rpc.BackendType.FAULTY_TORCHWIRE
    assert rpc.BackendType is rpc.backend_registry.BackendType
    assert pickle.loads(pickle.dumps(member)) is member


@pytest.fixture
def faulty_tensorpipe():
    """PyTorch's own member."""
    replace_faulty_tensorpipe()
    restore_faulty_tensorpipe()
    return rpc.BackendType.FAULTY_TENSORPIPE


def test_faulty_tensorpipe_is_replaced_and_restored(faulty_tensorpipe):
    stock = faulty_tensorpipe.value
    faulty_torchwire = rpc.BackendType.FAULTY_TORCHWIRE
    replace_faulty_tensorpipe()
    try:
        assert rpc.BackendType.FAULTY_TENSORPIPE is faulty_tensorpipe
        assert pickle.loads(pickle.dumps(faulty_tensorpipe)) is faulty_tensorpipe
        assert pickle.loads(pickle.dumps(faulty_torchwire)) is faulty_torchwire
        assert faulty_tensorpipe.value.init_backend_handler is faulty_torchwire.value.init_backend_handler
        options = rpc.backend_registry.construct_rpc_backend_options(
            faulty_tensorpipe, num_worker_threads=8, num_fail_sends=3, messages_to_fail=[], messages_to_delay={}
        )
        assert isinstance(options, FaultyTorchwireRpcBackendOptions)
        assert (options.num_worker_threads, options.num_fail_sends, options.rpc_timeout) == (8, 3, 60)
    finally:
        restore_faulty_tensorpipe()
    assert faulty_tensorpipe.value == stock
    restore_faulty_tensorpipe()
    assert faulty_tensorpipe.value == stock

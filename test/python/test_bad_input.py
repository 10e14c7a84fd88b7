"""What is wrong in the input is named in a sentence, and nothing else is harmed by it."""

import re
import socket
import sys
import threading
import types

import pytest
import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
import torchwire
from group import Group, environment_of_store, file_in, init
from processes import WorkerError, WorkerProcess, wait_until

# ---- options: refused when they are set ----

WRONG_OPTIONS = [
    ({"_transports": ["uvv"]}, ValueError, r"_transports: unknown name 'uvv' \(did you mean 'uv'\?\); known are .*shm"),
    ({"_transports": []}, ValueError, "_transports is empty"),
    ({"_transports": "uv"}, TypeError, "_transports must be a list of names"),
    ({"_channels": ["basic", "basik"]}, ValueError, r"_channels: unknown name 'basik' \(did you mean 'basic'\?\)"),
    (
        {"_device_paths": ["ipcs"]},
        ValueError,
        r"_device_paths: unknown name 'ipcs' \(did you mean 'ipc'\?\)",
    ),
    ({"_channels": [1]}, TypeError, "_channels must hold names, got 1"),
    ({"num_worker_thread": 3}, TypeError, r"no option 'num_worker_thread' \(did you mean 'num_worker_threads'\?\)"),
    ({"nonsense": 3}, TypeError, "no option 'nonsense'; it takes num_worker_threads"),
    ({"receive_cache": "1 GiB"}, TypeError, "receive_cache must be a whole number of bytes, got '1 GiB'"),
    ({"receive_cache": True}, TypeError, "receive_cache must be a whole number of bytes, got True"),
    ({"max_bytes_in_flight": 1.5}, TypeError, "max_bytes_in_flight must be a whole number of bytes, got 1.5"),
    ({"receive_cache": -1}, ValueError, r"receive_cache must be from 0 to 2\*\*63 - 1 bytes, got -1"),
    ({"num_worker_threads": 0}, ValueError, "num_worker_threads must be at least 1, got 0"),
    ({"num_worker_threads": 1.5}, TypeError, "num_worker_threads must be an integer, got 1.5"),
    ({"rpc_timeout": -1}, ValueError, "rpc_timeout must be finite and not negative, got -1"),
    ({"rpc_timeout": float("nan")}, ValueError, "rpc_timeout must be finite"),
    ({"rpc_timeout": "60"}, TypeError, "rpc_timeout must be a number of seconds, got '60'"),
    ({"init_method": ""}, ValueError, "init_method is empty"),
    ({"init_method": None}, TypeError, "init_method must be a URL"),
    ({"bind_address": "a:b:c"}, ValueError, "bind_address: 'a:b:c' is not an address"),
    ({"bind_address": "host:99999"}, ValueError, "bind_address: port 99999 in 'host:99999'"),
    ({"bind_address": "[host]:1"}, ValueError, r"bind_address: \[host\] in .* is not an IPv6 address"),
    ({"advertise_address": "host:0"}, ValueError, "advertise_address: port 0"),
    ({"advertise_address": 7}, TypeError, "advertise_address must be text"),
    ({"secret": "too short"}, ValueError, "secret has 9 bytes; at least 16 are needed.*secrets.token_hex"),
    ({"secret": ""}, ValueError, "secret has 0 bytes"),
    ({"secret": 7}, TypeError, "secret must be text, bytes or None, got int"),
    ({"secret": "\udc80" * 16}, ValueError, "secret holds characters that have no UTF-8 form"),
    ({"secret_file": ""}, ValueError, "secret_file is empty"),
    ({"secret_file": 7}, TypeError, "secret_file must be a path"),
    ({"keepalive_interval": 1}, ValueError, "keepalive_interval must be between 2 and 32767 seconds.* got 1 seconds"),
    ({"keepalive_interval": -1}, ValueError, "keepalive_interval must be finite and not negative.*0 switches it off"),
    ({"session_timeout": 0.5}, ValueError, "session_timeout must be between 1 and 86400 seconds.* got 0.5 seconds"),
    ({"session_timeout": 1e300}, ValueError, "session_timeout must be between 1 and 86400 seconds.* got 1e[+]300"),
    ({"session_timeout": -1}, ValueError, "session_timeout must be finite and not negative.* 0 means that calls fail"),
    ({"session_timeout": None}, TypeError, "session_timeout must be a number of seconds, got None"),
    ({"max_unacknowledged_bytes": -1}, ValueError, "max_unacknowledged_bytes must"),
    ({"max_unacknowledged_bytes": "1M"}, TypeError, "max_unacknowledged_bytes must"),
    ({"record_creation_site": 1}, TypeError, r"record_creation_site must be True or False, got 1 \(int\)"),
    ({"checksums": "yes"}, TypeError, r"checksums must be True or False, got 'yes' \(str\)"),
    ({"keepalive_interval": None}, TypeError, "keepalive_interval must be a number of seconds, got None"),
    ({"backward_mode": "smrt"}, ValueError, r"backward_mode: unknown name 'smrt' \(did you mean 'smart'\?\); choose"),
    ({"backward_mode": "FAST"}, ValueError, "backward_mode: unknown name 'FAST'; choose 'smart' or 'fast'"),
    ({"backward_mode": True}, TypeError, r"backward_mode must be the name of an algorithm, got True \(bool\)"),
    (
        {"device_stream_order": "default"},
        ValueError,
        r"unknown name 'default' \(did you mean 'default_stream'\?\); choose 'none' or 'default_stream'",
    ),
    ({"device_stream_order": None}, TypeError, r"device_stream_order must be the name of an order, got None"),
    (
        {"device_maps": {"w": {0: 1, 1: 1}}},
        ValueError,
        "device map for worker 'w': cuda:0 and cuda:1 both map to cuda:1",
    ),
    ({"device_maps": {"w": {"xpu:0": 0}}}, ValueError, "'w': xpu:0 is a xpu device; RPC moves .* cpu and cuda only"),
    (
        {"device_maps": {"w": {0: "meta"}}},
        ValueError,
        "'w': meta is a meta device; .* or xpu or .* only",
    ),
    ({"device_maps": {3: {0: 1}}}, TypeError, "a device map is for a worker's name, got 3"),
    ({"device_maps": [0]}, TypeError, "device_maps must be a dict"),
    ({"devices": ["cpu"]}, ValueError, "devices: the CPU always takes part"),
]


@pytest.mark.parametrize("options, kind, sentence", WRONG_OPTIONS)
def test_a_wrong_option_is_refused_when_it_is_set(options, kind, sentence):
    with pytest.raises(kind, match=sentence):
        torchwire.TorchwireRpcBackendOptions(**options)
    valid = torchwire.TorchwireRpcBackendOptions()
    for name, value in options.items():
        if hasattr(valid, name):
            with pytest.raises(kind, match=sentence):
                setattr(valid, name, value)


# ---- init_rpc: refused, and the same process can then do it right ----

WRONG_INIT = [
    ({"name": ""}, "ValueError: init_rpc: name is empty"),
    ({"name": "w" * 128}, "ValueError: init_rpc: name 'w+'... has 128 characters; use fewer than 128"),
    ({"name": "a b"}, "ValueError: init_rpc: name 'a b' contains ' '"),
    ({"name": "wörker"}, "ValueError: init_rpc: name 'wörker' contains 'ö'"),
    ({"name": "a/b"}, "ValueError: init_rpc: name 'a/b' contains '/'"),
    ({"rank": 1}, r"RuntimeError: worker 'worker0' \(rank 1\) is outside the group: ranks go from 0 to 0"),
    ({"rank": -1}, "ValueError: .*rank parameter missing"),  # PyTorch's own sentence
    ({"world_size": -2}, "ValueError: .*worker 'worker0': world_size must be at least 1, got -2"),
    ({"world_size": 40000}, "ValueError: .*worker 'worker0': world_size is 40000; the most is 32768"),
    ({"bind_address": "no.such.host.invalid"}, "RuntimeError: cannot resolve the host 'no.such.host.invalid'"),
    ({"bind_address": "192.0.2.1"}, "RuntimeError: cannot listen on 192.0.2.1: .*check bind_address"),
    (
        {"bind_address": "192.0.2.1", "_transports": ["uv"]},
        "RuntimeError: cannot listen on 192.0.2.1: .*check bind_address",
    ),
    (
        {"bind_address": "192.0.2.1", "_transports": ["wire_shm"], "_channels": ["mpt_uv"]},
        "RuntimeError: cannot listen on 192.0.2.1: .*check bind_address",
    ),
    ({"secret_file": "/no/such"}, "ValueError: secret_file '/no/such' cannot be read: No such file"),
    ({"device_maps": {"worker1": {0: 0}}}, "ValueError: Node worker0 has invalid target node names in its device maps"),
    ({"devices": [0]}, "ValueError: Node worker0 has devices with invalid indices"),
    ({"_transports": ["shm"]}, "RuntimeError: none of the transports .* name at least 'wire_tcp'"),
    ({"_channels": ["cuda_ipc"]}, "RuntimeError: none of the channels .* name at least 'basic'"),
]


def init_wrongly_then_rightly(init_method, wrong):
    """Returns what the wrong init_rpc said."""
    right = {"init_method": init_method, "name": "worker0", "rank": 0, "world_size": 1}
    said = failure_of(init, **{**right, **wrong})
    if wrong.get("rank", 0) == 0:  # PyTorch's autograd container insists on the first rank that it was told
        init(**right)
        assert rpc.rpc_sync("worker0", torch.add, (torch.ones(1), 1)).item() == 2
        rpc.shutdown()
    return said


def failure_of(function, *args, **kwargs):
    try:
        value = function(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"it was accepted, with the result {value!r}")


@pytest.fixture
def alone():
    """A process of its own, without RPC."""
    with Group(1) as group:
        yield group[0]


@pytest.mark.parametrize("wrong, sentence", WRONG_INIT)
def test_init_rpc_names_the_wrong_argument(alone, tmp_path, wrong, sentence):
    assert re.match(sentence, alone.run(init_wrongly_then_rightly, file_in(tmp_path), wrong))


def test_a_port_in_use_is_named(alone, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = alone.run(init_wrongly_then_rightly, file_in(tmp_path), {"bind_address": address})
    assert f"cannot listen on {address}" in said and "choose another in bind_address" in said


@pytest.mark.parametrize("variable", ["TP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
def test_a_missing_network_interface_is_named_with_those_that_there_are(tmp_path, variable):
    with Group(1, {variable: "nosuch0"}) as group:
        with pytest.raises(WorkerError, match=f"{variable}: no network interface 'nosuch0' .* this host has .*lo"):
            group.init(file_in(tmp_path))


class OtherOptions(rpc.RpcBackendOptions):
    pass


def init_with_other_options(init_method):
    options = OtherOptions()
    options.init_method = init_method
    rpc.init_rpc("w", backend=rpc.BackendType.TORCHWIRE, rank=0, world_size=1, rpc_backend_options=options)


def test_options_of_another_class_are_refused(alone, tmp_path):
    with pytest.raises(WorkerError, match="must be a `TensorPipeRpcBackendOptions` or a `Torchwire.*OtherOptions"):
        alone.run(init_with_other_options, file_in(tmp_path))


def test_init_rpc_twice_is_refused_and_the_first_goes_on(tmp_path):
    init_method = file_in(tmp_path)
    with Group(2) as group:
        group.init(init_method)
        with pytest.raises(WorkerError, match="RPC is already initialized"):
            group[0].run(init, init_method, world_size=2)
        group[0].run(check_that_calls_work)
        group.shut_down()


def check_that_calls_work():
    assert rpc.rpc_sync("worker1", torch.add, (torch.ones(1), 1)).item() == 2


# ---- a store that goes away while workers wait in it for the others ----

_store = None


def host_store():
    global _store
    _store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return _store.port


def test_a_store_that_goes_away_during_init_is_named():
    host = WorkerProcess("host")
    port = host.run(host_store)
    with Group(1, environment_of_store(port)) as group:
        watcher = dist.TCPStore("127.0.0.1", port, is_master=False)
        before = watcher.num_keys()
        pending = group[0].start(init, f"tcp://127.0.0.1:{port}", world_size=2)
        wait_until(lambda: watcher.num_keys() > before)  # the worker has entered its name
        host.kill()
        with pytest.raises(
            WorkerError, match=r"worker 'worker0' \(rank 0\) could not join the RPC group: the rendezvous"
        ):
            pending.result(limit=20)
    host.close()


# ---- calls ----


def echo(value):
    return value


def function_unknown_to_others():
    module = types.ModuleType("only_here")
    exec("def function(): pass", module.__dict__)
    module.function.__module__ = "only_here"
    sys.modules["only_here"] = module
    return module.function


def attribute_unknown_to_others():
    def added():
        pass

    added.__qualname__ = "added"
    globals()["added"] = added
    return added


def call_unknown(make_function):
    rpc.rpc_sync("worker1", make_function())


class NeedsTwo(Exception):
    """Cannot be made from its message alone, as PyTorch would do on the caller's side."""

    def __init__(self, what, where):
        super().__init__(f"{what} failed at {where}")


def raise_needs_two():
    raise NeedsTwo("the pump", "noon")


def raise_local_class():
    class Local(Exception):
        pass

    raise Local("the pump failed")


def raise_silent():
    raise AssertionError


def raise_exit():
    sys.exit("the pump failed")


def return_lock():
    return threading.Lock()


def return_lambda():
    return {"key": lambda: None}


def return_tensor_among_others():
    return {"good": torch.ones(2), "bad": [torch.empty(3, 4, device="meta")]}


def send_lock():
    rpc.rpc_sync("worker1", echo, (threading.Lock(),))


WRONG_CALLS = [
    (call_unknown, (function_unknown_to_others,), "No module named 'only_here'"),
    (call_unknown, (attribute_unknown_to_others,), "added.*Ensure that UDFs are defined on both caller and"),
    (rpc.rpc_sync, ("worker1", raise_needs_two), "Failed to create original exception type.*the pump failed at noon"),
    (rpc.rpc_sync, ("worker1", raise_local_class), "raise_local_class.*Local"),
    (rpc.rpc_sync, ("worker1", raise_silent), "worker1.*AssertionError"),
    (rpc.rpc_sync, ("worker1", raise_exit), "the pump failed"),
    (rpc.rpc_sync, ("worker1", return_lock), "pickle '_?thread.lock' object"),
    (rpc.rpc_sync, ("worker1", return_lambda), "pickle.*return_lambda.<locals>.<lambda>"),
    (
        rpc.rpc_sync,
        ("worker1", return_tensor_among_others),
        "(?s)Response device mapping is not available.*A device map cannot help",
    ),
    (send_lock, (), "pickle '_?thread.lock' object"),
    (
        rpc.rpc_sync,
        ("worker7", echo),
        "worker 'worker0'.*could not find destination name worker7.*'worker0', 'worker1'",
    ),
    (rpc.rpc_sync, (7, echo), "could not find destination rank 7.*'worker0', 'worker1'"),
    (
        torchwire.explain,
        (None,),
        r"TypeError: torchwire.explain\(\): None \(NoneType\) cannot be a worker; pass its name",
    ),
    (torchwire.explain, (1 << 40,), "TypeError: torchwire.explain.*1099511627776"),
    (torchwire.explain, (rpc.WorkerInfo("worker7", 1),), "RuntimeError: .*could not find destination name worker7"),
    (torchwire.explain, (rpc.WorkerInfo("worker1", 7),), "RuntimeError: .*'worker1' has rank 1, not 7"),
    (rpc.rpc_sync, ("worker1", torch.matmul, (torch.ones(2), torch.ones(3))), "inconsistent tensor size"),
    (rpc.rpc_sync, ("worker1", echo, (1,), {"nonsense": 2}), r"echo\(\) got an unexpected keyword argument 'nonsense'"),
]


@pytest.mark.parametrize("function, arguments, sentence", WRONG_CALLS)
def test_a_call_that_cannot_work_fails_with_a_sentence(pair, function, arguments, sentence):
    with pytest.raises(WorkerError, match=f"(?s){sentence}"):
        pair[0].run(function, *arguments)
    pair[0].run(check_that_calls_work)


def bad_calls_among_good_ones(count):
    """Every third call fails, each in another way; returns the results of the good ones."""
    bad = [raise_needs_two, return_lock, return_tensor_among_others]
    futures = [
        rpc.rpc_async("worker1", bad[i // 3 % 3]) if i % 3 == 0 else rpc.rpc_async("worker1", echo, (i,))
        for i in range(count)
    ]
    for future in futures[::3]:
        failure_of(future.wait)
    return [future.wait() for i, future in enumerate(futures) if i % 3]


def test_failing_calls_do_not_disturb_those_beside_them(pair):
    assert pair[0].run(bad_calls_among_good_ones, 300) == [i for i in range(300) if i % 3]

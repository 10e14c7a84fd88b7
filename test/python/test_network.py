"""Groups that span two hosts: network namespaces joined by a cable."""

import os
import shutil
import subprocess
import sys

import pytest

HOSTS = {"a": ("10.77.0.1", "fd77::1"), "b": ("10.77.0.2", "fd77::2")}

WORKER = '''
import sys

import torch
import torch.distributed.rpc as rpc
import torchwire

rank, master, extra = int(sys.argv[1]), sys.argv[2], eval(sys.argv[3])
options = torchwire.TorchwireRpcBackendOptions(init_method=f"tcp://{master}:29500", **extra)
rpc.init_rpc(f"worker{rank}", backend=rpc.BackendType.TORCHWIRE, rank=rank, world_size=2, rpc_backend_options=options)
other = f"worker{1 - rank}"
for size in (2, 1 << 20):
    assert rpc.rpc_sync(other, torch.add, args=(torch.ones(size), 1)).sum() == 2 * size
peer = torchwire.peers()[0]
info = rpc._get_debug_info()
print("peer", peer["address"], peer["transport"], "chosen by", info["agent.address_chosen_by"])
rpc.shutdown()
'''


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


@pytest.fixture(scope="module")
def hosts():
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("making network namespaces needs root and iproute2")
    tag = f"tw{os.getpid() % 10000}"
    names = {key: f"{tag}{key}" for key in HOSTS}
    if ip("netns", "add", names["a"]).returncode != 0:
        pytest.skip("this system does not let root make network namespaces")
    ip("netns", "add", names["b"])
    cable = {key: f"{tag}v{key}" for key in HOSTS}
    ip("link", "add", cable["a"], "netns", names["a"], "type", "veth", "peer", "name", cable["b"], "netns", names["b"])
    for key, (v4, v6) in HOSTS.items():
        ip("-n", names[key], "address", "add", f"{v4}/24", "dev", cable[key])
        ip("-n", names[key], "address", "add", f"{v6}/64", "dev", cable[key], "nodad")
        for device in ("lo", cable[key]):
            ip("-n", names[key], "link", "set", device, "up")
    yield names, cable
    for name in names.values():
        ip("netns", "delete", name)


def run_group(names, master, extra=({}, {}), environment=({}, {})):
    """What the worker of each host printed about its peer."""
    workers = [
        subprocess.Popen(
            ["ip", "netns", "exec", names[key], sys.executable, "-c", WORKER, str(rank), master, repr(extra[rank])],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment[rank]},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, key in enumerate(HOSTS)
    ]
    outputs = []
    for worker in workers:
        out, err = worker.communicate(timeout=120)
        assert worker.returncode == 0, err
        outputs.append(next(line for line in out.splitlines() if line.startswith("peer")))
    return outputs


@pytest.mark.slow
@pytest.mark.parametrize("version", [0, 1], ids=["IPv4", "IPv6"])
def test_a_group_spans_two_hosts(hosts, version):
    master = HOSTS["a"][version]
    bracketed = f"[{master}]" if version else master
    of_a, of_b = run_group(hosts[0], bracketed)
    assert HOSTS["b"][version] in of_a and "route to the store" in of_a
    assert HOSTS["a"][version] in of_b and " uv " in of_b


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["TP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
def test_an_interface_named_in_the_environment_is_used(hosts, variable):
    names, cable = hosts
    environment = tuple({variable: cable[key]} for key in HOSTS)
    of_a, of_b = run_group(names, HOSTS["a"][0], environment=environment)
    assert HOSTS["b"][0] in of_a and f"{variable}={cable['a']}" in of_a
    assert HOSTS["a"][0] in of_b and f"{variable}={cable['b']}" in of_b


@pytest.mark.slow
def test_the_advertised_address_can_differ_from_the_bound_one(hosts):
    extra = tuple({"bind_address": "0.0.0.0", "advertise_address": HOSTS[key][0]} for key in HOSTS)
    of_a, of_b = run_group(hosts[0], HOSTS["a"][0], extra=extra)
    assert f"uv://{HOSTS['b'][0]}:" in of_a
    assert f"uv://{HOSTS['a'][0]}:" in of_b

"""How torchwire enters PyTorch: beside TENSORPIPE, which stays as it was, or, on demand, in its place."""

import importlib.metadata
import os
import pathlib
import pickle
import re

import pytest
import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in, free_port, init
from processes import WorkerError, run_script
from torchwire import command_line, device_report, devices

# The stock agent takes its address from the host's name, which leads nowhere on some machines.
LOOPBACK = {"TP_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}

# ---- what the workers run ----


def stock_options(init_method, **others):
    # Not shm, which keeps a core busy per process.
    return rpc.TensorPipeRpcBackendOptions(init_method=init_method, _transports=["uv"], **others)


def agent_after_init(rank, backend=None, options=None):
    """Starts RPC as told, calls the other worker, and returns the name of the agent's class."""
    rpc.init_rpc(
        f"worker{rank}",
        backend=backend and rpc.BackendType[backend],
        rank=rank,
        world_size=2,
        rpc_backend_options=options,
    )
    assert rpc.rpc_sync(f"worker{1 - rank}", torch.add, (torch.ones(1), 1)).item() == 2
    name = type(rpc.api._get_current_rpc_agent()).__name__
    rpc.shutdown()
    return name


def with_defaults(port, rank):
    """No backend and no options: everything comes from PyTorch and the environment."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    return agent_after_init(rank)


def with_stock_options(init_method, rank, backend=None):
    return agent_after_init(rank, backend, stock_options(init_method))


def with_torchwire_options(init_method, rank):
    return agent_after_init(rank, None, torchwire.TorchwireRpcBackendOptions(init_method=init_method))


def replaced(init_method, rank):
    torchwire.replace_tensorpipe()
    try:
        return agent_after_init(rank, "TENSORPIPE", stock_options(init_method))
    finally:
        torchwire.restore_tensorpipe()


@pytest.fixture
def two():
    with Group(2, LOOPBACK) as group:
        yield group


def both(group, function, *args):
    pending = [worker.start(function, args[0], rank, *args[1:]) for rank, worker in enumerate(group)]
    first, second = (one.result() for one in pending)
    assert first == second
    return first


# ---- beside TENSORPIPE ----


def test_without_a_word_rpc_runs_on_tensorpipe(two, tmp_path):
    assert both(two, with_stock_options, file_in(tmp_path)) == "TensorPipeAgent"
    assert both(two, with_stock_options, file_in(tmp_path), "TENSORPIPE") == "TensorPipeAgent"


def test_pytorchs_defaults_run_on_tensorpipe(two):
    assert both(two, with_defaults, free_port()) == "TensorPipeAgent"


def test_the_backend_follows_from_the_class_of_the_options(two, tmp_path):
    assert both(two, with_torchwire_options, file_in(tmp_path)) == "TorchwireAgent"
    assert both(two, with_stock_options, file_in(tmp_path)) == "TensorPipeAgent"


def test_torchwire_takes_the_options_of_tensorpipe(two, tmp_path):
    assert both(two, with_stock_options, file_in(tmp_path), "TORCHWIRE") == "TorchwireAgent"


def options_that_arrive(init_method):
    options = stock_options(init_method, num_worker_threads=3, rpc_timeout=7, _channels=["basic"])
    rpc.init_rpc("w", rpc.BackendType.TORCHWIRE, rank=0, world_size=1, rpc_backend_options=options)
    threads = rpc.api._get_current_rpc_agent().get_metrics()["agent.thread_pool_size"]
    timeout = rpc.get_rpc_timeout()
    rpc.shutdown()
    return int(threads), timeout


def test_the_values_in_options_of_tensorpipe_count(two, tmp_path):
    assert two[0].run(options_that_arrive, file_in(tmp_path)) == (3, 7)


def test_the_backend_is_a_member_of_the_enum_that_everybody_holds():
    member = rpc.BackendType.TORCHWIRE
    assert rpc.BackendType is rpc.backend_registry.BackendType
    assert member in rpc.BackendType and rpc.BackendType["TORCHWIRE"] is member
    assert pickle.loads(pickle.dumps(member)) is member
    assert rpc.backend_registry.backend_registered("TORCHWIRE")
    assert {"TENSORPIPE", "TORCHWIRE"} <= {backend.name for backend in rpc.BackendType}


def register_another(init_method, rank):
    rpc.backend_registry.register_backend(f"OTHER{rank}", lambda **_: rpc.RpcBackendOptions(), lambda **_: None)
    torchwire.registration.register()
    return agent_after_init(rank, "TORCHWIRE", stock_options(init_method))


def test_it_survives_that_somebody_else_registers_a_backend(two, tmp_path):
    assert both(two, register_another, file_in(tmp_path)) == "TorchwireAgent"


def peers_error(init_method=None):
    if init_method:
        rpc.init_rpc("w", rank=0, world_size=1, rpc_backend_options=stock_options(init_method))
    try:
        torchwire.peers()
    except RuntimeError as error:
        return str(error)
    finally:
        if init_method:
            rpc.shutdown()


def test_peers_says_why_it_cannot_answer(two, tmp_path):
    assert "RPC is not initialized" in two[0].run(peers_error)
    assert "worker 'w' runs on TensorPipeAgent" in two[0].run(peers_error, file_in(tmp_path))


# ---- beside a process group ----


def train_with_gloo(folder, rank):
    """DistributedDataParallel on Gloo and RPC on torchwire in the same process, at the same time."""
    init(f"file://{folder}/rpc", world_size=2)
    dist.init_process_group("gloo", f"file://{folder}/gloo", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
    features = rpc.rpc_sync(f"worker{1 - rank}", torch.full, ((1, 2), float(rank)))
    model(features).sum().backward()
    gradient = model.module.weight.grad.tolist()
    dist.destroy_process_group()
    rpc.shutdown()
    return gradient


@pytest.mark.slow
def test_a_process_group_on_gloo_works_beside_it(two, tmp_path):
    assert both(two, train_with_gloo, tmp_path) == [[0.5, 0.5]]


# ---- in the place of TENSORPIPE ----


def test_replace_and_restore_tensorpipe(two, tmp_path):
    assert both(two, replaced, file_in(tmp_path)) == "TorchwireAgent"
    assert both(two, with_stock_options, file_in(tmp_path), "TENSORPIPE") == "TensorPipeAgent"


def replace_while_running(init_method):
    rpc.init_rpc("w", rank=0, world_size=1, rpc_backend_options=stock_options(init_method))
    try:
        torchwire.replace_tensorpipe()
    finally:
        rpc.shutdown()


def test_replacing_is_refused_while_rpc_runs(two, tmp_path):
    with pytest.raises(WorkerError, match="worker 'w' already runs on TensorPipeAgent; call it before rpc.init_rpc"):
        two[0].run(replace_while_running, file_in(tmp_path))


needs_installation = pytest.mark.skipif(
    not importlib.metadata.entry_points(group="torch.backends", name="torchwire"),
    reason="torchwire is on the path, but not installed with its entry point",
)

# A program that knows nothing of torchwire and starts its workers itself.
PROGRAM = """
import sys
import torch
import torch.multiprocessing
import torch.distributed.rpc as rpc
from torch.distributed.rpc import BackendType, TensorPipeRpcBackendOptions

def work(rank, store):
    options = TensorPipeRpcBackendOptions(init_method="file://" + store, num_worker_threads=4, _transports=["uv"])
    rpc.init_rpc(f"worker{rank}", BackendType.TENSORPIPE, rank, 2, options)
    result = rpc.rpc_sync(f"worker{1 - rank}", torch.add, (torch.ones(2), rank))
    agent = type(rpc.api._get_current_rpc_agent()).__name__
    sys.stdout.write(f"worker {rank} {agent} {result.tolist()}\\n")  # in one piece: there are two of us
    rpc.shutdown()

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, (sys.argv[1],), nprocs=2)
    sys.stdout.write(f"arguments {sys.argv[2:]}\\n")
"""

REPLACEMENT = {"TORCHWIRE_REPLACE_TENSORPIPE": "1"}


def run_program(tmp_path, python_arguments=(), environment=None, program=PROGRAM, module=False):
    """Runs it and returns the sorted lines that it wrote."""
    path = tmp_path / "program.py"
    path.write_text(program)
    environment = {**LOOPBACK, **(environment or {})}
    if module:
        environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    process = run_script(
        "program" if module else path,
        tmp_path / "store",
        "--flag",
        python_arguments=python_arguments,
        environment=environment,
        limit=120,
    )
    assert process.returncode == 0, process.stderr
    return sorted(process.stdout.splitlines())


def lines_on(agent):
    return ["arguments ['--flag']", f"worker 0 {agent} [1.0, 1.0]", f"worker 1 {agent} [2.0, 2.0]"]


@pytest.mark.slow
@needs_installation
class TestAnUnchangedProgramThatSpawnsItsWorkers:
    @pytest.mark.long
    def test_runs_on_tensorpipe_by_itself(self, tmp_path):
        assert run_program(tmp_path) == lines_on("TensorPipeAgent")

    def test_runs_on_torchwire_with_the_environment_variable(self, tmp_path):
        assert run_program(tmp_path, environment=REPLACEMENT) == lines_on("TorchwireAgent")

    def test_runs_on_torchwire_with_the_command(self, tmp_path):
        assert run_program(tmp_path, ["-m", "torchwire", "run"]) == lines_on("TorchwireAgent")

    @pytest.mark.long
    def test_runs_on_torchwire_as_a_module(self, tmp_path):
        arguments = ["-m", "torchwire", "run", "-m"]
        assert run_program(tmp_path, arguments, module=True) == lines_on("TorchwireAgent")

    @pytest.mark.long
    def test_runs_on_torchwire_after_one_line_more(self, tmp_path):
        program = PROGRAM.replace('"__main__":', '"__main__":\n    import torchwire; torchwire.replace_tensorpipe()')
        assert run_program(tmp_path, program=program) == lines_on("TorchwireAgent")


TORCHRUN_PROGRAM = """
import os
import sys
import torch
import torch.distributed.rpc as rpc
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size)
rpc.rpc_sync(f"worker{(rank + 1) % size}", torch.add, (torch.ones(2), 1))
sys.stdout.write(f"worker {rank} {type(rpc.api._get_current_rpc_agent()).__name__}\\n")
rpc.shutdown()
"""


@pytest.mark.slow
@needs_installation
def test_an_unchanged_program_under_torchrun_runs_on_torchwire(tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    lines = run_program(tmp_path, torchrun, REPLACEMENT, TORCHRUN_PROGRAM)
    assert [line for line in lines if line.startswith("worker")] == [
        "worker 0 TorchwireAgent",
        "worker 1 TorchwireAgent",
    ]


# ---- what importing does ----


def run_code(code, **environment):
    return run_script(None, python_arguments=["-c", code], environment=environment)


def test_importing_torch_does_not_import_torchwire():
    process = run_code("import sys, torch; print('torchwire' in sys.modules)", TORCHWIRE_REPLACE_TENSORPIPE="0")
    assert process.stdout == "False\n", process.stderr


def test_init_rpc_imports_nothing():
    process = run_code(
        "import sys, torchwire, torch.distributed.rpc as rpc\n"
        "before = set(sys.modules)\n"
        "options = torchwire.TorchwireRpcBackendOptions(init_method='tcp://localhost:PORT')\n"
        "rpc.init_rpc('w', backend=rpc.BackendType.TORCHWIRE, rank=0, world_size=1, rpc_backend_options=options)\n"
        "print(set(sys.modules) - before)\n"
        "rpc.shutdown()\n".replace("PORT", str(free_port()))
    )
    assert process.stdout == "set()\n", process.stderr


@pytest.mark.slow
@needs_installation
def test_an_unclear_environment_variable_is_named():
    process = run_code("import torch", TORCHWIRE_REPLACE_TENSORPIPE="perhaps")
    assert process.returncode != 0
    assert "TORCHWIRE_REPLACE_TENSORPIPE is 'perhaps'; set it to 1" in process.stderr


@pytest.mark.slow
def test_another_torch_than_the_one_it_was_built_for_is_refused():
    fake = "VERSION, TORCH_VERSION, CUDA, FAULT_INJECTION = '0.1.0', '1.2.3', False, False"
    process = run_code(
        "import sys, types\n"
        "sys.modules['torchwire._releases'] = None\n"  # the table of a wheel
        "build = sys.modules['torchwire._build'] = types.ModuleType('torchwire._build')\n"
        f"exec({fake!r}, build.__dict__)\n"
        "import torchwire\n"
    )
    assert process.returncode == 1
    last = process.stderr.splitlines()[-1]
    found = re.escape(str(torch.__version__))
    assert re.match(rf"ImportError: torchwire 0.1.0 was built for torch 1.2.3, but torch {found} is installed\.", last)
    assert "pip install --no-build-isolation" in last


# ---- the command line ----


def test_info_lists_versions_transports_and_channels(capsys):
    assert command_line.main(["info"]) == 0
    output = capsys.readouterr().out
    assert torchwire.__version__ in output and str(torch.__version__) in output
    assert re.search(r"transports:\n(  .*\n)*  uv ", output) and re.search(r"channels:\n(  .*\n)*  basic ", output)


def test_info_says_what_devices_there_are(capsys, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(device_report, "driver_version", lambda: "580.159.04")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert command_line.main(["info"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"devices:\n  CUDA of torch +13.0\n  NVIDIA driver +580.159.04\n  CUDA devices +2\n", output)


@pytest.mark.parametrize("cuda, driver", [(None, "580.159.04"), ("13.0", None)], ids=["CPU-only torch", "no driver"])
def test_info_does_not_ask_cuda_for_devices_that_cannot_be(monkeypatch, cuda, driver):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(device_report, "driver_version", lambda: driver)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: pytest.fail("it would initialize CUDA"))
    rows = device_report.rows()
    assert rows["CUDA devices"] == "0"
    assert rows["CUDA of torch"] == (cuda or "none: a CPU-only torch")
    assert rows["NVIDIA driver"].startswith(driver or "none: ")


@pytest.fixture
def uncounted_devices():
    devices.has_driver.cache_clear()
    devices._cuda_count.cache_clear()
    yield
    devices.has_driver.cache_clear()
    devices._cuda_count.cache_clear()


@pytest.mark.parametrize(
    "cuda, libraries, runtime_finds, asked",
    [
        ("13.0", [], False, False),
        ("13.0", [], True, True),
        ("13.0", ["libcuda.so.1"], False, True),
        ("13.0", ["libnvidia-ml.so.1"], False, True),
        (None, [], False, True),
    ],
)
def test_torch_is_asked_for_cuda_devices_only_where_there_may_be_a_driver(
    monkeypatch, uncounted_devices, cuda, libraries, runtime_finds, asked
):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(devices, "_loads", libraries.__contains__)
    monkeypatch.setattr(devices, "_runtime_finds_driver", lambda: runtime_finds)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices._cuda_count() == (2 if asked else 0)


@pytest.mark.skipif(any(pathlib.Path("/dev").glob("nvidia*")), reason="there is a driver")
@pytest.mark.skipif(not torch.version.cuda, reason="needs a torch with CUDA")
def test_where_no_driver_is_none_is_found(uncounted_devices):
    assert not devices.has_driver()


def test_info_initializes_nothing_of_cuda():
    # Also where there are devices: cuInit would leave open the driver's device for memory.
    program = """if True:
        import os, torch
        from torchwire import command_line
        command_line.main(["info"])
        files = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if fd.isdigit() and
                 os.path.islink(f"/proc/self/fd/{fd}")]
        assert not torch.cuda.is_initialized() and "/dev/nvidia-uvm" not in files, files
    """
    done = run_script(None, python_arguments=["-c", program])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["nosuch.py"], "there is no script 'nosuch.py' in"),
        (["-m", "nosuch.module"], "there is no module 'nosuch.module'"),
        (["-m", "concurrent"], "'concurrent' is a package without __main__"),
        (["."], "has no __main__.py to run"),
    ],
)
def test_run_says_what_it_cannot_run(capsys, arguments, sentence):
    assert command_line.main(["run", *arguments]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.slow
def test_the_status_and_the_output_of_a_program_pass_through(tmp_path):
    path = tmp_path / "program.py"
    path.write_text("import sys\nprint(__name__, __file__, sys.argv[1:])\nsys.exit(5)")
    process = run_script(path, "-x", python_arguments=["-m", "torchwire", "run"])
    assert process.returncode == 5
    assert process.stdout == f"__main__ {path} ['-x']\n"

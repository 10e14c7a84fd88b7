"""Programs whose source is not touched run on torchwire: in all their processes, in each of the three ways."""

import os
import subprocess
import sys

import pytest

# An unmodified program for PyTorch's own backend, which starts its other workers with multiprocessing spawn.
PROGRAM = '''
import os
import sys

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp


def agent_type():
    return type(rpc.api._get_current_rpc_agent()).__name__


def work(rank, store, names_backend):
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=4, init_method="file://" + store)
    chosen = {"backend": rpc.BackendType.TENSORPIPE} if names_backend else {}
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=3, rpc_backend_options=options, **chosen)
    if rank == 0:
        print("agents", agent_type(), rpc.rpc_sync("worker1", agent_type), rpc.rpc_sync("worker2", agent_type))
        print("sum", rpc.rpc_sync("worker2", torch.add, args=(torch.ones(2), 1)).tolist())
    rpc.shutdown()


if __name__ == "__main__":
    store, names_backend = sys.argv[1], sys.argv[2] == "named"
    context = mp.spawn(work, args=(store, names_backend), nprocs=3, join=False)
    while not context.join():
        pass
'''


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def run(command, **environment):
    return subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}, capture_output=True, text=True, timeout=150
    )


def agents(finished):
    assert finished.returncode == 0, finished.stderr
    assert "sum [2.0, 2.0]" in finished.stdout
    return next(line for line in finished.stdout.splitlines() if line.startswith("agents")).split()[1:]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["named", "inferred"])
class TestEveryProcessRunsOnTorchwire:
    def test_with_the_environment_variable(self, program, tmp_path, backend):
        finished = run([sys.executable, program, tmp_path / "store", backend], TORCHWIRE_REPLACE_TENSORPIPE="1")
        assert agents(finished) == ["TorchwireAgent"] * 3

    def test_with_python_m_torchwire_run(self, program, tmp_path, backend):
        finished = run([sys.executable, "-m", "torchwire", "run", program, tmp_path / "store", backend])
        assert agents(finished) == ["TorchwireAgent"] * 3

    def test_with_one_line_before_it(self, program, tmp_path, backend):
        line = f"import runpy, sys, torchwire; torchwire.replace_tensorpipe(); sys.argv = {['program.py', str(tmp_path / 'store'), backend]!r}"
        start = tmp_path / "start.py"
        start.write_text(f"{line}\nif __name__ == '__main__':\n    runpy.run_path({str(program)!r}, run_name='__main__')\n")
        finished = run([sys.executable, start])
        assert agents(finished) == ["TorchwireAgent"] * 3


@pytest.mark.slow
def test_without_any_of_them_the_program_runs_on_tensorpipe(program, tmp_path):
    finished = run([sys.executable, program, tmp_path / "store", "named"])
    assert agents(finished) == ["TensorPipeAgent"] * 3


UNDER_TORCHRUN = '''
import os

import torch.distributed.rpc as rpc

rank = int(os.environ["RANK"])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
print("agent", type(rpc.api._get_current_rpc_agent()).__name__, flush=True)
rpc.shutdown()
'''


@pytest.mark.slow
def test_under_torchrun(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(UNDER_TORCHRUN)
    finished = run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", path],
        TORCHWIRE_REPLACE_TENSORPIPE="1",
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("agent TorchwireAgent") == 2


IMPORTS = "import sys, torch; print('torchwire' in sys.modules)"


def test_an_unset_variable_costs_no_import():
    assert run([sys.executable, "-c", IMPORTS], TORCHWIRE_REPLACE_TENSORPIPE="").stdout.strip() == "False"
    assert run([sys.executable, "-c", IMPORTS], TORCHWIRE_REPLACE_TENSORPIPE="1").stdout.strip() == "True"


BESIDE_DDP = '''
import sys

import torch
import torch.distributed as dist
import torchwire
import torch.distributed.rpc as rpc

store = sys.argv[1]
dist.init_process_group("gloo", init_method="file://" + store + "pg", rank=0, world_size=1)
options = torchwire.TorchwireRpcBackendOptions(init_method="file://" + store)
rpc.init_rpc("worker0", backend=rpc.BackendType.TORCHWIRE, rank=0, world_size=1, rpc_backend_options=options)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
model(torch.ones(1, 2)).sum().backward()
total = torch.ones(1)
dist.all_reduce(total)
print("gradient", model.module.weight.grad.tolist(), "total", total.item())
rpc.shutdown()
dist.destroy_process_group()
'''


def test_process_groups_and_ddp_work_in_the_same_process(tmp_path):
    finished = run([sys.executable, "-c", BESIDE_DDP, tmp_path / "store"])
    assert finished.returncode == 0, finished.stderr
    assert "gradient [[1.0, 1.0], [1.0, 1.0]] total 1.0" in finished.stdout


STOCK_INTACT = '''
import sys
from torch.distributed.rpc import BackendType as early

import torch.distributed.rpc as rpc
import torchwire

assert early is rpc.BackendType is rpc.backend_registry.BackendType
assert early.TORCHWIRE in list(rpc.BackendType)
rpc.init_rpc("worker0", rank=0, world_size=1, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method="file://" + sys.argv[1]))
print(type(rpc.api._get_current_rpc_agent()).__name__)
rpc.shutdown()
rpc.init_rpc("worker0", rank=0, world_size=1, rpc_backend_options=torchwire.TorchwireRpcBackendOptions(init_method="file://" + sys.argv[1] + "2"))
print(type(rpc.api._get_current_rpc_agent()).__name__)
rpc.shutdown()
'''


def test_importing_keeps_stock_intact_and_options_tell_the_backend(tmp_path):
    finished = run([sys.executable, "-c", STOCK_INTACT, tmp_path / "store"])
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split() == ["TensorPipeAgent", "TorchwireAgent"]


def test_another_torch_than_the_one_built_for_is_an_import_error_that_names_both():
    code = "import torch; torch.__version__ = torch.torch_version.TorchVersion('1.0.0'); import torchwire"
    finished = run([sys.executable, "-c", code])
    assert finished.returncode != 0
    assert "ImportError" in finished.stderr
    last = finished.stderr.strip().splitlines()[-1]
    assert "1.0.0" in finished.stderr and "2." in last

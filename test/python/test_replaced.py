"""What torchwire replaces of PyTorch's functions is what its table says, and goes when that says so."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from torch_functions import Snapshot
from torchwire import (
    calls,
    distributed_autograd,
    failed_start,
    gathering,
    lifetime,
    operators,
    pickling,
    proxies,
    remote_errors,
    rendezvous,
    replaced,
)
from torchwire.replaced import Until

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "replaced.md"

INSTALLED_AT_IMPORT = (
    pickling,
    remote_errors,
    distributed_autograd,
    calls,
    proxies,
    lifetime,
    gathering,
    operators,
    rendezvous,
    failed_start,
)

# Prints at each step what has changed since an earlier one.
PROGRAM = """
import json, os, sys

sys.path.insert(0, {folder!r})
import torch.distributed.rpc as rpc
from torch.distributed.rpc import rref_proxy  # which nothing imports before it is used
from torch_functions import Snapshot

assert "torchwire" not in sys.modules
original = Snapshot()

def tell(before):
    print(json.dumps(before.changed()), flush=True)

import torchwire
tell(original)
imported = Snapshot()
rpc.init_rpc("alone", rank=0, world_size=1, backend=rpc.BackendType.TORCHWIRE,
             rpc_backend_options=torchwire.TorchwireRpcBackendOptions(init_method="file://" + {store!r}))
tell(imported)
running = Snapshot()
child = os.fork()
if child == 0:
    tell(imported)
    rpc.shutdown()
    tell(imported)
    os._exit(0)
os.waitpid(child, 0)
tell(running)
torchwire.propagate_opentelemetry()
tell(running)
torchwire.propagate_opentelemetry(False)
tell(running)
rpc.shutdown()
tell(imported)
"""


def names(*headings):
    return {path for heading in headings for row in replaced.TABLE[heading] for path in row.paths()}


def test_no_other_function_of_torch_is_replaced_and_none_for_longer(tmp_path):
    pytest.importorskip("opentelemetry")
    program = PROGRAM.format(folder=str(HERE), store=str(tmp_path / "store"))
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, check=True, timeout=60
    )
    steps = [set(json.loads(line)) for line in done.stdout.splitlines()]
    imported, running, forked, child_left, untouched, traced, untraced, shut_down = steps
    later = {"sys.exit"}
    assert imported == names(Until.NEVER) - later
    assert running == names(Until.SHUTDOWN) | later
    assert forked == names(Until.LEFT) | later
    assert traced == names(Until.UNTRACED)
    assert untouched == untraced == set()
    assert child_left == shut_down == later


def test_torchwire_may_be_imported_again_after_an_import_that_failed():
    before = Snapshot()
    for module in INSTALLED_AT_IMPORT:
        module.install()
    assert before.changed() == []


def test_what_is_in_no_table_is_not_replaced():
    with pytest.raises(KeyError, match=r"torch.distributed.rpc.api.get_worker_info is not in the table"):
        replaced.for_good("torch.distributed.rpc.api.get_worker_info", lambda original: original)
    replacements = replaced.Replacements(Until.SHUTDOWN)
    with pytest.raises(KeyError, match="_validate_rpc_args"):
        replacements.replace("torch.distributed.rpc._validate_rpc_args", lambda original: original)


def test_the_page_is_made_of_the_table():
    assert PAGE.read_text() == replaced.page()

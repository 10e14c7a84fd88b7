"""Faults on purpose, to test what a distributed program does about them: the backend `FAULTY_TORCHWIRE`.

Importing this package registers the backend; it fails where, when and how a plan says:

    import torch.distributed.rpc as rpc
    from torchwire.testing import FaultyTorchwireRpcBackendOptions, Plan, Rule

    plan = Plan([Rule("delay", messages="call", to="ps*", seconds=0.2, probability=0.1)], seed=7)
    options = FaultyTorchwireRpcBackendOptions(fault_plan=plan)
    rpc.init_rpc("trainer0", rpc.BackendType.FAULTY_TORCHWIRE, rank=0, world_size=2, rpc_backend_options=options)

Raises ImportError when torchwire was built without faults, as releases are.
"""

from __future__ import annotations

from torchwire._build import FAULT_INJECTION

if not FAULT_INJECTION:
    raise ImportError(
        "this torchwire was built without fault injection, as releases are; build it with, in its source folder: "
        "pip install --no-build-isolation -Csetup-args=-Dfault_injection=true ."
    )

from torchwire.testing import backend
from torchwire.testing.control import clear_plan, current_plan, fault_log, replay, set_plan
from torchwire.testing.duration import Exponential, Normal, Uniform
from torchwire.testing.fault import Fault, read_logs
from torchwire.testing.options import FaultyTorchwireRpcBackendOptions
from torchwire.testing.plan import Plan
from torchwire.testing.replacement import replace_faulty_tensorpipe, restore_faulty_tensorpipe
from torchwire.testing.rule import Rule
from torchwire.testing.run import Run, WorkerFailure
from torchwire.testing.workers import run_workers

__all__ = [
    "Exponential",
    "Fault",
    "FaultyTorchwireRpcBackendOptions",
    "Normal",
    "Plan",
    "Rule",
    "Run",
    "Uniform",
    "WorkerFailure",
    "clear_plan",
    "current_plan",
    "fault_log",
    "read_logs",
    "replace_faulty_tensorpipe",
    "replay",
    "restore_faulty_tensorpipe",
    "run_workers",
    "set_plan",
]

backend.register()

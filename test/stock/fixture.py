"""The fixture that points PyTorch's RPC suites at a backend: TORCHWIRE unless told otherwise.

Environment:
    TORCHWIRE_TEST_BACKEND     name of a registered backend, such as TENSORPIPE
    TORCHWIRE_TEST_TRANSPORTS  comma-separated; unset leaves the backend's defaults
    TORCHWIRE_TEST_CHANNELS    likewise
    TORCHWIRE_TEST_ENCRYPTION  1: encryption=True
    TORCHWIRE_TEST_BACKWARD_MODE  smart or fast; unset leaves the backend's default
    TORCHWIRE_TEST_FAULT_PLAN  a TOML file, for FAULTY_TORCHWIRE; unset: nothing goes wrong
    TORCHWIRE_TEST_FAULT_SEED  in the place of the plan's
    TORCHWIRE_TEST_PROFILER    1: each rank is profiled; tests with a profiler of their own are left out
"""

import dataclasses
import os
import zlib

import backend_name
import backward_mode
import fault_plan
import torch.distributed.rpc as rpc
from fork_server import ForkServerSpawning
from torch.testing._internal.common_distributed import tp_transports
from torch.testing._internal.distributed.rpc.rpc_agent_test_fixture import (
    RpcAgentTestFixture,
)

if backend_name.IS_OURS:
    import torchwire
if backend_name.NAME == backend_name.FAULTY:
    import torchwire.testing


def _names(variable):
    """The comma-separated names in an environment variable; None where it is not set."""
    value = os.environ.get(variable)
    return [name.strip() for name in value.split(",")] if value else None


def _extra_options():
    """What the environment asks for, as keyword arguments of the options' constructor."""
    extra = {
        "_transports": _names("TORCHWIRE_TEST_TRANSPORTS"),
        "_channels": _names("TORCHWIRE_TEST_CHANNELS"),
        "encryption": os.environ.get("TORCHWIRE_TEST_ENCRYPTION") == "1" or None,
    }
    if backward_mode.NAME != backward_mode.DEFAULT:
        extra["backward_mode"] = backward_mode.NAME
    if backend_name.NAME == "TENSORPIPE" and extra["_transports"] is None:
        extra["_transports"] = tp_transports()  # what PyTorch's own fixture does
    return {name: value for name, value in extra.items() if value is not None}


def _fault_plan(test):
    """The plan with a seed of the test's own: all tests exchange much the same messages, and one seed would choose the
    same of them in each."""
    plan = torchwire.testing.Plan.from_toml(fault_plan.FILE)
    seed = plan.seed if fault_plan.SEED is None else int(fault_plan.SEED)
    return dataclasses.replace(plan, seed=zlib.crc32(f"{seed} {test.id()}".encode()))


class TorchwireRpcAgentTestFixture(ForkServerSpawning, RpcAgentTestFixture):
    @property
    def rpc_backend(self):
        return rpc.BackendType[backend_name.NAME]

    @property
    def rpc_backend_options(self):
        faults = {"fault_plan": _fault_plan(self)} if fault_plan.FILE else {}
        return rpc.backend_registry.construct_rpc_backend_options(
            self.rpc_backend, init_method=self.init_method, **_extra_options(), **faults
        )

    def get_shutdown_error_regex(self):
        return ".*"

    def get_timeout_error_regex(self):
        return "RPC ran for more than"


if backend_name.NAME == backend_name.FAULTY:
    from torch.testing._internal.distributed.rpc.faulty_rpc_agent_test_fixture import (
        FaultyRpcAgentTestFixture,
    )

    # PyTorch's fixture and tests name FAULTY_TENSORPIPE, and stay as they are.
    torchwire.testing.replace_faulty_tensorpipe()

    class FaultyTorchwireRpcAgentTestFixture(ForkServerSpawning, FaultyRpcAgentTestFixture):
        pass

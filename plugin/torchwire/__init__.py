"""torchwire: an RPC backend for stock PyTorch.

Importing this package registers the backend `TORCHWIRE` with `torch.distributed.rpc`:

    import torch.distributed.rpc as rpc
    import torchwire

    rpc.init_rpc("worker0", backend=rpc.BackendType.TORCHWIRE, rank=0, world_size=2)

A program that cannot be changed runs on torchwire through `python -m torchwire run script.py`, or with the environment
variable TORCHWIRE_REPLACE_TENSORPIPE=1.

Raises ImportError when the installed torch is not the one that torchwire was built for, or has no RPC.
"""

# The order below is the point: torch, then the checks, then the extension, then what needs it.

from __future__ import annotations

try:
    import torch  # noqa: F401 # pyright: ignore[reportUnusedImport] - its autoload hook may import this module, which is still empty: that does no harm

    from torchwire import compatibility

    compatibility.require_matching_torch(__path__)
    compatibility.require_rpc()

    from torchwire import pickling, remote_errors

    pickling.install()  # the extension looks up what these two replace
    remote_errors.install()
    compatibility.require_extension()
except (ImportError, OSError) as error:  # OSError: torch's own libraries do not load
    from torchwire.doctor import without_torchwire

    without_torchwire.run_if_asked(error)  # `python -m torchwire doctor` says what is wrong
    raise

from torchwire import (
    calls,
    devices,
    distributed_autograd,
    exit_hook,
    failed_start,
    forked_child,
    gathering,
    lifetime,
    operators,
    proxies,
    registration,
    rendezvous,
    replacement,
)
from torchwire._build import VERSION as __version__
from torchwire._C import TorchwireAgent
from torchwire.call_future import CallFuture
from torchwire.current_agent import peers
from torchwire.distributed_autograd import autograd_contexts
from torchwire.errors import CallCancelled, CallTimedOut, Overloaded, RpcError, WorkerDied, WorkerUnreachable
from torchwire.explanation import Explanation, explain
from torchwire.giving_up import CurrentCall, cancel, current_call, deadline
from torchwire.observe.dump import dump
from torchwire.observe.json_lines import log_metrics
from torchwire.observe.metrics import metrics
from torchwire.observe.trace import trace
from torchwire.options import TorchwireRpcBackendOptions
from torchwire.records import AutogradContextInfo, PeerInfo, RRefInfo
from torchwire.replacement import replace_tensorpipe, restore_tensorpipe
from torchwire.rrefs import rrefs
from torchwire.trace_context import propagate_opentelemetry
from torchwire.worker_events import on_worker_joined, on_worker_lost

__all__ = [
    "AutogradContextInfo",
    "CallCancelled",
    "CallFuture",
    "CallTimedOut",
    "CurrentCall",
    "Explanation",
    "Overloaded",
    "PeerInfo",
    "RRefInfo",
    "RpcError",
    "TorchwireAgent",
    "TorchwireRpcBackendOptions",
    "WorkerDied",
    "WorkerUnreachable",
    "__version__",
    "autograd_contexts",
    "cancel",
    "current_call",
    "deadline",
    "dump",
    "explain",
    "log_metrics",
    "metrics",
    "on_worker_joined",
    "on_worker_lost",
    "peers",
    "propagate_opentelemetry",
    "replace_tensorpipe",
    "restore_tensorpipe",
    "rrefs",
    "trace",
]

registration.register()
distributed_autograd.install()
calls.install()
proxies.install()
lifetime.install()
forked_child.install()
gathering.install()
operators.install()
rendezvous.install()
devices.has_driver()
failed_start.install()
exit_hook.watch()

replacement.replace_if_requested()  # last, because it needs everything above

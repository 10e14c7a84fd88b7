"""Parts of PyTorch's Python side that are private, or have no types there.

They are PyTorch's own objects. torch_parts.pyi says their types, and stubtest compares it with the installed torch. A
module that puts a function of its own in the place of one of PyTorch's names that one itself.
"""

# Private, exported without saying so, or without types: what is here is here because of that.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import torch.distributed as dist
import torch.distributed.rpc as rpc
from torch._C import _get_privateuse1_backend_name
from torch.distributed.rendezvous import _rendezvous_helper, _torchelastic_use_agent_store
from torch.distributed.rpc import backend_registry
from torch.jit import _builtins

Store = dist.Store
FileStore = dist.FileStore
PrefixStore = dist.PrefixStore
TCPStore = dist.TCPStore
register_rendezvous_handler = dist.register_rendezvous_handler
rendezvous_helper = _rendezvous_helper
rendezvous_uses_agent_store = _torchelastic_use_agent_store

TensorPipeOptions = rpc._TensorPipeRpcBackendOptionsBase
is_current_rpc_agent_set = rpc._is_current_rpc_agent_set
get_current_rpc_agent = rpc._get_current_rpc_agent
set_and_start_rpc_agent = rpc._set_and_start_rpc_agent
reset_current_rpc_agent = rpc._reset_current_rpc_agent
cleanup_python_rpc_handler = rpc._cleanup_python_rpc_handler
rref_context_get_debug_info = rpc._rref_context_get_debug_info

init_rpc = rpc.init_rpc
get_worker_info = rpc.get_worker_info
rpc_sync = rpc.rpc_sync
rpc_async = rpc.rpc_async
remote = rpc.remote
async_execution = rpc.functions.async_execution

backend_registered = backend_registry.backend_registered
register_backend = backend_registry.register_backend
construct_rpc_backend_options = backend_registry.construct_rpc_backend_options

find_builtin = _builtins._find_builtin
get_privateuse1_backend_name = _get_privateuse1_backend_name

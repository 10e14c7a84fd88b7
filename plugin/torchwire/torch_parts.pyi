"""The types of what torch_parts.py hands on."""

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from torch._C._distributed_c10d import FileStore as FileStore
from torch._C._distributed_c10d import PrefixStore as PrefixStore
from torch._C._distributed_c10d import Store as Store
from torch._C._distributed_c10d import TCPStore as TCPStore
from torch._C._distributed_rpc import (
    RpcAgent,
    RpcBackendOptions,
    WorkerInfo,
    _TensorPipeRpcBackendOptionsBase,  # pyright: ignore[reportPrivateUsage]
)
from torch.distributed.rpc import RRef
from torch.futures import Future

_Result = TypeVar("_Result")
_Function = TypeVar("_Function", bound=Callable[..., Future[Any]])

TensorPipeOptions = _TensorPipeRpcBackendOptionsBase

_Worker = str | int | WorkerInfo

def register_rendezvous_handler(scheme: str, handler: Callable[..., Iterator[tuple[Store, int, int]]]) -> None: ...
def rendezvous_helper(
    url: str, rank: int, world_size_opt: int | None, **kwargs: Any
) -> Iterator[tuple[Store, int, int]]: ...
def rendezvous_uses_agent_store() -> bool: ...
def is_current_rpc_agent_set() -> bool: ...
def get_current_rpc_agent() -> RpcAgent: ...
def set_and_start_rpc_agent(agent: RpcAgent) -> None: ...
def reset_current_rpc_agent() -> None: ...
def cleanup_python_rpc_handler() -> None: ...
def rref_context_get_debug_info() -> dict[str, str]: ...
def init_rpc(
    name: str,
    backend: enum.Enum | None = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: RpcBackendOptions | None = None,
) -> None: ...
def get_worker_info(worker_name: str | WorkerInfo | None = None) -> WorkerInfo: ...
def rpc_sync(
    to: _Worker,
    func: Callable[..., _Result],
    args: Sequence[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    timeout: float = ...,
) -> _Result: ...
def rpc_async(
    to: _Worker,
    func: Callable[..., _Result],
    args: Sequence[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    timeout: float = ...,
) -> Future[_Result]: ...
def remote(
    to: _Worker,
    func: Callable[..., _Result],
    args: Sequence[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    timeout: float = ...,
) -> RRef[_Result]: ...
def async_execution(fn: _Function) -> _Function: ...
def backend_registered(backend_name: str) -> bool: ...
def register_backend(
    backend_name: str,
    construct_rpc_backend_options_handler: Callable[..., RpcBackendOptions],
    init_backend_handler: Callable[..., RpcAgent],
) -> enum.Enum: ...
def construct_rpc_backend_options(
    backend: enum.Enum, rpc_timeout: float = ..., init_method: str = ..., **kwargs: Any
) -> RpcBackendOptions: ...
def find_builtin(fn: Any) -> str | None: ...
def get_privateuse1_backend_name() -> str: ...

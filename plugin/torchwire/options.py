"""The options of a torchwire agent."""

# The options that begin with an underscore do so in PyTorch's own too; the functions below convert them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Literal, NoReturn, TypeVar, overload

import torch
import torch.distributed.rpc as rpc

from torchwire import _C, device_map, devices, group_secret, option_checks, torch_parts
from torchwire.device_map import DeviceLike, DeviceMap
from torchwire.suggestion import did_you_mean

Value = TypeVar("Value")
Options = TypeVar("Options", bound="TorchwireRpcBackendOptions")


class _Checked(Generic[Value]):
    """An attribute whose value passes through a check whenever it is set, so that a bad one never gets in."""

    def __init__(self, check: Callable[[str, Any], Value]) -> None:
        self._check = check

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> _Checked[Value]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else self._read(instance)

    def __set__(self, instance: Any, value: Any) -> None:
        self._write(instance, self._check(self._name, value))

    def _read(self, instance: Any) -> Any:
        return instance.__dict__[self._name]

    def _write(self, instance: Any, value: Value) -> None:
        instance.__dict__[self._name] = value


class _CheckedInBase(_Checked[Value]):
    """Like _Checked, for an attribute that PyTorch's base class stores, where libtorch and init_rpc read it."""

    def _read(self, instance: Any) -> Any:
        return getattr(rpc.RpcBackendOptions, self._name).__get__(instance)

    def _write(self, instance: Any, value: Value) -> None:
        getattr(rpc.RpcBackendOptions, self._name).__set__(instance, value)


class _CheckedAlternative(_Checked[Value]):
    """Like _Checked, for an attribute that may have a value only while the one named `other` has none."""

    def __init__(self, check: Callable[[str, Any], Value], other: str) -> None:
        super().__init__(check)
        self._other = other

    def _write(self, instance: Any, value: Value) -> None:
        if value is not None and instance.__dict__.get(self._other) is not None:
            raise ValueError(f"{self._name} and {self._other} are both given; give one, and leave the other at None")
        super()._write(instance, value)


def _transport_names(argument: str, value: Any) -> list[str] | None:
    return option_checks.names(argument, value, _C.TRANSPORTS)


def _channel_names(argument: str, value: Any) -> list[str] | None:
    return option_checks.names(argument, value, _C.CHANNELS)


def _device_path_names(argument: str, value: Any) -> list[str] | None:
    return option_checks.names(argument, value, dict.fromkeys(("process", "ipc", "nccl", "host"), ""))


# Not derived from TensorPipeRpcBackendOptions: init_rpc infers the backend by asking of one after the other whether the
# options are an instance of its class, and an instance of a subclass would be one of both.
class TorchwireRpcBackendOptions(rpc.RpcBackendOptions):
    """Options of the backend `TORCHWIRE`, for the `rpc_backend_options` of `rpc.init_rpc`. All are keyword-only.

    num_worker_threads: threads that run requests of peers. Default 16, at least 1.
    num_spare_threads: further threads that run requests, and callbacks of futures, in the places of those that wait for
        calls; 0: none, so that workers whose functions call each other may stand still until a time-out. Default 256.
    rpc_timeout: seconds until a call without a time-out of its own fails. Default 60; 0 means never.
    init_method: URL of the rendezvous, as for `torch.distributed.init_process_group`. Default "env://".
    device_maps: for each peer, a dict from this worker's devices to the peer's (index, name or torch.device). Tensors
        of requests go that way, those of responses and gradients back. "cpu" may stand on either side: its tensors
        then move to a device, or a device's to the CPU. "auto": each device to that of the same index, for all peers.
        Default: none, so that only CPU tensors travel.
    devices: this worker's accelerator devices that calls use. Default: those that device maps name.
    bind_address: "host", "host:port" or "[v6]:port" to listen on. Default: chosen automatically.
    advertise_address: the same forms, where peers connect. Default: what is listened on.
    secret: what the workers of the group prove to each other that they know, at least 16 bytes; the same on all.
        Text counts as UTF-8. `repr` does not show it. Default: none.
    secret_file: a file that holds the secret instead, without its trailing newline; or several, each on a line below
        the line `secrets:`, of which the first is used and all are accepted. It is looked at every two seconds, so that
        the secret can be changed while the group runs (`python -m torchwire secret`). Default: the file named by the
        environment variable TORCHWIRE_SECRET_FILE. With no secret at all, the first worker draws one and the others
        find it in the store. docs/security.md says what each protects from.
    encryption: which connections of 'wire_tcp' are encrypted. "auto", the default: all but those within one host, where
        the kernel keeps others out; connections between hosts by what cannot be ('uv', 'mpt_uv') are refused then, and
        `nccl` is not used there. True: those within one host, too; then `init_rpc` refuses what cannot be. False: none.
        All workers have to agree on False. Costs some CPU: docs/performance.md says how much.
    keepalive_interval: seconds after which a silent TCP connection is probed; a peer that does not answer for twice
        as long is taken for gone. A connection on which a message has begun and does not go on is replaced after half
        of this time, at least 1.8; without sessions it ends after twice this time. Default 10, at least 2; 0 means
        never.
    session_timeout: seconds that two workers whose connection has broken have to connect again. Within them nothing is
        lost: calls take longer, what had not arrived is sent once more, and no call runs twice. After them the calls
        under way between the two fail, and the worker that is not to be heard is taken for dead by the group: it takes
        part no more, should it live. Default 10, at least 1; 0 means that calls fail with their connection. Where the
        two differ, each keeps to its own; where one says 0, both do.
    max_unacknowledged_bytes: bytes of messages to one worker that are kept, for that, until it has said that they have
        arrived, which takes some 20 ms at most. What comes on top waits. A single larger message goes alone.
        Default 64 MiB.
    backward_mode: what a distributed backward pass that begins here does when its roots do not use the results of all
        calls in the context. "smart", the default, finds out which they use once the pass comes to a stop, and goes on
        without the others; "fast" fails at the time-out.
    record_creation_site: whether `rpc.remote` and `rpc.RRef` record where in the program they are called, for
        `torchwire.rrefs()` and the report of leaked RRefs. Default False; costs each of them a message.
    inherit_deadline: whether the calls that a function makes while it serves a call end when that call's caller waits
        no longer, where that one has set a `torchwire.deadline()`. Default False. It counts from when the request has
        arrived, and holds for the calls of the thread on which the function runs.
    elastic: whether a static group (one with a `world_size`) may change while it runs: another process may come in
        place of a worker that has died, under its name and rank, and further workers may join, under any rank; they
        give the same `world_size`, with which the group has begun. The same on all workers. Default False. Graceful
        shutdowns wait for all who are there, and nobody can join any more once one has begun. A group without
        `world_size` may always change.
    receive_cache: bytes of memory that a worker keeps for about ten seconds after tensors that were received in it are
        gone, for the next ones: memory that is mapped already is written to several times as fast. Default 256 MiB; 0
        keeps none.
    max_bytes_in_flight: bytes of requests to one worker that are under way at most, so that a fast sender does not fill
        a slow receiver's memory. What comes on top waits on the sender, in order, while its time-out runs. Counted are
        requests of 4 KiB and more, from when they are sent until their call is over; a single larger one goes alone,
        and what a handler or a callback sends on a thread of torchwire's neither waits nor counts. Calls that end only
        after later ones to the same worker (which a handler collects, say) must fit in together. Default 1 GiB; with
        PyTorch's options there is no bound. 0 means none.
    checksums: whether frames carry a checksum, for memory and networks that are not to be trusted. A frame that arrives
        damaged is not used: it closes the link between its two workers, and the calls on it fail. The same on all
        workers. Default False. Costs a call with small tensors nothing that could be measured, one that echoes 16 MiB
        two thirds more time over shared memory. A large tensor must not be changed while it is sent: the checksum
        would no longer fit.
    nccl: whether large tensors of CUDA devices go by NCCL to workers whose memory cannot be opened, if those have the
        option as well; to workers of other hosts only with `encryption=False`, since NCCL does not encrypt. Default
        False. A transfer that waits for its other end occupies some of the GPU.
    device_stream_order: what a request and the default streams of its devices wait for. "none", the default: not for
        each other, as with PyTorch's backend. "default_stream": a request begins behind them, and they go on behind
        it, so that it sees what the program and earlier requests have left, such as a parameter server's optimizer; a
        default stream that is busy, or waits for another worker, then holds requests up.
    slow_call_warning: seconds after which a call that is under way is logged, once, with where it is: not sent, on the
        wire, queued at its callee, or running there, with the Python stack. Default 30; 0 means never. A call with a
        time-out of a second or more is looked after when three quarters of that are over, too, so that the error of
        the time-out says the same.
    metrics_port: TCP port at which http://HOST:PORT/metrics has this worker's metrics for Prometheus; 0 takes any that
        is free, which is logged. "HOST:PORT" for another address than 127.0.0.1: anyone who reaches it can read names
        of workers and functions. Needs prometheus_client. Default: the environment variable TORCHWIRE_METRICS_PORT,
        or none.
    status_socket: whether processes of the same user on this host may ask this worker for its status, as `python -m
        torchwire top` does (docs/operating.md). Default True.
    _transports, _channels: names to restrict the choice to (`python -m torchwire info` lists them and
        says which are used by default).
    _device_paths: the same for the paths of tensors between devices, "process", "ipc", "nccl"
        and "host" (`torchwire.explain()` tells which is used). The last one is always used where no other is.
        Default: all.

    Options are checked when they are set, at construction or later. A wrong type raises TypeError, a wrong value
    ValueError; both say what would be right. Constructing options opens, starts and asks nothing.

    Not thread-safe. The agent reads the options once, in init_rpc.
    """

    # In the base these two are plain attributes.
    rpc_timeout = _CheckedInBase(option_checks.timeout)  # pyright: ignore[reportAssignmentType]
    init_method = _CheckedInBase(option_checks.init_method)  # pyright: ignore[reportAssignmentType]
    num_worker_threads = _Checked(option_checks.thread_count)
    num_spare_threads = _Checked(option_checks.spare_count)
    bind_address = _Checked(option_checks.bind_address)
    advertise_address = _Checked(option_checks.advertise_address)
    secret: _Checked[bytes | None] = _CheckedAlternative(option_checks.secret, other="secret_file")
    secret_file: _Checked[str | None] = _CheckedAlternative(option_checks.path, other="secret")
    encryption: _Checked[bool | str] = _Checked(option_checks.encryption)
    keepalive_interval = _Checked(option_checks.keepalive)
    session_timeout = _Checked(option_checks.session_timeout)
    slow_call_warning = _Checked(option_checks.slow_call_warning)
    metrics_port: _Checked[str | None] = _Checked(option_checks.metrics_port)
    status_socket = _Checked(option_checks.switch)
    max_unacknowledged_bytes = _Checked(option_checks.byte_count)
    backward_mode = _Checked(option_checks.backward_mode)
    record_creation_site = _Checked(option_checks.switch)
    inherit_deadline = _Checked(option_checks.switch)
    elastic = _Checked(option_checks.switch)
    receive_cache = _Checked(option_checks.byte_count)
    max_bytes_in_flight = _Checked(option_checks.byte_count)
    checksums = _Checked(option_checks.switch)
    nccl = _Checked(option_checks.switch)
    device_stream_order = _Checked(option_checks.device_stream_order)
    _transports = _Checked(_transport_names)
    _channels = _Checked(_channel_names)
    _device_paths = _Checked(_device_path_names)

    def __init__(
        self,
        *,
        num_worker_threads: int = 16,
        num_spare_threads: int = 256,
        rpc_timeout: float = 60.0,
        init_method: str = "env://",
        device_maps: Mapping[str, Mapping[DeviceLike, DeviceLike]] | Literal["auto"] | None = None,
        devices: Iterable[DeviceLike] | None = None,
        bind_address: str | None = None,
        advertise_address: str | None = None,
        secret: str | bytes | None = None,
        secret_file: str | os.PathLike[str] | None = None,
        encryption: bool | Literal["auto"] = "auto",
        keepalive_interval: float = 10.0,
        session_timeout: float = 10.0,
        max_unacknowledged_bytes: int = 64 << 20,
        backward_mode: str = "smart",
        record_creation_site: bool = False,
        inherit_deadline: bool = False,
        elastic: bool = False,
        receive_cache: int = 256 << 20,
        max_bytes_in_flight: int = 1 << 30,
        checksums: bool = False,
        nccl: bool = False,
        device_stream_order: str = "none",
        slow_call_warning: float = 30.0,
        metrics_port: int | str | None = None,
        status_socket: bool = True,
        _transports: list[str] | None = None,
        _channels: list[str] | None = None,
        _device_paths: list[str] | None = None,
        **unknown: NoReturn,
    ) -> None:
        self._refuse_unknown(unknown)
        super().__init__()
        self.rpc_timeout = rpc_timeout
        self.init_method = init_method
        self.num_worker_threads = num_worker_threads
        self.num_spare_threads = num_spare_threads
        self.device_maps = {} if device_maps is None else device_maps
        self.devices = [] if devices is None else devices
        self.bind_address = bind_address
        self.advertise_address = advertise_address
        self.secret = secret
        self.secret_file = secret_file
        self.encryption = encryption
        self.keepalive_interval = keepalive_interval
        self.session_timeout = session_timeout
        self.max_unacknowledged_bytes = max_unacknowledged_bytes
        self.backward_mode = backward_mode
        self.record_creation_site = record_creation_site
        self.inherit_deadline = inherit_deadline
        self.elastic = elastic
        self.receive_cache = receive_cache
        self.max_bytes_in_flight = max_bytes_in_flight
        self.checksums = checksums
        self.nccl = nccl
        self.device_stream_order = device_stream_order
        self.slow_call_warning = slow_call_warning
        self.metrics_port = metrics_port
        self.status_socket = status_socket
        self._transports = _transports
        self._channels = _channels
        self._device_paths = _device_paths

    @property
    def device_maps(self) -> dict[str, DeviceMap] | Literal["auto"]:
        """Worker name -> device map, as a copy; change it with set_device_map or by assignment. "auto" where all are
        automatic."""
        if self._automatic_device_maps and not self._device_maps:
            return "auto"
        return {worker: dict(devices) for worker, devices in self._device_maps.items()}

    @device_maps.setter
    def device_maps(self, value: Mapping[str, Mapping[DeviceLike, DeviceLike]] | Literal["auto"]) -> None:
        self._automatic_device_maps = isinstance(value, str) and value == "auto"
        if self._automatic_device_maps:
            self._device_maps: dict[str, DeviceMap] = {}
            return
        if not isinstance(value, Mapping):
            raise TypeError(
                f'device_maps must be a dict from worker names to device maps, or "auto", got {type(value).__name__}'
            )
        self._device_maps = {to: device_map.to_device_map(map_, _map_for(to)) for to, map_ in value.items()}

    @property
    def devices(self) -> list[torch.device]:
        """This worker's accelerator devices, as a copy; empty when the device maps decide."""
        return list(self._devices)

    @devices.setter
    def devices(self, value: Iterable[DeviceLike]) -> None:
        self._devices = device_map.to_accelerators(value, "devices")

    def set_device_map(self, to: str, device_map: Mapping[DeviceLike, DeviceLike]) -> None:
        """Adds pairs to the device map for worker `to`; an automatic one ends.

        Raises ValueError when a device of this worker would get a second target, or two in `device_map` the same one.
        """
        self._add_device_map(to, device_map)

    def set_devices(self, devices: Iterable[DeviceLike]) -> None:
        """Sets this worker's devices that calls use; raises ValueError for the CPU and what is no accelerator here."""
        self.devices = devices

    def _add_device_map(self, to: str, added: Mapping[DeviceLike, DeviceLike]) -> None:
        where = _map_for(to)
        pairs = device_map.to_device_map(added, where)
        self._device_maps[to] = device_map.merged(self._device_maps.get(to, {}), pairs, where)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={self._shown(name)!r}" for name in self._keywords())
        return f"{type(self).__name__}({fields})"

    @classmethod
    def _keywords(cls) -> tuple[str, ...]:
        # What the constructor of a derived class does not know it passes on to that of its base.
        constructors = [vars(owner).get("__init__") for owner in reversed(cls.__mro__)]
        defaults: list[dict[str, Any]] = [getattr(each, "__kwdefaults__", None) or {} for each in constructors]
        return tuple(dict.fromkeys(name for each in defaults for name in each))

    @classmethod
    def _refuse_unknown(cls, unknown: Mapping[str, Any]) -> None:
        known = cls._keywords()
        for name in unknown:
            raise TypeError(
                f"{cls.__name__} has no option {name!r}{did_you_mean(name, known)}; it takes {', '.join(known)}"
            )

    def _shown(self, name: str) -> Any:
        value = getattr(self, name)
        return "***" if name == "secret" and value is not None else value


def from_any(options: rpc.RpcBackendOptions) -> TorchwireRpcBackendOptions:
    """Returns `options` as torchwire's: as they are, or converted from PyTorch's TensorPipeRpcBackendOptions.

    Raises TypeError for options of any other class.
    """
    if isinstance(options, TorchwireRpcBackendOptions):
        return options
    if isinstance(options, rpc.TensorPipeRpcBackendOptions):
        return from_stock(options, TorchwireRpcBackendOptions)
    # PyTorch's own tests, and so perhaps users, look for how this sentence begins.
    raise TypeError(
        "`rpc_backend_options` must be a `TensorPipeRpcBackendOptions` or a `TorchwireRpcBackendOptions`, "
        f"got {type(options).__module__}.{type(options).__qualname__}"
    )


def as_agent_options(options: TorchwireRpcBackendOptions) -> dict[str, Any]:
    """The options as the dict that the agent's constructor takes; times in seconds, "" for an address left open.

    Reads the file with the secret, if there is one; raises ValueError when it holds none, or when a transport would let
    in whoever does not know it.
    """
    return {
        "num_worker_threads": options.num_worker_threads,
        "num_spare_threads": options.num_spare_threads,
        "rpc_timeout": options.rpc_timeout,
        "bind_address": options.bind_address or "",
        "advertise_address": options.advertise_address or "",
        "secrets": _secrets_for_all_ways(options),
        "encryption": _encryption_of_all_ways(options),
        "keepalive_interval": options.keepalive_interval,
        "session_timeout": options.session_timeout,
        "max_unacknowledged_bytes": options.max_unacknowledged_bytes,
        "receive_cache": options.receive_cache,
        "max_bytes_in_flight": options.max_bytes_in_flight,
        "backward_mode": options.backward_mode,
        "inherit_deadline": options.inherit_deadline,
        "elastic": options.elastic,
        "transports": options._transports,
        "channels": options._channels,
        "device_paths": options._device_paths,
        "nccl": options.nccl,
        "device_stream_order": options.device_stream_order,
        "slow_call_warning": options.slow_call_warning,
        "interceptors": [_C.ChecksumInterceptor()] if options.checksums else [],
        "devices": devices.describe(options._device_maps, options._automatic_device_maps, options.devices),
    }


def _encryption_of_all_ways(options: TorchwireRpcBackendOptions) -> bool | str:
    if options.encryption is not True:
        return options.encryption
    plain = [f"{option} names {name!r}" for option, name in _ways_for_strangers(options)]
    plain += ["nccl=True"] if options.nccl else []
    if plain:
        raise ValueError(
            f"encryption=True, but {plain[0]}, which cannot be encrypted: leave it out, or say encryption=False on all "
            "workers"
        )
    return True


def _ways_for_strangers(options: TorchwireRpcBackendOptions) -> list[tuple[str, str]]:
    """Options, and what in them asks for no proof, and encrypts nothing."""
    return [
        *(("_transports", name) for name in options._transports or () if name in _C.TRANSPORTS_WITHOUT_PROOF),
        *(("_channels", name) for name in options._channels or () if name in _C.CHANNELS_WITHOUT_PROOF),
    ]


def _secrets_for_all_ways(options: TorchwireRpcBackendOptions) -> list[bytes]:
    secrets = group_secret.of(options.secret, options.secret_file)
    open_ways = _ways_for_strangers(options)
    if secrets and open_ways:
        option, name = open_ways[0]
        raise ValueError(
            f"{option} names {name!r}, which lets in whoever connects, but this worker has a secret "
            f"({group_secret.source(options.secret, options.secret_file)}): leave {option} out, or name 'wire_shm' "
            "and 'wire_tcp' in _transports"
            f"{'' if options.secret or options.secret_file else ', or unset the variable'}"
        )
    return secrets


def from_stock(stock: torch_parts.TensorPipeOptions, kind: type[Options], **others: Any) -> Options:
    """Options of the class `kind` that say the same as PyTorch's; `others` are keywords that those do not have."""
    transports = _C.stock_transports(stock)
    others = {"max_bytes_in_flight": 0, **others}  # a program may rely on PyTorch's having no bound
    if any(
        name in _C.TRANSPORTS_WITHOUT_PROOF for name in transports or ()
    ):  # which it has asked for; a warning says what that means
        others = {"encryption": False, **others}
    options = kind(
        num_worker_threads=stock.num_worker_threads,
        rpc_timeout=stock.rpc_timeout,
        init_method=stock.init_method,
        devices=stock.devices,
        _transports=transports,
        _channels=_C.stock_channels(stock),
        **others,
    )
    # As they are: what the stock class let pass is refused by the whole group at once (see device_map.merged).
    options._device_maps = {worker: dict(devices) for worker, devices in stock.device_maps.items()}
    return options


def _map_for(worker: Any) -> str:
    if not isinstance(worker, str):
        raise TypeError(f"a device map is for a worker's name, got {worker!r} ({type(worker).__name__})")
    return f"device map for worker {worker!r}"

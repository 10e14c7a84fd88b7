"""PyTorch's enum of RPC backends, and how torchwire enters it.

PyTorch's register_backend builds a new enum and leaves every other holder with the old one: torch.distributed.rpc
itself, which from then on refuses its own default backend, and all modules that imported BackendType by name. So
torchwire adds its member to the enum that everybody holds. Python has no public way to do that; the few private names
involved are the same from Python 3.10 on. What was done is verified, and undone if it did not come out right; then
register_backend is used after all, and torch.distributed.rpc is made to see its result.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from typing import Any, cast

import torch.distributed.rpc as rpc
from torch.distributed.rpc import backend_registry
from torch.distributed.rpc.backend_registry import BackendValue

from torchwire import torch_parts

logger = logging.getLogger(__name__)


def add_backend(name: str, value: BackendValue) -> enum.Enum:
    """Makes `name` a member of BackendType with that value, first in order, unless it is one; returns the member.

    Also ends the split that an earlier register_backend of somebody else's caused: afterwards rpc.BackendType is
    the registry's. Not thread-safe.
    """
    if not torch_parts.backend_registered(name) and not _extend(backend_registry.BackendType, name, value):
        logger.debug("BackendType could not be extended in place; it is rebuilt with %s", name)
        torch_parts.register_backend(name, *cast("tuple[Callable[..., Any], Callable[..., Any]]", value))
    rpc.BackendType = backend_registry.BackendType
    return backend_registry.BackendType[name]


def is_torchwires(backend: Any) -> bool:
    """Whether a member of BackendType is a backend of torchwire's own."""
    handler = getattr(getattr(backend, "value", None), "init_backend_handler", None)
    return str(getattr(handler, "__module__", "")).startswith("torchwire.")


def set_value(member: enum.Enum, value: BackendValue) -> None:
    """Changes the value of a member, which stays the same object; its former value still leads to it (pickles)."""
    _record_value(type(member), value, member)
    member._value_ = value


def _extend(enum_type: Any, name: str, value: Any) -> bool:
    saved = {key: getattr(enum_type, key) for key in ("_member_map_", "_member_names_")}
    try:
        member = _new_member(enum_type, name, value)
        # Before the maps: an enum forbids assigning to a name that is already in them.
        setattr(enum_type, name, member)
        _record_value(enum_type, value, member)
        # New containers rather than changed ones, so that a thread that iterates over the enum is not disturbed; the
        # names last, because they lead to the map.
        enum_type._member_map_ = {name: member, **saved["_member_map_"]}
        enum_type._member_names_ = [name, *saved["_member_names_"]]
        if _is_complete(enum_type, name, member):
            return True
    except Exception:
        logger.debug("extending %s failed", enum_type, exc_info=True)
    _undo(enum_type, name, value, saved)
    return False


def _new_member(enum_type: Any, name: str, value: Any) -> Any:
    member = object.__new__(enum_type)
    member._name_ = name
    member._value_ = value
    member.__objclass__ = enum_type
    member._sort_order_ = len(enum_type._member_names_)
    return member


def _record_value(enum_type: Any, value: Any, member: Any) -> None:
    enum_type._value2member_map_[value] = member
    hashable_values = getattr(enum_type, "_hashable_values_", None)  # from some 3.12 on, for `value in BackendType`
    if hashable_values is not None and value not in hashable_values:
        hashable_values.append(value)


def _is_complete(enum_type: Any, name: str, member: Any) -> bool:
    return (
        enum_type[name] is member
        and getattr(enum_type, name) is member
        and enum_type(member.value) is member
        and enum_type.__members__[name] is member
        and member.name == name
        and member in enum_type
        and next(iter(enum_type)) is member
    )


def _undo(enum_type: Any, name: str, value: Any, saved: dict[str, Any]) -> None:
    for key, container in saved.items():
        setattr(enum_type, key, container)
    enum_type._value2member_map_.pop(value, None)
    if name in vars(enum_type):
        delattr(enum_type, name)

"""What torch's modules and their classes hold, as far as it may be replaced: to see what has been."""

import inspect
import sys
import threading

_FILLED_AS_USED = ("torch._ops", "torch.ops")  # modules
_WRAPPERS = ("torch.distributed.rpc.api.shutdown", "torch.distributed.rpc.api.remote")


class Snapshot:
    """Of torch, and of sys.exit. torch.distributed.rpc has been imported."""

    def __init__(self):
        self._held = _functions()

    def changed(self):
        """The names under which there is another function now, or none, or, in a class, one where there was none."""
        now = _functions()
        other = {name for name, value in self._held.items() if now.get(name) is not value}
        more = {name for name in now.keys() - self._held.keys() if name.rpartition(".")[0] in self._held}
        return sorted(other | more)


def _functions():
    found = {"sys.exit": sys.exit}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "torch" and inspect.ismodule(module) and not name.startswith(_FILLED_AS_USED):
            found |= _held_by(module)
    for name in _WRAPPERS:
        cells = [cell.cell_contents for cell in found[name].__closure__]
        found[f"{name}.__wrapped__"] = next(filter(callable, cells))
    return found


def _held_by(module):
    found = {}
    for name, value in list(vars(module).items()):
        # Not isinstance(), which some of torch's objects answer with a warning.
        if issubclass(type(value), type):
            found |= _methods_of(value)
        if callable(value) or issubclass(type(value), threading.local):
            found[f"{module.__name__}.{name}"] = value
    return found


def _methods_of(kind):
    name = f"{kind.__module__}.{kind.__qualname__}"
    return {
        f"{name}.{own}": held
        for own, held in list(vars(kind).items())
        if callable(held) or issubclass(type(held), (staticmethod, classmethod))
    }

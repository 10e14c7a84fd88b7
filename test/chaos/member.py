"""What a worker process can be told besides its load: to join and to leave a group, and to show what is left."""

import faulthandler
import gc
import signal
import time

import services
import torch.distributed.rpc as rpc
import torchwire
from harness import init


def prepare():
    """Comes first in each process."""
    _Interrupt.install()
    faulthandler.enable()  # a crash shows the stacks of all threads
    # What torch's import has made lives on. Without it a collection takes milliseconds, and not a quarter of a second.
    gc.freeze()


def join(settings, number, init_method):
    """`number` tells groups apart that meet in the same store."""
    # PyTorch counts the groups of a process and their gatherings, and one that is new has to count as the others do.
    rpc._init_counter = number
    rpc.api._all_gather_sequence_id.clear()
    rpc.api._all_gather_sequence_id_to_states.clear()
    kinds = {"backend": settings.backend}
    if settings.plan:
        from torchwire.testing import FaultyTorchwireRpcBackendOptions

        kinds["options_class"] = FaultyTorchwireRpcBackendOptions
    size = None if settings.dynamic else settings.world
    init(init_method, world_size=size, **kinds, **settings.options())


def begin_faults(path, seed):
    """For the whole group."""
    import torchwire.testing as faults

    plan = faults.Plan.from_toml(path)
    faults.set_plan(faults.Plan(plan.rules, seed))


def end_faults():
    """For this worker."""
    import torchwire.testing as faults

    faults.control.end_faults_here()


def injected_faults():
    import torchwire.testing as faults

    return len(faults.fault_log())


def unreachable(names, timeout):
    """By name, why workers did not answer as they should."""
    errors = {}
    sent = services.piece(0, services.MIB)
    for name in names:
        try:
            arrived, _ = rpc.rpc_sync(name, services.echo, (sent,), timeout=timeout)
        except RuntimeError as error:
            errors[name] = str(error)
        else:
            if arrived != services.checksum(sent):
                errors[name] = "what it received was damaged"
    return errors


class _Interrupt:
    """SIGINT, which may come before the call that it is to interrupt. Of the main thread, which runs handlers."""

    has_come = False
    may_raise = False

    @classmethod
    def install(cls):
        signal.signal(signal.SIGINT, cls._handle)

    @classmethod
    def _handle(cls, *_):
        cls.has_come = True
        if cls.may_raise:
            raise KeyboardInterrupt


def call_until_interrupted(timeout):
    me = rpc.get_worker_info().name
    try:
        _Interrupt.may_raise = True
        while not _Interrupt.has_come:
            try:
                rpc.rpc_sync(me, services.echo, (services.piece(0, 1000),), timeout=timeout)
            except RuntimeError:
                if _Interrupt.has_come:
                    raise  # else its time was over, on a busy machine
    except KeyboardInterrupt:
        pass
    finally:
        _Interrupt.may_raise = _Interrupt.has_come = False


def let_go():
    """Drops all RRefs that services and reference cycles have."""
    services.let_go()
    gc.collect()


def left_over(limit):
    """The RRefs and autograd contexts that are still there after `limit` seconds; what deletes them is under way."""
    end = time.monotonic() + limit
    while (left := [*torchwire.rrefs(), *torchwire.autograd_contexts()]) and time.monotonic() < end:
        time.sleep(0.005)  # nothing announces it
    return [str(one) for one in left] + ([str(rpc._get_current_rpc_agent().rref_counts())] if left else [])


def leave(graceful):
    """The error of the shutdown, None if there was none."""
    try:
        rpc.shutdown(graceful)
    except RuntimeError as error:
        return str(error)
    return None

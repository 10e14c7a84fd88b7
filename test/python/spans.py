"""What workers do in tests of OpenTelemetry's trace context: they make calls from within spans, and look at the spans.

OpenTelemetry is imported where it is used: some workers must not have it.
"""

import dataclasses

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire

_exporter = None


def set_up():
    """Spans are kept in memory from now on."""
    global _exporter
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    _exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_exporter))
    trace.set_tracer_provider(provider)


def set_up_caller():
    set_up()
    torchwire.propagate_opentelemetry()


def spans():
    """(name, trace, id, parent, whether that is remote) of those that have ended; forgets them."""
    found = [
        (
            span.name,
            span.context.trace_id,
            span.context.span_id,
            span.parent and span.parent.span_id,
            span.parent and span.parent.is_remote,
        )
        for span in _exporter.get_finished_spans()
    ]
    _exporter.clear()
    return found


def tracer():
    from opentelemetry import trace

    return trace.get_tracer("test")


# ---- what runs on the callee ----


def work(*_args, name="work"):
    with tracer().start_as_current_span(name):
        return name


@rpc.functions.async_execution
def work_async():
    future = torch.futures.Future()
    future.set_result(work(name="work_async"))
    return future


def work_on(tensor):
    work(name="work_on")
    return tensor * 2


def plain(*args):
    return args


def fail():
    work(name="fail")
    raise ValueError("on purpose")


@dataclasses.dataclass
class Pickled:
    number: int


class Service:
    def method(self):
        return work(name="method")

    @rpc.functions.async_execution
    def method_async(self):
        future = torch.futures.Future()
        future.set_result(work(name="method_async"))
        return future


# ---- what the caller does ----


def sync(to):
    assert rpc.rpc_sync(to, work, (1, torch.ones(2))) == "work"


def future(to):
    assert rpc.rpc_async(to, work, (1,)).wait() == "work"


def pickled(to):
    assert rpc.rpc_sync(to, work, (Pickled(3),)) == "work"


def async_function(to):
    assert rpc.rpc_sync(to, work_async) == "work_async"


def remote(to):
    assert rpc.remote(to, work).to_here() == "work"


def remote_async_function(to):
    assert rpc.remote(to, work_async).to_here() == "work_async"


def proxies(to):
    rref = rpc.remote(to, Service)
    assert rref.rpc_async().method().wait() == "method"  # at first nobody knows what type the RRef has
    assert rref.rpc_sync().method() == "method"
    assert rref.rpc_sync().method_async() == "method_async"
    assert rref.remote().method().to_here() == "method"


def in_autograd_context(to):
    with dist_autograd.context() as context:
        x = torch.ones(2, requires_grad=True)
        dist_autograd.backward(context, [rpc.rpc_sync(to, work_on, (x,)).sum()])
        assert dist_autograd.get_gradients(context)[x].tolist() == [2, 2]


def failing(to):
    try:
        rpc.rpc_sync(to, fail)
    except ValueError as error:
        assert "on purpose" in str(error)
    else:
        raise AssertionError("it did not fail")


def operators(to):
    assert rpc.rpc_sync(to, torch.add, (torch.ones(1), 1)).item() == 2


def in_span(way, to):
    with tracer().start_as_current_span("caller"):
        way(to)


def bytes_of_calls(to):
    """What 10 calls of each kind send, when nothing else is to be said."""
    sent = []
    for _ in range(2):  # at first the link is made
        before = _sent(to)
        for _ in range(10):
            rpc.rpc_sync(to, plain, (1, "two"))
            rpc.rpc_async(to, plain, (Pickled(3),)).wait()
        sent.append(_sent(to) - before)
    return sent[-1]


def _sent(to):
    return next(peer["bytes_sent"] for peer in torchwire.peers() if peer["name"] == to)


def functions_served():
    return {each["function"] for each in torchwire.metrics()["functions"] if each["run"]["count"]}


def loads_opentelemetry():
    import sys

    return any(name.partition(".")[0] == "opentelemetry" for name in sys.modules)

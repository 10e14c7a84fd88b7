"""Functions run in the trace context of OpenTelemetry of who has called them, if that has asked for it."""

import importlib.util
import sys

import pytest
import spans
import torchwire
from group import running

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("opentelemetry") is None, reason="the package opentelemetry-sdk is not installed"
)


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """Of a caller, and a callee that has asked for nothing but has OpenTelemetry."""
    with running(2, tmp_path_factory.mktemp("group")) as group:
        group[0].run(spans.set_up_caller)
        group[1].run(spans.set_up)
        yield group


@pytest.mark.parametrize(
    ("way", "names"),
    [
        (spans.sync, ["work"]),
        (spans.future, ["work"]),
        (spans.pickled, ["work"]),
        (spans.async_function, ["work_async"]),
        (spans.remote, ["work"]),
        (spans.remote_async_function, ["work_async"]),
        (spans.proxies, ["method", "method", "method_async", "method"]),
        (spans.in_autograd_context, ["work_on"]),
        (spans.failing, ["fail"]),
        (spans.operators, []),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_spans_of_the_callee_have_the_callers_for_their_remote_parent(group, way, names):
    group[0].run(spans.in_span, way, "worker1")
    ((_, trace, caller, parent, _),) = group[0].run(spans.spans)
    assert parent is None
    served = group[1].run(spans.spans)
    assert [name for name, *_ in served] == names
    assert all(rest == (trace, caller, True) for _, rest in map(without_id, served))
    group[0].run(way, "worker1")  # in no span: nothing is left of the other one
    assert [parent for _, _, _, parent, _ in group[1].run(spans.spans)] == [None] * len(names)


def without_id(span):
    name, trace, _, parent, is_remote = span
    return name, (trace, parent, is_remote)


def test_a_worker_calls_itself_in_its_context(group):
    group[0].run(spans.in_span, spans.sync, "worker0")
    work, caller = group[0].run(spans.spans)
    assert (work[0], caller[0]) == ("work", "caller")
    assert without_id(work)[1] == (caller[1], caller[2], True)


def test_metrics_name_the_function_and_not_what_wraps_it(group):
    for way in spans.sync, spans.pickled, spans.remote:
        group[0].run(spans.in_span, way, "worker1")
    functions = group[1].run(spans.functions_served)
    assert "spans.work" in functions
    assert not any("trace_context" in function for function in functions)
    group.all(spans.spans)


def test_what_is_sent_is_the_same_without_a_span(group, tmp_path):
    with running(2, tmp_path) as others:
        usual = others[0].run(spans.bytes_of_calls, "worker1")
        assert not any(others.all(spans.loads_opentelemetry))
    assert group[0].run(spans.bytes_of_calls, "worker1") == usual
    group[0].run(torchwire.propagate_opentelemetry, False)
    try:
        group[0].run(spans.in_span, spans.bytes_of_calls, "worker1")
        group[0].run(spans.in_span, spans.sync, "worker1")
        assert [parent for _, _, _, parent, _ in group[1].run(spans.spans)] == [None]
    finally:
        group[0].run(torchwire.propagate_opentelemetry)
        group.all(spans.spans)


def test_a_callee_without_opentelemetry_serves_as_ever(tmp_path):
    with running(2, tmp_path) as group:
        group[0].run(spans.set_up_caller)
        group[0].run(spans.in_span, spans.bytes_of_calls, "worker1")
        assert not group[1].run(spans.loads_opentelemetry)


def test_anything_but_a_switch_is_refused():
    with pytest.raises(TypeError, match="propagate_opentelemetry: enabled must be True or False, got 1"):
        torchwire.propagate_opentelemetry(1)


def test_without_the_package_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.propagate", None)
    with pytest.raises(ModuleNotFoundError, match="opentelemetry"):
        torchwire.propagate_opentelemetry()

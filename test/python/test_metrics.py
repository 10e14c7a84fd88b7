"""What workers count: as a dict, as JSON lines, and for Prometheus."""

import contextlib
import json
import pathlib
import re
import socket
import struct
import threading
import time
import urllib.request

import observed
import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in, free_port, init, running
from processes import WorkerError, wait_until
from prometheus_client.parser import text_string_to_metric_families
from torchwire import TorchwireRpcBackendOptions, torch_parts
from torchwire.observe import observers, prometheus


def function_metrics(name, kind="python"):
    for function in torchwire.metrics()["functions"]:
        if function["function"] == name and function["kind"] == kind:
            return function
    return None


def call_each_way(to):
    rpc.rpc_sync(to, torch.add, (torch.ones(2), 1))
    rpc.remote(to, observed.add, (1, 2)).to_here()
    rpc.remote(to, torch.add, (torch.ones(2), 1)).to_here()


def test_calls_are_counted_on_both_sides_by_function(tmp_path):
    with running(2, tmp_path) as group:
        group[0].run(observed.call_many, "worker1", 50)
        group[0].run(observed.call_failing, "worker1")
        group[0].run(call_each_way, "worker1")
        made = group[0].run(function_metrics, "observed.add")
        assert made["latency"]["count"] == made["wire"]["count"] == 50
        assert made["run"]["count"] == 0
        assert 0 < made["wire"]["sum"] <= made["latency"]["sum"] < 30
        assert 0 < made["latency"]["p50"] <= made["latency"]["p99"] < 10
        served = group[1].run(function_metrics, "observed.add")
        assert served["run"]["count"] == served["queue"]["count"] == 50
        assert served["latency"]["count"] == 0
        assert served["run"]["sum"] <= made["latency"]["sum"]
        # What a function raises is an answer of the callee's.
        assert group[0].run(function_metrics, "observed.fails")["failures"] == {}
        for worker, histogram in ((group[0], "latency"), (group[1], "run")):
            assert worker.run(function_metrics, "aten::add", "builtin")[histogram]["count"] == 1
            assert worker.run(function_metrics, "observed.add", "remote")[histogram]["count"] == 1
            assert worker.run(function_metrics, "aten::add", "remote")[histogram]["count"] == 1
            assert worker.run(function_metrics, "", "fetch")[histogram]["count"] == 2


def test_the_callees_time_is_taken_off_the_wires(tmp_path):
    with running(2, tmp_path) as group:
        group[0].run(observed.begin_nap, "worker1", 0.5)
        group[0].run(observed.wait_for_pending)
        made = group[0].run(function_metrics, "observed.nap_in_a_handler")
        assert made["latency"]["sum"] >= 0.5
        assert made["wire"]["sum"] < 0.25


def counts_during(to):
    observed.begin_never(to)
    rpc.rpc_sync(to, observed.add, (1, 1))
    return torchwire.metrics()["counts"]


def status():
    return torchwire.metrics()


def test_what_is_under_way_shows(tmp_path):
    with running(2, tmp_path) as group:
        assert group[0].run(counts_during, "worker1")["calls_in_flight"] == 1
        counts = group[1].run(status)["counts"]
        assert (counts["requests_active"], counts["requests_async"]) == (1, 1)
        group[1].run(observed.end_pending)
        group[0].run(observed.wait_for_pending)
        wait_until(lambda: group[0].run(status)["counts"]["calls_in_flight"] == 0)
        metrics = group[0].run(status)
        assert metrics["worker"]["name"] == "worker0"
        assert metrics["worker"]["pid"] == group[0].pid
        assert [peer["name"] for peer in metrics["peers"]] == ["worker1"]
        assert metrics["autograd_contexts"] == 0


def failures_of_timeout(to):
    with pytest.raises(RuntimeError):
        rpc.rpc_sync(to, observed.nap_in_a_handler, (0.5,), timeout=0.1)
    return function_metrics("observed.nap_in_a_handler")["failures"]


def test_failures_are_counted_by_reason(tmp_path):
    with running(2, tmp_path) as group:
        assert group[0].run(failures_of_timeout, "worker1") == {"timeout": 1}


@rpc.functions.async_execution
def fails_later():
    future = torch.futures.Future()
    future.set_result(None)
    return future.then(lambda _done: observed.fails())


def fails_by_what_cannot_be_sent():
    class Unsendable(Exception):
        pass

    raise Unsendable("on purpose")


def returns_what_cannot_be_sent():
    return threading.Lock()


def exits():
    raise SystemExit("on purpose")


@torch.jit.script
def fails_in_script(x: int) -> int:
    assert x < 0, "on purpose"
    return x


def provoke_errors(to):
    """Each raises once, on the callee."""
    for function, *args in (
        (observed.fails,),
        (fails_later,),
        (fails_by_what_cannot_be_sent,),
        (returns_what_cannot_be_sent,),
        (exits,),
        (fails_in_script, 1),
        (torch.add, torch.ones(2), torch.ones(3)),
    ):
        with pytest.raises((RuntimeError, ValueError)):
            rpc.rpc_sync(to, function, tuple(args))
    for function, *args in ((observed.fails,), (fails_later,), (torch.add, torch.ones(2), torch.ones(3))):
        with pytest.raises((RuntimeError, ValueError)):
            rpc.remote(to, function, tuple(args)).to_here()
    with dist_autograd.context(), pytest.raises(ValueError):
        rpc.rpc_sync(to, observed.fails)


def errors_by_function():
    return {
        (function["kind"], function["function"].rpartition(".")[2]): function["errors"]
        for function in torchwire.metrics()["functions"]
        if function["errors"]
    }


def test_what_functions_raise_is_counted_where_they_run(tmp_path):
    with running(2, tmp_path) as group:
        group[0].run(observed.call_many, "worker1", 1)
        group[0].run(provoke_errors, "worker1")
        assert group[0].run(errors_by_function) == {}
        assert group[1].run(errors_by_function) == {
            ("python", "fails"): 1,
            ("python", "fails_later"): 1,
            ("python", "exits"): 1,
            ("python", "fails_by_what_cannot_be_sent"): 1,
            ("python", "returns_what_cannot_be_sent"): 1,
            ("script", "fails_in_script"): 1,
            ("builtin", "aten::add"): 1,
            ("remote", "fails"): 1,
            ("remote", "fails_later"): 1,
            ("remote", "aten::add"): 1,
            # Of RRefs that have an error in place of a value; that of "fails" has an exception for its value.
            ("fetch", ""): 2,
            ("forward", "fails"): 1,
        }


def make_up_functions(to, count):
    for i in range(count):
        namespace = {}
        exec(f"def made_up_{i}(): pass", {"__name__": "observed"}, namespace)
        function = namespace[f"made_up_{i}"]
        setattr(observed, function.__name__, function)
        with pytest.raises(Exception, match="made_up"):
            rpc.rpc_sync(to, function)
    return len(torchwire.metrics()["functions"])


@pytest.mark.slow
def test_names_that_a_caller_makes_up_do_not_fill_the_memory(tmp_path):
    with running(2, tmp_path) as group:
        assert group[0].run(make_up_functions, "worker1", 1200) < 1100
        assert len(group[1].run(status)["functions"]) < 1100
        assert group[1].run(function_metrics, "(others)")["run"]["count"] > 100


# ---- JSON lines ---------------------------------------------------------------------------------


def log_a_while(path, to, interval=0.05):
    with torchwire.log_metrics(path, interval=interval):
        observed.call_many(to, 10)
        time.sleep(0.3)  # for lines at intervals, of which one more or less does not matter


@pytest.mark.parametrize("interval", [0, -1, float("inf"), float("nan"), 86401])
def test_json_lines_at_no_interval(tmp_path, interval):
    with pytest.raises(ValueError, match=f"interval must be more than 0 and at most 86400 seconds, got {interval}"):
        log_a_while(tmp_path / "metrics.jsonl", "nobody", interval)


def test_json_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with running(2, tmp_path) as group:
        group[0].run(log_a_while, path, "worker1")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert len(lines) >= 3
        assert lines[0]["time"] <= lines[-1]["time"]
        last = next(each for each in lines[-1]["functions"] if each["function"] == "observed.add")
        assert last["latency"]["count"] == 10
        with pytest.raises(WorkerError, match="No such file or directory"):
            group[0].run(log_a_while, tmp_path / "missing" / "file", "worker1")


# ---- Prometheus ---------------------------------------------------------------------------------


def scrape(port, host="127.0.0.1"):
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as response:
        text = response.read().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def sample(families, metric, **labels):
    for family in families.values():
        for each in family.samples:
            if each.name == metric and all(each.labels.get(key) == value for key, value in labels.items()):
                return each.value
    return None


def test_prometheus_reads_what_the_dict_has(tmp_path):
    port = free_port()
    with running(1, tmp_path, metrics_port=port) as group:
        group[0].run(observed.call_many, "worker0", 25)
        group[0].run(observed.call_failing, "worker0")
        families = scrape(port)
        assert sample(families, "torchwire_request_errors_total", function="observed.fails") == 1
        labels = {"kind": "python", "function": "observed.add"}
        assert sample(families, "torchwire_call_latency_seconds_count", **labels) == 25
        assert sample(families, "torchwire_call_latency_seconds_bucket", le="+Inf", **labels) == 25
        assert sample(families, "torchwire_request_run_seconds_count", **labels) == 25
        assert sample(families, "torchwire_calls_in_flight") == 0
        assert sample(families, "torchwire_request_errors_total", **labels) == 0
        assert sample(families, "torchwire_worker_info", name="worker0", rank="0") == 1
        assert sample(families, "torchwire_resident_memory_bytes") > 1 << 20
        buckets = [
            each.value
            for each in families["torchwire_call_latency_seconds"].samples
            if each.name.endswith("_bucket") and each.labels["function"] == "observed.add"
        ]
        assert buckets == sorted(buckets)
    with pytest.raises(OSError):
        scrape(port)  # nobody listens any more


def bytes_by_carrier(families):
    return {
        (each.labels["transport"], each.labels["channel"]): each.value
        for each in families["torchwire_sent_bytes"].samples
        if each.name.endswith("_total")
    }


def test_bytes_are_counted_by_what_carried_them(tmp_path):
    port = free_port()
    with running(2, tmp_path) as group:
        group[0].run(serve_metrics, port)
        group[0].run(observed.call_many, "worker1", 3)
        (peer,) = group[0].run(status)["peers"]
        assert bytes_by_carrier(scrape(port)) == {(peer["transport"], peer["channel"]): peer["bytes_sent"]}
        assert peer["carried"] == [{key: peer[key] for key in ("transport", "channel", "bytes_sent", "bytes_received")}]
        assert peer["bytes_sent"] > 0 and peer["bytes_received"] > 0
        assert sample(scrape(port), "torchwire_links_lost_total", peer="worker1") == 0
        group[0].run(stop_serving)


def test_the_dashboard_and_the_document_name_what_is_there(tmp_path):
    docs = pathlib.Path(__file__).parents[2] / "docs"
    shown = set(re.findall(r"torchwire_[a-z0-9_]+", (docs / "grafana.json").read_text()))
    port = free_port()
    with running(2, tmp_path) as group:
        group[0].run(serve_metrics, port)
        group[0].run(observed.call_many, "worker1", 2)
        group[1].run(observed.call_many, "worker0", 2)
        group[0].run(failures_of_timeout, "worker1")
        there = {each.name for family in scrape(port).values() for each in family.samples}
        group[0].run(stop_serving)
    assert shown <= there, shown - there
    families = {re.sub("_(total|bucket|count|sum|info)$", "", name) for name in there}
    text = (docs / "metrics.md").read_text()
    undocumented = {name for name in families if name not in text and name.rpartition("_")[2] not in text}
    assert not undocumented


def scrape_often(port, count, errors):
    for _ in range(count):
        try:
            scrape(port)
        except OSError as error:
            errors.append(error)


@pytest.mark.long
def test_a_thousand_scrapes_under_load_fail_no_call(tmp_path):
    ports = [free_port(), free_port()]
    errors = []
    with running(2, tmp_path) as group:
        for worker, port in zip(group, ports):
            worker.run(serve_metrics, port)
        scrapers = [threading.Thread(target=scrape_often, args=(port, 250, errors)) for port in ports for _ in "ab"]
        for scraper in scrapers:
            scraper.start()
        calls = 0
        while any(scraper.is_alive() for scraper in scrapers):
            assert group[0].run(observed.call_many, "worker1", 200) == 200
            calls += 200
        for scraper in scrapers:
            scraper.join()
        assert errors == []
        assert group[0].run(function_metrics, "observed.add")["failures"] == {}
        assert group[0].run(function_metrics, "observed.add")["latency"]["count"] == calls
        group.all(stop_serving)


_servers = []


def serve_metrics(port):
    from torchwire.current_agent import current_agent
    from torchwire.observe.prometheus import MetricsServer

    _servers.append(MetricsServer("127.0.0.1", port))
    _servers[-1].start(current_agent())


def stop_serving():
    _servers.pop().close()


def test_a_port_in_use_is_an_error_and_leaves_no_worker(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            WorkerError, match=f"cannot be served at 127.0.0.1, port {port}: .*metrics_port; 0 takes any"
        ):
            with running(1, tmp_path, metrics_port=port):
                pass


def test_others_hear_of_a_worker_whose_port_is_in_use(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken, Group(2) as group:
        where, port = file_in(tmp_path), taken.getsockname()[1]
        other = group[1].start(init, where, world_size=2)
        with pytest.raises(WorkerError, match="Choose another metrics_port"):
            group[0].run(init, where, world_size=2, metrics_port=port)
        with pytest.raises(WorkerError, match=r"worker 'worker0' \(rank 0\) could not start: metrics cannot be served"):
            other.result()


def test_a_start_that_fails_leaves_no_port_open(tmp_path):
    port = free_port()
    with Group(1, {"TP_SOCKET_IFNAME": "nosuch0"}) as group:
        with pytest.raises(WorkerError, match="nosuch0"):
            group[0].run(init, file_in(tmp_path), world_size=1, metrics_port=port)
        socket.create_server(("127.0.0.1", port)).close()


def init_after_a_dropped_agent(folder, port):
    for name in ("first", "second"):
        init(f"file://{folder}/{name}", world_size=1, metrics_port=port)
        if name == "first":
            torch_parts.reset_current_rpc_agent()
    assert rpc.rpc_sync("worker0", observed.add, (1, 2)) == 3


def test_the_port_of_an_agent_that_was_dropped_is_free_for_the_next(tmp_path):
    port = free_port()
    with Group(1) as group:
        group[0].run(init_after_a_dropped_agent, tmp_path, port)
        assert scrape(port)
        group[0].run(rpc.shutdown, graceful=False)


def test_the_environment_chooses_the_port(tmp_path):
    port = free_port()
    with running(1, tmp_path, {observers.PORT_VARIABLE: str(port)}):
        assert scrape(port)
    with pytest.raises(WorkerError, match="TORCHWIRE_METRICS_PORT: .* is not an address"):
        with running(1, tmp_path, {observers.PORT_VARIABLE: "not a port"}):
            pass


def test_any_free_port_is_logged(tmp_path):
    with running(1, tmp_path, metrics_port=0) as group:
        assert "metrics are served at http://127.0.0.1:" in group[0].output()


def test_an_ipv6_address_has_brackets_in_the_logged_url(caplog, monkeypatch):
    monkeypatch.setattr(observers.dump_signal, "install", lambda: None)  # it would stay
    try:
        server = observers.metrics_server(TorchwireRpcBackendOptions(metrics_port="[::1]:0"))
        observers.open_for(None, server, False)  # an agent is needed only to answer
    except RuntimeError as error:
        pytest.skip(f"needs IPv6: {error}")
    finally:
        observers.close()
    assert re.search(r"http://\[::1\]:\d+/metrics$", caplog.text, re.MULTILINE)


def test_a_client_that_stalls_keeps_no_other(tmp_path):
    port = free_port()
    with running(1, tmp_path, metrics_port=port) as group:
        with socket.create_connection(("127.0.0.1", port)) as stalled:
            stalled.sendall(b"GET /metr")
            assert scrape(port)
            assert group[0].run(observed.call_many, "worker0", 5) == 5


def test_clients_that_stall_or_go_cost_a_bounded_number_of_threads(tmp_path):
    port = free_port()
    with running(1, tmp_path, metrics_port=port) as group, contextlib.ExitStack() as open_ones:
        stalled = [open_ones.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(8)]
        for client in stalled:
            client.sendall(b"GET /metr")
        with socket.create_connection(("127.0.0.1", port)) as one_too_many:
            assert hung_up_on(one_too_many)
        assert group[0].run(observed.call_many, "worker0", 5) == 5
        for client in stalled:
            # Closed with what has come unread, so that the server's answer fails.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        wait_until(lambda: scrapes(port))
        assert "Traceback" not in group[0].output()


def test_clients_that_send_slowly_keep_out_no_other_for_long(tmp_path):
    port = free_port()
    with running(1, tmp_path, metrics_port=port) as group, contextlib.ExitStack() as open_ones:
        group[0].run(set_patience, 0.5)
        slow = [open_ones.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(8)]

        def scrape_beside_them():
            for client in slow:
                with contextlib.suppress(OSError):  # hung up on
                    client.sendall(b"G")
            return scrapes(port)

        wait_until(scrape_beside_them)


def set_patience(seconds):
    prometheus._CLIENT_PATIENCE = seconds


def hung_up_on(client):
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def scrapes(port):
    try:
        return bool(scrape(port))
    except OSError:
        return False


def bound_to(port):
    return TorchwireRpcBackendOptions(metrics_port=port).metrics_port


def test_ports_are_checked():
    assert bound_to(None) is None
    assert bound_to(0) == "127.0.0.1:0"
    assert bound_to("9090") == "127.0.0.1:9090"
    assert bound_to("0.0.0.0:9090") == "0.0.0.0:9090"
    assert bound_to("[::1]:9090") == "[::1]:9090"
    for bad, kind in ((True, TypeError), (1.5, TypeError), (70000, ValueError), (-1, ValueError), ("host", ValueError)):
        with pytest.raises(kind, match="metrics_port"):
            bound_to(bad)


def test_without_rpc_there_is_nothing_to_read():
    for function in (torchwire.metrics, torchwire.dump):
        with pytest.raises(RuntimeError, match="RPC is not initialized"):
            function()

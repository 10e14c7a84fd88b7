"""What people use who need no tensors: multiprocessing's pipe, ZeroMQ and gRPC, each with pickles on top."""

from __future__ import annotations

import concurrent.futures
import multiprocessing.connection
import threading
import time
from collections.abc import Callable
from typing import Any, cast

from torchwire.bench.member import MessageMember, answer

_DIAL_LIMIT = 20.0  # seconds
_UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def _serve(loop: Callable[[], None]) -> None:
    """Runs beside the main thread, which waits for commands, until the process ends."""
    threading.Thread(target=loop, daemon=True).start()


class PipeMember(MessageMember):
    """multiprocessing's pipe, over a socket of the Unix domain, as between processes that have no common parent."""

    def join(self) -> None:
        address = str(self.place.folder / "pipe")
        if self.place.rank == 1:
            listener = multiprocessing.connection.Listener(address, family="AF_UNIX")
            _serve(lambda: self._answer_all(listener))
        else:
            self._connection = _dial(address)

    def leave(self) -> None:
        if self.place.rank == 0:
            self._connection.close()

    def send(self, message: bytes) -> Callable[[], bytes]:
        self._connection.send_bytes(message)
        return self._connection.recv_bytes

    @staticmethod
    def _answer_all(listener: multiprocessing.connection.Listener) -> None:
        with listener, listener.accept() as connection:
            try:
                while True:
                    connection.send_bytes(answer(connection.recv_bytes()))
            except (EOFError, ConnectionResetError):
                pass  # the caller has left


def _dial(address: str) -> multiprocessing.connection.Connection:
    end = time.monotonic() + _DIAL_LIMIT
    while True:
        try:
            client: Any = multiprocessing.connection.Client(address, family="AF_UNIX")
            return client
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


class ZmqMember(MessageMember):
    """ZeroMQ: a dealer for each thread that calls, and a router."""

    def join(self) -> None:
        import zmq

        self._address = f"ipc://{self.place.folder}/zmq"
        self._context = zmq.Context()
        self._of_thread = threading.local()
        if self.place.rank == 1:
            router = self._context.socket(zmq.ROUTER)
            router.bind(self._address)
            _serve(lambda: self._answer_all(router))

    def send(self, message: bytes) -> Callable[[], bytes]:
        socket = self._socket()
        socket.send(message, copy=False)
        return socket.recv

    def _socket(self) -> Any:
        import zmq

        if not hasattr(self._of_thread, "socket"):
            self._of_thread.socket = self._context.socket(zmq.DEALER)
            self._of_thread.socket.connect(self._address)
        return self._of_thread.socket

    @staticmethod
    def _answer_all(router: Any) -> None:
        while True:
            sender, message = router.recv_multipart()
            router.send_multipart([sender, answer(message)], copy=False)


def _answer_grpc(message: bytes, _context: Any) -> bytes:
    return answer(message)


class GrpcMember(MessageMember):
    """gRPC: one method from bytes to bytes, over a socket of the Unix domain."""

    def join(self) -> None:
        import grpc

        address = f"unix:{self.place.folder}/grpc"
        if self.place.rank == 1:
            handler = cast(Any, grpc).unary_unary_rpc_method_handler(_answer_grpc)
            self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(16), options=_UNLIMITED)
            self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench", {"call": handler})])
            self._server.add_insecure_port(address)
            self._server.start()
        else:
            self._channel = grpc.insecure_channel(address, options=_UNLIMITED)
            grpc.channel_ready_future(self._channel).result(_DIAL_LIMIT)
            self._call: Any = self._channel.unary_unary("/bench/call")

    def leave(self) -> None:
        if self.place.rank == 1:
            self._server.stop(None).wait()
        else:
            self._channel.close()

    def send(self, message: bytes) -> Callable[[], bytes]:
        return self._call.future(message).result

    def exchange(self, message: bytes) -> bytes:
        return self._call(message)

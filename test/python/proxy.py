"""A proxy between a dialer and a port of this host."""

import contextlib
import socket
import threading


class Proxy:
    """Passes connections on, and what their ends say: each piece as what connected() returns makes it."""

    def __init__(self, to):
        self._to = to
        self._server = socket.create_server(("127.0.0.1", 0))
        self._ends = []
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def connected(self):
        """For a new connection: what makes of a piece that its dialer says what is passed on, and for the other end."""
        raise NotImplementedError

    def close(self):
        self._server.close()

    def cut(self):
        """Ends the connections that there are."""
        for end in self._ends:
            with contextlib.suppress(OSError):  # it has ended
                end.shutdown(socket.SHUT_RDWR)
        self._ends.clear()

    def _accept(self):
        with contextlib.suppress(OSError):  # closed
            while True:
                dialer, _ = self._server.accept()
                accepter = socket.create_connection(("127.0.0.1", self._to))
                self._ends += [dialer, accepter]
                of_dialler, of_accepter = self.connected()
                for ends in ((dialer, accepter, of_dialler), (accepter, dialer, of_accepter)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    @staticmethod
    def _pass_on(source, sink, hear):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                sink.sendall(hear(data))
            sink.shutdown(socket.SHUT_WR)

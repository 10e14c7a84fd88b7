"""A proxy between a dialer and a port of this host."""

import contextlib
import socket
import threading

from group import Group, HostedStore, free_port, init


class Proxy:
    """Passes connections on, and what their ends say: each piece as what connected() returns makes it."""

    def __init__(self, to):
        self._to = to
        self._server = socket.create_server(("127.0.0.1", 0))
        self._ends = []
        self._lock = threading.Lock()
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def connected(self):
        """For a new connection: what makes of a piece that its dialer says what is passed on, and for the other end."""
        raise NotImplementedError

    def close(self):
        self._server.close()

    def cut(self):
        """Ends the connections that there are."""
        with self._lock:
            ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):  # it has ended
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self):
        with contextlib.suppress(OSError):  # closed
            while True:
                dialer, _ = self._server.accept()
                try:
                    accepter = socket.create_connection(("127.0.0.1", self._to))
                except OSError:  # nobody listens there just now
                    dialer.close()
                    continue
                with self._lock:
                    self._ends += [dialer, accepter]
                of_dialer, of_accepter = self.connected()
                for ends in ((dialer, accepter, of_dialer), (accepter, dialer, of_accepter)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    @staticmethod
    def _pass_on(source, sink, hear):
        try:
            while data := source.recv(1 << 20):
                sink.sendall(hear(data))
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # one of the two has reset the connection, of which the other is to hear
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def group_behind(*make_proxies, **options):
    """Workers of a static group that encrypt, unless the options say otherwise, each behind a proxy.

    Each function makes a proxy to the port on which its worker listens; the other workers connect to the proxy. Gives
    the group, the ports, and the proxies.
    """
    with contextlib.ExitStack() as stack:
        store = HostedStore()
        group = stack.enter_context(Group(len(make_proxies), store.environment))
        ports = [free_port() for _ in group]
        proxies = [stack.enter_context(contextlib.closing(make(port))) for make, port in zip(make_proxies, ports)]
        pending = [
            worker.start(
                init,
                store.init_method,
                _transports=["wire_tcp"],
                bind_address=f"127.0.0.1:{port}",
                advertise_address=f"127.0.0.1:{proxy.port}",
                **{"world_size": len(group), "encryption": True, **options},
            )
            for worker, port, proxy in zip(group, ports, proxies)
        ]
        [one.result() for one in pending]
        yield group, ports, proxies

"""The group's secret: where it comes from, who is in the group by it, and that the wire refuses unknown peers."""

import contextlib
import hmac
import os
import re
import socket
import struct
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
import torchwire
from group import Group, HostedStore, errors, file_in, free_port, init, running
from processes import WorkerError, wait_until
from proxy import Proxy
from torchwire import rendezvous
from torchwire.doctor import interfaces
from torchwire.options import as_agent_options, from_any

SECRET = "this is thirty-two bytes, or more"  # which is not stretched
OTHER_SECRET = "another one of thirty-two and more"
VARIABLE = "TORCHWIRE_SECRET_FILE"

# Keys in the store, by how many times the workers have called init_rpc before.
CREDENTIALS_KEY = "rpc_prefix_{}/torchwire/credentials"
ROSTER_KEY = "rpc_prefix_{}/torchwire/roster"

# ---- who can reach the store ----


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_store_on_the_loopback_interface_listens_on_its_address_alone(host):
    port = free_port()
    with Group(2) as group:
        group.init(f"tcp://{host}:{port}")  # by PyTorch's own way it would listen on all
        socket.create_connection(("127.0.0.1", port), 5).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), 5)
        group.shut_down()


def host_with_address(monkeypatch, address):
    elsewhere = interfaces.Interface("net0", is_up=True, has_carrier=True, is_loopback=False, addresses=(address,))
    monkeypatch.setattr(interfaces, "all_interfaces", lambda: [elsewhere])


@pytest.mark.parametrize("listens_elsewhere", [False, True])
def test_a_store_that_other_hosts_can_reach_is_warned_of_once(monkeypatch, caplog, listens_elsewhere):
    monkeypatch.setattr(rendezvous, "_warned", False)
    host_with_address(monkeypatch, "127.0.0.2")
    if listens_elsewhere:  # as one that a launcher has made
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    else:
        hosted = HostedStore()
        store = dist.TCPStore("127.0.0.1", hosted.port, is_master=False)
    for _ in range(2):
        rendezvous.warn_of_open_store(dist.PrefixStore("rpc", store))
    warned = [record.message for record in caplog.records if "which other hosts can reach" in record.message]
    assert len(warned) == listens_elsewhere
    assert all(f"the rendezvous store at 127.0.0.1:{store.port}" in message for message in warned)
    assert all("`python -m torchwire secret FILE` makes one" in message for message in warned)


@pytest.mark.parametrize("world_size", [2, None])
def test_the_file_of_a_store_is_for_this_user_alone(tmp_path, world_size):
    with Group(2) as group:
        group.all(init, file_in(tmp_path), world_size=world_size)
        assert os.stat(tmp_path / "store").st_mode & 0o777 == 0o600
        group.shut_down()


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a file of another user")
def test_the_file_of_another_user_is_refused(open_folder):
    os.chown(write_store(open_folder, 0o600), 54123, -1)
    with Group(1) as group:
        with pytest.raises(WorkerError, match="belongs to another user .id 54123.* name another file, or give"):
            group.init(file_in(open_folder))
        group.init(file_in(open_folder), secret=SECRET)
        group.shut_down()


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o602])
def test_a_file_that_is_open_to_other_users_is_refused_for_a_drawn_secret(open_folder, mode):
    path = write_store(open_folder, mode)
    with Group(1) as group:
        with pytest.raises(WorkerError, match=f"is open to other users .mode {mode:03o}.*: chmod 600 {path}, or give"):
            group.init(file_in(open_folder))
        path.chmod(0o600)
        group.init(file_in(open_folder))
        group.shut_down()


def test_a_file_below_a_folder_that_others_can_replace_is_refused_for_a_drawn_secret(open_folder):
    folder = open_folder / "between" / "own"
    folder.mkdir(0o700, parents=True)
    (open_folder / "between").chmod(0o777)
    with Group(1) as group:
        with pytest.raises(WorkerError, match="can be replaced by other users .mode 777 of the folder '.*/between'"):
            group.init(file_in(folder))
        (open_folder / "between").chmod(0o1777)
        group.init(file_in(folder))
        group.shut_down()


def test_a_file_in_a_folder_of_this_users_alone_may_be_open(open_folder):
    write_store(open_folder, 0o644)
    open_folder.chmod(0o700)
    with Group(1) as group:
        group.init(file_in(open_folder))
        group.shut_down()


@pytest.fixture
def open_folder(tmp_path):
    """One that others may look into."""
    tmp_path.chmod(0o755)
    return tmp_path


def write_store(folder, mode):
    path = folder / "store"
    path.touch()
    path.chmod(mode)
    return path


# ---- where the secret comes from ----


@pytest.fixture(autouse=True)
def no_secret_in_the_environment(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def secret_file(tmp_path):
    """Writes a file with the secret, by default with permissions as they should be; returns its path."""

    def write(content=SECRET + "\n", mode=0o600, name="secret"):
        path = tmp_path / name
        path.write_bytes(content.encode())
        path.chmod(mode)
        return path

    return write


def secret_of(**options):
    """The secret that the agent would get."""
    return b"".join(as_agent_options(torchwire.TorchwireRpcBackendOptions(**options))["secrets"])


def test_a_secret_may_be_text_or_bytes():
    assert secret_of() == b""
    assert secret_of(secret=SECRET) == SECRET.encode()
    assert secret_of(secret=b"\0\xff\n" * 6) == b"\0\xff\n" * 6
    assert secret_of(secret="ö" * 8) == "ö".encode() * 8


def test_repr_and_messages_do_not_show_the_secret():
    options = torchwire.TorchwireRpcBackendOptions(secret=SECRET)
    assert "secret='***'" in repr(options) and SECRET not in repr(options)
    assert "secret=None" in repr(torchwire.TorchwireRpcBackendOptions())
    for wrong in ("a short one", [SECRET], SECRET + "\udc80"):
        with pytest.raises((TypeError, ValueError)) as raised:
            options.secret = wrong
        assert "short one" not in str(raised.value) and SECRET not in str(raised.value)


def test_a_secret_and_a_file_with_one_exclude_each_other():
    with pytest.raises(ValueError, match="secret_file and secret are both given; give one"):
        torchwire.TorchwireRpcBackendOptions(secret=SECRET, secret_file="/a/file")
    options = torchwire.TorchwireRpcBackendOptions(secret_file="/a/file")
    with pytest.raises(ValueError, match="secret and secret_file are both given"):
        options.secret = SECRET
    options.secret_file = None
    options.secret = SECRET
    assert (options.secret, options.secret_file) == (SECRET.encode(), None)


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_file_holds_the_secret_without_the_end_of_its_line(secret_file, end):
    path = secret_file(SECRET + end)
    assert secret_of(secret_file=path) == secret_of(secret_file=str(path)) == SECRET.encode()


def test_only_the_last_newline_of_a_file_is_left_out(secret_file):
    assert secret_of(secret_file=secret_file("\n" * 17)) == b"\n" * 16


def test_the_environment_names_a_file_for_those_who_name_none(secret_file, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(secret_file()))
    assert secret_of() == SECRET.encode()
    assert secret_of(secret=OTHER_SECRET) == OTHER_SECRET.encode()
    assert secret_of(secret_file=secret_file(OTHER_SECRET, name="other")) == OTHER_SECRET.encode()
    monkeypatch.setenv(VARIABLE, "")
    assert secret_of() == b""


def test_the_file_is_read_no_sooner_than_by_init_rpc(secret_file, tmp_path):
    options = torchwire.TorchwireRpcBackendOptions(secret_file=tmp_path / "secret")
    secret_file()
    assert as_agent_options(options)["secrets"] == [SECRET.encode()]


@pytest.mark.parametrize("transports", [["uv"], ["wire_tcp", "ibv", "uv"], ["shm", "wire_tcp"]])
def test_a_secret_beside_a_transport_that_asks_for_none_is_refused(secret_file, transports):
    path = str(secret_file())
    open_to_all = next(name for name in transports if name != "wire_tcp")
    for options, source in (({"secret": SECRET}, "option secret"), ({"secret_file": path}, f"secret_file '{path}'")):
        with pytest.raises(ValueError, match=f"_transports names '{open_to_all}'.*{source}.*: leave _transports out"):
            secret_of(_transports=transports, **options)
    assert secret_of(_transports=transports) == b""
    assert secret_of(_transports=["wire_tcp"], secret=SECRET) == SECRET.encode()


def test_a_secret_beside_a_channel_that_asks_for_none_is_refused(secret_file, monkeypatch):
    channels = ["mpt_uv", "basic"]
    with pytest.raises(ValueError, match="_channels names 'mpt_uv'.*option secret.*: leave _channels out"):
        secret_of(_channels=channels, secret=SECRET)
    assert secret_of(_channels=channels) == b""
    monkeypatch.setenv(VARIABLE, str(secret_file()))
    with pytest.raises(ValueError, match=f"_channels names 'mpt_uv'.*{VARIABLE}"):
        as_agent_options(from_any(rpc.TensorPipeRpcBackendOptions(_channels=channels)))


def test_a_secret_that_options_of_pytorch_know_nothing_of_is_not_ignored(secret_file, monkeypatch):
    stock = rpc.TensorPipeRpcBackendOptions(_transports=["uv"])
    assert as_agent_options(from_any(stock))["secrets"] == []
    path = str(secret_file())
    monkeypatch.setenv(VARIABLE, path)
    with pytest.raises(ValueError, match=f"_transports names 'uv'.*{VARIABLE} '{path}'"):
        as_agent_options(from_any(stock))


WRONG_FILES = [
    ("", "{} is empty; remove it, and make one with `python -m torchwire secret "),
    ("\n", "{} is empty"),
    ("too short\n", "{} has 9 bytes; at least 16 are needed"),
    ("x" * 5000, "{} holds more than 4096 bytes"),
]


@pytest.mark.parametrize("content, sentence", WRONG_FILES)
def test_a_file_without_a_proper_secret_is_refused(secret_file, monkeypatch, content, sentence):
    path = secret_file(content)
    with pytest.raises(ValueError, match=sentence.format(f"secret_file '{path}'")):
        secret_of(secret_file=path)
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(ValueError, match=sentence.format(f"{VARIABLE} '{path}'")):
        secret_of()


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    missing = tmp_path / "missing"
    with pytest.raises(ValueError, match=f"secret_file '{missing}' cannot be read: No such file.*; name a file with"):
        secret_of(secret_file=missing)
    with pytest.raises(ValueError, match=f"secret_file '{tmp_path}' cannot be read: Is a directory"):
        secret_of(secret_file=tmp_path)
    with pytest.raises(ValueError, match="secret_file .* cannot be read: embedded null"):
        secret_of(secret_file="a\0b")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_named(secret_file):
    with pytest.raises(ValueError, match="cannot be read: Permission denied"):
        secret_of(secret_file=secret_file(mode=0))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o777])
def test_a_file_that_is_open_to_others_is_warned_of(secret_file, mode):
    path = secret_file(mode=mode)
    with pytest.warns(UserWarning, match=f"secret_file '{path}' is open to other users .*: chmod 600 {path}"):
        assert secret_of(secret_file=path) == SECRET.encode()


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_that_is_closed_to_others_is_not_warned_of(secret_file, mode):
    path = secret_file(mode=mode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        secret_of(secret_file=path)


# ---- who is in the group by it ----


def my_name():
    return rpc.get_worker_info().name


def call_all(others):
    """A small call and one with a tensor that takes a channel, to each."""
    for name in others:
        assert rpc.rpc_sync(name, my_name) == name
        assert rpc.rpc_sync(name, torch.add, (torch.ones(500_000), 1)).sum() == 1_000_000
    return True


def check(group):
    names = [worker.name for worker in group]
    assert all(group.all(call_all, names))


def init_all(group, init_method, secrets, world_size):
    """Begins init_rpc on every worker with the secret that is its turn."""
    return [
        worker.start(init, init_method, world_size=world_size, secret=secret)
        for worker, secret in zip(group, secrets, strict=True)
    ]


def test_the_secret_may_come_to_each_worker_in_another_way(tmp_path, secret_file):
    path = str(secret_file())
    with Group(3, {VARIABLE: path}) as group:
        ways = [{"secret": SECRET}, {"secret_file": path}, {}]
        init_method = file_in(tmp_path)
        pending = [worker.start(init, init_method, world_size=3, **way) for worker, way in zip(group, ways)]
        for one in pending:
            one.result()
        check(group)
        stored = (tmp_path / "store").read_bytes()
        assert CREDENTIALS_KEY.format(0).encode() in stored and SECRET.encode() not in stored
        group.shut_down()


def test_a_file_that_is_open_to_others_is_named_in_the_log(tmp_path, secret_file):
    path = secret_file(mode=0o644)
    with running(1, tmp_path, secret_file=str(path)) as group:
        assert f"chmod 600 {path}" in group[0].output()


MIXED_SECRETS = [
    ([None, None, SECRET], "a group secret, but .* has none: give all workers the same one .*, or none at all"),
    ([SECRET, SECRET, None], "without a group secret, but .* has one: give all workers the same one by `secret`"),
    ([SECRET, SECRET, OTHER_SECRET], "with another group secret than .*, which began the group: give all workers"),
]


@pytest.mark.parametrize("secrets, sentence", MIXED_SECRETS)
def test_a_worker_whose_secret_does_not_fit_is_refused_on_all(secrets, sentence):
    store = HostedStore()
    with Group(3, store.environment) as group:
        first = group[0].start(init, store.init_method, world_size=3, secret=secrets[0])
        wait_until(lambda: store.has(CREDENTIALS_KEY.format(0)))
        others = init_all(group[1:], store.init_method, secrets[1:], world_size=3)
        said = {error.message.partition("\n")[0] for error in errors([first, *others])}
    assert len(said) == 1
    assert re.search(rf"worker 'worker2' \(rank 2\) was started .*{sentence}", said.pop())


@pytest.mark.parametrize("rightly, wrongly", [(None, SECRET), (SECRET, None), (SECRET, OTHER_SECRET)])
def test_a_dynamic_group_refuses_a_secret_that_does_not_fit_and_goes_on(rightly, wrongly):
    store = HostedStore()
    with Group(2, store.environment) as group, Group(1, store.environment) as outside:
        group.all(init, store.init_method, secret=rightly)
        with pytest.raises(WorkerError, match=r"worker 'late' \(rank 7\) was started with"):
            outside[0].run(init, store.init_method, name="late", rank=7, secret=wrongly)
        check(group)
        group.shut_down()


def test_a_dynamic_group_that_all_have_left_may_begin_anew_with_another_secret():
    store = HostedStore()
    for secrets in [(None, None), (SECRET, SECRET), (SECRET, SECRET), (OTHER_SECRET, OTHER_SECRET), (None, None)]:
        with Group(2, store.environment) as group:
            for pending in init_all(group, store.init_method, secrets, world_size=None):
                pending.result()
            check(group)
            group.shut_down()


def test_of_two_that_begin_a_group_anew_with_different_secrets_one_is_refused():
    store = HostedStore()
    with Group(1, store.environment) as earlier:
        earlier.all(init, store.init_method)
        earlier.shut_down()
    with Group(2, store.environment) as group:
        pending = init_all(group, store.init_method, (SECRET, OTHER_SECRET), world_size=None)
        admitted = []
        for worker, one in zip(group, pending):
            with contextlib.suppress(WorkerError):
                one.result()
                admitted.append(worker)
        assert len(admitted) == 1
        admitted[0].run(rpc.shutdown)


def test_each_group_on_one_store_has_credentials_of_its_own():
    store = HostedStore()
    with Group(2, store.environment) as group:
        for secret in (None, SECRET, OTHER_SECRET):
            group.init(store.init_method, secret=secret)
            check(group)
            group.shut_down()
    ids = {Credentials(store, generation).group_id for generation in range(3)}
    assert len(ids) == 3


# ---- the wire ----
#
# The unknown peer here is a real worker that was shown a forged store: it finds the group's members there, but other
# credentials.
# The groups are dynamic, which take in whoever introduces itself properly: only the transport can keep it out.

HEAD_OF_CREDENTIALS = struct.Struct("<IIQ")  # magic, protocol version, group id
HEAD_OF_ROSTER = struct.Struct("<IIIQ")  # magic, protocol version, world size, group id

REFUSED = "refused a connection from "

over_each_transport = pytest.mark.parametrize("transports", [["wire_tcp"], None], ids=["wire_tcp", "default"])


class Credentials:
    """The credentials in a store, and what can be forged out of them."""

    def __init__(self, store, generation=0):
        self._bytes = store.get(CREDENTIALS_KEY.format(generation))
        self.magic, self.version, self.group_id = HEAD_OF_CREDENTIALS.unpack_from(self._bytes)

    def with_drawn_secret(self, secret):
        head = HEAD_OF_CREDENTIALS.pack(self.magic, self.version, self.group_id)
        return b"".join([head, _string(b"worker 'forger' (rank 99)"), _string(secret), bytes(32)])


def _string(text):
    return struct.pack("<I", len(text)) + text


HEAD_OF_ENTRY = struct.Struct("<4sQ")  # magic, version
PROOF_SIZE = 32
ROSTER_NAME = b"torchwire/roster"


def roster_for(store, group_id, secret):
    """The roster of the group in the store, as if it were that of the group of this id, for who has that secret."""
    entry = store.get(ROSTER_KEY.format(0))
    roster = entry[HEAD_OF_ENTRY.size : -PROOF_SIZE]
    magic, version, world_size, _ = HEAD_OF_ROSTER.unpack_from(roster)
    roster = HEAD_OF_ROSTER.pack(magic, version, world_size, group_id) + roster[HEAD_OF_ROSTER.size :]
    forged = entry[: HEAD_OF_ENTRY.size] + roster
    key = _hmac(secret, b"torchwire transport 2\0" + struct.pack("<Q", group_id))
    said = struct.pack("<Q", len(ROSTER_NAME)) + ROSTER_NAME + forged
    return forged + _hmac(key, b"store entry\0" + said)


def _hmac(key, message):
    return hmac.digest(key, message, "sha256")


@contextlib.contextmanager
def running_group(secret, transports):
    """A dynamic group and its store. Afterwards all its members can still call one another."""
    store = HostedStore()
    with Group(2, {**store.environment, "TORCHWIRE_LOG_LEVEL": "warning"}) as group:
        group.all(init, store.init_method, secret=secret, _transports=transports)
        check(group)
        yield group, store
        check(group)
        group.shut_down()


def try_to_get_in(store, secret, transports):
    """An unknown peer joins by the forged store and calls both workers; each call must fail."""
    with Group(1, store.environment) as outside:
        intruder = outside[0]
        intruder.run(init, store.init_method, name="intruder", rank=9, secret=secret, _transports=transports)
        for name in ("worker0", "worker1"):
            with pytest.raises(WorkerError, match=name):
                intruder.run(rpc.rpc_sync, name, my_name)
        intruder.kill()


def check_refusals(group):
    """Each worker has named the address or process from which it was dialed, and has not heard the intruder's name."""
    for worker in group:
        wait_until(lambda worker=worker: re.search(REFUSED + r"(127\.0\.0\.1:|process )\d+", worker.output()))
        assert "intruder" not in worker.output()


@over_each_transport
def test_a_worker_with_a_wrong_secret_is_refused(transports):
    with running_group(SECRET, transports) as (group, store):
        forged = HostedStore()
        credentials = Credentials(store)
        forged.set(CREDENTIALS_KEY.format(0), credentials.with_drawn_secret(OTHER_SECRET.encode()))
        forged.set(ROSTER_KEY.format(0), roster_for(store, credentials.group_id, OTHER_SECRET.encode()))
        try_to_get_in(forged, None, transports)
        check_refusals(group)


@over_each_transport
def test_a_member_of_another_group_with_the_same_secret_is_refused(transports):
    with running_group(SECRET, transports) as (group, store), running_group(SECRET, transports) as (_, other):
        forged = HostedStore()
        forged.set(CREDENTIALS_KEY.format(0), other.get(CREDENTIALS_KEY.format(0)))
        forged.set(ROSTER_KEY.format(0), roster_for(store, Credentials(other).group_id, SECRET.encode()))
        try_to_get_in(forged, SECRET, transports)
        check_refusals(group)


class Recorder(Proxy):
    """Keeps what the dialers said."""

    def __init__(self, to):
        self.recordings = []
        super().__init__(to)

    def connected(self):
        recording = bytearray()
        self.recordings.append(recording)

        def keep(data):
            recording.extend(data)
            return data

        return keep, lambda data: data


def say(port, words):
    """Says the words on a connection of its own until the other side closes it; returns the address it came from."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(60)
        address = "{}:{}".format(*connection.getsockname())
        with contextlib.suppress(ConnectionError):
            connection.sendall(words)
            while connection.recv(65536):
                pass
        return address


def test_what_a_worker_once_said_does_not_let_anybody_else_in():
    store = HostedStore()
    port = free_port()
    recorder = Recorder(port)
    addresses = {"bind_address": f"127.0.0.1:{port}", "advertise_address": f"127.0.0.1:{recorder.port}"}
    common = {"secret": SECRET, "_transports": ["wire_tcp"]}
    with contextlib.closing(recorder), Group(2, store.environment) as group:
        group[0].run(init, store.init_method, **addresses, **common)
        group[1].run(init, store.init_method, **common)
        group[1].run(call_all, ["worker0"])
        assert recorder.recordings
        for recording in recorder.recordings[:5]:  # more would not all be logged
            address = say(port, bytes(recording))
            wait_until(lambda address=address: REFUSED + address in group[0].output())
        check(group)
        group.shut_down()


def unix_sockets_of(worker):
    """The abstract Unix sockets on which it listens, as Python's addresses."""
    name = f"@torchwire-{worker.pid}-"
    with open("/proc/net/unix") as table:
        return ["\0" + line.split()[-1][1:] for line in table if name in line]


def say_by_unix_socket(address, words, user=None):
    """Says the words until the other side closes the connection; returns how the log will call this process."""
    if user is not None:
        os.setuid(user)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(address)
        with contextlib.suppress(ConnectionError):
            connection.sendall(words)
            while connection.recv(65536):
                pass
    return f"process {os.getpid()} of user {os.getuid()}"


@pytest.mark.parametrize(
    "user",
    [None, pytest.param(65534, marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root"))],
    ids=["same user", "another user"],
)
def test_a_process_that_is_no_worker_is_refused_by_wire_shm(tmp_path, user):
    with running(2, tmp_path) as group, Group(1) as outside:
        addresses = unix_sockets_of(group[0])
        if not addresses:
            pytest.skip("wire_shm does not work here")
        for address in addresses:
            name = outside[0].run(say_by_unix_socket, address, b"nonsense" * 1000, user)
            wait_until(lambda name=name: REFUSED + name in group[0].output())
        assert ("it runs as another user" in group[0].output()) == (user is not None)
        check(group)

"""Ten thousand strangers at a port: handshakes and requests that they begin and do not end, and guesses at passwords.

Memory stays bounded, others are answered meanwhile, and afterwards all places are free. Each side needs some 12,000 open files.
"""

import base64
import contextlib
import os
import resource
import selectors
import socket
import struct
import time

import pytest

from certificates import Authority
from helpers import eventually, execute
from server import Server
from test_idle_connections import HEADERS, SETTINGS
from test_overload import resident_bytes
from test_tls import LOCAL, adbc, metric
from test_users import PASSWORD, connect, curl, make_user

STRANGERS = 10_000
#: Of the memory of the server.
MOST_BYTES_EACH = 40 << 10
#: Within this time others are answered, also on a machine that does much else.
SECONDS = 10
#: The longest time limit of half of something is a minute.
LONGEST_S = 120
MANY = {"TERRACE_HTTP_MAX_CONNECTIONS": "16384"}

#: The begin of a request, for each port: the head of one of HTTP/1.1; a call of HTTP/2 whose headers have 100 bytes.
HALF = {
    "http": b"GET /api/v1/tiers HTTP/1.1\r\nHost: localhost\r\nX-Half: ",
    "flight": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">BHBBI", 0, 0, SETTINGS, 0, 0) +
              struct.pack(">BHBBI", 0, 100, HEADERS, 4, 1) + b"half",
}
#: The begin of a handshake of TLS: a record of 512 bytes of which one byte comes.
HALF_HANDSHAKE = b"\x16\x03\x01\x02\x00\x01"


@pytest.fixture(autouse=True)
def many_files():
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if files < STRANGERS + 2_000:
        pytest.skip(f"a process may open {files} files")


class Strangers:
    """Connections that have said something, and what they are told until the server closes them."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.address, self.open, self.told = (host, int(port)), selectors.DefaultSelector(), []

    def come(self, words):
        stranger = socket.create_connection(self.address, timeout=60)
        with contextlib.suppress(OSError):
            stranger.sendall(words)
        stranger.setblocking(False)
        self.open.register(stranger, selectors.EVENT_READ, bytearray())
        if len(self) % 100 == 0:
            self.hear(0)

    def hear(self, timeout):
        """Reads what there is, and lets those go whom the server has closed."""
        for key, _ in self.open.select(timeout):
            part = b""
            with contextlib.suppress(ConnectionError):
                part = key.fileobj.recv(65_536)
            key.data.extend(part)
            if not part:
                self.open.unregister(key.fileobj)
                key.fileobj.close()
                self.told.append(bytes(key.data))

    def hear_all(self, timeout_s):
        """Waits until the server has closed all connections."""
        deadline = time.monotonic() + timeout_s
        while len(self):
            assert time.monotonic() < deadline, f"{len(self)} connections are open still"
            self.hear(1)

    def __len__(self):
        return len(self.open.get_map())


def files_of(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def within(seconds, action):
    since = time.monotonic()
    result = action()
    assert time.monotonic() - since < seconds, f"it took {time.monotonic() - since:.1f} s"
    return result


def assert_bounded(server, before, connections=STRANGERS):
    """Fails where memory has grown by more than so many connections may take, and two checks of passwords."""
    grown = resident_bytes(server) - before
    assert grown <= connections * MOST_BYTES_EACH + (64 << 20), f"{grown >> 20} MiB more"


@pytest.mark.deep
@pytest.mark.parametrize("port", HALF)
def test_requests_that_are_half_sent(tmp_path, port):
    make_user(tmp_path / "data", "create", "ann")
    with Server(tmp_path / "data", env=MANY) as server:
        with connect(server, "ann", PASSWORD) as known, known.cursor() as cursor:
            assert execute(cursor, "SELECT 1") == [(1,)]
            before, files = resident_bytes(server), files_of(server)
            strangers = Strangers(getattr(server, port))
            for _ in range(STRANGERS):
                strangers.come(HALF[port])
            assert_bounded(server, before)
            assert within(SECONDS, lambda: execute(cursor, "SELECT 2")) == [(2,)]
            with within(SECONDS, lambda: connect(server, "ann", PASSWORD)) as new, new.cursor() as newer:
                assert within(SECONDS, lambda: execute(newer, "SELECT 3")) == [(3,)]
            assert within(SECONDS, lambda: curl(server, "/api/v1/tiers", "-u", f"ann:{PASSWORD}"))[0] == 200
            strangers.hear_all(LONGEST_S)
            assert port == "flight" or not any(strangers.told), "nobody is answered before the end of the head"
            eventually(lambda: files_of(server) <= files + 50)
            assert execute(cursor, "SELECT 4") == [(4,)] and curl(server, "/readyz")[0] == 200
        assert server.stop(seconds=60) == 0, server.output()


@pytest.mark.deep
def test_handshakes_that_are_half_done(tmp_path):
    ours = Authority(tmp_path, "ours")
    cert, key = ours.issue("server", *LOCAL)
    with Server(tmp_path / "data", "--tls-cert", cert, "--tls-key", key) as server:
        assert adbc(server, ours.ca) == [(42,)]
        before, files = resident_bytes(server), files_of(server)
        strangers = Strangers(server.flight)
        for number in range(STRANGERS):
            strangers.come(HALF_HANDSHAKE)
            if number % 1_000 == 0:
                assert within(SECONDS, lambda: adbc(server, ours.ca)) == [(42,)]
        assert_bounded(server, before, connections=256)
        strangers.hear(1)
        assert len(strangers) < STRANGERS // 10, "the oldest ones end"
        assert within(SECONDS, lambda: adbc(server, ours.ca)) == [(42,)]
        strangers.hear_all(LONGEST_S)
        failed = metric(server, ours.ca, 'terrace_tls_failed_handshakes_total{listener="flight"}')
        assert failed >= STRANGERS, failed
        eventually(lambda: files_of(server) <= files + 50)
        assert adbc(server, ours.ca) == [(42,)] and server.stop(seconds=60) == 0, server.output()


@pytest.mark.deep
def test_guesses(tmp_path):
    make_user(tmp_path / "data", "create", "ann")
    with Server(tmp_path / "data", env=MANY) as server:
        with connect(server, "ann", PASSWORD) as known, known.cursor() as cursor:
            assert execute(cursor, "SELECT 1") == [(1,)]
            before, files = resident_bytes(server), files_of(server)
            strangers = Strangers(server.http)
            for number in range(STRANGERS):
                user = "ann" if number % 2 else f"user{number}"
                login = base64.b64encode(f"{user}:wrong horse {number}".encode()).decode()
                strangers.come(f"GET /api/v1/tiers HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Basic {login}\r\n\r\n".encode())
            assert_bounded(server, before)
            assert within(SECONDS, lambda: execute(cursor, "SELECT 2")) == [(2,)], "who has logged in goes on"
            # So does a log-in from another address, for the same user.
            elsewhere = ("--interface", "127.0.0.2", "-u", f"ann:{PASSWORD}")
            assert within(SECONDS, lambda: curl(server, "/api/v1/tiers", *elsewhere))[0] == 200
            strangers.hear_all(LONGEST_S)
            statuses = {told.split(b" ", 2)[1] for told in strangers.told}
            assert len(strangers.told) == STRANGERS and statuses == {b"401", b"429"}, statuses
            tried = sum(told.startswith(b"HTTP/1.1 401") for told in strangers.told)
            assert tried < 1_000, f"{tried} guesses were looked at"
            eventually(lambda: files_of(server) <= files + 50)
            assert execute(cursor, "SELECT 3") == [(3,)]
        assert server.stop(seconds=60) == 0, server.output()

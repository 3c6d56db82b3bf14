"""Ten thousand clients that have asked something once and stay connected: memory, and answers to others meanwhile.

Each is a connection of HTTP/2 over a socket, with its settings and one Flight SQL statement; pyarrow would share one connection
among all clients of a process. Each side needs some 12,000 open files.
"""

import resource
import selectors
import socket
import struct
import time

import pytest
from pyarrow import flight

from server import Server, terrace
from test_overload import POINT, answer, resident_bytes

CONNECTIONS = 10_000
LIMIT_BYTES = 2 << 30
MOST_BYTES_EACH = 40 << 10

DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4


def literal(name, value):
    """A header field for HPACK, as a literal that is not indexed."""
    return b"".join([b"\x00", *(bytes([len(text)]) + text.encode() for text in (name, value))])


def command(sql):
    """The descriptor of a Flight SQL statement (`CommandStatementQuery` in an `Any`)."""
    def field(number, value):
        assert len(value) < 128
        return bytes([number << 3 | 2, len(value)]) + value
    url = b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"
    return flight.FlightDescriptor.for_command(field(1, url) + field(2, field(1, sql.encode())))


class Connection:
    """One connection of HTTP/2, with one call at a time."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.authority, self.streams = address, 1
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        # Else each small frame waits for the acknowledgement of the one before.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self.frame(SETTINGS, 0, 0, b""))

    @staticmethod
    def frame(kind, flags, stream, payload):
        return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload

    def read(self):
        """The next frame; settings and pings are answered."""
        header = self.receive(9)
        kind, flags, stream = struct.unpack(">BBI", header[3:])
        payload = self.receive(int.from_bytes(header[:3], "big"))
        if kind in (SETTINGS, PING) and not flags & ACK:
            self.socket.sendall(self.frame(kind, ACK, 0, payload if kind == PING else b""))
        return kind, flags, stream, payload

    def receive(self, length):
        found = b""
        while len(found) < length:
            part = self.socket.recv(length - len(found))
            assert part, "the server closed the connection"
            found += part
        return found

    def call(self, method, message):
        """The messages that answer a call."""
        stream, self.streams = self.streams, self.streams + 2
        headers = [(":method", "POST"), (":scheme", "http"), (":path", f"/arrow.flight.protocol.FlightService/{method}"),
                   (":authority", self.authority), ("te", "trailers"), ("content-type", "application/grpc")]
        body = struct.pack(">BI", 0, len(message)) + message
        self.socket.sendall(self.frame(HEADERS, END_HEADERS, stream, b"".join(literal(*header) for header in headers)) +
                            self.frame(DATA, END_STREAM, stream, body))
        data = b""
        while True:
            kind, flags, of, payload = self.read()
            if of == stream and kind == DATA:
                data += payload
            if of == stream and flags & END_STREAM:
                break
        messages = []
        while data:
            length = struct.unpack(">I", data[1:5])[0]
            messages.append(data[5:5 + length])
            data = data[5 + length:]
        return messages

    def ask(self, sql):
        info = flight.FlightInfo.deserialize(self.call("GetFlightInfo", command(sql).serialize())[0])
        rows = self.call("DoGet", info.endpoints[0].ticket.serialize())
        assert len(rows) >= 2, "a schema and rows"


def answer_pings(idle):
    """The server ends connections that do not answer for half a minute."""
    for key, _ in idle.select(timeout=0):
        key.data.read()


@pytest.mark.deep
def test_ten_thousand_idle_connections(tmp_path, capsys):
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if files < CONNECTIONS + 2_000:
        pytest.skip(f"a process may open {files} files")
    data = tmp_path / "data"
    terrace("load", "tpch:0.01", "--data-dir", data)
    with Server(data, "--memory-limit", str(LIMIT_BYTES)) as server, server.connect() as other:
        for _ in range(20):
            Connection(server.flight).ask("SELECT 1")
        before = resident_bytes(server)
        connections, idle, since = [], selectors.DefaultSelector(), time.monotonic()
        for number in range(CONNECTIONS):
            connection = Connection(server.flight)
            connection.ask("SELECT 1")
            connections.append(connection)
            idle.register(connection.socket, selectors.EVENT_READ, connection)
            if number % 100 == 0:
                answer_pings(idle)
        seconds = time.monotonic() - since
        each = (resident_bytes(server) - before) / CONNECTIONS
        with capsys.disabled():
            print(f"\n{CONNECTIONS} idle connections: {each / 1024:.1f} KiB each, opened in {seconds:.1f} s")
        assert each <= MOST_BYTES_EACH
        # They take no slot, and go on where they were.
        assert not isinstance(answer(other, POINT), Exception)
        answer_pings(idle)
        [connection.ask("SELECT 2") for connection in connections[::500]]
        [connection.socket.close() for connection in connections]
        assert server.stop(seconds=60) == 0, server.output()

"""A proxy in front of an object store that breaks some of the requests, as networks and stores do.

A test gives it a function that is asked for each request, `choose(method, path) -> fault or None`. The faults:

- `500`, `503`: the store answers with that status, and does nothing
- `reset`: the connection is reset in the middle of the body of the answer
- `short`: the body of the answer ends in its middle, and the head says that this is all of it
- `stall`: half of the answer comes, then nothing for 30 seconds
- `lost`: the store carries the request out, and the connection is reset before its answer
- `whole`: the store does not know ranges, and sends the whole object; no answer can be made of that, so it is none of `FAULTS`
"""

import collections
import http.client
import http.server
import socket
import struct
import threading

FAULTS = ["500", "503", "reset", "short", "stall", "lost"]
STALL_S = 30
#: Headers of one connection, which are not passed on.
OWN = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class FaultProxy:
    """A proxy on a port of its own; `counts` has how many requests met with each fault."""

    def __init__(self, upstream_port):
        self.upstream_port = upstream_port
        self.choose = lambda method, path: None
        self.counts = collections.Counter()
        self.stopped = threading.Event()
        proxy = self

        class Handler(Passing):
            pass

        Handler.proxy = proxy
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def close(self):
        self.stopped.set()
        self.server.shutdown()
        self.server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Passing(http.server.BaseHTTPRequestHandler):
    """Passes a request on and its answer back, with the fault that the proxy chooses."""

    protocol_version = "HTTP/1.1"
    proxy = None

    def log_message(self, *_):
        pass

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.proxy.choose(self.command, self.path)
        if fault:
            self.proxy.counts[fault] += 1
        if fault in ("500", "503"):
            return self.answer(int(fault), [], b"<Error><Code>SlowDown</Code></Error>")
        status, headers, answer = self.ask(body, without={"range"} if fault == "whole" else set())
        if fault == "lost":
            return self.reset()
        if fault in (None, "whole") or not answer:
            return self.answer(status, headers, answer)
        half = answer[:len(answer) // 2]
        if fault == "short":
            return self.answer(status, headers, half)
        self.head(status, headers, len(answer))
        self.wfile.write(half)
        self.wfile.flush()
        if fault == "stall":
            self.proxy.stopped.wait(STALL_S)
        self.reset()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on

    def ask(self, body, without):
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.upstream_port, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in OWN | without}
        connection.request(self.command, self.path, body=body, headers={**headers, "Content-Length": str(len(body))})
        answer = connection.getresponse()
        found = answer.status, answer.getheaders(), answer.read()
        connection.close()
        return found

    def head(self, status, headers, length):
        self.send_response_only(status)
        for name, value in headers:
            # A HEAD answers the length of a body that it does not send.
            if name.lower() not in OWN or (self.command == "HEAD" and name.lower() == "content-length"):
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def answer(self, status, headers, body):
        self.head(status, headers, len(body))
        if self.command != "HEAD":
            self.wfile.write(body)

    def reset(self):
        """Ends the connection with a reset instead of an end."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

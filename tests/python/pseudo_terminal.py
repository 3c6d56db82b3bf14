"""A command on a terminal of its own, for tests that type and read."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

from server import BINARY

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x07|\r")


class PseudoTerminal:
    """Runs the binary with a terminal as standard input, output and error. It is so wide that the prompt is not drawn anew for
    each key."""

    def __init__(self, *arguments, lines=40, columns=400, env=None):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

        def lead():
            os.setsid()
            # Ctrl-C reaches the command only through a terminal that controls it.
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1", "PAGER": "", **(env or {})}
        self.process = subprocess.Popen([BINARY, *map(str, arguments)], stdin=slave, stdout=slave, stderr=slave, env=environment,
                                        preexec_fn=lead)
        os.close(slave)
        self.seen = ""
        self.raw = b""

    def read(self, seconds):
        """Reads what comes within some time; false at the end of the output."""
        if not select.select([self.master], [], [], seconds)[0]:
            return True
        try:
            part = os.read(self.master, 65536)
        except OSError:
            part = b""
        self.raw += part
        self.seen += ESCAPES.sub("", part.decode(errors="replace"))
        return bool(part)

    def expect(self, *wanted, seconds=60):
        """Waits for each text in turn; what came before and with it is done with. Returns that."""
        deadline = time.monotonic() + seconds
        done = ""
        for text in wanted:
            while text not in self.seen:
                assert time.monotonic() < deadline, f"no {text!r} in {self.seen!r}"
                if not self.read(0.1):
                    assert text in self.seen, f"ended without {text!r}: {self.seen!r}"
            before, found, self.seen = self.seen.partition(text)
            done += before + found
        return done

    def send(self, text):
        os.write(self.master, text.encode())

    def enter(self, *lines):
        for line in lines:
            self.send(line + "\r")

    def end(self, seconds=30):
        """Reads to the end and returns the exit status."""
        deadline = time.monotonic() + seconds
        # A command may end before all of its output is read.
        while self.read(0.1):
            assert time.monotonic() < deadline, f"does not end: {self.seen!r}"
        return self.process.wait(timeout=seconds)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)

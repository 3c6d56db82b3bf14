"""A real `terrace serve` process for tests: start, query, move, stop, kill."""

import hashlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import adbc_driver_flightsql.dbapi as flight_sql

BINARY = os.environ.get("TERRACE_BIN", str(pathlib.Path(__file__).parents[2] / "target/release/terrace"))
#: Below it each data directory gets a home of its own, such as s3://bucket/tests; with it the suites run over an object store.
HOMES = os.environ.get("TERRACE_TEST_HOMES")


def home_of_test(data_dir):
    """Options for the home of a data directory: the same one for each server on it."""
    name = hashlib.sha256(str(pathlib.Path(data_dir).absolute()).encode()).hexdigest()[:16]
    return ["--home", f"{HOMES}/{name}"] if HOMES else []


class Server:
    """One server on one data directory; ports are chosen by the system."""

    def __init__(self, data_dir, *arguments, env=None, wait=True, group=None, flight_addr="127.0.0.1:0"):
        self.data_dir = pathlib.Path(data_dir)
        self.ready_file = pathlib.Path(tempfile.mkdtemp()) / "ready.json"
        self.log = tempfile.TemporaryFile("w+")
        home = [] if "--home" in arguments else home_of_test(data_dir)
        command = [BINARY, "serve", "--data-dir", str(data_dir), "--flight-addr", flight_addr,
                   "--http-addr", "127.0.0.1:0", "--ready-file", str(self.ready_file), *home, *map(str, arguments)]
        command = group.command(command) if group else command
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})})
        if wait:
            self.wait_ready()

    def wait_ready(self, seconds=60):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.ready_file.exists() and self.ready_file.read_text().rstrip().endswith("}"):
                ready = json.loads(self.ready_file.read_text())
                self.flight, self.http, self.health = ready["flight"], ready["http"], ready.get("health")
                return self
            if self.process.poll() is not None:
                raise RuntimeError(f"server ended with {self.process.returncode}:\n{self.output()}")
            time.sleep(0.02)
        self.kill()
        raise TimeoutError(f"server not ready:\n{self.output()}")

    def output(self):
        self.log.seek(0)
        return self.log.read()

    def connect(self, **options):
        return flight_sql.connect(f"grpc://{self.flight}", autocommit=True, **options)

    def query(self, sql):
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetch_arrow_table()

    def request(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.http}{path}", data=data, method=method,
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.code} {error.read().decode()}") from None

    def budget(self, tier, size):
        return self.request("PUT", f"/api/v1/tiers/{tier}", {"budget": size})

    def epoch(self, dry_run=False):
        return self.request("POST", "/api/v1/epochs", {"dry_run": dry_run})

    def tiers(self):
        return {row["tier"]: row for row in self.query("select * from system.tiers").to_pylist()}

    def kill(self):
        """As a power cut would: SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self, seconds=30):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=seconds)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def terrace(*arguments, check=True, seconds=600, env=None, stdin=None):
    """Runs the binary and returns the finished process with its output as text."""
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, check=check, timeout=seconds, input=stdin,
                          env={**os.environ, **(env or {})})

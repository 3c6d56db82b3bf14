"""Standard output and standard error: closed pipes, full disks, colours."""

import os
import pathlib
import subprocess

import pytest

from server import BINARY, Server


def closed_pipe(*arguments, streams=("stdout",), **options):
    """Runs the binary with a pipe that nobody reads as the named streams; the other one is captured."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        pipes = {name: writer if name in streams else subprocess.PIPE for name in ("stdout", "stderr")}
        return subprocess.run([BINARY, *map(str, arguments)], text=True, timeout=120, **pipes, **options)
    finally:
        os.close(writer)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("terminal") / "data") as server:
        server.query("create table t as select 1 as a")
        yield ["--http-addr", server.http], ["--url", f"grpc://{server.flight}"]


def commands(address, folder):
    http, flight = address
    config = folder / "terrace.toml"
    config.write_text("")
    return [
        ["config", "print"],
        ["config", "check", config],
        ["health", *http],
        ["check", *http],
        ["du", *http],
        ["tiers", "list", *http],
        ["calibrate", "--show", *http],
        ["advise", *http],
        ["advise", "--json", *http],
        ["placement", "list", *http],
        ["placement", "epoch", "--dry-run", *http],
        ["moves", "export", "--format", "csv", *http],
        ["sql", "select * from t", *flight],
        ["sql", "--format", "json", "select * from t", *flight],
        ["sql", "--format", "csv", "select * from generate_series(1, 10000000)", *flight],
        ["sql", "--format", "vertical", "select * from generate_series(1, 10000000)", *flight],
        ["sql", "--format", "ndjson", "select * from generate_series(1, 10000000)", *flight],
        ["sql", "--format", "arrow", "select * from generate_series(1, 10000000)", *flight],
        ["sql", "--format", "parquet", "select * from t", *flight],
        ["sql", "\\d t", *flight],
        ["status", *http],
        ["top", "--once", *http],
        ["completions", "bash"],
        ["--help"],
        ["--version"],
    ]


def test_a_reader_that_leaves_is_no_failure(address, tmp_path):
    for command in commands(address, tmp_path):
        ended = closed_pipe(*command)
        assert ended.returncode == 0 and "panicked" not in ended.stderr, (command, ended.stderr)


def test_words_that_nobody_takes_do_not_end_a_command(address, tmp_path):
    assert closed_pipe("sql", "select nothing", *address[1], streams=("stderr",)).returncode == 1
    assert closed_pipe("config", "check", tmp_path / "missing", streams=("stderr",)).returncode == 1
    rows = tmp_path / "rows.csv"
    rows.write_text("a\n1\n")
    loaded = closed_pipe("load", rows, *address[1], streams=("stdout", "stderr"))
    assert loaded.returncode == 0


def test_a_server_serves_on_without_a_terminal(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    ready = tmp_path / "ready.json"
    command = [BINARY, "serve", "--data-dir", tmp_path / "data", "--flight-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0",
               "--ready-file", ready, "--set", "log=trace"]
    process = subprocess.Popen(list(map(str, command)), stdout=writer, stderr=writer)
    os.close(writer)
    try:
        server = Server.__new__(Server)
        server.process, server.ready_file, server.output = process, ready, lambda: "(closed)"
        server.wait_ready()
        assert server.query("select count(*) as n from system.tables").num_rows == 1
        assert server.stop() == 0
    finally:
        process.kill()


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_failure(address, tmp_path):
    for command in commands(address, tmp_path)[:-2]:
        with open("/dev/full", "w") as full:
            ended = subprocess.run([BINARY, *map(str, command)], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
        nothing_said = command[:2] in (["placement", "epoch"],) and ended.returncode == 0
        assert nothing_said or (ended.returncode == 1 and "No space left" in ended.stderr), (command, ended.stderr)
        assert "panicked" not in ended.stderr


def test_log_files_have_no_colours(tmp_path):
    with Server(tmp_path / "data", "--set", "log=debug") as server:
        server.query("select 1")
        server.stop()
        assert "\x1b" not in server.output() and "DEBUG" in server.output()


def test_no_color_holds_on_a_terminal(tmp_path):
    import pty

    def log(**environment):
        shown, terminal = pty.openpty()
        command = [BINARY, "serve", "--data-dir", str(tmp_path / "data"), "--flight-addr", "127.0.0.1:0",
                   "--http-addr", "127.0.0.1:0", "--set", "log=debug"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=terminal, env={**os.environ, **environment})
        os.close(terminal)
        try:
            text = b""
            while b"DEBUG" not in text and b"INFO" not in text:
                text += os.read(shown, 4096)
            return text
        finally:
            process.terminate()
            try:
                while os.read(shown, 4096):
                    pass
            except OSError:
                pass
            process.wait()
            os.close(shown)

    assert b"\x1b[" in log(NO_COLOR="")
    assert b"\x1b[" not in log(NO_COLOR="1")

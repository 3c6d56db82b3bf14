"""What a user does wrong, and the message that says what to do."""

import contextlib
import pathlib
import random
import socket
import subprocess

import pyarrow
import pytest

from server import BINARY, Server, terrace


def refused(*arguments, env=None):
    """Output of a server that must not start."""
    ended = terrace("serve", "--flight-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0", *arguments, check=False, seconds=60, env=env)
    assert ended.returncode not in (0, 101), ended.stdout + ended.stderr
    assert "panicked" not in ended.stderr
    return ended.stdout + ended.stderr


def test_two_servers_on_one_directory(tmp_path):
    with Server(tmp_path) as first:
        message = refused("--data-dir", tmp_path)
        assert str(tmp_path) in message and str(first.process.pid) in message


@pytest.mark.parametrize("option", ["--flight-addr", "--http-addr"])
def test_port_in_use(tmp_path, option):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = subprocess.run([BINARY, "serve", "--data-dir", str(tmp_path), "--flight-addr", "127.0.0.1:0", "--http-addr",
                                "127.0.0.1:0", option, address], capture_output=True, text=True, timeout=60)
        if "cannot be used multiple times" in ended.stderr:  # clap: name each address once
            other = "--http-addr" if option == "--flight-addr" else "--flight-addr"
            ended = subprocess.run([BINARY, "serve", "--data-dir", str(tmp_path), other, "127.0.0.1:0", option, address],
                                   capture_output=True, text=True, timeout=60)
        assert ended.returncode != 0 and address in ended.stderr and "in use" in ended.stderr, ended.stderr


def test_directory_that_cannot_be_written():
    message = refused("--data-dir", "/proc/terrace-data")
    assert "/proc/terrace-data" in message


def test_budget_larger_than_memory(tmp_path):
    message = refused("--data-dir", tmp_path, "--dram-budget", "4096GiB")
    assert "4.00 TiB" in message and "--dram-budget" in message


def test_nvm_path_missing_or_not_dax(tmp_path):
    message = refused("--data-dir", tmp_path / "data", "--nvm-path", "/no/such/mount/pool", "--nvm-capacity", "64MiB")
    assert "/no/such/mount/pool" in message
    message = refused("--data-dir", tmp_path / "data", "--nvm-path", tmp_path / "pool", "--nvm-capacity", "64MiB")
    assert "DAX" in message and str(tmp_path / "pool") in message


def test_unknown_key_names_the_nearest(tmp_path):
    config = tmp_path / "terrace.toml"
    config.write_text("[flight]\nadrr = '127.0.0.1:1'\n")
    ended = terrace("config", "check", config, check=False)
    assert ended.returncode != 0 and "adrr" in ended.stderr + ended.stdout and "addr" in ended.stderr + ended.stdout


def fill(server, name, rows=150_000):
    table = pyarrow.table({"k": pyarrow.array(range(rows), pyarrow.int64())})
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.adbc_ingest(name, table, mode="create")


def test_truncated_and_foreign_files_fail_only_their_table(tmp_path):
    with Server(tmp_path) as server:
        fill(server, "good")
        fill(server, "bad")
        assert server.query("select distinct table_name from system.chunks").num_rows == 2
        server.stop()
    folders = sorted(pathlib.Path(tmp_path, "ssd").iterdir())
    victim = sorted(folders[-1].glob("*.arrow"))[0]
    victim.write_bytes(victim.read_bytes()[:5000])
    foreign = pathlib.Path(tmp_path, "ssd", "holiday.jpg")
    foreign.write_bytes(b"not ours")
    with Server(tmp_path) as server:
        outcomes = {}
        for name in ("good", "bad"):
            try:
                outcomes[name] = server.query(f"select sum(k) as s from {name}").to_pylist()[0]["s"]
            except Exception as error:  # noqa: BLE001
                outcomes[name] = str(error)
        assert outcomes["good"] == sum(range(150_000))
        assert str(victim) in outcomes["bad"], outcomes
        assert foreign.exists() and "holiday.jpg" in server.output()


@contextlib.contextmanager
def small_disk(path, size):
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_disk_full_during_load_loses_nothing_and_serving_goes_on(tmp_path):
    with small_disk(tmp_path / "disk", "24m") as disk, Server(disk / "data") as server:
        fill(server, "before", rows=100_000)
        noise = pyarrow.py_buffer(random.Random(1).randbytes(8 * 6_000_000))
        noise = pyarrow.table({"k": pyarrow.Array.from_buffers(pyarrow.int64(), 6_000_000, [None, noise])})
        with server.connect() as connection, connection.cursor() as cursor:
            with pytest.raises(Exception, match="(?i)disk is full|no space"):
                cursor.adbc_ingest("too_big", noise.to_reader(max_chunksize=200_000), mode="create")
        assert server.query("select count(*) as n from before").to_pylist() == [{"n": 100_000}]
        with pytest.raises(Exception, match="too_big"):
            server.query("select * from too_big")
        assert not list(pathlib.Path(disk, "data/ssd").rglob("*.tmp"))

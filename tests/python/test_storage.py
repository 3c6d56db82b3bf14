"""The data directory as other tools see it, and the bytes the server says it read."""

import pathlib

import pyarrow
import pyarrow.feather
import pyarrow.ipc

from server import Server


def load(server, rows=200_000):
    table = pyarrow.table({
        "k": pyarrow.array(range(rows), pyarrow.int64()),
        "x": pyarrow.array([i * 0.5 for i in range(rows)], pyarrow.float64()),
        "s": pyarrow.array([None if i % 11 == 0 else f"row {i}" for i in range(rows)], pyarrow.string()),
    })
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.adbc_ingest("t", table.to_reader(max_chunksize=100_000), mode="create")
    return table


def test_pyarrow_opens_the_chunk_files(tmp_path):
    with Server(tmp_path) as server:
        table = load(server)
        files = sorted(pathlib.Path(tmp_path, "ssd").rglob("*.arrow"))
        assert len(files) == 4
        parts = [pyarrow.ipc.open_file(path).read_all() for path in files]
        assert all(len(part.to_batches()) == 1 for part in parts)
        stored = pyarrow.concat_tables(parts).cast(table.schema)
        assert stored.sort_by("k").equals(table.sort_by("k"))


def read_bytes(server):
    text = pathlib.Path(f"/proc/{server.process.pid}/io").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("read_bytes"))


def test_cold_bytes_agree_with_the_kernel_and_are_read_again(tmp_path):
    with Server(tmp_path, "--dram-budget", "64MiB") as server:
        load(server, rows=1_000_000)
        server.budget("dram", 0)
        server.epoch()
        assert server.tiers()["dram"]["placed_bytes"] == 0
        metric = "terrace_io_read_bytes_total"
        seen = []
        for _ in range(2):
            kernel, ours = read_bytes(server), server_metric(server, metric)
            server.query("select sum(k), sum(x), max(s) from t")
            seen.append((read_bytes(server) - kernel, server_metric(server, metric) - ours))
        for kernel, ours in seen:
            assert ours > 10 << 20 and abs(kernel - ours) <= 0.05 * kernel, seen
        assert abs(seen[0][1] - seen[1][1]) <= 0.05 * seen[0][1], seen


def server_metric(server, name):
    import urllib.request
    text = urllib.request.urlopen(f"http://{server.http}/metrics").read().decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name) and not line.startswith("#"))

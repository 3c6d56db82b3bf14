"""The data directory as other tools see it, and the bytes the server says it read."""

import pathlib
import random
import time

import pyarrow
import pyarrow.feather
import pyarrow.ipc
import pytest

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


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_pyarrow_opens_compressed_chunk_files(tmp_path, compression):
    rows = 60_000
    noise = random.Random(1).randbytes(8 * rows)
    table = pyarrow.table({
        "k": pyarrow.array(range(rows), pyarrow.int64()),
        "noise": pyarrow.Array.from_buffers(pyarrow.int64(), rows, [None, pyarrow.py_buffer(noise)]),
        "word": pyarrow.array([None if i % 7 == 0 else "regular deposits" if i % 3 else "ironic" for i in range(rows)]),
        "list": pyarrow.array([None if i % 5 == 0 else [i % 4] * (i % 3) for i in range(rows)], pyarrow.list_(pyarrow.int32())),
    })
    with Server(tmp_path, "--set", f"tiers.ssd.compression={compression}") as server:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.adbc_ingest("t", table.to_reader(max_chunksize=20_000), mode="create")
        [path] = pathlib.Path(tmp_path, "ssd").rglob("*.arrow")
        with pyarrow.ipc.open_file(path) as file:
            [batch] = [file.get_batch(i) for i in range(file.num_record_batches)]
        batch.validate(full=True)
        assert pyarrow.Table.from_batches([batch]).cast(table.schema).equals(table)
        segments = server.query("select column_name, encoding from system.segments where table_name = 't'").to_pylist()
        encodings = {segment["column_name"]: segment["encoding"] for segment in segments}
        assert encodings["word"] == f"dictionary (2 values), {compression}" and encodings["noise"] == "plain", encodings
        # Ascending numbers have no repeated bytes, which is all that LZ4 looks for.
        assert encodings["k"] == ("narrow (4 B)" if compression == "lz4" else "narrow (4 B), zstd"), encodings
        server.budget("dram", 0)
        server.epoch()
        query = "select sum(k) k, count(word) words, max(noise) noise, sum(list[1]) lists from t where k % 3 = 1"
        [cold] = server.query(query).to_pylist()
    # What is written under one setting is read under any other.
    with Server(tmp_path, "--set", "tiers.ssd.compression=none") as server:
        assert server.query(query).to_pylist() == [cold]
        kept = [i for i in range(rows) if i % 3 == 1]
        lists = table["list"].to_pylist()
        assert cold["k"] == sum(kept) and cold["words"] == sum(1 for i in kept if i % 7)
        assert cold["lists"] == sum(lists[i][0] for i in kept if lists[i])
        assert cold["noise"] == max(table["noise"][i].as_py() for i in kept)


def chunk_files(folder):
    return sorted(path for path in pathlib.Path(folder, "ssd").rglob("c*.*") if path.suffix in (".arrow", ".packed"))


def test_tables_of_packed_files_are_smaller_and_become_arrow_files_again(tmp_path):
    raw = ("--set", "tiers.ssd.compression=none")
    with Server(tmp_path, "--dram-budget", "64MiB", "--set", "tiers.ssd.format=packed", *raw) as server:
        table = load(server)
        assert [path.suffix for path in chunk_files(tmp_path)] == [".packed"] * 4
        size = sum(path.stat().st_size for path in chunk_files(tmp_path))
        query = "select sum(k) k, sum(x) x, count(s) n, max(s) s from t where k % 3 = 1"
        expected = server.query(query).to_pylist()
        server.budget("dram", 0)
        server.epoch()
        assert server.query(query).to_pylist() == expected, "from disk"
        # Few rows of a table are read by their pages.
        before = server_metric(server, "terrace_io_read_bytes_total")
        assert server.query("select s from t where k = 150000").to_pylist() == [{"s": "row 150000"}]
        assert server_metric(server, "terrace_io_read_bytes_total") - before < size / 4
        # No Arrow tool takes them for whole files.
        with pytest.raises(pyarrow.ArrowInvalid):
            pyarrow.ipc.open_file(chunk_files(tmp_path)[0])
    # The table keeps its format, whatever new ones get.
    with Server(tmp_path, *raw) as server:
        assert server.query("select format from system.tables").to_pylist() == [{"format": "packed"}]
        assert server.query(query).to_pylist() == expected
        server.query("alter table t set (format = 'arrow')")
        server.query("optimize table t")
        assert server.query(query).to_pylist() == expected
        # The old files go with their last readers.
        deadline = time.monotonic() + 20
        while any(path.suffix == ".packed" for path in chunk_files(tmp_path)):
            assert time.monotonic() < deadline, chunk_files(tmp_path)
            time.sleep(0.05)
    files = chunk_files(tmp_path)
    assert sum(path.stat().st_size for path in files) > 1.5 * size
    stored = pyarrow.concat_tables(pyarrow.ipc.open_file(path).read_all() for path in files).cast(table.schema)
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


def test_the_distance_of_partial_reads_is_measured_kept_and_set(tmp_path):
    def gap(server):
        tiers = server.tiers()
        assert tiers["dram"]["read_gap_bytes"] is None
        return tiers["ssd"]["read_gap_bytes"]

    with Server(tmp_path) as server:
        measured = gap(server)
        assert 0 <= measured <= 4 << 20
    with Server(tmp_path) as server:
        assert gap(server) == measured
    with Server(tmp_path, "--set", "tiers.ssd.read_gap=65KiB") as server:
        table = load(server)
        assert gap(server) == 65 << 10
        server.budget("dram", 0)
        server.epoch()
        # Every so many rows, of which far ones are two reads and near ones are one.
        [row] = server.query("SELECT sum(x) AS x, count(s) AS n FROM t WHERE k % 9973 = 5").to_pylist()
        wanted = [i for i in range(table.num_rows) if i % 9973 == 5]
        assert row == {"x": sum(i * 0.5 for i in wanted), "n": sum(i % 11 != 0 for i in wanted)}

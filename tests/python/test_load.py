"""Long loads: `terrace load --resume`, killed in the middle, gives the table that a plain load gives; sorts spill."""

import os
import random
import re
import signal
import subprocess
import threading
import time
import urllib.request

import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

import server as process
from pseudo_terminal import PseudoTerminal
from server import Server, terrace

ROWS = 400_000
PART = 20_000


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder of Parquet files with several row groups each, and a CSV file between them."""
    folder = tmp_path_factory.mktemp("source") / "events"
    folder.mkdir()
    order = list(range(ROWS))
    random.Random(3).shuffle(order)
    table = pyarrow.table({
        "k": pyarrow.array(order, pyarrow.int64()),
        "v": pyarrow.array([k % 977 for k in order], pyarrow.int64()),
        "s": pyarrow.array([None if k % 17 == 0 else f"text {k % 5000}" for k in order], pyarrow.string()),
    })
    cuts = [0, 130_001, 130_001, 260_000, 270_500, ROWS]
    for number, (start, end) in enumerate(zip(cuts, cuts[1:])):
        part = table.slice(start, end - start)
        if number == 3:
            pyarrow.csv.write_csv(part, folder / f"p{number}.csv")
        else:
            pyarrow.parquet.write_table(part, folder / f"p{number}.parquet", row_group_size=30_000)
    return folder


def place(where):
    """Options that say where rows go: a server, or a data directory."""
    return ["--url", f"grpc://{where.flight}"] if isinstance(where, Server) else ["--data-dir", str(where)]


def start(source, table, where, *more):
    command = [process.BINARY, "load", source, "--table", table, "--resume", "--part-rows", PART, *place(where), *more]
    return subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True, env=dict(os.environ))


def kill(load):
    load.send_signal(signal.SIGKILL)
    return load.communicate()[1]


def files(data):
    return sum(1 for _ in (data / "ssd").rglob("*.arrow")) if (data / "ssd").is_dir() else 0


def tables(server):
    return set(server.query("select table_name from system.tables")["table_name"].to_pylist())


def contents(server, table):
    return server.query(f"select * from {table} order by k")


def stored(server, table):
    """Rows that loads of the table stored so far."""
    there = f"{table}__loading" in tables(server)
    return server.query(f"select count(*) as n from {table}__loading")["n"][0].as_py() if there else 0


def wait_for(load, reached):
    deadline = time.monotonic() + 60
    while not reached():
        assert load.poll() is None and time.monotonic() < deadline, load.communicate()[1]
        time.sleep(0.005)


def killed_in_the_middle(source, server, table, *more):
    """Starts a load and kills it once it stored another part or two."""
    before = stored(server, table)
    load = start(source, table, server, *more)
    wait_for(load, lambda: stored(server, table) >= before + 2 * PART)
    said = kill(load)
    return stored(server, table), said


def test_a_killed_load_into_a_server_goes_on(tmp_path, source):
    with Server(tmp_path / "data") as server:
        terrace("load", source, "--table", "plain", "--cluster-by", "v,k", *place(server))
        good = contents(server, "plain")
        rows = 0
        for turn in range(3):
            before, (rows, said) = rows, killed_in_the_middle(source, server, "t", "--cluster-by", "v,k")
            assert before < rows < ROWS and "t" not in tables(server)
            assert ("resuming after" in said) == (turn > 0), said
        done = terrace("load", source, "--table", "t", "--resume", "--cluster-by", "v,k", *place(server))
        assert "resuming after" in done.stderr, done.stderr
        assert contents(server, "t") == good
        assert "t__loading" not in tables(server)
        told = server.query("select cluster_by, comment from system.tables where table_name = 't'").to_pylist()[0]
        assert told["cluster_by"] == "v,k" and told["comment"].startswith("terrace load"), told
        again = terrace("load", source, "--table", "t", "--resume", "--cluster-by", "v,k", *place(server))
        assert "is complete" in again.stderr and contents(server, "t") == good
        other = terrace("load", source, "--table", "t", "--resume", *place(server), check=False)
        assert other.returncode != 0 and "already exists" in other.stderr, other.stderr
        # The old rows stay until the new ones are there.
        server.query("create or replace table t as select 1 as k")
        killed_in_the_middle(source, server, "t", "--replace")
        assert server.query("select * from t")["k"].to_pylist() == [1]
        terrace("load", source, "--table", "t", "--resume", "--replace", *place(server))
        assert contents(server, "t") == good
        assert server.stop() == 0


def test_a_killed_load_into_a_folder_goes_on(tmp_path, source):
    data = tmp_path / "data"
    for _ in range(3):
        before, load = files(data), start(source, "t", data)
        # A part is a chunk or two.
        wait_for(load, lambda: files(data) >= before + 3)
        kill(load)
    done = terrace("load", source, "--table", "t", "--resume", "--data-dir", data)
    assert "resuming after" in done.stderr, done.stderr
    terrace("load", source, "--table", "plain", "--data-dir", data)
    terrace("check", "--data-dir", data)
    with Server(data) as server:
        assert contents(server, "t") == contents(server, "plain")
        assert tables(server) == {"t", "plain"}


def test_a_server_that_dies_leaves_a_load_that_goes_on(tmp_path, source):
    with Server(tmp_path / "data") as server:
        load = start(source, "t", server)
        wait_for(load, lambda: stored(server, "t") >= 2 * PART)
        server.kill()
        said = load.communicate(timeout=60)[1]
        assert load.returncode != 0 and "run the same command again" in said, said
    with Server(tmp_path / "data") as server:
        done = terrace("load", source, "--table", "t", "--resume", *place(server))
        assert "resuming after" in done.stderr, done.stderr
        terrace("load", source, "--table", "plain", *place(server))
        assert contents(server, "t") == contents(server, "plain")


def test_a_changed_source_is_refused(tmp_path, source):
    folder = tmp_path / "events"
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    with Server(tmp_path / "data") as server:
        killed_in_the_middle(folder, server, "t")
        with open(folder / "p3.csv", "a") as file:
            file.write("-1,1,more\n")
        options = ["--table", "t", "--resume", *place(server)]
        refused = terrace("load", folder, *options, check=False)
        assert refused.returncode != 0 and "p3.csv" in refused.stderr and "DROP TABLE" in refused.stderr, refused.stderr
        clustered = terrace("load", source, *options, "--cluster-by", "k", check=False)
        assert clustered.returncode != 0 and "now by k" in clustered.stderr, clustered.stderr
        assert "t" not in tables(server)
        server.query("drop table t__loading")
        terrace("load", folder, *options)
        assert server.query("select count(*) as n, min(k) as k from t").to_pylist() == [{"n": ROWS + 1, "k": -1}]
        add = terrace("load", folder, *options, "--append", check=False)
        assert add.returncode != 0 and "INSERT INTO" in add.stderr, add.stderr
        server.query("create view w as select 1 as k")
        view = terrace("load", folder, "--table", "w", "--resume", *place(server), check=False)
        assert view.returncode != 0 and "is not a table" in view.stderr, view.stderr


def test_two_loads_at_once_are_noticed(tmp_path, source):
    with Server(tmp_path / "data") as server:
        load = start(source, "t", server)
        wait_for(load, lambda: "t__loading" in tables(server))
        server.query("insert into t__loading values (-1, -1, 'of somebody else')")
        said = load.communicate(timeout=60)[1]
        assert load.returncode != 0 and "two loads" in said and "run the same command again" not in said, said
        again = terrace("load", source, "--table", "t", "--resume", *place(server), check=False)
        assert again.returncode != 0 and "two loads" in again.stderr and "DROP TABLE" in again.stderr, again.stderr
        assert "t" not in tables(server)


def test_tables_of_tpch_that_are_complete_are_skipped(tmp_path):
    with Server(tmp_path / "data") as server:
        options = ["tpch:0.01", "--resume", "--part-rows", "7000", *place(server)]
        terrace("load", *options)
        names = tables(server)
        sums = server.query("select count(*) as n, sum(l_extendedprice) as x from lineitem")
        server.query("drop table lineitem")
        again = terrace("load", *options)
        assert again.stderr.count("is complete") == 7, again.stderr
        assert tables(server) == names and len(names) == 8
        assert server.query("select count(*) as n, sum(l_extendedprice) as x from lineitem") == sums
        cluster = server.query("select cluster_by from system.tables where table_name = 'lineitem'")
        assert cluster["cluster_by"].to_pylist() == ["l_shipdate"]


def test_a_value_that_does_not_fit_the_first_file_is_an_error(tmp_path):
    folder = tmp_path / "mixed"
    folder.mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"k": [1], "v": [2]}), folder / "a.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"k": [3], "v": ["three"]}), folder / "b.parquet")
    with Server(tmp_path / "data") as server:
        refused = terrace("load", folder, *place(server), check=False)
        assert refused.returncode != 0 and "b.parquet" in refused.stderr and "'v'" in refused.stderr, refused.stderr
        assert tables(server) == set()
        pyarrow.parquet.write_table(pyarrow.table({"k": [3], "v": [2.5]}), folder / "b.parquet")
        for more in [], ["--resume"]:
            refused = terrace("load", folder, *more, *place(server), check=False)
            assert refused.returncode != 0 and "'v'" in refused.stderr and "b.parquet" in refused.stderr, refused.stderr
            assert "mixed" not in tables(server)


def test_a_clustered_ingest_larger_than_query_memory_spills_and_is_sorted_as_a_whole(tmp_path):
    rows = 2_000_000
    keys = [(key * 7_919_993) % rows for key in range(rows)]
    table = pyarrow.table({"k": pyarrow.array(keys, pyarrow.int64()), "s": pyarrow.array(["x" * 80] * rows)})
    options = ["--set", "memory.query=64MB", "--set", "memory.ingest=64MB", "--dram-budget", "16MB"]
    with Server(tmp_path / "data", *options) as server:
        server.query("create table t (k bigint, s varchar) with (cluster_by = 'k')")
        most = []
        with server.connect() as connection, connection.cursor() as cursor:
            done = threading.Event()

            def watch():
                while not done.wait(0.02):
                    most.append(metric(server, "terrace_query_spilled_bytes"))

            watcher = threading.Thread(target=watch)
            watcher.start()
            try:
                assert cursor.adbc_ingest("t", table.to_reader(max_chunksize=50_000), mode="append") == rows
            finally:
                done.set()
                watcher.join()
        assert max(most) > 50e6, "nothing was spilled"
        assert metric(server, "terrace_query_spilled_bytes") == 0
        assert server.query("select count(*) as n, count(distinct k) as d, sum(k) as x from t").to_pylist() == [
            {"n": rows, "d": rows, "x": rows * (rows - 1) // 2}
        ]
        plan = server.query("explain analyze select count(s) from t where k between 1000000 and 1000100")
        chunks = int(re.search(r"chunks_total=(\d+)", str(plan.to_pydict())).group(1))
        pruned = int(re.search(r"chunks_pruned=(\d+)", str(plan.to_pydict())).group(1))
        assert chunks >= 30 and pruned == chunks - 1, (chunks, pruned)


@pytest.mark.deep
def test_every_way_of_loading_sorts_more_than_its_memory(tmp_path):
    """TPC-H at scale 0.2: lineitem is 150 MB, its statements have 40 MiB."""
    memory = ["--set", "memory.query=40MB", "--set", "memory.ingest=40MB", "--dram-budget", "16MB"]
    folder = tmp_path / "folder"
    terrace("load", "tpch:0.2", "--data-dir", folder, env={"TERRACE_MEMORY_QUERY": "40MB"})
    with Server(folder, *memory) as server:
        sums = "select count(*) as n, sum(l_extendedprice) as x, count(distinct l_orderkey) as k from"
        want = server.query(f"{sums} lineitem")
        terrace("load", "tpch:0.2", "--replace", *place(server))
        # In the order of ship dates, so that all doors have to sort for this one.
        file = tmp_path / "lineitem.parquet"
        pyarrow.parquet.write_table(server.query("select * from lineitem"), file)
        order = "with (cluster_by = 'l_partkey')"
        server.query(f"create table made {order} as select * from lineitem")
        server.query(f"create table copied {order} as select * from lineitem where false")
        server.query(f"copy copied from '{file}'")
        server.query(f"create table ingested {order} as select * from lineitem where false")
        with server.connect() as connection, connection.cursor() as cursor:
            rows = pyarrow.parquet.read_table(file)
            batches = rows.to_batches(max_chunksize=50_000)
            cursor.adbc_ingest("ingested", pyarrow.RecordBatchReader.from_batches(rows.schema, batches), mode="append")
        for table in "inserted", "ordered":
            server.query(f"create table {table} {order} as select * from lineitem where false")
        server.query("insert into inserted select * from lineitem")
        server.query("insert into ordered select * from lineitem order by l_comment, l_orderkey")
        for table in "lineitem", "made", "copied", "ingested", "inserted", "ordered":
            assert server.query(f"{sums} {table}") == want, table
            key = "l_shipdate = '1995-06-17'" if table == "lineitem" else "l_partkey = 20000"
            plan = server.query(f"explain analyze select count(l_comment) from {table} where {key}")
            chunks = int(re.search(r"chunks_total=(\d+)", str(plan.to_pydict())).group(1))
            pruned = int(re.search(r"chunks_pruned=(\d+)", str(plan.to_pydict())).group(1))
            assert chunks >= 10 and pruned >= chunks - 2, (table, chunks, pruned)


def test_a_partitioned_folder_has_the_columns_of_its_folders(tmp_path):
    """As pandas writes it: `to_parquet(partition_cols=..)`, with a column that has no value on a day."""
    folder = tmp_path / "daily"
    rows = pyarrow.table({
        "day": ["2024-01-01", "2024-01-01", "2024-01-02"],
        "shop": ["a b", None, "c"],
        "k": [1, 2, 3],
        "note": [None, None, "x"],
    })
    pyarrow.parquet.write_to_dataset(rows.slice(0, 2).set_column(3, "note", pyarrow.nulls(2)), folder,
                                     partition_cols=["day", "shop"])
    pyarrow.parquet.write_to_dataset(rows.slice(2), folder, partition_cols=["day", "shop"])
    wanted = [(1, None, "2024-01-01", "a b"), (2, None, "2024-01-01", None), (3, "x", "2024-01-02", "c")]
    with Server(tmp_path / "data") as server:

        def found(table):
            select = f"select k, note, cast(day as varchar) as day, shop from {table} order by k"
            return [tuple(row.values()) for row in server.query(select).to_pylist()]

        terrace("load", folder, *place(server))
        assert found("daily") == wanted
        assert str(server.query("select day from daily").schema.field("day").type) == "date32[day]"
        terrace("load", folder, "--table", "parts", "--resume", "--part-rows", "1", *place(server))
        assert found("parts") == wanted
        # Another day, on which nobody wrote a note.
        day = tmp_path / "more"
        pyarrow.parquet.write_to_dataset(
            pyarrow.table({"day": ["2024-01-03"], "shop": ["d"], "k": [4], "note": pyarrow.nulls(1)}),
            day, partition_cols=["day", "shop"])
        terrace("load", day, "--table", "daily", "--append", *place(server))
        assert found("daily") == [*wanted, (4, None, "2024-01-03", "d")]
    terrace("load", folder, "--table", "local", "--data-dir", tmp_path / "local")
    with Server(tmp_path / "local") as server:
        assert server.query("select count(*) as n, count(shop) as s from local").to_pylist() == [{"n": 3, "s": 2}]


def test_text_files_are_read_as_they_are_written(tmp_path):
    excel = tmp_path / "excel.csv"
    excel.write_bytes("\ufeffid;name;empty\r\n1;Köln, Rhein;\r\nNULL;NA;\r\n".encode())
    with Server(tmp_path / "data") as server:
        terrace("load", excel, *place(server))
        assert server.query("select * from excel").to_pylist() == [
            {"id": "1", "name": "Köln, Rhein", "empty": None}, {"id": "NULL", "name": "NA", "empty": None}
        ]
        terrace("load", excel, "--replace", "--null", "NULL", "--null", "NA", *place(server))
        assert server.query("select * from excel order by id").to_pylist() == [
            {"id": 1, "name": "Köln, Rhein", "empty": None}, {"id": None, "name": None, "empty": None}
        ]
        bare = tmp_path / "bare.csv"
        bare.write_text("1#x\n2#y\n")
        terrace("load", bare, "--delimiter", "#", "--header", "false", *place(server))
        assert server.query("select column_2 from bare order by column_1")["column_2"].to_pylist() == ["x", "y"]
        refused = terrace("load", bare, "--delimiter", "##", *place(server), check=False)
        assert refused.returncode != 0 and "one ASCII character" in refused.stderr, refused.stderr
        # An unfinished load goes on only with the options that it began with.
        text = tmp_path / "text.csv"
        text.write_text("id,name\n1,NA\n2,b\n" * 3)
        broken = tmp_path / "broken.csv"
        broken.write_text("id,name\n1,NA\n" + "2,b\n" * 30_000 + "x,y,z\n")
        options = ["--resume", "--part-rows", "10000", *place(server)]
        assert terrace("load", broken, *options, check=False).returncode != 0
        refused = terrace("load", broken, "--null", "NA", *options, check=False)
        assert refused.returncode != 0 and "null 'NA'" in refused.stderr, refused.stderr


def test_an_address_that_asks_for_encryption_is_never_used_without(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("id\n1\n")
    with Server(tmp_path / "data") as server:
        for url in f"grpc+tls://{server.flight}", f"https://{server.flight}":
            for command in (["load", file], ["sql", "select 1"]):
                refused = terrace(*command, "--url", url, check=False)
                assert refused.returncode != 0 and "does not speak TLS" in refused.stderr, refused.stderr
        refused = terrace("health", "--http-addr", f"https://{server.http}", check=False)
        assert refused.returncode != 0 and "does not speak TLS" in refused.stderr, refused.stderr
        assert terrace("health", "--http-addr", f"http://{server.http}").returncode == 0


def test_the_sum_and_the_next_step_are_told(tmp_path):
    files = [tmp_path / "one.csv", tmp_path / "two.csv"]
    for file, rows in zip(files, (3, 4)):
        file.write_text("a\n" + "1\n" * rows)
    with Server(tmp_path / "data") as server:
        told = terrace("load", *files, *place(server)).stderr
        assert re.search(r"^2 tables +7 rows in \d+\.\d s$", told, re.M) and "next:" not in told, told
        assert "tables" not in terrace("load", files[0], "--replace", *place(server)).stderr
        with PseudoTerminal("load", files[0], "--replace", *place(server)) as terminal:
            terminal.expect("next: terrace sql '\\dt' with the same --url or --profile lists the tables")
            assert terminal.end() == 0
        with PseudoTerminal("load", files[0], "--replace", env={"TERRACE_URL": f"grpc://{server.flight}"}) as terminal:
            terminal.expect("next: terrace sql '\\dt' lists the tables, terrace sql opens a prompt")
            assert terminal.end() == 0


def metric(server, name):
    with urllib.request.urlopen(f"http://{server.http}/metrics") as answer:
        return float(re.search(rf"^{name} (\S+)$", answer.read().decode(), re.M).group(1))

"""Check, backup, restore, rebuild and disk usage, with the real binary on real directories."""

import json
import pathlib
import random
import shutil
import threading

import pyarrow
import pytest

from server import Server, terrace

SEED = 11
ROWS = 150_000


def load(server, name, rows=ROWS):
    table = pyarrow.table({
        "k": pyarrow.array(range(rows), pyarrow.int64()),
        "x": pyarrow.array([None if i % 13 == 0 else i * 0.5 for i in range(rows)], pyarrow.float64()),
        "s": pyarrow.array([None if i % 11 == 0 else f"row {i}" for i in range(rows)], pyarrow.string()),
    })
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.adbc_ingest(name, table, mode="create")


def answers(server):
    """Every row of every table, and what a view gives."""
    found = {name: server.query(f"select * from {name} order by k") for name in ("a", "b")}
    found["v"] = server.query("select * from v")
    return found


@pytest.fixture
def loaded(tmp_path):
    """A data directory with two tables, a view and unsealed rows, no server on it; and its answers."""
    data = tmp_path / "data"
    with Server(data) as server:
        load(server, "a")
        load(server, "b", 70_000)
        server.query("create view v as select count(*) as n, sum(x) as x, max(s) as s from a")
        server.query("insert into b values (1000000, 1.5, 'not sealed')")
        good = answers(server)
        assert server.stop() == 0
    return data, good


def image(folder):
    return {path: path.read_bytes() for path in pathlib.Path(folder).rglob("*") if path.is_file()}


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x20
    path.write_bytes(data)


def test_check_finds_a_flipped_byte_and_touches_nothing(loaded):
    data, _ = loaded
    before = image(data)
    sound = terrace("check", "--data-dir", data)
    assert "sound" in sound.stdout and "DAMAGE" not in sound.stdout, sound.stdout
    usage = json.loads(terrace("du", "--data-dir", data, "--json").stdout)
    files = {path: len(content) for path, content in before.items() if path.suffix == ".arrow"}
    assert sum(table["file_bytes"] for table in usage["tables"]) == sum(files.values())
    assert {table["table"]: table["rows"] for table in usage["tables"]} == {"public.a": ROWS, "public.b": 70_001}
    assert image(data) == before

    draw = random.Random(SEED)
    for _ in range(5):
        path = draw.choice(sorted(files))
        at = draw.randrange(files[path])
        flip(path, at)
        found = terrace("check", "--data-dir", data, "--json", check=False)
        findings = json.loads(found.stdout)["findings"]
        assert found.returncode == 1 and [finding["path"] for finding in findings] == [str(path)], (at, findings)
        assert findings[0]["column"] in ("k", "x", "s") or findings[0]["what"].startswith("header")
        assert findings[0]["advice"]
        flip(path, at)
    assert terrace("check", "--data-dir", data, "--quick").returncode == 0


def test_commands_on_a_directory_in_use_say_so(loaded):
    data, _ = loaded
    with Server(data) as server:
        for command in (["check"], ["du"], ["backup", data.with_name("x")], ["rebuild-catalog", "--yes"]):
            refused = terrace(*command, "--data-dir", data, check=False)
            assert refused.returncode == 1 and f"process {server.process.pid}" in refused.stderr, refused.stderr
        assert terrace("du", "--http-addr", server.http).stdout.startswith("table")
    nowhere = terrace("check", "--data-dir", data.with_name("nowhere"), check=False)
    assert nowhere.returncode == 1 and "does not exist" in nowhere.stderr


def test_damage_is_marked_and_healed_while_serving(loaded):
    data, good = loaded
    with Server(data) as server:
        name = "select file, damaged_segments from system.chunks where table_name = 'a' and chunk = 1"
        path = pathlib.Path(server.query(name)["file"][0].as_py())
        # Until the file is whole, everything of it lies in DRAM.
        server.query("select * from a")
        server.budget("dram", "1GiB")
        server.epoch()
        resident = server.query("select count(*) as n from system.segments where table_name = 'a' and tier = 'dram'")
        assert resident["n"][0].as_py() == 9
        flip(path, path.stat().st_size // 2)
        found = terrace("check", "--http-addr", server.http, check=False)
        assert found.returncode == 1 and str(path) in found.stdout and "chunk 1" in found.stdout, found.stdout
        assert server.query(name)["damaged_segments"][0].as_py() == 1
        healed = terrace("check", "--http-addr", server.http, "--repair")
        assert "healed" in healed.stdout, healed.stdout
        assert server.query(name)["damaged_segments"][0].as_py() == 0
        assert terrace("check", "--http-addr", server.http).returncode == 0
        server.budget("dram", 0)
        server.epoch()
        assert answers(server) == good

        # Now nothing is resident: the statement fails, and repair says that there is no copy.
        at = path.stat().st_size // 2
        flip(path, at)
        for _ in range(2):
            with pytest.raises(Exception, match="chunk 1, column '[kxs]'"):
                server.query("select sum(k), sum(x), count(s) from a")
        hopeless = terrace("check", "--http-addr", server.http, "--repair", check=False)
        assert hopeless.returncode == 1 and "no good copy" in hopeless.stdout, hopeless.stdout
        flip(path, at)
        assert terrace("check", "--http-addr", server.http).returncode == 0, "a mark goes when the disk is good again"
        assert answers(server) == good


def test_backup_while_rows_are_inserted(loaded):
    data, good = loaded
    targets = [data.with_name(f"backup{n}") for n in range(3)]
    with Server(data) as server:
        stop = threading.Event()
        inserted = [0]

        def insert():
            with server.connect() as connection, connection.cursor() as cursor:
                while not stop.is_set():
                    for table in ("a", "b"):
                        key = 2_000_000 + inserted[0]
                        cursor.execute(f"insert into {table} values ({key}, 1.0, 'new')")
                        cursor.fetchall()
                    inserted[0] += 1

        writer = threading.Thread(target=insert)
        writer.start()
        before = []
        for target in targets:
            before.append(inserted[0])
            made = terrace("backup", target, "--http-addr", server.http)
            assert "2 tables" in made.stdout, made.stdout
        stop.set()
        writer.join()
        again = terrace("backup", targets[0], "--http-addr", server.http, check=False)
        assert again.returncode == 1 and "already exists" in again.stderr
        with pytest.raises(RuntimeError, match="400 .*absolute"):
            server.request("POST", "/api/v1/backup", {"path": "here"})
    for target, least in zip(targets, before):
        back = target.with_name(f"{target.name}-restored")
        terrace("restore", target, "--data-dir", back)
        terrace("check", "--data-dir", back)
        with Server(back) as server:
            counts = [server.query(f"select count(*) as n from {t} where k >= 2000000")["n"][0].as_py() for t in "ab"]
            old = {name: server.query(f"select * from {name} where k < 2000000 order by k") for name in "ab"}
        assert counts[0] - counts[1] in (0, 1) and counts[1] >= least, counts
        assert all(old[name] == good[name] for name in "ab")
    assert inserted[0] > 0
    refused = terrace("restore", targets[0], "--data-dir", data, check=False)
    assert refused.returncode == 1 and "already exists" in refused.stderr
    foreign = terrace("restore", data, "--data-dir", data.with_name("y"), check=False)
    assert foreign.returncode == 1 and "is not a backup" in foreign.stderr


def test_a_stopped_server_is_backed_up_too(loaded):
    data, good = loaded
    target = data.with_name("backup")
    terrace("backup", target, "--data-dir", data)
    shutil.rmtree(data)
    terrace("restore", target, "--data-dir", data)
    with Server(data) as server:
        assert answers(server) == good


def test_a_deleted_catalog_is_rebuilt(loaded):
    data, good = loaded
    with Server(data) as server:
        # Unsealed rows are in the catalog only; a table that is loaded anew has none.
        server.query("create or replace table b as select * from b")
        assert server.stop() == 0
    view = {"n": good["v"]["n"], "x": good["v"]["x"], "s": good["v"]["s"]}
    shown = terrace("rebuild-catalog", "--data-dir", data)
    assert "Nothing was changed" in shown.stdout and "public.a" in shown.stdout, shown.stdout
    assert "no deleted row comes back and no row is lost" in shown.stdout, shown.stdout
    (data / "catalog.redb").unlink()
    before = image(data / "ssd")
    with pytest.raises(RuntimeError, match="rebuild-catalog"):
        Server(data)
    assert image(data / "ssd") == before, "a start without a catalog must not take the files for leftovers"
    missing = terrace("check", "--data-dir", data, check=False)
    assert missing.returncode == 1 and "rebuild-catalog" in missing.stdout, missing.stdout
    written = terrace("rebuild-catalog", "--data-dir", data, "--yes")
    assert "deleted rows come back" in written.stdout and "nobody can say how many" in written.stdout, written.stdout
    terrace("check", "--data-dir", data)
    with Server(data) as server:
        for table in "ab":
            assert server.query(f"select * from {table} order by k") == good[table]
        again = server.query("select count(*) as n, sum(x) as x, max(s) as s from a")
        assert all(again[name] == column for name, column in view.items())
        server.query("insert into a values (-1, 0.0, 'after')")
        assert server.query("select count(*) as n from a")["n"][0].as_py() == ROWS + 1
        server.query("create table few as select k from b where k < 500")
        server.query("delete from few where k < 100")
        assert server.stop() == 0
    shown = terrace("rebuild-catalog", "--data-dir", data)
    assert "public.few: 100 deleted rows come back" in shown.stdout, shown.stdout
    assert "public.a: 1 rows are lost" in shown.stdout, shown.stdout

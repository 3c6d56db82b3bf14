"""Data directories and backups of earlier formats (tests/fixtures), and a disk that is full, with the real binary."""

import json
import pathlib
import re
import subprocess
import sys
import tarfile
import time
import urllib.request

import pytest

from server import Server, terrace

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"
sys.path.insert(0, str(FIXTURES))

from make import answers, state  # noqa: E402

FORMATS = sorted(path.name.removesuffix(".tar.gz") for path in FIXTURES.glob("*.tar.gz"))
CURRENT = "format-4"


@pytest.fixture(params=FORMATS)
def fixture(request, tmp_path):
    """Folder with data/ and backup/ of a format, and the answers that both give; `state.json` is there from format 4 on."""
    with tarfile.open(FIXTURES / f"{request.param}.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path, json.loads((tmp_path / "answers.json").read_text())


def test_each_format_and_each_release_has_a_fixture():
    top = FIXTURES.parents[1]
    source = (top / "tier-store/storage/src/catalog/redb_store/format.rs").read_text()
    version, = re.findall(r"^pub const FORMAT_VERSION: u32 = (\d+);$", source, re.MULTILINE)
    assert CURRENT == f"format-{version}" and {"format-3", CURRENT} <= set(FORMATS)
    released = re.findall(r"^## (\d+\.\d+\.\d+)", (top / "CHANGELOG.md").read_text(), re.MULTILINE)
    lacking = [release for release in released if not any(name.endswith(f"-release-{release}") for name in FORMATS)]
    assert lacking == [], "tests/fixtures/make.py makes format-N-release-VERSION.tar.gz with the released program"


def test_a_directory_of_each_format_gives_the_same_answers(fixture, request):
    folder, good = fixture
    before = terrace("check", "--data-dir", folder / "data")
    is_earlier = CURRENT not in request.node.name
    assert "DAMAGE" not in before.stdout and ("earlier version" in before.stdout) == is_earlier, before.stdout
    known = folder / "state.json"
    assert known.exists() or "format-3" in request.node.name
    with Server(folder / "data", env={"TERRACE_TIERING_INTERVAL": "1h"}) as server:
        if known.exists():
            before, now = json.loads(known.read_text()), state(server)
            # The loop may have run its epoch of the restart by now: the logs go on.
            assert {log: now[log][:len(rows)] if log in ("epochs", "moves") else now[log] for log, rows in before.items()} == before
        assert answers(server) == good
        hot = server.query("select view_name, columns, predicate from system.hot_views").to_pylist()
        assert hot == [{"view_name": "hv", "columns": "k, v", "predicate": "k < 50"}]
        assert server.query("select * from system.placement_rules").num_rows == 1
        server.query("insert into keyed (k, b) values (5000, X'01')")
        assert server.stop() == 0
    after = terrace("check", "--data-dir", folder / "data")
    assert "sound" in after.stdout and "earlier version" not in after.stdout, after.stdout
    with Server(folder / "data") as server:
        assert {**answers(server), "keyed": None} == {**good, "keyed": None}


def test_a_backup_of_each_format_is_restored(fixture):
    folder, good = fixture
    terrace("restore", folder / "backup", "--data-dir", folder / "restored")
    with Server(folder / "restored") as server:
        assert answers(server) == good
    terrace("backup", folder / "copy", "--data-dir", folder / "data")
    terrace("restore", folder / "copy", "--data-dir", folder / "copied")
    with Server(folder / "copied") as server:
        assert answers(server) == good


def test_a_first_start_that_is_killed_loses_nothing(fixture):
    folder, good = fixture
    for pause in (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.4):
        server = Server(folder / "data", wait=False)
        time.sleep(pause)
        server.kill()
    with Server(folder / "data") as server:
        assert answers(server) == good


def test_a_server_that_runs_names_a_damaged_value_at_its_next_start(tmp_path):
    data = tmp_path / "data"
    with Server(data) as server:
        server.query("create table t (k bigint, s varchar)")
        server.query("insert into t values (1, 'a text that is found again in the file')")
        server.kill()
    catalog = data / "catalog.redb"
    content = bytearray(catalog.read_bytes())
    text = b"a text that is found again in the file"
    places = [at for at in range(len(content)) if content.startswith(text, at)]
    for at in places:
        content[at] ^= 1
    assert places
    catalog.write_bytes(content)
    found = terrace("check", "--data-dir", data, check=False)
    assert found.returncode == 1 and "delta, key" in found.stdout and "rebuild-catalog" in found.stdout, found.stdout
    server = Server(data, wait=False)
    assert server.process.wait(timeout=60) != 0
    assert "delta, key" in server.output() and "rebuild-catalog" in server.output(), server.output()


def mounted(folder, size):
    """A small disk of its own; skips where nothing may be mounted."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path):
    mounted(tmp_path / "disk", "48m")
    yield tmp_path / "disk"
    subprocess.run(["umount", "-l", str(tmp_path / "disk")], check=False)


def ready(server):
    with urllib.request.urlopen(f"http://{server.http}/readyz") as answer:
        return json.load(answer)


def failing(server):
    with urllib.request.urlopen(f"http://{server.http}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return [line for line in lines if line.startswith("terrace_catalog_failing ")]


def test_after_a_full_disk_writes_go_on_by_themselves(small_disk):
    with Server(small_disk / "data") as server:
        server.query("create table t (k bigint, s varchar)")
        server.query("insert into t values (0, 'kept')")
        assert ready(server)["status"] == "ready" and failing(server) == ["terrace_catalog_failing 0"]
        filler = small_disk / "filler"
        with filler.open("wb") as file:
            try:
                while True:
                    file.write(b"x" * 65536)
                    file.flush()
            except OSError:
                pass
        kept, error = {0}, None
        for k in range(1, 400):
            try:
                server.query(f"insert into t values ({k}, '{'y' * 20000}')")
                kept.add(k)
            except Exception as refused:  # noqa: BLE001
                error = refused
                break
        assert error is not None and "ResourceExhausted" in repr(error), repr(error)
        assert ready(server)["status"] == "degraded" and "writes are refused" in ready(server)["degraded"][0]
        assert failing(server) == ["terrace_catalog_failing 1"]
        assert server.query("select count(*) as n from t").to_pylist() == [{"n": len(kept)}]
        filler.unlink()
        deadline = time.monotonic() + 90
        while ready(server)["status"] != "ready" and time.monotonic() < deadline:
            time.sleep(0.2)
        assert ready(server)["status"] == "ready" and failing(server) == ["terrace_catalog_failing 0"]
        server.query("insert into t values (1000, 'after')")
        found = {row["k"] for row in server.query("select k from t").to_pylist()}
        assert found == kept | {1000}
        server.kill()
    with Server(small_disk / "data") as server:
        assert {row["k"] for row in server.query("select k from t").to_pylist()} == kept | {1000}


@pytest.mark.parametrize("door", ["ingest", "insert"])
def test_no_type_is_called_damaged(tmp_path, door):
    from make import every_type

    with Server(tmp_path / "data") as server:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.adbc_ingest("t", every_type(0, 500), mode="create")
        if door == "insert":
            server.query("create table u as select * from t")
            server.query("insert into u select * from t")
        server.query("create table b (k bigint, short bytea, long bytea)")
        server.query("insert into b select value, arrow_cast('s' || value, 'BinaryView'), "
                     "arrow_cast(repeat('l' || value, 40), 'BinaryView') from generate_series(1, 3000)")
        server.query("optimize table b")
        server.query("optimize table t")
        report = server.request("POST", "/api/v1/check", {})
        assert report["findings"] == [], report["findings"]
        assert server.stop() == 0
    assert "sound" in terrace("check", "--data-dir", tmp_path / "data").stdout

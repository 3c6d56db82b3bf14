"""Nobody reads, overwrites or removes a file of the server, through whatever door and under whatever name."""

import hashlib
import os
import pathlib
import shutil
import urllib.parse
import uuid

import adbc_driver_manager
import pytest

from server import Server, terrace

ROWS = 150_000


class World:
    """A server with everything it keeps, and a folder of its users beside that."""

    def __init__(self, folder):
        self.users = folder / "users"
        self.users.mkdir()
        self.config = folder / "terrace.toml"
        self.config.write_text('log = "info"\n')
        self.secret = folder / "secret.key"
        self.secret.write_text("key")
        self.data = folder / "data"
        self.start()
        self.server.query(f"create table t as select value as k from generate_series(1, {ROWS})")
        self.backup = folder / "backup"
        self.server.request("POST", "/api/v1/backup", {"path": str(self.backup)})
        self.pools = pathlib.Path("/dev/shm") / f"terrace-{uuid.uuid4().hex}"
        self.pools.mkdir()
        self.server.query(f"alter system add tier fast with (path = '{self.pools}', capacity = '16MiB')")

    def start(self):
        room = ["--dram-budget", "64MB"]
        self.server = Server(self.data, "--config", self.config, "--set", f"files.protected={self.secret}", *room)
        return self.server

    def targets(self):
        """What belongs to the server: files, and a name that is free among them."""
        chunk = next((self.data / "ssd").rglob("*.arrow"))
        return {
            "catalog": self.data / "catalog.redb",
            "chunk": chunk,
            "new chunk": chunk.with_name("4711.arrow"),
            "spill": self.data / "spill" / "new.arrow",
            "backup catalog": self.backup / "catalog.redb",
            "backup manifest": self.backup / "backup.json",
            "backup chunk": next((self.backup / "ssd").rglob("*.arrow")),
            "configuration": self.config,
            "key": self.secret,
            "pool": self.pools / "terrace.pool",
        }

    def digests(self):
        kept = [self.config, self.secret, *self.backup.rglob("*"), *(self.data / "ssd").rglob("*.arrow")]
        return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in kept if path.is_file()}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("files"))
    yield world
    world.server.stop()
    shutil.rmtree(world.pools)


def spellings(world, target):
    """Other names of a file, as far as it can have them."""
    number = uuid.uuid4().hex
    link, folder, hard = world.users / f"link-{number}", world.users / f"folder-{number}", world.users / f"hard-{number}"
    link.symlink_to(target)
    folder.symlink_to(target.parent)
    names = {
        "path": target,
        "link": link,
        "folder": folder / target.name,
        "two links": world.users / f"folder-{number}" / ".." / folder.name / target.name,
        "dots": target.parent / "x" / ".." / target.name,
        "relative": os.path.relpath(target),
        "proc": f"/proc/self/root{target}",
        "doubled": f"/{target}".replace("/", "//"),
    }
    if target.is_file() and os.stat(target).st_dev == os.stat(world.users).st_dev and world.backup not in target.parents:
        os.link(target, hard)
        names["hard link"] = hard
    return names


def doors(server, path):
    """Every way to name a file, with what it is called in the messages of the test."""
    path = str(path)
    absolute = path if path.startswith("/") else os.path.abspath(path)
    escaped = urllib.parse.quote(absolute).replace("a", "%61")
    copy = "copy (select 1 as a) to '{}' stored as parquet"
    statements = {
        "copy to": copy.format(path),
        "copy to, overwrite": copy.format(path) + " options (overwrite 'true')",
        "copy to URL": copy.format(f"file://{absolute}") + " options (overwrite 'true')",
        "copy to escaped URL": copy.format(f"file://{escaped}") + " options (overwrite 'true')",
        "copy to URL with host": copy.format(f"file://localhost{absolute}") + " options (overwrite 'true')",
        "copy from": f"copy t from '{path}' (format arrow)",
        "copy from URL": f"copy t from 'file://{escaped}' (format arrow)",
        "external table": f"create external table e_{uuid.uuid4().hex} stored as arrow location '{path}'",
        "external URL": f"create external table e_{uuid.uuid4().hex} stored as arrow location 'file://{escaped}'",
        "add tier": f"alter system add tier t9 with (path = '{path}', capacity = '16MiB')",
    }
    for name, sql in statements.items():
        yield name, lambda sql=sql: server.query(sql)
    yield "tier over HTTP", lambda: server.request("POST", "/api/v1/tiers", {"name": "t9", "path": path, "capacity": "16MiB"})
    yield "backup over HTTP", lambda: server.request("POST", "/api/v1/backup", {"path": path})


@pytest.mark.parametrize("kind", ["catalog", "chunk", "new chunk", "spill", "backup catalog", "backup manifest", "backup chunk",
                                  "configuration", "key", "pool"])
def test_no_door_leads_to_a_file_of_the_server(world, kind):
    target = world.targets()[kind]
    before = world.digests()
    for spelling, path in spellings(world, target).items():
        for door, action in doors(world.server, path):
            with pytest.raises((adbc_driver_manager.Error, RuntimeError)) as refused:
                action()
            assert "INTERNAL" not in str(refused.value).upper(), (spelling, door, refused.value)
            assert world.digests() == before, (spelling, door)
    assert target.exists() == (kind not in ("new chunk", "spill"))


def test_what_ordinary_paths_do_goes_on(world):
    server, users = world.server, world.users / "plain"
    users.mkdir()
    copy = f"copy (select 1 as a union all select 2) to '{users}/a b%.csv'"
    server.query(copy)
    assert (users / "a b%.csv").read_text().splitlines()[0] == "a"
    with pytest.raises(adbc_driver_manager.Error, match="exists already"):
        server.query(copy)
    server.query(f"{copy} options (overwrite 'true')")
    server.query(f"copy (select 1 as p, 2 as a) to '{users}/parts/' stored as parquet partitioned by (p)")
    assert len(list((users / "parts/p=1").glob("*.parquet"))) == 1
    (users / "link.csv").symlink_to(users / "a b%.csv")
    server.query("create table plain (a bigint)")
    server.query(f"copy plain from '{users}/link.csv'")
    server.query(f"copy plain from '{users}/*.csv'")
    server.query(f"copy plain from 'file://{users}/a%20b%25.csv'")
    assert server.query("select count(*) as n from plain").to_pylist() == [{"n": 8}]
    server.query(f"create external table growing (a bigint) stored as csv location '{users}/growing/'")
    server.query("insert into growing values (1), (2)")
    assert server.query("select sum(a) as s from growing").to_pylist() == [{"s": 3}]
    assert not [path for path in users.rglob("*#*")]


def test_links_among_files_that_are_read_lead_to_no_file_of_the_server(world):
    folder = world.users / "mixed"
    folder.mkdir()
    world.server.query(f"copy (select 1 as k) to '{folder}/good.arrow'")
    (folder / "bad.arrow").symlink_to(world.targets()["chunk"])
    for location in (f"{folder}/", f"{folder}/*.arrow"):
        with pytest.raises(adbc_driver_manager.Error, match="belongs to the server"):
            world.server.query(f"copy t from '{location}' (format arrow)")
    # A link that comes after the table was made.
    (folder / "bad.arrow").unlink()
    world.server.query(f"create external table mixed stored as arrow location '{folder}/'")
    assert world.server.query("select count(*) as n from mixed").to_pylist() == [{"n": 1}]
    (folder / "bad.arrow").symlink_to(world.targets()["chunk"])
    with pytest.raises(adbc_driver_manager.Error, match="belongs to the server"):
        world.server.query("select count(k) from mixed")


def test_all_rows_are_there_after_a_restart(world):
    server = world.server
    server.query("insert into t values (0)")
    assert server.stop() == 0
    server = world.start()
    assert server.query("select count(*) as n, sum(k) as s from t").to_pylist() == [{"n": ROWS + 1, "s": ROWS * (ROWS + 1) // 2}]
    assert terrace("check", "--http-addr", server.http).returncode == 0


def test_a_password_shuts_all_folders_but_those_configured(tmp_path):
    folders = {name: tmp_path / name for name in ("in", "out", "other")}
    for folder in folders.values():
        folder.mkdir()
        (folder / "a.csv").write_text("a\n1\n")
    (folders["in"] / "link.csv").symlink_to(folders["other"] / "a.csv")
    login = {"TERRACE_USER": "ann", "TERRACE_PASSWORD": "secret"}
    roots = {"TERRACE_FILES_READ_ROOTS": str(folders["in"]), "TERRACE_FILES_WRITE_ROOTS": str(folders["out"])}
    for environment, allowed in ((login, False), ({**login, **roots}, True)):
        with Server(tmp_path / f"data-{allowed}", env=environment) as server:
            with server.connect(db_kwargs={"username": "ann", "password": "secret"}) as connection, connection.cursor() as cursor:
                def works(sql, cursor=cursor):
                    try:
                        cursor.execute(sql)
                        cursor.fetchall()
                        return True
                    except adbc_driver_manager.Error as error:
                        assert "files.read_roots" in str(error) or "files.write_roots" in str(error), error
                        return False

                assert works("create table t (a bigint)")
                assert works(f"copy t from '{folders['in']}/a.csv'") == allowed
                assert works(f"copy t to '{folders['out']}/new.csv'") == allowed
                assert not works(f"copy t from '{folders['out']}/a.csv'")
                assert not works(f"copy t from '{folders['in']}/link.csv'")
                assert not works(f"copy t to '{folders['in']}/new.csv'")
                assert not works(f"copy t to '{folders['other']}/new.csv'")
                assert not works(f"create external table e stored as csv location '{folders['other']}/a.csv'")

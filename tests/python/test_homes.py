"""Tables whose home is an object store (moto, behind a proxy with faults) or another folder."""

import itertools
import os
import pathlib
import random
import subprocess
import sys
import threading

import adbc_driver_manager
import boto3
import pyarrow
import pytest

from fault_proxy import FAULTS, FaultProxy
from helpers import eventually
from server import Server, terrace

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
RAW = ("--set", "tiers.ssd.compression=none")
QUERY = "select count(*) n, sum(k) k, sum(x) x, max(s) s from t where k % 3 = 1"


@pytest.fixture(scope="module")
def moto():
    """The port of a store in memory."""
    ready = "from moto.server import ThreadedMotoServer as S; import threading; s = S('127.0.0.1', 0, False); s.start(); "
    ready += "print(s.get_host_and_port()[1], flush=True); threading.Event().wait()"
    process = subprocess.Popen([sys.executable, "-c", ready], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    yield int(process.stdout.readline())
    process.kill()
    process.wait()


class Bucket:
    """A bucket of its own for each test, which servers reach through a proxy."""

    numbers = itertools.count()

    def __init__(self, port, proxy):
        self.proxy = proxy
        self.name = f"bucket-{next(self.numbers)}"
        self.url = f"s3://{self.name}/home"
        self.client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1",
                                   aws_access_key_id="test", aws_secret_access_key="test")
        self.client.create_bucket(Bucket=self.name)

    def objects(self):
        """Names and sizes of the chunk files."""
        found = self.client.list_objects_v2(Bucket=self.name, Prefix="home/t").get("Contents", [])
        return {item["Key"]: item["Size"] for item in found if item["Key"].count("/") == 2}

    def serve(self, data_dir, *arguments, wait=True):
        home = ("--home", self.url, "--set", f"home.endpoint={self.proxy.url}", "--set", "home.timeout=2s")
        return Server(data_dir, "--dram-budget", "64MiB", *home, *RAW, *arguments, env=KEYS, wait=wait)


@pytest.fixture
def bucket(moto):
    with FaultProxy(moto) as proxy:
        yield Bucket(moto, proxy)


def load(server, rows=150_000):
    table = pyarrow.table({
        "k": pyarrow.array([n * 87_109 for n in range(rows)], pyarrow.int64()),
        "x": pyarrow.array([n * 0.5 for n in range(rows)], pyarrow.float64()),
        "s": pyarrow.array([None if n % 11 == 0 else f"row {n}" for n in range(rows)], pyarrow.string()),
    })
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.adbc_ingest("t", table.to_reader(max_chunksize=50_000), mode="create")


def files(server):
    """The objects that the table's chunks name."""
    return {chunk["file"] for chunk in server.query("select file from system.chunks where table_name = 't'").to_pylist()}


def make_cold(server):
    server.budget("dram", 0)
    server.epoch()


def test_a_table_lives_in_a_bucket_and_outlives_the_server(tmp_path, bucket):
    with bucket.serve(tmp_path) as server:
        load(server)
        expected = server.query(QUERY).to_pylist()
        assert len(bucket.objects()) == 3 and not list(pathlib.Path(tmp_path, "ssd").iterdir())
        assert server.tiers()["object"]["kind"] == "object"
        make_cold(server)
        before = server.query("select sum(reads) n from system.io").to_pylist()[0]["n"]
        assert server.query(QUERY).to_pylist() == expected, "from the bucket"
        assert server.query("select sum(reads) n from system.io").to_pylist()[0]["n"] > before
        server.query("delete from t where k % 2 = 0")
        server.query("insert into t values (-1, 1.5, 'new')")
        changed = server.query(QUERY).to_pylist()
        server.kill()
    with bucket.serve(tmp_path) as server:
        assert server.query(QUERY).to_pylist() == changed
        server.query("optimize table t")
        assert server.query(QUERY).to_pylist() == changed
        left = "select sum(deleted_rows) n from system.chunks where table_name = 't'"
        assert server.query(left).to_pylist() == [{"n": 0}]
        eventually(lambda: {f"s3://{bucket.name}/{name}" for name in bucket.objects()} == files(server))
        server.query("drop table t")
        eventually(lambda: not bucket.objects())
        assert server.stop() == 0, server.output()


@pytest.mark.parametrize("fault", [
    pytest.param(fault, marks=[] if fault in ("reset", "lost") else pytest.mark.deep) for fault in FAULTS
])
def test_answers_are_right_whatever_breaks_on_the_way(tmp_path, bucket, fault):
    random.seed(1)
    lock = threading.Lock()

    def choose(method, path):
        # A body that is declared too short is that of an object: the head of another answer says what it holds.
        if fault == "short" and (method != "GET" or "list-type" in path):
            return None
        # A stalled request costs its whole time-out.
        with lock:
            return fault if random.random() < (0.05 if fault == "stall" else 0.25) else None

    with bucket.serve(tmp_path) as server:
        bucket.proxy.choose = choose
        load(server)
        # A chunk of this one is sent in parts.
        server.query("create table wide as select k, repeat(md5(cast(k as varchar)), 6) s from t where k < 87109 * 60000")
        expected = server.query("select count(*) n, sum(k) k, count(distinct s) s from wide").to_pylist()
        make_cold(server)
        assert server.query("select count(*) n, sum(k) k, count(distinct s) s from wide").to_pylist() == expected
        assert expected == [{"n": 60_000, "k": sum(n * 87_109 for n in range(60_000)), "s": 60_000}]
        [found] = server.query(QUERY).to_pylist()
        kept = [n for n in range(150_000) if n * 87_109 % 3 == 1]
        assert (found["n"], found["k"], found["x"]) == (len(kept), sum(n * 87_109 for n in kept), sum(n * 0.5 for n in kept))
        server.query("drop table wide")
        server.kill()
    assert bucket.proxy.counts[fault] > 0
    bucket.proxy.choose = lambda method, path: None
    with bucket.serve(tmp_path) as server:
        assert server.query(QUERY).to_pylist() == [found]
        sizes = server.query("select sum(file_bytes) n from system.chunks").to_pylist()[0]["n"]
        named = {name: size for name, size in bucket.objects().items() if name.startswith("home/t1/")}
        assert sum(named.values()) >= sizes


def test_a_store_that_does_not_answer_is_named_and_comes_back(tmp_path, bucket):
    with bucket.serve(tmp_path, "--set", "home.retry_time=2s") as server:
        load(server)
        make_cold(server)
        bucket.proxy.choose = lambda method, path: "503"
        with pytest.raises(adbc_driver_manager.Error, match=f"{bucket.url}/t1/c.*503"):
            server.query("select sum(k) from t")
        with pytest.raises(adbc_driver_manager.Error, match="503"):
            server.query("create table u as select * from t")
        bucket.proxy.choose = lambda method, path: None
        assert server.query("select count(*) n from t where k >= 0").to_pylist() == [{"n": 150_000}]
        server.query("create table u as select * from t")
        assert server.query("select count(k) n from u").to_pylist() == [{"n": 150_000}]


def test_a_store_without_ranges_is_refused_and_gives_no_wrong_rows(tmp_path, bucket):
    with bucket.serve(tmp_path) as server:
        load(server)
        expected = server.query(QUERY).to_pylist()
        make_cold(server)
        bucket.proxy.choose = lambda method, path: "whole" if method == "GET" and "list-type" not in path else None
        with pytest.raises(adbc_driver_manager.Error, match="non-partial"):
            server.query(QUERY)
        bucket.proxy.choose = lambda method, path: None
        assert server.query(QUERY).to_pylist() == expected, "it is no damage"


def test_damage_in_a_bucket_is_found(tmp_path, bucket):
    with bucket.serve(tmp_path) as server:
        load(server)
        make_cold(server)
        name, size = sorted(bucket.objects().items())[0]
        body = bytearray(bucket.client.get_object(Bucket=bucket.name, Key=name)["Body"].read())
        body[size // 2] ^= 1
        bucket.client.put_object(Bucket=bucket.name, Key=name, Body=bytes(body))
        with pytest.raises(adbc_driver_manager.Error, match="damaged"):
            server.query("select sum(k), sum(x), max(s) from t")


def test_a_home_of_another_directory_is_refused_and_left_as_it_is(tmp_path, bucket):
    with bucket.serve(tmp_path / "first") as server:
        load(server)
        assert server.stop() == 0
    before = bucket.objects()
    with pytest.raises(RuntimeError, match="another data directory"):
        bucket.serve(tmp_path / "second")
    with pytest.raises(RuntimeError, match="lie at s3://"):
        Server(tmp_path / "first", env=KEYS)
    bucket.client.delete_object(Bucket=bucket.name, Key="home/terrace-home.json")
    with pytest.raises(RuntimeError, match="marker is missing"):
        bucket.serve(tmp_path / "first")
    assert bucket.objects() == before
    backup = terrace("backup", "--data-dir", tmp_path / "first", tmp_path / "copy", check=False)
    assert backup.returncode and "s3://" in backup.stderr


@pytest.mark.parametrize("home, why", [
    ("s3://", "bucket"),
    ("gs://bucket/prefix", "s3://bucket/prefix"),
    ("s3://no-such-bucket/home", "NoSuchBucket"),
])
def test_a_home_that_is_none_is_refused(tmp_path, bucket, home, why):
    with pytest.raises(RuntimeError, match=why):
        Server(tmp_path, "--home", home, "--set", f"home.endpoint={bucket.proxy.url}", env=KEYS)


def test_a_backup_of_a_bucket_is_a_directory_of_its_own(tmp_path, bucket):
    with bucket.serve(tmp_path / "data") as server:
        load(server)
        expected = server.query(QUERY).to_pylist()
        server.request("POST", "/api/v1/backup", {"path": str(tmp_path / "copy")})
    terrace("restore", tmp_path / "copy", "--data-dir", tmp_path / "restored")
    with Server(tmp_path / "restored") as server:
        assert server.query(QUERY).to_pylist() == expected


def test_a_home_may_be_another_folder(tmp_path):
    home = tmp_path / "elsewhere"
    with Server(tmp_path / "data", "--home", home) as server:
        load(server)
        expected = server.query(QUERY).to_pylist()
        assert len(list(home.rglob("*.arrow"))) == 3
        with pytest.raises(adbc_driver_manager.Error):
            server.query(f"copy t to '{home}/t1/c1.parquet'")
        assert server.stop() == 0
    check = terrace("check", "--data-dir", tmp_path / "data")
    assert check.returncode == 0
    os.rename(home, tmp_path / "moved")
    with Server(tmp_path / "data", "--home", tmp_path / "moved") as server:
        assert server.query(QUERY).to_pylist() == expected

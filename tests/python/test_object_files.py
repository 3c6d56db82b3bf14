"""COPY and external tables read and write objects of a store that speaks S3's protocol (moto), below configured prefixes only."""

import io

import boto3
import pyarrow
import pyarrow.parquet
import pytest

from helpers import error_of
from server import Server, terrace
from test_homes import KEYS, moto  # noqa: F401

ROOTS = "s3://lake/sales s3://lake/days s3://lake/out"


@pytest.fixture
def server(tmp_path, moto):  # noqa: F811
    endpoint = f"http://127.0.0.1:{moto}"
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test")
    if "lake" not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
        client.create_bucket(Bucket="lake")
    rows = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"k": list(range(100_000))}), rows, row_group_size=10_000)
    for name, body in {"sales/a.csv": b"k,v\n1,a\n2,b\n", "sales/a.parquet": rows.getvalue(), "secret/keys.csv": b"k,v\n9,z\n",
                       "days/day=2024-02-29/a.json": b'{"k": 1}\n', "days/day=2024-03-01/a.json": b'{"k": 2}\n'}.items():
        client.put_object(Bucket="lake", Key=name, Body=body)
    for found in client.list_objects_v2(Bucket="lake", Prefix="out/").get("Contents", []):
        client.delete_object(Bucket="lake", Key=found["Key"])
    settings = ("--set", f"files.object_roots={ROOTS}", "--set", "files.object_write_roots=s3://lake/out",
                "--set", f"home.endpoint={endpoint}", "--set", "home.retry_time=5s")
    with Server(tmp_path / "data", *settings, env=KEYS) as server:
        server.objects = client
        yield server


def test_objects_are_read_by_copy_and_as_tables(server):
    server.query("create table t (k bigint, v varchar)")
    server.query("copy t from 's3://lake/sales/a.csv'")
    assert server.query("select * from t order by k").to_pylist() == [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}]
    server.query("create external table p stored as parquet location 's3://lake/sales/a.parquet'")
    assert server.query("select count(*) n, sum(k) s from p where k >= 50000").to_pylist() == [{"n": 50_000, "s": 3_749_975_000}]
    server.query("create external table d stored as json partitioned by (day) location 's3://lake/days/'")
    assert server.query("select k from d where day = '2024-03-01'").to_pylist() == [{"k": 2}]


def test_rows_become_objects(server):
    written = "copy (select value as k, repeat('x', 80) as v from generate_series(1, 200000)) to 's3://lake/out/long.{}'"
    server.query("create table long (k bigint, v varchar)")
    for ending in ("csv", "parquet", "arrow"):
        server.query(written.format(ending))
        assert "overwrite" in str(error_of(lambda: server.query(written.format(ending)))), ending
        server.query(written.format(ending) + " options (overwrite 'true')")
        server.query("truncate table long")
        server.query(f"copy long from 's3://lake/out/long.{ending}'")
        assert server.query("select count(*) n, sum(k) k, min(length(v)) l from long").to_pylist() == [
            {"n": 200_000, "k": 20_000_100_000, "l": 80}], ending
    file = server.objects.get_object(Bucket="lake", Key="out/long.parquet")["Body"].read()
    assert pyarrow.parquet.read_table(io.BytesIO(file)).num_rows == 200_000
    # Nothing is left of the uploads that were refused.
    assert "Uploads" not in server.objects.list_multipart_uploads(Bucket="lake")
    server.query("create external table grown (k bigint) stored as parquet location 's3://lake/out/grown/'")
    server.query("insert into grown select value from generate_series(1, 10)")
    assert server.query("select sum(k) k from grown").to_pylist() == [{"k": 55}]


def test_no_other_object_is_read_or_written(server):
    server.query("create table t (k bigint, v varchar)")
    for location in ("s3://lake/secret/keys.csv", "s3://lake/sales/../secret/keys.csv", "s3://other/sales/a.csv"):
        assert "files.object_roots" in str(error_of(lambda: server.query(f"copy t from '{location}'")))
    assert "no object" in str(error_of(lambda: server.query("copy t from 's3://lake/sales/gone.csv'")))
    for target in ("s3://lake/sales/new.csv", "s3://lake/out/../secret/new.csv"):
        assert "files.object_write_roots" in str(error_of(lambda: server.query(f"copy t to '{target}'")))
    assert server.query("select * from t").num_rows == 0


def test_the_home_is_no_place_for_files_of_statements(tmp_path):
    refused = terrace("serve", "--data-dir", tmp_path / "data", "--home", "s3://lake/home", "--set", "files.object_roots=s3://lake",
                      check=False)
    assert refused.returncode == 1 and "files.object_roots" in refused.stderr, refused.stderr

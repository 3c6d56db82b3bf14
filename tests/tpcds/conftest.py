"""TPC-DS and TPC-H data in servers of their own, and DuckDB beside them.

The files of TPC-DS are made once (`tpcgen-cli`) and kept in the test cache. Each module has a server of its own, so that one
finds nothing that the other did.
"""

import os
import pathlib
import random
import shutil
import subprocess
import sys
import sysconfig

import duckdb
import pytest

TOP = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(TOP / "tests/python"), str(pathlib.Path(__file__).parent)]

from server import Server, terrace  # noqa: E402 - from the folder just named

CACHE = pathlib.Path(os.environ.pop("TERRACE_TEST_CACHE", TOP / "tests/.work"))
os.environ.pop("TERRACE_BIN", None)  # The server refuses variables that it does not know.
# Fixed, so that plans are the same on every machine.
MEMORY = ["--memory-limit", "8GiB", "--dram-budget", "2GiB"]


def pytest_addoption(parser):
    parser.addoption("--rewrite-plans", action="store_true", help="write tests/tpcds/plans anew instead of comparing")
    parser.addoption("--scale", default="0.1", help="scale of TPC-DS (the plans are those of 0.1)")
    parser.addoption("--seed", type=int, default=random.randrange(1 << 32), help="seed of the placements")


def pytest_terminal_summary(terminalreporter, config):
    terminalreporter.write_line(f"placements: --seed {config.getoption('--seed')}")


@pytest.fixture(scope="session")
def scale(request):
    return request.config.getoption("--scale")


@pytest.fixture(scope="session")
def parquet(scale):
    """The folder of TPC-DS as Parquet files, one per table."""
    folder = CACHE / f"tpcds-{scale}"
    if not folder.exists():
        partial = folder.with_suffix(".part")
        shutil.rmtree(partial, ignore_errors=True)
        generator = pathlib.Path(sysconfig.get_path("scripts")) / "tpcgen-cli"
        subprocess.run([generator, "tpcds", "parquet", "-s", scale, "-o", partial, "--quiet"], check=True)
        (partial / "dbgen_version.parquet").unlink()  # No table of the benchmark; has the time of the run.
        partial.rename(folder)
    return folder


@pytest.fixture(scope="module")
def tpcds(parquet, tmp_path_factory):
    data = tmp_path_factory.mktemp("tpcds")
    terrace("load", *sorted(parquet.glob("*.parquet")), "--data-dir", data)
    with Server(data, *MEMORY, "--nvm-emulated", "--nvm-capacity", "512MiB") as server:
        yield server


@pytest.fixture(scope="module")
def tpch(tmp_path_factory):
    data = tmp_path_factory.mktemp("tpch")
    terrace("load", "tpch:0.1", "--data-dir", data)
    with Server(data, *MEMORY) as server:
        yield server


@pytest.fixture(scope="session")
def oracle(parquet):
    """DuckDB on the same files, with nulls where Terrace has them: last, in descending order first."""
    connection = duckdb.connect()
    connection.execute("SET threads = 2; SET default_null_order = 'nulls_last_on_asc_first_on_desc'")
    for file in parquet.glob("*.parquet"):
        connection.execute(f"CREATE TABLE {file.stem} AS FROM '{file}'")
    return connection

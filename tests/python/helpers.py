"""Small things that several tests share."""

import time

import adbc_driver_manager
import pyarrow
import pytest

#: Between two keys of `numbers`: so far that none fits in four bytes, so that a number column of a chunk has 512 KiB.
STEP = 87_109


def execute(cursor, sql, parameters=None):
    """Runs a statement and reads its whole answer."""
    cursor.execute(sql, parameters)
    return cursor.fetchall()


def affected(cursor, sql, parameters=None):
    """Runs a statement that changes rows and returns their number, as the driver has it."""
    cursor.execute(sql, parameters)
    return cursor.rowcount


def error_of(action):
    """The driver's error that `action` must end with."""
    with pytest.raises(adbc_driver_manager.Error) as caught:
        action()
    return caught.value


def eventually(condition, timeout_s=60):
    """Waits until `condition` holds; the limit is for a machine that does much else."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def numbers(server, rows, name="t", step=STEP, texts=True, clustered=""):
    """A table with a key, a number and, if wanted, a text in each of its rows, in the order of the keys."""
    text = ", s varchar" if texts else ""
    server.query(f"create table {name} (k bigint, x double{text}){clustered}")
    columns = {
        "k": pyarrow.array([n * step for n in range(rows)], pyarrow.int64()),
        "x": pyarrow.array([n * 0.5 for n in range(rows)], pyarrow.float64()),
    }
    if texts:
        columns["s"] = pyarrow.array([f"row {n}" for n in range(rows)], pyarrow.string())
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.adbc_ingest(name, pyarrow.table(columns), mode="append")

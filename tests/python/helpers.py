"""Small things that several tests share."""

import time

import adbc_driver_manager
import pytest


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


def eventually(condition, timeout_s=10):
    """Waits until `condition` holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)

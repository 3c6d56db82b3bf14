"""What was acknowledged survives `kill -9`; what was not is absent or whole."""

import pytest

from kill_test import run_kills

SEED = 7
KILLS = 20
FEW_KILLS = 3


def test_a_few_kills_lose_and_invent_nothing(tmp_path):
    print(run_kills(tmp_path, FEW_KILLS, SEED + 1, progress=print))


@pytest.mark.deep
def test_twenty_kills_lose_and_invent_nothing(tmp_path):
    exercised = run_kills(tmp_path, KILLS, SEED, progress=print)
    print(exercised)
    for kind in ("insert", "ingest", "load", "create", "drop", "epoch"):
        assert exercised[kind] > 0, f"{kind} was not exercised: {exercised}"

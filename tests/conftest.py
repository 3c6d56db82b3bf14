"""How deep the tests go, for the suites of Python.

TERRACE_TEST_DEPTH=deep runs everything. Otherwise nine tenths of the tests marked `deep` are left out; which ones,
TERRACE_TEST_DRAW decides, a number that is drawn when it is not given. `tests/run.sh` sets both. Tests that are named on
the command line one by one always run.
"""

import os
import random
import zlib

DRAWN_SHARE = 10


def pytest_addoption(parser):
    parser.addoption("--depth", choices=["default", "deep"], default=os.environ.get("TERRACE_TEST_DEPTH", "default"),
                     help="deep: all tests; default: a tenth of those marked deep")
    parser.addoption("--draw", type=int, default=int(os.environ.get("TERRACE_TEST_DRAW", random.randrange(1 << 32))),
                     help="number that decides which deep tests a default run has")


def drawn(draw, name):
    """True for one in ten names, other ones for each draw."""
    return zlib.crc32(f"{draw} {name}".encode()) % DRAWN_SHARE == 0


def pytest_collection_modifyitems(config, items):
    if config.getoption("--depth") == "deep":
        return
    draw = config.getoption("--draw")
    left_out = [item for item in items if item.get_closest_marker("deep") and not named(config, item) and not drawn(draw, item.nodeid)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def named(config, item):
    return any("::" in argument and argument.split("::")[-1] in item.nodeid for argument in config.args)


def pytest_terminal_summary(terminalreporter, config):
    if config.getoption("--depth") != "deep":
        terminalreporter.write_line(f"deep tests: a tenth, drawn by --draw {config.getoption('--draw')}; --depth deep runs all")

"""The first ten minutes of a new user: the archive of a release, its own quick start and nothing else."""

import pathlib
import shutil
import subprocess
import tarfile
import time

import pytest

from server import BINARY, Server
from test_documents import snippets

TOP = pathlib.Path(__file__).parents[2]
#: What the quick start promises, building excepted.
SECONDS = 600


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The folder of an archive that was made of the binary under test."""
    folder = tmp_path_factory.mktemp("release")
    made = subprocess.run([TOP / "deploy/release.sh", "--no-image", pathlib.Path(BINARY).absolute(), folder / "dist"],
                          capture_output=True, text=True, timeout=500)
    assert made.returncode == 0, made.stderr
    archive = next(path for path in (folder / "dist").glob("*.tar.gz") if "symbols" not in path.name)
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "unpacked", filter="data")
    return next((folder / "unpacked").iterdir())


@pytest.mark.deep
@pytest.mark.skipif(not (shutil.which("objcopy") and shutil.which("curl")), reason="needs objcopy and curl")
def test_an_archive_and_its_quick_start_lead_to_a_pin_a_move_and_a_heat_map(unpacked, tmp_path):
    begun = time.monotonic()
    with Server(tmp_path / "data") as server:
        environment = {"PATH": f"{unpacked}:/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path),
                       "TERRACE_URL": f"grpc://{server.flight}", "TERRACE_HTTP_ADDR": server.http}
        steps = [text for language, text, _ in snippets(unpacked / "docs/quick-start.md") if language == "sh"]
        for text in steps:
            text = text.replace("127.0.0.1:8080", server.http)
            ended = subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=tmp_path, env=environment, capture_output=True,
                                   text=True, timeout=SECONDS)
            assert ended.returncode == 0, f"{text}\n{ended.stdout}{ended.stderr}"
        pins = server.query("select kind, tier, met from system.placement_rules where table_name = 'lineitem'").to_pylist()
        assert pins and all(pin["kind"] == "pin" and pin["tier"] == "dram" for pin in pins), pins
        pinned = server.query("select distinct tier from system.segments where column_name = 'l_shipmode'")
        assert pinned["tier"].to_pylist() == ["dram"]
        moves = server.query("select reason from system.moves where from_tier = 'dram' and status = 'done'")
        assert moves.num_rows > 0 and all(moves["reason"].to_pylist())
        heat = server.request("GET", "/api/v1/tables/lineitem/heatmap")
        read = {column["name"] for column in heat["columns"] if max(column["accesses"]) > 0}
        assert "l_shipmode" in read and "l_comment" not in read, read
    assert time.monotonic() - begun < SECONDS

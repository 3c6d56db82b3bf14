"""The systemd unit, its drop-ins and its settings; the settings of the compose file and the Kubernetes manifest."""

import pathlib
import re
import shutil
import subprocess

import pytest

from server import BINARY, terrace

TOP = pathlib.Path(__file__).parents[2]
DEPLOY = TOP / "deploy"
DROP_INS = sorted((DEPLOY / "terrace.service.d").glob("*.conf"))


def settings(path):
    """Keys and values of a unit file, lists of values for keys that are given twice."""
    found = {}
    for line in path.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


def test_the_unit_reads_the_settings_it_speaks_of():
    unit = settings(DEPLOY / "terrace.service")
    assert unit["ExecStart"] == ["/usr/local/bin/terrace serve --config /etc/terrace/terrace.toml"]
    assert unit["EnvironmentFile"] == ["-/etc/terrace/environment"]
    assert unit["Environment"] == ["TERRACE_DATA_DIR=%S/terrace"] and unit["StateDirectory"] == ["terrace"]


def test_its_settings_are_good(tmp_path):
    text = (DEPLOY / "terrace.toml").read_text()
    assert "is valid" in terrace("config", "check", DEPLOY / "terrace.toml").stdout
    # What is commented out is meant to be used as it stands.
    all_of_it = tmp_path / "terrace.toml"
    all_of_it.write_text(re.sub(r"(?m)^# (\w+ = )", r"\1", text))
    assert "is valid" in terrace("config", "check", all_of_it).stdout
    printed = terrace("config", "print", "--config", all_of_it, env={"TERRACE_DATA_DIR": "/var/lib/terrace"}).stdout
    assert 'data_dir = "/var/lib/terrace"' in printed and 'read_roots = "/srv/terrace/import"' in printed


def test_each_drop_in_is_documented_and_lets_in_what_it_is_for():
    documented = (TOP / "docs/operations.md").read_text()
    for drop_in in DROP_INS:
        assert f"`{drop_in.name}`" in documented, drop_in
    lets_in = {drop_in.stem: settings(drop_in) for drop_in in DROP_INS}
    assert lets_in["dax-device"]["PrivateDevices"] == ["no"] and lets_in["dax-device"]["DeviceAllow"] == ["/dev/dax0.0 rw"]
    for name in ("data", "files", "pool"):
        assert lets_in[name]["ReadWritePaths"], name


@pytest.mark.parametrize("name", ["compose.yml", "kubernetes.yml"])
def test_containers_get_certificates_and_no_way_around_them(name):
    text = (DEPLOY / name).read_text()
    named = dict(re.findall(r"(TERRACE_TLS_\w+)(?:: |, value: )([^\s}]+)", text))
    assert set(named) == {"TERRACE_TLS_CERT", "TERRACE_TLS_KEY"}
    assert all(path.startswith("/etc/terrace/tls/") for path in named.values())
    assert re.search(r"(target: /etc/terrace/tls, read_only|mountPath: /etc/terrace/tls, readOnly): true", text)
    assert "insecure" not in text.lower()
    printed = terrace("config", "print", env={**named, "TERRACE_USER": "ada", "TERRACE_PASSWORD": "lace"}).stdout
    assert all(f'"{path}"' in printed for path in named.values())


def test_kubernetes_probes_the_port_that_says_yes_or_no():
    text = (DEPLOY / "kubernetes.yml").read_text()
    assert re.findall(r"httpGet: \{path: (/\w+), port: (\w+)\}", text) == [("/healthz", "health"), ("/readyz", "health")]
    port = re.search(r"name: health, containerPort: (\d+)", text).group(1)
    assert f"TERRACE_HTTP_HEALTH_ADDR=0.0.0.0:{port}" in (DEPLOY / "Dockerfile").read_text()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("drop_in", [None, *DROP_INS], ids=lambda path: path.stem if path else "alone")
def test_systemd_takes_it(tmp_path, drop_in):
    unit = tmp_path / "terrace.service"
    # The verifier wants the binary to be there.
    unit.write_text((DEPLOY / "terrace.service").read_text().replace("/usr/local/bin/terrace", BINARY))
    if drop_in:
        (tmp_path / "terrace.service.d").mkdir()
        shutil.copy(drop_in, tmp_path / "terrace.service.d")
    verified = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert verified.returncode == 0 and "terrace.service" not in verified.stderr, verified.stderr

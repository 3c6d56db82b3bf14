"""The systemd unit, its drop-ins and its settings; the manifests of Compose and Kubernetes; the scripts that make releases."""

import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile

import kubernetes_validate
import pytest
import yaml

from server import BINARY, Server, terrace

TOP = pathlib.Path(__file__).parents[2]
DEPLOY = TOP / "deploy"
SCRIPTS = sorted(DEPLOY.glob("*.sh"))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yml").read_text())
KUBERNETES = list(yaml.safe_load_all((DEPLOY / "kubernetes.yml").read_text()))
BACKUPS = "/var/backups/terrace"
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
    assert re.findall(r"httpGet: \{path: (/\w+), port: (\w+)\}", text) == [
        ("/healthz", "health"), ("/healthz", "health"), ("/readyz", "health"),
    ]
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


def test_kubernetes_takes_the_manifest():
    latest = kubernetes_validate.latest_version()
    assert sorted(resource["kind"] for resource in KUBERNETES) == ["PersistentVolumeClaim", "Service", "StatefulSet"]
    for resource in KUBERNETES:
        for version in (latest, "1.28"):
            kubernetes_validate.validate(resource, version, strict=True)
    # The check does find something.
    wrong = {**KUBERNETES[0], "spec": {**KUBERNETES[0]["spec"], "prots": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, latest, strict=True)


def test_the_pod_has_time_to_start_and_a_place_for_backups():
    stateful = next(resource for resource in KUBERNETES if resource["kind"] == "StatefulSet")
    claims = {resource["metadata"]["name"] for resource in KUBERNETES if resource["kind"] == "PersistentVolumeClaim"}
    pod = stateful["spec"]["template"]["spec"]
    server = pod["containers"][0]
    probe = server["startupProbe"]
    assert probe["httpGet"] == server["livenessProbe"]["httpGet"] and probe["periodSeconds"] * probe["failureThreshold"] >= 600
    mounts = {mount["name"]: mount["mountPath"] for mount in server["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    templates = {template["metadata"]["name"] for template in stateful["spec"]["volumeClaimTemplates"]}
    assert set(mounts) == set(volumes) | templates
    assert mounts["backups"] == BACKUPS and volumes["backups"]["persistentVolumeClaim"]["claimName"] in claims
    assert {variable["name"]: variable.get("value") for variable in server["env"]}["TERRACE_FILES_BACKUP_ROOTS"] == BACKUPS


def test_the_service_of_compose_has_time_to_start_and_a_place_for_backups():
    server = COMPOSE["services"]["terrace"]
    image = (DEPLOY / "Dockerfile").read_text()
    health = server["healthcheck"]
    assert health["start_period"] == "10m" and health["test"] == ["CMD", "/usr/local/bin/terrace", "health"]
    assert f'CMD ["{health["test"][1]}", "{health["test"][2]}"]' in image
    assert f"backups:{BACKUPS}" in server["volumes"] and {"backups", "data"} <= set(COMPOSE["volumes"])
    assert server["environment"]["TERRACE_FILES_BACKUP_ROOTS"] == BACKUPS
    # A new volume has the owner that the folder has in the image.
    assert re.search(rf"install -d -o terrace .* {BACKUPS}$", image, re.MULTILINE)


def test_the_settings_of_the_manifests_are_known_and_let_backups_in(tmp_path):
    """The variables of both manifests, and a backup with them below their folder and nowhere else."""
    stateful = next(resource for resource in KUBERNETES if resource["kind"] == "StatefulSet")
    named = {variable["name"] for variable in stateful["spec"]["template"]["spec"]["containers"][0]["env"]}
    named |= set(COMPOSE["services"]["terrace"]["environment"])
    place = tmp_path / "backups"
    place.mkdir()
    # Those whose values only the place of installation knows; without TLS and on loopback here.
    own = {"TERRACE_USER": "ada", "TERRACE_PASSWORD": "correct horse", "TERRACE_LOG_FORMAT": "json",
           "TERRACE_FILES_BACKUP_ROOTS": str(place)}
    assert named - set(own) == {"TERRACE_TLS_CERT", "TERRACE_TLS_KEY", "TERRACE_DATA_DIR"}
    with Server(tmp_path / "data", env=own) as server:
        backup = lambda folder: terrace("backup", folder, "--http-addr", server.http, env=own, check=False)
        made = backup(place / "monday")
        assert made.returncode == 0, made.stderr
        refused = backup(tmp_path / "elsewhere")
        assert refused.returncode != 0 and "files.backup_roots" in refused.stderr, refused.stderr
    assert (place / "monday/catalog.redb").exists() and not (tmp_path / "elsewhere").exists()


def test_what_compose_mounts_is_there():
    for name, service in COMPOSE["services"].items():
        for volume in service["volumes"]:
            source = volume["source"] if isinstance(volume, dict) else volume.split(":")[0]
            if source.startswith(".."):
                assert (DEPLOY / source).exists(), (name, source)
            elif not source.startswith("${"):
                assert source in COMPOSE["volumes"], (name, source)


def test_grafana_gets_a_data_source_for_sql():
    provisioned = yaml.safe_load((TOP / "dashboards/grafana/provisioning/datasources/terrace.yml").read_text())
    (source,) = provisioned["datasources"]
    grafana = COMPOSE["services"]["grafana"]
    plugin, version = grafana["environment"]["GF_PLUGINS_PREINSTALL"].split("@")
    assert provisioned["apiVersion"] == 1 and source["type"] == plugin and re.fullmatch(r"\d+\.\d+\.\d+", version)
    settings = source["jsonData"]
    # The port is that of the image, and the name one that the trial certificate is made for.
    host, port = settings["host"].split(":")
    assert host in COMPOSE["services"] and f"TERRACE_FLIGHT_ADDR=0.0.0.0:{port}" in (DEPLOY / "Dockerfile").read_text()
    assert f"deploy/certificates.sh deploy/tls {host} localhost" in (DEPLOY / "compose.yml").read_text()
    assert settings["secure"] is True and settings["selectedAuthType"] == "username/password"
    used = [settings["username"], source["secureJsonData"]["password"]]
    assert used == ["$TERRACE_USER", "$TERRACE_PASSWORD"] and {name[1:] for name in used} <= set(grafana["environment"])
    mounts = [volume for volume in grafana["volumes"] if isinstance(volume, str)]
    assert "../dashboards/grafana/provisioning:/etc/grafana/provisioning:ro" in mounts
    assert any(volume["target"].startswith("/etc/ssl/certs/") for volume in grafana["volumes"] if isinstance(volume, dict))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_sound_and_explain_themselves(script):
    checker = shutil.which("shellcheck") or str(pathlib.Path(sys.executable).parent / "shellcheck")
    checked = subprocess.run([checker, str(script)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    wrong = subprocess.run([str(script)], capture_output=True, text=True)
    assert wrong.returncode == 2 and f"deploy/{script.name}" in wrong.stderr


# Stands for the server, whose archives take a while: it answers what a release asks it.
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int count, char **words) {
    char command[4096];
    if (count > 1 && !strcmp(words[1], "--version")) puts(VERSION);
    if (count > 2 && !strcmp(words[1], "completions")) printf("complete %s\n", words[2]);
    if (count > 2 && !strcmp(words[1], "man")) {
        snprintf(command, sizeof command, "mkdir -p '%s' && echo page > '%s/terrace.1'", words[2], words[2]);
        return system(command);
    }
    return 0;
}
"""


def program(folder, version):
    source, binary = folder / "program.c", folder / "terrace"
    source.write_text(PROGRAM)
    subprocess.run(["cc", "-g", f'-DVERSION="{version}"', "-o", str(binary), str(source)], check=True)
    return binary


def release(*arguments, **env):
    return subprocess.run([str(DEPLOY / "release.sh"), *map(str, arguments)], capture_output=True, text=True, env={**os.environ, **env})


@pytest.mark.skipif(not (shutil.which("cc") and shutil.which("objcopy")), reason="needs a C compiler and objcopy")
def test_a_release_has_the_program_its_documents_and_checksums(tmp_path):
    binary = program(tmp_path, "terrace 9.8.7 (0123456789ab)")
    one, two = tmp_path / "one", tmp_path / "two"
    made = release("--no-image", binary, one, SOURCE_DATE_EPOCH="1700000000")
    assert made.returncode == 0, made.stderr
    name = f"terrace-9.8.7-linux-{platform.machine()}"
    files = {f"{name}.tar.gz", f"{name}-symbols.tar.gz", "SHA256SUMS"}
    assert {path.name for path in one.iterdir()} == files and made.stdout.splitlines()[-1] == str(one / "SHA256SUMS")
    sums = dict(reversed(line.split("  ")) for line in (one / "SHA256SUMS").read_text().splitlines())
    assert sums == {name: hashlib.sha256((one / name).read_bytes()).hexdigest() for name in files - {"SHA256SUMS"}}
    with tarfile.open(one / f"{name}.tar.gz") as archive:
        packed = {member.name.removeprefix(f"{name}/"): member for member in archive.getmembers()}
        archive.extractall(tmp_path / "unpacked", filter="data")
    assert {"terrace", "LICENSE", "README.md", "CHANGELOG.md", "docs/operations.md", "man/man1/terrace.1", "completions/terrace.zsh",
            "deploy/terrace.service", "deploy/terrace.toml", "dashboards/grafana/dashboards/terrace.json"} <= set(packed)
    assert {member.mtime for member in packed.values()} == {1700000000} and {member.uid for member in packed.values()} == {0}
    program_of_it = tmp_path / "unpacked" / name / "terrace"
    assert subprocess.run([program_of_it, "--version"], capture_output=True, text=True).stdout == "terrace 9.8.7 (0123456789ab)\n"
    assert program_of_it.stat().st_size < binary.stat().st_size, "the symbols are in the other archive"
    again = release("--no-image", binary, two, SOURCE_DATE_EPOCH="1700000000")
    assert again.returncode == 0 and (two / "SHA256SUMS").read_text() == (one / "SHA256SUMS").read_text()


@pytest.mark.skipif(not (shutil.which("cc") and shutil.which("objcopy")), reason="needs a C compiler and objcopy")
def test_a_release_says_what_it_lacks(tmp_path):
    shown = release("--help")
    assert shown.returncode == 0 and "--no-image" in shown.stdout and "SHA256SUMS" in shown.stdout
    for arguments in ((), ("one",), ("--images", "a", "b"), ("--base",)):
        wrong = release(*arguments)
        assert wrong.returncode == 2 and "deploy/release.sh" in wrong.stderr, arguments
    missing = release("--no-image", tmp_path / "nothing", tmp_path / "out")
    assert missing.returncode == 1 and "cargo build --release" in missing.stderr
    unknown = release("--no-image", program(tmp_path, "terrace 9.8.7"), tmp_path / "out")
    assert unknown.returncode == 1 and "TERRACE_COMMIT" in unknown.stderr and not (tmp_path / "out").exists()

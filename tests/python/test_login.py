"""How the commands that ask a server get their password: not from their arguments, which other users of the machine see."""

import os
import pathlib
import subprocess
import sys
import time

import pytest

from helpers import eventually
from server import BINARY, Server, terrace
from test_users import PASSWORD, make_user


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data = tmp_path_factory.mktemp("login") / "data"
    make_user(data, "create", "ann")
    with Server(data) as server:
        yield server


@pytest.fixture
def password_file(tmp_path):
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    file.chmod(0o600)
    return file


def sql(server, *arguments):
    return ["sql", "--url", f"grpc://{server.flight}", "--user", "ann", "--format", "csv", *arguments]


def test_a_file_and_the_environment_have_the_password(server, password_file):
    assert terrace(*sql(server, "--password-file", password_file, "SELECT 7 AS a")).stdout.split() == ["a", "7"]
    assert terrace(*sql(server, "SELECT 7 AS a"), env={"TERRACE_PASSWORD": PASSWORD}).stdout.split() == ["a", "7"]
    http = ["tiers", "list", "--http-addr", server.http, "--user", "ann"]
    assert "dram" in terrace(*http, "--password-file", password_file).stdout
    # The command line comes first, and without a terminal nobody is asked.
    password_file.write_text("wrong horse\n")
    wrong = terrace(*sql(server, "--password-file", password_file, "SELECT 7"), env={"TERRACE_PASSWORD": PASSWORD}, check=False)
    assert wrong.returncode == 1 and "wrong horse" not in wrong.stderr, wrong.stderr
    assert terrace(*http, check=False).returncode == 1
    missing = terrace(*sql(server, "--password-file", password_file.with_name("none"), "SELECT 7"), check=False)
    assert missing.returncode == 1 and "cannot read the password" in missing.stderr, missing.stderr


def test_documented_ways_show_no_password_in_the_list_of_processes(server, password_file):
    command = [BINARY, *map(str, sql(server, "--password-file", password_file))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        # Until the process has begun to run the program it is empty, or that of this process.
        cmdline = pathlib.Path(f"/proc/{process.pid}/cmdline")
        eventually(lambda: "--password-file" in cmdline.read_text())
        shown = cmdline.read_text()
        answer, _ = process.communicate("SELECT 7 AS a;", timeout=60)
    assert "--password-file" in shown and PASSWORD not in shown and answer.split() == ["a", "7"]
    described = terrace("sql", "--help").stdout
    assert "--password-file" in described and "--password <" not in described


def test_an_argument_is_taken_with_a_warning_and_for_a_server_not_at_all(server, password_file):
    warned = terrace(*sql(server, "--password", PASSWORD, "SELECT 7 AS a"))
    assert warned.stdout.split() == ["a", "7"] and "can see" in warned.stderr and PASSWORD not in warned.stderr
    both = terrace(*sql(server, "--password", PASSWORD, "--password-file", password_file, "SELECT 7"), check=False)
    assert both.returncode != 0 and "cannot be used with" in both.stderr, both.stderr
    refused = terrace("config", "print", "--set", f"password={PASSWORD}", env={"TERRACE_USER": "ann"}, check=False)
    assert refused.returncode == 1 and "TERRACE_PASSWORD" in refused.stderr and PASSWORD not in refused.stderr


def test_somebody_at_a_terminal_is_asked(server):
    spawn = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    command = [sys.executable, "-c", spawn, BINARY, *sql(server, "SELECT 7 AS seven")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        said = b""
        while b"Password of 'ann'" not in said:
            part = os.read(process.stdout.fileno(), 4096)
            assert part, said
            said += part
        # It has asked, and hides what is typed in a moment.
        time.sleep(0.3)
        process.stdin.write(f"{PASSWORD}\n".encode())
        process.stdin.flush()
        while part := os.read(process.stdout.fileno(), 4096):
            said += part
        assert process.wait(timeout=60) == 0, said
    assert b"seven" in said and PASSWORD.encode() not in said, said

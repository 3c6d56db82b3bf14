"""The command line without a terminal: formats, counts, profiles, status, completions, man pages."""

import json
import os
import pathlib
import re
import stat
import subprocess
import tomllib

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from pseudo_terminal import PseudoTerminal
from server import Server, terrace

TOP = pathlib.Path(__file__).parents[2]
ROWS = "select 1 as n, 'a,b' as t, [1, 2] as l, named_struct('x', 1, 'y', 'z') as s, map([7], ['seven']) as m"
VALUES = {"n": 1, "t": "a,b", "l": [1, 2], "s": {"x": 1, "y": "z"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("command-line") / "data") as server:
        server.query("create table counted as select value as n from generate_series(1, 3)")
        yield server


@pytest.fixture
def sql(server):
    def run(*arguments, **options):
        return terrace("sql", "--url", f"grpc://{server.flight}", *arguments, **options)

    return run


def test_text_formats_have_nested_values(sql):
    written = {name: sql("--format", name, ROWS).stdout for name in ("table", "vertical", "csv", "tsv", "json", "ndjson", "markdown")}
    assert '| 1 | a,b | [1, 2] | {x: 1, y: "z"} | {7: "seven"} |' in written["table"]
    assert "l | [1, 2]\n" in written["vertical"]
    assert written["csv"].splitlines()[1] == '1,"a,b","[1,2]","{""x"":1,""y"":""z""}","{""7"":""seven""}"'
    assert written["tsv"].splitlines()[1].startswith("1\ta,b\t")
    value = VALUES | {"m": {"7": "seven"}}
    assert json.loads(written["json"]) == [value] and json.loads(written["ndjson"]) == value
    assert written["markdown"].splitlines()[1].startswith("| --: | --- |")


def test_binary_formats_have_nested_values(sql, tmp_path):
    files = {ending: tmp_path / f"rows.{ending}" for ending in ("arrows", "arrow", "parquet")}
    for file in files.values():
        assert sql(ROWS, "--output", file).stderr == f"1 row written to {file}\n"
    value = VALUES | {"m": [(7, "seven")]}
    assert pa.ipc.open_stream(files["arrows"].read_bytes()).read_all().to_pylist() == [value]
    assert pa.feather.read_table(files["arrow"], memory_map=False).to_pylist() == [value]
    assert pa.parquet.read_table(files["parquet"]).to_pylist() == [value]
    assert sql("--output", files["arrow"], ROWS, ROWS, check=False).stderr.endswith("error: a file of format arrow-file holds one result\n")


def test_counts_are_told_without_a_terminal(sql):
    assert sql("update counted set n = n where n = 1").stderr == "1 row affected\n"
    assert sql("update counted set n = n").stderr == "3 rows affected\n"
    assert sql("update counted set n = n where n > 3").stderr == "0 rows affected\n"
    assert sql("select * from counted").stderr == "3 rows\n"
    assert sql("create table made (a int)", "drop table made").stderr == ""
    # Whoever reads rows by a program wants nothing else.
    assert sql("--format", "csv", "select * from counted").stderr == ""
    assert sql("--quiet", "update counted set n = n", "select 1").stderr == ""
    assert re.fullmatch(r"3 rows in \d+\.\d{3} s\n", sql("--timing", "--format", "csv", "select * from counted").stderr)


def test_commands_work_in_files_and_arguments(sql, tmp_path):
    script = tmp_path / "script.sql"
    script.write_text("\\pset format csv\nselect 1 as a;\n\\x on\nselect 2 as b; \\q\nselect 3 as c;\n")
    assert sql("-f", script).stdout == "a\n1\nb\n2\n"
    assert sql(stdin="select 1 as a \\gx").stdout == "-[ row 1 ]------------------------------\na | 1\n"
    assert "BIGINT" in sql("\\d counted").stdout
    assert sql("\\nothing", check=False).stderr == "error: unknown command \\nothing; \\? lists all\n"


def test_analyzed_plans_fit_the_screen(sql):
    query = "explain analyze select n, count(*) from counted where n > 1 group by n order by n"
    tree = sql(query).stdout.splitlines()
    assert tree[0].split() == ["rows", "time", "operator"]
    scan = next(line for line in tree if "TierScanExec" in line)
    assert "public.counted" in scan and "chunks" in scan
    assert all(len(line) <= 120 for line in tree[:-1]), tree
    whole = json.loads(sql("--format", "json", query).stdout)
    assert "metrics=[" in whole[0]["plan"] and len(max(whole[0]["plan"].splitlines(), key=len)) > 120


def test_profiles_name_servers_and_logins(tmp_path):
    password = "wide open door"
    with Server(tmp_path / "data", env={"TERRACE_USER": "ann", "TERRACE_PASSWORD": password}) as server:
        profiles, secret = tmp_path / "profiles.toml", tmp_path / "password"
        secret.write_text(password + "\n")
        secret.chmod(0o600)
        place = f'url = "grpc://{server.flight}"\nhttp_addr = "{server.http}"\nuser = "ann"\n'
        profiles.write_text(f"[file]\n{place}password_file = \"password\"\n[command]\n{place}password_command = \"cat '{secret}'\"\n"
                            f"[plain]\n{place}password = \"x\"\n")
        # Whatever the umask is: a group that may write is refused.
        profiles.chmod(0o600)
        env = {"TERRACE_PROFILES": str(profiles), "TERRACE_URL": "grpc://127.0.0.1:1"}

        def run(*arguments, check=True, **more):
            return terrace(*arguments, check=check, env=env | more)

        refused = run("sql", "--profile", "file", "select 1", check=False).stderr
        assert "profile 'plain' has a password in plain text" in refused
        profiles.write_text(profiles.read_text().partition("[plain]")[0])
        for name in ("file", "command"):
            ran = run("sql", "--profile", name, "--format", "csv", "select current_user as u")
            assert (ran.stdout, ran.stderr) == ("u\nann\n", "")
            assert json.loads(run("tiers", "list", "--json", "--profile", name).stdout)[0]["name"] == "dram"
        # A variable is stronger than the profile that a variable names, an option is stronger than both.
        assert "127.0.0.1:1" in run("sql", "select 1", check=False, TERRACE_PROFILE="file").stderr
        assert run("sql", "select 1", "--url", f"grpc://{server.flight}", TERRACE_PROFILE="file").returncode == 0
        secret.chmod(0o644)
        warned = run("sql", "--profile", "file", "--quiet", "select 1")
        assert warned.stderr == f"warning: {secret} has a password, and other users may read it; chmod 600 it\n"
        profiles.chmod(profiles.stat().st_mode | stat.S_IWOTH)
        assert "chmod go-w it" in run("sql", "--profile", "command", "select 1", check=False).stderr
        assert "no profile 'none'; there are: command, file" in run("sql", "--profile", "none", "select 1", check=False).stderr


def test_status_and_top_show_a_server(server, tmp_path):
    http = ["--http-addr", server.http]
    shown = terrace("status", *http).stdout
    for part in ["Terrace 0.1.0, up ", "statements: ", "dram", "ssd", "no known damage"]:
        assert part in shown, shown
    answers = json.loads(terrace("status", *http, "--json").stdout)
    assert answers["ready"]["status"] == "ready" and answers["damaged_segments"] == 0
    assert "statements: " in terrace("top", "--once", *http).stdout
    assert "needs a terminal" in terrace("top", *http, check=False).stderr
    with PseudoTerminal("top", "--interval", "200ms", *http, columns=120) as terminal:
        terminal.expect("Terrace 0.1.0", "q quits", "Terrace 0.1.0")
        terminal.send("q")
        assert terminal.end() == 0
        # The first screen and the cursor are back.
        assert terminal.raw.rstrip().endswith(b"\x1b[?25h\x1b[?1049l")


def test_a_bar_shows_how_far_a_check_is(server, tmp_path):
    with PseudoTerminal("check", "--http-addr", server.http) as terminal:
        terminal.expect("counted", "verified")
        assert terminal.end() == 0
    assert server.request("GET", "/api/v1/tasks") == {"tasks": []}


def test_a_bar_shows_how_far_optimize_is(server):
    server.query("create table holed with (chunk_rows = 1000) as select value as n from generate_series(0, 599999)")
    server.query("delete from holed where n % 1000 = 0")
    with PseudoTerminal("sql", "--url", f"grpc://{server.flight}", "OPTIMIZE holed") as terminal:
        terminal.expect("optimizing [", " of ", "600 rows affected in ")
        assert terminal.end() == 0
    work = "select work_done_bytes as done, work_total_bytes as total from system.queries where sql = 'OPTIMIZE holed'"
    [known] = server.query(work).to_pylist()
    assert known["done"] == known["total"] > 1_000_000, known
    [known] = [query for query in server.request("GET", "/api/v1/queries")["items"] if query["sql"] == "OPTIMIZE holed"]
    assert known["work_done_bytes"] == known["work_total_bytes"] > 1_000_000, known
    # A statement that does not count its work.
    [none] = server.query(work.replace("OPTIMIZE holed", "delete from holed where n % 1000 = 0")).to_pylist()
    assert none == {"done": 0, "total": 0}


@pytest.mark.parametrize("ending", ["csv", "tsv", "json", "ndjson", "arrow", "arrows", "parquet"])
def test_copied_rows_come_back_in_every_format(server, sql, tmp_path, ending):
    columns = "n bigint, t varchar, x double, b boolean"
    sql(f"create table source_{ending} ({columns})", f"create table target_{ending} ({columns})",
        f"insert into source_{ending} values (1, 'a,b \"c\"', 1.5, true), (2, null, -3e10, false), (3, 'ö', null, null)")
    file = tmp_path / f"rows.{ending}"
    copied = sql(f"\\copy source_{ending} to '{file}'", f"\\copy target_{ending} from '{file}'")
    assert f"3 rows written to {file}\n" in copied.stderr
    rows = [server.query(f"select * from {name}_{ending} order by n").to_pylist() for name in ("source", "target")]
    assert rows[0] == rows[1] and len(rows[0]) == 3, rows


def test_shells_complete_and_man_pages_are_written(tmp_path):
    for shell in ("bash", "zsh", "fish"):
        assert "placement" in terrace("completions", shell).stdout
    terrace("man", tmp_path / "man1")
    pages = {page.name for page in (tmp_path / "man1").iterdir()}
    assert {"terrace.1", "terrace-sql.1", "terrace-placement-pin.1"} <= pages


def test_the_version_names_the_commit_where_it_is_known():
    version = tomllib.loads((TOP / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    known = subprocess.run(["git", "-C", TOP, "rev-parse", "HEAD"], capture_output=True).returncode == 0
    commit = r" \([0-9a-f]{12}\)" if known or os.environ.get("TERRACE_COMMIT") else ""
    shown = terrace("--version").stdout
    assert re.fullmatch(rf"terrace {re.escape(version)}{commit}\n", shown), shown
    assert terrace("-V").stdout == shown


def test_the_server_starts_with_the_variables_that_cargo_run_sets(tmp_path):
    # What the build script hands to the compiler, `cargo run` hands to the program; the server refuses settings it does not know.
    given = re.findall(r"cargo::?rustc-env=(\w+)=", (TOP / "server/program/build.rs").read_text())
    assert given, "the build script hands over the version"
    package = {"NAME": "terrace-program", "VERSION": "1.2.3", "VERSION_MAJOR": "1", "VERSION_MINOR": "2", "VERSION_PATCH": "3",
               "VERSION_PRE": "", "AUTHORS": "", "DESCRIPTION": "", "HOMEPAGE": "", "LICENSE": "Apache-2.0", "LICENSE_FILE": "",
               "README": "", "REPOSITORY": "", "RUST_VERSION": "1.94"}
    env = {"CARGO": "/usr/bin/cargo", "CARGO_MANIFEST_DIR": str(TOP / "server/program"),
           "CARGO_MANIFEST_PATH": str(TOP / "server/program/Cargo.toml"), "OUT_DIR": str(tmp_path), "LD_LIBRARY_PATH": str(tmp_path),
           **{f"CARGO_PKG_{name}": value for name, value in package.items()},
           **{name: "1.2.3 (0123456789ab)" for name in given}}
    with Server(tmp_path / "data", env=env) as started:
        assert started.query("select 1 as one").to_pylist() == [{"one": 1}]
        assert started.stop() == 0


@pytest.mark.parametrize("columns", [80, 100])
def test_help_is_wrapped_at_the_width_of_the_terminal(columns):
    with PseudoTerminal("load", "--help", columns=columns, lines=100) as terminal:
        terminal.expect("Examples:")
        text = ESCAPED.sub("", terminal.raw.decode())
        terminal.end()
    lines = text.partition("Examples:")[0].splitlines()
    assert max(map(len, lines)) <= columns
    # Paragraphs fill their lines: none but the last is much shorter than the terminal.
    start = next(number for number, line in enumerate(lines) if line.startswith("Each file becomes"))
    paragraph = lines[start:lines.index("", start)]
    assert all(len(line) > columns - 20 for line in paragraph[:-1]), paragraph


ESCAPED = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")

"""`terrace sql` at a terminal: the prompt, its commands, completion, history, pager."""

import signal
import time

import pytest

from helpers import eventually
from pseudo_terminal import PseudoTerminal
from server import Server

PROMPT = "terrace> "


def run(terminal, line):
    """Enters a line, and returns what is shown until the next prompt."""
    terminal.enter(line)
    return terminal.expect(PROMPT)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("shell") / "data") as server:
        server.query("create table shells (id bigint not null primary key, name varchar, price decimal(15, 2), tags bigint[])")
        server.query("insert into shells values (1, 'cowry', 1.50, [1, 2]), (2, null, 20.00, null)")
        server.query("create view cheap_shells as select id from shells where price < 10")
        yield server


@pytest.fixture
def prompt(server, tmp_path):
    """Opens prompts, which share a history."""
    opened = []

    def open_prompt(*arguments, **options):
        env = {"TERRACE_HISTORY": str(tmp_path / "history"), "TERRACE_PROFILES": str(tmp_path / "none.toml"),
               **options.pop("env", {})}
        terminal = PseudoTerminal("sql", "--url", f"grpc://{server.flight}", *arguments, env=env, **options)
        opened.append(terminal)
        terminal.expect(PROMPT)
        return terminal

    yield open_prompt
    for terminal in opened:
        terminal.__exit__()


def test_a_statement_spans_lines_and_counts_its_rows(prompt):
    terminal = prompt()
    terminal.enter("select", "40 + 2", "as answer;")
    terminal.expect("|     42 |", "1 row in ")
    terminal.enter("update shells set name = 'conch' where id = 2;")
    terminal.expect("1 row affected in ")
    terminal.enter("select nonsense;")
    terminal.expect("error: ", PROMPT)
    terminal.enter("exit")
    assert terminal.end() == 0


@pytest.mark.parametrize("way", ["quit", "exit;", "\\q", "QUIT", "\x04"])
def test_one_can_leave_within_a_statement(prompt, way):
    terminal = prompt()
    terminal.enter("select 1 +")
    if way == "\x04":
        # Ctrl-D leaves on an empty line; Ctrl-C gives one. Enter draws the prompt and the statement anew.
        terminal.expect("select 1 +", "select 1 +")
        terminal.send("\x03")
        terminal.expect(PROMPT)
        terminal.send(way)
    else:
        terminal.enter(way)
    assert terminal.end() == 0


def test_the_history_has_whole_statements_and_no_passwords(prompt):
    terminal = prompt()
    terminal.enter("select 40 +", "3 as answer;")
    terminal.expect("43", "1 row in ", PROMPT)
    terminal.enter("alter user nobody password 'very secret';")
    terminal.expect("error: ", PROMPT)
    terminal.enter("\\q")
    assert terminal.end() == 0
    terminal = prompt()
    terminal.send("\x1b[A\r")
    terminal.expect("|     43 |", "1 row in ")


def test_tab_completes_words_and_names_of_the_server(prompt):
    terminal = prompt()
    terminal.send("sel\t")
    terminal.expect("select")
    terminal.send(" nam")
    # The names come in the background.
    eventually(lambda: terminal.send("\t") or terminal.read(0.3) and "name" in terminal.seen)
    terminal.send(" from she\t")
    terminal.expect("shells")
    terminal.enter(" where id = 1;")
    terminal.expect("| cowry |", "1 row in ")


def test_commands_say_what_there_is(prompt):
    terminal = prompt()
    terminal.enter("\\dt")
    tables = terminal.expect("shells", PROMPT)
    assert "system" not in tables and "information_schema" not in tables and "cheap_shells" not in tables
    terminal.enter("\\dt system.tier*")
    assert "tiers" in terminal.expect("tiers", PROMPT)
    terminal.enter("\\dv")
    assert "cheap_shells" in terminal.expect("cheap_shells", PROMPT)
    terminal.enter("\\d shells")
    columns = terminal.expect("tags", PROMPT)
    for row in ["| id     | BIGINT         | no       |    1 |", "| price  | DECIMAL(15, 2) | yes      |", "BIGINT[]"]:
        assert row in columns, columns
    terminal.enter("\\d nothing")
    terminal.expect("error: there is no table or view 'nothing'", PROMPT)
    terminal.enter("\\l")
    assert "system" in terminal.expect("public", PROMPT) + terminal.seen
    terminal.enter("\\?")
    terminal.expect("\\copy TABLE FROM FILE", PROMPT)
    terminal.enter("\\nonsense")
    terminal.expect("error: unknown command \\nonsense", PROMPT)
    terminal.enter("\\conninfo")
    terminal.expect("as nobody, not encrypted", PROMPT)


def test_a_command_leaves_the_statement_to_be_finished(prompt):
    terminal = prompt()
    terminal.enter("select 40", "\\d shells")
    terminal.expect("BIGINT[]", PROMPT)
    terminal.enter(" + 4 as answer;")
    terminal.expect("|     44 |", "1 row in ")


def test_settings_change_how_rows_look(prompt):
    terminal = prompt()
    terminal.enter("\\x")
    terminal.expect("expanded is on")
    terminal.enter("select * from shells where id = 1;")
    terminal.expect("-[ row 1 ]", "id    | 1", "tags  | [1, 2]", PROMPT)
    assert "expanded is off" in run(terminal, "\\x off")
    assert "format is csv" in run(terminal, "\\pset format csv")
    assert '"[1,2]",1' in run(terminal, "select tags, id from shells where id = 1;")
    run(terminal, "\\pset format parquet")
    assert "error: parquet is not text" in run(terminal, "select 1;")
    run(terminal, "\\pset format table")
    assert "timing is off" in run(terminal, "\\timing")
    shown = run(terminal, "select 1 as one \\gx")
    assert "one | 1" in shown and "1 row" in shown and " in 0" not in shown


def test_wide_rows_become_records_on_a_narrow_terminal(prompt):
    terminal = prompt(columns=45)
    terminal.enter("select 'a long text for a wide row' as first_column, 'another long text' as second_column;")
    terminal.expect("-[ row 1 ]", "second_column | another long text")


def test_tall_results_go_through_the_pager(prompt):
    terminal = prompt(lines=20, env={"PAGER": "sed s/^/paged:/"})
    shown = run(terminal, "select * from generate_series(1, 5);")
    assert "5 rows in " in shown and "paged:" not in shown
    shown = run(terminal, "select * from generate_series(1, 100);")
    assert "100 rows in " in shown and "paged:|   100 |" in shown
    run(terminal, "\\pset pager off")
    shown = run(terminal, "select * from generate_series(1, 100);")
    assert "100 rows in " in shown and "paged:" not in shown


def test_a_pager_that_is_left_early_is_no_failure(prompt):
    terminal = prompt(lines=20, env={"PAGER": "head -1 > /dev/null"})
    assert "error" not in run(terminal, "select a.value as x from generate_series(1, 9000) a, generate_series(1, 100) b;")
    terminal.enter("select 40 + 5 as answer;")
    terminal.expect("|     45 |")


def test_the_editor_gives_the_next_statement(prompt, tmp_path):
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\ncat \"$1\" > \"$0.seen\"\necho 'select 40 + 6 as answer;' > \"$1\"\n")
    editor.chmod(0o755)
    terminal = prompt(env={"EDITOR": str(editor)})
    terminal.enter("select 1;")
    terminal.expect("1 row in ", PROMPT)
    terminal.enter("\\e")
    terminal.expect("select 40 + 6 as answer;")
    terminal.send("\r")
    terminal.expect("|     46 |")
    assert (tmp_path / "editor.seen").read_text() == "select 1"


def test_a_statement_is_watched_until_ctrl_c(prompt):
    terminal = prompt()
    terminal.enter("select 40 + 7 as answer \\watch 0.2")
    terminal.expect("|     47 |", "|     47 |", "|     47 |")
    terminal.send("\x03")
    terminal.expect(PROMPT)
    terminal.enter("select 40 + 8 as answer;")
    terminal.expect("|     48 |")


def test_ctrl_c_cancels_a_statement(prompt, server):
    terminal = prompt()
    terminal.enter("select sum(a.value * b.value % 7) from generate_series(1, 1000000) a, generate_series(1, 1000000) b;")
    running = "select count(*) as n from system.queries where state = 'running' and sql like '%a.value * b%' and sql not like '%like%'"
    eventually(lambda: server.query(running)["n"][0].as_py() == 1)
    terminal.send("\x03")
    terminal.expect("error: cancelled", PROMPT)
    eventually(lambda: server.query(running)["n"][0].as_py() == 0)


def test_files_are_read_written_and_copied(prompt, server, tmp_path):
    terminal = prompt()
    script, rows, copy = tmp_path / "script.sql", tmp_path / "rows.json", tmp_path / "copy.csv"
    script.write_text("create table copies (id bigint, name varchar);\n\\timing off\nselect 40 + 9 as answer;\n")
    terminal.enter(f"\\i {script}")
    terminal.expect("timing is off", "|     49 |", "1 row", PROMPT)
    run(terminal, f"\\o '{rows}'")
    assert "2 rows written to" in run(terminal, "select id from shells order by id;")
    run(terminal, "\\o")
    assert rows.read_text() == '[{"id":1},{"id":2}]\n'
    terminal.enter(f"\\copy (select id, name from shells where id = 1) to '{copy}'")
    terminal.expect("1 row written to", PROMPT)
    assert copy.read_text() == "id,name\n1,cowry\n"
    terminal.enter(f"\\copy copies from {copy}")
    terminal.expect("1 rows in", PROMPT)
    assert server.query("select * from copies").to_pylist() == [{"id": 1, "name": "cowry"}]
    terminal.enter(f"\\copy copies to {tmp_path / 'copy.exe'}")
    terminal.expect("its ending does not tell its format", PROMPT)
    script.write_text(f"\\i {script}\n")
    terminal.enter(f"\\i {script}")
    terminal.expect("in a circle", PROMPT)


def test_the_prompt_goes_to_another_server(prompt, server, tmp_path):
    profiles = tmp_path / "profiles.toml"
    with Server(tmp_path / "other") as other:
        other.query("create table elsewhere as select 1 as a")
        profiles.write_text(f'[other]\nurl = "grpc://{other.flight}"\n')
        terminal = prompt(env={"TERRACE_PROFILES": str(profiles)})
        assert "no profile 'none'; there are: other" in run(terminal, "\\c none")
        assert "shells" in run(terminal, "\\dt"), "the connection stays as it was"
        assert f"grpc://{other.flight} as nobody" in run(terminal, "\\c other")
        tables = run(terminal, "\\dt")
        assert "elsewhere" in tables and "shells" not in tables
        # So do the names that Tab knows.
        terminal.send("select a from else")
        eventually(lambda: terminal.send("\t") or terminal.read(0.3) and "elsewhere" in terminal.seen)
        terminal.enter(";")
        terminal.expect("| 1 |", PROMPT)
        assert f"grpc://{server.flight} as nobody" in run(terminal, f"\\c grpc://{server.flight}")
        assert "shells" in run(terminal, "\\dt")


def test_colours_are_for_terminals_that_want_them(prompt):
    terminal = prompt(env={"NO_COLOR": ""})
    terminal.enter("select 'x' as letter;")
    terminal.expect("1 row in ")
    assert b"\x1b[1;34mselect\x1b[0m" in terminal.raw and b"\x1b[32m'x'\x1b[0m" in terminal.raw
    terminal = prompt()
    terminal.enter("select 'x' as letter;")
    terminal.expect("1 row in ")
    assert b"\x1b[1;34m" not in terminal.raw


def test_typing_waits_for_no_server(prompt, server):
    terminal = prompt()
    server.process.send_signal(signal.SIGSTOP)
    try:
        start = time.monotonic()
        terminal.send("sel\t")
        terminal.expect("select", seconds=5)
        assert time.monotonic() - start < 5
    finally:
        server.process.send_signal(signal.SIGCONT)

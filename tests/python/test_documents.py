"""The documents: links lead somewhere, reference pages are as the binary has them, and snippets run and print what the page shows.

A fence with the word `run` behind its language (```sql run, ```sh run, ```python run) is a snippet that runs. The snippets of a page
run in their order, on a server of their own with a new data directory. A line `<!-- before the snippets: COMMAND -->` names a command
of the shell that runs first. A fence ```text output behind a snippet shows lines that it prints, in their order; `..` stands for a word.

Other fences are checked as far as that goes: statements for a server with users (```sql closed) run on one, commands have options and
paths that there are, TOML is a valid configuration, JSON and Python are such. Grammars (```sql syntax) are not checked.
"""

import functools
import http
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib

import pytest

from server import BINARY, Server, terrace

TOP = pathlib.Path(__file__).parents[2]
DOCS = TOP / "docs"
sys.path.insert(0, str(TOP / "tests/fixtures"))

from references import AGAIN, generated, pages  # noqa: E402

OUTSIDE = [TOP / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.name != "SUMMARY.md")
SNIPPET = re.compile(r"^```(\w+) run\n(.*?)^```$(?:\n+^```text output\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
BEFORE = re.compile(r"^<!-- before the snippets: (.+) -->$", re.MULTILINE)
#: Pages whose snippets run each time; those of the others run in deep runs.
FIRST_PAGES = ("quick-start.md", "concepts.md")


def prose(text):
    """The text without code and comments."""
    text = re.sub(r"^( *)(```+).*?^\1\2 *$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(`+)[^`].*?\1|<!--.*?-->", "", text, flags=re.DOTALL)


def links(page):
    """Targets of the links and pictures of a page, web addresses left out."""
    targets = re.findall(r"\]\(\s*([^)\s]+)\s*\)", prose(page.read_text()))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(page):
    """Names of the headings of a page, as GitHub and mdBook make them."""
    text = re.sub(r"^( *)(```+).*?^\1\2 *$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    names, seen = set(), {}
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        seen[name] = seen.get(name, -1) + 1
        names.add(f"{name}-{seen[name]}" if seen[name] else name)
    return names


def broken(page):
    """Links of a page that lead nowhere. Those of pages of the book stay inside of it."""
    wrong = []
    for target in links(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        is_outside = page.is_relative_to(DOCS) and not file.is_relative_to(DOCS)
        if not file.exists() or is_outside or anchor and anchor not in anchors(file):
            wrong.append(f"{page.name}: {target}")
    return wrong


def snippets(page):
    """Language, text and shown output of the snippets of a page that run."""
    return SNIPPET.findall(page.read_text())


def words(text):
    """The words of each line; lines that frame a table have none."""
    lines = [re.findall(r"[^\s|]+", line) for line in text.splitlines()]
    return [line for line in lines if line and not all(set(word) <= set("+-") for word in line)]


def first_missing(shown, printed):
    """The first line of an output on a page that the snippet did not print, behind those before it; None: it printed them all."""
    left = iter(words(printed))
    same = lambda line, other: len(line) == len(other) and all(word in ("..", found) for word, found in zip(line, other))
    return next((line for line in words(shown) if not any(same(line, other) for other in left)), None)


def test_outputs_are_compared_word_by_word_and_in_order():
    printed = "+---+------+\n| k |    v |\n+---+------+\n| 1 | 2.50 |\n| 2 | 7.00 |\n+---+------+\n"
    assert first_missing("| k | v |\n| 2 | 7.00 |\n", printed) is None
    assert first_missing("+-----+\n| 1 | .. |\n", printed) is None
    assert first_missing("2 7.00\n1 2.50\n", printed) == ["1", "2.50"]
    assert first_missing("1 2.51\n", printed) == ["1", "2.51"]
    assert first_missing("1\n", printed) == ["1"]


def test_each_shown_output_follows_a_snippet():
    for page in [*OUTSIDE, *PAGES]:
        text = page.read_text()
        assert text.count("```text output\n") == sum(bool(shown) for _, _, shown in snippets(page)), page.name


def test_links_lead_to_pages_and_headings():
    wrong = [target for page in [*OUTSIDE, *PAGES, DOCS / "SUMMARY.md"] for target in broken(page)]
    assert sum(len(links(page)) for page in PAGES) > 200
    assert wrong == []


def test_a_link_to_nowhere_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A `b_c`: d, e\n\n## Again\n\n## Again\n\n```sh\n# no heading\n[x](gone.md)\n```\n"
                    "[1](#a-b_c-d-e) [2](#again-1) [3](page.md#again) [4](https://example.org) `[5](gone.md)`\n")
    assert anchors(page) == {"a-b_c-d-e", "again", "again-1"}
    assert links(page) == ["#a-b_c-d-e", "#again-1", "page.md#again"] and broken(page) == []
    page.write_text("# A\n[1](gone.md) [2](#b) [3](page.md#a-1) ![4](gone.svg) [5](#a)\n")
    assert broken(page) == [f"page.md: {target}" for target in ("gone.md", "#b", "page.md#a-1", "gone.svg")]


def test_the_book_has_each_page_once():
    listed = links(DOCS / "SUMMARY.md")
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


def test_reference_pages_are_as_the_binary_has_them(tmp_path):
    for page, text in pages(tmp_path).items():
        assert generated(page) == text, f"{page.relative_to(TOP)} {AGAIN}"


def test_the_guide_of_operations_names_each_metric():
    names = set(re.findall(r"^\| `(terrace_\w+)` \|", (DOCS / "metrics.md").read_text(), re.MULTILINE))
    code = [path.read_text() for path in [TOP / "server/src/metrics.rs", *(TOP / "server/src/metrics").glob("*.rs")]]
    assert len(names) > 150 and names == set(re.findall(r'"(terrace_[a-z_]+)"', "".join(code)))
    rows = re.findall(r"^\| (`terrace_[^|]*) \|", (DOCS / "operations.md").read_text(), re.MULTILINE)
    assert names - {name for row in rows for name in names if is_named(name, re.findall(r"`(\w+)`", row))} == set()


def test_the_guide_of_sql_explains_each_column_of_each_system_table():
    page = (DOCS / "system-tables.md").read_text()
    tables = dict(re.findall(r"^## (system\.\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    rows = dict(re.findall(r"^\| `(system\.\w+)` \| .*? \| (.*) \|$", (DOCS / "sql.md").read_text(), re.MULTILINE))
    assert len(tables) > 20 and tables.keys() == rows.keys()
    for name, columns in tables.items():
        assert named_columns(rows[name]) == re.findall(r"^\| `(\w+)` \|", columns, re.MULTILINE), name


def named_columns(cell):
    """The names in a list of columns, without what stands in brackets behind them."""
    inner = re.compile(r"\[([^\]]*)\]\([^()]*\)| ?\([^()]*\)")
    while (without := inner.sub(r"\1", cell)) != cell:
        cell = without
    return [name.strip() for name in cell.split(",")]


def is_named(name, cell):
    """True when a cell of the table has a metric in full, or its end behind another that begins like it."""
    whole = [other for other in cell if other.startswith("terrace_")]
    starts = [name.removesuffix(end) for end in cell if end.startswith("_") and name.endswith(end)]
    return name in whole or any(other.startswith(f"{start}_") for start in starts for other in whole if start != "terrace")


def test_the_page_of_errors_has_each_kind_with_its_codes():
    enum = re.search(r"pub enum ErrorKind \{(.*?)^\}", (TOP / "tier-store/model/src/error.rs").read_text(), re.DOTALL | re.MULTILINE)
    kinds = set(re.findall(r"^    (\w+),$", enum[1], re.MULTILINE))
    of_grpc = dict(re.findall(r"ErrorKind::(\w+) => Code::(\w+),", (TOP / "flight/src/error.rs").read_text()))
    problem = (TOP / "server/src/http/problem.rs").read_text()
    statuses = {kind: set() for kind in kinds}
    for arm, status in re.findall(r"^ +((?:ErrorKind::\w+(?: \| )?)+)(?: if .*?)? => StatusCode::(\w+),$", problem, re.MULTILINE):
        for kind in re.findall(r"::(\w+)", arm):
            statuses[kind].add(str(http.HTTPStatus[status].value))
    for kind in kinds:
        statuses[kind] = statuses[kind] or {str(http.HTTPStatus.INTERNAL_SERVER_ERROR.value)}
    rows = re.findall(r"^\| `([A-Z_]+)` \| ([\d, ]+) \|", (DOCS / "errors.md").read_text(), re.MULTILINE)
    code = lambda kind: re.sub(r"(?<!^)([A-Z])", r"_\1", of_grpc[kind]).upper()
    assert len(kinds) > 10 and len(rows) == len(kinds)
    assert {name: set(numbers.split(", ")) for name, numbers in rows} == {code(kind): statuses[kind] for kind in kinds}


def test_each_figure_of_the_papers_has_a_command_that_there_is():
    page = (DOCS / "benchmarks.md").read_text()
    table = page.partition("## The papers' figures, one by one")[2].partition("Not repeated, and why:")[0]
    rows = re.findall(r"^\|[^|]*\| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", table, re.MULTILINE)[1:]
    rows = [row for row in rows if not set(row[0]) <= set("-")]
    runner = (TOP / "bench/src/experiments/mod.rs").read_text()
    known = set(re.findall(r'experiment\("([\w-]+)"', runner))
    assert len(rows) > 20 and len(known) > 40
    for figure, command, paper, ours in rows:
        names = re.findall(r"`([\w-]+)[^`]*`", command)
        assert names and set(names) <= known, f"{figure}: {command}"
        assert paper.strip() and ours.strip(), figure
    reasons = page.partition("Not repeated, and why:")[2].partition("\n## ")[0].strip().splitlines()
    assert reasons and all(reason.startswith("- ") for reason in reasons)


def test_snippets_have_a_language_that_can_run():
    marked = [fence for page in [*OUTSIDE, *PAGES] for fence in re.findall(r"^```(\w+ .+)$", page.read_text(), re.MULTILINE)]
    assert set(marked) == {"sql run", "sh run", "python run", "text output", "sql syntax", "sql closed"} and len(marked) > 15


def fences(language):
    """Texts of the fences with just these words behind the marks, each with its page."""
    for page in [*OUTSIDE, *PAGES]:
        for text in re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            yield page, text


def test_fences_that_do_not_run_have_a_language_that_is_checked():
    words = {fence for page in [*OUTSIDE, *PAGES] if DOCS / "design" not in page.parents
             for fence in re.findall(r"^```(.+)$", page.read_text(), re.MULTILINE)}
    assert {word for word in words if " " not in word} <= {"sh", "toml", "json", "python", "java", "text"}, "SQL runs, or is a grammar"


@functools.cache
def help_text(*command):
    return terrace(*command, "--help").stdout


def commands_of(*command):
    """Names of the commands below a command."""
    below = help_text(*command).partition("\nCommands:\n")[2].partition("\n\n")[0]
    return set(re.findall(r"^  ([a-z-]+)", below, re.MULTILINE))


def unknown_options(line):
    """Options of a command line of terrace that its help does not have."""
    words = shlex.split(line, comments=True)
    if "terrace" not in words:
        return []
    words, command = words[words.index("terrace") + 1:], []
    while words and words[0] in commands_of(*command):
        command.append(words.pop(0))
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    return [option for option in options if not re.search(rf"(?<![\w-]){option}(?![\w-])", help_text(*command))]


def requests(line):
    """Method and path of each request of curl to the admin API."""
    words = shlex.split(line, comments=True)
    if "curl" in words:
        method = words[words.index("-X") + 1] if "-X" in words else "POST" if "-d" in words else "GET"
        for word in words:
            if found := re.fullmatch(r"(?:https?://)?(?:localhost|127\.0\.0\.1):8080(/api/[^?]*)(?:\?.*)?", word):
                yield method, found[1]


def test_commands_on_pages_have_options_and_paths_that_there_are():
    surface = json.loads((TOP / "tests/fixtures/surface.json").read_text())
    documented = next(answer["paths"] for answer in surface["answers"] if answer["request"] == "GET /api/v1/openapi.json")
    routes = [(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)), methods) for path, methods in documented.items()]
    is_known = lambda method, path: any(re.fullmatch(route, path) and method.lower() in methods for route, methods in routes)
    wrong, checked = [], 0
    for page, text in [*fences("sh"), *fences("sh run")]:
        parsed = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
        wrong += [f"{page.name}: {parsed.stderr}"] if parsed.returncode else []
        # A command may have several lines, and lines with single quotes are parts of one.
        for line in re.sub(r"\\\n\s*", " ", text).splitlines():
            if line.count("'") % 2 == 0 and line.count('"') % 2 == 0:
                checked += 1
                wrong += [f"{page.name}: {line}: {option}" for option in unknown_options(line)]
                wrong += [f"{page.name}: {method} {path}" for method, path in requests(line) if not is_known(method, path)]
    assert checked > 80 and wrong == []


def test_an_option_or_path_that_there_is_not_is_noticed():
    assert unknown_options("terrace placement pin t --columns a --too dram") == ["--too"]
    assert unknown_options("A=1 terrace load 'x' --table=t --nul NA   # --what") == ["--nul"]
    line = "curl -s -X PUT -H 'X: y' -d '{}' localhost:8080/api/v1/tiers/nvm?x=1"
    assert list(requests(line)) == [("PUT", "/api/v1/tiers/nvm")] and list(requests("curl -s https://else:8080/api")) == []


def test_configurations_on_pages_are_valid(tmp_path):
    found = list(fences("toml"))
    for page, text in found:
        tomllib.loads(text)
        # Those of clients are in the guide of the command line.
        if page.name != "shell.md":
            (tmp_path / "terrace.toml").write_text(text)
            checked = terrace("config", "check", tmp_path / "terrace.toml", check=False)
            assert checked.returncode == 0, f"{text}\n{checked.stderr}"
    assert len(found) > 5


def test_other_texts_on_pages_are_what_they_seem():
    for page, text in fences("json"):
        json.loads(text)
    for page, text in fences("python"):
        compile(text, page.name, "exec")


def test_statements_for_servers_with_users_run_there(tmp_path):
    env = {"TERRACE_USER": "root", "TERRACE_PASSWORD": "correct horse"}
    before = "create schema sales; create user ann password 'battery 1'; create user bob password 'battery 2'; create user grafana password 'battery 3';"
    texts = [text for _, text in fences("sql closed")]
    assert texts
    with Server(tmp_path / "data", env=env) as server:
        for text in [before, *texts]:
            (tmp_path / "closed.sql").write_text(text)
            terrace("sql", "--url", f"grpc://{server.flight}", "-f", tmp_path / "closed.sql", env=env)


def parameters():
    for page in [*OUTSIDE, *PAGES]:
        if snippets(page):
            yield pytest.param(page, id=page.stem, marks=[] if page.name in FIRST_PAGES else pytest.mark.deep)


@pytest.mark.parametrize("page", list(parameters()))
def test_snippets_run(page, tmp_path, start_server):
    server = start_server()
    places = {"localhost:8080": server.http, "127.0.0.1:8080": server.http, "127.0.0.1:31337": server.flight}
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/terrace").symlink_to(pathlib.Path(BINARY).absolute())
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path),
                   "TERRACE_URL": f"grpc://{server.flight}", "TERRACE_HTTP_ADDR": server.http}
    commands = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}
    before = [("sh", command, "") for command in BEFORE.findall(page.read_text())]
    for language, text, shown in [*before, *snippets(page)]:
        for written, actual in places.items():
            text = text.replace(written, actual)
        if language == "sql":
            (tmp_path / "snippet.sql").write_text(text)
            command = ["terrace", "sql", "-f", "snippet.sql"]
        else:
            command = [*commands[language], text]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, f"{text}\n{ended.stdout}{ended.stderr}"
        assert first_missing(shown, ended.stdout) is None, f"{first_missing(shown, ended.stdout)} is not in\n{ended.stdout}"

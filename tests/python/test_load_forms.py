"""`terrace load` of JSON, of compressed files, of standard input, of patterns, and of files with different columns."""

import datetime
import gzip
import json
import subprocess

import pyarrow
import pyarrow.parquet
import pytest

import server as process
from server import Server, terrace
from test_load import PART, contents, killed_in_the_middle, place, tables


def compressed(path, data, codec):
    with pyarrow.CompressedOutputStream(str(path), codec) as file:
        file.write(data)


def piped(data, *arguments):
    """Runs a load with bytes as its standard input."""
    command = [process.BINARY, "load", *map(str, arguments)]
    done = subprocess.run(command, input=data, capture_output=True, timeout=600)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def refused(*arguments):
    done = terrace("load", *arguments, check=False)
    assert done.returncode != 0, done.stderr
    return done.stderr


def types(server, table):
    return {field.name: str(field.type) for field in server.query(f"select * from {table} limit 0").schema}


def test_json_files(tmp_path):
    lines = tmp_path / "lines.ndjson"
    lines.write_text('{"z": 1, "name": "Köln \\"am\\" Rhein", "ok": true, "tags": ["a", null], "at": {"lat": 50.9, "lon": 7}}\n'
                     '{"name": null, "z": 2, "at": {"lon": 7.5}, "tags": []}\n'
                     '\n'
                     '{"z": 9223372036854775807, "big": 18446744073709551615, "mixed": 1}\n'
                     '{"mixed": "one", "amount": 1.25e2}\n')
    wanted = [
        {"z": 1, "name": 'Köln "am" Rhein', "ok": True, "tags": ["a", None], "at": {"lat": 50.9, "lon": 7.0}, "big": None, "mixed": None, "amount": None},
        {"z": 2, "name": None, "ok": None, "tags": [], "at": {"lat": None, "lon": 7.5}, "big": None, "mixed": None, "amount": None},
        {"z": 2**63 - 1, "name": None, "ok": None, "tags": None, "at": None, "big": "18446744073709551615", "mixed": "1", "amount": None},
        {"z": None, "name": None, "ok": None, "tags": None, "at": None, "big": None, "mixed": "one", "amount": 125.0},
    ]
    # The same rows in a list over several lines, as `json.dump(.., indent=2)` and jq write it.
    pretty = tmp_path / "pretty.json"
    pretty.write_text(json.dumps([json.loads(line) for line in lines.read_text().splitlines() if line], indent=2))
    with Server(tmp_path / "data") as server:
        for path in lines, pretty:
            terrace("load", path, *place(server))
            found = server.query(f"select * from {path.stem} order by z nulls last").to_pylist()
            assert found == wanted, path
            assert list(types(server, path.stem)) == list(wanted[0])
            assert types(server, path.stem)["z"] == "int64" and types(server, path.stem)["amount"] == "double"
        terrace("load", lines, "--table", "parts", "--resume", "--part-rows", "1", *place(server))
        assert server.query("select * from parts order by z nulls last").to_pylist() == wanted
        for name, text, words in [
            ("a.json", '[{"a": 1}', "its list has no end"),
            ("b.json", '[{"a": 1} {"a": 2}]', "no comma"),
            ("c.json", "[1, 2]", "no object"),
            ("d.ndjson", '{"a": 1}\n{"a": [1]}\n', "row 2: field 'a' is a number in one row and a list in another"),
            ("e.ndjson", '{"a": 1}\n{"a": \n', "EOF"),
            ("f.ndjson", '{"a": {}}\n', "only objects without a field"),
            ("f2.ndjson", '{"a": 1}\n' * 30 + '{"a": 2.5}\n', "'2.5'"),
            ("f3.csv", "a,b,a\n1,2,3\n", "two columns 'a'"),
            ("g.ndjson", '{"a": 1}\n' * 30 + '{"b": 1}\n', "--infer-rows"),
        ]:
            (tmp_path / name).write_text(text)
            said = refused(tmp_path / name, "--infer-rows", "20", *place(server))
            assert name in said and words in said, said
        assert tables(server) == {"lines", "pretty", "parts"}
        terrace("load", tmp_path / "g.ndjson", "--infer-rows", "0", *place(server))
        assert server.query("select sum(a) as a, sum(b) as b from g").to_pylist() == [{"a": 30, "b": 1}]


def test_compressed_files_have_the_rows_of_plain_ones(tmp_path):
    rows = [{"k": k, "t": f"row {k}"} for k in range(50_000)]
    texts = {
        "csv": "k,t\n" + "".join(f"{row['k']},{row['t']}\n" for row in rows),
        "ndjson": "".join(json.dumps(row) + "\n" for row in rows),
        "json": json.dumps(rows),
    }
    with Server(tmp_path / "data") as server:
        for form, text in texts.items():
            for ending, codec in ("gz", "gzip"), ("zst", "zstd"), ("bz2", "bz2"):
                path = tmp_path / f"{form}_{ending}.{form}.{ending}"
                compressed(path, text.encode(), codec)
                terrace("load", path, *place(server))
                found = server.query(f"select count(*) as n, sum(k) as k, max(t) as t from {form}_{ending}").to_pylist()
                assert found == [{"n": 50_000, "k": sum(range(50_000)), "t": "row 9999"}], path
        # Two members one behind the other.
        both = tmp_path / "both.csv.gz"
        both.write_bytes(gzip.compress(texts["csv"].encode()) + gzip.compress(b"50000,last\n"))
        terrace("load", both, *place(server))
        assert server.query("select count(*) as n, max(k) as k from both").to_pylist() == [{"n": 50_001, "k": 50_000}]
        cut = tmp_path / "cut.csv.gz"
        cut.write_bytes(gzip.compress(texts["csv"].encode())[:-20])
        assert "cut.csv.gz" in refused(cut, *place(server)) and "cut" not in tables(server)
        odd = tmp_path / "odd.parquet.gz"
        odd.write_bytes(b"")
        assert "--format" in refused(odd, *place(server))
        # A name that tells nothing.
        export = tmp_path / "export.txt"
        compressed(export, texts["csv"].encode(), "gzip")
        terrace("load", export, "--format", "csv.gz", *place(server))
        assert server.query("select count(*) as n from export").to_pylist() == [{"n": 50_000}]


def test_a_killed_load_of_compressed_files_goes_on(tmp_path):
    folder = tmp_path / "events"
    folder.mkdir()
    for part in range(4):
        lines = "".join(f'{{"k": {k}, "s": "text {k % 977}"}}\n' for k in range(part * 60_000, (part + 1) * 60_000))
        compressed(folder / f"p{part}.ndjson.{'gz' if part % 2 else 'zst'}", lines.encode(), "gzip" if part % 2 else "zstd")
    with Server(tmp_path / "data") as server:
        killed_in_the_middle(folder, server, "t")
        done = terrace("load", folder, "--table", "t", "--resume", "--part-rows", PART, *place(server))
        assert "resuming after" in done.stderr, done.stderr
        terrace("load", folder, "--table", "plain", *place(server))
        assert contents(server, "t") == contents(server, "plain") and contents(server, "t").num_rows == 240_000


def test_standard_input(tmp_path):
    # More than the start that decides the columns.
    rows = 400_000
    text = "k,t\n" + "".join(f"{k},a text of some length {k}\n" for k in range(rows))
    assert len(text) > 10 << 20
    wanted = [{"n": rows, "k": sum(range(rows)), "t": f"a text of some length {rows - 1}"}]
    with Server(tmp_path / "data") as server:

        def load(data, form, table, *more):
            code, _, said = piped(data, "-", "--format", form, "--table", table, *place(server), *more)
            assert code == 0, said
            last = f"(select t from {table} order by k desc limit 1)"
            return server.query(f"select count(*) as n, sum(k) as k, {last} as t from {table}").to_pylist()

        assert load(text.encode(), "csv", "plain") == wanted
        assert load(gzip.compress(text.encode(), 1), "csv.gz", "zipped") == wanted
        objects = json.dumps([{"k": k, "t": f"a text of some length {k}"} for k in range(rows)])
        assert load(objects.encode(), "json", "listed") == wanted
        assert load(b"7\tx\n", "tsv", "small", "--no-header", "--columns", "k,t") == [{"n": 1, "k": 7, "t": "x"}]
        # A line break within quotes at the end of the start.
        quoted = "k,t\n" + "".join(f'{k},"two\nlines"\n' for k in range(700_000))
        assert load(quoted.encode(), "csv", "quoted") == [{"n": 700_000, "k": sum(range(700_000)), "t": "two\nlines"}]
        parquet = tmp_path / "p.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"k": [1]}), parquet)
        for data, arguments, words in [
            (b"", ["-", "--format", "csv"], "--table"),
            (b"", ["-", "--table", "x"], "--format"),
            (parquet.read_bytes(), ["-", "--table", "x", "--format", "parquet"], "csv, tsv, ndjson or json"),
            (b"k\n1\n", ["-", "--table", "x", "--format", "csv", "--resume"], "cannot be"),
            (b"k\n1\n", ["-", "-", "--table", "x", "--format", "csv"], "once"),
            (b"k\n1\n", ["-", "--table", "x", "--format", "xml"], "csv.gz"),
            (gzip.compress(b"k\n1\n")[:-4], ["-", "--table", "x", "--format", "csv.gz"], "standard input"),
        ]:
            code, _, said = piped(data, *arguments, *place(server))
            assert code != 0 and words in said, (arguments, said)
        assert "x" not in tables(server)
    code, _, said = piped(b"k,t\n1,a\n", "-", "--format", "csv", "--table", "local", "--data-dir", tmp_path / "local")
    assert code == 0, said
    with Server(tmp_path / "local") as server:
        assert server.query("select * from local").to_pylist() == [{"k": 1, "t": "a"}]


def test_patterns_in_quotes(tmp_path):
    root = tmp_path / "logs"
    for day, values in ("2024-01-01", [1, 2]), ("2024-01-02", [3]), ("2025-01-01", [4]):
        (root / f"day={day}").mkdir(parents=True)
        pyarrow.parquet.write_table(pyarrow.table({"k": values}), root / f"day={day}" / "a.parquet")
        (root / f"day={day}" / "_SUCCESS").write_text("")
        (root / f"day={day}" / "b.csv").write_text("k\n9\n")
    with Server(tmp_path / "data") as server:
        terrace("load", f"{root}/day=2024-*/*.parquet", *place(server))
        assert server.query("select k, day from logs order by k").to_pylist() == [
            {"k": 1, "day": datetime.date(2024, 1, 1)}, {"k": 2, "day": datetime.date(2024, 1, 1)}, {"k": 3, "day": datetime.date(2024, 1, 2)}]
        terrace("load", f"{root}/**/*.parquet", "--table", "every", "--resume", "--part-rows", "1", *place(server))
        assert sorted(server.query("select k from every")["k"].to_pylist()) == [1, 2, 3, 4]
        terrace("load", f"{root}/day=2025*/*", "--table", "late", *place(server))
        assert sorted(server.query("select k from late")["k"].to_pylist()) == [4, 9]
        assert "no file matches" in refused(f"{root}/*.csv", *place(server))
        assert "no pattern" in refused(f"{root}/a***", *place(server))
        # A file of that name is itself.
        odd = tmp_path / "odd[1].csv"
        odd.write_text("k\n1\n")
        terrace("load", odd, *place(server))
        assert server.query("select k from odd_1_").to_pylist() == [{"k": 1}]


def test_tables_have_the_columns_of_all_files(tmp_path):
    folder = tmp_path / "sales"
    folder.mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"k": pyarrow.array([1, 2], pyarrow.int64()), "n": pyarrow.array([1.5, None])}), folder / "a.parquet")
    (folder / "b.csv").write_text("shop,k\nBern,3\n")
    (folder / "c.ndjson").write_text('{"k": 4, "more": {"x": 1}}\n')
    (folder / "d.ndjson").write_text('{"more": {"y": "z"}, "k": 5}\n')
    wanted = [
        {"k": 1, "n": 1.5, "shop": None, "more": None}, {"k": 2, "n": None, "shop": None, "more": None},
        {"k": 3, "n": None, "shop": "Bern", "more": None}, {"k": 4, "n": None, "shop": None, "more": {"x": 1, "y": None}},
        {"k": 5, "n": None, "shop": None, "more": {"x": None, "y": "z"}}]
    with Server(tmp_path / "data") as server:
        said = terrace("load", folder, *place(server)).stderr
        assert "column 'shop' is in 1 of 4 files, and null in the others" in said and "column 'k'" not in said, said
        assert contents(server, "sales").to_pylist() == wanted
        terrace("load", folder, "--table", "parts", "--resume", "--part-rows", "2", *place(server))
        assert contents(server, "parts").to_pylist() == wanted
        # As the shell expands a pattern.
        terrace("load", *sorted(folder.iterdir()), "--table", "given", *place(server))
        assert contents(server, "given").to_pylist() == wanted
        shown = server.query("select is_nullable from information_schema.columns where table_name = 'given' and column_name = 'shop'")
        assert shown["is_nullable"].to_pylist() == ["YES"]
        # What cannot be one column.
        (folder / "e.csv").write_text("k,shop\nsix,Bern\n")
        for more in [], ["--resume"]:
            said = refused(folder, "--table", "wrong", *more, *place(server))
            assert "e.csv" in said and "a.parquet" in said and "VARCHAR here and BIGINT in" in said, said
        said = refused(folder / "a.parquet", folder / "e.csv", "--table", "wrong", *place(server))
        assert "e.csv" in said and "a.parquet" in said, said
        assert tables(server) == {"sales", "parts", "given"}
        # A value that only its row shows names both, too.
        (folder / "e.csv").unlink()
        pyarrow.parquet.write_table(pyarrow.table({"k": [6.5]}), folder / "f.parquet")
        said = refused(folder, "--table", "wrong", *place(server))
        assert "f.parquet" in said and "a.parquet" in said and "DOUBLE here and BIGINT in" in said, said
        assert tables(server) == {"sales", "parts", "given"}


def test_a_dry_run_shows_what_there_is_and_loads_nothing(tmp_path):
    folder = tmp_path / "sales"
    folder.mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"day": [datetime.date(2024, 1, 1)] * 3, "k": [1, 2, 3]}), folder / "a.parquet")
    (folder / "b.csv").write_text("k,price,note\n4,2.5,\n")
    # No server is there.
    nowhere = ["--url", "grpc://127.0.0.1:1"]
    shown = terrace("load", folder, "--dry-run", "--cluster-by", "day", *nowhere).stdout.splitlines()
    size = (folder / "b.csv").stat().st_size
    assert shown[0].startswith("table sales: 2 files, ") and shown[0].endswith("rows not counted"), shown
    assert shown[1].split()[:2] == [str(folder / "a.parquet"), "parquet"] and shown[1].endswith("3 rows"), shown
    assert shown[2].split() == [str(folder / "b.csv"), "csv", str(size), "B"], shown
    assert [line.split(None, 1) for line in shown[3:]] == [
        ["day", "DATE  (in 1 of 2 files, clustered)"],
        ["k", "BIGINT"],
        ["price", "DOUBLE  (in 1 of 2 files)"],
        ["note", "VARCHAR  (no value decides its type, in 1 of 2 files)"]], shown
    whole = terrace("load", folder / "a.parquet", "--dry-run", *nowhere).stdout
    assert ", 3 rows\n" in whole.splitlines(keepends=True)[0], whole
    shown = terrace("load", "tpch:0.1", "--dry-run", *nowhere).stdout
    assert shown.count("\ntable ") == 7 and "lineitem: generated, about" in shown, shown
    code, shown, said = piped(b'{"k": 1}\n', "-", "--format", "ndjson", "--table", "p", "--dry-run", *nowhere)
    assert code == 0 and shown.splitlines()[1].split() == ["standard", "input", "json", "-"], (shown, said)
    assert "no such column" in refused(folder, "--dry-run", "--cluster-by", "shop", *nowhere)
    data = tmp_path / "data"
    terrace("load", folder, "--dry-run", "--data-dir", data)
    assert not data.exists()


def test_options_of_text(tmp_path):
    bare = tmp_path / "bare.csv"
    bare.write_text("1;a;x\n2;b;NA\n")
    with Server(tmp_path / "data") as server:
        terrace("load", bare, "--no-header", "--columns", "k,name, note", "--null", "NA", "--delimiter", ";", *place(server))
        assert server.query("select * from bare order by k").to_pylist() == [
            {"k": 1, "name": "a", "note": "x"}, {"k": 2, "name": "b", "note": None}]
        head = tmp_path / "head.tsv"
        head.write_text("a\tb\n1\t2\n")
        terrace("load", head, "--columns", "x,y", *place(server))
        assert server.query("select * from head").to_pylist() == [{"x": 1, "y": 2}]
        assert "--columns names 3" in refused(head, "--columns", "x,y,z", "--replace", *place(server))
        assert "cannot be used with" in refused(head, "--no-header", "--header", "true", *place(server))
        late = tmp_path / "late.csv"
        late.write_text("v\n" + "1\n" * 100 + "2.5\n")
        assert "2.5" in refused(late, "--infer-rows", "100", *place(server))
        terrace("load", late, "--infer-rows", "101", *place(server))
        assert types(server, "late") == {"v": "double"}


@pytest.mark.parametrize("format", ["csv", "json"])
def test_an_empty_text_is_no_table(tmp_path, format):
    empty = tmp_path / f"empty.{format}"
    empty.write_text("")
    with Server(tmp_path / "data") as server:
        said = refused(empty, *place(server))
        assert "column" in said, said
        assert tables(server) == set()

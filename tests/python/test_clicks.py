"""Queries in the manner of ClickBench: answers equal DuckDB's at random placements."""

import random

import duckdb
import pytest

from server import Server
from test_tpch import canonical, equal

SEED = 20261121

# A web log: ids without order, few values beside many, texts that are mostly empty or share their beginning.
CLICKS = """
    SELECT i AS watch_id, CAST(h % 2 AS SMALLINT) AS java_enable, CAST(h // 7 % 3 AS SMALLINT) AS age_band,
        TIMESTAMP '2013-07-01' + to_seconds(CAST(i * 5 AS BIGINT)) AS event_time,
        CAST(DATE '2013-07-01' + CAST(i * 5 // 86400 AS INTEGER) AS DATE) AS event_date,
        CAST(h // 11 % 900 AS INTEGER) AS counter_id, CAST(power(h // 13 % 1000, 3) AS BIGINT) AS user_id,
        CAST(h // 17 % 230 AS INTEGER) AS region_id, CAST(h // 19 % 90 AS SMALLINT) AS adv_engine_id,
        CAST(h // 23 % 2600 AS SMALLINT) AS resolution_width,
        CASE WHEN h // 29 % 9 = 0 THEN concat('phrase ', h // 31 % 500) ELSE '' END AS search_phrase,
        concat('http://', CASE WHEN h // 37 % 5 = 0 THEN 'google' ELSE 'example' END, '.com/', h // 41 % 3000, '/page') AS url,
        CASE WHEN h // 43 % 3 = 0 THEN NULL ELSE concat('Title ', CASE WHEN h // 47 % 8 = 0 THEN 'Google ' END, h // 53 % 700) END
            AS title,
        CASE WHEN h // 59 % 4 = 0 THEN concat('https://www.ref', h // 61 % 40, '.org/x') ELSE '' END AS referer
    FROM (SELECT i, hash(i) // 1024 AS h FROM range(300000) AS r(i))"""

CLICK_QUERIES = [
    "SELECT count(*) FROM hits",
    "SELECT count(*) FROM hits WHERE adv_engine_id <> 0",
    "SELECT sum(adv_engine_id), count(*), avg(resolution_width) FROM hits",
    "SELECT avg(user_id) FROM hits",
    "SELECT count(DISTINCT user_id) FROM hits",
    "SELECT count(DISTINCT search_phrase) FROM hits",
    "SELECT min(event_date), max(event_date) FROM hits",
    "SELECT adv_engine_id, count(*) FROM hits WHERE adv_engine_id <> 0 GROUP BY adv_engine_id",
    "SELECT region_id, count(DISTINCT user_id) AS u FROM hits GROUP BY region_id ORDER BY u DESC, region_id LIMIT 10",
    "SELECT region_id, sum(adv_engine_id), count(*) AS c, avg(resolution_width), count(DISTINCT user_id) FROM hits "
    "GROUP BY region_id ORDER BY c DESC, region_id LIMIT 10",
    "SELECT search_phrase, count(*) AS c FROM hits WHERE search_phrase <> '' GROUP BY search_phrase "
    "ORDER BY c DESC, search_phrase LIMIT 10",
    "SELECT user_id, search_phrase, count(*) AS c FROM hits GROUP BY user_id, search_phrase "
    "ORDER BY c DESC, user_id, search_phrase LIMIT 10",
    "SELECT user_id, extract(minute FROM event_time) AS m, search_phrase, count(*) AS c FROM hits "
    "GROUP BY user_id, m, search_phrase ORDER BY c DESC, user_id, m, search_phrase LIMIT 10",
    "SELECT user_id FROM hits WHERE user_id = 729000000",
    "SELECT count(*) FROM hits WHERE url LIKE '%google%'",
    "SELECT count(*) FROM hits WHERE url LIKE 'http://%google%/7%page'",
    "SELECT search_phrase, min(url), count(*) AS c FROM hits WHERE url LIKE '%google%' AND search_phrase <> '' "
    "GROUP BY search_phrase ORDER BY c DESC, search_phrase LIMIT 10",
    "SELECT search_phrase, min(url), min(title), count(*) AS c, count(DISTINCT user_id) FROM hits "
    "WHERE title LIKE '%Google%' AND url NOT LIKE '%.google.%' AND search_phrase <> '' "
    "GROUP BY search_phrase ORDER BY c DESC, search_phrase LIMIT 10",
    "SELECT * FROM hits WHERE url LIKE '%google%9%' ORDER BY event_time LIMIT 10",
    "SELECT * FROM hits WHERE watch_id = 211223",
    "SELECT * FROM hits ORDER BY user_id DESC, watch_id LIMIT 5",
    "SELECT search_phrase FROM hits WHERE search_phrase <> '' ORDER BY event_time, search_phrase LIMIT 10",
    "SELECT counter_id, avg(length(url)) AS l, count(*) AS c FROM hits WHERE url <> '' GROUP BY counter_id "
    "HAVING count(*) > 300 ORDER BY l DESC, counter_id LIMIT 25",
    "SELECT sum(resolution_width), sum(resolution_width + 1), sum(resolution_width + 2) FROM hits",
    "SELECT watch_id, user_id, count(*) AS c FROM hits WHERE search_phrase <> '' GROUP BY watch_id, user_id "
    "ORDER BY c DESC, watch_id LIMIT 10",
    "SELECT url, count(*) AS c FROM hits WHERE counter_id = 62 AND event_date BETWEEN DATE '2013-07-03' AND DATE '2013-07-14' "
    "AND java_enable = 0 GROUP BY url ORDER BY c DESC, url LIMIT 10",
    "SELECT date_trunc('minute', event_time) AS m, count(*) FROM hits WHERE counter_id = 62 "
    "AND event_date >= DATE '2013-07-14' GROUP BY m ORDER BY m LIMIT 10 OFFSET 100",
    "SELECT title, count(*) AS c FROM hits WHERE title IS NOT NULL AND referer <> '' GROUP BY title ORDER BY c DESC, title LIMIT 10",
    "SELECT CASE WHEN adv_engine_id = 0 THEN referer ELSE '' END AS s, url AS d, count(*) AS c FROM hits WHERE counter_id < 20 "
    "GROUP BY s, d ORDER BY c DESC, s, d LIMIT 10 OFFSET 20",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    options = ["--dram-budget", "1GiB", "--nvm-emulated", "--nvm-capacity", "256MiB"]
    with Server(tmp_path_factory.mktemp("clicks"), *options) as running:
        yield running


@pytest.fixture(scope="module")
def oracle(server):
    """DuckDB with the same table, which Terrace got from it."""
    oracle = duckdb.connect()
    oracle.execute(f"CREATE TABLE hits AS {CLICKS}")
    with server.connect() as connection, connection.cursor() as cursor:
        reader = oracle.sql("FROM hits").to_arrow_reader(50_000)
        cursor.adbc_ingest("hits", reader, mode="create")
    return oracle


def test_answers_equal_duckdb(server, oracle):
    draw = random.Random(SEED)
    for budget in ["1GiB", 0, None, None]:
        size = draw.randrange(1 << 20, 30 << 20) if budget is None else budget
        server.budget("dram", size)
        server.budget("nvm", draw.randrange(0, 20 << 20) if budget is None else 0)
        server.epoch()
        answered = 0
        for sql in CLICK_QUERIES:
            table = server.query(sql)
            found = canonical(zip(*(column.to_pylist() for column in table.columns))) if table.num_rows else []
            expected = canonical(oracle.execute(sql).fetchall())
            answered += len(expected) > 0
            assert len(found) == len(expected), f"{sql}: {len(found)} rows, DuckDB has {len(expected)}; budget {size}"
            for mine, theirs in zip(found, expected):
                assert all(map(equal, mine, theirs)), f"{sql}: {mine} is not {theirs}; budget {size}"
        assert answered > 0.8 * len(CLICK_QUERIES), "the data have what the queries look for"

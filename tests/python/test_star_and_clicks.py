"""The star schema benchmark and queries in the manner of ClickBench: answers equal DuckDB's at random placements."""

import random

import duckdb
import pytest

from server import Server, terrace
from test_tpch import canonical, equal

SEED = 20261121

# The star schema, made of TPC-H as its paper does (O'Neil and others, 2009); its dates are numbers.
STAR = {
    "dates": """SELECT CAST(strftime(d, '%Y%m%d') AS INTEGER) AS d_datekey, CAST(year(d) AS INTEGER) AS d_year,
        CAST(year(d) * 100 + month(d) AS INTEGER) AS d_yearmonthnum, strftime(d, '%b%Y') AS d_yearmonth,
        CAST(week(d) AS INTEGER) AS d_weeknuminyear
        FROM (SELECT CAST(unnest(generate_series(DATE '1992-01-01', DATE '1998-12-31', INTERVAL 1 DAY)) AS DATE) AS d)""",
    "customers": """SELECT c_custkey, concat(substr(n_name, 1, 9), c_custkey % 10) AS c_city, n_name AS c_nation,
        r_name AS c_region FROM customer JOIN nation ON c_nationkey = n_nationkey JOIN region ON n_regionkey = r_regionkey""",
    "suppliers": """SELECT s_suppkey, concat(substr(n_name, 1, 9), s_suppkey % 10) AS s_city, n_name AS s_nation,
        r_name AS s_region FROM supplier JOIN nation ON s_nationkey = n_nationkey JOIN region ON n_regionkey = r_regionkey""",
    "parts": """SELECT p_partkey, concat('MFGR#', m) AS p_mfgr, concat('MFGR#', m, c) AS p_category,
        concat('MFGR#', m, c, p_partkey % 40 + 1) AS p_brand1
        FROM (SELECT p_partkey, p_partkey % 5 + 1 AS m, p_partkey // 5 % 5 + 1 AS c FROM part)""",
    "lineorder": """SELECT l_orderkey AS lo_orderkey, l_linenumber AS lo_linenumber, o_custkey AS lo_custkey,
        l_partkey AS lo_partkey, l_suppkey AS lo_suppkey, CAST(strftime(o_orderdate, '%Y%m%d') AS INTEGER) AS lo_orderdate,
        CAST(l_quantity AS INTEGER) AS lo_quantity, l_extendedprice AS lo_extendedprice,
        CAST(l_discount * 100 AS INTEGER) AS lo_discount,
        CAST(l_extendedprice * (1 - l_discount) AS DECIMAL(15, 2)) AS lo_revenue,
        CAST(l_extendedprice * 0.6 AS DECIMAL(15, 2)) AS lo_supplycost
        FROM lineitem JOIN orders ON l_orderkey = o_orderkey""",
}

FLIGHT_1 = "SELECT sum(lo_extendedprice * lo_discount) AS revenue FROM lineorder, dates WHERE lo_orderdate = d_datekey AND "
FLIGHT_2 = """SELECT sum(lo_revenue) AS r, d_year, p_brand1 FROM lineorder, dates, parts, suppliers
    WHERE lo_orderdate = d_datekey AND lo_partkey = p_partkey AND lo_suppkey = s_suppkey AND {} GROUP BY d_year, p_brand1"""
FLIGHT_3 = """SELECT {0}, d_year, sum(lo_revenue) AS r FROM customers, lineorder, suppliers, dates
    WHERE lo_custkey = c_custkey AND lo_suppkey = s_suppkey AND lo_orderdate = d_datekey AND {1} GROUP BY {0}, d_year"""
FLIGHT_4 = """SELECT d_year, {0}, sum(lo_revenue - lo_supplycost) AS p FROM dates, customers, suppliers, parts, lineorder
    WHERE lo_custkey = c_custkey AND lo_suppkey = s_suppkey AND lo_partkey = p_partkey AND lo_orderdate = d_datekey
    AND c_region = 'AMERICA' AND {1} GROUP BY d_year, {0}"""
CITIES = "IN ('UNITED KI1', 'UNITED KI5')"
STAR_QUERIES = [
    FLIGHT_1 + "d_year = 1993 AND lo_discount BETWEEN 1 AND 3 AND lo_quantity < 25",
    FLIGHT_1 + "d_yearmonthnum = 199401 AND lo_discount BETWEEN 4 AND 6 AND lo_quantity BETWEEN 26 AND 35",
    FLIGHT_1 + "d_weeknuminyear = 6 AND d_year = 1994 AND lo_discount BETWEEN 5 AND 7 AND lo_quantity BETWEEN 26 AND 35",
    FLIGHT_2.format("p_category = 'MFGR#12' AND s_region = 'AMERICA'"),
    FLIGHT_2.format("p_brand1 BETWEEN 'MFGR#2221' AND 'MFGR#2228' AND s_region = 'ASIA'"),
    FLIGHT_2.format("p_brand1 = 'MFGR#2239' AND s_region = 'EUROPE'"),
    FLIGHT_3.format("c_nation, s_nation", "c_region = 'ASIA' AND s_region = 'ASIA' AND d_year BETWEEN 1992 AND 1997"),
    FLIGHT_3.format("c_city, s_city", "c_nation = 'UNITED STATES' AND s_nation = 'UNITED STATES' AND d_year < 1998"),
    FLIGHT_3.format("c_city, s_city", f"c_city {CITIES} AND s_city {CITIES} AND d_year BETWEEN 1992 AND 1997"),
    FLIGHT_3.format("c_city, s_city", f"c_city {CITIES} AND s_city {CITIES} AND d_yearmonth = 'Dec1997'"),
    FLIGHT_4.format("c_nation", "s_region = 'AMERICA' AND p_mfgr IN ('MFGR#1', 'MFGR#2')"),
    FLIGHT_4.format("s_nation, p_category", "s_region = 'AMERICA' AND d_year IN (1997, 1998) AND p_mfgr < 'MFGR#3'"),
    FLIGHT_4.format("s_city, p_brand1", "s_nation = 'UNITED STATES' AND d_year IN (1997, 1998) AND p_category = 'MFGR#14'"),
]

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
    data = tmp_path_factory.mktemp("star")
    terrace("load", "tpch:0.05", "--data-dir", data)
    with Server(data, "--dram-budget", "1GiB", "--nvm-emulated", "--nvm-capacity", "256MiB") as running:
        yield running


@pytest.fixture(scope="module")
def oracle(server):
    """DuckDB with the same tables, which Terrace got from it."""
    oracle = duckdb.connect()
    for name in ["customer", "lineitem", "nation", "orders", "part", "region", "supplier"]:
        table = server.query(f"SELECT * FROM {name}")
        oracle.register(f"{name}_rows", table)
        oracle.execute(f"CREATE TABLE {name} AS FROM {name}_rows")
    for name, sql in {**STAR, "hits": CLICKS}.items():
        oracle.execute(f"CREATE TABLE {name} AS {sql}")
        with server.connect() as connection, connection.cursor() as cursor:
            reader = oracle.sql(f"FROM {name}").to_arrow_reader(50_000)
            cursor.adbc_ingest(name, reader, mode="create")
    return oracle


@pytest.mark.parametrize("queries", [STAR_QUERIES, CLICK_QUERIES], ids=["star", "clicks"])
def test_answers_equal_duckdb(server, oracle, queries):
    draw = random.Random(SEED)
    for budget in ["1GiB", 0, None, None]:
        size = draw.randrange(1 << 20, 30 << 20) if budget is None else budget
        server.budget("dram", size)
        server.budget("nvm", draw.randrange(0, 20 << 20) if budget is None else 0)
        server.epoch()
        answered = 0
        for sql in queries:
            table = server.query(sql)
            found = canonical(zip(*(column.to_pylist() for column in table.columns))) if table.num_rows else []
            expected = canonical(oracle.execute(sql).fetchall())
            answered += len(expected) > 0
            assert len(found) == len(expected), f"{sql}: {len(found)} rows, DuckDB has {len(expected)}; budget {size}"
            for mine, theirs in zip(found, expected):
                assert all(map(equal, mine, theirs)), f"{sql}: {mine} is not {theirs}; budget {size}"
        assert answered > 0.8 * len(queries), "the data have what the queries look for"

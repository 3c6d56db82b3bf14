"""The texts of the queries, and their parts."""

import pathlib
import re

TOP = pathlib.Path(__file__).parents[2]
TPCDS = {n: (TOP / f"tests/tpcds/queries/q{n:02}.sql").read_text().strip().rstrip(";") for n in range(1, 100)}
TPCH = {n: (TOP / f"server/src/tpch/q{n}.sql").read_text().strip().rstrip(";") for n in range(1, 23)}

LIMIT = re.compile(r"\s+LIMIT\s+(\d+)\s*$", re.IGNORECASE)


def without_limit(sql: str) -> str:
    return LIMIT.sub("", sql)


def limit(sql: str) -> int | None:
    found = LIMIT.search(sql)
    return int(found.group(1)) if found else None


def order_by(sql: str) -> list[str]:
    """The expressions that the whole query is ordered by, without their qualifiers."""
    clause = re.split(r"\border\s+by\b", without_limit(sql), flags=re.IGNORECASE)[-1]
    items, depth = [""], 0
    for char in clause:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if depth < 0:
            return []  # That of a subquery: the query has none.
        if char == "," and depth == 0:
            items.append("")
        else:
            items[-1] += char
    if clause == without_limit(sql):
        return []
    direction = re.compile(r"(\s+(asc|desc))?(\s+nulls\s+(first|last))?\s*$", re.IGNORECASE)
    return [re.sub(r"\b[a-z]\w*\.(\w+)", r"\1", direction.sub("", item).strip(), flags=re.I) for item in items]

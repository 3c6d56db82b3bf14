"""Answers as multisets of rows, with a tolerance where the two sides compute in different types.

DuckDB averages and divides decimals as doubles, Terrace as decimals: such columns may differ in the last place of the
decimal, and doubles by 1e-9 of their value. All others must be equal.
"""

import math

import pyarrow as pa


def unmatched(mine: pa.Table, theirs: pa.Table, places: int = 0) -> list[tuple]:
    """The rows of `mine` that have no partner of their own in `theirs`."""
    tolerances = tolerances_of(mine, theirs, places)
    inexact = [t for t in tolerances if t is not None]
    partners, lonely = grouped(theirs, tolerances), []
    for key, rows in grouped(mine, tolerances).items():
        candidates = partners.get(key, [])
        for row in rows:
            at = next((n for n, other in enumerate(candidates) if all(map(equal, row, other, inexact))), None)
            if at is None:
                lonely.append((key, row, candidates[:3]))
            else:
                candidates.pop(at)
    return lonely


def same_sequence(mine: pa.Table, theirs: pa.Table, places: int = 0) -> bool:
    """True when the rows are the same in the same order."""
    tolerances = tolerances_of(mine, theirs, places)
    rows = zip(tuples(mine), tuples(theirs), strict=True)
    return all(all(map(equal, a, b, tolerances)) for a, b in rows)


def tolerances_of(mine: pa.Table, theirs: pa.Table, places: int) -> list[float | None]:
    """How far the values of each column may be apart; None where they must be equal."""
    return [tolerance(a.type, b.type, places) for a, b in zip(mine.schema, theirs.schema, strict=True)]


def tolerance(mine: pa.DataType, theirs: pa.DataType, places: int) -> float | None:
    if not (pa.types.is_floating(mine) or pa.types.is_floating(theirs)):
        return None
    scale = min((t.scale for t in (mine, theirs) if pa.types.is_decimal(t)), default=None)
    return 1e-9 if scale is None else 1.01 * 10.0 ** (places - scale)


def tuples(table: pa.Table) -> list[tuple]:
    return list(zip(*(column.to_pylist() for column in table.columns)))


def grouped(table: pa.Table, tolerances) -> dict[tuple, list[tuple]]:
    """The inexact values of the rows, by their exact ones."""
    groups = {}
    for row in tuples(table):
        key = tuple(v for v, t in zip(row, tolerances) if t is None)
        groups.setdefault(key, []).append(tuple(v for v, t in zip(row, tolerances) if t is not None))
    return groups


def equal(mine, theirs, far) -> bool:
    if far is None or mine is None or theirs is None:
        return mine == theirs
    return math.isclose(float(mine), float(theirs), rel_tol=1e-9, abs_tol=far)

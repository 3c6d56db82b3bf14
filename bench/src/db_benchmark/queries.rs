//! The queries, in the words of the solution for DuckDB, and the sums by which their answers are compared.
//!
//! The table of the queries that group is called `g1`, so that it lies in one database with the `x` of the joins.

/// A query.
#[derive(Debug, Clone, Copy)]
pub struct Query {
    /// The name by which sides are asked for it.
    pub name: &'static str,
    /// Its text.
    pub sql: &'static str,
    /// Expressions over its columns; the answers of two sides are equal when the sums over all rows are.
    sums: &'static [&'static str],
}

/// The ten queries that group rows.
pub static GROUP_BY: [Query; 10] = [
    Query {
        name: "groupby1",
        sql: "SELECT id1, sum(v1) AS v1 FROM g1 GROUP BY id1",
        sums: &["v1", "CAST(substr(id1, 3) AS BIGINT) * v1"],
    },
    Query {
        name: "groupby2",
        sql: "SELECT id1, id2, sum(v1) AS v1 FROM g1 GROUP BY id1, id2",
        sums: &["CAST(substr(id1, 3) AS BIGINT) * v1", "CAST(substr(id2, 3) AS BIGINT) * v1"],
    },
    Query {
        name: "groupby3",
        sql: "SELECT id3, sum(v1) AS v1, avg(v3) AS v3 FROM g1 GROUP BY id3",
        sums: &["CAST(substr(id3, 3) AS BIGINT) * v1", "CAST(substr(id3, 3) AS BIGINT) * v3"],
    },
    Query {
        name: "groupby4",
        sql: "SELECT id4, avg(v1) AS v1, avg(v2) AS v2, avg(v3) AS v3 FROM g1 GROUP BY id4",
        sums: &["id4 * v1", "id4 * v2", "id4 * v3"],
    },
    Query {
        name: "groupby5",
        sql: "SELECT id6, sum(v1) AS v1, sum(v2) AS v2, sum(v3) AS v3 FROM g1 GROUP BY id6",
        sums: &["CAST(id6 AS BIGINT) * v1", "CAST(id6 AS BIGINT) * v2", "id6 * v3"],
    },
    Query {
        name: "groupby6",
        sql: "SELECT id4, id5, median(v3) AS median_v3, stddev(v3) AS sd_v3 FROM g1 GROUP BY id4, id5",
        sums: &["id4 * median_v3", "id5 * median_v3", "id4 * sd_v3", "id5 * sd_v3"],
    },
    Query {
        name: "groupby7",
        sql: "SELECT id3, max(v1) - min(v2) AS range_v1_v2 FROM g1 GROUP BY id3",
        sums: &["CAST(substr(id3, 3) AS BIGINT) * range_v1_v2"],
    },
    Query {
        name: "groupby8",
        sql: "SELECT id6, v3 AS largest2_v3 FROM (SELECT id6, v3, row_number() OVER (PARTITION BY id6 ORDER BY v3 DESC) \
              AS order_v3 FROM g1 WHERE v3 IS NOT NULL) AS sub_query WHERE order_v3 <= 2",
        sums: &["largest2_v3", "id6 * largest2_v3"],
    },
    Query {
        name: "groupby9",
        sql: "SELECT id2, id4, power(corr(v1, v2), 2) AS r2 FROM g1 GROUP BY id2, id4",
        sums: &["r2", "id4 * r2"],
    },
    Query {
        name: "groupby10",
        sql: "SELECT id1, id2, id3, id4, id5, id6, sum(v3) AS v3, count(*) AS count FROM g1 \
              GROUP BY id1, id2, id3, id4, id5, id6",
        sums: &["count", "v3", "id4 * v3", "id5 * v3", "id6 * v3", "CAST(substr(id3, 3) AS BIGINT) * v3"],
    },
];

/// The five joins.
pub static JOINS: [Query; 5] = [
    Query {
        name: "join1",
        sql: "SELECT x.*, small.id4 AS small_id4, small.v2 AS v2 FROM x JOIN small ON x.id1 = small.id1",
        sums: &["v1", "v2", "id3 * v2", "CAST(substr(small_id4, 3) AS BIGINT) * v1"],
    },
    Query {
        name: "join2",
        sql: "SELECT x.*, medium.id1 AS medium_id1, medium.id4 AS medium_id4, medium.id5 AS medium_id5, \
              medium.v2 AS v2 FROM x JOIN medium ON x.id2 = medium.id2",
        sums: &["v1", "v2", "id3 * v2", "CAST(substr(medium_id5, 3) AS BIGINT) * v1"],
    },
    Query {
        name: "join3",
        sql: "SELECT x.*, medium.id1 AS medium_id1, medium.id4 AS medium_id4, medium.id5 AS medium_id5, \
              medium.v2 AS v2 FROM x LEFT JOIN medium ON x.id2 = medium.id2",
        sums: &["v1", "v2", "id3 * v2", "CAST(substr(medium_id5, 3) AS BIGINT) * v1"],
    },
    Query {
        name: "join4",
        sql: "SELECT x.*, medium.id1 AS medium_id1, medium.id2 AS medium_id2, medium.id4 AS medium_id4, \
              medium.v2 AS v2 FROM x JOIN medium ON x.id5 = medium.id5",
        sums: &["v1", "v2", "id3 * v2", "medium_id2 * v1"],
    },
    Query {
        name: "join5",
        sql: "SELECT x.*, big.id1 AS big_id1, big.id2 AS big_id2, big.id4 AS big_id4, big.id5 AS big_id5, \
              big.id6 AS big_id6, big.v2 AS v2 FROM x JOIN big ON x.id3 = big.id3",
        sums: &["v1", "v2", "big_id2 * v1", "CAST(substr(big_id6, 3) AS BIGINT) * v2"],
    },
];

impl Query {
    /// A query of one row: the number of rows of the answer, and its sums.
    pub fn check(&self) -> String {
        let sums = self.sums.iter().enumerate().map(|(at, sum)| format!(", sum({sum}) AS s{at}")).collect::<String>();
        format!("SELECT count(*) AS n{sums} FROM ({}) AS answer", self.sql)
    }
}

fn named(name: &str) -> Option<&'static Query> {
    GROUP_BY.iter().chain(&JOINS).find(|query| query.name == name)
}

/// The text of "groupby1" to "groupby10" and "join1" to "join5".
pub fn query(op: &str) -> Option<&'static str> {
    named(op).map(|query| query.sql)
}

/// The text that compares the answers of a query: of "check groupby1" and so on.
pub fn check(op: &str) -> Option<String> {
    named(op.strip_prefix("check ")?).map(Query::check)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn queries_and_their_checks_are_found_by_name() {
        assert!(query("groupby8").unwrap().contains("row_number()"));
        assert_eq!(query("groupby11"), None);
        let text = check("check groupby1").unwrap();
        assert_eq!(
            text,
            "SELECT count(*) AS n, sum(v1) AS s0, sum(CAST(substr(id1, 3) AS BIGINT) * v1) AS s1 FROM (SELECT id1, \
             sum(v1) AS v1 FROM g1 GROUP BY id1) AS answer"
        );
        assert_eq!(check("groupby1"), None);
    }
}

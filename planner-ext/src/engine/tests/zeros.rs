//! Lists with a zero: the same answer wherever the rows lie.

use arrow::array::Float64Array;
use arrow::datatypes::{DataType, Field, Schema};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_have_one_zero_as_comparisons_do() {
    let server = Server::new();
    // Zeros in chunks of their own, and beside others.
    for (table, n) in [("apart", "value / 10"), ("mixed", "value % 2")] {
        let sql = format!(
            "CREATE TABLE {table} WITH (chunk_rows = 10) AS SELECT {n} AS n, \
             CASE WHEN {n} = 0 AND value % 3 = 0 THEN -0.0 ELSE arrow_cast({n}, 'Float64') END AS f \
             FROM generate_series(0, 19) ORDER BY value"
        );
        server.run(&sql).await.unwrap();
        for (condition, rows) in [
            ("n NOT IN (-0.0, 2, 5)", 10),
            ("n NOT IN (-0.0, 2, 5, 7, 9)", 10),
            ("n IN (-0.0, 2, 5, 7, 9)", 10),
            ("f IN (0.0, 2, 5, 7, 9)", 10),
            ("f IN (-0.0, 2, 5)", 10),
            ("f NOT IN (0.0, 2, 5, 7, 9)", 10),
            ("f IN (0.0, 5, 7, 9, 11) AND f IN (-0.0, 4, 6, 8, 10)", 10),
            ("f IN (1.0 - 1.0, 5, 7, 9, 11)", 10),
            ("f IN (1.0, 0.0, 5, 7, 9, 11)", 20),
        ] {
            let sql = format!("SELECT count(*) FROM {table} WHERE {condition}");
            assert_eq!(server.rows(&sql).await, [rows.to_string()], "{table}: {condition}");
        }
        let named = server.rows(&format!("DESCRIBE SELECT f IN (0.0, 5, 7, 9, 11) FROM {table}")).await;
        assert!(!named.concat().contains("-0"), "{named:?}");
        let statement =
            server.session.prepare(&format!("SELECT count(*) FROM {table} WHERE f IN (?, 5, 7, 9, 11)")).await;
        let schema = Arc::new(Schema::new(vec![Field::new("$1", DataType::Float64, true)]));
        let zero = RecordBatch::try_new(schema, vec![Arc::new(Float64Array::from(vec![-0.0]))]).unwrap();
        let found: Vec<RecordBatch> =
            statement.unwrap().query(Some(zero)).await.unwrap().stream.try_collect().await.unwrap();
        assert_eq!(found[0].column(0).as_primitive::<arrow::datatypes::Int64Type>().value(0), 10, "{table}");
    }
}

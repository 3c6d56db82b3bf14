//! Texts as plain arrays, or as keys of dictionaries, instead of views.

use std::sync::Arc;

use arrow::array::Array;
use arrow::datatypes::DataType;
use datafusion::physical_plan::{ExecutionPlan, collect};
use terrace_ipc::keyed_text_type;

use super::{Fixture, Rng, lines};
use crate::scan::{EmittedTexts, TierScanExec};

#[tokio::test]
async fn texts_of_all_forms_are_those_of_views() {
    for seed in 0..4 {
        // Dictionaries and views, in memory and in files, in both forms, with and without deleted rows, and a delta.
        let mut rng = Rng(90 + seed);
        let mut fixture = Fixture::new(&mut rng, 30_000, 9000, 150);
        if seed % 2 == 1 {
            fixture.delete(&mut rng, 50);
        }
        if seed >= 2 {
            fixture.place_all(|chunk, column| (chunk / 2 + column) % 2);
        }
        let context = fixture.session(2);
        for sql in [
            "SELECT * FROM t",
            "SELECT u, k, s FROM t WHERE k % 3 = 0",
            "SELECT s, i, u FROM t WHERE s = '17 some longer text 17'",
            "SELECT s, u FROM t WHERE u <> 'x'",
            "SELECT k, b FROM t WHERE s IS NULL",
        ] {
            let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
            let expected = collect(Arc::clone(&plan), context.task_ctx()).await.unwrap();
            let scan = plan.downcast_ref::<TierScanExec>().unwrap_or_else(|| panic!("{sql}: the plan is no scan"));
            for (form, text) in [(EmittedTexts::Plain, DataType::Utf8), (EmittedTexts::Keys, keyed_text_type())] {
                let emitting = Arc::new(scan.with_texts(form).unwrap());
                let schema = emitting.schema();
                for (field, scanned) in schema.fields().iter().zip(plan.schema().fields()) {
                    let is_text = *scanned.data_type() == DataType::Utf8View;
                    assert_eq!(field.data_type(), if is_text { &text } else { scanned.data_type() }, "{schema}");
                }
                let found = collect(emitting, context.task_ctx()).await.unwrap();
                assert_eq!(lines(&found), lines(&expected), "{sql}, {form:?}, seed {seed}");
                for batch in &found {
                    assert_eq!(batch.schema(), schema, "{sql}");
                    batch.columns().iter().for_each(|column| column.to_data().validate_full().unwrap());
                }
            }
        }
        fixture.assert_idle().await;
    }
}

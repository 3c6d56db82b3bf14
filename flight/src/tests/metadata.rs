//! Metadata commands.

use arrow::{
    array::{Array, AsArray, RecordBatch},
    datatypes::{Int32Type, Int64Type, Schema, UInt32Type},
};
use arrow_flight::{
    IpcMessage,
    sql::{
        CommandGetCrossReference, CommandGetDbSchemas, CommandGetExportedKeys, CommandGetImportedKeys,
        CommandGetPrimaryKeys, CommandGetTables, CommandGetXdbcTypeInfo, SqlInfo, XdbcDataType,
    },
};

use super::{Client, Harness, fetch, rows};

fn column(batches: &[RecordBatch], index: usize) -> Vec<String> {
    let values = |batch: &RecordBatch| -> Vec<String> {
        batch.column(index).as_string::<i32>().iter().map(|value| value.unwrap_or("").to_owned()).collect()
    };
    batches.iter().flat_map(values).collect()
}

async fn tables(client: &mut Client, command: CommandGetTables) -> Vec<RecordBatch> {
    let info = client.get_tables(command).await.unwrap();
    fetch(client, info).await.unwrap()
}

#[tokio::test]
async fn tables_come_with_four_columns_or_five() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let four = tables(&mut client, CommandGetTables::default()).await;
    assert_eq!(four[0].num_columns(), 4);
    assert_eq!(column(&four, 2), ["orders", "recent", "tiers"]);
    assert_eq!(column(&four, 3), ["TABLE", "VIEW", "SYSTEM TABLE"]);

    let five = tables(&mut client, CommandGetTables { include_schema: true, ..CommandGetTables::default() }).await;
    let bytes = five[0].column(4).as_binary::<i32>();
    assert_eq!(bytes.null_count(), 0);
    let schema = Schema::try_from(IpcMessage(bytes.value(0).to_vec().into())).unwrap();
    assert_eq!(schema.field(1).metadata()["ARROW:FLIGHT:SQL:TABLE_NAME"], "orders");
    assert_eq!(schema.field(1).data_type(), &arrow::datatypes::DataType::Utf8, "as the rows will leave");
    let nullability = |at: usize| {
        let metadata = schema.field(at).metadata();
        (metadata["XDBC_NULLABLE"].clone(), metadata["XDBC_IS_NULLABLE"].clone())
    };
    assert_eq!(nullability(0), ("0".to_owned(), "NO".to_owned()));
    assert_eq!(nullability(1), ("1".to_owned(), "YES".to_owned()));

    for name in ["TABLE", "BASE TABLE"] {
        let filtered = CommandGetTables {
            db_schema_filter_pattern: Some("pub%".into()),
            table_name_filter_pattern: Some("%e%".into()),
            table_types: vec![name.into(), "VIEW".into()],
            ..CommandGetTables::default()
        };
        assert_eq!(column(&tables(&mut client, filtered).await, 2), ["orders", "recent"]);
    }
    let filtered = CommandGetTables { table_name_filter_pattern: Some("_rders".into()), ..CommandGetTables::default() };
    assert_eq!(column(&tables(&mut client, filtered).await, 2), ["orders"]);
}

#[tokio::test]
async fn catalogs_schemas_and_table_types_are_sorted() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let info = client.get_catalogs().await.unwrap();
    assert_eq!(column(&fetch(&mut client, info).await.unwrap(), 0), ["other", "terrace"]);
    let info = client.get_db_schemas(CommandGetDbSchemas::default()).await.unwrap();
    assert_eq!(column(&fetch(&mut client, info).await.unwrap(), 1), ["public", "system"]);
    let info = client.get_table_types().await.unwrap();
    assert_eq!(column(&fetch(&mut client, info).await.unwrap(), 0), ["SYSTEM TABLE", "TABLE", "VIEW"]);
}

#[tokio::test]
async fn keys_have_their_schemas_also_when_there_are_none() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let table = "orders".to_owned();
    let info =
        client.get_primary_keys(CommandGetPrimaryKeys { table: table.clone(), ..Default::default() }).await.unwrap();
    let keys = fetch(&mut client, info).await.unwrap();
    let mut named: Vec<(i32, String)> =
        keys[0].column(5).as_primitive::<Int32Type>().values().iter().copied().zip(column(&keys, 3)).collect();
    named.sort();
    assert_eq!(named, [(1, "s".to_owned()), (2, "n".to_owned())]);

    let exported = CommandGetExportedKeys { table: table.clone(), ..Default::default() };
    let imported = CommandGetImportedKeys { table: table.clone(), ..Default::default() };
    let infos = [
        client.get_exported_keys(exported).await.unwrap(),
        client.get_imported_keys(imported).await.unwrap(),
        client.get_cross_reference(CommandGetCrossReference::default()).await.unwrap(),
    ];
    for info in infos {
        assert_eq!(info.clone().try_decode_schema().unwrap().fields().len(), 13);
        assert_eq!(rows(&fetch(&mut client, info).await.unwrap()), 0);
    }
}

#[tokio::test]
async fn types_are_ordered_and_filtered() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let info = client.get_xdbc_type_info(CommandGetXdbcTypeInfo { data_type: None }).await.unwrap();
    let types = fetch(&mut client, info).await.unwrap();
    let codes: Vec<i32> = types[0].column(1).as_primitive::<Int32Type>().values().to_vec();
    let all: Vec<(i32, String)> = codes.into_iter().zip(column(&types, 0)).collect();
    assert!(all.len() > 10);
    assert!(all.is_sorted());

    let bigint = CommandGetXdbcTypeInfo { data_type: Some(XdbcDataType::XdbcBigint as i32) };
    let info = client.get_xdbc_type_info(bigint).await.unwrap();
    assert_eq!(column(&fetch(&mut client, info).await.unwrap(), 0), ["BIGINT", "BIGINT UNSIGNED"]);
}

#[tokio::test]
async fn server_information_tells_the_truth() {
    let harness = Harness::open().await;
    let mut client = harness.connect().await;
    let wanted = vec![SqlInfo::FlightSqlServerName, SqlInfo::FlightSqlServerTransaction];
    let info = client.get_sql_info(wanted).await.unwrap();
    let answer = fetch(&mut client, info).await.unwrap();
    assert_eq!(answer[0].column(0).as_primitive::<UInt32Type>().values().to_vec(), [0, 8]);
    let values = answer[0].column(1).as_union();
    assert_eq!(values.value(0).as_string::<i32>().value(0), "Fake");
    assert_eq!(values.value(1).as_primitive::<Int32Type>().value(0), 2, "with savepoints");

    let wanted = vec![SqlInfo::FlightSqlServerStatementTimeout, SqlInfo::FlightSqlServerTransactionTimeout];
    let info = client.get_sql_info(wanted).await.unwrap();
    let answer = fetch(&mut client, info).await.unwrap();
    let values = answer[0].column(1).as_union();
    let timeouts = [0, 1].map(|row| values.value(row).as_primitive::<Int32Type>().value(0));
    assert_eq!(timeouts, [1500, 0], "as the engine has them");

    let wanted = vec![SqlInfo::SqlAllTablesAreSelectable, SqlInfo::SqlMaxStatements];
    let info = client.get_sql_info(wanted).await.unwrap();
    let answer = fetch(&mut client, info).await.unwrap();
    let values = answer[0].column(1).as_union();
    let (selectable, statements) = (values.value(0), values.value(1));
    assert!(selectable.as_boolean().value(0), "the service is open");
    assert_eq!(statements.as_primitive::<Int64Type>().value(0), 1_000, "of a session");

    let info = client.get_sql_info(vec![]).await.unwrap();
    let all = fetch(&mut client, info).await.unwrap();
    let codes: Vec<u32> = all[0].column(0).as_primitive::<UInt32Type>().values().to_vec();
    let asked_by_jdbc: Vec<u32> = (500..=576).collect();
    let missing: Vec<&u32> = asked_by_jdbc.iter().filter(|code| !codes.contains(code)).collect();
    assert!(missing.is_empty(), "JDBC fails on {missing:?}");
}

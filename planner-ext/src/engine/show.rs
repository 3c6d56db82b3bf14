//! SHOW and DESCRIBE as queries over `information_schema`, and SHOW CREATE TABLE.

use std::sync::Arc;

use arrow::datatypes::{DataType, IntervalUnit, TimeUnit};
use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::{
    Expr, ObjectName, SetExpr, ShowStatementFilter, ShowStatementFilterPosition, ShowStatementOptions, Statement as Ast,
};
use terrace_access::Right;
use terrace_sql::ast_nodes::{and, parse_query};
use terrace_sql::{CATALOG, NameParts, qualified, quoted_name, quoted_text};
use terrace_tier_store::table::{ChunkAdmission, Durability, FileFormat, TableDefinition, TableName, TableOptions};

use super::catalog::Snapshot;
use super::rights::{self, Need};
use crate::error::{Error, Result, missing_table};

/// Rewrites a SHOW or DESCRIBE to a query; leaves other statements unchanged.
pub(super) async fn as_query(snapshot: &Arc<Snapshot>, statement: SqlStatement) -> Result<SqlStatement> {
    let SqlStatement::Statement(ast) = &statement else { return Ok(statement) };
    let ast = ast.as_ref();
    let text = match ast {
        Ast::ShowTables { show_options, .. } => show_tables(snapshot, show_options)?,
        Ast::ShowSchemas { show_options, .. } => {
            let filter = filter(show_options, "schema_name")?;
            format!(
                "SELECT catalog_name, schema_name FROM information_schema.schemata WHERE {filter} ORDER BY schema_name"
            )
        }
        Ast::ShowColumns { show_options, full, extended } => {
            let table = show_options.show_in.as_ref().and_then(|scope| scope.parent_name.as_ref());
            let table = table.ok_or_else(|| Error::invalid("write SHOW COLUMNS FROM table"))?;
            let list = match full | extended {
                true => "*",
                false => "table_catalog, table_schema, table_name, column_name, data_type, is_nullable",
            };
            let filter = filter(show_options, "column_name")?;
            let table_condition = table_condition(snapshot, table).await?;
            format!(
                "SELECT {list} FROM information_schema.columns WHERE {table_condition} AND {filter} ORDER BY ordinal_position"
            )
        }
        Ast::ExplainTable { table_name, .. } => {
            let table_condition = table_condition(snapshot, table_name).await?;
            format!(
                "SELECT column_name, data_type, is_nullable, column_default, column_comment \
                 FROM information_schema.columns WHERE {table_condition} ORDER BY ordinal_position"
            )
        }
        Ast::ShowCreate { obj_name, .. } => show_create(snapshot, obj_name)?,
        _ => return Ok(statement),
    };
    let mut query = parse_query(&text)?;
    if let (SetExpr::Select(select), Some(condition)) = (query.body.as_mut(), where_condition(ast)) {
        select.selection = Some(match select.selection.take() {
            Some(selection) => and(selection, condition.clone()),
            None => condition.clone(),
        });
    }
    Ok(SqlStatement::Statement(Box::new(Ast::Query(query))))
}

/// The condition in the WHERE of a SHOW.
fn where_condition(ast: &Ast) -> Option<&Expr> {
    let (Ast::ShowTables { show_options, .. }
    | Ast::ShowSchemas { show_options, .. }
    | Ast::ShowColumns { show_options, .. }) = ast
    else {
        return None;
    };
    let (ShowStatementFilterPosition::Infix(filter) | ShowStatementFilterPosition::Suffix(filter)) =
        show_options.filter_position.as_ref()?;
    match filter {
        ShowStatementFilter::Where(condition) => Some(condition),
        _ => None,
    }
}

fn show_tables(snapshot: &Snapshot, options: &ShowStatementOptions) -> Result<String> {
    let list = "table_catalog, table_schema, table_name, table_type";
    let name_filter = filter(options, "table_name")?;
    let schema = options.show_in.as_ref().and_then(|scope| scope.parent_name.as_ref());
    let schema_filter = match schema {
        None => "true".to_owned(),
        Some(name) => {
            let name = NameParts::new(name)?.name;
            if !snapshot.schema_names().contains(&name) {
                return Err(Error::new(crate::ErrorKind::NotFound, format!("schema '{name}' does not exist")));
            }
            format!("table_schema = {}", quoted_text(&name))
        }
    };
    Ok(format!(
        "SELECT {list} FROM information_schema.tables WHERE {schema_filter} AND {name_filter} ORDER BY table_schema, table_name"
    ))
}

/// The condition that a LIKE or ILIKE of a SHOW means for `column`.
fn filter(options: &ShowStatementOptions, column: &str) -> Result<String> {
    if options.starts_with.is_some() || options.limit.is_some() {
        return Err(Error::unimplemented("SHOW takes LIKE, ILIKE or WHERE"));
    }
    let filter = match &options.filter_position {
        None => return Ok("true".to_owned()),
        Some(ShowStatementFilterPosition::Infix(filter) | ShowStatementFilterPosition::Suffix(filter)) => filter,
    };
    Ok(match filter {
        ShowStatementFilter::Like(pattern) | ShowStatementFilter::NoKeyword(pattern) => {
            format!("{column} LIKE {}", quoted_text(pattern))
        }
        ShowStatementFilter::ILike(pattern) => format!("{column} ILIKE {}", quoted_text(pattern)),
        ShowStatementFilter::Where(_) => "true".to_owned(),
    })
}

/// The condition that selects the columns of a table or view, which must exist.
async fn table_condition(snapshot: &Arc<Snapshot>, name: &ObjectName) -> Result<String> {
    let name = NameParts::new(name)?.resolve(snapshot.default_schema());
    if snapshot.shown(&name).await?.is_none() {
        return Err(missing_table(&name.to_string()));
    }
    Ok(format!("table_schema = {} AND table_name = {}", quoted_text(&name.schema), quoted_text(&name.name)))
}

fn show_create(snapshot: &Snapshot, name: &ObjectName) -> Result<String> {
    let parts = NameParts::new(name)?;
    let name = parts.resolve(snapshot.default_schema());
    rights::check_table(snapshot, &name, &[Need::whole(Right::Select)])?;
    let objects = snapshot.objects();
    let text = match (snapshot.definition(&parts)?, objects.views.get(&name).or_else(|| objects.external.get(&name))) {
        // Conditions of rules and hot views name values, which policies may hide from this reader.
        (Some(definition), _) if !snapshot.authority().sees_figures(&name) => {
            create_table(&definition, snapshot.file_format())
        }
        (Some(definition), _) => {
            let create = create_table(&definition, snapshot.file_format());
            let rules = snapshot.placement_rules(&parts)?;
            with_rules(create, &definition.name, &rules, &snapshot.hot_views(&definition.name)?)
        }
        (None, Some(object)) => object.sql.clone(),
        (None, None) => return Err(missing_table(&name.to_string())),
    };
    Ok(format!(
        "SELECT {} AS table_catalog, {} AS table_schema, {} AS table_name, {} AS definition",
        quoted_text(CATALOG),
        quoted_text(&name.schema),
        quoted_text(&name.name),
        quoted_text(&text)
    ))
}

/// The CREATE TABLE statement of a table, with the statements for its placement rules and hot views as comments.
fn with_rules(create: String, table: &TableName, rules: &[String], hot_views: &[String]) -> String {
    let mut text = create;
    for rule in rules {
        // A line break in a value would end the comment.
        text.push_str(&format!("\n-- ALTER TABLE {} {};", qualified(table), rule.replace('\n', " ")));
    }
    for view in hot_views {
        // Each line becomes a comment of its own, as the text may contain comments.
        text.push_str(&format!("\n-- {};", view.replace('\n', "\n-- ")));
    }
    text
}

/// The CREATE TABLE statement of a table, on a server whose tables have files of this format unless they say another.
fn create_table(definition: &TableDefinition, usual: FileFormat) -> String {
    let mut parts = Vec::new();
    for (column, field) in definition.columns.iter().zip(definition.schema.fields()) {
        let mut part = format!("  {} {}", quoted_name(field.name()), sql_type(field.data_type()));
        let in_key = definition.primary_key.contains(field.name());
        if !field.is_nullable() && !in_key {
            part.push_str(" NOT NULL");
        }
        if let Some(default) = &column.default {
            part.push_str(&format!(" DEFAULT {default}"));
        }
        if let Some(comment) = &column.comment {
            part.push_str(&format!(" COMMENT {}", quoted_text(comment)));
        }
        parts.push(part);
    }
    if !definition.primary_key.is_empty() {
        let names: Vec<String> = definition.primary_key.iter().map(|name| quoted_name(name)).collect();
        parts.push(format!("  PRIMARY KEY ({})", names.join(", ")));
    }
    let options = option_list(definition, usual);
    let with = if options.is_empty() { String::new() } else { format!(" WITH ({})", options.join(", ")) };
    format!("CREATE TABLE {} (\n{}\n){with}", qualified(&definition.name), parts.join(",\n"))
}

/// Options that differ from the default, as in WITH.
fn option_list(definition: &TableDefinition, usual: FileFormat) -> Vec<String> {
    let options = &definition.options;
    let defaults = TableOptions::default();
    let mut list = Vec::new();
    if options.cluster_by != defaults.cluster_by {
        list.push(format!("cluster_by = {}", quoted_text(&options.cluster_by.join(", "))));
    }
    if options.chunk_rows != defaults.chunk_rows {
        list.push(format!("chunk_rows = {}", options.chunk_rows));
    }
    if options.durability == Durability::None {
        list.push("durability = 'none'".to_owned());
    }
    if options.admission == ChunkAdmission::Ssd {
        list.push("admission = 'ssd'".to_owned());
    }
    if options.tiering != defaults.tiering {
        list.push(format!("tiering = '{}'", options.tiering));
    }
    if options.enforce_primary_key {
        list.push("enforce_primary_key = 'true'".to_owned());
    }
    if options.file_format() != usual {
        list.push(format!("format = '{}'", options.file_format()));
    }
    list.extend(definition.comment.as_ref().map(|comment| format!("comment = {}", quoted_text(comment))));
    list
}

/// The SQL name of a type; `ARROW('...')` for types without one.
fn sql_type(data_type: &DataType) -> String {
    let name = match data_type {
        DataType::Boolean => "BOOLEAN",
        DataType::Int8 => "TINYINT",
        DataType::Int16 => "SMALLINT",
        DataType::Int32 => "INT",
        DataType::Int64 => "BIGINT",
        DataType::UInt8 => "TINYINT UNSIGNED",
        DataType::UInt16 => "SMALLINT UNSIGNED",
        DataType::UInt32 => "INT UNSIGNED",
        DataType::UInt64 => "BIGINT UNSIGNED",
        DataType::Float32 => "REAL",
        DataType::Float64 => "DOUBLE",
        DataType::Utf8View => "VARCHAR",
        DataType::BinaryView => "BYTEA",
        DataType::Date32 => "DATE",
        DataType::Time64(TimeUnit::Nanosecond) => "TIME",
        DataType::Interval(IntervalUnit::MonthDayNano) => "INTERVAL",
        DataType::Timestamp(TimeUnit::Nanosecond, None) => "TIMESTAMP",
        DataType::Timestamp(TimeUnit::Microsecond, None) => "TIMESTAMP(6)",
        DataType::Timestamp(TimeUnit::Millisecond, None) => "TIMESTAMP(3)",
        DataType::Timestamp(TimeUnit::Second, None) => "TIMESTAMP(0)",
        DataType::Decimal128(precision, scale) if *scale >= 0 => return format!("DECIMAL({precision}, {scale})"),
        other => return format!("ARROW({})", quoted_text(&other.to_string())),
    };
    name.to_owned()
}

//! Placement rules: ALTER TABLE .. PIN, EXCLUDE, PREFER, UNPIN and DROP PLACEMENT RULE.
//!
//! ```text
//!   ALTER TABLE [IF EXISTS] t PIN     [scope] TO tier          scope = [COLUMNS (a, b)] [CHUNKS 3 TO 9, 12 | WHERE p]
//!                             EXCLUDE [scope] FROM tier
//!                             PREFER  [scope] ON tier
//!                             UNPIN   [scope]
//!                             DROP PLACEMENT RULE n | DROP PLACEMENT RULES
//! ```
//!
//! DataFusion's parser does not know these statements, so this module parses them. HTTP requests for the same are
//! [`RuleOrder`]s.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{Between, BinaryExpr, Expr, Operator};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::sql::sqlparser::ast::{Expr as AstExpr, ExprWithAlias};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use terrace_tier_store::table::{
    ChunkId, ChunkSet, ColumnId, Comparison, Literal, NewRule, Predicate, Rule, RuleChoice, RuleKind, RuleRows,
    TableDefinition, TableName, TableVersion,
};

use super::Engine;
use super::command::{NameParts, normalized};
use super::ddl::{refuse_system, short_name};
use super::session::Session;
use crate::error::{Error, ErrorKind, Result, missing_table};
use crate::{coercion, dialect};

/// Chunks of a rule, as written in the statement or request.
#[derive(Debug, Clone, Default)]
pub enum RowsOrder {
    /// All chunks.
    #[default]
    All,
    /// Chunks by number, first and last of each span.
    Chunks(Vec<(u64, u64)>),
    /// Chunks that may hold rows that fulfil a condition.
    Where(Box<AstExpr>),
}

impl RowsOrder {
    /// Parses a condition in SQL.
    pub fn parse_where(text: &str) -> Result<Self> {
        const MOST_BYTES: usize = 8 << 10;
        if text.len() > MOST_BYTES {
            let length = text.len();
            return Err(Error::invalid(format!("a condition of {length} bytes is longer than {MOST_BYTES}")));
        }
        Ok(Self::Where(Box::new(dialect::expression("WHERE", text)?)))
    }
}

/// Columns and chunks, as written in the statement or request.
#[derive(Debug, Clone, Default)]
pub struct ScopeOrder {
    /// Names of columns; empty: all.
    pub columns: Vec<String>,
    /// Chunks.
    pub rows: RowsOrder,
}

/// A placement rule, as written in the statement or request.
#[derive(Debug, Clone)]
pub struct RuleOrder {
    /// Its kind.
    pub kind: RuleKind,
    /// Name of the tier.
    pub tier: String,
    /// Columns and chunks that it applies to.
    pub scope: ScopeOrder,
}

/// A statement on placement rules.
#[derive(Debug, Clone)]
pub(super) struct RuleCommand {
    table: NameParts,
    if_exists: bool,
    action: RuleAction,
}

#[derive(Debug, Clone)]
enum RuleAction {
    Make(RuleOrder),
    /// UNPIN; without a scope all pins.
    Unpin(Option<ScopeOrder>),
    Drop(u64),
    DropAll,
}

/// Whether a statement is an ALTER TABLE on placement rules; `tokens` holds no white space.
pub(super) fn is_rule(tokens: &[&Token]) -> bool {
    let is = |at: usize, word: &str| tokens.get(at).is_some_and(|token| is_word(token, word));
    if !(is(0, "alter") && is(1, "table")) {
        return false;
    }
    let mut at = if is(2, "if") && is(3, "exists") { 5 } else { 3 };
    while matches!(tokens.get(at), Some(Token::Period)) {
        at += 2;
    }
    let verbs = ["pin", "unpin", "exclude", "prefer"];
    verbs.iter().any(|verb| is(at, verb))
        || (is(at, "drop") && is(at + 1, "placement") && (is(at + 2, "rule") || is(at + 2, "rules")))
}

pub(super) fn is_word(token: &Token, word: &str) -> bool {
    matches!(token, Token::Word(found) if found.quote_style.is_none() && found.value.eq_ignore_ascii_case(word))
}

/// Parses a statement that [`is_rule`] recognised.
pub(super) fn parse(tokens: Vec<TokenWithSpan>) -> Result<RuleCommand> {
    let mut parser = dialect::parser(tokens);
    parse_command(&mut parser).map_err(|e| Error::invalid(format!("SQL syntax: {e}")))?
}

fn parse_command(parser: &mut Parser<'_>) -> Result<Result<RuleCommand>, ParserError> {
    parser.expect_keywords(&[Keyword::ALTER, Keyword::TABLE])?;
    let if_exists = parser.parse_keywords(&[Keyword::IF, Keyword::EXISTS]);
    let name = parser.parse_object_name(false)?;
    let action = parse_action(parser)?;
    let _ = parser.consume_token(&Token::SemiColon);
    if parser.peek_token_ref().token != Token::EOF {
        return parser.expected("the end: an ALTER TABLE takes one placement rule", parser.peek_token());
    }
    Ok(NameParts::new(&name).map(|table| RuleCommand { table, if_exists, action }))
}

fn parse_action(parser: &mut Parser<'_>) -> Result<RuleAction, ParserError> {
    let kinds =
        [("pin", RuleKind::Pin, "to"), ("exclude", RuleKind::Exclude, "from"), ("prefer", RuleKind::Prefer, "on")];
    for (verb, kind, preposition) in kinds {
        if take_word(parser, verb) {
            let scope = parse_scope(parser)?;
            if !take_word(parser, preposition) {
                let wanted = format!("{} tier", preposition.to_uppercase());
                return parser.expected(&wanted, parser.peek_token());
            }
            let tier = normalized(&parser.parse_identifier()?);
            return Ok(RuleAction::Make(RuleOrder { kind, tier, scope }));
        }
    }
    if take_word(parser, "unpin") {
        let all = matches!(parser.peek_token_ref().token, Token::EOF | Token::SemiColon);
        return Ok(RuleAction::Unpin(if all { None } else { Some(parse_scope(parser)?) }));
    }
    parser.expect_keyword(Keyword::DROP)?;
    let _ = take_word(parser, "placement");
    if take_word(parser, "rules") {
        return Ok(RuleAction::DropAll);
    }
    let _ = take_word(parser, "rule");
    Ok(RuleAction::Drop(parser.parse_literal_uint()?))
}

pub(super) fn take_word(parser: &mut Parser<'_>, word: &str) -> bool {
    let found = is_word(&parser.peek_token_ref().token, word);
    if found {
        parser.next_token();
    }
    found
}

pub(super) fn parse_scope(parser: &mut Parser<'_>) -> Result<ScopeOrder, ParserError> {
    let mut scope = ScopeOrder::default();
    if take_word(parser, "columns") {
        parser.expect_token(&Token::LParen)?;
        let columns = parser.parse_comma_separated(Parser::parse_identifier)?;
        parser.expect_token(&Token::RParen)?;
        scope.columns = columns.iter().map(normalized).collect();
    }
    if take_word(parser, "chunks") {
        scope.rows = RowsOrder::Chunks(parser.parse_comma_separated(parse_span)?);
    } else if parser.parse_keyword(Keyword::WHERE) {
        scope.rows = RowsOrder::Where(Box::new(parser.parse_expr()?));
    }
    Ok(scope)
}

/// Parses `3` or `3 TO 9`; a TO without a number behind it belongs to the tier.
fn parse_span(parser: &mut Parser<'_>) -> Result<(u64, u64), ParserError> {
    let first = parser.parse_literal_uint()?;
    let is_range = is_word(&parser.peek_token_ref().token, "to")
        && matches!(parser.peek_nth_token_ref(1).token, Token::Number(..));
    if !is_range {
        return Ok((first, first));
    }
    parser.next_token();
    Ok((first, parser.parse_literal_uint()?))
}

/// Executes a statement on placement rules.
pub(super) async fn run(session: &Session, command: &RuleCommand) -> Result<u64> {
    let engine = session.engine();
    let snapshot = session.snapshot()?;
    let name = command.table.resolve(snapshot.default_schema());
    refuse_system(&name)?;
    let objects = snapshot.objects();
    if objects.views.contains_key(&name) || objects.external.contains_key(&name) {
        return Err(Error::invalid(format!(
            "'{}' is not stored here; placement rules are for tables",
            short_name(&name)
        )));
    }
    let done = match &command.action {
        RuleAction::Make(order) => engine.add_placement_rule(&name, order.clone()).await.map(drop),
        RuleAction::Drop(number) => engine.drop_placement_rules(&name, RuleChoice::Number(*number)).await.map(drop),
        RuleAction::DropAll => engine.drop_placement_rules(&name, RuleChoice::All).await.map(drop),
        RuleAction::Unpin(scope) => engine.unpin(&name, scope.as_ref()).await.map(drop),
    };
    match done {
        Err(error) if error.kind() == ErrorKind::NotFound && engine.store.table(&name).is_err() => {
            if command.if_exists { Ok(0) } else { Err(missing_table(&name.to_string())) }
        }
        done => done.map(|()| 0),
    }
}

impl Engine {
    /// Adds a placement rule to a table. The next epoch moves the segments; it begins at once.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for table, column and tier; [`ErrorKind::InvalidArgument`] for a condition that does not
    /// compare columns with values, for chunks that do not exist, and for rules that do not fit the budgets.
    pub async fn add_placement_rule(&self, name: &TableName, order: RuleOrder) -> Result<Rule> {
        let (columns, rows) = self.resolve_scope(name, &order.scope)?;
        let new_rule = NewRule { kind: order.kind, tier: order.tier, columns, rows };
        let store = Arc::clone(&self.store);
        let name = name.clone();
        self.blocking(move || Ok(store.add_rule(&name, new_rule)?)).await
    }

    /// Drops placement rules of a table and returns them.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for the table, and for a number or a scope that no rule has.
    pub async fn drop_placement_rules(&self, name: &TableName, choice: RuleChoice) -> Result<Vec<Rule>> {
        let store = Arc::clone(&self.store);
        let name = name.clone();
        self.blocking(move || Ok(store.drop_rules(&name, &choice)?)).await
    }

    /// Drops the pin of exactly this scope, or without a scope all pins of the table, and returns the dropped rules.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for table and column, and when no pin has this scope; [`ErrorKind::InvalidArgument`] as of
    /// [`Engine::add_placement_rule`].
    pub async fn unpin(&self, name: &TableName, scope: Option<&ScopeOrder>) -> Result<Vec<Rule>> {
        let Some(scope) = scope else { return self.drop_placement_rules(name, RuleChoice::Pins).await };
        let (columns, rows) = self.resolve_scope(name, scope)?;
        let dropped = self.drop_placement_rules(name, RuleChoice::PinsOf { columns, rows }).await;
        dropped.map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                let message = format!(
                    "'{}' has no pin of just this scope; system.placement_rules lists its rules, and ALTER TABLE .. DROP \
                     PLACEMENT RULE takes one by its number",
                    short_name(name)
                );
                Error::new(ErrorKind::NotFound, message)
            }
            _ => error,
        })
    }

    pub(super) fn resolve_scope(&self, name: &TableName, scope: &ScopeOrder) -> Result<(Vec<ColumnId>, RuleRows)> {
        let table = self.store.table(name).map_err(|_| missing_table(&name.to_string()))?;
        let definition = table.definition();
        let columns = scope.columns.iter().map(|column| column_id(definition, column)).collect::<Result<Vec<_>>>()?;
        let mut names: Vec<&String> = scope.columns.iter().collect();
        names.sort_unstable();
        if let [twice, ..] = names.windows(2).find(|pair| pair.first() == pair.last()).unwrap_or_default() {
            return Err(Error::invalid(format!("column '{twice}' is named twice")));
        }
        let rows = match &scope.rows {
            RowsOrder::All => RuleRows::All,
            RowsOrder::Chunks(spans) => RuleRows::Chunks(chunks(&table.version(), spans)?),
            RowsOrder::Where(condition) => RuleRows::Where(chunk_predicate(&self.base_state, definition, condition)?),
        };
        Ok((columns, rows))
    }
}

fn column_id(definition: &TableDefinition, name: &str) -> Result<ColumnId> {
    let missing = || {
        let message = format!("column '{name}' of '{}' does not exist", short_name(&definition.name));
        Error::new(ErrorKind::NotFound, message)
    };
    let (position, _) = definition.schema.column_with_name(name).ok_or_else(missing)?;
    definition.columns.get(position).map(|column| column.id).ok_or_else(missing)
}

/// Returns the chunks of the version within the spans. Without any, returns the ends of the spans, so that the store
/// refuses them by number.
fn chunks(version: &TableVersion, spans: &[(u64, u64)]) -> Result<ChunkSet> {
    if let Some((first, last)) = spans.iter().find(|(first, last)| first > last) {
        return Err(Error::invalid(format!("CHUNKS {first} TO {last} ends before it begins")));
    }
    let within = |chunk: &ChunkId| spans.iter().any(|(first, last)| (*first..=*last).contains(&chunk.0));
    let found: ChunkSet = version.chunks.iter().map(|entry| entry.chunk.id).filter(within).collect();
    if found.is_empty() {
        return Ok(spans.iter().flat_map(|(first, last)| [ChunkId(*first), ChunkId(*last)]).collect());
    }
    Ok(found)
}

/// Translates a condition to a predicate that the bounds of chunks can decide.
fn chunk_predicate(base: &SessionState, definition: &TableDefinition, condition: &AstExpr) -> Result<Predicate> {
    let mut state = base.clone();
    state.mark_start_execution();
    let schema = DFSchema::try_from(definition.schema.as_ref().clone())?;
    let expr = ExprWithAlias { expr: condition.clone(), alias: None };
    let expr = state.create_logical_expr_from_sql_expr(expr, &schema)?;
    if expr.is_volatile() {
        return Err(Error::invalid(format!("WHERE {condition} is not the same for a row each time")));
    }
    // `now()` and similar functions become constants when the rule is made.
    let context = SimplifyContext::builder()
        .with_schema(Arc::new(schema.clone()))
        .with_config_options(Arc::clone(state.config_options()))
        .with_query_execution_start_time(state.execution_props().query_execution_start_time)
        .build();
    let simplifier = ExprSimplifier::new(context);
    let expr = simplifier.simplify(coercion::coerced(&simplifier, expr, &schema)?)?;
    to_predicate(definition, &expr)
}

fn to_predicate(definition: &TableDefinition, expr: &Expr) -> Result<Predicate> {
    let all = |parts: &[&Expr]| parts.iter().map(|part| to_predicate(definition, part)).collect::<Result<Vec<_>>>();
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => Predicate::And(all(&[left, right])?).flat(),
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => Predicate::Or(all(&[left, right])?).flat(),
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let comparison = comparison(*op).ok_or_else(|| unsupported_condition(expr))?;
            match (left.as_ref(), right.as_ref()) {
                (Expr::Column(column), Expr::Literal(value, _)) => {
                    compare(definition, &column.name, comparison, value)?
                }
                (Expr::Literal(value, _), Expr::Column(column)) => {
                    compare(definition, &column.name, mirrored(comparison), value)?
                }
                _ => return Err(unsupported_condition(expr)),
            }
        }
        Expr::Between(Between { expr: inner, negated, low, high }) => {
            let (Expr::Column(column), Expr::Literal(low, _), Expr::Literal(high, _)) =
                (inner.as_ref(), low.as_ref(), high.as_ref())
            else {
                return Err(unsupported_condition(expr));
            };
            let sides = |low_side, high_side| -> Result<Vec<Predicate>> {
                Ok(vec![
                    compare(definition, &column.name, low_side, low)?,
                    compare(definition, &column.name, high_side, high)?,
                ])
            };
            match negated {
                false => Predicate::And(sides(Comparison::GtEq, Comparison::LtEq)?),
                true => Predicate::Or(sides(Comparison::Lt, Comparison::Gt)?),
            }
        }
        Expr::InList(InList { expr: inner, list, negated }) => {
            let Expr::Column(column) = inner.as_ref() else { return Err(unsupported_condition(expr)) };
            let comparison = if *negated { Comparison::NotEq } else { Comparison::Eq };
            let part = |value: &Expr| match value {
                Expr::Literal(value, _) => compare(definition, &column.name, comparison, value),
                _ => Err(unsupported_condition(expr)),
            };
            let parts = list.iter().map(part).collect::<Result<Vec<_>>>()?;
            if *negated { Predicate::And(parts) } else { Predicate::Or(parts) }
        }
        Expr::IsNull(inner) | Expr::IsNotNull(inner) => {
            let Expr::Column(column) = inner.as_ref() else { return Err(unsupported_condition(expr)) };
            let id = column_id(definition, &column.name)?;
            if matches!(expr, Expr::IsNull(_)) { Predicate::IsNull(id) } else { Predicate::IsNotNull(id) }
        }
        Expr::Column(column) => compare(definition, &column.name, Comparison::Eq, &ScalarValue::from(true))?,
        Expr::Not(inner) => match inner.as_ref() {
            Expr::Column(column) => compare(definition, &column.name, Comparison::Eq, &ScalarValue::from(false))?,
            _ => return Err(unsupported_condition(expr)),
        },
        Expr::Literal(value, _) => {
            let message = match value == &ScalarValue::from(true) {
                true => "the condition holds for every row; leave it out",
                false => "the condition holds for no row",
            };
            return Err(Error::invalid(message));
        }
        _ => return Err(unsupported_condition(expr)),
    })
}

fn unsupported_condition(expr: &Expr) -> Error {
    Error::invalid(format!(
        "a placement rule is decided by the bounds of chunks: it takes comparisons of a column with a value, BETWEEN, IN, IS \
         NULL and IS NOT NULL, joined by AND and OR; not {}",
        expr.human_display()
    ))
}

fn comparison(op: Operator) -> Option<Comparison> {
    Some(match op {
        Operator::Eq => Comparison::Eq,
        Operator::NotEq => Comparison::NotEq,
        Operator::Lt => Comparison::Lt,
        Operator::LtEq => Comparison::LtEq,
        Operator::Gt => Comparison::Gt,
        Operator::GtEq => Comparison::GtEq,
        _ => return None,
    })
}

fn mirrored(comparison: Comparison) -> Comparison {
    match comparison {
        Comparison::Lt => Comparison::Gt,
        Comparison::LtEq => Comparison::GtEq,
        Comparison::Gt => Comparison::Lt,
        Comparison::GtEq => Comparison::LtEq,
        same => same,
    }
}

fn compare(definition: &TableDefinition, name: &str, comparison: Comparison, value: &ScalarValue) -> Result<Predicate> {
    let id = column_id(definition, name)?;
    let data_type = definition.schema.field_with_name(name)?.data_type();
    if value.is_null() {
        return Err(Error::invalid(format!("nothing compares with NULL; write {name} IS NULL or IS NOT NULL")));
    }
    if value.data_type() != *data_type || matches!(data_type, DataType::Null) || data_type.is_nested() {
        let found = value.data_type();
        return Err(Error::invalid(format!("column '{name}' is {data_type}, the value {value} is {found}")));
    }
    Ok(Predicate::Compare(id, comparison, Literal::new(&value.to_array()?)?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::super::command::Action;
    use super::super::parse::parse;
    use super::*;

    fn rule(sql: &str) -> RuleCommand {
        match parse(sql).unwrap().action {
            Action::Rule(command) => command,
            other => panic!("{sql}: {other:?}"),
        }
    }

    #[test]
    fn rules_are_told_from_other_alterations() {
        let pin = rule("alter table if exists \"T\".x PIN COLUMNS (a, \"B\") CHUNKS 3 TO 9, 12, 20 TO 21 TO dram;");
        assert_eq!(pin.table, NameParts { schema: Some("T".into()), name: "x".into() });
        let RuleAction::Make(RuleOrder { kind: RuleKind::Pin, tier, scope }) = pin.action else { panic!() };
        assert_eq!((tier.as_str(), scope.columns), ("dram", vec!["a".into(), "B".into()]));
        let RowsOrder::Chunks(spans) = scope.rows else { panic!() };
        assert_eq!(spans, [(3, 9), (12, 12), (20, 21)]);
        for sql in [
            "ALTER TABLE t PIN TO dram",
            "ALTER TABLE t EXCLUDE WHERE a < 3 AND b = 'x' FROM dram",
            "ALTER TABLE t PREFER COLUMNS (a) WHERE a BETWEEN 3 AND 4 ON nvm",
            "ALTER TABLE t UNPIN",
            "ALTER TABLE t UNPIN COLUMNS (a)",
            "ALTER TABLE t DROP PLACEMENT RULE 3",
            "ALTER TABLE t DROP PLACEMENT RULES;",
        ] {
            rule(sql);
        }
        for sql in ["ALTER TABLE t DROP placement", "ALTER TABLE pin DROP COLUMN rules", "ALTER TABLE t DROP rules"] {
            assert!(matches!(parse(sql).unwrap().action, Action::Alter(_)), "{sql}");
        }
        for (sql, words) in [
            ("ALTER TABLE t PIN", "TO tier"),
            ("ALTER TABLE t PIN FROM dram", "TO tier"),
            ("ALTER TABLE t EXCLUDE CHUNKS 1 TO 3 TO dram", "FROM tier"),
            ("ALTER TABLE t PIN COLUMNS () TO dram", "identifier"),
            ("ALTER TABLE t PIN TO dram, UNPIN", "one placement rule"),
            ("ALTER TABLE t DROP PLACEMENT RULE x", "literal int"),
        ] {
            let error = parse(sql).unwrap_err();
            assert!(error.message().contains(words), "{sql}: {error}");
        }
    }
}

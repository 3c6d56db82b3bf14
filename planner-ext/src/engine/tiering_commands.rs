//! Statements on placement: queries and one-time orders that return rows, and commands that steer the tiering loop.
//!
//! ```text
//!   EXPLAIN PLACEMENT t [scope]            scope = [COLUMNS (a, b)] [CHUNKS 3 TO 9, 12 | WHERE p], as of placement rules
//!   EXPLAIN PLACEMENT query
//!   EXPLAIN HOT VIEWS query | EXPLAIN ALTER HOT VIEW v REFRESH     see [`super::hot_view`]
//!   EPOCH NOW | EPOCH DRY RUN | CANCEL EPOCH
//!   BRING BACK t [scope] TO tier
//!   WARM UP t [scope]
//!   ROLL BACK PLACEMENT TO EPOCH n
//!   FREEZE PLACEMENT | UNFREEZE PLACEMENT
//!   ALTER SYSTEM SET tiering = auto | advise | off
//!   ALTER SYSTEM ADD | ALTER | DRAIN | RESUME | DROP TIER ..       see [`super::tier`]
//! ```
//!
//! None of them is planned, but for the query that is explained: those with rows compute them ([`ComputedRows`]).

use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use terrace_tier_store::Store;
use terrace_tier_store::placement::{
    EpochReport, EpochRequest, Explanation, Order, OrderReport, QueryCost, Scope, TieringMode,
};
use terrace_tier_store::table::{Chunk, TableName};

use super::catalog::Snapshot;
use super::command::{Action, Command, NameParts, normalized};
use super::computed_rows::ComputedRows;
use super::ddl::refuse_system;
use super::hot_view::HotViewCommand;
use super::parse::{classify, one_statement};
use super::registry::StatementKind;
use super::rule::{ScopeOrder, is_word, parse_scope, take_word};
use super::session::Session;
use super::tier::{self, TierCommand};
use super::{Engine, defaults, hot_view, show};
use crate::dialect;
use crate::error::{Error, Result, missing_table};
use crate::scan::{FetchExec, TierScanExec};
use crate::system::{explanations, hot_views, moves};

/// A statement on placement that returns rows: it explains, runs an epoch, or gives a one-time order.
#[derive(Debug, Clone)]
pub(super) enum PlacementStatement {
    Explain { table: NameParts, scope: ScopeOrder },
    ExplainQuery(SqlStatement),
    ExplainViews(SqlStatement),
    ForecastView(HotViewCommand),
    Epoch { dry_run: bool },
    BringBack { table: NameParts, scope: ScopeOrder, tier: String },
    WarmUp { table: NameParts, scope: ScopeOrder },
    RollBack(u64),
}

/// A parsed command to the tiering loop; it returns no rows.
#[derive(Debug, Clone)]
pub(super) enum TieringCommand {
    CancelEpoch,
    Freeze,
    Unfreeze,
    Mode(TieringMode),
    Tier(TierCommand),
}

/// Whether a statement is one of this file; `tokens` holds no white space.
pub(super) fn is_tiering_command(tokens: &[&Token]) -> bool {
    const FIRST_WORDS: [&[&str]; 12] = [
        &["explain", "placement"],
        &["epoch", "now"],
        &["epoch", "dry"],
        &["bring"],
        &["warm", "up"],
        &["roll", "back", "placement"],
        &["rollback", "placement"],
        &["freeze"],
        &["unfreeze"],
        &["alter", "system"],
        &["epoch"],
        &["cancel", "epoch"],
    ];
    let starts = |words: &&[&str]| {
        words.len() <= tokens.len() && words.iter().zip(tokens).all(|(word, token)| is_word(token, word))
    };
    FIRST_WORDS.iter().any(starts)
}

/// Parses a statement that [`is_tiering_command`] recognised.
pub(super) fn parse(tokens: Vec<TokenWithSpan>) -> Result<Command> {
    if let Some(query) = tokens_of_explained_query(&tokens) {
        let inner = classify(one_statement(query)?, "")?;
        let Action::Plan { statement, .. } = inner.action else { return Err(expects_query()) };
        if !inner.returns_rows || matches!(statement, SqlStatement::Explain(_)) {
            return Err(expects_query());
        }
        return Ok(placement_command(PlacementStatement::ExplainQuery(statement)));
    }
    let mut parser = dialect::parser(tokens);
    let syntax_error = |e: ParserError| Error::invalid(format!("SQL syntax: {e}"));
    let parsed = parse_statement(&mut parser).map_err(syntax_error)??;
    let _ = parser.consume_token(&Token::SemiColon);
    parser.expect_token(&Token::EOF).map_err(syntax_error)?;
    Ok(parsed)
}

fn expects_query() -> Error {
    Error::invalid("EXPLAIN PLACEMENT takes the name of a table, or a query")
}

pub(super) fn placement_command(statement: PlacementStatement) -> Command {
    let kind = if statement.has_effects() { StatementKind::Tiering } else { StatementKind::Query };
    Command::with_rows(kind, Action::Placement(statement))
}

fn tiering_command(command: TieringCommand) -> Command {
    Command::with_count(StatementKind::Tiering, Action::Tiering(command))
}

/// The tokens of the query after EXPLAIN PLACEMENT, if there is one.
fn tokens_of_explained_query(tokens: &[TokenWithSpan]) -> Option<Vec<TokenWithSpan>> {
    let at = tokens.iter().position(|token| is_word(&token.token, "placement"))?;
    let is_explain = tokens.iter().take(at).any(|token| is_word(&token.token, "explain"));
    let rest = tokens.get(at + 1..)?;
    let first = rest.iter().find(|token| !matches!(token.token, Token::Whitespace(_)))?;
    let begins = match &first.token {
        Token::LParen => true,
        Token::Word(word) => {
            let verbs =
                [Keyword::SELECT, Keyword::WITH, Keyword::VALUES, Keyword::INSERT, Keyword::UPDATE, Keyword::DELETE];
            word.quote_style.is_none() && (verbs.contains(&word.keyword) || word.keyword == Keyword::EXPLAIN)
        }
        _ => false,
    };
    (is_explain && begins).then(|| rest.to_vec())
}

fn parse_statement(parser: &mut Parser<'_>) -> Result<Result<Command>, ParserError> {
    if take_word(parser, "explain") {
        let _ = take_word(parser, "placement");
        let _ = parser.parse_keyword(Keyword::TABLE);
        let name = parser.parse_object_name(false)?;
        let scope = parse_scope(parser)?;
        return Ok(NameParts::new(&name).map(|table| placement_command(PlacementStatement::Explain { table, scope })));
    }
    if take_word(parser, "epoch") {
        if take_word(parser, "now") {
            return Ok(Ok(placement_command(PlacementStatement::Epoch { dry_run: false })));
        }
        if take_word(parser, "dry") && take_word(parser, "run") {
            return Ok(Ok(placement_command(PlacementStatement::Epoch { dry_run: true })));
        }
        return parser.expected("EPOCH NOW or EPOCH DRY RUN", parser.peek_token());
    }
    if take_word(parser, "cancel") {
        let _ = take_word(parser, "epoch");
        return Ok(Ok(tiering_command(TieringCommand::CancelEpoch)));
    }
    if take_word(parser, "bring") {
        // A table may have the name BACK.
        let another = matches!(parser.peek_nth_token_ref(1).token, Token::Word(_) | Token::DoubleQuotedString(_));
        let verb = ["to", "columns", "chunks", "where"];
        if another && !verb.iter().any(|word| is_word(&parser.peek_nth_token_ref(1).token, word)) {
            let _ = take_word(parser, "back");
        }
        let name = parser.parse_object_name(false)?;
        let scope = parse_scope(parser)?;
        if !take_word(parser, "to") {
            return parser.expected("TO tier", parser.peek_token());
        }
        let tier = normalized(&parser.parse_identifier()?);
        return Ok(
            NameParts::new(&name).map(|table| placement_command(PlacementStatement::BringBack { table, scope, tier }))
        );
    }
    if take_word(parser, "warm") {
        let _ = take_word(parser, "up");
        let name = parser.parse_object_name(false)?;
        let scope = parse_scope(parser)?;
        return Ok(NameParts::new(&name).map(|table| placement_command(PlacementStatement::WarmUp { table, scope })));
    }
    for (word, freeze) in [("freeze", TieringCommand::Freeze), ("unfreeze", TieringCommand::Unfreeze)] {
        if take_word(parser, word) {
            if !take_word(parser, "placement") {
                return parser.expected("PLACEMENT", parser.peek_token());
            }
            return Ok(Ok(tiering_command(freeze)));
        }
    }
    if take_word(parser, "alter") {
        let _ = take_word(parser, "system");
        if let Some(command) = tier::command(parser)? {
            return Ok(command.map(|command| tiering_command(TieringCommand::Tier(command))));
        }
        let name = if parser.parse_keyword(Keyword::SET) { parser.parse_identifier()?.value } else { String::new() };
        if !name.eq_ignore_ascii_case("tiering") || !parser.consume_token(&Token::Eq) {
            return parser.expected(
                "SET tiering = auto, advise or off, ADD, ALTER, DRAIN, RESUME or DROP TIER, or CALIBRATE TIERS",
                parser.peek_token(),
            );
        }
        let mode = match parser.next_token().token {
            Token::Word(word) => word.value,
            Token::SingleQuotedString(text) => text,
            other => other.to_string(),
        };
        return Ok(mode.parse().map(|mode| tiering_command(TieringCommand::Mode(mode))).map_err(Error::from));
    }
    if !take_word(parser, "rollback") {
        let _ = take_word(parser, "roll") && take_word(parser, "back");
    }
    let _ = take_word(parser, "placement");
    if !(take_word(parser, "to") && take_word(parser, "epoch")) {
        return parser.expected("TO EPOCH number", parser.peek_token());
    }
    let epoch = parser.parse_literal_uint()?;
    Ok(Ok(placement_command(PlacementStatement::RollBack(epoch))))
}

impl TieringCommand {
    /// Applies the command to the tiering loop, on a blocking thread.
    pub(super) async fn run(self, session: &Session) -> Result<u64> {
        let engine = Arc::clone(session.engine());
        let apply_command = move || {
            let store = engine.store();
            match &self {
                Self::CancelEpoch => _ = store.tiering().cancel_epoch()?,
                Self::Freeze => store.tiering().freeze()?,
                Self::Unfreeze => store.tiering().unfreeze()?,
                Self::Mode(mode) => store.tiering().set_mode(*mode)?,
                Self::Tier(command) => command.run(&engine)?,
            }
            tracing::info!(said = ?self, "tiering loop");
            Ok(0)
        };
        session.engine().blocking(apply_command).await
    }
}

impl PlacementStatement {
    /// True when it moves segments; the others only look.
    fn has_effects(&self) -> bool {
        match self {
            Self::Explain { .. } | Self::ExplainQuery(_) | Self::ExplainViews(_) | Self::ForecastView(_) => false,
            Self::Epoch { dry_run } => !dry_run,
            Self::BringBack { .. } | Self::WarmUp { .. } | Self::RollBack(_) => true,
        }
    }

    /// Resolves the names of the statement; the work itself is that of the rows that this returns.
    pub(super) async fn rows(&self, session: &Session, snapshot: Arc<Snapshot>) -> Result<ComputedRows> {
        let engine = session.engine();
        let store = Arc::clone(engine.store());
        let resolve_scope = |table: &NameParts, scope: &ScopeOrder| {
            let name = table.resolve(snapshot.default_schema());
            refuse_system(&name)?;
            Ok::<_, Error>((name.to_string(), engine.placement_scope(&name, scope)?))
        };
        let order = |order: Order| {
            let fields = explanations::outcome_fields();
            ComputedRows::new(fields, move || explanations::outcomes(&store.tiering().order(&order)?.outcome))
        };
        Ok(match self {
            Self::Explain { table, scope } => {
                let (name, scope) = resolve_scope(table, scope)?;
                let store = Arc::clone(engine.store());
                let rows = move || explanations::segments(&store.tiering().explain(&name, &scope)?);
                ComputedRows::new(explanations::segment_fields(), rows)
            }
            Self::ExplainQuery(statement) => {
                let reads = segments_read_by(&snapshot, statement.clone()).await?;
                let store = Arc::clone(engine.store());
                let rows = move || explanations::query_cost(&store.tiering().query_cost(&reads)?);
                ComputedRows::new(explanations::query_cost_fields(), rows)
            }
            Self::ExplainViews(statement) => {
                let checked = hot_view::coverage_of_query(session, &snapshot, statement.clone()).await?;
                ComputedRows::new(hot_views::checked_fields(), move || hot_views::checked(&checked))
            }
            Self::ForecastView(command) => hot_view::forecast(session, &snapshot, command)?,
            Self::Epoch { dry_run } => {
                let store = Arc::clone(engine.store());
                let dry_run = *dry_run;
                ComputedRows::new(moves::fields(), move || moves::batch(&run_epoch(&store, dry_run, "sql")?.moves))
            }
            Self::BringBack { table, scope, tier } => {
                let (table, scope) = resolve_scope(table, scope)?;
                let tier = tier.clone();
                order(Order::BringBack { table, scope, tier })
            }
            Self::WarmUp { table, scope } => {
                let (table, scope) = resolve_scope(table, scope)?;
                order(Order::WarmUp { table, scope })
            }
            Self::RollBack(epoch) => order(Order::RollBack { epoch: *epoch }),
        })
    }
}

fn run_epoch(store: &Store, dry_run: bool, reason: &str) -> Result<EpochReport> {
    let request = if dry_run { EpochRequest::dry_run(reason) } else { EpochRequest::now(reason) };
    Ok(store.tiering().run_epoch(request)?)
}

/// Plans a query and returns the segments that it reads unless run-time filters exclude them.
async fn segments_read_by(snapshot: &Arc<Snapshot>, statement: SqlStatement) -> Result<Vec<(Arc<Chunk>, usize)>> {
    let statement = defaults::expand_defaults(snapshot, statement)?;
    let statement = show::as_query(snapshot, statement).await?;
    let plan: LogicalPlan = snapshot.plan(statement).await?;
    super::parse::check_plan(&plan)?;
    let plan: Arc<dyn ExecutionPlan> = snapshot.state().create_physical_plan(&plan).await?;
    let mut found = Vec::new();
    plan.apply(|node| {
        if let Some(scan) = node.downcast_ref::<TierScanExec>() {
            found.extend(scan.segments());
        }
        if let Some(fetch) = node.downcast_ref::<FetchExec>() {
            found.extend(fetch.segments()?);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

impl Engine {
    /// Resolves the columns and the condition of a scope of a table.
    fn placement_scope(&self, name: &TableName, scope: &ScopeOrder) -> Result<Scope> {
        let (columns, rows) = self.resolve_scope(name, scope)?;
        Ok(Scope { columns, rows })
    }

    /// Explains why segments of a table are on their tiers; see [`terrace_tier_store::placement::Tiering::explain`].
    ///
    /// # Errors
    /// [`crate::ErrorKind::NotFound`] for table and column; [`crate::ErrorKind::InvalidArgument`] for a scope that is
    /// none.
    pub async fn explain_placement(&self, name: &TableName, scope: &ScopeOrder) -> Result<Vec<Explanation>> {
        let scope = self.placement_scope(name, scope)?;
        let store = Arc::clone(&self.store);
        let name = name.to_string();
        self.blocking(move || Ok(store.tiering().explain(&name, &scope)?)).await
    }

    /// Reports the segments that a query would read, and their tiers.
    ///
    /// # Errors
    /// The errors of planning the query.
    pub async fn explain_query_placement(self: &Arc<Self>, sql: &str, user: &str) -> Result<QueryCost> {
        let tokens = dialect::tokenize(&format!("EXPLAIN PLACEMENT {sql}"))?;
        let Action::Placement(PlacementStatement::ExplainQuery(statement)) = parse(tokens)?.action else {
            return Err(expects_query());
        };
        let session = self.open_session(user);
        let snapshot = session.snapshot();
        self.close_session(session.id());
        let snapshot = snapshot?;
        let store = Arc::clone(&self.store);
        let reads = self.on_cpu(async move { segments_read_by(&snapshot, statement).await }).await?;
        self.blocking(move || Ok(store.tiering().query_cost(&reads)?)).await
    }

    /// Brings a scope of a table to a tier, now and once.
    ///
    /// # Errors
    /// Those of [`Engine::explain_placement`]; [`crate::ErrorKind::InvalidArgument`] with the figures when it does not fit.
    pub async fn bring_back(&self, name: &TableName, scope: &ScopeOrder, tier: String) -> Result<OrderReport> {
        let scope = self.placement_scope(name, scope)?;
        self.order_placement(Order::BringBack { table: name.to_string(), scope, tier }).await
    }

    /// Brings a scope of a table into memory as far as it pays.
    ///
    /// # Errors
    /// Those of [`Engine::explain_placement`].
    pub async fn warm_up(&self, name: &TableName, scope: &ScopeOrder) -> Result<OrderReport> {
        let scope = self.placement_scope(name, scope)?;
        self.order_placement(Order::WarmUp { table: name.to_string(), scope }).await
    }

    /// Carries out an order on placement.
    ///
    /// # Errors
    /// See [`terrace_tier_store::placement::Tiering::order`].
    pub async fn order_placement(&self, order: Order) -> Result<OrderReport> {
        let store = Arc::clone(&self.store);
        self.blocking(move || Ok(store.tiering().order(&order)?)).await
    }

    /// Sets the tiering mode of a table.
    ///
    /// # Errors
    /// [`crate::ErrorKind::NotFound`] for the table.
    pub async fn set_table_tiering(&self, name: &TableName, mode: TieringMode) -> Result<()> {
        use terrace_tier_store::table::Alteration;
        let _name_lock = self.name_lock.lock().await;
        let table = self.store.table(name).map_err(|_| missing_table(&name.to_string()))?;
        let mut options = table.options().clone();
        options.tiering = mode;
        let store = Arc::clone(&self.store);
        let name = name.clone();
        self.blocking(move || Ok(store.alter_table(&name, &[Alteration::SetOptions(options)]).map(drop)?)).await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::parse::parse;

    #[test]
    fn statements_are_told_apart() {
        for (sql, returns_rows) in [
            ("explain placement t", true),
            ("EXPLAIN PLACEMENT s.t COLUMNS (a, b) CHUNKS 3 TO 9, 12;", true),
            ("explain placement t where k > 3", true),
            ("explain placement select * from t where k > 3", true),
            ("explain placement with s as (select 1) select * from s", true),
            ("epoch now", true),
            ("epoch dry run;", true),
            ("bring back t columns (a) to dram", true),
            ("bring t to ssd", true),
            ("bring back to ssd", true),
            ("warm up t where d >= '2026-01-01'", true),
            ("roll back placement to epoch 12", true),
            ("rollback placement to epoch 12", true),
            ("cancel epoch;", false),
            ("freeze placement", false),
            ("unfreeze placement;", false),
            ("alter system set tiering = advise", false),
            ("alter system set tiering = 'OFF'", false),
        ] {
            assert_eq!(parse(sql).unwrap().returns_rows, returns_rows, "{sql}");
        }
        assert!(parse("explain select 1 as placement").is_ok());
        assert!(parse("rollback").is_ok());
    }

    #[test]
    fn refusals_say_what_is_expected() {
        for (sql, words) in [
            ("explain placement", "identifier"),
            ("explain placement insert into t values (1)", "a table, or a query"),
            ("explain placement explain select 1", "a table, or a query"),
            ("explain placement t u", "EOF"),
            ("epoch", "EPOCH NOW"),
            ("bring t", "TO tier"),
            ("cancel epoch 3", "EOF"),
            ("freeze", "PLACEMENT"),
            ("roll back placement", "TO EPOCH"),
            ("alter system set tiering = maybe", "auto, advise or off"),
            ("alter system set other = 3", "SET tiering"),
            ("warm up t to dram", "EOF"),
        ] {
            let error = parse(sql).unwrap_err();
            assert!(error.message().contains(words), "{sql}: {error}");
        }
    }
}

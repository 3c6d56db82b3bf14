//! Statements on placement: queries and one-time orders that return rows, and commands that steer the tiering loop.
//!
//! ```text
//!   EXPLAIN PLACEMENT t [scope]            scope = [COLUMNS (a, b)] [CHUNKS 3 TO 9, 12 | WHERE p], as of placement rules
//!   EXPLAIN PLACEMENT query
//!   EXPLAIN HOT VIEWS query | EXPLAIN ALTER HOT VIEW v REFRESH     see [`crate::hot_view`]
//!   EPOCH NOW | EPOCH DRY RUN | CANCEL EPOCH
//!   BRING BACK t [scope] TO tier
//!   WARM UP t [scope]
//!   ROLL BACK PLACEMENT TO EPOCH n
//!   FREEZE PLACEMENT | UNFREEZE PLACEMENT
//!   ALTER SYSTEM SET tiering = auto | advise | off
//!   ALTER SYSTEM ADD | ALTER | DRAIN | RESUME | DROP TIER ..       see [`crate::tier`]
//! ```
//!
//! The engine plans none of these statements, except the query of EXPLAIN PLACEMENT: it computes their rows directly.

use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use terrace_error::{Error, Result};
use terrace_model::TieringMode;

use crate::command::{Action, Command, PlannerStatement};
use crate::hot_view::HotViewCommand;
use crate::parse::{classify, one_statement};
use crate::rule::{ScopeOrder, is_word, parse_scope, take_word};
use crate::tier::{self, TierCommand};
use crate::{NameParts, StatementKind, dialect, normalized};

/// A statement on placement that returns rows: it explains, runs an epoch, or gives a one-time order.
#[derive(Debug, Clone)]
pub enum PlacementStatement {
    /// EXPLAIN PLACEMENT of a table.
    Explain {
        /// The table.
        table: NameParts,
        /// Its columns and chunks.
        scope: ScopeOrder,
    },
    /// EXPLAIN PLACEMENT of a query.
    ExplainQuery(SqlStatement),
    /// EXPLAIN HOT VIEWS.
    ExplainViews(SqlStatement),
    /// EXPLAIN of a CREATE or REFRESH of a hot view.
    ForecastView(HotViewCommand),
    /// EPOCH NOW and EPOCH DRY RUN.
    Epoch {
        /// Whether to plan moves only.
        dry_run: bool,
    },
    /// BRING BACK.
    BringBack {
        /// The table.
        table: NameParts,
        /// Its columns and chunks.
        scope: ScopeOrder,
        /// Name of the tier.
        tier: String,
    },
    /// WARM UP.
    WarmUp {
        /// The table.
        table: NameParts,
        /// Its columns and chunks.
        scope: ScopeOrder,
    },
    /// ROLL BACK PLACEMENT TO EPOCH.
    RollBack(u64),
}

/// A parsed command to the tiering loop; it returns no rows.
#[derive(Debug, Clone)]
pub enum TieringCommand {
    /// CANCEL EPOCH.
    CancelEpoch,
    /// FREEZE PLACEMENT.
    Freeze,
    /// UNFREEZE PLACEMENT.
    Unfreeze,
    /// ALTER SYSTEM SET tiering.
    Mode(TieringMode),
    /// ALTER SYSTEM .. TIER.
    Tier(TierCommand),
}

/// Whether a statement is one of this file; `tokens` holds no white space.
pub(crate) fn is_tiering_command(tokens: &[&Token]) -> bool {
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
pub(crate) fn parse(tokens: Vec<TokenWithSpan>) -> Result<Command> {
    if let Some(query) = tokens_of_explained_query(&tokens) {
        let inner = classify(one_statement(query)?, "")?;
        let Action::Plan(PlannerStatement { statement, .. }) = inner.action else { return Err(expects_query()) };
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

/// Parses a query to a statement that explains the placement of what it reads.
///
/// # Errors
/// For a text that is not one query.
pub fn explained_query(sql: &str) -> Result<SqlStatement> {
    match parse(dialect::tokenize(&format!("EXPLAIN PLACEMENT {sql}"))?)?.action {
        Action::Placement(PlacementStatement::ExplainQuery(statement)) => Ok(statement),
        _ => Err(expects_query()),
    }
}

fn expects_query() -> Error {
    Error::invalid("EXPLAIN PLACEMENT takes the name of a table, or a query")
}

pub(crate) fn placement_command(statement: PlacementStatement) -> Command {
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

impl PlacementStatement {
    /// True when it moves segments; the others only look.
    fn has_effects(&self) -> bool {
        match self {
            Self::Explain { .. } | Self::ExplainQuery(_) | Self::ExplainViews(_) | Self::ForecastView(_) => false,
            Self::Epoch { dry_run } => !dry_run,
            Self::BringBack { .. } | Self::WarmUp { .. } | Self::RollBack(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::parse;

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

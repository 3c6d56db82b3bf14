//! Placement rules: ALTER TABLE .. PIN, EXCLUDE, PREFER, UNPIN and DROP PLACEMENT RULE.
//!
//! ```text
//!   ALTER TABLE [IF EXISTS] t PIN     [scope] TO tier [form]   scope = [COLUMNS (a, b)] [CHUNKS 3 TO 9, 12 | WHERE p]
//!                             EXCLUDE [scope] FROM tier [form]  form = FORM plain | FORM packed
//!                             PREFER  [scope] ON tier [form]
//!                             UNPIN   [scope]
//!                             DROP PLACEMENT RULE n | DROP PLACEMENT RULES
//! ```
//!
//! DataFusion's parser does not know these statements, so this module parses them.

use datafusion::sql::sqlparser::ast::Expr;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use terrace_error::{Error, Result};

use crate::{NameParts, dialect, normalized};

/// Chunks of a rule, as written in the statement or request.
#[derive(Debug, Clone, Default)]
pub enum RowsOrder {
    /// All chunks.
    #[default]
    All,
    /// Chunks by number, first and last of each span.
    Chunks(Vec<(u64, u64)>),
    /// Chunks that may hold rows that fulfil a condition.
    Where(Box<Expr>),
}

impl RowsOrder {
    /// Parses a condition in SQL.
    ///
    /// # Errors
    /// For a text that is too long, or not one expression.
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

/// Kind of a placement rule, as the verb of the statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleVerb {
    /// PIN .. TO tier.
    Pin,
    /// EXCLUDE .. FROM tier.
    Exclude,
    /// PREFER .. ON tier.
    Prefer,
}

/// A statement on placement rules.
#[derive(Debug, Clone)]
pub struct RuleCommand {
    /// The table.
    pub table: NameParts,
    /// Whether to pass over a table that does not exist.
    pub if_exists: bool,
    /// What to do.
    pub action: RuleAction,
}

/// What a statement does with the placement rules of a table.
#[derive(Debug, Clone)]
pub enum RuleAction {
    /// Adds a rule.
    Make {
        /// Its kind.
        verb: RuleVerb,
        /// Name of the tier.
        tier: String,
        /// Name of the form of the copies that it is about; `None`: any.
        form: Option<String>,
        /// Columns and chunks that it applies to.
        scope: ScopeOrder,
    },
    /// UNPIN; without a scope all pins.
    Unpin(Option<ScopeOrder>),
    /// Drops the rule of this number.
    Drop(u64),
    /// Drops all rules.
    DropAll,
}

/// Whether a statement is an ALTER TABLE on placement rules; `tokens` holds no white space.
pub(crate) fn is_rule(tokens: &[&Token]) -> bool {
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

pub(crate) fn is_word(token: &Token, word: &str) -> bool {
    matches!(token, Token::Word(found) if found.quote_style.is_none() && found.value.eq_ignore_ascii_case(word))
}

/// Parses a statement that [`is_rule`] recognised.
pub(crate) fn parse(tokens: Vec<TokenWithSpan>) -> Result<RuleCommand> {
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
    let verbs =
        [("pin", RuleVerb::Pin, "to"), ("exclude", RuleVerb::Exclude, "from"), ("prefer", RuleVerb::Prefer, "on")];
    for (word, verb, preposition) in verbs {
        if take_word(parser, word) {
            let scope = parse_scope(parser)?;
            if !take_word(parser, preposition) {
                let wanted = format!("{} tier", preposition.to_uppercase());
                return parser.expected(&wanted, parser.peek_token());
            }
            let tier = normalized(&parser.parse_identifier()?);
            let form = take_word(parser, "form").then(|| parser.parse_identifier()).transpose()?;
            let form = form.as_ref().map(normalized);
            return Ok(RuleAction::Make { verb, tier, form, scope });
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

pub(crate) fn take_word(parser: &mut Parser<'_>, word: &str) -> bool {
    let found = is_word(&parser.peek_token_ref().token, word);
    if found {
        parser.next_token();
    }
    found
}

pub(crate) fn parse_scope(parser: &mut Parser<'_>) -> Result<ScopeOrder, ParserError> {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use crate::command::Action;
    use crate::parse;

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
        let RuleAction::Make { verb: RuleVerb::Pin, tier, form: None, scope } = pin.action else { panic!() };
        assert_eq!((tier.as_str(), scope.columns), ("dram", vec!["a".into(), "B".into()]));
        let packed = rule("ALTER TABLE t EXCLUDE COLUMNS (a) FROM dram form PACKED;");
        let RuleAction::Make { verb: RuleVerb::Exclude, form: Some(form), .. } = packed.action else { panic!() };
        assert_eq!(form, "packed");
        let RowsOrder::Chunks(spans) = scope.rows else { panic!() };
        assert_eq!(spans, [(3, 9), (12, 12), (20, 21)]);
        for sql in [
            "ALTER TABLE t PIN TO dram",
            "ALTER TABLE t EXCLUDE WHERE a < 3 AND b = 'x' FROM dram",
            "ALTER TABLE t PREFER COLUMNS (a) WHERE a BETWEEN 3 AND 4 ON nvm",
            "ALTER TABLE t PREFER ON nvm FORM plain",
            "ALTER TABLE t PIN TO form",
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
            ("ALTER TABLE t PIN TO dram FORM", "identifier"),
            ("ALTER TABLE t PIN FORM packed TO dram", "TO tier"),
            ("ALTER TABLE t DROP PLACEMENT RULE x", "literal int"),
        ] {
            let error = parse(sql).unwrap_err();
            assert!(error.message().contains(words), "{sql}: {error}");
        }
    }
}

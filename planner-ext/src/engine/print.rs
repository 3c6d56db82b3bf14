//! Parts of statements as text that parses to the same: changes are rewritten as text, views and defaults kept as text.
//!
//! sqlparser prints a string or a quoted name with two quotes in a row, or one after a backslash, as if these were
//! escapes, and the text then says something else. Strings are made fit for that before they are printed; names like
//! that are refused.

use std::fmt::Display;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Value, ValueWithSpan, VisitMut, VisitorMut};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::error::{Error, Result};

/// The text of a part of a statement.
pub(super) fn printed<T: Clone + Display + VisitMut>(part: &T) -> String {
    let mut copy = part.clone();
    let _ = copy.visit(&mut Doubled);
    copy.to_string()
}

/// The texts of several parts, separated by commas.
pub(super) fn list<T: Clone + Display + VisitMut>(parts: &[T]) -> String {
    parts.iter().map(printed).collect::<Vec<_>>().join(", ")
}

/// Refuses names that would be printed as others.
pub(super) fn check_names(tokens: &[TokenWithSpan]) -> Result<()> {
    for token in tokens {
        if let Token::Word(word) = &token.token
            && let Some(quote) = word.quote_style
            && (word.value.contains(&format!("{quote}{quote}")) || word.value.contains(&format!("\\{quote}")))
        {
            let name = &word.value;
            return Err(Error::unimplemented(format!(
                "the name {name} in this kind of statement: it has quotes in it"
            )));
        }
    }
    Ok(())
}

/// Doubles the quotes in strings: pairs are printed as they are.
struct Doubled;

impl VisitorMut for Doubled {
    type Break = ();

    fn pre_visit_value(&mut self, value: &mut ValueWithSpan) -> ControlFlow<()> {
        match &mut value.value {
            Value::SingleQuotedString(text) | Value::NationalStringLiteral(text) => *text = text.replace('\'', "''"),
            Value::DoubleQuotedString(text) => *text = text.replace('"', "\"\""),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use datafusion::sql::parser::{DFParser, Statement};
    use datafusion::sql::sqlparser::ast::Statement as Ast;

    use super::*;

    fn parsed(sql: &str) -> Ast {
        match DFParser::parse_sql(sql).unwrap().pop_front().unwrap() {
            Statement::Statement(ast) => *ast,
            other => unreachable!("{other}"),
        }
    }

    #[test]
    fn strings_are_printed_as_they_are_written() {
        for text in [r"'\'", r"'\'' OR 1=1 --'", "'''", "''''", "'a''b'", r"'\\'''", "'it''s'", r"'''\'''''", "''"] {
            // An odd number of quotes is no literal.
            let Ok(mut statements) = DFParser::parse_sql(&format!("SELECT {text}")) else { continue };
            let sql = statements.pop_front().unwrap();
            let Statement::Statement(ast) = sql else { unreachable!() };
            assert_eq!(printed(ast.as_ref()), format!("SELECT {text}"));
        }
        let national = "SELECT a FROM t WHERE b LIKE 'x''''%' AND c = N'it''s' AND d = DATE '2020-01-01'";
        assert_eq!(printed(&parsed(national)), national);
    }
}

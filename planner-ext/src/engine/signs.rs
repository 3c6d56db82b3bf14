//! Signs before signs: `- -5` prints as `--5`, which is a comment.
//!
//! Statements and parts of them are printed and parsed again: changes are rewritten as text, views and defaults are
//! stored as text. Whatever would run into the sign before it gets parentheses, once, right after parsing.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::{Expr, Statement as Ast, visit_expressions_mut};

/// Puts the operand of a sign in parentheses where it begins with a sign itself.
pub(super) fn separate_signs(statement: &mut SqlStatement) {
    match statement {
        SqlStatement::Statement(ast) => separate(ast),
        SqlStatement::Explain(explain) => separate_signs(&mut explain.statement),
        SqlStatement::CreateExternalTable(_) | SqlStatement::CopyTo(_) | SqlStatement::Reset(_) => {}
    }
}

fn separate(ast: &mut Ast) {
    let _ = visit_expressions_mut(ast, |expr| {
        if let Expr::UnaryOp { expr: operand, .. } = expr
            && begins_with_sign(operand)
        {
            **operand = Expr::Nested(operand.clone());
        }
        ControlFlow::<()>::Continue(())
    });
}

/// True when the text of `expr` begins with an operator.
fn begins_with_sign(expr: &Expr) -> bool {
    match expr {
        Expr::UnaryOp { .. } => true,
        Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::Value(_) | Expr::Nested(_) | Expr::Function(_) => {
            false
        }
        other => other.to_string().starts_with(|c: char| c.is_ascii_punctuation() && !"('\"$[{_".contains(c)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use datafusion::sql::parser::DFParser;

    use super::*;

    #[test]
    fn what_is_printed_parses_to_the_same() {
        for (sql, printed) in [
            ("SELECT - -5", "SELECT -(-5)"),
            ("SELECT - - -a", "SELECT -(-(-a))"),
            ("SELECT a - -5, - a, -5, a - - -5", "SELECT a - -5, -a, -5, a - -(-5)"),
            ("SELECT - -a::INT", "SELECT -(-a::INT)"),
            ("SELECT - (-5), NOT NOT a", "SELECT -(-5), NOT (NOT a)"),
            ("UPDATE t SET a = - -5 WHERE b = + -1", "UPDATE t SET a = -(-5) WHERE b = +(-1)"),
            ("SELECT ~ ~5", "SELECT ~(~5)"),
        ] {
            let mut statement = DFParser::parse_sql(sql).unwrap().pop_front().unwrap();
            separate_signs(&mut statement);
            assert_eq!(statement.to_string(), printed, "{sql}");
            let again = DFParser::parse_sql(printed).unwrap().pop_front().unwrap();
            assert_eq!(again.to_string(), printed, "{sql}");
        }
    }
}

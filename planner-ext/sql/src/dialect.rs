//! The SQL dialect: DataFusion's default dialect, without the parts that it misreads or silently ignores.
//!
//! All statements and stored texts are parsed in this dialect. It differs from sqlparser's generic dialect as follows:
//!
//! - The right side of `IS [NOT] DISTINCT FROM` ends before AND and OR. sqlparser reads all that follows.
//! - `1_000` is a number, and a number that runs into a word (`1_000_`, `0b11`) is an error, not a number with an
//!   alias.
//! - `1e3` is a DOUBLE, also where `1.5` is a decimal.
//! - `x -> x + 1` is a lambda.
//! - `STRUCT(a INT)` is a type, as `STRUCT<a INT>` is ([`struct_types`]).
//! - `a ^ b` is an error: it is a power to some systems and an exclusive or to others.
//! - A clause that the planner ignores is an error ([`check`]).
//!
//! Submodules:
//!
//! - [`nesting`]: refuses texts that are nested too deeply
//! - [`relations`]: refuses a FROM of very many relations
//! - [`struct_types`]: `STRUCT(a INT)` as a type
//! - [`unread`]: refuses clauses that the planner ignores
//!
//! Upstream: <https://github.com/apache/datafusion-sqlparser-rs/pull/2436> (Honour operator precedence in `IS [NOT]
//! DISTINCT FROM`), merged, which sqlparser 0.62 lacks; the first difference can go when the test
//! `distinct_from_ends_before_and` passes without it.

mod nesting;
mod relations;
mod struct_types;
mod unread;

use std::any::TypeId;

use datafusion::sql::parser::{DFParserBuilder, Statement};
use datafusion::sql::sqlparser::ast::{CastKind, DataType, ExactNumberInfo, Expr, Value, Visit};
use datafusion::sql::sqlparser::dialect::{Dialect, GenericDialect};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};

use terrace_error::{Error, Result};

/// Deepest nesting of expressions.
const RECURSION_LIMIT: usize = 128;

/// The dialect of all SQL text.
#[derive(Debug)]
struct TerraceDialect;

/// Methods that return the value of the generic dialect.
macro_rules! as_generic {
    ($($method:ident),* $(,)?) => {
        $(fn $method(&self) -> bool {
            GenericDialect.$method()
        })*
    };
}

impl Dialect for TerraceDialect {
    /// The type of the generic dialect, which the parser checks for in places.
    fn dialect(&self) -> TypeId {
        TypeId::of::<GenericDialect>()
    }

    fn is_delimited_identifier_start(&self, ch: char) -> bool {
        GenericDialect.is_delimited_identifier_start(ch)
    }

    fn is_identifier_start(&self, ch: char) -> bool {
        GenericDialect.is_identifier_start(ch)
    }

    fn is_identifier_part(&self, ch: char) -> bool {
        GenericDialect.is_identifier_part(ch)
    }

    as_generic! {
        supports_unicode_string_literal, supports_partition_by_after_order_by, supports_array_join_syntax,
        supports_group_by_expr, supports_group_by_with_modifier, supports_left_associative_joins_without_parens,
        supports_connect_by, supports_match_recognize, supports_pipe_operator, supports_start_transaction_modifier,
        supports_window_function_null_treatment_arg, supports_dictionary_syntax,
        supports_window_clause_named_window_reference, supports_parenthesized_set_variables,
        supports_select_wildcard_except, support_map_literal_syntax, allow_extract_custom,
        allow_extract_single_quotes, supports_extract_comma_syntax, supports_create_view_comment_syntax,
        supports_parens_around_table_factor, supports_values_as_table_factor, supports_create_index_with_clause,
        supports_explain_with_utility_options, supports_limit_comma, supports_update_order_by,
        supports_from_first_select, supports_projection_trailing_commas, supports_asc_desc_in_column_definition,
        supports_try_convert, supports_bitwise_shift_operators, supports_comment_on, supports_load_extension,
        supports_named_fn_args_with_assignment_operator, supports_struct_literal, supports_empty_projections,
        supports_nested_comments, supports_multiline_comment_hints, supports_user_host_grantee,
        supports_string_escape_constant, supports_array_typedef_with_brackets, supports_match_against,
        supports_set_names, supports_comma_separated_set_assignments, supports_filter_during_aggregation,
        supports_select_wildcard_exclude, supports_data_type_signed_suffix, supports_interval_options,
        supports_quote_delimited_string, supports_select_wildcard_replace, supports_select_wildcard_ilike,
        supports_select_wildcard_rename, supports_optimize_table, supports_install, supports_detach,
        supports_prewhere, supports_with_fill, supports_limit_by, supports_interpolate, supports_settings,
        supports_select_format, supports_comment_optimizer_hint, supports_constraint_keyword_without_name,
        supports_key_column_option, supports_comma_separated_trim, supports_cte_without_as,
        supports_select_item_multi_column_alias, supports_xml_expressions
    }

    fn supports_order_by_all(&self) -> bool {
        true
    }

    fn supports_numeric_literal_underscores(&self) -> bool {
        true
    }

    /// `x -> x + 1`, as an argument of functions on arrays.
    fn supports_lambda_functions(&self) -> bool {
        true
    }

    /// A number with an exponent is a DOUBLE, as in the SQL standard (approximate numeric literal).
    fn parse_prefix(&self, parser: &mut Parser<'_>) -> Option<std::result::Result<Expr, ParserError>> {
        let number = match &parser.peek_token_ref().token {
            Token::Number(number, _) if number.contains(['e', 'E']) => number.replace('_', ""),
            _ => return None,
        };
        parser.next_token();
        Some(Ok(double(number)))
    }

    fn parse_infix(
        &self,
        parser: &mut Parser<'_>,
        left: &Expr,
        precedence: u8,
    ) -> Option<std::result::Result<Expr, ParserError>> {
        if parser.peek_token_ref().token == Token::Caret {
            let message = "'^' means power in some systems and exclusive or in others; write power(a, b) or a XOR b";
            return Some(Err(ParserError::ParserError(format!("{message}{}", parser.peek_token_ref().span.start))));
        }
        let distinct: fn(Box<Expr>, Box<Expr>) -> Expr =
            if parser.parse_keywords(&[Keyword::IS, Keyword::DISTINCT, Keyword::FROM]) {
                Expr::IsDistinctFrom
            } else if parser.parse_keywords(&[Keyword::IS, Keyword::NOT, Keyword::DISTINCT, Keyword::FROM]) {
                Expr::IsNotDistinctFrom
            } else {
                return None;
            };
        let right = parser.parse_subexpr(precedence);
        Some(right.map(|right| distinct(Box::new(left.clone()), Box::new(right))))
    }
}

/// A number as a DOUBLE.
fn double(number: String) -> Expr {
    number_of_type(number, DataType::Double(ExactNumberInfo::None))
}

/// A number of a type that differs from that of its digits.
pub fn number_of_type(number: String, data_type: DataType) -> Expr {
    let expr = Box::new(Expr::value(Value::SingleQuotedString(number)));
    Expr::Cast { kind: CastKind::Cast, expr, data_type, array: false, format: None }
}

/// The tokens of a text.
///
/// # Errors
/// For a text that has none or is nested too deeply, and for a number that runs into a word.
pub fn tokenize(text: &str) -> Result<Vec<TokenWithSpan>> {
    let tokens = Tokenizer::new(&TerraceDialect, text).tokenize_with_location();
    let mut tokens = tokens.map_err(|e| Error::invalid(format!("SQL syntax: {e}")))?;
    nesting::check(&tokens)?;
    struct_types::with_angle_brackets(&mut tokens);
    for pair in tokens.windows(2) {
        if let [TokenWithSpan { token: number @ (Token::Number(..) | Token::HexStringLiteral(_)), span }, next] = pair
            && let Token::Word(word) = &next.token
            && word.quote_style.is_none()
        {
            // A hexadecimal string in quotes has the token of a hexadecimal number.
            let number = match number {
                Token::HexStringLiteral(digits) => format!("0x{digits}"),
                other => other.to_string(),
            };
            let word = &word.value;
            return Err(Error::invalid(format!(
                "SQL syntax: the number '{number}' runs into '{word}'{}; put a space between them if '{word}' is a name",
                span.start
            )));
        }
    }
    Ok(tokens)
}

/// The tokens of a text up to the first place where it has none, with quotes doubled as they are written, and whether that is its end.
pub(crate) fn first_tokens(text: &str) -> (Vec<TokenWithSpan>, bool) {
    let mut tokens = Vec::new();
    let mut tokenizer = Tokenizer::new(&TerraceDialect, text).with_unescape(false);
    let is_all = tokenizer.tokenize_with_location_into_buf(&mut tokens).is_ok();
    (tokens, is_all)
}

/// A parser of tokens, for statements that DataFusion's parser does not know.
pub fn parser(tokens: Vec<TokenWithSpan>) -> Parser<'static> {
    Parser::new(&TerraceDialect).with_recursion_limit(RECURSION_LIMIT).with_tokens_with_locations(tokens)
}

/// Parses tokens to statements of DataFusion's grammar.
pub(crate) fn statements(tokens: Vec<TokenWithSpan>) -> Result<Vec<Statement>> {
    let builder = DFParserBuilder::new(tokens).with_dialect(&TerraceDialect).with_recursion_limit(RECURSION_LIMIT);
    let statements = Vec::from(builder.build()?.parse_statements()?);
    statements.iter().try_for_each(check_statement)?;
    Ok(statements)
}

/// Refuses what the planner does not read, and what it would plan for very long.
fn check(tree: &impl Visit) -> Result<()> {
    unread::check(tree)?;
    relations::check(tree)
}

fn check_statement(statement: &Statement) -> Result<()> {
    match statement {
        Statement::Statement(statement) => check(statement.as_ref()),
        Statement::Explain(explain) => check_statement(&explain.statement),
        Statement::CopyTo(copy) => match &copy.source {
            datafusion::sql::parser::CopyToSource::Query(query) => check(query.as_ref()),
            datafusion::sql::parser::CopyToSource::Relation(_) => Ok(()),
        },
        Statement::CreateExternalTable(_) | Statement::Reset(_) => Ok(()),
    }
}

/// Parses a text that is one expression; `what` names the text in errors.
///
/// # Errors
/// For a text that is not one expression, and for clauses that the planner ignores.
pub fn expression(what: &str, text: &str) -> Result<Expr> {
    let wrong = |e: ParserError| Error::invalid(format!("{what} {text}: {e}"));
    let mut parser = parser(tokenize(text)?);
    let expr = parser.parse_expr().map_err(wrong)?;
    parser.expect_token(&Token::EOF).map_err(wrong)?;
    check(&expr)?;
    Ok(expr)
}

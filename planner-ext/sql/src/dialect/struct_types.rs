//! Rewrites the type `STRUCT(a INT, ..)`, as in DuckDB, to the form that the parser reads: `STRUCT<a INT, ..>`.

use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

/// Gives struct types angle brackets; calls of the function `struct` keep their parentheses.
pub(super) fn with_angle_brackets(tokens: &mut [TokenWithSpan]) {
    let places: Vec<_> = tokens
        .iter()
        .enumerate()
        .filter(|(_, token)| !matches!(token.token, Token::Whitespace(_)))
        .map(|(index, _)| index)
        .collect();
    for at in 0..places.len() {
        let token = |place: Option<usize>| Some(&tokens.get(*places.get(place?)?)?.token);
        let opens = keyword(token(Some(at))) == Some(Keyword::STRUCT)
            && token(at.checked_add(1)) == Some(&Token::LParen)
            && is_type_position(token(at.checked_sub(1)), token(at.checked_sub(2)))
            && is_field(token(at.checked_add(2)), token(at.checked_add(3)));
        let Some(close) = opens.then(|| closing(tokens, places.get(at..).unwrap_or_default())).flatten() else {
            continue;
        };
        for (place, bracket) in [(places.get(at + 1).copied(), Token::Lt), (Some(close), Token::Gt)] {
            if let Some(token) = place.and_then(|place| tokens.get_mut(place)) {
                token.token = bracket;
            }
        }
    }
}

/// True after `::`, AS or TYPE, or after the name of a column or field.
fn is_type_position(before: Option<&Token>, second: Option<&Token>) -> bool {
    match (before, second) {
        (Some(Token::DoubleColon), _) => true,
        (Some(Token::Word(word)), _) if matches!(word.keyword, Keyword::AS | Keyword::TYPE) => true,
        (Some(Token::Word(word)), Some(second)) => {
            let is_name = !matches!(word.keyword, Keyword::SELECT | Keyword::DISTINCT | Keyword::ALL | Keyword::NOT);
            let opens = matches!(second, Token::LParen | Token::Lt | Token::Comma);
            is_name && (opens || matches!(keyword(Some(second)), Some(Keyword::COLUMN | Keyword::ADD)))
        }
        _ => false,
    }
}

/// True for a name and the first word of a type.
fn is_field(name: Option<&Token>, kind: Option<&Token>) -> bool {
    let is_word = |token: Option<&Token>| matches!(token, Some(Token::Word(_)));
    let no_type = [Keyword::AS, Keyword::IS, Keyword::AND, Keyword::OR, Keyword::IN, Keyword::LIKE, Keyword::BETWEEN];
    is_word(name) && is_word(kind) && keyword(kind).is_none_or(|keyword| !no_type.contains(&keyword))
}

fn keyword(token: Option<&Token>) -> Option<Keyword> {
    match token? {
        Token::Word(word) if word.quote_style.is_none() => Some(word.keyword),
        _ => None,
    }
}

/// Index of the token that closes the parenthesis at the second of `places`.
fn closing(tokens: &[TokenWithSpan], places: &[usize]) -> Option<usize> {
    let mut depth = 0_usize;
    for place in places {
        match &tokens.get(*place)?.token {
            Token::LParen => depth += 1,
            Token::RParen if depth == 1 => return Some(*place),
            Token::RParen => depth = depth.checked_sub(1)?,
            _ => {}
        }
    }
    None
}

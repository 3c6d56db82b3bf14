//! Colours of SQL at the prompt.

use super::keywords::is_keyword;
use super::lexer::{Kind, Token, tokens};

const BOLD_BLUE: &str = "\x1b[1;34m";
const GREEN: &str = "\x1b[32m";
const CYAN: &str = "\x1b[36m";
const DIM: &str = "\x1b[2m";
const MAGENTA: &str = "\x1b[35m";
const RED: &str = "\x1b[31m";
const END: &str = "\x1b[0m";

/// The text with colours; without them it is `line`. What is not closed yet is red.
pub fn highlight(line: &str) -> String {
    let mut out = String::with_capacity(line.len() * 2);
    let mut is_command = false;
    for token in tokens(line) {
        is_command |= token.kind == Kind::Backslash;
        is_command &= !token.text.contains('\n');
        let colour = if is_command && token.kind != Kind::Space { Some(MAGENTA) } else { colour(&token) };
        match colour {
            Some(colour) => out.extend([colour, token.text, END]),
            None => out.push_str(token.text),
        }
    }
    out
}

fn colour(token: &Token<'_>) -> Option<&'static str> {
    match token.kind {
        Kind::Text | Kind::QuotedName if !token.is_closed => Some(RED),
        Kind::Text => Some(GREEN),
        Kind::Comment => Some(DIM),
        Kind::Number => Some(CYAN),
        Kind::Word if is_keyword(token.text) => Some(BOLD_BLUE),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_their_colours() {
        assert_eq!(
            highlight("select a, 'x', 1 -- no"),
            "\x1b[1;34mselect\x1b[0m a, \x1b[32m'x'\x1b[0m, \x1b[36m1\x1b[0m \x1b[2m-- no\x1b[0m"
        );
        assert_eq!(highlight("'x"), "\x1b[31m'x\x1b[0m");
        assert_eq!(highlight("\\dt\na"), "\x1b[35m\\\x1b[0m\x1b[35mdt\x1b[0m\na");
    }

    #[test]
    fn nothing_is_lost_or_added_but_colours() {
        for line in ["select 'a;''b' from \"t\" where x = $1;\n-- ü", "\\copy t from 'a b.csv'", "/* a", "select 1e3"]
        {
            let mut plain = highlight(line);
            for colour in [BOLD_BLUE, GREEN, CYAN, DIM, MAGENTA, RED, END] {
                plain = plain.replace(colour, "");
            }
            assert_eq!(plain, line);
        }
    }
}

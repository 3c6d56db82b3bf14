//! Cuts text into statements at semicolons that end one, and into commands that begin with a backslash.
//!
//! Semicolons inside strings, quoted names, comments (also nested ones) and dollar quotes do not count. A statement
//! keeps its text as written, so that positions in the server's errors are right. A command takes the rest of its line.

use super::lexer::{Kind, tokens};

/// Commands that run the unfinished statement before them.
const SENDERS: [&str; 3] = ["\\g", "\\gx", "\\watch"];

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// A statement, without its semicolon; neither empty nor only comments.
    Statement(&'a str),
    /// A command of the prompt: `\dt`.
    Command(&'a str),
    /// A statement that a command ends in place of a semicolon: `SELECT 1 \gx`.
    Sent {
        /// The statement.
        statement: &'a str,
        /// The command, with its arguments.
        command: &'a str,
    },
}

/// The parts of a text.
#[derive(Debug, PartialEq, Eq)]
pub struct Split<'a> {
    /// Its parts, in order.
    pub parts: Vec<Part<'a>>,
    /// True when the last statement has no semicolon, or a quote or comment is still open.
    pub open: bool,
    /// True when the text ends within a quote or a comment.
    pub inside: bool,
}

/// Cuts `text` into its parts.
pub fn split(text: &str) -> Split<'_> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut content = false;
    let mut inside = false;
    let mut rest = tokens(text);
    while let Some(token) = rest.next() {
        inside |= !token.is_closed;
        match token.kind {
            Kind::Space | Kind::Comment => {}
            Kind::End => {
                if content {
                    parts.extend(text.get(start..token.start).map(|text| Part::Statement(text.trim())));
                }
                (start, content) = (token.end(), false);
            }
            Kind::Backslash => {
                let line = text.get(token.start..).and_then(|rest| rest.lines().next()).unwrap_or_default();
                let command = line.trim();
                if !content {
                    parts.push(Part::Command(command));
                } else if SENDERS.contains(&name(command)) {
                    let statement = text.get(start..token.start).unwrap_or_default().trim();
                    parts.push(Part::Sent { statement, command });
                } else {
                    // The server refuses it, and names the place.
                    continue;
                }
                rest.skip_to(token.start + line.len());
                (start, content) = (token.start + line.len(), false);
            }
            _ => content = true,
        }
    }
    if content {
        parts.extend(text.get(start..).map(|text| Part::Statement(text.trim())));
    }
    Split { parts, open: content || inside, inside }
}

/// The name of a command, with its backslash and without its arguments and a semicolon.
pub fn name(command: &str) -> &str {
    let name = command.split(char::is_whitespace).next().unwrap_or_default();
    name.trim_end_matches(';')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    fn statements(text: &str) -> Vec<&str> {
        let statement = |part| match part {
            Part::Statement(text) => text,
            other => panic!("{other:?}"),
        };
        split(text).parts.into_iter().map(statement).collect()
    }

    #[test]
    fn only_semicolons_that_end_a_statement_cut() {
        assert_eq!(statements("select 1; select 2 ;; \n ;"), ["select 1", "select 2"]);
        assert_eq!(statements("select 'a;''b;'; x"), ["select 'a;''b;'", "x"]);
        assert_eq!(statements("select \"a;b\", `c;d`; x"), ["select \"a;b\", `c;d`", "x"]);
        assert_eq!(statements("select 1 -- no; not\n + 2; x"), ["select 1 -- no; not\n + 2", "x"]);
        assert_eq!(statements("/* a /* ; */ ; */ x; y"), ["/* a /* ; */ ; */ x", "y"]);
        assert_eq!(statements("select $$a;b$$, $t$;$$;$t$; y"), ["select $$a;b$$, $t$;$$;$t$", "y"]);
        assert_eq!(statements("select $1; select a$b; select $2"), ["select $1", "select a$b", "select $2"]);
        assert_eq!(statements("-- only a comment;\n /* and; another */ ;"), Vec::<&str>::new());
        assert_eq!(statements("select 'ä;ö' as ü; x"), ["select 'ä;ö' as ü", "x"]);
    }

    #[test]
    fn commands_take_their_line() {
        use Part::{Command, Sent, Statement};
        assert_eq!(split("\\dt a;b\nselect 1;").parts, [Command("\\dt a;b"), Statement("select 1")]);
        assert_eq!(split("select 1; \\x on\n\\q").parts, [Statement("select 1"), Command("\\x on"), Command("\\q")]);
        let sent = Sent { statement: "select 1", command: "\\gx" };
        assert_eq!(split("select 1 \\gx\nselect 2").parts, [sent, Statement("select 2")]);
        assert_eq!(statements("select '\\q';"), ["select '\\q'"]);
        assert_eq!(statements("select \\d;"), ["select \\d"]);
        assert_eq!((name("\\watch 2"), name("\\q;")), ("\\watch", "\\q"));
    }

    #[test]
    fn a_prompt_knows_when_to_wait_for_more() {
        for open in ["select 1", "select ';", "select 1; /* ;", "select \"x;", "select $$;"] {
            assert!(split(open).open, "{open}");
        }
        for done in ["select 1;", "select ';';", "", "  ", "-- comment", "select 1; -- done", "\\d", "select 1 \\g"] {
            assert!(!split(done).open, "{done}");
        }
        assert!(split("select 'a").inside && split("/* a").inside && !split("select 1").inside);
    }

    proptest! {
        #[test]
        fn nothing_but_separators_is_lost(text in "[a;'\"$/*\\- \n0ü]{0,40}") {
            let parts = split(&text).parts;
            let statements: Vec<&str> = parts.iter().filter_map(|part| match part {
                Part::Statement(text) => Some(*text),
                _ => None,
            }).collect();
            for statement in &statements {
                prop_assert!(text.contains(statement) && !statement.is_empty());
            }
            let kept: usize = statements.iter().map(|s| s.matches('a').count()).sum();
            let commented = text.contains("--") || text.contains("/*");
            prop_assert!(commented || kept == text.matches('a').count());
        }
    }
}

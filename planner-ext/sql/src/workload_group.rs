//! Statements on workload groups.
//!
//! ```text
//!   CREATE WORKLOAD GROUP name [WITH (option = value, ..)]
//!   ALTER WORKLOAD GROUP name SET (option = value, ..)
//!   DROP WORKLOAD GROUP [IF EXISTS] name
//!
//!   users = 'etl, dbt'   priority = 200   weight = 3   memory = '25%' | none   max_running = 2 | none   timeout = '2h' | none
//! ```

use std::collections::HashMap;
use std::str::FromStr;

use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use terrace_error::{Error, Result};
use terrace_model::units::{Size, Span};

use crate::dialect;
use crate::grantable::{Parsed, expect_word, name};
use crate::option_list::{options, refuse_unknown, take_option};
use crate::rule::{is_word, take_word};

/// A parsed statement on workload groups.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkloadGroupCommand {
    /// CREATE WORKLOAD GROUP.
    Create {
        /// Its name.
        name: String,
        /// Its settings; the others are those of a group without limits.
        settings: GroupSettings,
    },
    /// ALTER WORKLOAD GROUP.
    Alter {
        /// Its name.
        name: String,
        /// The settings that change.
        settings: GroupSettings,
    },
    /// DROP WORKLOAD GROUP.
    Drop {
        /// Its name.
        name: String,
        /// Whether to pass over a group that does not exist.
        if_exists: bool,
    },
}

/// The settings of a workload group that a statement gives; `None` where it gives none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupSettings {
    /// Users and roles whose sessions start in it.
    pub users: Option<Vec<String>>,
    /// Statements of a higher priority take slots first.
    pub priority: Option<u32>,
    /// Its share of the slots beside other groups of its priority.
    pub weight: Option<u32>,
    /// Query memory of its statements; a percentage is of all query memory.
    pub memory: Option<Limit<Size>>,
    /// Its statements that run at the same time.
    pub max_running: Option<Limit<usize>>,
    /// Longest execution of its statements.
    pub timeout: Option<Limit<Span>>,
}

/// A limit; `None`: no limit, which SQL writes as `none`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limit<T>(pub Option<T>);

impl<T: FromStr> FromStr for Limit<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> std::result::Result<Self, T::Err> {
        if text.trim().eq_ignore_ascii_case("none") {
            Ok(Self(None))
        } else {
            text.parse().map(|limit| Self(Some(limit)))
        }
    }
}

impl GroupSettings {
    fn from_options(mut options: HashMap<String, String>) -> Result<Self> {
        let names = |list: String| {
            let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
            names.map(str::to_owned).collect()
        };
        let settings = Self {
            users: options.remove("users").map(names),
            priority: take_option(&mut options, "priority")?,
            weight: take_option(&mut options, "weight")?,
            memory: take_option(&mut options, "memory")?,
            max_running: take_option(&mut options, "max_running")?,
            timeout: take_option(&mut options, "timeout")?,
        };
        refuse_unknown(&options, "a workload group", "users, priority, weight, memory, max_running and timeout")?;
        let is_least = |limit: Limit<Size>| limit.0.is_some_and(|size| size.resolve(1 << 30) == 0);
        let is_over = |limit: Limit<Span>| limit.0.is_some_and(|span| span.0.is_zero());
        if settings.weight == Some(0) || settings.max_running == Some(Limit(Some(0))) {
            return Err(Error::invalid("weight and max_running of a workload group must be at least 1"));
        }
        if settings.memory.is_some_and(is_least) || settings.timeout.is_some_and(is_over) {
            return Err(Error::invalid("memory and timeout of a workload group must be above 0; none is no limit"));
        }
        Ok(settings)
    }
}

/// Whether a statement is one of this file; `tokens` holds no white space.
pub(crate) fn is_workload_group(tokens: &[&Token]) -> bool {
    let [verb, workload, group, ..] = tokens else { return false };
    let is_verb = ["create", "alter", "drop"].iter().any(|word| is_word(verb, word));
    is_verb && is_word(workload, "workload") && is_word(group, "group")
}

/// Parses a statement that [`is_workload_group`] recognised.
pub(crate) fn parse(tokens: Vec<TokenWithSpan>) -> Result<WorkloadGroupCommand> {
    let mut parser = dialect::parser(tokens);
    let (parsed, form) = match () {
        () if take_word(&mut parser, "create") => {
            (create(&mut parser), "CREATE WORKLOAD GROUP name [WITH (priority = 200, ..)]")
        }
        () if take_word(&mut parser, "alter") => {
            (alter(&mut parser), "ALTER WORKLOAD GROUP name SET (priority = 200, ..)")
        }
        () => (drop_group(&mut parser), "DROP WORKLOAD GROUP [IF EXISTS] name"),
    };
    let command = parsed.map_err(|error| Error::invalid(format!("SQL syntax: {error}; write {form}")))??;
    let _ = parser.consume_token(&Token::SemiColon);
    match &parser.peek_token_ref().token {
        Token::EOF => Ok(command),
        other => Err(Error::invalid(format!("SQL syntax: '{other}' is not expected; write {form}"))),
    }
}

fn expect_group(parser: &mut Parser<'_>) -> std::result::Result<(), ParserError> {
    expect_word(parser, "workload")?;
    expect_word(parser, "group")
}

fn create(parser: &mut Parser<'_>) -> Parsed<WorkloadGroupCommand> {
    expect_group(parser)?;
    let name = name(parser)?;
    let settings = match is_word(&parser.peek_token_ref().token, "with") {
        true => options(parser, "with")?.and_then(GroupSettings::from_options),
        false => Ok(GroupSettings::default()),
    };
    Ok(settings.map(|settings| WorkloadGroupCommand::Create { name, settings }))
}

fn alter(parser: &mut Parser<'_>) -> Parsed<WorkloadGroupCommand> {
    expect_group(parser)?;
    let name = name(parser)?;
    let settings = options(parser, "set")?.and_then(GroupSettings::from_options);
    Ok(settings.map(|settings| WorkloadGroupCommand::Alter { name, settings }))
}

fn drop_group(parser: &mut Parser<'_>) -> Parsed<WorkloadGroupCommand> {
    expect_word(parser, "drop")?;
    expect_group(parser)?;
    let if_exists = take_word(parser, "if");
    if if_exists {
        expect_word(parser, "exists")?;
    }
    Ok(Ok(WorkloadGroupCommand::Drop { name: name(parser)?, if_exists }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::time::Duration;

    use super::*;
    use crate::command::Action;

    fn parsed(sql: &str) -> WorkloadGroupCommand {
        match crate::parse(sql).unwrap().action {
            Action::WorkloadGroup(command) => command,
            other => panic!("{sql}: {other:?}"),
        }
    }

    #[test]
    fn statements_are_told_apart() {
        let sql = "create workload group Loads with (users = 'etl, dbt', priority = 50, weight 3, memory = '25%', max_running = 2, \
                   timeout = '2h');";
        let settings = GroupSettings {
            users: Some(vec!["etl".into(), "dbt".into()]),
            priority: Some(50),
            weight: Some(3),
            memory: Some(Limit(Some(Size::Percent(25.0)))),
            max_running: Some(Limit(Some(2))),
            timeout: Some(Limit(Some(Span(Duration::from_secs(7200))))),
        };
        assert_eq!(parsed(sql), WorkloadGroupCommand::Create { name: "loads".into(), settings });
        let settings = GroupSettings::default();
        assert_eq!(parsed("CREATE WORKLOAD GROUP g"), WorkloadGroupCommand::Create { name: "g".into(), settings });
        let settings = GroupSettings {
            users: Some(Vec::new()),
            memory: Some(Limit(None)),
            max_running: Some(Limit(None)),
            ..GroupSettings::default()
        };
        let alter = "ALTER WORKLOAD GROUP \"G\" SET (users = '', memory = none, max_running = 'None')";
        assert_eq!(parsed(alter), WorkloadGroupCommand::Alter { name: "G".into(), settings });
        let dropped = WorkloadGroupCommand::Drop { name: "g".into(), if_exists: true };
        assert_eq!(parsed("drop workload group if exists g"), dropped);
        assert!(crate::parse("create workload group g").unwrap().privilege().changes_server());
    }

    #[test]
    fn refusals_say_what_to_write() {
        for (sql, words) in [
            ("create workload group", "CREATE WORKLOAD GROUP name"),
            ("create workload group 'g'", "CREATE WORKLOAD GROUP name"),
            ("create workload group g (weight = 2)", "CREATE WORKLOAD GROUP name"),
            ("create workload group g with (wight = 2)", "no option wight; its options are users"),
            ("create workload group g with (weight = 0)", "at least 1"),
            ("create workload group g with (weight = -1)", "a value"),
            ("create workload group g with (weight = 2, weight = 3)", "given twice"),
            ("create workload group g with (memory = 0)", "above 0"),
            ("create workload group g with (memory = much)", "is not a size"),
            ("create workload group g with (priority = none)", "priority = 'none'"),
            ("alter workload group g", "SET (name = value"),
            ("alter workload group g set (max_running = 0)", "at least 1"),
            ("alter workload group g set (timeout = '0s')", "above 0"),
            ("drop workload group if g", "DROP WORKLOAD GROUP"),
            ("drop workload group g cascade", "'cascade' is not expected"),
        ] {
            let error = crate::parse(sql).unwrap_err();
            assert!(error.message().contains(words), "{sql}: {error}");
        }
    }
}

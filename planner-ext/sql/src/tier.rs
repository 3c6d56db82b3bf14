//! ALTER SYSTEM .. TIER: adds, changes, drains, resumes, drops and calibrates tiers.
//!
//! ```text
//!   ALTER SYSTEM ADD TIER name WITH (path = '..' | emulated = true, capacity = '64GiB' [, budget = '32GiB'] [, slow = true])
//!   ALTER SYSTEM ALTER TIER name SET (budget = '32GiB' | '20%', rate_limit = '100MiB')
//!   ALTER SYSTEM DRAIN TIER name
//!   ALTER SYSTEM RESUME TIER name
//!   ALTER SYSTEM DROP TIER name
//!   ALTER SYSTEM CALIBRATE TIERS
//! ```

use std::collections::HashMap;
use std::path::PathBuf;

use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use terrace_error::{Error, Result};
use terrace_model::units::Size;

use crate::normalized;
use crate::option_list::{options, refuse_unknown, take_option};
use crate::rule::take_word;

/// A parsed statement on tiers.
#[derive(Debug, Clone)]
pub enum TierCommand {
    /// ADD TIER.
    Add(TierSpec),
    /// ALTER TIER .. SET.
    Set {
        /// Name of the tier.
        name: String,
        /// Bytes that segments may take.
        budget: Option<Size>,
        /// Bytes per second that moves may read and write.
        rate_limit: Option<Size>,
    },
    /// DRAIN TIER name.
    Drain(String),
    /// RESUME TIER name.
    Resume(String),
    /// DROP TIER name.
    Drop(String),
    /// CALIBRATE TIERS.
    Calibrate,
}

/// A new tier, as ADD TIER describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct TierSpec {
    /// Its name.
    pub name: String,
    /// Its pool file, folder or device.
    pub path: Option<PathBuf>,
    /// Whether to use memory of the server instead of a device.
    pub emulated: bool,
    /// Size of the pool.
    pub capacity: Size,
    /// Bytes that segments may take; `None`: all of the pool.
    pub budget: Option<Size>,
    /// Whether to slow it down to the speed of a persistent memory module.
    pub slow: bool,
}

/// Parses the rest of an ALTER SYSTEM; `None` when it is not about tiers.
pub(crate) fn command(parser: &mut Parser<'_>) -> std::result::Result<Option<Result<TierCommand>>, ParserError> {
    if take_word(parser, "calibrate") {
        return match take_word(parser, "tiers") {
            true => Ok(Some(Ok(TierCommand::Calibrate))),
            false => parser.expected("TIERS", parser.peek_token()),
        };
    }
    let verbs = ["add", "alter", "drain", "resume", "drop"];
    let Some(verb) = verbs.into_iter().find(|verb| take_word(parser, verb)) else { return Ok(None) };
    if !take_word(parser, "tier") {
        return parser.expected("TIER", parser.peek_token());
    }
    let name = normalized(&parser.parse_identifier()?);
    let command = match verb {
        "add" => options(parser, "with")?.and_then(|options| tier_order(name, options).map(TierCommand::Add)),
        "alter" => options(parser, "set")?.and_then(|options| tier_change(name, options)),
        "drain" => Ok(TierCommand::Drain(name)),
        "resume" => Ok(TierCommand::Resume(name)),
        _ => Ok(TierCommand::Drop(name)),
    };
    Ok(Some(command))
}

fn tier_order(name: String, mut options: HashMap<String, String>) -> Result<TierSpec> {
    let missing = || Error::invalid("a tier needs a capacity, such as WITH (path = '/mnt/pmem1', capacity = '64GiB')");
    let order = TierSpec {
        name,
        path: options.remove("path").map(PathBuf::from),
        emulated: take_option(&mut options, "emulated")?.unwrap_or(false),
        capacity: take_option(&mut options, "capacity")?.ok_or_else(missing)?,
        budget: take_option(&mut options, "budget")?,
        slow: take_option(&mut options, "slow")?.unwrap_or(false),
    };
    refuse_unknown(&options, "a tier", "path, emulated, capacity, budget and slow").map(|()| order)
}

fn tier_change(name: String, mut options: HashMap<String, String>) -> Result<TierCommand> {
    let budget = take_option(&mut options, "budget")?;
    let rate_limit = take_option(&mut options, "rate_limit")?;
    refuse_unknown(&options, "a tier", "budget and rate_limit")?;
    match (budget, rate_limit) {
        (None, None) => Err(Error::invalid("say what to set, such as SET (budget = '4GiB', rate_limit = '100MiB')")),
        (budget, rate_limit) => Ok(TierCommand::Set { name, budget, rate_limit }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use crate::command::Action;
    use crate::parse;
    use crate::tiering_commands::TieringCommand;

    fn parse_tier_command(sql: &str) -> TierCommand {
        match parse(sql).unwrap().action {
            Action::Tiering(TieringCommand::Tier(command)) => command,
            other => panic!("{sql}: {other:?}"),
        }
    }

    #[test]
    fn words_become_orders() {
        let sql = "alter system add tier Nvm2 with (path = '/mnt/pmem1', capacity = '64GiB', budget '25%', slow);";
        let TierCommand::Add(order) = parse_tier_command(sql) else { panic!() };
        let path = Some(PathBuf::from("/mnt/pmem1"));
        let budget = Some(Size::Percent(25.0));
        let capacity = Size::Bytes(64 << 30);
        assert_eq!(order, TierSpec { name: "nvm2".into(), path, emulated: false, capacity, budget, slow: true });
        let TierCommand::Add(order) =
            parse_tier_command("alter system add tier e with (emulated = true, capacity = 4096)")
        else {
            panic!()
        };
        assert!(order.emulated && order.capacity == Size::Bytes(4096));
        assert!(
            matches!(parse_tier_command("ALTER SYSTEM ALTER TIER dram SET (budget = '10%')"), TierCommand::Set { name, budget: Some(_), rate_limit: None } if name == "dram")
        );
        let both = parse_tier_command("alter system alter tier nvm set (rate_limit = '100MiB', budget = 4096)");
        let budget = Some(Size::Bytes(4096));
        let rate = Some(Size::Bytes(100 << 20));
        assert!(matches!(both, TierCommand::Set { budget: b, rate_limit: r, .. } if (b, r) == (budget, rate)));
        assert!(matches!(parse_tier_command("alter system drain tier nvm"), TierCommand::Drain(name) if name == "nvm"));
        assert!(matches!(parse_tier_command("alter system resume tier nvm;"), TierCommand::Resume(_)));
        assert!(matches!(parse_tier_command("alter system drop tier \"nvm\""), TierCommand::Drop(_)));
        assert!(matches!(parse_tier_command("alter system calibrate tiers"), TierCommand::Calibrate));
    }

    #[test]
    fn refusals_say_what_is_expected() {
        for (sql, words) in [
            ("alter system drain nvm", "TIER"),
            ("alter system drain tier", "identifier"),
            ("alter system drop tier nvm now", "EOF"),
            ("alter system calibrate dram", "TIERS"),
            ("alter system add tier a", "WITH (name = value"),
            ("alter system add tier a with (emulated = true)", "needs a capacity"),
            ("alter system add tier a with (emulated = perhaps, capacity = 1)", "emulated = 'perhaps'"),
            ("alter system add tier a with (capacity = 'lots')", "is not a size"),
            ("alter system add tier a with (capacity = 1, capacity = 2)", "given twice"),
            ("alter system add tier a with (capacity = 1, kind = 'nvm')", "no option kind"),
            (
                "alter system alter tier a set (capacity = 1)",
                "no option capacity; its options are budget and rate_limit",
            ),
            ("alter system alter tier a set budget = 1", "Expected: ("),
            ("alter system move tier a", "SET tiering"),
        ] {
            let error = parse(sql).unwrap_err();
            assert!(error.message().contains(words), "{sql}: {error}");
        }
    }
}

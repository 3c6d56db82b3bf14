//! `terrace user`: users of a data directory that no server uses: the first one, and the way back in.

use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use terrace_access::{AccessError, Event, EventKind, NewUser, Origin, Principal, User, UserChange};
use terrace_tier_store::store::CATALOG_FILE;

use crate::config::{self, Config, ConfigOverride};
use crate::error::{Error, Result};
use crate::instance::Instance;
use crate::terminal::outln;

/// What to do.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a user; the first one is a superuser
    Create {
        /// Name of the user
        name: String,
        /// Let the user make, change and drop others
        #[arg(long)]
        superuser: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Give a user a new password and the rights of a superuser; makes the user if there is none
    Reset {
        /// Name of the user
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// List the users
    List {
        #[command(flatten)]
        place: Place,
        /// Print the list as JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
struct Place {
    /// The data directory; no server may have it open
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<()> {
    match &options.action {
        Action::Create { name, superuser, place } => {
            let instance = place.open()?;
            let users = instance.engine.users();
            let is_first = users.users().iter().all(|user| user.made_unix_us.is_none());
            let is_superuser = *superuser || is_first;
            let new = NewUser { name: name.clone(), password: ask_password(name)?, is_superuser };
            users.create_user(&me(), &new).map_err(failed)?;
            record(&instance, &format!("create {name}"));
            outln!("user '{name}' made{}", if is_superuser { ", a superuser" } else { "" });
            instance.flush()
        }
        Action::Reset { name, place } => {
            let instance = place.open_existing()?;
            let users = instance.engine.users();
            let password = ask_password(name)?;
            let change = UserChange { password: Some(password.clone()), is_superuser: Some(true) };
            match users.alter_user(&me(), name, &change) {
                Err(AccessError::Missing { .. }) => {
                    let new = NewUser { name: name.clone(), password, is_superuser: true };
                    users.create_user(&me(), &new).map_err(failed)?;
                    outln!("user '{name}' made, a superuser");
                }
                changed => {
                    changed.map_err(failed)?;
                    outln!("user '{name}' has a new password, and is a superuser");
                }
            }
            record(&instance, &format!("reset {name}"));
            instance.flush()
        }
        Action::List { place, json } => {
            let instance = place.open_existing()?;
            print(&instance.engine.users().users(), *json);
            instance.flush()
        }
    }
}

fn print(users: &[User], json: bool) {
    if json {
        let user = |user: &User| {
            serde_json::json!({
                "name": user.name, "is_superuser": user.is_superuser, "is_configured": user.made_unix_us.is_none(),
            })
        };
        outln!("{}", serde_json::Value::from(users.iter().map(user).collect::<Vec<_>>()));
        return;
    }
    let width = users.iter().map(|user| user.name.chars().count()).max().unwrap_or(0).max(4);
    outln!("{:<width$}  superuser", "name");
    for user in users {
        let source = if user.made_unix_us.is_none() { "  (of the configuration)" } else { "" };
        outln!("{:<width$}  {}{source}", user.name, if user.is_superuser { "yes" } else { "no" });
    }
}

/// Whoever can write to the data directory may change its users.
fn me() -> Principal {
    Principal::inside("terrace user")
}

/// Records a change in the audit trail, where the environment names its file (`TERRACE_AUDIT_FILE`).
fn record(instance: &Instance, text: &str) {
    let event = Event::new(EventKind::Access, "terrace user", &me().user, Origin::default());
    instance.engine.audit().record(event.with_text(text));
}

fn failed(error: AccessError) -> Error {
    Error::System(error.to_string())
}

impl Place {
    /// Opens a data directory that is there already.
    fn open_existing(&self) -> Result<Instance> {
        if !self.data_dir.join(CATALOG_FILE).is_file() {
            return Err(Error::file(&self.data_dir, "it is no data directory"));
        }
        self.open()
    }

    fn open(&self) -> Result<Instance> {
        let flags = vec![
            ConfigOverride::flag("--data-dir", "data_dir", self.data_dir.display()),
            ConfigOverride::flag("user", "tiering.enabled", "false"),
        ];
        Instance::open(&Config::load(None, config::environment(), flags)?)
    }
}

/// The new password: asked for twice at a terminal, else the first line of standard input. It is never an argument, which other
/// users of the machine could see.
fn ask_password(name: &str) -> Result<String> {
    let failed = |error: std::io::Error| Error::System(format!("cannot read the password: {error}"));
    if !std::io::stdin().is_terminal() {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map_err(failed)?;
        return Ok(line.trim_end_matches(['\r', '\n']).to_owned());
    }
    let password = rpassword::prompt_password(format!("New password of '{name}': ")).map_err(failed)?;
    if rpassword::prompt_password("The same again: ").map_err(failed)? != password {
        return Err(Error::System("the passwords differ; nothing was changed".to_owned()));
    }
    Ok(password)
}

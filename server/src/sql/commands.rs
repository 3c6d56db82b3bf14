//! Commands that begin with a backslash. They work at the prompt, in files and in arguments alike.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::copy::{copy, file_name};
use super::describe::{self, Kinds};
use super::editor;
use super::output::{Expanded, Format};
use super::shell::{Flow, Shell};
use super::split;
use super::target::Target;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::profiles::ConnectionOptions;
use crate::terminal::{errln, outln};

/// What `\?` shows.
const HELP: &str = "\
SQL ends with a semicolon and may span lines. Tab completes, Ctrl-R searches the history, Ctrl-C cancels.

  \\d [NAME]            tables and views, or the columns of one
  \\dt [PATTERN]        tables, with their rows and bytes; system.* are those of the server
  \\dv [PATTERN]        views
  \\l                   catalogs and schemas
  \\x [on|off|auto]     a line per value; auto: when a table is wider than the terminal
  \\g, \\gx             run the statement before it, or the last one; \\gx with a line per value
  \\watch [SECONDS]     run it again and again, every 2 seconds, until Ctrl-C
  \\e [FILE]            change the last statement, or a file, in your editor (VISUAL, EDITOR)
  \\i FILE              run the statements and commands of a file
  \\o [FILE]            write results to a file; without FILE to the terminal again
  \\copy TABLE FROM FILE, \\copy TABLE TO FILE, \\copy (QUERY) TO FILE
                       rows from or to a file of this machine, in the format of its ending
  \\pset [NAME [VALUE]] settings: format, expanded, pager, timing
  \\timing [on|off]     whether times are shown
  \\c [PROFILE|URL]     another server, of a profile or at an address; without one: \\conninfo
  \\conninfo            where this connection leads to
  \\q, quit, exit       leave (or Ctrl-D)";

/// Seconds between two runs of `\watch`.
const WATCH_S: f64 = 2.0;
const LEAST_WATCH_S: f64 = 0.1;
/// Names of settings.
const SETTINGS: [&str; 4] = ["format", "expanded", "pager", "timing"];

impl Shell {
    /// Runs a command.
    ///
    /// # Errors
    /// For an unknown command and bad arguments, and those of what it does.
    pub fn run_command(&mut self, line: &str) -> Result<Flow> {
        let name = split::name(line);
        let argument = line.get(name.len()..).unwrap_or_default().trim().trim_end_matches(';').trim_end();
        match name {
            "\\q" | "\\quit" | "\\exit" => return Ok(Flow::Quit),
            "\\e" | "\\edit" => return self.edit(argument),
            "\\i" | "\\include" => return self.run_file(&wanted_file(name, argument)?),
            "\\?" | "\\h" | "\\help" => outln!("{HELP}"),
            "\\d" if !argument.is_empty() => describe::table(self, argument)?,
            "\\d" => describe::list(self, "", Kinds::All)?,
            "\\dt" => describe::list(self, argument, Kinds::Tables)?,
            "\\dv" => describe::list(self, argument, Kinds::Views)?,
            "\\l" | "\\dn" => describe::schemas(self)?,
            "\\x" => self.expand(argument)?,
            "\\timing" => {
                self.settings.has_timing = switched(argument, self.settings.has_timing)?;
                self.show_setting("timing");
            }
            "\\pset" => self.set(argument)?,
            "\\o" => self.write_to(argument)?,
            "\\g" => self.repeat()?,
            "\\gx" => {
                let before = std::mem::replace(&mut self.settings.expanded, Expanded::On);
                let done = self.repeat();
                self.settings.expanded = before;
                done?;
            }
            "\\copy" => copy(self, argument)?,
            "\\watch" => self.watch(argument)?,
            "\\c" | "\\connect" if !argument.is_empty() => self.connect(argument)?,
            "\\c" | "\\connect" | "\\conninfo" => outln!("{}", self.connection.describe()),
            _ => return Err(Error::Usage(format!("unknown command {name}; \\? lists all"))),
        }
        Ok(Flow::Continue)
    }

    fn edit(&mut self, argument: &str) -> Result<Flow> {
        if !self.is_prompt {
            return Err(Error::Usage("\\e works at the prompt only".to_owned()));
        }
        if argument.is_empty() {
            return Ok(Flow::Edit(editor::edit(self.last.as_deref().unwrap_or_default())?));
        }
        let path = wanted_file("\\e", argument)?;
        editor::edit_file(&path)?;
        Ok(Flow::Edit(super::read_text(&path)?))
    }

    /// Leads the connection to another server. Where that fails, it stays as it is.
    fn connect(&mut self, place: &str) -> Result<()> {
        let connection = ConnectionOptions::at(place).resolve()?;
        self.client = self.runtime.block_on(Client::connect(&connection))?;
        self.connection = connection;
        self.is_elsewhere = true;
        outln!("{}", self.connection.describe());
        Ok(())
    }

    fn expand(&mut self, argument: &str) -> Result<()> {
        self.settings.expanded = match (argument, self.settings.expanded) {
            ("on", _) => Expanded::On,
            ("off", _) => Expanded::Off,
            ("auto", _) => Expanded::Auto,
            ("", Expanded::On) => Expanded::Off,
            ("", _) => Expanded::On,
            _ => return Err(Error::Usage("write \\x on, off or auto".to_owned())),
        };
        self.show_setting("expanded");
        Ok(())
    }

    /// `\pset`: shows or changes settings.
    fn set(&mut self, argument: &str) -> Result<()> {
        let (name, value) = argument.split_once(char::is_whitespace).unwrap_or((argument, ""));
        let value = value.trim();
        match name {
            "" => SETTINGS.into_iter().for_each(|name| self.show_setting(name)),
            name if value.is_empty() && SETTINGS.contains(&name) => self.show_setting(name),
            "format" => {
                let format = <Format as clap::ValueEnum>::from_str(value, true);
                self.settings.format = Some(format.map_err(|_| {
                    let names = <Format as clap::ValueEnum>::value_variants().iter().map(|format| format.name());
                    Error::Usage(format!("there is no format '{value}': {}", names.collect::<Vec<_>>().join(", ")))
                })?);
                self.show_setting(name);
            }
            "expanded" => return self.expand(value),
            "pager" => {
                self.settings.is_paged = switched(value, self.settings.is_paged)?;
                self.show_setting(name);
            }
            "timing" => {
                self.settings.has_timing = switched(value, self.settings.has_timing)?;
                self.show_setting(name);
            }
            _ => return Err(Error::Usage(format!("there is no setting '{name}': {}", SETTINGS.join(", ")))),
        }
        Ok(())
    }

    fn show_setting(&self, name: &str) {
        let on_off = |is_on: bool| if is_on { "on" } else { "off" };
        let value = match name {
            "format" => self.settings.format.unwrap_or(Format::Table).name(),
            "expanded" => self.settings.expanded.name(),
            "pager" => on_off(self.settings.is_paged),
            _ => on_off(self.settings.has_timing),
        };
        errln!("{name} is {value}");
    }

    fn write_to(&mut self, argument: &str) -> Result<()> {
        self.target = match argument {
            "" => Target::standard(),
            file => Target::file(&wanted_file("\\o", file)?)?,
        };
        Ok(())
    }

    fn repeat(&mut self) -> Result<()> {
        let last = self.last.clone().ok_or_else(|| Error::Usage("there is no statement yet".to_owned()))?;
        self.run_statement(&last)
    }

    /// Runs the last statement until Ctrl-C.
    fn watch(&mut self, argument: &str) -> Result<()> {
        let last = self.last.clone().ok_or_else(|| Error::Usage("there is no statement yet".to_owned()))?;
        let seconds = match argument {
            "" => Some(WATCH_S),
            text => text.parse().ok().filter(|seconds: &f64| (LEAST_WATCH_S..=86_400.0).contains(seconds)),
        };
        let seconds = seconds.ok_or_else(|| Error::Usage("write \\watch SECONDS, such as \\watch 5".to_owned()))?;
        let is_paged = std::mem::replace(&mut self.settings.is_paged, false);
        let done = self.watch_every(&last, Duration::from_secs_f64(seconds));
        self.settings.is_paged = is_paged;
        done
    }

    fn watch_every(&mut self, statement: &str, pause: Duration) -> Result<()> {
        // One listener for all of the time: a key that is pressed between two waits counts, too.
        let mut interrupts = self
            .runtime
            .block_on(async { signal(SignalKind::interrupt()) })
            .map_err(|error| Error::System(format!("cannot listen for signals: {error}")))?;
        while self.try_statement(statement)? {
            let is_over = self.runtime.block_on(async {
                tokio::select! {
                    biased;
                    _ = interrupts.recv() => true,
                    () = tokio::time::sleep(pause) => false,
                }
            });
            if is_over {
                break;
            }
        }
        Ok(())
    }
}

/// The new state of a switch; without an argument, the other one.
fn switched(argument: &str, is_on: bool) -> Result<bool> {
    match argument {
        "" => Ok(!is_on),
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(Error::Usage(format!("'{argument}' is neither on nor off"))),
    }
}

fn wanted_file(command: &str, argument: &str) -> Result<std::path::PathBuf> {
    file_name(argument).ok_or_else(|| Error::Usage(format!("{command} wants the name of a file")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn switches_turn_and_say_what_they_want() {
        assert!(switched("", false).unwrap() && switched("on", true).unwrap() && !switched("off", true).unwrap());
        assert_eq!(switched("maybe", true).unwrap_err().to_string(), "'maybe' is neither on nor off");
    }

    #[test]
    fn every_format_has_the_name_that_options_have() {
        for format in <Format as clap::ValueEnum>::value_variants() {
            assert_eq!(<Format as clap::ValueEnum>::from_str(format.name(), false).as_ref(), Ok(format));
        }
    }

    #[test]
    fn help_fits_a_terminal() {
        assert!(HELP.lines().all(|line| line.len() <= 110), "{HELP}");
    }
}

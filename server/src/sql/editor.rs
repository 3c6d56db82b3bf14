//! `\e`: a statement in the user's editor.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use crate::error::{Error, Result};

/// The text after the user has changed it in the editor: `VISUAL`, else `EDITOR`, else `vi`.
///
/// # Errors
/// When the editor cannot be run, or says that it failed.
pub fn edit(text: &str) -> Result<String> {
    let failed = |e: std::io::Error| Error::System(format!("cannot make a file for the editor: {e}"));
    let mut file = tempfile::Builder::new().prefix("terrace-").suffix(".sql").tempfile().map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.flush()).map_err(failed)?;
    edit_file(file.path())?;
    std::fs::read_to_string(file.path()).map_err(|e| Error::file(file.path(), format!("cannot read it: {e}")))
}

/// Lets the user change a file.
///
/// # Errors
/// As [`edit`].
pub fn edit_file(path: &Path) -> Result<()> {
    let mut named = ["VISUAL", "EDITOR"].into_iter().filter_map(|name| std::env::var(name).ok());
    let editor = named.find(|editor| !editor.trim().is_empty()).unwrap_or_else(|| "vi".to_owned());
    // The shell splits the editor's arguments; the path is an argument of its own.
    let status = Command::new("sh").arg("-c").arg(format!("{editor} \"$0\"")).arg(path).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::System(format!("the editor '{editor}' ended with {status}; set EDITOR"))),
        Err(e) => Err(Error::System(format!("cannot run the editor '{editor}': {e}"))),
    }
}

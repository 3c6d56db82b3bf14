//! Patterns of paths in quotes, which the shell does not expand: `'sales/*.parquet'`, `'events/**/2024-??.csv.gz'`.

use std::path::{Path, PathBuf};

use glob::{MatchOptions, glob_with};

use super::files::collect;
use crate::error::{Error, Result};

/// Characters that make a path a pattern.
const WILDCARDS: [char; 3] = ['*', '?', '['];

/// True for a text with a wildcard.
pub fn is_pattern(text: &str) -> bool {
    text.contains(WILDCARDS)
}

/// The folder of a pattern up to its first wildcard.
pub fn top(pattern: &str) -> PathBuf {
    let named = Path::new(pattern).components().take_while(|part| !is_pattern(&part.as_os_str().to_string_lossy()));
    let top: PathBuf = named.collect();
    if top.as_os_str().is_empty() { PathBuf::from(".") } else { top }
}

/// The files that match, and those below folders that match, in order of their names. Leaves out names that start with a dot
/// or an underscore, as [`collect`] does.
///
/// # Errors
/// For a pattern that is none, for folders that cannot be read, and when nothing matches.
pub fn files(pattern: &str, any_form: bool) -> Result<Vec<PathBuf>> {
    let options =
        MatchOptions { require_literal_separator: true, require_literal_leading_dot: true, ..MatchOptions::new() };
    let matches = glob_with(pattern, options).map_err(|e| Error::Usage(format!("'{pattern}' is no pattern: {e}")))?;
    let mut files = Vec::new();
    for found in matches {
        let path = found.map_err(|e| Error::file(e.path(), format!("cannot read it: {}", e.error())))?;
        let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('_'));
        if path.is_dir() {
            collect(&path, any_form, &mut files)?;
        } else if !is_hidden {
            files.push(path);
        }
    }
    files.sort();
    // Of a pattern such as `**`, a folder and what is in it.
    files.dedup();
    if files.is_empty() {
        return Err(Error::Usage(format!("no file matches '{pattern}'")));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_folder_of_a_pattern_has_no_wildcard() {
        for (pattern, expected) in
            [("sales/*.parquet", "sales"), ("/data/day=*/part-?.csv", "/data"), ("*.csv", "."), ("a/b[12]/c.csv", "a")]
        {
            assert_eq!(top(pattern), Path::new(expected), "{pattern}");
        }
    }

    #[test]
    fn patterns_find_files_in_order() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a=2/x.csv", "a=1/y.csv", "a=1/_SUCCESS", "a=1/.hidden.csv", "a=1/z.txt", "deep/er/w.csv"] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "k\n1\n").unwrap();
        }
        let found = |pattern: &str| {
            let pattern = folder.path().join(pattern);
            let found = files(pattern.to_str().unwrap(), false);
            found.map(|files| {
                let names =
                    files.iter().map(|path| path.strip_prefix(folder.path()).unwrap().to_str().unwrap().to_owned());
                names.collect::<Vec<_>>()
            })
        };
        assert_eq!(found("a=*/*.csv").unwrap(), ["a=1/y.csv", "a=2/x.csv"]);
        assert_eq!(found("a=*").unwrap(), ["a=1/y.csv", "a=2/x.csv"]);
        assert_eq!(found("**/*.csv").unwrap(), ["a=1/y.csv", "a=2/x.csv", "deep/er/w.csv"]);
        assert_eq!(found("a=1/*").unwrap(), ["a=1/y.csv", "a=1/z.txt"]);
        assert!(found("b*").unwrap_err().to_string().contains("no file matches"));
        assert!(found("a***").unwrap_err().to_string().contains("no pattern"));
    }
}

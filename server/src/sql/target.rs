//! Where results go: the terminal, through a pager, or a file.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use super::output::{Expanded, Format, Look};
use super::pager::{self, Pager};
use crate::error::{Error, Result};
use crate::terminal;

/// Where the results of statements go.
#[derive(Debug)]
pub enum Target {
    /// Standard output.
    Standard {
        /// True once a binary result was written to it.
        is_taken: bool,
    },
    /// A file.
    File(OpenFile),
}

/// A file for results.
#[derive(Debug)]
pub struct OpenFile {
    path: PathBuf,
    /// The format that its name stands for.
    format: Option<Format>,
    file: BufWriter<File>,
    /// True once a binary result was written to it.
    is_taken: bool,
}

/// How results are to be written.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The format, where one was named.
    pub format: Option<Format>,
    /// Whether a table becomes records; of records that go elsewhere than to a terminal, only `On` counts.
    pub expanded: Expanded,
    /// Whether results on a terminal go through a pager.
    pub is_paged: bool,
}

impl Target {
    /// Standard output.
    pub fn standard() -> Self {
        Self::Standard { is_taken: false }
    }

    /// A new file; one that is there is overwritten.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn file(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(|e| Error::file(path, format!("cannot create it: {e}")))?;
        let format = Format::from_ending(path);
        Ok(Self::File(OpenFile { path: path.to_owned(), format, file: BufWriter::new(file), is_taken: false }))
    }

    /// The file, where it is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Standard { .. } => None,
            Self::File(file) => Some(&file.path),
        }
    }

    /// How a result is written to it.
    ///
    /// # Errors
    /// For binary results on a terminal, and for a second one.
    pub fn look(&mut self, wanted: Wanted) -> Result<Look> {
        let named = match self {
            Self::Standard { .. } => None,
            Self::File(file) => file.format,
        };
        let format = wanted.format.or(named).unwrap_or(Format::Table);
        let is_terminal = matches!(self, Self::Standard { .. }) && io::stdout().is_terminal();
        if format.is_binary() {
            if is_terminal {
                return Err(Error::Usage(format!(
                    "{} is not text: write it to a file, by --output FILE or \\o FILE",
                    format.name()
                )));
            }
            let (Self::Standard { is_taken } | Self::File(OpenFile { is_taken, .. })) = self;
            if std::mem::replace(is_taken, true) {
                return Err(Error::Usage(format!("a file of format {} holds one result", format.name())));
            }
        }
        let columns = if is_terminal { terminal::size().map(|size| size.columns) } else { None };
        Ok(Look { format, expanded: wanted.expanded, columns })
    }

    /// Opens it for one result.
    pub fn sink(&mut self, wanted: Wanted) -> Sink<'_> {
        match self {
            Self::Standard { .. } => {
                let paged =
                    terminal::size().filter(|_| wanted.is_paged).and_then(|size| Some((pager::command()?, size)));
                match paged {
                    Some((command, size)) => Sink::Pager(Pager::new(command, size)),
                    None => Sink::Standard(terminal::Output),
                }
            }
            Self::File(file) => Sink::File(file),
        }
    }
}

/// Where one result goes.
#[derive(Debug)]
pub enum Sink<'a> {
    /// Standard output.
    Standard(terminal::Output),
    /// Standard output, through a pager where it is tall.
    Pager(Pager),
    /// A file.
    File(&'a mut OpenFile),
}

impl Sink<'_> {
    /// Ends the result, which was `written` or not; nothing when the user has left the pager before its end.
    ///
    /// # Errors
    /// That of `written`; [`Error::OutputClosed`] once the reader of standard output is gone; when a file cannot be written.
    pub fn close<T>(self, written: Result<T>) -> Result<Option<T>> {
        match self {
            Self::Standard(_) => match written {
                Err(_) if terminal::is_closed() => Err(Error::OutputClosed),
                Ok(value) => terminal::finish().map(|()| Some(value)),
                Err(error) => Err(error),
            },
            Self::Pager(mut pager) => {
                pager.finish()?;
                if pager.has_left() { Ok(None) } else { written.map(Some) }
            }
            Self::File(file) => {
                let failed = |error: &dyn Display| Error::file(&file.path, format!("cannot write it: {error}"));
                match written {
                    Err(Error::Arrow(error)) => Err(failed(&error)),
                    Err(error) => Err(error),
                    Ok(value) => file.file.flush().map(|()| Some(value)).map_err(|error| failed(&error)),
                }
            }
        }
    }
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Standard(out) => out.write(bytes),
            Self::Pager(pager) => pager.write(bytes),
            Self::File(file) => file.file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Standard(out) => out.flush(),
            Self::Pager(pager) => pager.flush(),
            Self::File(file) => file.file.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const WANTED: Wanted = Wanted { format: None, expanded: Expanded::Auto, is_paged: false };

    #[test]
    fn a_file_has_the_format_of_its_name_unless_told() {
        let folder = tempfile::tempdir().unwrap();
        let mut target = Target::file(&folder.path().join("rows.csv")).unwrap();
        assert_eq!(target.look(WANTED).unwrap().format, Format::Csv);
        assert_eq!(target.look(Wanted { format: Some(Format::Json), ..WANTED }).unwrap().format, Format::Json);
        assert_eq!(Target::file(&folder.path().join("rows")).unwrap().look(WANTED).unwrap().format, Format::Table);
    }

    #[test]
    fn a_binary_file_holds_one_result() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.parquet");
        let mut target = Target::file(&path).unwrap();
        assert_eq!(target.look(WANTED).unwrap().format, Format::Parquet);
        assert!(target.look(WANTED).unwrap_err().to_string().contains("holds one result"));
        let mut sink = target.sink(WANTED);
        sink.write_all(b"rows").unwrap();
        sink.close(Ok(())).unwrap();
        assert_eq!(std::fs::read(path).unwrap(), b"rows");
    }
}

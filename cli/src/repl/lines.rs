//! Where the chat's lines come from: an editor at a terminal, or a pipe.

use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

const PROMPT: &str = "> ";
const MAX_HISTORY: usize = 1000;
/// No prompt is longer; without a bound one line could fill the memory.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// What came instead of a line, or the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A line without its end.
    Text(String),
    /// Ctrl-C: the line is dropped.
    Cancelled,
    /// No more lines.
    End,
}

/// A source of lines.
pub trait Lines {
    /// Waits for the next line.
    fn next_line(&mut self) -> anyhow::Result<Line>;
}

/// Lines edited at a terminal, with a history that outlives the program.
pub struct Editor {
    editor: DefaultEditor,
    history: Option<PathBuf>,
}

impl Editor {
    /// An editor with the user's history, which lies in the folder for program state.
    pub fn new() -> anyhow::Result<Self> {
        let folder = dirs::state_dir().or_else(dirs::data_local_dir);
        Self::with_history(folder.map(|folder| folder.join("whipsnake").join("history")))
    }

    /// An editor with its history in a file, or only in memory.
    pub fn with_history(history: Option<PathBuf>) -> anyhow::Result<Self> {
        let config = rustyline::Config::builder().max_history_size(MAX_HISTORY)?.build();
        let mut editor = DefaultEditor::with_config(config).context("cannot edit lines here")?;
        let history = history.filter(|path| prepare(path));
        if let Some(path) = &history
            && path.exists()
            && let Err(error) = editor.load_history(path)
        {
            tracing::warn!("the history in {} is not read: {error}", path.display());
        }
        Ok(Self { editor, history })
    }

    /// Keeps a line for the next session at once, so that a crash loses none.
    fn remember(&mut self, line: &str) {
        let added = self.editor.add_history_entry(line);
        if let (Ok(true), Some(path)) = (added, &self.history)
            && let Err(error) = self.editor.append_history(path)
        {
            tracing::warn!("the history in {} is not kept: {error}", path.display());
            self.history = None;
        }
    }
}

impl Lines for Editor {
    fn next_line(&mut self) -> anyhow::Result<Line> {
        match self.editor.readline(PROMPT) {
            Ok(line) => {
                self.remember(&line);
                Ok(Line::Text(line))
            }
            Err(ReadlineError::Interrupted) => Ok(Line::Cancelled),
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(error) => Err(error).context("cannot read a line"),
        }
    }
}

/// Makes the history's folder; without one the history is only in memory.
fn prepare(path: &Path) -> bool {
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder)
        .inspect_err(|error| tracing::warn!("no history in {}: {error}", folder.display()))
        .is_ok()
}

/// Lines from a pipe or a file.
pub struct Piped<R> {
    reader: R,
    offset: usize,
}

impl<R: BufRead> Piped<R> {
    /// Reads lines until the reader ends.
    pub fn new(reader: R) -> Self {
        Self { reader, offset: 0 }
    }
}

impl<R: BufRead> Lines for Piped<R> {
    fn next_line(&mut self) -> anyhow::Result<Line> {
        let mut bytes = Vec::new();
        let mut limited = self.reader.by_ref().take(MAX_LINE_BYTES);
        let count = limited.read_until(b'\n', &mut bytes).context("cannot read standard input")?;
        if count == 0 {
            return Ok(Line::End);
        }
        if u64::try_from(count)? == MAX_LINE_BYTES {
            bail!("a line is longer than {} MiB", MAX_LINE_BYTES >> 20);
        }
        let start = self.offset;
        self.offset += count;
        let line = String::from_utf8(bytes).map_err(|error| {
            let offset = error.utf8_error().valid_up_to();
            let byte = error.as_bytes()[offset];
            let offset = start + offset;
            anyhow::anyhow!("standard input is not UTF-8: byte 0x{byte:02x} at offset {offset}")
        })?;
        let line = line.strip_suffix('\n').unwrap_or(&line);
        Ok(Line::Text(line.strip_suffix('\r').unwrap_or(line).to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_without_their_ends() {
        let mut lines = Piped::new(&b"one\r\n\ntwo"[..]);
        for line in ["one", "", "two"] {
            assert_eq!(lines.next_line().unwrap(), Line::Text(line.into()));
        }
        assert_eq!(lines.next_line().unwrap(), Line::End);
    }

    #[test]
    fn a_byte_that_is_not_utf8_is_told_by_its_place_in_the_stream() {
        let mut lines = Piped::new(&b"caf\xc3\xa9\nx\xff\n"[..]);
        assert_eq!(lines.next_line().unwrap(), Line::Text("café".into()));
        let error = lines.next_line().unwrap_err().to_string();
        assert_eq!(error, "standard input is not UTF-8: byte 0xff at offset 7");
    }

    #[test]
    fn a_history_outlives_the_editor() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state").join("history");
        let mut editor = Editor::with_history(Some(path.clone())).unwrap();
        editor.remember("first words");
        drop(editor);
        let editor = Editor::with_history(Some(path)).unwrap();
        assert_eq!(editor.editor.history().iter().collect::<Vec<_>>(), ["first words"]);
    }
}

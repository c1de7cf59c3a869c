//! How a command fails: one `error:` line, `try:` hints under it, an exit code.

use std::error::Error;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use crate::output::Closed;

/// An error that also knows what its reader could do next.
#[derive(Debug)]
pub struct Hinted {
    message: String,
    hints: Vec<String>,
}

impl Hinted {
    /// An error with its text and no hint yet.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hints: Vec::new() }
    }

    /// The same error with one more thing to try.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }
}

impl fmt::Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Hinted {}

/// The text for an error: `error: ...` on one line, then its hints.
pub fn render(error: &anyhow::Error) -> String {
    let mut text = format!("error: {}\n", one_line(&format!("{error:#}")));
    for hinted in error.chain().filter_map(|cause| cause.downcast_ref::<Hinted>()) {
        for hint in &hinted.hints {
            text.push_str(&format!("  try: {}\n", one_line(hint)));
        }
    }
    text
}

/// Prints a command's error and gives its exit code; a reader that left (`| head`) is no error.
pub fn exit(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    if error.chain().any(|cause| cause.is::<Closed>()) {
        return ExitCode::SUCCESS;
    }
    // Nowhere is left to report that standard error is closed.
    let _ = std::io::stderr().write_all(render(&error).as_bytes());
    ExitCode::FAILURE
}

/// Text from servers and files may hold line ends and escapes, which would break or forge lines.
fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_and_its_hints_follow() {
        let cause = Hinted::new("no space\nleft").hint("free 3 GB").hint("set HF_HOME");
        let error = anyhow::Error::new(cause).context("fetch a/b");
        assert_eq!(
            render(&error),
            "error: fetch a/b: no space left\n  try: free 3 GB\n  try: set HF_HOME\n"
        );
    }

    #[test]
    fn escapes_in_an_error_do_not_reach_the_terminal() {
        let error = anyhow::anyhow!("bad name '\u{1b}[2J'");
        assert_eq!(render(&error), "error: bad name '\u{fffd}[2J'\n");
    }

    #[test]
    fn a_closed_reader_is_success() {
        let error = anyhow::Error::new(Closed).context("print the answer");
        assert_eq!(exit(Err(error)), ExitCode::SUCCESS);
        assert_eq!(exit(Err(anyhow::anyhow!("no"))), ExitCode::FAILURE);
    }
}

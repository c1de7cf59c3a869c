//! How a download is seen: a bar on a terminal, else one line a file.

use std::io::{IsTerminal, Write};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

/// One file's progress on standard error.
pub struct Progress(ProgressBar);

impl Progress {
    /// Shows that `name` begins at `position` of `size` bytes; nothing at all where `quiet`.
    pub fn start(name: &str, position: u64, size: u64, quiet: bool) -> Self {
        if quiet {
            return Self(ProgressBar::hidden());
        }
        if !std::io::stderr().is_terminal() {
            note(&format!("downloading {name} ({})", HumanBytes(size)), quiet);
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(size);
        let template = "{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(name.to_owned());
        bar.set_position(position);
        // Bytes from an earlier run must not count as speed.
        bar.reset_eta();
        Self(bar)
    }

    /// The file is there up to `position`.
    pub fn at(&self, position: u64) {
        self.0.set_position(position);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// One line on standard error.
pub fn note(text: &str, quiet: bool) {
    if !quiet {
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

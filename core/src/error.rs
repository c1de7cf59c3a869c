//! One error type: what was wrong, where, and what to try next.

use std::fmt;

/// What a library call returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Which part of the runtime refused, so that callers can choose an exit code or an HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An op's operands do not fit each other.
    Op,
    /// A batch, a prompt or an option that the caller gave.
    Request,
    /// A checkpoint's files, tensors or configuration.
    Checkpoint,
    /// Tokenizer, chat template or text.
    Text,
    /// A device, its driver or its memory.
    Device,
    /// Reading or writing a file.
    Io,
}

/// An error whose text names the place, what was expected, what was found and what to try.
///
/// Style: lower case, no final dot, for example
/// `ssm_scan: dt is [37, 64], want [37, 128] (rows of x, heads)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
    message: String,
}

impl Error {
    /// An error of `kind` with its whole text.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// An op refused its operands.
    pub fn op(name: &str, message: impl fmt::Display) -> Self {
        Self::new(Kind::Op, format!("{name}: {message}"))
    }

    /// A caller's request cannot be served.
    pub fn request(message: impl Into<String>) -> Self {
        Self::new(Kind::Request, message)
    }

    /// A checkpoint cannot be used.
    pub fn checkpoint(message: impl Into<String>) -> Self {
        Self::new(Kind::Checkpoint, message)
    }

    /// A tokenizer, template or piece of text cannot be used.
    pub fn text(message: impl Into<String>) -> Self {
        Self::new(Kind::Text, message)
    }

    /// A device or its driver refused.
    pub fn device(message: impl Into<String>) -> Self {
        Self::new(Kind::Device, message)
    }

    /// A file cannot be read or written.
    pub fn io(path: &std::path::Path, error: &std::io::Error) -> Self {
        Self::new(Kind::Io, format!("{}: {error}", path.display()))
    }

    /// Which part refused.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The same error with `place: ` before its text.
    #[must_use]
    pub fn within(self, place: impl fmt::Display) -> Self {
        Self { kind: self.kind, message: format!("{place}: {}", self.message) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

//! Times every op.

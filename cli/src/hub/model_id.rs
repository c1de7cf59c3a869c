//! A hub id: `owner/name`, with `@revision` where not the main branch is wanted.

use std::fmt;
use std::str::FromStr;

/// A model on the hub, at a branch, tag or commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelId {
    /// User or organisation.
    pub owner: String,
    /// Name under the owner.
    pub name: String,
    /// Branch, tag or commit.
    pub revision: String,
}

impl FromStr for ModelId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, revision) = text.split_once('@').unwrap_or((text, "main"));
        let (owner, name) = path.split_once('/').ok_or("want owner/name")?;
        for part in [owner, name] {
            if !is_name(part) || part.contains("--") {
                return Err(format!("`{part}` cannot be a part of owner/name"));
            }
        }
        if !revision.split('/').all(is_name) {
            return Err(format!("`{revision}` cannot be a revision"));
        }
        let [owner, name, revision] = [owner, name, revision].map(str::to_owned);
        Ok(Self { owner, name, revision })
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)?;
        if self.revision == "main" { Ok(()) } else { write!(f, "@{}", self.revision) }
    }
}

/// Whether a text is a plain name that is safe in a path and in an address.
pub(super) fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
    (1..=255).contains(&text.len())
        && text.chars().all(plain)
        && !text.starts_with('.')
        && !text.ends_with('.')
        && !text.contains("..")
}

/// Whether a text is a full commit hash.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_owner_name_and_perhaps_a_revision() {
        for text in ["nvidia/Nano-9B-v2", "a/b@refs/pr/1", "a/b.c@v1.0+x"] {
            assert_eq!(text.parse::<ModelId>().unwrap().to_string(), text);
        }
        assert_eq!("a/b@main".parse::<ModelId>().unwrap().to_string(), "a/b");
    }

    #[test]
    fn what_would_leave_the_cache_or_the_address_is_refused() {
        for text in [
            "",
            "a",
            "/b",
            "a/",
            "a/b/c",
            "../b",
            "a/..",
            "./b",
            "a--b/c",
            "a b/c",
            "a/b?x",
            "~/b",
            "a\\b/c",
            "a/b@",
            "a/b@..",
            "a/b@x/../y",
            "a/b@/x",
            "a/b@x/",
            "a/b@x y",
        ] {
            assert!(text.parse::<ModelId>().is_err(), "{text}");
        }
    }
}

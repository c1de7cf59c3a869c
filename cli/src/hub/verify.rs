//! Checksums that a hub gives for its files.

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// What a file's bytes must hash to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checksum {
    kind: Kind,
    hex: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Of the bytes: files in large file storage.
    Sha256,
    /// Of git's blob header and the bytes: files in the repository itself.
    GitSha1,
}

impl Checksum {
    /// The checksum in an entity tag; `None` where the tag is something else.
    pub fn from_etag(etag: &str) -> Option<Self> {
        let etag = etag.trim();
        let hex = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"').to_ascii_lowercase();
        let kind = match hex.len() {
            64 => Kind::Sha256,
            40 => Kind::GitSha1,
            _ => return None,
        };
        hex.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(Self { kind, hex })
    }

    /// In lower-case hex: the name of the blob.
    pub fn hex(&self) -> &str {
        &self.hex
    }

    /// Begins to check a file of `size` bytes.
    pub fn hasher(&self, size: u64) -> Hasher {
        match self.kind {
            Kind::Sha256 => Hasher::Sha256(Sha256::new()),
            Kind::GitSha1 => Hasher::Sha1(Sha1::new_with_prefix(format!("blob {size}\0"))),
        }
    }
}

/// A checksum under way.
#[derive(Clone, Debug)]
pub enum Hasher {
    /// See [`Checksum::hasher`].
    Sha256(Sha256),
    /// See [`Checksum::hasher`].
    Sha1(Sha1),
}

impl Hasher {
    /// Takes the file's next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha1(hasher) => hasher.update(bytes),
        }
    }

    /// The hash of everything taken, in lower-case hex.
    pub fn finish(self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Self::Sha256(hasher) => hex(&hasher.finalize()),
            Self::Sha1(hasher) => hex(&hasher.finalize()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_told_apart_by_their_length() {
        let sha = "a".repeat(64);
        assert_eq!(Checksum::from_etag(&format!("\"{sha}\"")).unwrap().hex(), sha);
        let git = "B".repeat(40);
        assert_eq!(Checksum::from_etag(&format!("W/\"{git}\"")).unwrap().hex(), "b".repeat(40));
        for etag in ["", "\"abc\"", &"g".repeat(40), &"../".repeat(14)[..40]] {
            assert_eq!(Checksum::from_etag(etag), None, "{etag}");
        }
    }

    #[test]
    fn hashes_are_those_of_git_and_of_large_file_storage() {
        for (hex, bytes) in [
            ("ce013625030ba8dba906f756967f9e9ca394464a", "hello\n"),
            ("5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03", "hello\n"),
        ] {
            let checksum = Checksum::from_etag(hex).unwrap();
            let mut hasher = checksum.hasher(6);
            bytes.as_bytes().chunks(4).for_each(|chunk| hasher.update(chunk));
            assert_eq!(hasher.finish(), hex);
        }
    }
}

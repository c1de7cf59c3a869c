//! Where a model comes from: a folder, the local Hugging Face cache, or a download into that cache.
//!
//! The cache is laid out as Hugging Face's own tools do it, so models are shared with them:
//! `models--OWNER--NAME/refs/REVISION` holds a commit, `snapshots/COMMIT/FILE` links to
//! `blobs/ETAG`, and a blob that is still arriving is `blobs/ETAG.incomplete`.

mod cache;
mod client;
mod download;
mod listing;
mod model_id;
mod progress;
mod verify;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use crate::failure::Hinted;
pub use model_id::ModelId;

const ENDPOINT: &str = "https://huggingface.co";

/// The cache, the server and how to speak to it.
#[derive(Clone, Debug)]
pub struct Hub {
    /// Folder of the cache, for example `~/.cache/huggingface/hub`.
    pub cache: PathBuf,
    /// Server without a final slash, for example `https://huggingface.co`.
    pub endpoint: String,
    /// Access token, sent to the endpoint's own host and nowhere else.
    pub token: Option<String>,
    /// Never download.
    pub offline: bool,
    /// Wait before the first retry; doubled at each one after it.
    pub back_off: Duration,
    /// No progress on standard error.
    pub quiet: bool,
}

impl Hub {
    /// The hub that the environment names, by the variables of Hugging Face's own tools.
    pub fn from_env() -> anyhow::Result<Self> {
        Self::from_vars(|name| std::env::var_os(name), dirs::home_dir())
    }

    /// [`Hub::from_env`] over any set of variables.
    fn from_vars(
        var: impl Fn(&str) -> Option<OsString>,
        user: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let var = |name: &str| var(name).filter(|value| !value.is_empty());
        let home = (var("HF_HOME").map(PathBuf::from))
            .or_else(|| var("XDG_CACHE_HOME").map(|cache| PathBuf::from(cache).join("huggingface")))
            .or_else(|| user.map(|user| user.join(".cache/huggingface")));
        let home = home.ok_or_else(|| {
            Hinted::new("no home folder to look for the model cache in").hint("set HF_HOME")
        })?;
        let cache = var("HF_HUB_CACHE").map_or_else(|| home.join("hub"), PathBuf::from);
        let text = |name: &str| {
            let value = var(name).map(|value| value.into_string());
            value.transpose().ok().with_context(|| format!("{name} is not UTF-8"))
        };
        let flag = |name: &str| {
            let on = |value: String| {
                matches!(value.to_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE")
            };
            text(name).map(|value| value.is_some_and(on))
        };
        let token_file = var("HF_TOKEN_PATH").map_or_else(|| home.join("token"), PathBuf::from);
        let token = match text("HF_TOKEN")? {
            Some(token) => Some(token),
            None if flag("HF_HUB_DISABLE_IMPLICIT_TOKEN")? => None,
            None => std::fs::read_to_string(token_file).ok(),
        };
        let endpoint = text("HF_ENDPOINT")?.unwrap_or_else(|| ENDPOINT.to_owned());
        Ok(Self {
            cache,
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()),
            offline: flag("HF_HUB_OFFLINE")?,
            back_off: Duration::from_millis(500),
            quiet: false,
        })
    }

    /// The folder of a model: an existing folder is itself, a hub id is looked up in the cache and
    /// downloaded where that lacks it.
    pub fn resolve(&self, model: &str) -> anyhow::Result<PathBuf> {
        let path = Path::new(model);
        if path.is_dir() {
            return Ok(path.to_owned());
        }
        if path.exists() {
            let error = Hinted::new(format!("{model} is a file, want a model's folder"));
            return Err(error.hint("name the folder that holds config.json").into());
        }
        let id: ModelId = model.parse().map_err(|reason| {
            Hinted::new(format!("no folder {model}, and it is no hub id: {reason}"))
                .hint("name a folder that holds config.json, or a hub id such as owner/name")
        })?;
        self.fetch(&id)
    }

    /// The folder of a hub id, from the cache or else downloaded.
    pub fn fetch(&self, id: &ModelId) -> anyhow::Result<PathBuf> {
        let repo = cache::Repo::new(&self.cache, id);
        let missing = match repo.snapshot(&id.revision) {
            Some(snapshot) => match cache::first_missing(&snapshot)? {
                None => return Ok(snapshot),
                Some(file) => format!("the cached {id} lacks {file}"),
            },
            None => format!("{id} is not in {}", self.cache.display()),
        };
        if self.offline {
            let error = Hinted::new(format!("{missing}, and HF_HUB_OFFLINE forbids a download"));
            return Err(error.hint("unset HF_HUB_OFFLINE, or name a folder").into());
        }
        download::model(self, id, &repo).with_context(|| format!("cannot download {id}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(vars: &[(&str, &str)]) -> Hub {
        let get = |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, v)| v.into());
        Hub::from_vars(get, Some("/nowhere/me".into())).unwrap()
    }

    #[test]
    fn the_nearest_variable_names_the_cache() {
        let mut vars = vec![];
        for (name, value, cache) in [
            ("HOME", "", "/nowhere/me/.cache/huggingface/hub"),
            ("XDG_CACHE_HOME", "/x", "/x/huggingface/hub"),
            ("HF_HOME", "/h", "/h/hub"),
            ("HF_HUB_CACHE", "/c", "/c"),
        ] {
            vars.push((name, value));
            assert_eq!(hub(&vars).cache, Path::new(cache));
        }
    }

    #[test]
    fn the_token_comes_from_the_variable_then_from_the_file() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), "from-file\n").unwrap();
        let home = ("HF_HOME", home.path().to_str().unwrap());
        let token = |vars: &[_]| hub(vars).token;
        assert_eq!(token(&[home]).as_deref(), Some("from-file"));
        assert_eq!(token(&[home, ("HF_TOKEN", "direct")]).as_deref(), Some("direct"));
        assert_eq!(token(&[home, ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None);
        assert_eq!(token(&[]), None);
    }

    #[test]
    fn the_endpoint_and_offline_mode_come_from_the_environment() {
        let hub_ = hub(&[("HF_ENDPOINT", "http://mirror/"), ("HF_HUB_OFFLINE", "true")]);
        assert_eq!((hub_.endpoint.as_str(), hub_.offline), ("http://mirror", true));
        let hub_ = hub(&[("HF_HUB_OFFLINE", "0")]);
        assert_eq!((hub_.endpoint.as_str(), hub_.offline), (ENDPOINT, false));
    }
}

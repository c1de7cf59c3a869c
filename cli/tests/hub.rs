//! Models by hub id, against a small hub on loopback.

#[path = "hub/server.rs"]
mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use server::{Answer, File, Server};
use tempfile::TempDir;
use whipsnake::failure;
use whipsnake::hub::Hub;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const LIST: &str = "/api/models/own/name/revision/main";
const WEIGHTS: &str = "model.safetensors";

/// A server with one model, and an empty cache.
struct World {
    server: Server,
    folder: TempDir,
    hub: Hub,
}

impl World {
    fn new() -> Self {
        let server = Server::start();
        let folder = tempfile::tempdir().unwrap();
        let hub = Hub {
            cache: folder.path().join("hub"),
            endpoint: server.address.clone(),
            token: None,
            offline: false,
            back_off: Duration::from_millis(1),
            quiet: true,
        };
        let world = Self { server, folder, hub };
        world.list(&["README.md", "config.json", "tokenizer.json", WEIGHTS, "pytorch_model.bin"]);
        world.file("config.json", File::git(b"{}"));
        world.file("tokenizer.json", File::git(b"{\"model\": 1}"));
        world.file(WEIGHTS, File::large(&weights()));
        world
    }

    fn list(&self, names: &[&str]) {
        let siblings: Vec<_> =
            names.iter().map(|name| serde_json::json!({"rfilename": name})).collect();
        let json = serde_json::json!({"sha": COMMIT, "siblings": siblings}).to_string();
        self.server.put(LIST, Answer::File(File::tagged(json.as_bytes(), "list")));
    }

    fn file(&self, name: &str, file: File) {
        self.server.put(&address(name), Answer::File(file));
    }

    fn resolve(&self) -> anyhow::Result<PathBuf> {
        self.hub.resolve("own/name")
    }

    /// The whole text that a user would read.
    fn refusal(&self) -> String {
        let text = failure::render(&self.resolve().unwrap_err());
        let folder = self.folder.path().display().to_string();
        text.replace(&folder, "FOLDER").replace(&self.server.address, "SERVER")
    }

    fn blobs(&self) -> Vec<String> {
        let folder = self.hub.cache.join("models--own--name/blobs");
        let Ok(entries) = fs::read_dir(folder) else { return vec![] };
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn weights() -> Vec<u8> {
    (0..300_000u32).map(|index| index.to_le_bytes()[0] ^ index.to_le_bytes()[1]).collect()
}

fn address(name: &str) -> String {
    format!("/own/name/resolve/{COMMIT}/{name}")
}

fn read(folder: &Path, name: &str) -> Vec<u8> {
    fs::read(folder.join(name)).unwrap()
}

#[test]
fn a_model_is_downloaded_into_the_cache_that_others_share() {
    let world = World::new();
    let folder = world.resolve().unwrap();
    let repo = world.hub.cache.join("models--own--name");
    assert_eq!(folder, repo.join("snapshots").join(COMMIT));
    assert_eq!(read(&repo, "refs/main"), COMMIT.as_bytes());
    assert_eq!(read(&folder, "config.json"), b"{}");
    assert_eq!(read(&folder, WEIGHTS), weights());
    let mut names: Vec<_> =
        fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["config.json", WEIGHTS, "tokenizer.json"]);
    #[cfg(unix)]
    {
        let link = fs::read_link(folder.join("config.json")).unwrap();
        assert_eq!(link, Path::new("../../blobs/9e26dfeeb6e641a33dae4961196235bdb965b21b"));
    }
    assert_eq!(world.blobs().len(), 3);
}

#[test]
fn a_model_in_the_cache_takes_no_request() {
    let mut world = World::new();
    let first = world.resolve().unwrap();
    let before = world.server.requests().len();
    assert_eq!(world.resolve().unwrap(), first);
    world.hub.offline = true;
    assert_eq!(world.resolve().unwrap(), first);
    assert_eq!(world.hub.resolve(&format!("own/name@{COMMIT}")).unwrap(), first);
    assert_eq!(world.server.requests().len(), before);
}

#[test]
fn a_folder_is_itself() {
    let world = World::new();
    let folder = world.folder.path();
    assert_eq!(world.hub.resolve(folder.to_str().unwrap()).unwrap(), folder);
    let file = folder.join("model.gguf");
    fs::write(&file, "").unwrap();
    let error = world.hub.resolve(file.to_str().unwrap()).unwrap_err().to_string();
    assert!(error.ends_with("model.gguf is a file, want a model's folder"), "{error}");
    assert_eq!(
        failure::render(&world.hub.resolve("./no-such").unwrap_err()),
        "error: no folder ./no-such, and it is no hub id: `.` cannot be a part of owner/name\n  \
         try: name a folder that holds config.json, or a hub id such as owner/name\n"
    );
}

#[test]
fn a_cut_connection_is_resumed_where_it_broke() {
    let world = World::new();
    world.file(WEIGHTS, File { cut: Some((100_000, 2)), ..File::large(&weights()) });
    let folder = world.resolve().unwrap();
    assert_eq!(read(&folder, WEIGHTS), weights());
    assert_eq!(world.server.sent(&address(WEIGHTS)), weights().len());
}

#[test]
fn a_later_run_resumes_what_an_earlier_one_left() {
    let world = World::new();
    let File { bytes, etag, .. } = File::large(&weights());
    let blobs = world.hub.cache.join("models--own--name/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let partial = blobs.join(format!("{}.incomplete", etag.trim_matches('"')));
    fs::write(&partial, &bytes[..123_456]).unwrap();
    let folder = world.resolve().unwrap();
    assert_eq!(read(&folder, WEIGHTS), bytes);
    assert_eq!(world.server.sent(&address(WEIGHTS)), bytes.len() - 123_456);
    assert!(!partial.exists());
}

#[test]
fn a_server_without_ranges_sends_the_file_anew() {
    let world = World::new();
    let file = File { cut: Some((100_000, 1)), ranges: false, ..File::large(&weights()) };
    world.file(WEIGHTS, file);
    let folder = world.resolve().unwrap();
    assert_eq!(read(&folder, WEIGHTS), weights());
    assert_eq!(world.server.sent(&address(WEIGHTS)), weights().len() + 100_000);
}

#[test]
fn a_connection_that_always_breaks_is_given_up() {
    let world = World::new();
    world.file(WEIGHTS, File { cut: Some((0, 99)), ..File::large(&weights()) });
    let error = world.refusal();
    let start = "error: cannot download own/name: model.safetensors: 5 attempts failed: broke off after 0 of 300000 bytes";
    assert!(error.starts_with(start), "{error}");
}

#[test]
fn a_file_with_a_wrong_checksum_is_removed_and_named() {
    let world = World::new();
    let mut bytes = weights();
    bytes[7] ^= 1;
    let File { etag: want, .. } = File::large(&weights());
    let File { etag: found, .. } = File::large(&bytes);
    world.file(WEIGHTS, File { etag: want.clone(), ..File::large(&bytes) });
    let (want, found) = (want.trim_matches('"'), found.trim_matches('"'));
    assert_eq!(
        world.refusal(),
        format!(
            "error: cannot download own/name: model.safetensors: the checksum of model.safetensors \
             is {found}, want {want}; removed it\n  try: download it again\n"
        )
    );
    assert!(!world.blobs().iter().any(|name| name.starts_with(want)), "{:?}", world.blobs());
    assert_eq!(world.server.sent(&address(WEIGHTS)), bytes.len(), "no retry");
    world.file(WEIGHTS, File::large(&weights()));
    assert_eq!(read(&world.resolve().unwrap(), WEIGHTS), weights());
}

#[test]
fn a_file_without_a_checksum_is_taken_by_its_size() {
    let world = World::new();
    world.file("config.json", File::tagged(b"{}", "v1"));
    assert_eq!(read(&world.resolve().unwrap(), "config.json"), b"{}");
}

#[test]
fn a_model_that_is_not_there_is_told() {
    let world = World::new();
    world.server.put(LIST, Answer::Status(404));
    assert_eq!(
        world.refusal(),
        "error: cannot download own/name: 127.0.0.1 has no such model, revision or file\n  \
         try: check the spelling of owner/name and of @revision\n"
    );
    assert_eq!(world.server.requests().len(), 1, "no retry");
}

#[test]
fn a_gated_model_asks_for_a_token() {
    let mut world = World::new();
    world.server.put(LIST, Answer::Status(401));
    let error = world.refusal();
    assert!(error.contains("127.0.0.1 answers 401 Unauthorized\n"), "{error}");
    assert!(error.contains("\n  try: set HF_TOKEN to an access token"), "{error}");
    world.hub.token = Some("secret".into());
    let error = world.refusal();
    assert!(error.contains("\n  try: accept the model's terms"), "{error}");
    assert!(!error.contains("secret"), "{error}");
}

#[test]
fn a_busy_server_is_asked_again_a_few_times() {
    let world = World::new();
    world.server.put(LIST, Answer::Status(503));
    let error = world.refusal();
    assert!(error.contains("5 attempts failed: 127.0.0.1 answers 503"), "{error}");
    assert_eq!(world.server.requests().len(), 5);
}

#[test]
fn the_token_stays_with_the_endpoint() {
    let mut world = World::new();
    let elsewhere = Server::start();
    let File { bytes, etag, .. } = File::large(&weights());
    // The other host's own tag must not count: it is no hash of the file.
    elsewhere.put("/cdn", Answer::File(File::tagged(&bytes, &"0".repeat(64))));
    let headers = [("x-linked-etag", etag), ("x-linked-size", bytes.len().to_string())];
    let headers = headers.map(|(name, value)| (name.to_owned(), value)).to_vec();
    let to = format!("{}/cdn", elsewhere.address);
    world.server.put(&address(WEIGHTS), Answer::Redirect { to, headers });
    world.hub.token = Some("secret".into());
    assert_eq!(read(&world.resolve().unwrap(), WEIGHTS), bytes);
    let token = |server: &Server| -> Vec<_> {
        server.requests().iter().map(|r| r.headers.get("authorization").cloned()).collect()
    };
    assert!(token(&world.server).iter().all(|token| token.as_deref() == Some("Bearer secret")));
    assert_eq!(token(&elsewhere), [None]);
}

#[test]
fn a_redirect_within_the_endpoint_is_followed_with_the_token() {
    let mut world = World::new();
    let to = "/moved/config.json".to_owned();
    world.server.put(&to, Answer::File(File::git(b"{}")));
    world.server.put(&address("config.json"), Answer::Redirect { to, headers: vec![] });
    world.hub.token = Some("secret".into());
    assert_eq!(read(&world.resolve().unwrap(), "config.json"), b"{}");
    let all = world.server.requests();
    assert!(all.iter().all(|request| request.headers.contains_key("authorization")));
}

#[test]
fn redirects_in_a_circle_end() {
    let world = World::new();
    let to = address("config.json");
    world.server.put(&to, Answer::Redirect { to: to.clone(), headers: vec![] });
    assert!(world.refusal().contains("more than 10 redirects from "));
}

#[test]
fn evil_file_names_write_nothing() {
    let world = World::new();
    for name in ["../../evil.safetensors", "/tmp/evil.json", "..\\evil.json", "config.json\n"] {
        world.list(&["config.json", WEIGHTS, name]);
        let error = world.refusal();
        assert!(error.contains("the server lists an unsafe file name"), "{error}");
    }
    assert!(!world.hub.cache.exists());
}

#[test]
fn an_index_cannot_name_files_outside_or_missing() {
    let index = "model.safetensors.index.json";
    for (shard, error) in [
        ("../x", "the shard index names an unsafe file \"../x\""),
        ("b.safetensors", "the repository lacks b.safetensors, which its shard index names"),
    ] {
        let world = World::new();
        world.list(&["config.json", index, WEIGHTS]);
        let json = serde_json::json!({"weight_map": {"w": shard}}).to_string();
        world.file(index, File::git(json.as_bytes()));
        let text = world.refusal();
        assert!(text.contains(error), "{text}");
    }
}

#[test]
fn offline_mode_refuses_to_download() {
    let mut world = World::new();
    world.hub.offline = true;
    assert_eq!(
        world.refusal(),
        "error: own/name is not in FOLDER/hub, and HF_HUB_OFFLINE forbids a download\n  \
         try: unset HF_HUB_OFFLINE, or name a folder\n"
    );
    let snapshot = world.hub.cache.join("models--own--name/snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    let error = world.hub.resolve(&format!("own/name@{COMMIT}")).unwrap_err().to_string();
    assert!(error.contains("lacks config.json, and HF_HUB_OFFLINE"), "{error}");
    assert!(world.server.requests().is_empty());
}

#[test]
fn what_is_no_model_is_not_downloaded() {
    let world = World::new();
    world.list(&["README.md", "data.parquet", WEIGHTS]);
    assert_eq!(
        world.refusal(),
        "error: cannot download own/name: the repository holds no config.json, so it is no model\n  \
         try: name a repository in the safetensors layout\n"
    );
    assert!(!world.hub.cache.exists());
}

#[test]
fn an_endless_file_list_is_refused() {
    let world = World::new();
    let bytes = vec![b' '; (16 << 20) + 1];
    world.server.put(LIST, Answer::File(File::tagged(&bytes, "list")));
    assert!(world.refusal().contains("the server's answer is larger than 16 MiB"));
}

#[test]
fn two_downloads_at_once_fetch_each_file_once() {
    let world = World::new();
    std::thread::scope(|scope| {
        let runs = [(); 2].map(|()| scope.spawn(|| world.resolve().unwrap()));
        let folders = runs.map(|run| run.join().unwrap());
        assert_eq!(folders[0], folders[1]);
    });
    assert_eq!(world.server.sent(&address(WEIGHTS)), weights().len());
}

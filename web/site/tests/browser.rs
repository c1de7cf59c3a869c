//! The browser's tests: builds the site and runs the files of `web/tests` in a headless Chromium, on WebGPU.
//!
//! They want the wasm target, Node 20, what `npm ci --prefix web` installs, and a Chromium at `/usr/bin/chromium` or at
//! `CHROMIUM`. Where one is missing the tests pass with a note, unless `WHIPSNAKE_REQUIRE_BROWSER` is set, as it is where
//! all must be there. Pictures of the page go to `target/site-shots`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// What is missing here, if anything.
fn missing() -> Option<&'static str> {
    let chromium = std::env::var("CHROMIUM").unwrap_or_else(|_| "/usr/bin/chromium".into());
    let old = "process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)";
    let node = Command::new("node").args(["-e", old]).status();
    let needs = [
        (node.is_ok_and(|status| status.success()), "Node 20 or newer"),
        (Path::new(&chromium).exists(), "a Chromium at /usr/bin/chromium or at CHROMIUM"),
        (root().join("web/node_modules").exists(), "`npm ci --prefix web`"),
        (
            wasm_library().is_some_and(|dir| dir.exists()),
            "`rustup target add wasm32-unknown-unknown`",
        ),
    ];
    needs.into_iter().find(|(there, _)| !there).map(|(_, what)| what)
}

/// Where the standard library of the wasm target would lie.
fn wasm_library() -> Option<PathBuf> {
    let args = ["--print", "target-libdir", "--target", "wasm32-unknown-unknown"];
    let output = Command::new("rustc").args(args).output().ok()?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
}

/// Builds the site, once for all tests.
fn build() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let status = Command::new(env!("CARGO_BIN_EXE_whipsnake-site")).status().unwrap();
        assert!(status.success(), "the site does not build");
    });
}

/// Runs one file of tests; browsers would starve each other, so one file at a time.
fn check(file: &str) {
    static ONE: Mutex<()> = Mutex::new(());
    if let Some(what) = missing() {
        assert!(std::env::var_os("WHIPSNAKE_REQUIRE_BROWSER").is_none(), "want {what}");
        println!("skipped: want {what}; WHIPSNAKE_REQUIRE_BROWSER makes this a failure");
        return;
    }
    // A file that failed does not spoil the others.
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    build();
    let output = Command::new("node")
        .args(["--test", "--test-reporter=spec", &format!("tests/{file}.test.mjs")])
        .current_dir(root().join("web"))
        .output()
        .unwrap();
    let (text, errors) = (&output.stdout, &output.stderr);
    let text = format!("{}{}", String::from_utf8_lossy(text), String::from_utf8_lossy(errors));
    println!("{text}");
    assert!(output.status.success(), "{file}:\n{text}");
}

#[test]
fn text_in_a_browser_is_that_of_the_command_line() {
    check("generate");
}

#[test]
fn weights_come_to_a_browser_by_ranges() {
    check("loading");
}

#[test]
fn logits_in_a_browser_are_those_of_the_public_implementation() {
    check("numbers");
}

#[test]
fn the_page_shows_each_of_its_states() {
    check("page");
}

//! Holds the repository to its layout: the top level, one word in five places, size budgets.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Names of the entries of a folder, without dot files and build output.
fn entries(dir: &Path) -> BTreeSet<String> {
    let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|n| !n.starts_with('.') && n != "target").collect()
}

/// Stems of the files with an extension in a folder.
fn stems(dir: &Path, extension: &str) -> BTreeSet<String> {
    let suffix = format!(".{extension}");
    entries(dir).iter().filter_map(|n| n.strip_suffix(&suffix).map(String::from)).collect()
}

fn files_below(dir: &Path, list: &mut Vec<PathBuf>) {
    for name in entries(dir) {
        let path = dir.join(&name);
        if path.is_dir() {
            if name != "node_modules" {
                files_below(&path, list);
            }
        } else {
            list.push(path);
        }
    }
}

/// Fused ops: a back end may have them.
const FUSED: [&str; 5] =
    ["norm_matmul", "norm_products", "gated_norm_matmul", "moe_up", "moe_down"];

/// Ops of the core: every file of `core/src/ops` but the shared ones and fused ops.
fn ops() -> BTreeSet<String> {
    let mut ops = stems(&root().join("core/src/ops"), "rs");
    for shared in ["mod", "check"].into_iter().chain(FUSED) {
        assert!(ops.remove(shared), "{shared}.rs is gone: update this list");
    }
    ops
}

#[test]
fn the_top_level_is_exactly_the_agreed_one() {
    let agreed = [
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "Cargo.lock",
        "Cargo.toml",
        "LICENSE",
        "README.md",
        "backend-cuda",
        "backend-wgpu",
        "cli",
        "core",
        "docs",
        "kernels",
        "shaders",
        "web",
    ];
    let found = entries(&root());
    // Empty folders are not kept by version control.
    let missing: Vec<_> = agreed.iter().filter(|a| !found.contains(**a)).collect();
    let extra: Vec<_> = found.iter().filter(|f| !agreed.contains(&f.as_str())).collect();
    assert!(missing.is_empty() && extra.is_empty(), "missing {missing:?}, not agreed {extra:?}");
}

/// Every op has a file of its name or variants of it in `dir`; every file there is one of those, or shared.
fn check_symmetry(dir: &str, extension: &str, shared: &[&str]) {
    let dir = root().join(dir);
    if !dir.exists() {
        return;
    }
    let found = stems(&dir, extension);
    let ops = ops();
    let named = |name: &String, op: &String| name == op || name.starts_with(&format!("{op}_"));
    let missing: Vec<_> =
        ops.iter().filter(|op| !found.iter().any(|name| named(name, op))).collect();
    assert!(missing.is_empty(), "{}: no file for {missing:?}", dir.display());
    let stray = |name: &&String| {
        let common = *name == "common" || name.starts_with("common_");
        let fused = FUSED.iter().any(|op| named(name, &(*op).to_string()));
        !common
            && !fused
            && !ops.iter().any(|op| named(name, op))
            && !shared.contains(&name.as_str())
    };
    let strays: Vec<_> = found.iter().filter(stray).collect();
    assert!(strays.is_empty(), "{}: {strays:?} name no op", dir.display());
}

#[test]
fn one_word_stands_in_five_places() {
    check_symmetry("backend-wgpu/src/ops", "rs", &["mod"]);
    check_symmetry("shaders", "wgsl", &[]);
    check_symmetry("backend-cuda/src/ops", "rs", &["mod"]);
    check_symmetry("kernels", "cu", &[]);
}

#[test]
fn files_keep_to_their_size_budgets() {
    // Each exception with its reason; none so far.
    let exceptions: [(&str, &str); 0] = [];
    let mut files = Vec::new();
    files_below(&root(), &mut files);
    let mut over = Vec::new();
    for path in files {
        let budget = match path.extension().and_then(|e| e.to_str()) {
            Some("rs") => 400,
            Some("cu" | "cuh" | "wgsl") => 300,
            _ => continue,
        };
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        if lines > budget && !exceptions.iter().any(|(name, _)| path.ends_with(name)) {
            over.push(format!("{}: {lines} lines, budget {budget}", path.display()));
        }
    }
    assert!(over.is_empty(), "{}", over.join("\n"));
}

#[test]
fn functions_keep_to_sixty_lines() {
    let mut files = Vec::new();
    files_below(&root(), &mut files);
    let mut over = Vec::new();
    for path in files.iter().filter(|p| p.extension().is_some_and(|e| e == "rs")) {
        let text = fs::read_to_string(path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        for (start, line) in lines.iter().enumerate() {
            let code = line.trim_start();
            let indent = line.len() - code.len();
            let opens = [
                "fn ",
                "pub fn ",
                "pub(crate) fn ",
                "pub(super) fn ",
                "async fn ",
                "pub async fn ",
            ];
            if !opens.iter().any(|o| code.starts_with(o)) || code.ends_with(';') {
                continue;
            }
            let closing = format!("{}}}", " ".repeat(indent));
            let length = lines[start..].iter().position(|l| *l == closing).map_or(0, |n| n + 1);
            if length > 60 {
                over.push(format!("{}:{}: {length} lines", path.display(), start + 1));
            }
        }
    }
    assert!(over.is_empty(), "{}", over.join("\n"));
}

/// What stands in quotes behind `call` in a text.
fn quoted<'t>(text: &'t str, call: &str) -> impl Iterator<Item = &'t str> {
    text.split(call).skip(1).filter_map(|rest| rest.split('"').next())
}

#[test]
fn every_switch_of_a_kernel_is_in_the_docs() {
    let mut files = Vec::new();
    files_below(&root().join("backend-cuda/src"), &mut files);
    let docs = fs::read_to_string(root().join("docs/measurements.md")).unwrap();
    let mut switches = BTreeSet::new();
    for path in files {
        let text = fs::read_to_string(path).unwrap();
        for call in [" on(\"", "!on(\"", "wanted(\""] {
            switches.extend(quoted(&text, call).map(String::from));
        }
    }
    assert!(switches.contains("cublaslt") && switches.contains("fp8"), "{switches:?}");
    let missing: Vec<_> =
        switches.iter().filter(|switch| !docs.contains(&format!("`{switch}`"))).collect();
    assert!(missing.is_empty(), "docs/measurements.md does not name {missing:?}");
}

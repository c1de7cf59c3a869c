//! `whipsnake bench`, from start to files.

use std::path::Path;
use std::process::Command;

const RUN: &[&str] =
    &["bench", "--backend", "cpu", "--prefill", "8", "--decode", "4", "--repeat", "1"];

fn whipsnake(arguments: &[&str]) -> String {
    let run = Command::new(env!("CARGO_BIN_EXE_whipsnake")).args(arguments).output().unwrap();
    let [out, err] = [run.stdout, run.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(run.status.success(), "{arguments:?}: {err}");
    out
}

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    RUN.iter().copied().chain(more.iter().copied()).collect()
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_report_holds_every_configuration_checked_and_compares_with_itself() {
    let folder = tempfile::tempdir().unwrap();
    let [file, plot] = ["a.json", "a.svg"].map(|name| folder.path().join(name));
    let [file_name, plot_name] = [&file, &plot].map(|path| path.to_str().unwrap());
    let more =
        ["--sequences", "1,2", "--ceilings", "20,0.1", "--json", file_name, "--svg", plot_name];
    let table = whipsnake(&with(&more));
    assert!(table.contains("64 tokens equal replayed, op by op and unfused"), "{table}");
    assert!(table.contains("100.00 % of the plan"), "{table}");
    let report = json(&file);
    let figures = report["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 4);
    for figure in figures {
        let number = |key: &str| figure[key].as_f64().unwrap();
        assert!(number("min") <= number("median") && number("median") <= number("max"));
        assert!(number("rate") > 0.0 && number("share") > 0.0);
    }
    assert_eq!(std::fs::read_to_string(&plot).unwrap().matches("<circle").count(), 2);
    let ratios = whipsnake(&["bench", "--compare", file_name, file_name]);
    assert_eq!(ratios.matches("1.000").count(), 4, "{ratios}");
}

#[test]
fn a_profile_times_every_op_of_the_step() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json");
    let table = whipsnake(&with(&["--profile", "--trace", trace.to_str().unwrap()]));
    for op in ["ssm_scan", "matmul", "moe_matmul", "argmax"] {
        assert!(table.contains(op), "{op} in {table}");
    }
    let events = &json(&trace)["traceEvents"];
    let scans = events.as_array().unwrap().iter().filter(|e| e["name"] == "ssm_scan").count();
    // Four Mamba2 layers, in the prefill step and in the decode step.
    assert_eq!(scans, 8);
}

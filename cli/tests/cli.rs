//! The program from outside: help, usage errors and exit codes.

use std::process::{Command, Output};

fn whipsnake(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_whipsnake")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn help_lists_every_subcommand_and_examples() {
    let run = whipsnake(&["--help"]);
    assert_eq!((run.status.code(), text(&run.stderr)), (Some(0), ""));
    let help = text(&run.stdout);
    for word in [
        "generate",
        "chat",
        "plan",
        "logits",
        "perplexity",
        "bench",
        "devices",
        "selfcheck",
        "Examples:",
    ] {
        assert!(help.contains(word), "{word} in {help}");
    }
}

#[test]
fn a_usage_error_is_told_on_standard_error_with_code_2() {
    for arguments in [
        &["generate"][..],
        &["generate", "x", "--top-p", "2"],
        &["logits", "--tokens", "1,x"],
        &["plan", "--backend", "metal"],
        &["tell"],
    ] {
        let run = whipsnake(arguments);
        assert_eq!((run.status.code(), text(&run.stdout)), (Some(2), ""), "{arguments:?}");
        assert!(text(&run.stderr).starts_with("error: "), "{arguments:?}");
    }
}

#[test]
fn without_a_subcommand_the_help_is_shown() {
    let run = whipsnake(&[]);
    assert_eq!(run.status.code(), Some(2));
    assert!(text(&run.stderr).contains("Usage: whipsnake"));
}

#[test]
fn plan_prices_keys_values_and_states_as_they_would_be_kept() {
    let plan = ["plan", "--geometry", "nemotron-3-nano-nvfp4", "--backend", "cuda"];
    for (more, want) in [
        (&[][..], "of 6,144 bytes (bf16)"),
        (&["--precision", "f32"], "of 12,288 bytes (f32)"),
        (&["--kv", "fp8"], "of 3,072 bytes (f8e4m3)"),
        (&["--precision", "f32", "--kv", "bf16"], "of 6,144 bytes (bf16)"),
        (&[], "sequences of 47.617 MiB (f32)"),
        (&["--state", "bf16"], "sequences of 24.617 MiB (bf16)"),
    ] {
        let run = whipsnake(&[&plan[..], more].concat());
        assert!(text(&run.stdout).contains(want), "{more:?}: {}", text(&run.stdout));
    }
}

#[test]
fn a_choice_that_a_back_end_does_not_have_is_refused() {
    for (option, value, what) in [("--kv", "fp8", "keys and values"), ("--state", "bf16", "states")]
    {
        let run = whipsnake(&["generate", "x", "--backend", "cpu", option, value]);
        assert_eq!(run.status.code(), Some(1));
        let want = format!(
            "error: {option}: cpu keeps {what} in f32\n  try: --backend cuda, or leave {option} out\n"
        );
        assert_eq!(text(&run.stderr), want);
    }
}

/// The program where no Vulkan driver can be found.
fn without_vulkan(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_whipsnake"));
    for variable in ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"] {
        command.env(variable, "/nowhere.json");
    }
    command.args(arguments).output().unwrap()
}

#[test]
fn a_machine_without_a_driver_says_why_and_runs_on_the_cpu() {
    let reason = "no NVIDIA driver: libcuda cannot be loaded";
    let devices = without_vulkan(&["devices"]);
    if !text(&devices.stdout).contains(reason) {
        return println!("skipped: there is a driver");
    }
    let generate = ["generate", "What light", "--max-tokens", "2"];
    let run = without_vulkan(&generate);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let want = "running on the CPU: no GPU is usable here (`whipsnake devices` says why)";
    assert!(text(&run.stderr).contains(want), "{}", text(&run.stderr));
    let run = without_vulkan(&[&generate[..], &["--backend", "cuda"]].concat());
    assert_eq!((run.status.code(), text(&run.stdout)), (Some(1), ""));
    assert!(
        text(&run.stderr).starts_with(&format!("error: cuda: {reason}")),
        "{}",
        text(&run.stderr)
    );
}

//! Every kernel compiles for every architecture that it claims, within its registers and without spills. No GPU needed.

use whipsnake_cuda::compile::Compiler;
use whipsnake_cuda::{expand, sources};

/// Most registers of a thread, by part of the kernel's name, first match first. Tiles hold 128 sums a thread and the
/// scan and attention their state; the last line is what 1,024 threads of a block may use.
const REGISTERS: [(&str, u32); 23] = [
    // 128 sums a thread beside their fragments.
    ("sm90_256", 255),
    // What 384 threads may have; groups that multiply take more of it.
    ("attention_sm90", 168),
    ("moe_matmul_bf16_sm90", 128),
    // 64 sums a thread.
    ("matmul_fp4", 128),
    // 32 values of state a lane; architectures with other latencies keep more of a chunk in flight.
    ("_32_32_1_4", 255),
    ("matmul_few", 128),
    // 64 sums a thread.
    ("matmul_rows", 128),
    ("matmul_plain", 80),
    // Taps and windows of two channels.
    ("causal_conv1d_long_bf16_8_2", 80),
    ("matmul_split", 80),
    ("matmul_tile_", 255),
    ("attention_tile_", 192),
    ("attention_decode_", 192),
    ("ssm_scan_", 192),
    ("matmul_sm90", 128),
    ("_nvfp4", 128),
    ("matmul_vec", 128),
    ("norm_products_", 128),
    ("gated_norm_matmul", 128),
    ("moe_up", 128),
    ("moe_down", 128),
    ("program", 128),
    ("", 64),
];

/// Bytes that a kernel spills: outside its loops where that buys room for another block; forms of scan and convolution on
/// architectures that nobody has run yet, to be mended with a device at hand.
const KNOWN_SPILLS: [(&str, &str, u32); 21] = [
    // A pointer or two that are read once a tile, for one more block a multiprocessor; measured on an H200.
    ("norm_products_1", "sm_90a", 4),
    ("norm_products_lines", "sm_90a", 4),
    ("norm_products_2", "sm_90a", 4),
    ("moe_down", "sm_90a", 12),
    ("moe_matmul_sm90_64", "sm_90a", 4),
    // 192 values of sums and weights a thread.
    ("attention_sm90_4", "sm_90a", 4),
    ("norm_products_2", "sm_80", 4),
    ("norm_products_2", "sm_86", 4),
    ("norm_products_2", "sm_89", 4),
    ("ssm_scan_bf16_16_16_2_8", "sm_80", 4),
    ("ssm_scan_f32_16_16_2_8", "sm_80", 56),
    ("ssm_scan_bf16_16_16_2_8", "sm_86", 4),
    ("ssm_scan_f32_16_16_2_8", "sm_86", 56),
    ("ssm_scan_bf16_16_16_2_8", "sm_89", 4),
    ("ssm_scan_f32_16_16_2_8", "sm_89", 56),
    ("causal_conv1d_short_bf16_4", "sm_100a", 4),
    ("causal_conv1d_short_f32_4", "sm_100a", 4),
    ("ssm_scan_bf16_32_16_1_4", "sm_100a", 12),
    ("ssm_scan_bf16_4_16_2_8", "sm_100a", 8),
    // A stripe of codes, which threads hold once, at load.
    ("load_nvfp4", "sm_100a", 100),
    ("load_nvfp4", "sm_120a", 100),
];

/// Bytes that any NVFP4 form of few rows may spill, outside the loop over its steps where there is one row: 512 threads of
/// 64 registers, so that the next kernel's block fits beside them, or of 128 with eight rows.
const ROOM: (&str, u32) = ("_nvfp4", 40);

/// Registers and spilled bytes of every kernel in a compiler's log.
fn usage(log: &str) -> Vec<(String, u32, u32)> {
    let number = |line: &str, before: &str| -> Option<u32> {
        line.split(before).next()?.split_whitespace().last()?.parse().ok()
    };
    let (mut list, mut kernel, mut spilled) = (Vec::new(), String::new(), 0);
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            kernel = rest.split('\'').next().unwrap_or_default().to_string();
        } else if line.contains("bytes spill stores") {
            spilled = number(line, " bytes spill stores").unwrap_or(u32::MAX);
        } else if let Some((_, rest)) = line.split_once("Used ") {
            list.push((kernel.clone(), number(rest, " registers").unwrap_or(u32::MAX), spilled));
        }
    }
    list
}

fn budget(kernel: &str) -> u32 {
    REGISTERS.iter().find(|(part, _)| kernel.contains(part)).map_or(0, |(_, registers)| *registers)
}

fn known_spill(kernel: &str, architecture: &str) -> u32 {
    let known = KNOWN_SPILLS.iter().find(|(name, on, _)| *name == kernel && *on == architecture);
    let room = if kernel.contains(ROOM.0) { ROOM.1 } else { 0 };
    known.map_or(room, |(_, _, bytes)| *bytes)
}

/// Every kernel file for one architecture.
fn check(architecture: &str) {
    let compiler = match Compiler::find() {
        Ok(compiler) => compiler,
        Err(error) if std::env::var_os("WHIPSNAKE_REQUIRE_NVRTC").is_some() => panic!("{error}"),
        Err(error) => return println!("skipped: {error}"),
    };
    let mut over = Vec::new();
    for (name, source) in sources(architecture) {
        let compiled = compiler.compile(name, &expand(source), architecture);
        let log = compiled.unwrap_or_else(|error| panic!("{error}")).log;
        let kernels = usage(&log);
        assert!(!kernels.is_empty(), "{name} for {architecture}: no kernel in the log: {log}");
        for (kernel, registers, spilled) in kernels {
            if registers > budget(&kernel) || spilled > known_spill(&kernel, architecture) {
                over.push(format!(
                    "{kernel} for {architecture}: {registers} registers, want at most {}; {spilled} bytes spilled",
                    budget(&kernel)
                ));
            }
        }
    }
    assert!(over.is_empty(), "{}", over.join("\n"));
}

/// A test an architecture, so that they run side by side.
macro_rules! kernels_keep_their_budgets_on {
    ($($architecture:ident),*) => {
        $(#[test]
        fn $architecture() {
            check(stringify!($architecture));
        })*
    };
}

mod kernels_keep_their_budgets_on {
    use super::check;

    kernels_keep_their_budgets_on!(sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a);
}

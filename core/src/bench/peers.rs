//! What other runtimes need for the same work on an H200, measured there, and what is aimed at.

use serde::Serialize;
use std::fmt;

/// Another runtime's figure and our target, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Peer {
    /// Whose it is.
    pub name: &'static str,
    /// Its time.
    pub microseconds: f64,
    /// What is aimed at.
    pub target: f64,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, microseconds, target } = self;
        write!(f, "{name} {microseconds} us, target {target} us")
    }
}

/// Back end, op, shape, whose, its time, our target.
type Line = (&'static str, &'static str, &'static str, &'static str, f64, f64);

const LINES: &[Line] = &[
    ("cuda", "ssm_scan", "1 x 1", "Triton", 2.7, 2.6),
    ("cuda", "ssm_scan", "16 x 1", "Triton", 19.4, 18.5),
    ("cuda", "ssm_scan", "64 x 1", "Triton", 71.0, 70.0),
    ("cuda", "ssm_scan", "256 x 1", "Triton", 277.0, 272.0),
    ("cuda", "ssm_scan", "1 x 512", "Triton", 37.0, 25.0),
    ("cuda", "ssm_scan", "1 x 4096", "Triton", 173.0, 140.0),
    ("cuda", "ssm_scan", "1 x 16384", "Triton", 638.0, 500.0),
    ("cuda", "causal_conv1d", "1 x 1", "llama.cpp", 0.7, 0.7),
    ("cuda", "causal_conv1d", "1 x 4096", "llama.cpp", 125.0, 60.0),
    ("cuda", "matmul", "nvfp4 in_proj 1 rows", "llama.cpp", 9.0, 5.5),
    ("cuda", "matmul", "nvfp4 out_proj 1 rows", "llama.cpp", 5.9, 3.2),
    ("cuda", "matmul", "nvfp4 in_proj 16 rows", "llama.cpp", 24.5, 7.0),
    ("cuda", "matmul", "nvfp4 out_proj 16 rows", "llama.cpp", 16.9, 4.5),
    ("cuda", "matmul", "nvfp4 in_proj 4096 rows", "cuBLAS bf16", 346.0, 400.0),
    ("cuda", "matmul", "bf16 lm_head 1 rows", "cuBLAS", 175.0, 172.0),
    ("cuda", "moe_matmul", "nvfp4 up 1 tokens", "llama.cpp", 9.7, 6.0),
    ("cuda", "moe_matmul", "nvfp4 down 1 tokens", "llama.cpp", 10.5, 6.0),
    ("cuda", "moe_matmul", "nvfp4 up, relu2, down 16 tokens", "llama.cpp", 400.0, 170.0),
    ("cuda", "moe_matmul", "nvfp4 up, relu2, down 512 tokens", "torch bf16", 882.0, 330.0),
    ("cuda", "moe_matmul", "nvfp4 up, relu2, down 4096 tokens", "torch bf16", 1282.0, 950.0),
    ("cuda", "moe_route", "1 rows", "llama.cpp", 0.9, 1.0),
    ("cuda", "attention", "1 x 1 at 4095", "torch", 8.6, 7.0),
    ("cuda", "attention", "1 x 1 at 32767", "torch", 16.6, 14.0),
    ("cuda", "attention", "1 x 4096 at 0", "torch", 264.0, 350.0),
    ("wgpu", "ssm_scan", "1 x 1", "llama.cpp", 3.5, 3.4),
    ("wgpu", "ssm_scan", "16 x 1", "llama.cpp", 26.6, 24.0),
    ("wgpu", "ssm_scan", "64 x 1", "llama.cpp", 98.0, 90.0),
    ("wgpu", "ssm_scan", "256 x 1", "llama.cpp", 377.0, 350.0),
    ("wgpu", "ssm_scan", "1 x 512", "llama.cpp", 301.0, 180.0),
    ("wgpu", "ssm_scan", "1 x 4096", "llama.cpp", 3868.0, 1400.0),
    ("wgpu", "causal_conv1d", "1 x 4096", "llama.cpp", 112.0, 100.0),
];

/// The figure for a shape as the table of ops writes it.
pub(super) fn find(backend: &str, op: &str, shape: &str) -> Option<Peer> {
    let line = LINES.iter().find(|line| (line.0, line.1, line.2) == (backend, op, shape))?;
    Some(Peer { name: line.3, microseconds: line.4, target: line.5 })
}

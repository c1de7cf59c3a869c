//! Kernel sources, embedded; loaded a file at a time, at first use.

use crate::driver::{Driver, Shape, Start, checked};
use crate::images::Images;
use bytemuck::Pod;
use cudarc::driver::sys;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::rc::Rc;
use whipsnake_core::error::{Error, Result};

/// The helpers that kernels include; NVRTC gets one text.
const HELPERS: [(&str, &str); 29] = [
    ("common.cuh", include_str!("../../kernels/common.cuh")),
    ("common_attention.cuh", include_str!("../../kernels/common_attention.cuh")),
    ("common_conv.cuh", include_str!("../../kernels/common_conv.cuh")),
    ("common_few.cuh", include_str!("../../kernels/common_few.cuh")),
    ("common_few_sm90.cuh", include_str!("../../kernels/common_few_sm90.cuh")),
    ("common_fours.cuh", include_str!("../../kernels/common_fours.cuh")),
    ("common_gated.cuh", include_str!("../../kernels/common_gated.cuh")),
    ("common_linear.cuh", include_str!("../../kernels/common_linear.cuh")),
    ("common_lines.cuh", include_str!("../../kernels/common_lines.cuh")),
    ("common_mma.cuh", include_str!("../../kernels/common_mma.cuh")),
    ("common_moe.cuh", include_str!("../../kernels/common_moe.cuh")),
    ("common_norm_products.cuh", include_str!("../../kernels/common_norm_products.cuh")),
    ("common_nvfp4.cuh", include_str!("../../kernels/common_nvfp4.cuh")),
    ("common_nvfp4_stream.cuh", include_str!("../../kernels/common_nvfp4_stream.cuh")),
    ("common_program.cuh", include_str!("../../kernels/common_program.cuh")),
    ("common_program_choice.cuh", include_str!("../../kernels/common_program_choice.cuh")),
    ("common_program_products.cuh", include_str!("../../kernels/common_program_products.cuh")),
    ("common_program_ring.cuh", include_str!("../../kernels/common_program_ring.cuh")),
    ("common_program_stage.cuh", include_str!("../../kernels/common_program_stage.cuh")),
    ("common_ranked.cuh", include_str!("../../kernels/common_ranked.cuh")),
    ("common_route.cuh", include_str!("../../kernels/common_route.cuh")),
    ("common_scan.cuh", include_str!("../../kernels/common_scan.cuh")),
    ("common_scan_chunk.cuh", include_str!("../../kernels/common_scan_chunk.cuh")),
    ("common_scan_rows.cuh", include_str!("../../kernels/common_scan_rows.cuh")),
    ("common_scan_sm90.cuh", include_str!("../../kernels/common_scan_sm90.cuh")),
    ("common_scan_step.cuh", include_str!("../../kernels/common_scan_step.cuh")),
    ("common_sm90.cuh", include_str!("../../kernels/common_sm90.cuh")),
    ("common_vec.cuh", include_str!("../../kernels/common_vec.cuh")),
    ("common_wgmma.cuh", include_str!("../../kernels/common_wgmma.cuh")),
];

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../kernels/", $name, ".cu")))),*]
    };
}

/// Every kernel file: its name, which is that of its op, and its text.
const SOURCES: &[(&str, &str)] = sources![
    "activate",
    "add",
    "argmax",
    "attention",
    "attention_tile",
    "causal_conv1d",
    "copy_slot",
    "draw",
    "embed",
    "gated_norm_matmul",
    "gated_norm_matmul_nvfp4",
    "gated_rms_norm",
    "kv_append",
    "common_load",
    "matmul",
    "matmul_dequantise",
    "matmul_few",
    "matmul_fp4",
    "matmul_fp8",
    "matmul_nvfp4",
    "matmul_rows",
    "matmul_split",
    "matmul_vec",
    "moe_combine",
    "moe_down",
    "moe_group",
    "moe_matmul",
    "moe_matmul_few",
    "moe_route",
    "moe_up",
    "norm_products",
    "norm_products_eight",
    "norm_products_lines",
    "norm_products_nvfp4",
    "norm_products_sixteen",
    "common_program",
    "rms_norm",
    "rope",
    "scale",
    "select_rows",
    "ssm_scan",
    "ssm_scan_chunk",
    "ssm_scan_f32",
    "ssm_scan_f32_wide",
    "ssm_scan_step",
    "ssm_scan_wide",
    "top_k",
];

/// Kernel files that only Hopper's instructions can serve.
const HOPPER_SOURCES: &[(&str, &str)] = sources![
    "attention_sm90",
    "matmul_few_sm90",
    "matmul_sm90",
    "moe_matmul_bf16_sm90",
    "moe_matmul_few_sm90",
    "moe_matmul_sm90",
    "ssm_scan_chunk_sm90",
];

/// Kernel files that only the instructions of `sm_120a` can serve.
const BLACKWELL_SOURCES: &[(&str, &str)] = sources!["matmul_fp4_sm120"];

/// Name and text of every kernel file that an architecture has.
pub fn sources(architecture: &str) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let own = match architecture {
        "sm_90a" => HOPPER_SOURCES,
        "sm_120a" => BLACKWELL_SOURCES,
        _ => &[],
    };
    SOURCES.iter().chain(own)
}

/// The text of a kernel file with its helpers in place, each once.
pub fn expand(source: &str) -> String {
    let mut text = String::new();
    include(source, &mut Vec::new(), &mut text);
    text
}

fn include(source: &str, seen: &mut Vec<&'static str>, text: &mut String) {
    for line in source.lines() {
        let wanted = line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"'));
        match HELPERS.iter().find(|(name, _)| Some(*name) == wanted) {
            Some((name, _)) if seen.contains(name) => {}
            Some((name, helper)) => {
                seen.push(name);
                include(helper, seen, text);
            }
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
}

/// The name that compilers give a device: `sm_90a`, since kernels use what only that architecture has.
pub(crate) fn architecture((major, minor): (i32, i32)) -> String {
    let suffix = if major >= 9 { "a" } else { "" };
    format!("sm_{major}{minor}{suffix}")
}

/// Arguments of a launch, each at its own 8-byte place.
#[derive(Default)]
pub(crate) struct Args {
    words: Vec<u64>,
    starts: Vec<usize>,
}

impl Args {
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends one argument.
    pub fn push<T: Pod>(&mut self, value: T) -> &mut Self {
        let bytes = bytemuck::bytes_of(&value);
        self.starts.push(self.words.len());
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.words.push(u64::from_ne_bytes(word));
        }
        self
    }

    fn pointers(&mut self) -> Vec<*mut c_void> {
        let words = &mut self.words;
        self.starts.iter().map(|&start| (&raw mut words[start]).cast()).collect()
    }
}

struct Function {
    raw: sys::CUfunction,
    /// Dynamic shared memory that it has been allowed.
    shared: u32,
}

/// Loaded kernels of one device.
pub(crate) struct Kernels {
    driver: Rc<Driver>,
    images: Images,
    /// Whether the device can start a kernel before the ones before it are done.
    overlaps: bool,
    modules: RefCell<HashMap<&'static str, sys::CUmodule>>,
    functions: RefCell<HashMap<String, Function>>,
}

impl Kernels {
    pub fn new(driver: Rc<Driver>, images: Images, capability: (i32, i32)) -> Self {
        Self {
            driver,
            images,
            overlaps: capability >= (9, 0),
            modules: RefCell::default(),
            functions: RefCell::default(),
        }
    }

    /// Queues kernel `name` of file `file`.
    pub fn launch(
        &self,
        file: &'static str,
        name: &str,
        shape: Shape,
        args: &mut Args,
        start: Start,
    ) -> Result<()> {
        if shape.grid.contains(&0) {
            return Ok(());
        }
        let mut functions = self.functions.borrow_mut();
        if !functions.contains_key(name) {
            let raw = self.driver.function(self.module(file)?, name)?;
            let fixed = self.driver.fixed_shared(raw)?;
            functions.insert(name.to_string(), Function { raw, shared: (48 << 10) - fixed });
        }
        let function = functions
            .get_mut(name)
            .ok_or_else(|| Error::device(format!("cuda: no kernel {name}")))?;
        if shape.shared > function.shared {
            self.driver.allow_shared(function.raw, shape.shared)?;
            function.shared = shape.shared;
        }
        // SAFETY: each op's host function passes the arguments of its kernel; operands were checked by the step and
        // are freed in stream order, after the kernel.
        let launched = unsafe {
            let start =
                if start == Start::Early && !self.overlaps { Start::Ordered } else { start };
            self.driver.launch(function.raw, shape, &mut args.pointers(), start)
        };
        checked(
            &format!("launching {name} on a grid of {:?} by {} threads", shape.grid, shape.threads),
            launched,
        )
    }

    fn module(&self, file: &'static str) -> Result<sys::CUmodule> {
        if let Some(&module) = self.modules.borrow().get(file) {
            return Ok(module);
        }
        let module = match self.driver.load_module(&self.images.get(file)?) {
            Ok(module) => module,
            Err(_) => {
                let cubin = self.images.renew(file)?;
                checked(&format!("loading kernels/{file}.cu"), self.driver.load_module(&cubin))?
            }
        };
        self.modules.borrow_mut().insert(file, module);
        Ok(module)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if self.driver.synchronize().is_ok() {
            for module in self.modules.borrow().values() {
                self.driver.unload_module(*module);
            }
        }
    }
}

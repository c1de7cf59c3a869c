//! Kernels: where their text comes from, how variants are composed, and the pipelines made of them.

use crate::Wgpu;
use crate::faults::describe;
use std::borrow::Cow;
use std::fmt::Write;
use std::rc::Rc;
use whipsnake_core::error::{Error, Result};

/// Helpers that every kernel may use.
const COMMON: &str = include_str!("../../shaders/common.wgsl");
/// Stored weight formats.
const WEIGHT: &str = include_str!("../../shaders/common_weight.wgsl");
/// Tiled products.
const TILE: &str = include_str!("../../shaders/common_tile.wgsl");

/// Tiles of pairs sorted by expert.
const GROUP: &str = include_str!("../../shaders/common_group.wgsl");
/// Tiled products on cooperative matrices.
const COOP: &str = include_str!("../../shaders/common_coop.wgsl");
/// The scan's operands by elements.
const SCAN_RAGGED: &str = include_str!("../../shaders/common_scan_ragged.wgsl");
/// The scan's operands in fours.
const SCAN_FOURS: &str = include_str!("../../shaders/common_scan_fours.wgsl");
/// Blocks of products without barriers.
const BLOCK: &str = include_str!("../../shaders/common_block.wgsl");
/// The best of a workgroup.
const BEST: &str = include_str!("../../shaders/common_best.wgsl");
/// Norms.
const NORM: &str = include_str!("../../shaders/common_norm.wgsl");
/// Products for few rows.
const VEC: &str = include_str!("../../shaders/common_vec.wgsl");
/// Their entries: `subgroup`, which only some devices take, and `main`.
const VEC_ENTRIES: [(&str, &str); 2] = [
    ("subgroup", include_str!("../../shaders/common_vec_subgroup.wgsl")),
    ("main", include_str!("../../shaders/common_vec_workgroup.wgsl")),
];
/// A convolution behind a product.
const CONV: &str = include_str!("../../shaders/common_conv.wgsl");
/// None.
const NO_CONV: &str = "fn after(row: u32, col: u32, value: f32) {}\n";
/// A product beside another.
const RIDER: &str = include_str!("../../shaders/common_rider.wgsl");
/// None.
const NO_RIDER: &str = "fn spare(i: u32, width: u32, which: u32, place: u32) {}\n";
/// Products beside another of their format.
const SIBLINGS: &str = include_str!("../../shaders/common_siblings.wgsl");
/// None.
const NO_SIBLINGS: &str = include_str!("../../shaders/common_vec_alone.wgsl");
/// What a product that takes siblings asks beside.
const NO_SIBLINGS_OUT: &str = "fn matrix_scale() -> f32 {
    return params.matrix_scale;
}
fn leave(row: u32, col: u32, value: f32) {
    out[params.out.x + row * params.out.y + col] = value;
}
";
/// Experts chosen beside their product.
const CHOICE: &str = include_str!("../../shaders/common_choice.wgsl");
/// Experts that were chosen before.
const NO_CHOICE: &str = "@group(0) @binding(5) var<storage, read> ids: array<u32>; // [rows, top_k]
fn expert_of(row: u32, slot: u32, first: bool) -> u32 {
    return ids[params.ids.x + row * params.ids.y + slot];
}
fn is_left_out(expert: u32) -> bool {
    return expert - params.first >= params.count;
}
";

/// `(name, what goes before it, its text)`.
macro_rules! shaders {
    ($($name:literal $(+ $include:ident)*),* $(,)?) => {
        &[$(Shader {
            name: $name,
            includes: &[$($include),*],
            text: include_str!(concat!("../../shaders/", $name, ".wgsl")),
        }),*]
    };
}

struct Shader {
    name: &'static str,
    includes: &'static [&'static str],
    text: &'static str,
}

const SHADERS: &[Shader] = shaders![
    "activate",
    "add",
    "argmax" + BEST,
    "argmax_thread",
    "attention" + WEIGHT,
    "attention_combine",
    "attention_thread",
    "attention_tile" + WEIGHT,
    "causal_conv1d",
    "causal_conv1d_thread",
    "copy_slot",
    "draw" + BEST,
    "embed" + WEIGHT,
    "gated_rms_norm" + NORM,
    "gated_rms_norm_thread",
    "kv_append",
    "matmul_block" + WEIGHT + BLOCK,
    "matmul_coop" + WEIGHT + COOP,
    "matmul_row_scale",
    "matmul_tile" + WEIGHT + TILE,
    "matmul_vec" + WEIGHT + VEC,
    "moe_combine",
    "moe_group",
    "moe_group_thread",
    "moe_matmul_block" + WEIGHT + BLOCK + GROUP,
    "moe_matmul_coop" + WEIGHT + COOP + GROUP,
    "moe_matmul_tile" + WEIGHT + TILE + GROUP,
    "moe_matmul_vec" + WEIGHT + VEC,
    "moe_route",
    "moe_route_thread",
    "norm_matmul" + WEIGHT + VEC,
    "rms_norm" + NORM,
    "rms_norm_thread",
    "rope",
    "scale",
    "select_rows",
    "ssm_scan",
    "ssm_scan_thread",
    "top_k",
];

/// One entry point of one shader with its constants: what a pipeline is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    shader: &'static str,
    entry: &'static str,
    constants: Vec<(&'static str, u32)>,
}

impl Kernel {
    /// Entry `main` of a shader.
    pub(crate) fn new(shader: &'static str) -> Self {
        Self { shader, entry: "main", constants: Vec::new() }
    }

    /// The same with another entry point.
    pub(crate) fn entry(mut self, entry: &'static str) -> Self {
        self.entry = entry;
        self
    }

    /// The same with one more constant.
    pub(crate) fn with(mut self, name: &'static str, value: u32) -> Self {
        self.constants.push((name, value));
        self
    }

    /// Name of its entry point.
    pub fn entry_point(&self) -> &'static str {
        self.entry
    }

    /// Whether it binds more storage buffers than WebGPU promises.
    pub fn is_wide(&self) -> bool {
        ["CONV", "RIDER", "CHOICE", "SIBLINGS"].into_iter().any(|constant| self.has(constant))
    }

    fn has(&self, constant: &str) -> bool {
        self.constants.iter().any(|&(name, _)| name == constant)
    }

    /// The whole WGSL text: constants, shared parts, the shader itself.
    pub fn source(&self) -> String {
        let shader = SHADERS.iter().find(|s| s.name == self.shader);
        let shader = shader.expect("hosts name shaders of the table");
        let mut text = String::new();
        if self.entry == "coop" {
            text.push_str("enable f16;\nenable wgpu_cooperative_matrix;\n");
        }
        for (name, value) in &self.constants {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "const {name}: u32 = {value}u;");
        }
        text.push_str(COMMON);
        shader.includes.iter().for_each(|include| text.push_str(include));
        if self.shader == "ssm_scan" {
            let fours = self.constants.contains(&("ALIGNED", 1));
            text.push_str(if fours { SCAN_FOURS } else { SCAN_RAGGED });
        }
        if shader.includes.contains(&VEC) {
            text.push_str(if self.has("RIDER") { RIDER } else { NO_RIDER });
            text.push_str(if self.has("CONV") { CONV } else { NO_CONV });
            text.push_str(if self.has("SIBLINGS") { SIBLINGS } else { NO_SIBLINGS });
            if self.shader == "norm_matmul" && !self.has("SIBLINGS") {
                text.push_str(NO_SIBLINGS_OUT);
            }
            let entry = VEC_ENTRIES.iter().find(|(name, _)| *name == self.entry);
            text.push_str(entry.expect("hosts name entries of the table").1);
        }
        if self.shader == "moe_matmul_vec" {
            text.push_str(if self.has("CHOICE") { CHOICE } else { NO_CHOICE });
        }
        text.push_str(shader.text);
        text
    }
}

impl std::fmt::Display for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.shader, self.entry)?;
        self.constants.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// A pipeline and the layout of its bindings.
pub(crate) struct Pipeline {
    pub raw: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
    /// A number of its own, for keys.
    pub id: usize,
    /// The kernel, for the table of times.
    #[cfg_attr(
        target_arch = "wasm32",
        expect(dead_code, reason = "a browser keeps no table of times")
    )]
    pub name: String,
}

impl Wgpu {
    /// The pipeline of a kernel whose storage bindings are written where `writes` says so.
    pub(crate) fn pipeline(&self, kernel: &Kernel, writes: &[bool]) -> Result<Rc<Pipeline>> {
        if let Some(pipeline) = self.pipelines.borrow().get(kernel) {
            return Ok(pipeline.clone());
        }
        let id = self.pipelines.borrow().len();
        #[cfg(not(target_arch = "wasm32"))]
        let cache = self.cache.as_ref().map(|cache| cache.raw());
        #[cfg(target_arch = "wasm32")]
        let cache = None;
        let (pipeline, error) = self.caught(|device| compile(device, kernel, writes, cache));
        if let Some(error) = error {
            return Err(Error::device(describe(&error)).within(kernel));
        }
        let (raw, layout) = pipeline;
        let pipeline = Rc::new(Pipeline { raw, layout, id, name: kernel.to_string() });
        self.pipelines.borrow_mut().insert(kernel.clone(), pipeline.clone());
        Ok(pipeline)
    }
}

fn compile(
    device: &wgpu::Device,
    kernel: &Kernel,
    writes: &[bool],
    cache: Option<&wgpu::PipelineCache>,
) -> (wgpu::ComputePipeline, wgpu::BindGroupLayout) {
    let label = kernel.to_string();
    let descriptor = wgpu::ShaderModuleDescriptor {
        label: Some(&label),
        source: wgpu::ShaderSource::Wgsl(Cow::Owned(kernel.source())),
    };
    // SAFETY: every shader is one of ours. Its loops end; indices of workgroup and private arrays are bounded by
    // constants; operands were checked by core before their sizes became parameters. The checks that this leaves out
    // would keep drivers from unrolling the inner loops.
    let module = unsafe {
        device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked())
    };
    let layout = bind_group_layout(device, writes);
    let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: Some(&label),
        bind_group_layouts: &[Some(&layout)],
        immediate_size: 0,
    });
    let raw = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(&label),
        layout: Some(&pipeline_layout),
        module: &module,
        entry_point: Some(kernel.entry),
        compilation_options: wgpu::PipelineCompilationOptions {
            // Kernels write their workgroup memory before they read it.
            zero_initialize_workgroup_memory: false,
            ..Default::default()
        },
        cache,
    });
    (raw, layout)
}

/// Parameters at binding 0, at an offset of the uniform ring, then the storage buffers.
fn bind_group_layout(device: &wgpu::Device, writes: &[bool]) -> wgpu::BindGroupLayout {
    let entry = |binding, ty, has_dynamic_offset| wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset, min_binding_size: None },
        count: None,
    };
    let mut entries = vec![entry(0, wgpu::BufferBindingType::Uniform, true)];
    entries.extend((1..).zip(writes).map(|(binding, writes)| {
        entry(binding, wgpu::BufferBindingType::Storage { read_only: !writes }, false)
    }));
    device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
        label: None,
        entries: &entries,
    })
}

//! Which adapters there are, which one is chosen, and why the others are not.

mod choice;

use crate::variants::{Room, Variants, Wishes};
use serde::Serialize;
use std::fmt;
#[cfg(not(target_arch = "wasm32"))]
use std::sync::OnceLock;
use whipsnake_core::error::{Error, Result};

/// Limits of an adapter that decide what runs on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceLimits {
    /// Largest buffer in bytes.
    pub buffer_bytes: u64,
    /// Largest part of a buffer that one binding covers, in bytes.
    pub binding_bytes: u64,
    /// Storage buffers a shader may use.
    pub storage_buffers: u32,
    /// Workgroup memory in bytes.
    pub workgroup_bytes: u32,
    /// Invocations of one workgroup.
    pub invocations: u32,
    /// Workgroups a dimension.
    pub workgroups: u32,
}

/// Optional features of an adapter; none is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceFeatures {
    /// 16-bit floats in shaders.
    pub f16: bool,
    /// Smallest and largest subgroup, where subgroup operations are offered.
    pub subgroups: Option<[u32; 2]>,
    /// Cooperative matrix products of 16 x 16 halves with f32 sums, and the workgroup memory that they need.
    pub cooperative_matrices: bool,
    /// Time stamps on the device.
    pub timestamps: bool,
    /// Packed integer dot products, part of WGSL itself.
    pub integer_dot: bool,
}

/// How an adapter took part in the choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The one that `--device` or the order of preference picks.
    Chosen,
    /// It would run, but another is preferred; the text says which.
    Passed(String),
    /// It cannot run, or runs only on request; the text says why.
    Rejected(String),
}

/// One adapter, as `devices` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    /// Position in the list; `--device` takes it.
    pub index: usize,
    /// Name that the driver gives.
    pub name: String,
    /// `discrete`, `integrated`, `virtual`, `software` or `other`.
    pub kind: &'static str,
    /// Graphics interface: `vulkan`, `metal`, `dx12` or `webgpu`.
    pub backend: String,
    /// Driver and its version.
    pub driver: String,
    /// Limits that matter.
    pub limits: DeviceLimits,
    /// Optional features.
    pub features: DeviceFeatures,
    /// Kernel variants that would run.
    pub variants: Vec<String>,
    /// Whether it is chosen.
    pub verdict: Verdict,
}

impl DeviceFeatures {
    /// What every WebGPU device has.
    pub const NONE: Self = Self {
        f16: false,
        subgroups: None,
        cooperative_matrices: false,
        timestamps: false,
        integer_dot: true,
    };
}

impl DeviceReport {
    /// Whether it is a GPU that can run models, not a program that imitates one.
    pub fn is_hardware(&self) -> bool {
        self.kind != "software" && !matches!(self.verdict, Verdict::Rejected(_))
    }
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limits, features) = (&self.limits, &self.features);
        writeln!(
            f,
            "[{}] {} ({}, {}, {})",
            self.index, self.name, self.kind, self.backend, self.driver
        )?;
        writeln!(
            f,
            "    buffer {} MiB, binding {} MiB, {} storage buffers, {} invocations, {} KiB workgroup memory",
            limits.buffer_bytes >> 20,
            limits.binding_bytes >> 20,
            limits.storage_buffers,
            limits.invocations,
            limits.workgroup_bytes >> 10
        )?;
        let yes = |b: bool| if b { "yes" } else { "no" };
        let subgroups = features.subgroups.map_or("no".into(), |[a, b]| format!("{a} to {b}"));
        writeln!(
            f,
            "    f16 {}, subgroups {subgroups}, cooperative matrices {}, time stamps {}, integer dot {}",
            yes(features.f16),
            yes(features.cooperative_matrices),
            yes(features.timestamps),
            yes(features.integer_dot)
        )?;
        writeln!(f, "    variants: {}", self.variants.join(", "))?;
        match &self.verdict {
            Verdict::Chosen => write!(f, "    chosen"),
            Verdict::Passed(why) => write!(f, "    not chosen: {why}"),
            Verdict::Rejected(why) => write!(f, "    rejected: {why}"),
        }
    }
}

/// Every adapter, with the one that would be chosen without `--device`.
///
/// Empty where there is no driver at all; never panics.
#[cfg(not(target_arch = "wasm32"))]
pub fn devices() -> Vec<DeviceReport> {
    pollster::block_on(devices_async())
}

/// As [`devices`], for the browser.
pub async fn devices_async() -> Vec<DeviceReport> {
    let adapters = adapters().await;
    reports(&adapters, None)
}

/// The adapter that `selector` names (a part of its name, or its index), or the preferred one.
///
/// # Errors
/// There is no adapter, none that runs, none of that name; the text lists what there is.
pub(crate) async fn choose(selector: Option<&str>) -> Result<(wgpu::Adapter, DeviceReport)> {
    let adapters = adapters().await;
    let mut reports = reports(&adapters, selector);
    let index = choice::pick(&reports, selector)?;
    let adapter = adapters.into_iter().nth(index);
    adapter
        .map(|adapter| (adapter, reports.swap_remove(index)))
        .ok_or_else(|| Error::device("wgpu: the adapter went away while it was chosen"))
}

/// All adapters of the interfaces that were compiled in, found once: to look again would load every driver again, and what
/// loads them may write to standard error (Mesa does where no desktop runs: wgpu asks for every kind of window there is).
#[cfg(not(target_arch = "wasm32"))]
async fn adapters() -> Vec<wgpu::Adapter> {
    static ADAPTERS: OnceLock<Vec<wgpu::Adapter>> = OnceLock::new();
    let find = || {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
        pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()))
    };
    ADAPTERS.get_or_init(find).clone()
}

/// The adapter that the browser recommends.
#[cfg(target_arch = "wasm32")]
async fn adapters() -> Vec<wgpu::Adapter> {
    if !wgpu::util::is_browser_webgpu_supported().await {
        return Vec::new();
    }
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let options = wgpu::RequestAdapterOptions {
        power_preference: wgpu::PowerPreference::HighPerformance,
        ..Default::default()
    };
    instance.request_adapter(&options).await.into_iter().collect()
}

fn reports(adapters: &[wgpu::Adapter], selector: Option<&str>) -> Vec<DeviceReport> {
    let mut reports: Vec<_> = adapters.iter().enumerate().map(|(i, a)| describe(i, a)).collect();
    choice::judge(&mut reports, selector);
    reports
}

fn describe(index: usize, adapter: &wgpu::Adapter) -> DeviceReport {
    let (info, limits, offered) = (adapter.get_info(), adapter.limits(), adapter.features());
    let has = |feature| offered.contains(feature);
    let features = DeviceFeatures {
        f16: has(wgpu::Features::SHADER_F16),
        subgroups: has(wgpu::Features::SUBGROUP)
            .then_some([info.subgroup_min_size, info.subgroup_max_size]),
        cooperative_matrices: has(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX)
            && limits.max_compute_workgroup_storage_size >= COOP_BYTES
            && adapter.cooperative_matrix_properties().iter().any(is_usable),
        timestamps: has(wgpu::Features::TIMESTAMP_QUERY),
        integer_dot: true,
    };
    let kind = kind_name(info.device_type);
    let room = Room::of(&limits);
    DeviceReport {
        index,
        name: info.name,
        kind,
        backend: format!("{:?}", info.backend).to_lowercase(),
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_string(),
        limits: DeviceLimits {
            buffer_bytes: limits.max_buffer_size,
            binding_bytes: limits.max_storage_buffer_binding_size,
            storage_buffers: limits.max_storage_buffers_per_shader_stage,
            workgroup_bytes: limits.max_compute_workgroup_storage_size,
            invocations: limits.max_compute_invocations_per_workgroup,
            workgroups: limits.max_compute_workgroups_per_dimension,
        },
        features,
        variants: Variants::of(kind, &features, Wishes::default(), room).names(),
        verdict: Verdict::Passed(String::new()),
    }
}

/// Workgroup memory of `common_coop.wgsl`.
const COOP_BYTES: u32 = 26 << 10;

/// The one form of cooperative matrices that shaders use.
fn is_usable(form: &wgpu::CooperativeMatrixProperties) -> bool {
    let half = wgpu::CooperativeScalarType::F16;
    (form.m_size, form.n_size, form.k_size) == (16, 16, 16)
        && form.ab_type == half
        && form.cr_type == wgpu::CooperativeScalarType::F32
}

const fn kind_name(kind: wgpu::DeviceType) -> &'static str {
    match kind {
        wgpu::DeviceType::DiscreteGpu => "discrete",
        wgpu::DeviceType::IntegratedGpu => "integrated",
        wgpu::DeviceType::VirtualGpu => "virtual",
        wgpu::DeviceType::Cpu => "software",
        wgpu::DeviceType::Other => "other",
    }
}

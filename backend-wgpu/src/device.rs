//! An opened device.

use crate::buffer::{Books, Buffer};
use crate::faults::Faults;
use crate::kernel::{Kernel, Pipeline};
use crate::probe::{self, DeviceReport};
use crate::recorder::Recorder;
use crate::variants::{Reduction, Variants};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use whipsnake_core::error::{Error, Result};

/// How much of what an adapter offers is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Demands {
    /// Everything that some variant uses.
    #[default]
    Everything,
    /// WebGPU's default limits and no optional feature: what every browser grants.
    WebGpuDefaults,
}

/// How to open a device.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Part of the adapter's name, or its index; the preferred one where absent.
    pub device: Option<String>,
    /// How much of the adapter to use.
    pub demands: Demands,
    /// Cuts weights into buffers of at most this many bytes, below what the device binds.
    pub piece_bytes: Option<u64>,
    /// Who adds up the terms of an output where rows are few; the device's own choice where absent.
    pub reduction: Option<Reduction>,
}

/// The portable back end on one device.
pub struct Wgpu {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) limits: wgpu::Limits,
    pub(crate) faults: Faults,
    pub(crate) variants: Variants,
    pub(crate) piece_cap: Option<u64>,
    pub(crate) books: Rc<Books>,
    pub(crate) pipelines: RefCell<HashMap<Kernel, Rc<Pipeline>>>,
    pub(crate) recorder: RefCell<Recorder>,
    pub(crate) staging: RefCell<Vec<wgpu::Buffer>>,
    /// Bytes of weights handed to the driver since it last had to take them in.
    pub(crate) staged: Cell<u64>,
    /// Partial results of attention over a split context.
    pub(crate) partials: OnceCell<Buffer>,
    report: DeviceReport,
}

impl Wgpu {
    /// Opens a device and waits for it.
    ///
    /// # Errors
    /// As [`Wgpu::open_async`].
    #[cfg(not(target_arch = "wasm32"))]
    pub fn open(options: &Options) -> Result<Self> {
        pollster::block_on(Self::open_async(options))
    }

    /// Opens the device that the options name, or the preferred one.
    ///
    /// # Errors
    /// No adapter, none that is large enough or matches; the text lists what there is. The driver refuses.
    pub async fn open_async(options: &Options) -> Result<Self> {
        let (adapter, mut report) = probe::choose(options.device.as_deref()).await?;
        let (features, limits) = match options.demands {
            Demands::Everything => (adapter.features() & useful_features(), adapter.limits()),
            Demands::WebGpuDefaults => (wgpu::Features::empty(), wgpu::Limits::default()),
        };
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("whipsnake"),
            required_features: features,
            required_limits: limits.clone(),
            memory_hints: wgpu::MemoryHints::Performance,
            ..Default::default()
        };
        let (device, queue) = adapter.request_device(&descriptor).await.map_err(|e| {
            Error::device(format!("wgpu: {}: the driver opens no device: {e}", report.name))
        })?;
        if options.demands == Demands::WebGpuDefaults {
            report.features.f16 = false;
            report.features.subgroups = None;
        }
        let variants = Variants::of(report.kind, &report.features, options.reduction);
        report.variants = variants.names();
        Ok(Self {
            faults: Faults::attach(&device),
            recorder: RefCell::new(Recorder::new(&device)),
            device,
            queue,
            limits,
            variants,
            piece_cap: options.piece_bytes,
            books: Rc::default(),
            pipelines: RefCell::default(),
            staging: RefCell::default(),
            staged: Cell::new(0),
            partials: OnceCell::new(),
            report,
        })
    }

    /// The device, its limits and the variants that run on it.
    pub fn report(&self) -> &DeviceReport {
        &self.report
    }
}

/// Optional features that some variant uses.
fn useful_features() -> wgpu::Features {
    wgpu::Features::SUBGROUP
}

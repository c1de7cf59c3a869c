//! An opened device.

use crate::buffer::{Books, Buffer};
use crate::faults::Faults;
use crate::kernel::{Kernel, Pipeline};
use crate::probe::{self, DeviceFeatures, DeviceReport};
use crate::recorder::Recorder;
use crate::timing::{self, Stamps};
use crate::variants::{Reduction, Room, Variants, Wishes};
use std::cell::{OnceCell, RefCell};
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
    /// Variants to run instead of the device's own choice.
    pub wishes: Wishes,
    /// What to time on the device.
    pub timed: Timed,
}

/// What time stamps are taken of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timed {
    /// Nothing.
    #[default]
    Nothing,
    /// What `bench` times.
    Calls,
    /// Every dispatch; a table by kernel goes to standard error when the device is closed.
    Dispatches,
}

/// Words that [`Options::with_words`] knows.
const WORDS: &str = "defaults, invocation, workgroup, subgroup, no-coop, ahead, no-ahead, profile";

impl Options {
    /// Applies words separated by commas, as the variable `WHIPSNAKE_WGPU` holds them: `defaults` keeps to WebGPU's
    /// default limits and no optional feature, `invocation`, `workgroup` and `subgroup` choose who adds up an output
    /// where rows are few, `no-coop` leaves cooperative matrices alone, `ahead` and `no-ahead`
    /// choose whether steps are queued before the one before them is read, `profile` times every dispatch.
    ///
    /// # Errors
    /// A word is not known.
    pub fn with_words(mut self, words: &str) -> Result<Self> {
        for word in words.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            match word {
                "defaults" => self.demands = Demands::WebGpuDefaults,
                "invocation" => self.wishes.reduction = Some(Reduction::Invocation),
                "workgroup" => self.wishes.reduction = Some(Reduction::Workgroup),
                "subgroup" => self.wishes.reduction = Some(Reduction::Subgroup),
                "no-coop" => self.wishes.no_cooperative = true,
                "ahead" => self.wishes.ahead = Some(true),
                "no-ahead" => self.wishes.ahead = Some(false),
                "profile" => self.timed = Timed::Dispatches,
                _ => {
                    return Err(Error::request(format!(
                        "wgpu: {word:?} is no variant, want some of {WORDS}"
                    )));
                }
            }
        }
        Ok(self)
    }
}

impl Options {
    /// Time stamps of a device that is opened for them.
    fn stamps(&self, device: &wgpu::Device) -> Option<Stamps> {
        let every_dispatch = self.timed == Timed::Dispatches;
        (self.timed != Timed::Nothing).then(|| Stamps::new(device, every_dispatch))
    }
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
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) cache: Option<crate::cache::Cache>,
    pub(crate) pipelines: RefCell<HashMap<Kernel, Rc<Pipeline>>>,
    pub(crate) recorder: RefCell<Recorder>,
    pub(crate) staging: Rc<RefCell<Vec<wgpu::Buffer>>>,
    /// What passes between the dispatches of one op.
    pub(crate) workspace: OnceCell<Buffer>,
    /// Weights on their way to the device.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) uploads: RefCell<crate::upload::Uploads>,
    /// Bytes of weights written since the device was last waited for.
    #[cfg(target_arch = "wasm32")]
    pub(crate) staged: std::cell::Cell<u64>,
    /// Time stamps, from the start where the device was opened for them, else from the first mark of a step on.
    pub(crate) stamps: OnceCell<Stamps>,
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
        if options.demands == Demands::WebGpuDefaults {
            report.features = DeviceFeatures::NONE;
        }
        let limits = match options.demands {
            Demands::Everything => adapter.limits(),
            Demands::WebGpuDefaults => wgpu::Limits::default(),
        };
        let room = Room::of(&limits);
        let variants = Variants::of(report.kind, &report.features, options.wishes, room);
        report.variants = variants.names();
        let features = match options.demands {
            Demands::Everything => useful_features(&adapter, variants),
            Demands::WebGpuDefaults => wgpu::Features::empty(),
        };
        let timed = match options.timed {
            Timed::Nothing => wgpu::Features::empty(),
            _ => timing::FEATURES,
        };
        // SAFETY: cooperative matrices are experimental in wgpu; the shaders that use them load and store whole
        // matrices inside their workgroup's memory.
        let experimental = unsafe { wgpu::ExperimentalFeatures::enabled() };
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("whipsnake"),
            required_features: features | timed,
            required_limits: limits.clone(),
            experimental_features: experimental,
            memory_hints: wgpu::MemoryHints::Performance,
            ..Default::default()
        };
        let (device, queue) = adapter.request_device(&descriptor).await.map_err(|e| {
            Error::device(format!("wgpu: {}: the driver opens no device: {e}", report.name))
        })?;
        let stamps = options.stamps(&device).map_or_else(OnceCell::new, OnceCell::from);
        let gpu = Self {
            faults: Faults::attach(&device),
            recorder: RefCell::new(Recorder::new(&device)),
            #[cfg(not(target_arch = "wasm32"))]
            cache: crate::cache::Cache::open(&device, &adapter.get_info()),
            device,
            queue,
            limits,
            variants,
            piece_cap: options.piece_bytes,
            books: Rc::default(),
            pipelines: RefCell::default(),
            staging: Rc::default(),
            workspace: OnceCell::new(),
            #[cfg(not(target_arch = "wasm32"))]
            uploads: RefCell::default(),
            #[cfg(target_arch = "wasm32")]
            staged: std::cell::Cell::new(0),
            stamps,
            report,
        };
        gpu.workspace()?;
        Ok(gpu)
    }

    /// The device, its limits and the variants that run on it.
    pub fn report(&self) -> &DeviceReport {
        &self.report
    }

    /// Gives the device back to the system at once; every later call returns that it is lost.
    pub fn destroy(&self) {
        self.device.destroy();
    }
}

/// Optional features that the variants use.
fn useful_features(adapter: &wgpu::Adapter, variants: Variants) -> wgpu::Features {
    let mut useful = wgpu::Features::SUBGROUP | wgpu::Features::PIPELINE_CACHE;
    if variants.cooperative {
        useful |= wgpu::Features::SHADER_F16 | wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
    }
    let offered = adapter.features();
    if offered.contains(timing::FEATURES) {
        useful |= timing::FEATURES;
    }
    offered & useful
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_choose_variants() {
        let options = Options::default().with_words("workgroup, no-coop,defaults").unwrap();
        assert_eq!(options.wishes.reduction, Some(Reduction::Workgroup));
        assert!(options.wishes.no_cooperative);
        assert_eq!(options.demands, Demands::WebGpuDefaults);
        let error = Options::default().with_words("warp").unwrap_err();
        assert_eq!(
            error.to_string(),
            "wgpu: \"warp\" is no variant, want some of defaults, invocation, workgroup, subgroup, no-coop, ahead, no-ahead, profile"
        );
    }
}

//! What a model takes in memory, before anything is allocated: tensor by tensor, and what each sequence adds.
//!
//! Conventions, the same as those of loading:
//! - a weight stays in its stored format; its planes (elements, block scales) count, the f32 scale of a whole matrix is a
//!   number beside them and counts nothing;
//! - a small parameter becomes f32;
//! - a tensor that is recognised and not run takes nothing;
//! - buffers are padded to the alignment of the back end: one for the elements of a weight, with all its experts, one
//!   for its block scales, and one for its matrix scales where the back end keeps those on the device. A weight that a
//!   device cannot bind whole is cut into pieces, each padded.
//!
//! "Widened" prices F16 and BF16 weights as f32, the choice of engines that keep no narrow floats; quantised weights
//! stay as they are.

mod render;
mod work;

pub use render::bytes;
pub use work::Work;

use crate::backend::{Ledger, Policy};
use crate::checkpoint::{Checkpoint, Inventory, Role};
use crate::error::Result;
use crate::model::Dims;
use crate::model::scratch::areas;
use crate::model::spec::{MixerSpec, ModelSpec, ParamRef, WeightRef};
use crate::model::state::{kv_bytes, state_areas, state_bytes};
use crate::weight::Format;
use serde::Serialize;

/// What to price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Request {
    /// The choices of the back end.
    pub policy: Policy,
    /// How large the session is.
    pub dims: Dims,
    /// Price F16 and BF16 weights as f32.
    pub widen: bool,
}

/// One tensor on disk and in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Part of the model: `embedding`, `mamba2`, `attention`, `mlp`, `moe`, `norm`, `head` or `unused`.
    pub part: &'static str,
    /// How it is stored.
    pub stored: String,
    /// Bytes on disk.
    pub stored_bytes: u64,
    /// How it is kept, `-` for what is not.
    pub resident: &'static str,
    /// Bytes in memory.
    pub resident_bytes: u64,
}

/// Memory of a model on a back end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// What was priced.
    pub request: Request,
    /// Every tensor of the checkpoint.
    pub rows: Vec<Row>,
    /// Bytes of the checkpoint's tensors on disk.
    pub stored_bytes: u64,
    /// Bytes of recurrent state that one sequence needs.
    pub state_bytes_per_sequence: u64,
    /// Bytes of keys and values that one token needs.
    pub kv_bytes_per_token: u64,
    /// Bytes in memory, by class.
    pub memory: Ledger,
}

impl Plan {
    /// Prices `checkpoint`; one made of a geometry serves as well as one with weights.
    ///
    /// # Errors
    /// As [`Checkpoint::inventory`].
    pub fn new(checkpoint: &Checkpoint, request: Request) -> Result<Self> {
        let spec = checkpoint.spec();
        let mut pricer = Pricer { checkpoint, request, rows: Vec::new(), weights: 0 };
        pricer.price(spec, &checkpoint.inventory()?)?;
        let Pricer { rows, weights, .. } = pricer;
        let padding = request.policy.alignment;
        let mut memory = Ledger::default();
        for area in state_areas(spec, &request.policy, &request.dims) {
            *memory.of(area.class) += padded(wide(area.bytes()), padding);
        }
        for area in areas(spec, &request.policy, &request.dims) {
            memory.scratch += padded(wide(area.bytes()), padding);
        }
        memory.scratch += padded(wide(request.policy.workspace), padding);
        memory.weights = weights;
        Ok(Self {
            request,
            stored_bytes: rows.iter().map(|r| r.stored_bytes).sum(),
            rows,
            state_bytes_per_sequence: state_bytes(spec, &request.policy),
            kv_bytes_per_token: kv_bytes(spec, &request.policy),
            memory,
        })
    }

    /// Bytes in memory of `part`, on disk and resident.
    pub fn part(&self, part: &str) -> (u64, u64) {
        let rows = self.rows.iter().filter(|r| r.part == part);
        rows.fold((0, 0), |(s, r), row| (s + row.stored_bytes, r + row.resident_bytes))
    }
}

fn padded(bytes: u64, alignment: usize) -> u64 {
    bytes.next_multiple_of(wide(alignment.max(1)))
}

/// A size as u64: lossless on every target there is.
fn wide(size: usize) -> u64 {
    size as u64
}

struct Pricer<'a> {
    checkpoint: &'a Checkpoint,
    request: Request,
    rows: Vec<Row>,
    /// Bytes of all buffers of weights and parameters.
    weights: u64,
}

impl Pricer<'_> {
    fn price(&mut self, spec: &ModelSpec, inventory: &Inventory) -> Result<()> {
        self.weight("embedding", &spec.embedding)?;
        for block in &spec.blocks {
            let part = block.mixers.first().map_or("norm", MixerSpec::kind);
            for weight in block.weights() {
                self.weight(part, weight)?;
            }
            let heads: Vec<&ParamRef> =
                block.mixers.iter().flat_map(MixerSpec::head_params).collect();
            let mut joined = 0;
            for param in block.params() {
                let bytes =
                    self.param(if *param == block.norm.weight { "norm" } else { part }, param)?;
                match heads.contains(&param) {
                    true => joined += bytes,
                    false => self.buffer(bytes),
                }
            }
            self.buffer(joined);
        }
        let bytes = self.param("norm", &spec.final_norm.weight)?;
        self.buffer(bytes);
        if spec.head != spec.embedding {
            self.weight("head", &spec.head)?;
        }
        self.rows.extend(inventory.unused.iter().map(|u| Row {
            name: u.name.clone(),
            part: "unused",
            stored: u.dtype.to_string().to_lowercase(),
            stored_bytes: u.bytes,
            resident: "-",
            resident_bytes: 0,
        }));
        Ok(())
    }

    /// Counts a buffer.
    fn buffer(&mut self, bytes: u64) {
        self.weights += padded(bytes, self.request.policy.alignment);
    }

    fn weight(&mut self, part: &'static str, weight: &WeightRef) -> Result<()> {
        let stored = self.checkpoint.describe(weight)?;
        let narrow = matches!(stored.format, Format::F16 | Format::BF16);
        let (mut elements, mut block_scales) = (0, 0);
        for tensor in stored.tensors {
            let (resident, bytes) = match tensor.role {
                Role::MatrixScale => ("-", 0),
                Role::Data if narrow && self.request.widen => {
                    ("f32", wide(weight.rows) * wide(weight.cols) * 4)
                }
                Role::BlockScales => ("e4m3", tensor.bytes),
                Role::Data | Role::Param => (stored.format.name(), tensor.bytes),
            };
            *if tensor.role == Role::BlockScales { &mut block_scales } else { &mut elements } +=
                bytes;
            self.rows.push(Row {
                name: tensor.name,
                part,
                stored: tensor.dtype.to_string().to_lowercase(),
                stored_bytes: tensor.bytes,
                resident,
                resident_bytes: bytes,
            });
        }
        self.buffer(elements);
        self.buffer(block_scales);
        if self.request.policy.matrix_scales.kept(stored.format) {
            self.buffer(4 * wide(weight.names.len()));
        }
        Ok(())
    }

    /// Lists a parameter and gives its bytes in memory.
    fn param(&mut self, part: &'static str, param: &ParamRef) -> Result<u64> {
        let stored = self.checkpoint.describe_param(param)?;
        let bytes = wide(param.rows) * wide(param.cols) * 4;
        self.rows.push(Row {
            name: stored.name,
            part,
            stored: stored.dtype.to_string().to_lowercase(),
            stored_bytes: stored.bytes,
            resident: "f32",
            resident_bytes: bytes,
        });
        Ok(bytes)
    }
}

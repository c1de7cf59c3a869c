//! `whipsnake plan`: what a model takes in memory, before anything is loaded.

use whipsnake_core::backend::{Backend, Policy};
use whipsnake_core::checkpoint::{Checkpoint, Geometry};
use whipsnake_core::cpu::Cpu;
use whipsnake_core::plan::{Plan, Request, bytes};
use whipsnake_wgpu::Verdict;

use crate::args::{BackendArgs, BackendChoice, PlanArgs};
use crate::memory::available_memory;
use crate::output::Output;
use crate::runtime::{Model, Room};
use crate::select::cuda_options;

/// Context of a plan where the user does not say: what a chat uses, not all that the model could.
const DEFAULT_CONTEXT: usize = 16 << 10;

/// Runs the command.
pub fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let checkpoint = match &args.geometry {
        Some(name) => Checkpoint::synthetic(&Geometry::named(name)?, 0)?,
        None => Model::open(&args.model)?.checkpoint,
    };
    let context = args.context.unwrap_or(DEFAULT_CONTEXT.min(checkpoint.spec().context));
    let room = Room { slots: args.slots, context, rows: None };
    let mut output = Output::stdout();
    let mut plans = Vec::new();
    for (backend, policy) in policies(&args.backend) {
        let dims = room.dims_within(&checkpoint, policy, free_memory(backend).ok())?;
        let request = Request { policy, dims, widen: args.widen };
        plans.push((backend, Plan::new(&checkpoint, request)?));
    }
    if args.json {
        let plans: serde_json::Map<_, _> = plans
            .iter()
            .map(|(name, plan)| Ok(((*name).to_string(), serde_json::to_value(plan)?)))
            .collect::<Result<_, serde_json::Error>>()?;
        return output.json(&plans);
    }
    for (index, (backend, plan)) in plans.iter().enumerate() {
        if args.tensors && index == 0 {
            output.text(&plan.tensors())?;
        }
        output.text(&format!("on {backend}\n{plan}{}", verdict(backend, plan)))?;
    }
    Ok(())
}

/// The back ends that are priced, with the choices that shape their buffers.
fn policies(args: &BackendArgs) -> Vec<(&'static str, Policy)> {
    let cpu = ("cpu", Cpu::new().policy());
    let wgpu = ("wgpu", whipsnake_wgpu::POLICY);
    let cuda = ("cuda", cuda_options(args).policy());
    match args.backend {
        BackendChoice::Auto => vec![cuda, wgpu, cpu],
        BackendChoice::Cuda => vec![cuda],
        BackendChoice::Wgpu => vec![wgpu],
        BackendChoice::Cpu => vec![cpu],
    }
}

/// Whether it fits into what is free on the device that would run it.
fn verdict(backend: &str, plan: &Plan) -> String {
    let total = plan.memory.total();
    match free_memory(backend) {
        Err(why) => format!("whether it fits is not known: {why}\n"),
        Ok(free) if total <= free => format!("fits: {} of {} free\n", bytes(total), bytes(free)),
        Ok(free) => {
            format!("does not fit: {} more than the {} free\n", bytes(total - free), bytes(free))
        }
    }
}

/// Free bytes of the device, or why nobody knows.
fn free_memory(backend: &str) -> Result<u64, String> {
    match backend {
        "cuda" => {
            let devices = whipsnake_cuda::devices();
            let usable = devices.iter().find(|d| d.refused.is_none());
            usable.map(|d| d.free).ok_or_else(|| {
                let reason = devices.into_iter().find_map(|d| d.refused);
                reason.unwrap_or_else(|| "there is no CUDA device".into())
            })
        }
        // WebGPU does not tell how much memory an adapter has; a software adapter's is this machine's.
        "wgpu" => {
            match whipsnake_wgpu::devices().into_iter().find(|d| d.verdict == Verdict::Chosen) {
                Some(device) if device.kind == "software" => machine_memory(),
                Some(device) => {
                    Err(format!("WebGPU does not tell how much memory {} has", device.name))
                }
                None => Err("there is no adapter that can run it".into()),
            }
        }
        _ => machine_memory(),
    }
}

fn machine_memory() -> Result<u64, String> {
    available_memory().ok_or_else(|| "this system does not tell its free memory".into())
}

//! `whipsnake plan`: what a model takes in memory, before anything is loaded.

use whipsnake_core::backend::{Backend, Policy};
use whipsnake_core::checkpoint::{Checkpoint, Geometry};
use whipsnake_core::cpu::Cpu;
use whipsnake_core::plan::{Plan, Request, bytes};

use crate::args::{BackendChoice, PlanArgs};
use crate::memory::available_memory;
use crate::output::Output;
use crate::runtime::{self, Model};

/// Context of a plan where the user does not say: what a chat uses, not all that the model could.
const DEFAULT_CONTEXT: usize = 16 << 10;

/// Runs the command.
pub fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let checkpoint = match &args.geometry {
        Some(name) => Checkpoint::synthetic(&Geometry::named(name)?, 0)?,
        None => Model::open(&args.model)?.checkpoint,
    };
    let context = args.context.unwrap_or(DEFAULT_CONTEXT.min(checkpoint.spec().context));
    let dims = runtime::dims(&checkpoint, Some(context), args.slots, runtime::STEP_ROWS);
    let mut output = Output::stdout();
    let mut plans = Vec::new();
    for (backend, policy) in policies(args.backend.backend) {
        plans.push((backend, Plan::new(&checkpoint, Request { policy, dims, widen: args.widen })?));
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
fn policies(choice: BackendChoice) -> Vec<(&'static str, Policy)> {
    let cpu = ("cpu", Cpu::new().policy());
    let wgpu = ("wgpu", whipsnake_wgpu::POLICY);
    let cuda = ("cuda", whipsnake_cuda::Options::default().policy());
    match choice {
        BackendChoice::Auto => vec![cuda, wgpu, cpu],
        BackendChoice::Cuda => vec![cuda],
        BackendChoice::Wgpu => vec![wgpu],
        BackendChoice::Cpu => vec![cpu],
    }
}

/// Whether it fits, where the free memory is known.
fn verdict(backend: &str, plan: &Plan) -> String {
    let total = plan.memory.total();
    match available_memory().filter(|_| backend == "cpu") {
        None => String::new(),
        Some(free) if total <= free => format!("fits: {} of {} free\n", bytes(total), bytes(free)),
        Some(free) => {
            format!("does not fit: {} more than the {} free\n", bytes(total - free), bytes(free))
        }
    }
}

//! Which back end runs: the one that was asked for, or the best that works here.

use anyhow::Context;
use whipsnake_core::backend::Backend;
use whipsnake_core::cpu::{Cpu, join_thread_pool};
use whipsnake_core::error::Result;
use whipsnake_core::tensor::DType;
use whipsnake_cuda::{Cuda, Options as CudaOptions};
use whipsnake_wgpu::{Options as WgpuOptions, Wgpu};

use crate::args::{BackendArgs, BackendChoice, Kv, Precision, StateType};
use crate::failure::Hinted;

/// Work for a back end whose type is only known once the devices were probed.
pub trait BackendTask {
    /// What it gives.
    type Output;

    /// Does it.
    fn run<B: Backend>(self, backend: B) -> anyhow::Result<Self::Output>;
}

/// Runs `task` on the back end that `args` ask for.
///
/// `auto` takes CUDA where it works, else a GPU through wgpu, else the CPU, which it says in one line unless `quiet`.
pub fn on_backend<T: BackendTask>(
    args: &BackendArgs,
    quiet: bool,
    task: T,
) -> anyhow::Result<T::Output> {
    match args.backend {
        BackendChoice::Cuda => task.run(cuda(args)?),
        BackendChoice::Wgpu => task.run(wgpu(args)?),
        BackendChoice::Cpu => task.run(cpu(args)?),
        BackendChoice::Auto => automatic(args, quiet, task),
    }
}

fn automatic<T: BackendTask>(
    args: &BackendArgs,
    quiet: bool,
    task: T,
) -> anyhow::Result<T::Output> {
    if whipsnake_cuda::devices().iter().any(|d| d.refused.is_none()) {
        match cuda(args) {
            Ok(backend) => return task.run(backend),
            Err(error) => tracing::warn!("CUDA is passed over: {error:#}"),
        }
    }
    if whipsnake_wgpu::devices().iter().any(|d| d.is_hardware()) {
        match wgpu(args) {
            Ok(backend) => return task.run(backend),
            Err(error) => tracing::warn!("wgpu is passed over: {error:#}"),
        }
    }
    if args.device.is_some() {
        anyhow::bail!("no usable GPU matches --device; `whipsnake devices` lists what there is");
    }
    if !quiet {
        eprintln!("running on the CPU: no GPU is usable here (`whipsnake devices` says why)");
    }
    task.run(cpu(args)?)
}

fn cpu(args: &BackendArgs) -> anyhow::Result<Cpu> {
    wants_f32("cpu", args)?;
    join_thread_pool();
    Ok(Cpu::new())
}

/// Keys, values and states are f32 on every back end but CUDA.
fn wants_f32(backend: &str, args: &BackendArgs) -> anyhow::Result<()> {
    let refuse = |option: &str, what: &str| {
        Err(Hinted::new(format!("{option}: {backend} keeps {what} in f32"))
            .hint(format!("--backend cuda, or leave {option} out"))
            .into())
    };
    match (args.kv, args.state) {
        (Some(Kv::Bf16 | Kv::Fp8), _) => refuse("--kv", "keys and values"),
        (_, Some(StateType::Bf16)) => refuse("--state", "states"),
        _ => Ok(()),
    }
}

/// The CUDA device that `args` ask for.
pub fn cuda(args: &BackendArgs) -> anyhow::Result<Cuda> {
    let ordinal = match &args.device {
        None => 0,
        Some(name) => cuda_ordinal(name)?,
    };
    Ok(Cuda::with_options(ordinal, cuda_options(args))?)
}

/// How the options want the CUDA back end.
pub fn cuda_options(args: &BackendArgs) -> CudaOptions {
    let options = match args.precision {
        Precision::Auto => CudaOptions::default(),
        Precision::F32 => CudaOptions::F32,
        Precision::Bf16 => {
            CudaOptions { activations: DType::BF16, kv: DType::BF16, ..CudaOptions::default() }
        }
    };
    let kv = match args.kv {
        None => options.kv,
        Some(Kv::F32) => DType::F32,
        Some(Kv::Bf16) => DType::BF16,
        Some(Kv::Fp8) => DType::F8E4M3,
    };
    let state = match args.state {
        None | Some(StateType::F32) => options.state,
        Some(StateType::Bf16) => DType::BF16,
    };
    CudaOptions { kv, state, ..options }
}

/// The CUDA device of a number or a part of its name.
fn cuda_ordinal(selector: &str) -> anyhow::Result<usize> {
    if let Ok(ordinal) = selector.parse() {
        return Ok(ordinal);
    }
    let devices = whipsnake_cuda::devices();
    let found = devices.iter().find(|d| d.name.to_lowercase().contains(&selector.to_lowercase()));
    found
        .map(|d| d.ordinal)
        .with_context(|| format!("no CUDA device matches {selector:?}; try `whipsnake devices`"))
}

fn wgpu(args: &BackendArgs) -> anyhow::Result<Wgpu> {
    wants_f32("wgpu", args)?;
    Ok(Wgpu::open(&wgpu_options(args)?)?)
}

/// How the options and the variable `WHIPSNAKE_WGPU` want the portable back end.
pub fn wgpu_options(args: &BackendArgs) -> Result<WgpuOptions> {
    let words = std::env::var("WHIPSNAKE_WGPU").unwrap_or_default();
    let options = WgpuOptions { device: args.device.clone(), ..WgpuOptions::default() };
    options.with_words(&words)
}

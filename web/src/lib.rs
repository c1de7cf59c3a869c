//! Whipsnake in the browser, through wasm and WebGPU.
//!
//! This crate is what `js/worker.js` calls; pages use `js/whipsnake.js`, which starts the worker. A tour: `folder`
//! makes a checkpoint of files that the worker reads by ranges, `model` puts it on a back end and runs replies step by
//! step, `request` reads what was asked for, `about` tells what is loaded. Text, chat, sampling and the engine are
//! the core's. Structures cross the border as JSON.

mod about;
mod error;
mod folder;
mod model;
mod request;

use error::to_js;
use js_sys::Function;
use std::time::Duration;
use wasm_bindgen::prelude::*;
use whipsnake_core::backend::Backend;
use whipsnake_core::conformance::{Outcome, Report, watch_suite};
use whipsnake_core::cpu::Cpu;
use whipsnake_core::error::{Error, Result};
use whipsnake_wgpu::{Options, Wgpu};

pub use folder::Folder;
pub use model::Model;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = performance, js_name = now)]
    fn performance_now() -> f64;
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    fn console_error(text: &str);
}

/// Makes a panic say where it was; the worker reports that the module stopped.
#[wasm_bindgen(start)]
fn start() {
    std::panic::set_hook(Box::new(|info| console_error(&info.to_string())));
}

/// Time since the worker began.
fn clock() -> Duration {
    Duration::from_secs_f64(performance_now().max(0.0) / 1000.0)
}

/// Which back end was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    /// WebGPU.
    WebGpu,
    /// The processor, by wasm.
    Cpu,
}

impl Choice {
    fn named(name: &str) -> Result<Self> {
        match name {
            "webgpu" => Ok(Self::WebGpu),
            "cpu" => Ok(Self::Cpu),
            _ => Err(Error::request(format!("backend is {name:?}, want \"webgpu\" or \"cpu\""))),
        }
    }
}

async fn open_gpu() -> Result<Wgpu> {
    Wgpu::open_async(&Options::default()).await
}

/// JSON list of the adapters that the browser offers, each with its limits and whether it can run models.
///
/// # Errors
/// A JavaScript error that says why.
#[wasm_bindgen(js_name = deviceReport)]
pub async fn device_report() -> std::result::Result<String, JsValue> {
    json(&whipsnake_wgpu::devices_async().await).map_err(to_js)
}

/// Runs the conformance cases whose op's name holds `filter` on a back end, against the reference arithmetic.
/// `watcher` is called with the JSON of each outcome; the result is that of the whole report.
///
/// # Errors
/// A JavaScript error: the back end cannot be opened.
#[wasm_bindgen]
pub async fn selfcheck(
    backend: String,
    filter: String,
    watcher: Function,
) -> std::result::Result<String, JsValue> {
    let checked = async {
        let report = match Choice::named(&backend)? {
            Choice::WebGpu => check(&open_gpu().await?, &filter, &watcher).await,
            Choice::Cpu => check(&Cpu::new(), &filter, &watcher).await,
        };
        json(&report)
    };
    checked.await.map_err(to_js)
}

async fn check<B: Backend>(backend: &B, filter: &str, watcher: &Function) -> Report {
    let tell = |outcome: &Outcome| {
        if let Ok(text) = json(outcome) {
            // A watcher that throws is no reason to stop the check.
            let _ = watcher.call1(&JsValue::NULL, &text.into());
        }
    };
    watch_suite(backend, filter, &tell).await
}

/// A value as JSON text.
fn json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|e| Error::request(format!("it cannot be written as JSON: {e}")))
}

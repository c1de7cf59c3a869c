//! A model that is loaded, and the reply that it is writing.

use crate::about::{About, Opening};
use crate::error::to_js;
use crate::folder::{self, Folder};
use crate::request::{Asked, Text};
use crate::{Choice, clock, json, open_gpu};
use js_sys::Function;
use serde::{Deserialize, Serialize};
use wasm_bindgen::prelude::*;
use whipsnake_core::backend::{Backend, Ledger};
use whipsnake_core::batch::{Batch, Chunk};
use whipsnake_core::checkpoint::Checkpoint;
use whipsnake_core::cpu::Cpu;
use whipsnake_core::engine::Engine;
use whipsnake_core::error::{Error, Result};
use whipsnake_core::model::Dims;
use whipsnake_core::model::weights::LoadProgress;
use whipsnake_core::replies::{News, Replies, Stop, Usage};
use whipsnake_core::session::{DeviceSession, Output, Session, Want};
use whipsnake_wgpu::DeviceReport;

/// Longest sequence where the page does not say.
const CONTEXT: usize = 4096;
/// Most rows of a step where the page does not say: how long a stop may take.
const ROWS: usize = 256;
/// Rows whose logits one pass of the head computes.
const OUTPUTS: usize = 16;

/// How to open a model.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Options {
    backend: String,
    context: Option<usize>,
    rows: Option<usize>,
}

/// What became known in a step.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Item {
    Token { token: u32 },
    Text { content: String, reasoning: String },
    Done { stop: Stop, usage: Usage, memory: Ledger },
}

/// A model on a back end. One reply is written at a time; a prompt that goes on from the last one continues its state.
#[wasm_bindgen]
pub struct Model {
    engine: Engine,
    text: Option<Text>,
    about: About,
    replies: Option<Replies>,
}

/// Told of each tensor that is on the device: `{name, bytes}` as JSON.
fn teller(progress: &Function) -> impl Fn(LoadProgress<'_>) + '_ {
    move |step| {
        let text = serde_json::json!({"tensor": step.name, "loaded": step.bytes}).to_string();
        // A page that throws is no reason to stop loading.
        let _ = progress.call1(&JsValue::NULL, &text.into());
    }
}

#[wasm_bindgen]
impl Model {
    /// Opens the model in a folder. `options` is JSON; `progress` is called with JSON as tensors arrive.
    ///
    /// # Errors
    /// A JavaScript error: the checkpoint is refused, a file cannot be read, there is no device or it is full.
    pub async fn open(
        folder: Folder,
        options: String,
        progress: Function,
    ) -> std::result::Result<Self, JsValue> {
        Self::load(folder, &options, &progress).await.map_err(to_js)
    }

    async fn load(folder: Folder, options: &str, progress: &Function) -> Result<Self> {
        let options: Options = parse("options", options)?;
        let gpu = match Choice::named(&options.backend)? {
            Choice::WebGpu => Some(open_gpu().await?),
            Choice::Cpu => None,
        };
        let checkpoint = folder::open(folder).await?;
        let longest = checkpoint.spec().context;
        let context = options.context.unwrap_or(CONTEXT.min(longest));
        let rows = options.rows.unwrap_or(ROWS);
        let dims = Dims { slots: 1, context, rows, outputs: OUTPUTS.min(rows.max(1)) };
        let text = Text::of(&checkpoint)?;
        let (session, about) = match gpu {
            Some(gpu) => {
                let device = gpu.report().clone();
                put(gpu, &checkpoint, dims, progress, text.as_ref(), Some(device)).await?
            }
            None => put(Cpu::new(), &checkpoint, dims, progress, text.as_ref(), None).await?,
        };
        Ok(Self { engine: Engine::new(session, rows), text, about, replies: None })
    }

    /// What is loaded, as JSON.
    ///
    /// # Errors
    /// A JavaScript error: it cannot be written.
    pub fn about(&self) -> std::result::Result<String, JsValue> {
        json(&self.about).map_err(to_js)
    }

    /// Bytes held on the device, as JSON.
    ///
    /// # Errors
    /// A JavaScript error: it cannot be written.
    pub fn memory(&self) -> std::result::Result<String, JsValue> {
        json(&self.engine.session().ledger()).map_err(to_js)
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// A JavaScript error: the model has no tokenizer.
    pub fn encode(&self, text: &str) -> std::result::Result<Vec<u32>, JsValue> {
        self.text().and_then(|t| t.tokenizer.encode(text)).map_err(to_js)
    }

    fn text(&self) -> Result<&Text> {
        self.text.as_ref().ok_or_else(|| {
            Error::request(
                "the model has no tokenizer.json; only logits of tokens can be asked for",
            )
        })
    }

    /// Begins a reply to the request in `asked`, which is JSON.
    ///
    /// # Errors
    /// A JavaScript error: the request is not understood or does not fit, or another reply is being written.
    pub fn start(&mut self, asked: &str) -> std::result::Result<(), JsValue> {
        self.begin(asked).map_err(to_js)
    }

    fn begin(&mut self, asked: &str) -> Result<()> {
        if self.replies.is_some() {
            return Err(Error::request("another reply is being written; stop it first"));
        }
        let asked: Asked = parse("request", asked)?;
        let request = self.text()?.request(asked)?;
        self.replies = Some(Replies::start(&mut self.engine, vec![request], clock)?);
        Ok(())
    }

    /// Runs one step of the reply; a JSON list of what became known, `done` last.
    ///
    /// # Errors
    /// A JavaScript error: the device is lost, or the logits cannot be sampled. The reply has then ended.
    pub async fn step(&mut self) -> std::result::Result<String, JsValue> {
        let mut items = Vec::new();
        let outcome = match &mut self.replies {
            Some(replies) => replies.step(&mut self.engine, &mut collect(&mut items)).await,
            None => Err(Error::request("no reply is being written")),
        };
        self.end(outcome, items).map_err(to_js)
    }

    /// Ends the reply as cancelled; a JSON list as of [`Model::step`].
    ///
    /// # Errors
    /// A JavaScript error: no reply is being written.
    pub fn cancel(&mut self) -> std::result::Result<String, JsValue> {
        let mut items = Vec::new();
        let outcome = match &mut self.replies {
            Some(replies) => replies.cancel(&mut self.engine, &mut collect(&mut items)),
            None => Err(Error::request("no reply is being written")),
        };
        self.end(outcome, items).map_err(to_js)
    }

    fn end(&mut self, outcome: Result<()>, mut items: Vec<Item>) -> Result<String> {
        if (outcome.is_err() || self.replies.as_ref().is_some_and(Replies::done))
            && let Some(mut replies) = self.replies.take()
        {
            replies.leave(&mut self.engine);
        }
        let now = self.engine.session().ledger();
        for item in &mut items {
            if let Item::Done { memory, .. } = item {
                *memory = now;
            }
        }
        outcome.and_then(|()| json(&items))
    }

    /// Logits after each of `tokens`, row by row; a running reply and the state that it left end.
    ///
    /// # Errors
    /// A JavaScript error: a token is past the vocabulary, too many tokens, the device is lost.
    pub async fn logits(&mut self, tokens: Vec<u32>) -> std::result::Result<Vec<f32>, JsValue> {
        self.replies = None;
        logits(self.engine.take_over(), &tokens).await.map_err(to_js)
    }
}

/// Loads a checkpoint on a back end.
async fn put<B: Backend>(
    backend: B,
    checkpoint: &Checkpoint,
    dims: Dims,
    progress: &Function,
    text: Option<&Text>,
    device: Option<DeviceReport>,
) -> Result<(Box<dyn Session>, About)> {
    let about = About::of(Opening {
        checkpoint,
        dims,
        policy: backend.policy(),
        backend: backend.name(),
        device,
        sampling: text.map(|t| t.generation.sampling()),
        chat: text.is_some_and(|t| t.template.is_some()),
    })?;
    let tell = teller(progress);
    let session = DeviceSession::open(backend, checkpoint, dims, &tell).await?;
    Ok((Box::new(session), about))
}

fn collect(items: &mut Vec<Item>) -> impl FnMut(News<'_>) -> Result<()> + '_ {
    |news| {
        items.push(match news {
            News::Token(_, choice) => Item::Token { token: choice.token },
            News::Text(_, delta) if delta.content.is_empty() && delta.reasoning.is_empty() => {
                return Ok(());
            }
            News::Text(_, delta) => {
                Item::Text { content: delta.content.clone(), reasoning: delta.reasoning.clone() }
            }
            News::Done(_, stats) => {
                Item::Done { stop: stats.stop, usage: stats.into(), memory: Ledger::default() }
            }
        });
        Ok(())
    }
}

async fn logits(session: &mut dyn Session, tokens: &[u32]) -> Result<Vec<f32>> {
    let limits = session.limits();
    let mut values = Vec::with_capacity(tokens.len() * limits.vocabulary);
    let mut position = 0;
    for chunk in tokens.chunks(limits.rows) {
        let rows: Vec<u32> = (0..).take(chunk.len()).collect();
        let chunk = Chunk { tokens: chunk.to_vec(), slot: 0, position };
        position += chunk.tokens.len();
        let batch = Batch::from_chunks(&limits, &[chunk])?;
        if let Output::Logits(rows) = session.forward(&batch, Want::Logits(&rows)).await? {
            values.extend(rows.into_iter().flatten());
        }
    }
    Ok(values)
}

fn parse<T: for<'a> Deserialize<'a>>(what: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| Error::request(format!("{what}: {e}")))
}

//! Models on the portable back end say what they say on the CPU: the shipped one alone, a tiny one in 1,025 sequences;
//! where a device keeps time, a profile names every op of a step and changes nothing.

use std::path::Path;
use whipsnake_core::backend::Backend;
use whipsnake_core::batch::{Batch, Chunk};
use whipsnake_core::checkpoint::Checkpoint;
use whipsnake_core::cpu::Cpu;
use whipsnake_core::model::Dims;
use whipsnake_core::profile::OpTime;
use whipsnake_core::session::{Choose, DeviceSession, Output, Session, Want};
use whipsnake_wgpu::{Options, Wgpu, probe};

fn gpu() -> Option<Wgpu> {
    if probe::devices().is_empty() && std::env::var_os("WHIPSNAKE_REQUIRE_ADAPTER").is_none() {
        println!("skipped: no adapter; WHIPSNAKE_REQUIRE_ADAPTER makes this a failure");
        return None;
    }
    let options = Options { device: std::env::var("WHIPSNAKE_DEVICE").ok(), ..Options::default() };
    Some(Wgpu::open(&options).expect("a device opens"))
}

fn session<B: Backend>(backend: B, model: &str, slots: usize, context: usize) -> DeviceSession<B> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/fixtures").join(model);
    let checkpoint = Checkpoint::open(&folder).expect("the model opens");
    let dims = Dims { slots, context, rows: slots.max(context), outputs: 64 };
    pollster::block_on(DeviceSession::open(backend, &checkpoint, dims, &|_| {})).expect("it loads")
}

/// Greedy tokens of the last row of each chunk.
fn greedy(session: &mut dyn Session, chunks: &[Chunk]) -> Vec<u32> {
    let batch = Batch::from_chunks(&session.limits(), chunks).expect("a batch");
    let ends: Vec<u32> = batch.segments().iter().map(|s| s.first_row + s.len - 1).collect();
    match pollster::block_on(session.forward(&batch, Want::Greedy(&ends))).expect("a step") {
        Output::Tokens(tokens) => tokens,
        other => panic!("{other:?}"),
    }
}

/// A prompt and the tokens that follow it.
fn text(session: &mut dyn Session, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    let mut next = Chunk { tokens: prompt.to_vec(), slot: 0, position: 0 };
    for _ in 0..count {
        let token = greedy(session, std::slice::from_ref(&next))[0];
        next = Chunk { tokens: vec![token], slot: 0, position: tokens.len() };
        tokens.push(token);
    }
    tokens
}

/// The same, with each step queued before the one before it is read.
fn text_ahead(session: &mut dyn Session, prompt: &[u32], count: usize) -> Vec<u32> {
    let first = Chunk { tokens: prompt.to_vec(), slot: 0, position: 0 };
    let mut tokens = prompt.to_vec();
    tokens.extend(greedy(session, &[first]));
    let next = Chunk { tokens: tokens[prompt.len()..].to_vec(), slot: 0, position: prompt.len() };
    session
        .start(&Batch::from_chunks(&session.limits(), &[next]).expect("a batch"), Choose::Best)
        .expect("a step");
    for _ in 1..count {
        session.follow().expect("a step");
        tokens.extend(pollster::block_on(session.collect()).expect("a token"));
    }
    tokens
}

#[test]
fn greedy_text_equals_the_references() {
    let Some(gpu) = gpu() else { return };
    let prompt = [40, 7, 300, 12, 99, 5, 61];
    let want = text(&mut session(Cpu::new(), "bard", 1, 64), &prompt, 48);
    let mut session = session(gpu, "bard", 1, 64);
    assert_eq!(text(&mut session, &prompt, 48), want);
    assert_eq!(text_ahead(&mut session, &prompt, 48), want);
}

#[test]
fn a_batch_of_1025_sequences_says_what_each_says_alone() {
    let Some(gpu) = gpu() else { return };
    let count = 1025;
    // A tiny model: the state of so many sequences stays within one binding of every device.
    let model = "golden/nemotron-dense";
    let mut ours = session(gpu, model, count, 2);
    let mut reference = session(Cpu::new(), model, count, 2);
    let vocabulary = ours.limits().vocabulary as u32;
    let step = |position: usize| -> Vec<Chunk> {
        let token = |slot: usize| (slot * 7 + position * 13) as u32 % vocabulary;
        let chunk = |slot| Chunk { tokens: vec![token(slot)], slot, position };
        (0..count).map(chunk).collect()
    };
    for position in 0..2 {
        let got = greedy(&mut ours, &step(position));
        let want = greedy(&mut reference, &step(position));
        let wrong = (0..count).find(|&i| got[i] != want[i]);
        assert_eq!(wrong, None, "at position {position}");
    }
}

#[test]
fn a_profiled_step_times_every_op_and_says_what_it_said_before() {
    let Some(gpu) = gpu() else { return };
    let keeps_time = gpu.report().features.timestamps;
    let mut ours = session(gpu, "bard", 1, 64);
    let chunk = Chunk { tokens: vec![40, 7, 300], slot: 0, position: 0 };
    let before = greedy(&mut ours, std::slice::from_ref(&chunk));
    let batch = Batch::from_chunks(&ours.limits(), std::slice::from_ref(&chunk)).expect("a batch");
    let ops = match pollster::block_on(ours.profile(&batch)) {
        Ok(ops) => ops,
        Err(error) => {
            assert!(!keeps_time, "{error}");
            return;
        }
    };
    let mut reference = session(Cpu::new(), "bard", 1, 64);
    let want = pollster::block_on(reference.profile(&batch)).expect("the CPU keeps time");
    // From how many rows on experts are grouped is each back end's own choice.
    let names = |ops: &[OpTime]| {
        ops.iter().map(|op| op.op).filter(|&op| op != "moe_group").collect::<Vec<_>>()
    };
    assert_eq!(names(&ops), names(&want));
    let total: f64 = ops.iter().map(|op| op.microseconds).sum();
    let last = ops.last().expect("a step has ops");
    assert!(total > 0.0 && (last.start + last.microseconds - total).abs() < 1e-3 * total);
    assert!(ops.iter().all(|op| op.microseconds >= 0.0 && op.microseconds < total));
    assert_eq!(greedy(&mut ours, std::slice::from_ref(&chunk)), before);
}

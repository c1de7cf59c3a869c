//! The shipped small model on the portable back end says what it says on the CPU, alone and with 1,024 others.

use std::path::Path;
use whipsnake_core::backend::Backend;
use whipsnake_core::batch::{Batch, Chunk};
use whipsnake_core::checkpoint::Checkpoint;
use whipsnake_core::cpu::Cpu;
use whipsnake_core::model::Dims;
use whipsnake_core::session::{DeviceSession, Output, Session, Want};
use whipsnake_wgpu::{Options, Wgpu, probe};

fn gpu() -> Option<Wgpu> {
    if probe::devices().is_empty() && std::env::var_os("WHIPSNAKE_REQUIRE_ADAPTER").is_none() {
        println!("skipped: no adapter; WHIPSNAKE_REQUIRE_ADAPTER makes this a failure");
        return None;
    }
    let options = Options { device: std::env::var("WHIPSNAKE_DEVICE").ok(), ..Options::default() };
    Some(Wgpu::open(&options).expect("a device opens"))
}

fn session<B: Backend>(backend: B, slots: usize, context: usize) -> DeviceSession<B> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/fixtures/bard");
    let checkpoint = Checkpoint::open(&folder).expect("the small model opens");
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

#[test]
fn greedy_text_equals_the_references() {
    let Some(gpu) = gpu() else { return };
    let prompt = [40, 7, 300, 12, 99, 5, 61];
    let want = text(&mut session(Cpu::new(), 1, 64), &prompt, 48);
    assert_eq!(text(&mut session(gpu, 1, 64), &prompt, 48), want);
}

#[test]
fn a_batch_of_1025_sequences_says_what_each_says_alone() {
    let Some(gpu) = gpu() else { return };
    let count = 1025;
    let step = |position: usize| -> Vec<Chunk> {
        let chunk = |slot: usize| Chunk {
            tokens: vec![(slot * 7 + position * 13) as u32 % 500],
            slot,
            position,
        };
        (0..count).map(chunk).collect()
    };
    let (mut ours, mut reference) = (session(gpu, count, 2), session(Cpu::new(), count, 2));
    for position in 0..2 {
        let got = greedy(&mut ours, &step(position));
        let want = greedy(&mut reference, &step(position));
        let wrong = (0..count).find(|&i| got[i] != want[i]);
        assert_eq!(wrong, None, "at position {position}");
    }
}

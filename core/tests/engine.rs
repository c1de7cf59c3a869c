//! Sequences come and go, share batches and reuse slots; none of it changes a token.

use std::collections::BTreeSet;
use std::path::Path;
use whipsnake_core::checkpoint::Checkpoint;
use whipsnake_core::cpu::Cpu;
use whipsnake_core::engine::{Engine, Finish, Request, SequenceId};
use whipsnake_core::model::Dims;
use whipsnake_core::sampling::SamplingOptions;
use whipsnake_core::session::DeviceSession;

const CONTEXT: usize = 64;

fn engine(slots: usize, rows: usize, prefill_chunk: usize) -> Engine {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/golden/nemotron-moe");
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let dims = Dims { slots, context: CONTEXT, rows, outputs: 4 };
    let session =
        pollster::block_on(DeviceSession::open(Cpu::new(), &checkpoint, dims, &|_| {})).unwrap();
    Engine::new(Box::new(session), prefill_chunk)
}

/// A prompt of `len` tokens that depends on `seed`.
fn prompt(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| 20 + (seed * 37 + i * 11) % 250).collect()
}

fn request(prompt: Vec<u32>, sampling: SamplingOptions) -> Request {
    Request { prompt, sampling, entropy: 0, max_tokens: 8, stop_ids: BTreeSet::new() }
}

fn greedy(seed: u32, len: u32) -> Request {
    request(prompt(seed, len), SamplingOptions::greedy())
}

/// Runs until idle; tokens and end of each of `ids`.
fn drain(engine: &mut Engine, ids: &[SequenceId]) -> Vec<(Vec<u32>, Option<Finish>)> {
    let mut results = vec![(Vec::new(), None); ids.len()];
    while !engine.is_idle() {
        for event in pollster::block_on(engine.step()).unwrap().events {
            if let Some(index) = ids.iter().position(|&id| id == event.id) {
                results[index].0.extend(event.choice.map(|c| c.token));
                results[index].1 = event.finish;
            }
        }
    }
    results
}

/// The tokens of a request that runs alone in a new engine.
fn alone(request: Request) -> Vec<u32> {
    let mut engine = engine(1, 64, 64);
    let id = engine.submit(request).unwrap();
    drain(&mut engine, &[id]).remove(0).0
}

#[test]
fn sequences_together_give_what_each_gives_alone() {
    for (slots, rows, chunk) in [(3, 64, 64), (3, 5, 2), (2, 2, 1), (4, 7, 3)] {
        let mut engine = engine(slots, rows, chunk);
        let lens = [1, 2, 3, 17, 30, 5];
        let ids: Vec<_> =
            (0u32..).zip(lens).map(|(s, len)| engine.submit(greedy(s, len)).unwrap()).collect();
        let together = drain(&mut engine, &ids);
        for ((seed, len), (tokens, finish)) in (0u32..).zip(lens).zip(together) {
            assert_eq!(
                tokens,
                alone(greedy(seed, len)),
                "{slots} slots, {rows} rows, chunk {chunk}, prompt of {len}"
            );
            assert_eq!(finish, Some(Finish::Length));
        }
    }
}

#[test]
fn equal_requests_in_one_batch_give_one_answer() {
    let sampling = SamplingOptions { seed: Some(7), ..SamplingOptions::default() };
    let mut engine = engine(4, 64, 64);
    let ids: Vec<_> =
        (0..4).map(|_| engine.submit(request(prompt(1, 9), sampling.clone())).unwrap()).collect();
    let answers: BTreeSet<_> =
        drain(&mut engine, &ids).into_iter().map(|(tokens, _)| tokens).collect();
    assert_eq!(answers.len(), 1, "{answers:?}");
}

#[test]
fn a_cancelled_sequence_frees_a_clean_slot_within_a_step() {
    let mut engine = engine(1, 64, 4);
    let long = engine.submit(greedy(3, 40)).unwrap();
    let next = engine.submit(greedy(4, 6)).unwrap();
    for _ in 0..3 {
        pollster::block_on(engine.step()).unwrap();
    }
    engine.cancel(long);
    let report = pollster::block_on(engine.step()).unwrap();
    assert_eq!(report.prefill_rows, 4, "the waiting sequence runs in the very next step");
    assert_eq!(drain(&mut engine, &[next])[0].0, alone(greedy(4, 6)));
}

#[test]
fn a_waiting_sequence_can_be_cancelled() {
    let mut engine = engine(1, 64, 64);
    let first = engine.submit(greedy(1, 3)).unwrap();
    let second = engine.submit(greedy(2, 3)).unwrap();
    engine.cancel(second);
    assert_eq!(drain(&mut engine, &[first, second])[1].0, Vec::<u32>::new());
}

#[test]
fn a_stop_token_ends_a_sequence() {
    let tokens = alone(greedy(5, 4));
    let mut engine = engine(1, 64, 64);
    let stop_ids = BTreeSet::from([tokens[2]]);
    let id = engine.submit(Request { stop_ids, ..greedy(5, 4) }).unwrap();
    let (stopped, finish) = drain(&mut engine, &[id]).remove(0);
    let first = tokens.iter().position(|t| *t == tokens[2]).unwrap();
    assert_eq!((stopped, finish), (tokens[..=first].to_vec(), Some(Finish::StopToken)));
}

#[test]
fn a_full_context_ends_a_sequence() {
    let mut engine = engine(1, 64, 64);
    let id = engine.submit(Request { max_tokens: 1000, ..greedy(2, 60) }).unwrap();
    let (tokens, finish) = drain(&mut engine, &[id]).remove(0);
    // Four tokens fill positions 60 to 63, and the last position still predicts one more.
    assert_eq!((tokens.len(), finish), (5, Some(Finish::Length)));
}

#[test]
fn decode_rows_and_prompt_chunks_share_a_step() {
    let mut engine = engine(2, 8, 8);
    engine.submit(greedy(1, 3)).unwrap();
    pollster::block_on(engine.step()).unwrap();
    engine.submit(greedy(2, 30)).unwrap();
    let report = pollster::block_on(engine.step()).unwrap();
    assert_eq!((report.decode_rows, report.prefill_rows), (1, 7));
}

#[test]
fn bad_requests_are_refused_by_name() {
    let mut engine = engine(1, 64, 64);
    let mut refuse = |request: Request, want: &str| {
        assert_eq!(engine.submit(request).unwrap_err().to_string(), want);
    };
    refuse(greedy(1, 0), "prompt: no tokens, want at least one; give some text");
    refuse(
        greedy(1, 65),
        "prompt: 65 tokens do not fit the context of 64; ask for a longer --context or shorten it",
    );
    refuse(
        request(vec![5, 320], SamplingOptions::greedy()),
        "prompt: token 320 is past the vocabulary of 320",
    );
    refuse(Request { max_tokens: 0, ..greedy(1, 3) }, "max_tokens is 0, want at least 1");
}

#[test]
fn a_prompt_that_goes_on_from_a_held_state_gives_what_it_gives_alone() {
    let mut engine = engine(2, 64, 64);
    let ids: Vec<_> = (0..2).map(|s| engine.submit(greedy(s, 9)).unwrap()).collect();
    let replies = drain(&mut engine, &ids);
    for (seed, (reply, _)) in [1, 0].into_iter().zip(replies.iter().rev()) {
        let mut longer = prompt(seed, 9);
        longer.extend(reply);
        longer.extend([33, 44]);
        let request = request(longer, SamplingOptions::greedy());
        let id = engine.submit(request.clone()).unwrap();
        let first = pollster::block_on(engine.step()).unwrap();
        // The last token of a reply was chosen and never ran.
        assert_eq!((first.events[0].cached, first.prefill_rows), (9 + 7, 3));
        let mut tokens: Vec<_> = first.events[0].choice.iter().map(|c| c.token).collect();
        tokens.extend(drain(&mut engine, &[id]).remove(0).0);
        assert_eq!(tokens, alone(request));
    }
}

#[test]
fn a_held_state_that_is_no_prefix_is_not_used() {
    let mut engine = engine(1, 64, 64);
    let id = engine.submit(greedy(1, 9)).unwrap();
    drain(&mut engine, &[id]);
    for request in [greedy(1, 9), greedy(2, 30), greedy(1, 5)] {
        let id = engine.submit(request.clone()).unwrap();
        let first = pollster::block_on(engine.step()).unwrap();
        assert_eq!(first.events[0].cached, 0);
        engine.cancel(id);
        let id = engine.submit(request.clone()).unwrap();
        // Cancelled right after its prompt: that state is whole, yet a prompt must run at least one token.
        assert_eq!(drain(&mut engine, &[id]).remove(0).0, alone(request));
    }
}

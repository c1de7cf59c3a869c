//! Steps that are queued before the one before them is read change no token, and nothing of them stays behind.

use std::collections::BTreeSet;
use std::path::Path;
use whipsnake_core::batch::{Batch, Chunk};
use whipsnake_core::checkpoint::Checkpoint;
use whipsnake_core::cpu::Cpu;
use whipsnake_core::engine::{Engine, Event, Finish, Request};
use whipsnake_core::model::Dims;
use whipsnake_core::sampling::{Sampler, SamplingOptions};
use whipsnake_core::session::{Choose, DeviceSession, Output, Session, Want};

fn session(cpu: Cpu, slots: usize) -> DeviceSession<Cpu> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/golden/nemotron-moe");
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let dims = Dims { slots, context: 64, rows: 64, outputs: 2 };
    pollster::block_on(DeviceSession::open(cpu, &checkpoint, dims, &|_| {})).unwrap()
}

fn engine(cpu: Cpu, slots: usize) -> Engine {
    Engine::new(Box::new(session(cpu, slots)), 16)
}

fn request(seed: u32, len: u32, max_tokens: usize) -> Request {
    let prompt = (0..len).map(|i| 20 + (seed * 37 + i * 11) % 250).collect();
    let sampling = SamplingOptions::greedy();
    Request { prompt, sampling, entropy: 0, max_tokens, stop_ids: BTreeSet::new() }
}

fn step(engine: &mut Engine) -> Vec<Event> {
    pollster::block_on(engine.step()).unwrap().events
}

/// Tokens and end of each request; the second half joins when the first has begun.
fn replies(engine: &mut Engine, requests: &[Request]) -> Vec<(Vec<u32>, Option<Finish>)> {
    let mut results = vec![(Vec::new(), None); requests.len()];
    let mut ids = Vec::new();
    let half = requests.len().div_ceil(2);
    for steps in 0.. {
        let joining = match steps {
            0 => &requests[..half],
            4 => &requests[half..],
            _ => &[],
        };
        ids.extend(joining.iter().map(|request| engine.submit(request.clone()).unwrap()));
        if steps > 4 && engine.is_idle() {
            return results;
        }
        for event in step(engine) {
            let index = ids.iter().position(|&id| id == event.id).unwrap();
            assert_eq!(results[index].1, None, "a reply that ended goes on");
            results[index].0.extend(event.choice.map(|c| c.token));
            results[index].1 = event.finish;
        }
    }
    results
}

#[test]
fn replies_are_those_of_steps_one_by_one() {
    // Ends by length at different times, by the context, by a stop token that comes early or late or never.
    let mut requests: Vec<_> =
        [(1, 9, 8), (2, 3, 15), (3, 50, 90), (4, 1, 1), (5, 5, 12), (6, 20, 2), (7, 2, 30)]
            .map(|(seed, len, most)| request(seed, len, most))
            .into();
    for slots in [1, 2, 3, 8] {
        let plain = replies(&mut engine(Cpu::new(), slots), &requests);
        assert_eq!(replies(&mut engine(Cpu::ahead(), slots), &requests), plain, "{slots} slots");
        for (request, (tokens, _)) in requests.iter_mut().zip(plain) {
            request.stop_ids.extend(tokens.get(2 + slots));
        }
    }
}

#[test]
fn tokens_drawn_on_the_device_are_those_that_the_host_draws() {
    let ways = [
        (0.8, 0, 1.0, 0.0),
        (1.5, 0, 1.0, 0.02),
        (0.0, 0, 1.0, 0.0),
        (0.7, 20, 0.9, 0.0),
        (1.2, 300, 1.0, 0.05),
        // For the host alone, beside the others or by itself.
        (0.9, 0, 0.8, 0.0),
    ];
    let drawn = |way: usize, seed: u32| {
        let (temperature, top_k, top_p, min_p) = ways[way];
        let seed_of_draws = Some(u64::from(seed) * 77);
        let options = SamplingOptions { temperature, top_k, top_p, min_p, ..Default::default() };
        let sampling = SamplingOptions { seed: seed_of_draws, ..options };
        Request { sampling, ..request(seed, 5 + seed, 12) }
    };
    // Alone; of one kind, greedy ones among them; of both kinds; with what only the host draws.
    for list in [&[0][..], &[1], &[3], &[4], &[5], &[0, 1, 2], &[2, 3, 4], &[0, 3], &[1, 5]] {
        let requests: Vec<_> = (1..).zip(list).map(|(seed, way)| drawn(*way, seed)).collect();
        let plain = replies(&mut engine(Cpu::new(), 3), &requests);
        assert_eq!(replies(&mut engine(Cpu::ahead(), 3), &requests), plain, "{list:?}");
    }
}

#[test]
fn what_a_stopped_sequence_leaves_goes_on_where_its_stop_token_follows_and_nowhere_else() {
    let first = request(1, 9, 20);
    let (tokens, _) = replies(&mut engine(Cpu::new(), 1), std::slice::from_ref(&first)).remove(0);
    let end = (1..tokens.len()).find(|&i| !tokens[..i].contains(&tokens[i])).unwrap();
    let stopped = Request { stop_ids: BTreeSet::from([tokens[end]]), ..first.clone() };
    let reply = [&first.prompt[..], &tokens[..=end]].concat();
    // The next turn after the stop token, and one before which it was taken away.
    for (kept, cached) in [(reply.len(), reply.len()), (reply.len() - 1, 0)] {
        let next = Request { prompt: [&reply[..kept], &[33, 44, 55]].concat(), ..first.clone() };
        let want = replies(&mut engine(Cpu::new(), 1), std::slice::from_ref(&next));
        let mut engine = engine(Cpu::ahead(), 1);
        let (got, finish) = replies(&mut engine, std::slice::from_ref(&stopped)).remove(0);
        assert_eq!((got, finish), (tokens[..=end].to_vec(), Some(Finish::StopToken)));
        engine.submit(next).unwrap();
        let event = step(&mut engine).remove(0);
        assert_eq!(event.cached, cached);
        let mut got: Vec<_> = event.choice.iter().map(|c| c.token).collect();
        while !engine.is_idle() {
            got.extend(step(&mut engine).iter().filter_map(|e| Some(e.choice.as_ref()?.token)));
        }
        assert_eq!(got, want[0].0);
    }
}

#[test]
fn a_sequence_cancelled_in_flight_leaves_its_slot_clean() {
    let next = request(4, 6, 9);
    let want = replies(&mut engine(Cpu::new(), 1), std::slice::from_ref(&next));
    for steps in 1..5 {
        let mut engine = engine(Cpu::ahead(), 1);
        let long = engine.submit(request(3, 8, 40)).unwrap();
        for _ in 0..steps {
            step(&mut engine);
        }
        engine.cancel(long);
        assert_eq!(replies(&mut engine, std::slice::from_ref(&next)), want, "{steps} steps");
    }
}

#[test]
fn queued_steps_give_the_tokens_of_steps_that_are_waited_for() {
    let (mut plain, mut ahead) = (session(Cpu::new(), 5), session(Cpu::new(), 5));
    let limits = plain.limits();
    // More sequences than one pass of the head takes.
    let chunk = |slot| Chunk { tokens: vec![30 + u32::try_from(slot).unwrap()], slot, position: 0 };
    let mut batch = Batch::from_chunks(&limits, &[4, 0, 3, 1, 2].map(chunk)).unwrap();
    ahead.start(&batch, Choose::Best).unwrap();
    ahead.follow().unwrap();
    for _ in 0..6 {
        let Output::Tokens(want) =
            pollster::block_on(plain.forward(&batch, Want::Greedy(&batch.last_rows()))).unwrap()
        else {
            panic!("no tokens")
        };
        ahead.follow().unwrap();
        assert_eq!(pollster::block_on(ahead.collect()).unwrap(), want);
        let next = batch.following(&limits).unwrap();
        batch = Batch::new(&limits, want, next.segments().to_vec()).unwrap();
    }
}

#[test]
fn what_cannot_be_queued_is_named() {
    let mut session = session(Cpu::new(), 1);
    let batch = |tokens: Vec<u32>, position| {
        let limits =
            whipsnake_core::batch::BatchLimits { slots: 1, context: 64, rows: 64, vocabulary: 320 };
        Batch::from_chunks(&limits, &[Chunk { tokens, slot: 0, position }]).unwrap()
    };
    let text = |result: whipsnake_core::error::Result<()>| result.unwrap_err().to_string();
    let none = "step: no step was queued that another could follow";
    assert_eq!(text(session.follow()), none);
    assert_eq!(
        text(session.start(&batch(vec![5, 6], 0), Choose::Best)),
        "step: 2 tokens of one sequence, want one of each to run ahead"
    );
    let row = SamplingOptions { seed: Some(1), ..SamplingOptions::default() };
    let row = |top_k| {
        let options = SamplingOptions { top_k, ..row.clone() };
        Sampler::new(options, 320, 0).unwrap().row().unwrap()
    };
    assert_eq!(
        text(session.start(&batch(vec![5], 0), Choose::Draw(&[]))),
        "step: 0 rows to draw by, want 1 (rows of the batch)"
    );
    let pair = Chunk { tokens: vec![5], slot: 0, position: 0 };
    let pair = [pair.clone(), Chunk { slot: 1, ..pair }];
    let mut wide = self::session(Cpu::new(), 2);
    let pair = Batch::from_chunks(&wide.limits(), &pair).unwrap();
    assert_eq!(
        text(wide.start(&pair, Choose::Draw(&[row(40), row(0)]))),
        "step: rows draw from up to 40 tokens and from all, want up to 1024 or all for every row"
    );
    let error = pollster::block_on(session.collect()).unwrap_err().to_string();
    assert_eq!(error, "step: no step was queued whose tokens could come");
    session.start(&batch(vec![5], 63), Choose::Best).unwrap();
    assert_eq!(
        text(session.follow()),
        "batch: segment 0: position 64 + 1 tokens is past the context of 64; ask for a longer --context or a shorter prompt"
    );
    let prompt = batch(vec![5, 6], 0);
    pollster::block_on(session.forward(&prompt, Want::Nothing)).unwrap();
    assert_eq!(text(session.follow()), none);
}

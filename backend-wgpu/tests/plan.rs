//! What `plan` says of the portable back end is what a session holds there, before and after it has run.

use std::path::Path;
use whipsnake_core::batch::{Batch, Chunk};
use whipsnake_core::checkpoint::Checkpoint;
use whipsnake_core::conformance::golden::names;
use whipsnake_core::model::Dims;
use whipsnake_core::plan::{Plan, Request};
use whipsnake_core::session::{DeviceSession, Session, Want};
use whipsnake_wgpu::{Options, POLICY, Wgpu, probe};

#[test]
fn plan_is_what_a_session_allocates_to_the_byte() {
    if probe::devices().is_empty() && std::env::var_os("WHIPSNAKE_REQUIRE_ADAPTER").is_none() {
        println!("skipped: no adapter; WHIPSNAKE_REQUIRE_ADAPTER makes this a failure");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/fixtures/golden");
    for name in names(&root).unwrap() {
        let checkpoint = Checkpoint::open(&root.join(&name)).unwrap();
        let dims = Dims { slots: 3, context: 50, rows: 7, outputs: 2 };
        let request = Request { policy: POLICY, dims, widen: false };
        let planned = Plan::new(&checkpoint, request).unwrap().memory;
        let gpu = Wgpu::open(&Options::default()).unwrap();
        let session = DeviceSession::open(gpu, &checkpoint, dims, &|_| {});
        let mut session = pollster::block_on(session).unwrap();
        assert_eq!(session.ledger(), planned, "{name}");
        let prompt = Chunk { tokens: vec![1; 7], slot: 0, position: 0 };
        let next = Chunk { tokens: vec![2], slot: 0, position: 7 };
        for (chunk, row) in [(prompt, 6), (next, 0)] {
            let batch = Batch::from_chunks(&session.limits(), &[chunk]).unwrap();
            let rows = [row];
            for want in [Want::Greedy(&rows), Want::Logits(&rows)] {
                pollster::block_on(session.forward(&batch, want)).unwrap();
            }
        }
        assert_eq!(session.ledger(), planned, "{name} after steps");
    }
}

//! The list of ops of a decode step, so that a change of it is seen.

use std::path::Path;
use whipsnake_core::batch::{Batch, Chunk};
use whipsnake_core::checkpoint::Checkpoint;
use whipsnake_core::cpu::Cpu;
use whipsnake_core::model::Dims;
use whipsnake_core::session::{DeviceSession, Session};

#[test]
fn a_nemotron_h_decode_step_is_this_list_of_ops() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/golden/nemotron-nvfp4");
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let dims = Dims { slots: 1, context: 8, rows: 4, outputs: 1 };
    let session = pollster::block_on(DeviceSession::open(Cpu::new(), &checkpoint, dims, &|_| {})).unwrap();
    let chunk = Chunk { tokens: vec![20], slot: 0, position: 0 };
    let batch = Batch::from_chunks(&session.limits(), &[chunk]).unwrap();
    let lines = session.trace(&batch).unwrap();
    let snapshot = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces/nemotron_h.txt");
    let found = lines.join("\n") + "\n";
    if std::env::var_os("UPDATE_TRACES").is_some() {
        std::fs::write(&snapshot, &found).unwrap();
    }
    assert_eq!(found, std::fs::read_to_string(&snapshot).unwrap(), "rerun with UPDATE_TRACES=1 if it is meant");
}

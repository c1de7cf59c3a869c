//! Geometries against the published sizes, and the plan's figures, exact.

use std::path::Path;
use whipsnake_core::backend::{Backend, MatrixScales, Policy};
use whipsnake_core::checkpoint::{Checkpoint, Geometry};
use whipsnake_core::conformance::golden::names;
use whipsnake_core::cpu::Cpu;
use whipsnake_core::model::Dims;
use whipsnake_core::plan::{Plan, Request, Work};
use whipsnake_core::session::{DeviceSession, Session};
use whipsnake_core::tensor::DType;
use whipsnake_core::weight::Format;

const GIB: f64 = (1u64 << 30) as f64;

fn request(widen: bool) -> Request {
    let policy = Policy {
        activations: DType::BF16,
        kv: DType::BF16,
        state: DType::F32,
        alignment: 256,
        group_experts_from: 2,
        matrix_scales: MatrixScales::All,
        workspace: 0,
        step_rows: 512,
    };
    Request { policy, dims: Dims { slots: 4, context: 4096, rows: 512, outputs: 64 }, widen }
}

fn plan(name: &str, widen: bool) -> Plan {
    let checkpoint = Checkpoint::synthetic(&Geometry::named(name).unwrap(), 0).unwrap();
    Plan::new(&checkpoint, request(widen)).unwrap()
}

#[test]
fn geometries_have_the_published_number_of_parameters() {
    let cases = [
        ("nemotron-3-nano-bf16", 31.578),
        ("nemotron-3-nano-fp8", 31.578),
        ("nemotron-3-nano-nvfp4", 31.578),
        ("nemotron-3-nano-4b", 3.97),
        ("nemotron-3-nano-4b-nvfp4", 3.97),
        ("nemotron-nano-9b-v2", 8.89),
        ("nemotron-h-8b", 8.10),
        ("nemotron-3-super-120b-nvfp4", 120.67),
        ("granite-350m-like", 0.340),
    ];
    for (name, billions) in cases {
        let parameters = Geometry::named(name).unwrap().parameters() as f64 / 1e9;
        let digits = if name.contains("nano-") && billions > 31.0 { 3 } else { 2 };
        assert_eq!(format!("{parameters:.digits$}"), format!("{billions:.digits$}"), "{name}");
    }
    assert_eq!(Geometry::names().count(), cases.len());
}

#[test]
fn the_nvfp4_index_is_the_published_one() {
    let index = Geometry::named("nemotron-3-nano-nvfp4").unwrap().index().unwrap();
    assert_eq!(index.len(), 24_147);
    assert_eq!(index.iter().map(|e| e.bytes()).sum::<u64>(), 19_339_781_632);
}

#[test]
fn the_fp8_index_has_the_published_size() {
    let index = Geometry::named("nemotron-3-nano-fp8").unwrap().index().unwrap();
    let bytes: u64 = index.iter().map(|e| e.bytes()).sum();
    assert_eq!(format!("{:.2}", bytes as f64 / 1e9), "32.68");
}

#[test]
fn the_mixed_index_has_the_published_number_of_modules() {
    let checkpoint =
        Checkpoint::synthetic(&Geometry::named("nemotron-3-super-120b-nvfp4").unwrap(), 0).unwrap();
    let count = |format| {
        let weights = checkpoint.spec().weights().into_iter();
        weights
            .filter(|w| checkpoint.describe(w).unwrap().format == format)
            .map(|w| w.names.len())
            .sum::<usize>()
    };
    assert_eq!((count(Format::Nvfp4), count(Format::Fp8)), (40_961, 139));
}

#[test]
fn plan_gives_the_published_figures() {
    let kept = plan("nemotron-3-nano-nvfp4", false);
    assert_eq!(format!("{:.3}", kept.memory.weights as f64 / GIB), "18.013");
    assert_eq!(kept.stored_bytes, 19_339_781_632);
    let widened = plan("nemotron-3-nano-nvfp4", true);
    assert_eq!(format!("{:.3}", widened.memory.weights as f64 / GIB), "20.020");
    let state = kept.state_bytes_per_sequence as f64 / f64::from(1 << 20);
    assert_eq!(format!("{state:.3}"), "47.617");
    assert_eq!(kept.kv_bytes_per_token, 6144);
    assert_eq!(kept.memory.state, 4 * kept.state_bytes_per_sequence);
    assert_eq!(kept.memory.kv, 4 * 4096 * 6144);
}

#[test]
fn plan_is_what_a_session_allocates_to_the_byte() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/golden");
    for name in names(&root).unwrap() {
        let checkpoint = Checkpoint::open(&root.join(&name)).unwrap();
        let dims = Dims { slots: 3, context: 50, rows: 7, outputs: 2 };
        let policy = Cpu::new().policy();
        let plan = Plan::new(&checkpoint, Request { policy, dims, widen: false }).unwrap();
        let session = DeviceSession::open(Cpu::new(), &checkpoint, dims, &|_| {});
        let session = pollster::block_on(session).unwrap();
        assert_eq!(session.ledger(), plan.memory, "{name}");
    }
}

#[test]
fn plan_gives_the_size_of_the_unquantised_checkpoint() {
    let plan = plan("nemotron-3-nano-bf16", false);
    assert_eq!(format!("{:.2}", plan.stored_bytes as f64 / GIB), "58.83");
}

#[test]
fn the_summary_reads_as_a_table() {
    let text = plan("nemotron-3-nano-nvfp4", false).to_string();
    let want = "\
part          tensors        stored      resident  kept as
embedding           1   672.000 MiB   672.000 MiB  bf16
mamba2            252   797.495 MiB   799.031 MiB  nvfp4, f32, bf16
attention          24   267.750 MiB   267.750 MiB  bf16
moe             17848    15.659 GiB    15.658 GiB  f32, nvfp4
norm               53   278.250 KiB   556.500 KiB  f32
head                1   672.000 MiB   672.000 MiB  bf16
unused           5968    23.312 KiB           0 B  not run
weights         24147    18.012 GiB    18.013 GiB
state                                 190.469 MiB  4 sequences of 47.617 MiB (f32)
kv                                     96.000 MiB  4 sequences x 4096 tokens of 6,144 bytes (bf16)
scratch ";
    assert_eq!(text[..want.len()], *want);
}

#[test]
fn every_tensor_has_a_line() {
    let plan = plan("granite-350m-like", false);
    let text = plan.tensors();
    assert_eq!(text.lines().count(), plan.rows.len());
    let line = text.lines().find(|l| l.starts_with("backbone.layers.0.mixer.A_log ")).unwrap();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>()[1..], ["bf16", "96", "f32", "192"]);
}

#[test]
fn an_unknown_geometry_is_refused_with_the_names_of_those_there_are() {
    assert_eq!(
        Geometry::named("nemotron-4").err().unwrap().to_string(),
        "no geometry \"nemotron-4\"; there are: nemotron-3-nano-bf16, nemotron-3-nano-fp8, nemotron-3-nano-nvfp4, nemotron-3-nano-4b, nemotron-3-nano-4b-nvfp4, nemotron-nano-9b-v2, nemotron-h-8b, nemotron-3-super-120b-nvfp4, granite-350m-like"
    );
}

#[test]
fn the_work_of_nano_is_the_published_count() {
    let checkpoint = Checkpoint::synthetic(&Geometry::named("nemotron-3-nano-nvfp4").unwrap(), 0);
    let work = Work::new(&checkpoint.unwrap(), &request(false).policy).unwrap();
    assert_eq!(format!("{:.2}", work.decode_bytes(1, 0) / 1e9), "2.99");
    assert_eq!(format!("{:.0}", work.experts_hit(8).unwrap()), "41");
    assert_eq!(format!("{:.0}", work.experts_hit(32).unwrap()), "100");
    assert_eq!(format!("{:.2}", work.prefill_operations(4096) / 4096e9), "5.95");
}

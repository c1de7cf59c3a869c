//! Prints the table of timed ops, where there is a device and `WHIPSNAKE_BENCH` names the ops wanted (empty for all).

use whipsnake_cuda::bench::bench;
use whipsnake_cuda::{Cuda, devices};

#[test]
fn every_op_is_timed() {
    let Ok(filter) = std::env::var("WHIPSNAKE_BENCH") else {
        return println!("skipped: WHIPSNAKE_BENCH is not set");
    };
    if let Some(reason) = &devices()[0].refused {
        return println!("skipped: {reason}");
    }
    let cuda = Cuda::new(0).unwrap_or_else(|error| panic!("{error}"));
    let rows = bench(&cuda, &filter, &mut |row| println!("{row}"));
    assert!(!rows.unwrap_or_else(|error| panic!("{error}")).is_empty());
}

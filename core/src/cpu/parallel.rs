//! The one place that knows of threads: everything here runs serially on wasm32.

/// Multiply-adds below which waking other threads costs more than it saves: some 20 to 40 microseconds of work.
const WORTH_A_FORK: usize = 1 << 19;

/// Runs `job` on every item, in parallel where `work` multiply-adds in all are worth it.
pub(super) fn each<T: Send>(work: usize, items: Vec<T>, job: impl Fn(T) + Send + Sync) {
    #[cfg(not(target_arch = "wasm32"))]
    if work >= WORTH_A_FORK && items.len() > 1 {
        use rayon::prelude::*;
        return items.into_par_iter().for_each(job);
    }
    let _ = (work, WORTH_A_FORK);
    items.into_iter().for_each(job);
}

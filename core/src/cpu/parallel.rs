//! The one place that knows of threads: everything here runs serially on wasm32.

/// Multiply-adds below which waking other threads costs more than it saves: some 20 to 40 microseconds of work.
const WORTH_A_FORK: usize = 1 << 19;
/// The same where the other threads are awake: a microsecond or two of work.
#[cfg(not(target_arch = "wasm32"))]
const WORTH_A_SHARE: usize = 1 << 15;

/// Makes the calling thread one of the pool's, for a program whose session lives on it: it then works on its own ops and
/// never sleeps while others do. Call it at most once, on a thread that lives as long as the program.
pub fn join_thread_pool() {
    #[cfg(not(target_arch = "wasm32"))]
    if let Err(error) = rayon::ThreadPoolBuilder::new().use_current_thread().build_global() {
        tracing::debug!(%error, "the thread pool was there already");
    }
}

/// Runs `job` on every item, in parallel where `work` multiply-adds in all are worth it.
pub(super) fn each<T: Send>(work: usize, items: Vec<T>, job: impl Fn(T) + Send + Sync) {
    #[cfg(not(target_arch = "wasm32"))]
    if work >= threshold() && items.len() > 1 {
        use rayon::prelude::*;
        return items.into_par_iter().for_each(job);
    }
    let _ = (work, WORTH_A_FORK);
    items.into_iter().for_each(job);
}

/// Bytes that one thread copies at a time, for [`share`].
pub const STRETCH: usize = 256 << 10;

/// Runs `job` on every item, on every thread of the pool: for copies of some [`STRETCH`]es each, so that the pages of a mapped
/// file come in side by side.
pub fn share<T: Send>(items: Vec<T>, job: impl Fn(T) + Send + Sync) {
    each(items.len() * WORTH_A_FORK / 2, items, job);
}

#[cfg(not(target_arch = "wasm32"))]
thread_local! {
    /// Whether this thread runs a step for which the rest of the pool stays awake.
    static AWAKE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

#[cfg(not(target_arch = "wasm32"))]
fn threshold() -> usize {
    if AWAKE.get() { WORTH_A_SHARE } else { WORTH_A_FORK }
}

/// Runs `step` while the rest of the pool looks for its work without going to sleep.
#[cfg(not(target_arch = "wasm32"))]
pub(super) fn awake<R>(step: impl FnOnce() -> R) -> R {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (Some(own), others) = (rayon::current_thread_index(), rayon::current_num_threads() - 1)
    else {
        return step();
    };
    let over = AtomicBool::new(false);
    rayon::in_place_scope(|scope| {
        for _ in 0..others {
            scope.spawn(|_| {
                if rayon::current_thread_index() != Some(own) {
                    look_for_work(|| over.load(Ordering::Relaxed));
                }
            });
        }
        AWAKE.set(true);
        let result = step();
        AWAKE.set(false);
        over.store(true, Ordering::Relaxed);
        result
    })
}

#[cfg(target_arch = "wasm32")]
pub(super) fn awake<R>(step: impl FnOnce() -> R) -> R {
    step()
}

/// Takes the pool's work until `over`. It also ends after some hundred microseconds without any: a thread that waits for
/// a piece of its own work may have begun to look here meanwhile, and must come back to it.
#[cfg(not(target_arch = "wasm32"))]
fn look_for_work(over: impl Fn() -> bool) {
    const PATIENCE: usize = 5_000;
    let mut idle = 0;
    while idle < PATIENCE && !over() {
        if rayon::yield_now() == Some(rayon::Yield::Executed) {
            idle = 0;
        } else {
            idle += 1;
            std::hint::spin_loop();
        }
    }
}

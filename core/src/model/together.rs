//! Some futures at once, without threads.

use crate::error::Result;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Runs futures, at most `lanes` of them begun and not done, and returns what they give in their order. The first error
/// drops the others.
pub(super) async fn together<T, F>(
    lanes: usize,
    mut futures: impl Iterator<Item = F>,
) -> Result<Vec<T>>
where
    F: Future<Output = Result<T>>,
{
    let mut values: Vec<Option<T>> = Vec::new();
    let mut begun: Vec<(usize, Pin<Box<F>>)> = Vec::new();
    poll_fn(|context| {
        loop {
            let mut index = 0;
            while index < begun.len() {
                match begun[index].1.as_mut().poll(context) {
                    Poll::Pending => index += 1,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Ready(Ok(value)) => {
                        values[begun[index].0] = Some(value);
                        begun.remove(index);
                    }
                }
            }
            let next = if begun.len() < lanes { futures.next() } else { None };
            match next {
                Some(future) => {
                    begun.push((values.len(), Box::pin(future)));
                    values.push(None);
                }
                None if begun.is_empty() => return Poll::Ready(Ok(())),
                None => return Poll::Pending,
            }
        }
    })
    .await?;
    Ok(values.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use std::cell::{Cell, RefCell};

    /// Is pending `times` times, waking itself, then gives its number.
    async fn later(number: usize, times: usize, running: &Cell<usize>) -> Result<usize> {
        running.set(running.get() + 1);
        let left = Cell::new(times);
        poll_fn(|context| match left.get() {
            0 => Poll::Ready(()),
            n => {
                left.set(n - 1);
                context.waker().wake_by_ref();
                Poll::Pending
            }
        })
        .await;
        running.set(running.get() - 1);
        Ok(number)
    }

    #[test]
    fn values_come_in_order_and_lanes_are_kept() {
        let (running, most) = (Cell::new(0), Cell::new(0));
        let futures = (0..20).map(|n| {
            most.set(most.get().max(running.get()));
            later(n, (n * 7) % 5, &running)
        });
        let values = pollster::block_on(together(3, futures)).unwrap();
        assert_eq!(values, (0..20).collect::<Vec<_>>());
        assert_eq!(most.get(), 2, "two run when a third begins");
    }

    #[test]
    fn what_is_ready_runs_one_after_another() {
        let order = RefCell::new(Vec::new());
        let (order, note) = (&order, |n: usize| async move { Ok::<_, Error>(n) });
        let futures = (0..5).map(|n| async move {
            order.borrow_mut().push(n);
            let value = note(n).await;
            order.borrow_mut().push(n);
            value
        });
        pollster::block_on(together(4, futures)).unwrap();
        assert_eq!(*order.borrow(), [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]);
    }

    #[test]
    fn the_first_error_ends_all() {
        let running = Cell::new(0);
        let futures = (0..4).map(|n| {
            let running = &running;
            async move {
                match n {
                    1 => Err(Error::request("no")),
                    _ => later(n, 100, running).await,
                }
            }
        });
        let error = pollster::block_on(together(4, futures)).unwrap_err();
        assert_eq!(error.to_string(), "no");
    }
}

//! A batch is validated once, for everything that a caller can get wrong.

use proptest::prelude::*;
use whipsnake_core::batch::{Batch, BatchLimits, BatchShape, Chunk, RowPlace, Segment};

const LIMITS: BatchLimits = BatchLimits { slots: 4, context: 16, vocabulary: 10, rows: 8 };

/// Refuses `(first_row, len, slot, position)` segments over tokens 0 with exactly this text.
fn refused(rows: usize, list: &[(u32, u32, u32, u32)], text: &str) {
    refused_tokens(vec![0; rows], list, text);
}

fn refused_tokens(tokens: Vec<u32>, list: &[(u32, u32, u32, u32)], text: &str) {
    let error = Batch::new(&LIMITS, tokens, segments(list)).expect_err(text);
    assert_eq!(error.to_string(), text);
}

fn segments(list: &[(u32, u32, u32, u32)]) -> Vec<Segment> {
    let segment =
        |&(first_row, len, slot, position): &_| Segment { first_row, len, slot, position };
    list.iter().map(segment).collect()
}

#[test]
fn an_empty_batch() {
    refused(0, &[], "batch: no tokens, want at least one");
}

#[test]
fn too_many_rows() {
    let text = "batch: 9 rows, a step takes at most 8; split the prompt into chunks";
    refused(9, &[(0, 9, 0, 0)], text);
}

#[test]
fn an_empty_segment() {
    let text = "batch: segment 1: it is empty, want at least one row";
    refused(2, &[(0, 2, 0, 0), (2, 0, 1, 0)], text);
}

#[test]
fn a_gap_between_segments() {
    let text = "batch: segment 1: first row is 3, want 2 (rows in order, no gap)";
    refused(4, &[(0, 2, 0, 0), (3, 1, 1, 0)], text);
}

#[test]
fn overlapping_segments() {
    let text = "batch: segment 1: first row is 1, want 2 (rows in order, no gap)";
    refused(3, &[(0, 2, 0, 0), (1, 2, 1, 0)], text);
}

#[test]
fn segments_that_do_not_cover_the_rows() {
    refused(3, &[(0, 2, 0, 0)], "batch: the segments cover 2 rows, want 3 (tokens)");
    refused(2, &[(0, 3, 0, 0)], "batch: the segments cover 3 rows, want 2 (tokens)");
    refused(2, &[], "batch: the segments cover 0 rows, want 2 (tokens)");
}

#[test]
fn a_slot_out_of_range() {
    refused(1, &[(0, 1, 4, 0)], "batch: segment 0: slot is 4, want below 4 (slots)");
    let text = "batch: segment 0: slot is 4294967295, want below 4 (slots)";
    refused(1, &[(0, 1, RowPlace::PADDING, 0)], text);
}

#[test]
fn one_slot_in_two_segments() {
    let text = "batch: segment 2: slot 1 is in two segments";
    refused(3, &[(0, 1, 1, 0), (1, 1, 0, 0), (2, 1, 1, 5)], text);
}

#[test]
fn a_position_past_the_context() {
    let hint = "is past the context of 16; ask for a longer --context or a shorter prompt";
    refused(1, &[(0, 1, 0, 16)], &format!("batch: segment 0: position 16 + 1 tokens {hint}"));
    let text = format!("batch: segment 0: position 4294967295 + 2 tokens {hint}");
    refused(2, &[(0, 2, 0, u32::MAX)], &text);
}

#[test]
fn a_token_past_the_vocabulary() {
    let text = "batch: row 1: token 10 is past the vocabulary of 10";
    refused_tokens(vec![9, 10], &[(0, 2, 0, 0)], text);
}

#[test]
fn a_chunk_whose_numbers_do_not_fit_the_table() {
    let chunk = Chunk { tokens: vec![0], slot: 1 << 40, position: 0 };
    let error = Batch::from_chunks(&LIMITS, &[chunk]).expect_err("a slot past 32 bits");
    assert_eq!(error.to_string(), "batch: segment 0: slot 1099511627776 is too large");
}

#[test]
fn places_follow_segments_and_padding_belongs_to_none() {
    let list = segments(&[(0, 1, 3, 5), (1, 2, 0, 0)]);
    let batch = Batch::new(&LIMITS, vec![1, 2, 3], list).expect("a valid batch");
    let place = |slot, position, segment, index| RowPlace { slot, position, segment, index };
    let padding = place(RowPlace::PADDING, 0, RowPlace::PADDING, 0);
    let want = [place(3, 5, 0, 0), place(0, 0, 1, 0), place(0, 1, 1, 1), padding];
    assert_eq!(batch.places(4), want);
    assert_eq!((batch.rows(), batch.longest(), batch.context()), (3, 2, 6));
    assert_eq!(batch.last_rows(), [0, 2]);
}

#[test]
fn a_growing_sequence_meets_few_shapes_none_too_small() {
    let shape = |context| BatchShape { rows: 1, segments: 1, longest: 1, context };
    let grown = |context| {
        let bound = shape(context).in_steps().context;
        assert!(bound >= context && bound <= context + context / 4 + 256, "{context}: {bound}");
        bound
    };
    let met: std::collections::BTreeSet<usize> = (1..=32_768).map(grown).collect();
    assert_eq!(met.len(), 8 + 4 * 4);
    assert_eq!(shape(700).in_steps(), shape(768));
}

proptest! {
    #[test]
    fn any_segments_and_tokens_are_taken_or_refused(
        tokens in prop::collection::vec(prop_oneof![0..12u32, any::<u32>()], 0..10),
        list in prop::collection::vec((number(), number(), number(), number()), 0..5),
    ) {
        if let Ok(batch) = Batch::new(&LIMITS, tokens, segments(&list)) {
            holds(&batch)?;
        }
    }

    #[test]
    fn any_chunks_are_taken_or_refused(
        list in prop::collection::vec((0..4usize, 0..6usize, 0..18usize), 0..5),
    ) {
        let chunk = |&(len, slot, position): &_| Chunk { tokens: vec![3; len], slot, position };
        let chunks: Vec<_> = list.iter().map(chunk).collect();
        let slots: std::collections::HashSet<_> = list.iter().map(|c| c.1).collect();
        let rows = list.iter().map(|c| c.0).sum::<usize>();
        let valid = (1..=8).contains(&rows)
            && slots.len() == list.len()
            && list.iter().all(|&(len, slot, position)| len > 0 && slot < 4 && position + len <= 16);
        let batch = Batch::from_chunks(&LIMITS, &chunks);
        prop_assert_eq!(batch.is_ok(), valid);
        if let Ok(batch) = batch {
            holds(&batch)?;
        }
    }
}

/// Mostly small, at times anything.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..5u32, 1 => any::<u32>()]
}

/// What kernels rely on without a check of their own.
fn holds(batch: &Batch) -> Result<(), TestCaseError> {
    let mut slots = std::collections::HashSet::new();
    let mut next = 0;
    for segment in batch.segments() {
        prop_assert!(segment.len > 0 && segment.first_row == next);
        prop_assert!(segment.slot < 4 && slots.insert(segment.slot));
        prop_assert!(u64::from(segment.position) + u64::from(segment.len) <= 16);
        next += segment.len;
    }
    prop_assert_eq!(u32::try_from(batch.rows()).ok(), Some(next));
    prop_assert!(batch.tokens().iter().all(|&token| token < 10));
    prop_assert!(batch.places(8).iter().skip(batch.rows()).all(|p| p.slot == RowPlace::PADDING));
    Ok(())
}

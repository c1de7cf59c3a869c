use super::*;

fn sampler(options: SamplingOptions, vocabulary: usize) -> Sampler {
    Sampler::new(options, vocabulary, 0).unwrap()
}

fn seeded() -> SamplingOptions {
    SamplingOptions { seed: Some(42), ..SamplingOptions::default() }
}

/// How often each token is drawn, with a fresh history for each draw.
fn counts(options: &SamplingOptions, logits: &[f32], draws: usize) -> Vec<usize> {
    let mut sampler = sampler(options.clone(), logits.len());
    let mut counts = vec![0; logits.len()];
    for _ in 0..draws {
        sampler.seen.clear();
        counts[index(sampler.pick(logits).unwrap().token)] += 1;
    }
    counts
}

fn only_drawn(options: &SamplingOptions, logits: &[f32]) -> Vec<usize> {
    let counts = counts(options, logits, 2000);
    (0..counts.len()).filter(|token| counts[*token] > 0).collect()
}

/// Pearson's statistic stays below `bound` for a fixed seed.
fn assert_distribution(
    options: &SamplingOptions,
    logits: &[f32],
    probabilities: &[f64],
    bound: f64,
) {
    let draws = 20_000;
    let counts = counts(options, logits, draws);
    let statistic: f64 = counts
        .iter()
        .zip(probabilities)
        .map(|(count, probability)| {
            let expected = probability * draws as f64;
            (*count as f64 - expected).powi(2) / expected
        })
        .sum();
    assert!(statistic < bound, "chi-square {statistic} for {counts:?}");
}

#[test]
fn draws_follow_the_softmax() {
    let logits = [0.0, 1.0, 2.0, -1.0];
    let weights = logits.map(|logit: f32| f64::from(logit).exp());
    let total: f64 = weights.iter().sum();
    // 16.3 is the 0.1% point for 3 degrees of freedom.
    assert_distribution(&seeded(), &logits, &weights.map(|weight| weight / total), 16.3);
}

#[test]
fn temperature_divides_the_logits() {
    let logits = [0.0, 1.0, 2.0, -1.0];
    let weights = logits.map(|logit: f32| (f64::from(logit) / 2.0).exp());
    let total: f64 = weights.iter().sum();
    let options = SamplingOptions { temperature: 2.0, ..seeded() };
    assert_distribution(&options, &logits, &weights.map(|weight| weight / total), 16.3);
}

#[test]
fn temperature_zero_takes_the_best_and_of_equals_the_lowest_id() {
    let mut sampler = sampler(SamplingOptions::greedy(), 4);
    assert_eq!(sampler.pick(&[1.0, 3.0, 3.0, 2.0]).unwrap().token, 1);
    assert_eq!(sampler.pick(&[-0.0, 0.0, -1.0, -1.0]).unwrap().token, 0);
}

#[test]
fn a_tiny_temperature_is_greedy_and_not_a_number_problem() {
    let options = SamplingOptions { temperature: 1e-30, ..seeded() };
    assert_eq!(only_drawn(&options, &[1.0, 1.1, -50.0]), [1]);
}

#[test]
fn top_k_keeps_the_k_best_and_the_lowest_ids_of_equals() {
    let options = SamplingOptions { top_k: 2, ..seeded() };
    assert_eq!(only_drawn(&options, &[0.0, 1.0, 1.0, 1.0, 0.5]), [1, 2]);
    assert_eq!(only_drawn(&SamplingOptions { top_k: 99, ..seeded() }, &[0.0, 0.0]), [0, 1]);
}

#[test]
fn top_p_keeps_the_fewest_that_reach_it() {
    let logits = [0.5_f32, 0.3, 0.15, 0.05].map(f32::ln);
    let drawn = |top_p| only_drawn(&SamplingOptions { top_p, ..seeded() }, &logits);
    assert_eq!(drawn(0.4), [0]);
    assert_eq!(drawn(0.6), [0, 1]);
    assert_eq!(drawn(0.9), [0, 1, 2]);
    assert_eq!(drawn(1e-9), [0]);
}

#[test]
fn top_p_over_a_flat_vocabulary_needs_more_than_the_first_sorted_part() {
    let logits = vec![0.0; 4000];
    let options = SamplingOptions { top_p: 0.5, ..seeded() };
    let drawn = counts(&options, &logits, 500).iter().rposition(|count| *count > 0).unwrap();
    assert!((1900..2000).contains(&drawn), "{drawn}");
}

#[test]
fn top_p_counts_after_top_k() {
    let logits = [0.4_f32, 0.3, 0.2, 0.1].map(f32::ln);
    // Of the two left, the first has 4/7 of the probability.
    let options = SamplingOptions { top_k: 2, top_p: 0.55, ..seeded() };
    assert_eq!(only_drawn(&options, &logits), [0]);
}

#[test]
fn min_p_is_relative_to_the_best() {
    let logits = [0.5_f32, 0.3, 0.15, 0.05].map(f32::ln);
    let options = SamplingOptions { min_p: 0.25, ..seeded() };
    assert_eq!(only_drawn(&options, &logits), [0, 1, 2]);
    assert_eq!(only_drawn(&SamplingOptions { min_p: 1.0, ..seeded() }, &logits), [0]);
}

#[test]
fn logit_bias_forbids_and_forces() {
    let bias = |token, bias| SamplingOptions { logit_bias: [(token, bias)].into(), ..seeded() };
    assert_eq!(only_drawn(&bias(1, -100.0), &[0.0, 0.0, 0.0]), [0, 2]);
    assert_eq!(only_drawn(&bias(1, 100.0), &[0.0, 0.0, 0.0]), [1]);
}

#[test]
fn the_repetition_penalty_counts_prompt_and_answer() {
    let options = SamplingOptions { repetition_penalty: 2.0, ..SamplingOptions::greedy() };
    let mut sampler = sampler(options, 3);
    sampler.observe(0);
    assert_eq!(sampler.pick(&[3.0, 2.0, -9.0]).unwrap().token, 1, "3 / 2 < 2");
    assert_eq!(
        sampler.pick(&[-1.0, -1.5, -1.9]).unwrap().token,
        2,
        "negative logits are multiplied"
    );
}

#[test]
fn presence_and_frequency_count_the_answer_only() {
    let greedy = SamplingOptions::greedy;
    let mut presence = sampler(SamplingOptions { presence_penalty: 1.0, ..greedy() }, 2);
    presence.observe(0);
    let logits = [1.5, 0.0];
    let picks: Vec<u32> = (0..3).map(|_| presence.pick(&logits).unwrap().token).collect();
    assert_eq!(picks, [0, 0, 0], "once only: 1.5 - 1 > 0");
    let mut frequency = sampler(SamplingOptions { frequency_penalty: 1.0, ..greedy() }, 2);
    frequency.observe(0);
    let picks: Vec<u32> = (0..4).map(|_| frequency.pick(&logits).unwrap().token).collect();
    assert_eq!(picks, [0, 0, 1, 0], "1.5, 0.5, then -0.5 < 0, then -0.5 > -1");
}

#[test]
fn equal_seeds_give_equal_tokens() {
    let logits: Vec<f32> = (0..100).map(|token| (token as f32 * 0.7).sin()).collect();
    let run = |seed| -> Vec<u32> {
        let mut sampler = sampler(SamplingOptions { seed, ..SamplingOptions::default() }, 100);
        (0..50).map(|_| sampler.pick(&logits).unwrap().token).collect()
    };
    assert_eq!(run(Some(1)), run(Some(1)));
    assert_ne!(run(Some(1)), run(Some(2)));
    assert_eq!(run(None), run(Some(0)), "without a seed the caller's entropy is the seed");
}

#[test]
fn log_probabilities_are_the_models_own() {
    let options = SamplingOptions {
        temperature: 0.0,
        logit_bias: [(0, 100.0)].into(),
        logprobs: Some(2),
        ..SamplingOptions::default()
    };
    let logits = [0.2_f32, 0.5, 0.3].map(f32::ln);
    let choice = sampler(options, 3).pick(&logits).unwrap();
    assert_eq!(choice.token, 0);
    assert!((choice.log_probability.unwrap() - 0.2_f32.ln()).abs() < 1e-6);
    assert_eq!(choice.top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [1, 2]);
    assert!((choice.top[1].1 - 0.3_f32.ln()).abs() < 1e-6);
    let none = sampler(SamplingOptions::greedy(), 3).pick(&logits).unwrap();
    assert_eq!((none.log_probability, none.top), (None, vec![]));
}

#[test]
fn excluded_tokens_are_never_drawn() {
    let logits = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];
    assert_eq!(only_drawn(&seeded(), &logits), [1]);
    let options = SamplingOptions {
        repetition_penalty: 1.5,
        top_p: 0.9,
        top_k: 3,
        logprobs: Some(1),
        ..seeded()
    };
    assert_eq!(only_drawn(&options, &logits), [1]);
}

#[test]
fn the_best_are_found_either_way() {
    let scores: Vec<f32> = (0..1000).map(|token| ((token * 7919) % 101) as f32).collect();
    let mut sorted: Vec<(u32, f32)> = (0..).zip(scores.iter().copied()).collect();
    sorted.sort_by(by_score);
    for count in [0, 1, 2, 128, 129, 500, 1000, 2000] {
        assert_eq!(best(&scores, count), sorted[..count.min(1000)]);
    }
}

#[test]
fn extreme_options_do_not_overflow() {
    let options = SamplingOptions {
        repetition_penalty: f32::MIN_POSITIVE,
        logit_bias: [(0, 100.0)].into(),
        temperature: f32::MIN_POSITIVE,
        ..seeded()
    };
    let mut sampler = sampler(options, 2);
    sampler.observe(0);
    assert_eq!(sampler.pick(&[1e30, 2.0]).unwrap().token, 0);
}

#[test]
fn a_full_vocabulary_is_sampled() {
    let logits: Vec<f32> =
        (0..131_072).map(|token| ((token * 7919) % 1000) as f32 * 0.01).collect();
    let options =
        SamplingOptions { top_p: 0.9, top_k: 50, min_p: 0.01, logprobs: Some(5), ..seeded() };
    let choice = sampler(options, logits.len()).pick(&logits).unwrap();
    assert_eq!(choice.top.len(), 5);
    assert!(logits[index(choice.token)] > 9.9);
}

#[test]
fn unusable_logits_are_named() {
    let error = |logits: &[f32]| sampler(seeded(), 3).pick(logits).unwrap_err().to_string();
    assert_eq!(
        error(&[0.0, f32::NAN, f32::NAN]),
        "sampling: the logit of token 1 is NaN; the forward pass gave no usable numbers"
    );
    assert_eq!(
        error(&[0.0, 1.0, f32::INFINITY]),
        "sampling: the logit of token 2 is inf; the forward pass gave no usable numbers"
    );
    assert_eq!(
        error(&[f32::NEG_INFINITY; 3]),
        "sampling: every token is excluded (all logits are -inf)"
    );
    assert_eq!(error(&[0.0; 2]), "sampling: 2 logits, want 3 (the vocabulary)");
}

#[test]
fn unusable_options_are_refused() {
    let error = |options: SamplingOptions| options.check(10).unwrap_err().to_string();
    let base = SamplingOptions::default;
    let cases = [
        (
            SamplingOptions { temperature: -1.0, ..base() },
            "temperature is -1, want a number from 0 on",
        ),
        (
            SamplingOptions { temperature: f32::NAN, ..base() },
            "temperature is NaN, want a number from 0 on",
        ),
        (SamplingOptions { top_p: 0.0, ..base() }, "top_p is 0, want above 0 and at most 1"),
        (SamplingOptions { top_p: 1.5, ..base() }, "top_p is 1.5, want above 0 and at most 1"),
        (SamplingOptions { min_p: -0.1, ..base() }, "min_p is -0.1, want from 0 to 1"),
        (
            SamplingOptions { repetition_penalty: 0.0, ..base() },
            "repetition_penalty is 0, want a number above 0",
        ),
        (
            SamplingOptions { presence_penalty: 3.0, ..base() },
            "presence_penalty is 3, want from -2 to 2",
        ),
        (
            SamplingOptions { frequency_penalty: f32::NAN, ..base() },
            "frequency_penalty is NaN, want from -2 to 2",
        ),
        (
            SamplingOptions { logit_bias: [(10, 1.0)].into(), ..base() },
            "logit_bias: token 10 is past the vocabulary of 10",
        ),
        (
            SamplingOptions { logit_bias: [(3, f32::INFINITY)].into(), ..base() },
            "logit_bias of token 3 is inf, want from -100 to 100",
        ),
        (SamplingOptions { logprobs: Some(21), ..base() }, "logprobs is 21, want at most 20"),
    ];
    for (options, want) in cases {
        assert_eq!(error(options), want);
    }
}

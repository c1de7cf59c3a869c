//! Two reports side by side, so that a regression is seen.

use std::path::Path;

use anyhow::Context;

use super::report::{Report, speed};

/// Ratios of the second report to the first, for the configurations that both have.
pub fn table(before: &Path, after: &Path) -> anyhow::Result<String> {
    let (before, after) = (read(before)?, read(after)?);
    let mut text = format!(
        "{} on {} -> {} on {}\nphase     sequences   prompt     before      after   ratio\n",
        before.model, before.backend, after.model, after.backend
    );
    let mut common = 0;
    for new in &after.figures {
        let same = |old: &&super::Figure| {
            (old.phase, old.sequences, old.prompt) == (new.phase, new.sequences, new.prompt)
        };
        let Some(old) = before.figures.iter().find(same) else { continue };
        common += 1;
        let ratio = new.median / old.median;
        // Beyond both spreads, so that noise is not taken for news.
        let apart = new.max < old.min || new.min > old.max;
        let verdict = match (apart, ratio < 1.0) {
            (false, _) => "",
            (true, true) => "  slower",
            (true, false) => "  faster",
        };
        text.push_str(&format!(
            "{:<9} {:>9} {:>8} {:>10} {:>10} {ratio:>7.3}{verdict}\n",
            new.phase.name(),
            new.sequences,
            new.prompt,
            speed(old.median),
            speed(new.median),
        ));
    }
    anyhow::ensure!(common > 0, "the two files have no configuration in common");
    Ok(text)
}

fn read(path: &Path) -> anyhow::Result<Report> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&bytes)
        .with_context(|| format!("{}: not a file that `bench --json` wrote", path.display()))
}

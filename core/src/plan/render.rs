//! A plan as text.

use super::Plan;
use std::fmt::{self, Write};

/// Parts of a model in the order of the summary.
const PARTS: [&str; 8] =
    ["embedding", "mamba2", "attention", "mlp", "moe", "norm", "head", "unused"];

/// The summary: bytes by part of the model and by class of memory.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<12} {:>8} {:>13} {:>13}  kept as",
            "part", "tensors", "stored", "resident"
        )?;
        for part in PARTS {
            let count = self.rows.iter().filter(|r| r.part == part).count();
            if count > 0 {
                let (stored, resident) = self.part(part);
                let kept = if part == "unused" { "not run".into() } else { self.formats(part) };
                let (stored, resident) = (bytes(stored), bytes(resident));
                writeln!(f, "{part:<12} {count:>8} {stored:>13} {resident:>13}  {kept}")?;
            }
        }
        let (stored, resident) = (bytes(self.stored_bytes), bytes(self.memory.weights));
        writeln!(f, "{:<12} {:>8} {stored:>13} {resident:>13}", "weights", self.rows.len())?;
        let dims = self.request.dims;
        let line = |f: &mut fmt::Formatter<'_>, class: &str, total: u64, of: &str| {
            writeln!(f, "{class:<12} {:>8} {:>13} {:>13}  {of}", "", "", bytes(total))
        };
        let each = bytes(self.state_bytes_per_sequence);
        let of = format!("{} sequences of {each} ({})", dims.slots, self.request.policy.state);
        line(f, "state", self.memory.state, &of)?;
        let (each, kv) = (grouped(self.kv_bytes_per_token), self.request.policy.kv);
        let of =
            format!("{} sequences x {} tokens of {each} bytes ({kv})", dims.slots, dims.context);
        line(f, "kv", self.memory.kv, &of)?;
        line(f, "scratch", self.memory.scratch, &format!("steps of up to {} rows", dims.rows))?;
        writeln!(f, "{:<12} {:>8} {:>13} {:>13}", "total", "", "", bytes(self.memory.total()))
    }
}

impl Plan {
    /// Every tensor on a line of its own.
    pub fn tensors(&self) -> String {
        let width = self.rows.iter().map(|r| r.name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for row in &self.rows {
            let (stored, resident) = (grouped(row.stored_bytes), grouped(row.resident_bytes));
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{:<width$}  {:>8} {stored:>15}  {:>8} {resident:>15}",
                row.name, row.stored, row.resident
            );
        }
        text
    }

    /// The resident formats of a part, each once, in order of first use.
    fn formats(&self, part: &str) -> String {
        let mut list: Vec<&str> = Vec::new();
        for row in
            self.rows.iter().filter(|r| r.part == part && !matches!(r.resident, "-" | "e4m3"))
        {
            if !list.contains(&row.resident) {
                list.push(row.resident);
            }
        }
        list.join(", ")
    }
}

/// Bytes in the largest binary unit that leaves a number above 1.
pub fn bytes(count: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut name = "B";
    for unit in units {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        name = unit;
    }
    if name == "B" { format!("{count} B") } else { format!("{value:.3} {name}") }
}

/// A number with its thousands apart.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

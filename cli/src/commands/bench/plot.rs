//! Throughput over the number of sequences, as an SVG.

use super::report::{Figure, Phase, Report, speed};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const MARGIN: f64 = 64.0;
const COLOURS: [&str; 6] = ["#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2"];

/// Decode speed over sequences, a line a context; both axes logarithmic.
pub fn svg(report: &Report) -> String {
    let decode: Vec<&Figure> = report.figures.iter().filter(|f| f.phase == Phase::Decode).collect();
    let largest = |value: fn(&Figure) -> f64| decode.iter().map(|f| value(f)).fold(1.0, f64::max);
    let smallest = decode.iter().map(|f| f.median).fold(f64::INFINITY, f64::min).min(1e12);
    let scale = Scale {
        sequences: largest(|f| f.sequences as f64).max(2.0),
        speeds: [smallest / 1.5, largest(|f| f.median) * 1.5],
    };
    let mut contexts: Vec<usize> = decode.iter().map(|f| f.prompt).collect();
    contexts.sort_unstable();
    contexts.dedup();
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"24\">{} on {}: decode, tokens a second over sequences</text>\n",
        escape(&report.model),
        escape(&report.backend)
    );
    for (index, context) in contexts.iter().enumerate() {
        let line: Vec<&Figure> = decode.iter().copied().filter(|f| f.prompt == *context).collect();
        text.push_str(&series(&line, COLOURS[index % COLOURS.len()], &scale));
        let (x, y) = (WIDTH - MARGIN - 110.0, HEIGHT - MARGIN - 16.0 * (index as f64 + 1.0));
        let colour = COLOURS[index % COLOURS.len()];
        text.push_str(&format!(
            "<text x=\"{x}\" y=\"{y}\" fill=\"{colour}\">context {context}</text>\n"
        ));
    }
    text.push_str("</svg>\n");
    text
}

struct Scale {
    sequences: f64,
    speeds: [f64; 2],
}

impl Scale {
    fn point(&self, figure: &Figure) -> (f64, f64) {
        let x = (figure.sequences as f64).ln() / self.sequences.ln();
        let [low, high] = self.speeds;
        let y = (figure.median / low).ln() / (high / low).ln();
        (MARGIN + x * (WIDTH - 2.0 * MARGIN), HEIGHT - MARGIN - y * (HEIGHT - 2.0 * MARGIN))
    }
}

/// A line with its points labelled.
fn series(figures: &[&Figure], colour: &str, scale: &Scale) -> String {
    let points: Vec<(f64, f64)> = figures.iter().map(|f| scale.point(f)).collect();
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let mut text = format!(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n",
        path.join(" ")
    );
    for ((x, y), figure) in points.iter().zip(figures) {
        let (label, sequences) = (speed(figure.median), figure.sequences);
        text.push_str(&format!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#666\">{sequences}</text>\n",
            y - 8.0,
            HEIGHT - MARGIN / 2.0
        ));
    }
    text
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

//! HTML rendering of a training run: curves, settings and replies before and after, in one
//! self-contained file.
//!
//! Curves are inline SVG and everything else is markup, so that the page can be read without
//! scripts; the script only shows the values under the pointer.

use crate::html::{self, COMMON_STYLE, PageParts, escaped};
use serde_json::json;

/// Most points of a curve; longer runs are drawn as means of several steps.
const MOST_POINTS: usize = 400;

/// A training run, as its page shows it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TrainingRecord {
    /// Name of the model.
    pub model: String,
    /// What was trained on what, in one line.
    pub what: String,
    /// Name and value of the main figures.
    pub facts: Vec<[String; 2]>,
    /// Name and value of every setting.
    pub settings: Vec<[String; 2]>,
    /// Every step, in order.
    pub steps: Vec<StepRecord>,
    /// Evaluations: number of the step, and mean loss in nats.
    pub evaluations: Vec<(u64, f64)>,
    /// Replies to some prompts.
    pub replies: Vec<ReplySample>,
    /// Where prompts come from, and how replies were generated.
    pub about_replies: String,
}

/// A step of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StepRecord {
    /// Number of the step, from 1.
    pub step: u64,
    /// Mean loss of its targets in nats.
    pub loss: f64,
    /// L2 norm of all gradients before clipping.
    pub gradient_norm: f64,
    /// Learning rate of the update.
    pub rate: f64,
}

/// A prompt and its replies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReplySample {
    /// The prompt, as the model reads it.
    pub prompt: String,
    /// The reply in the data.
    pub wanted: String,
    /// The reply of the model before training.
    pub before: String,
    /// The reply of the trained model; `None` if there is none yet.
    pub after: Option<String>,
}

/// Renders a run as an HTML page.
pub fn html(of: &TrainingRecord) -> String {
    let charts = charts(of);
    let drawn: Vec<String> = charts.iter().map(Chart::draw).collect();
    let body = format!(
        "<header><h1>{}</h1><p>{}</p></header>\n<main>\n<section class=\"tiles\">{}</section>\n\
         <section class=\"charts\">{}</section>\n{}\
         <section><h2>Settings</h2><div class=\"wide\"><table class=\"settings\">{}</table></div></section>\n\
         </main>\n<footer>Losses are mean negative log-likelihoods of the targets of a step, in nats. \
         Gradient norms are before clipping.</footer>",
        escaped(&of.model),
        escaped(&of.what),
        of.facts.iter().map(tile).collect::<String>(),
        drawn.concat(),
        replies(of),
        of.settings.iter().map(setting).collect::<String>(),
    );
    html::render_page(&PageParts {
        title: &format!("{}: training", of.model),
        body: &body,
        styles: &[COMMON_STYLE, include_str!("training/style.css")],
        data: &json!({ "charts": charts.iter().map(Chart::data).collect::<Vec<_>>() }),
        scripts: &[include_str!("training/script.js")],
    })
}

fn tile([name, value]: &[String; 2]) -> String {
    let (name, value) = (escaped(name), escaped(value));
    format!("<div class=\"tile\"><b>{value}</b><span>{name}</span></div>")
}

fn setting([name, value]: &[String; 2]) -> String {
    let (name, value) = (escaped(name), escaped(value));
    format!("<tr><th>{name}</th><td>{value}</td></tr>")
}

/// The section of replies; empty without any.
fn replies(of: &TrainingRecord) -> String {
    if of.replies.is_empty() {
        return String::new();
    }
    let text = |kind: &str, title: &str, text: &str| {
        let shown = match text.trim().is_empty() {
            true => "<i>nothing</i>".into(),
            false => escaped(text.trim_end()),
        };
        format!("<div class=\"{kind}\"><h3>{title}</h3><p>{shown}</p></div>")
    };
    let card = |r: &ReplySample| {
        let after = r.after.as_deref();
        let after = after.map_or(String::new(), |t| text("after", "After training", t));
        format!(
            "<article>{}<div class=\"answers\">{}{}{after}</div></article>",
            text("prompt", "Prompt", &r.prompt),
            text("wanted", "Reply in the data", &r.wanted),
            text("before", "Before training", &r.before),
        )
    };
    format!(
        "<section><h2>Replies <small>{}</small></h2>{}</section>\n",
        escaped(&of.about_replies),
        of.replies.iter().map(card).collect::<String>()
    )
}

/// A curve: its name, its colour, and step and value of each point.
struct Series {
    name: &'static str,
    colour: &'static str,
    points: Vec<(f64, f64)>,
}

/// Curves over the steps that share an axis.
struct Chart {
    title: &'static str,
    series: Vec<Series>,
    /// Steps of a point of the first curve.
    steps_of_point: usize,
}

fn charts(of: &TrainingRecord) -> [Chart; 3] {
    let chunk = of.steps.len().div_ceil(MOST_POINTS).max(1);
    let series = |name, colour, value: fn(&StepRecord) -> f64| {
        let mean = |chunk: &[StepRecord]| {
            let values = chunk.iter().map(value).filter(|v| v.is_finite());
            let (sum, count) = values.fold((0.0, 0.0), |(s, n), v| (s + v, n + 1.0));
            Some((chunk.last()?.step as f64, sum / count)).filter(|_| count > 0.0)
        };
        Series {
            name,
            colour,
            points: of.steps.chunks(chunk).filter_map(mean).collect(),
        }
    };
    let evaluations = of.evaluations.iter().filter(|e| e.1.is_finite());
    let evaluation = Series {
        name: "evaluation",
        colour: "c1",
        points: evaluations.map(|&(step, v)| (step as f64, v)).collect(),
    };
    let chart = |title, series| Chart {
        title,
        series,
        steps_of_point: chunk,
    };
    let mut losses = vec![series("training", "c0", |s| s.loss)];
    if !evaluation.points.is_empty() {
        losses.push(evaluation);
    }
    [
        chart("Loss", losses),
        chart(
            "Gradient norm",
            vec![series("norm", "c2", |s| s.gradient_norm)],
        ),
        chart("Learning rate", vec![series("rate", "c3", |s| s.rate)]),
    ]
}

/// Size of a chart in its own units, and the margins of the plot.
const SIZE: [f64; 2] = [400.0, 230.0];
const LEFT: f64 = 48.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 26.0;

impl Chart {
    fn range(&self, value: fn(&(f64, f64)) -> f64) -> Option<[f64; 2]> {
        let all = self.series.iter().flat_map(|s| &s.points).map(value);
        all.fold(None, |range: Option<[f64; 2]>, v| match range {
            None => Some([v, v]),
            Some([low, high]) => Some([low.min(v), high.max(v)]),
        })
    }
    /// Range of the steps, and of the values with zero.
    fn ranges(&self) -> Option<[[f64; 2]; 2]> {
        let [first, last] = self.range(|p| p.0)?;
        let [low, high] = self.range(|p| p.1)?;
        let high = if high > 0.0 { high } else { 1.0 };
        Some([[first, last.max(first + 1.0)], [low.min(0.0), high]])
    }
    fn draw(&self) -> String {
        let means = match self.steps_of_point {
            1 => String::new(),
            n => format!(" <small>means of {n} steps</small>"),
        };
        let legend = |s: &Series| {
            let last = s.points.last().map_or(String::new(), |p| number(p.1));
            let name = if self.series.len() > 1 {
                s.name
            } else {
                "last"
            };
            format!(
                "<span><i class=\"dot {}\"></i>{name} <b>{last}</b></span>",
                s.colour
            )
        };
        format!(
            "<figure><h2>{}{means}</h2>{}<figcaption>{}</figcaption></figure>",
            self.title,
            self.plot(),
            self.series.iter().map(legend).collect::<String>()
        )
    }
    fn plot(&self) -> String {
        let Some([steps, values]) = self.ranges() else {
            return "<p>No steps.</p>".into();
        };
        let [width, height] = SIZE;
        let scaled = |v: f64, [low, high]: [f64; 2], from: f64, to: f64| {
            from + (v - low) / (high - low) * (to - from)
        };
        let x = |step: f64| scaled(step, steps, LEFT, width - RIGHT);
        let y = |value: f64| scaled(value, values, height - BOTTOM, TOP);
        let mut out = format!(
            "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{} by step\">",
            self.title
        );
        for tick in ticks(values) {
            let at = y(tick);
            out += &format!(
                "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                width - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                number(tick)
            );
        }
        for (step, anchor) in [(steps[0], "start"), (steps[1], "end")] {
            let (at, y) = (x(step), height - 8.0);
            out += &format!(
                "<text x=\"{at:.1}\" y=\"{y}\" text-anchor=\"{anchor}\">step {step}</text>"
            );
        }
        for series in &self.series {
            out += &series.curve(&x, &y);
        }
        out + "<line class=\"cursor\" y1=\"10\" y2=\"204\"/></svg>"
    }
    /// Points of all curves and the frame of the plot, for the script.
    fn data(&self) -> serde_json::Value {
        let series = self
            .series
            .iter()
            .map(|s| json!({ "name": s.name, "colour": s.colour, "points": s.points }));
        let steps = self.ranges().map(|ranges| ranges[0]);
        json!({
            "series": series.collect::<Vec<_>>(),
            "steps": steps,
            "frame": [LEFT / SIZE[0], (SIZE[0] - RIGHT) / SIZE[0], SIZE[0]],
        })
    }
}

impl Series {
    /// A path, and circles where there are few points.
    fn curve(&self, x: &dyn Fn(f64) -> f64, y: &dyn Fn(f64) -> f64) -> String {
        let mut path = String::new();
        for (i, &(step, value)) in self.points.iter().enumerate() {
            let letter = if i == 0 { 'M' } else { 'L' };
            path += &format!("{letter}{:.1} {:.1}", x(step), y(value));
        }
        let circle = |p: &(f64, f64)| {
            format!(
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\"/>",
                x(p.0),
                y(p.1)
            )
        };
        let circles: String = match self.points.len() {
            ..=24 => self.points.iter().map(circle).collect(),
            _ => String::new(),
        };
        format!(
            "<g class=\"{}\"><path d=\"{path}\"/>{circles}</g>",
            self.colour
        )
    }
}

/// Values with few digits between the ends of a range, three to seven of them.
fn ticks([low, high]: [f64; 2]) -> Vec<f64> {
    let rough = (high - low) / 4.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
    let step = step.into_iter().find(|&s| s >= rough).unwrap_or(rough);
    let first = (low / step).ceil() as i64;
    let last = (high / step).floor() as i64;
    (first..=last).map(|i| i as f64 * step).collect()
}

/// A number with about four digits.
fn number(value: f64) -> String {
    let shown = match value.abs() {
        0.0 => return "0".into(),
        1e-3..1e5 => {
            let digits = (3 - value.abs().log10().floor() as i32).clamp(0, 6) as usize;
            format!("{value:.digits$}")
        }
        _ => {
            let shown = format!("{value:.2e}");
            let (digits, power) = shown.split_once('e').unwrap_or((&shown, "0"));
            return format!("{}e{power}", trimmed(digits));
        }
    };
    trimmed(&shown).to_owned()
}

/// A decimal number without the zeros at its end.
fn trimmed(digits: &str) -> &str {
    match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => digits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> TrainingRecord {
        let step = |step: u64| StepRecord {
            step,
            loss: 8.0 / step as f64,
            gradient_norm: if step == 2 { f64::NAN } else { 1.5 },
            rate: 2e-4,
        };
        TrainingRecord {
            model: "<b>@DATA@</b>".into(),
            what: "4 lines".into(),
            facts: vec![["loss".into(), "8 → 2".into()]],
            settings: vec![["data".into(), "a<script>.jsonl".into()]],
            steps: (1..=4).map(step).collect(),
            evaluations: vec![(2, 4.5), (4, f64::INFINITY)],
            replies: vec![ReplySample {
                prompt: "<|user|></p><script>alert(1)</script>".into(),
                wanted: "\"yes\" & no".into(),
                before: "  ".into(),
                after: Some("<img src=x>".into()),
            }],
            about_replies: "greedy".into(),
        }
    }

    #[test]
    fn the_page_is_whole_and_fetches_nothing() {
        let page = html(&record());
        assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
        let count = |mark: &str| page.matches(mark).count();
        assert_eq!(
            (count("<script"), count("</script"), count("<svg")),
            (2, 2, 3)
        );
        assert!(page.contains("&lt;|user|&gt;&lt;/p&gt;&lt;script&gt;"));
        assert!(page.contains("<i>nothing</i>") && page.contains("&lt;b&gt;@DATA@"));
        assert_eq!(count("<img"), 0);
        let own = page.replace("&lt;img src=x&gt;", "");
        assert_eq!(html::outside(&own), [""; 0]);
    }

    #[test]
    fn curves_go_from_the_first_step_to_the_last() {
        let page = html(&record());
        // The loss of 8 is the top, and the steps 1 and 4 are the ends of the axis.
        assert!(page.contains("<path d=\"M48.0 10.0L162.0 107.0"), "{page}");
        // A value that is no number has no point: three steps, one evaluation.
        assert!(page.contains("<g class=\"c1\"><path d=\"M162.0"));
        assert_eq!(page.matches("<circle").count(), 4 + 1 + 3 + 4);
        let none = html(&TrainingRecord::default());
        assert_eq!(
            (none.matches("No steps.").count(), none.contains("Replies")),
            (3, false)
        );
    }

    #[test]
    fn long_runs_are_drawn_as_means() {
        let step = |step: u64| StepRecord {
            step,
            loss: if step.is_multiple_of(2) { 1.0 } else { 3.0 },
            gradient_norm: 1.0,
            rate: 1.0,
        };
        let of = TrainingRecord {
            steps: (1..=800).map(step).collect(),
            ..TrainingRecord::default()
        };
        let charts = charts(&of);
        assert_eq!(charts[0].series[0].points.len(), MOST_POINTS);
        assert!(charts[0].series[0].points.iter().all(|p| p.1 == 2.0));
        assert!(html(&of).contains("means of 2 steps"));
    }

    #[test]
    fn numbers_have_few_digits() {
        let shown = [0.0, 1e-4, 0.00123456, 1.5, 12.3456, 4321.9, 2e7].map(number);
        assert_eq!(
            shown,
            ["0", "1e-4", "0.001235", "1.5", "12.35", "4322", "2e7"]
        );
        assert_eq!(ticks([0.0, 8.0]), [0.0, 2.0, 4.0, 6.0, 8.0]);
    }
}

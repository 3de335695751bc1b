//! Hyper-parameters in words, for `inspect`.

use super::hyper::{Gating, Hyper, Scaling};

/// Name and value of everything that was read from a file.
pub(super) fn summary(h: &Hyper) -> Vec<(&'static str, String)> {
    let mut out = vec![
        ("layers", format!("{}, of which the first {} are dense", h.layers, h.dense)),
        ("width", h.d.to_string()),
        ("heads", format!("{} of {} + {} rotated, values of {}", h.heads, h.nope, h.rope, h.value)),
        ("query rank", h.q_rank.map_or("none: projected directly".into(), |rank| rank.to_string())),
        ("key-value rank", format!("{}, {} cached numbers a token and layer", h.kv_rank, h.cached())),
        ("key-value matrices", if h.split { "apart" } else { "one" }.into()),
    ];
    if let Some(ff) = h.ff[..h.dense].first() {
        out.push(("dense feed-forward", ff.to_string()));
    }
    if let Some(e) = &h.experts {
        let gating = match e.gating {
            Gating::Softmax => "softmax",
            Gating::Sigmoid => "sigmoid",
            Gating::SoftmaxOfChosen => "softmax of the chosen",
            Gating::SqrtSoftplus => "root of softplus",
        };
        let groups = e.groups.map_or(String::new(), |(n, used)| format!(", from {used} of {n} groups"));
        let weights = if e.normalise { "normalised, " } else { "" };
        out.push(("experts", format!("{}, of which {} are used{groups}; width {}", e.count, e.used, e.ff)));
        out.push(("shared expert", if e.shared_ff > 0 { format!("width {}", e.shared_ff) } else { "none".into() }));
        out.push(("gating", format!("{gating}, weights {weights}times {}", e.scale)));
    }
    let scaling = match h.scaling {
        Scaling::None => "none".into(),
        Scaling::Linear(factor) => format!("linear, factor {factor}"),
        Scaling::Yarn { factor, original, .. } => format!("YaRN, factor {factor}, from {original} tokens"),
    };
    out.push(("vocabulary", h.vocabulary.to_string()));
    out.push(("context", format!("{} tokens", h.context)));
    out.push(("norm epsilon", h.eps.to_string()));
    out.push(("rope", format!("base {}, scaling {scaling}", h.base)));
    out.push(("score scale", h.score_scale.to_string()));
    out
}

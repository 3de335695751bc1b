//! Text form of the hyper-parameters, for `inspect`.

use super::hyper::DeepseekHparams;

/// Returns name and value of every hyper-parameter read from the file.
pub(super) fn summary(h: &DeepseekHparams) -> Vec<(&'static str, String)> {
    let mut out = vec![
        (
            "layers",
            format!("{}, of which the first {} are dense", h.layers, h.dense),
        ),
        ("width", h.d.to_string()),
        (
            "heads",
            format!(
                "{} of {} + {} rotated, values of {}",
                h.heads, h.nope, h.rope, h.value
            ),
        ),
        (
            "query rank",
            h.q_rank
                .map_or("none: projected directly".into(), |rank| rank.to_string()),
        ),
        (
            "key-value rank",
            format!(
                "{}, {} cached numbers a token and layer",
                h.kv_rank,
                h.cached()
            ),
        ),
        (
            "key-value matrices",
            if h.split { "apart" } else { "one" }.into(),
        ),
    ];
    if let Some(ff) = h.ff[..h.dense].first() {
        out.push(("dense feed-forward", ff.to_string()));
    }
    if let Some(e) = &h.experts {
        out.extend(e.summary());
    }
    out.push(("vocabulary", h.vocabulary.to_string()));
    out.push(("context", format!("{} tokens", h.context)));
    out.push(("norm epsilon", h.eps.to_string()));
    out.push((
        "rope",
        format!("base {}, scaling {}", h.base, h.scaling.description()),
    ));
    out.push(("score scale", h.score_scale.to_string()));
    out
}

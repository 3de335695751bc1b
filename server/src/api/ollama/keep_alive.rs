//! `keep_alive`: how long a model stays loaded, in seconds or as a Go duration.

use crate::core::error::RequestError;
use crate::core::models::policy::KeepAlive;
use serde_json::Value;
use std::time::Duration;

/// Units of a Go duration, each in seconds.
const UNITS: &[(&str, f64)] = &[
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("μs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

/// Parses `keep_alive`. A text without a unit is in seconds, an empty one means nothing. A negative
/// value keeps the model until its memory is needed; 0 unloads it at once.
///
/// # Errors
/// When the value is neither a number nor a duration.
pub fn parse(keep_alive: Option<&Value>) -> Result<Option<KeepAlive>, RequestError> {
    let seconds = match keep_alive {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Number(seconds)) => seconds.as_f64(),
        Some(Value::String(text)) if text.is_empty() => return Ok(None),
        Some(Value::String(text)) => text.parse().ok().or_else(|| seconds(text)),
        Some(_) => None,
    };
    let seconds = seconds.filter(|seconds| seconds.is_finite()).ok_or_else(|| {
        let message = "keep_alive must be a number of seconds or a duration such as \"5m\" or \"1h30m\"; \
                       0 unloads the model at once, -1 keeps it loaded";
        RequestError::parameter("keep_alive", message)
    })?;
    // A duration that overflows `Duration` never expires.
    Ok(Some(
        Duration::try_from_secs_f64(seconds).map_or(KeepAlive::UntilNeeded, KeepAlive::For),
    ))
}

/// Returns `done_reason` of a request without input: whether it loaded or unloaded the model.
pub fn reason(keep_alive: Option<&Value>) -> &'static str {
    match parse(keep_alive) {
        Ok(Some(KeepAlive::For(Duration::ZERO))) => "unload",
        _ => "load",
    }
}

/// Parses a Go duration such as `1h30m`, `-1m` or `1.5s` into seconds; `0` needs no unit.
fn seconds(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (if text.starts_with('-') { -1.0 } else { 1.0 }, rest),
        None => (1.0, text),
    };
    if rest == "0" {
        return Some(0.0);
    }
    let mut sum = 0.0;
    while !rest.is_empty() || text.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        sum += number.parse::<f64>().ok()? * UNITS.iter().find(|known| known.0 == unit)?.1;
        rest = tail;
    }
    (!text.trim_start_matches(['-', '+']).is_empty()).then_some(sign * sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn seconds_and_durations() {
        let of = |value: Value| parse(Some(&value)).ok().flatten();
        let time = |milliseconds| Some(KeepAlive::For(Duration::from_millis(milliseconds)));
        assert_eq!(parse(None).ok(), Some(None));
        for (value, expected) in [
            (json!(0), time(0)),
            (json!("0"), time(0)),
            (json!(300), time(300_000)),
            (json!(1.5), time(1_500)),
            (json!("5m"), time(300_000)),
            (json!("1h30m"), time(5_400_000)),
            (json!("1.5s"), time(1_500)),
            (json!("250ms"), time(250)),
            (json!(-1), Some(KeepAlive::UntilNeeded)),
            (json!("-1s"), Some(KeepAlive::UntilNeeded)),
            (json!(1e300), Some(KeepAlive::UntilNeeded)),
            (json!(null), None),
            (json!(""), None),
            (json!("300"), time(300_000)),
            (json!("-1"), Some(KeepAlive::UntilNeeded)),
        ] {
            assert_eq!(of(value.clone()), expected, "{value}");
        }
        for value in ["-", "m", "5 m", "5x", "1h30", "1..5s", "ever", "inf"].map(Value::from) {
            assert!(parse(Some(&value)).is_err(), "{value}");
        }
        assert!(parse(Some(&json!([1]))).is_err());
    }
}

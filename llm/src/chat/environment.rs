//! Jinja environment with the options, filters and functions of Hugging Face's chat templates.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, Output, State};
use serde_json::Value as Json;

use super::error::Raised;
use super::json::{self, Style};
use super::lists;

/// Returns the template syntax: `trim_blocks` and `lstrip_blocks`, as in `apply_chat_template`.
pub(super) fn syntax() -> SyntaxConfig {
    // `build` fails only for invalid delimiters, and these are the defaults.
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .unwrap_or_default()
}

/// Creates an environment with the options, filters, functions and string
/// methods that templates expect.
///
/// It has no access to files, a loader or process variables. `strftime_now` formats `now`.
pub(super) fn environment(fuel: u64, now: SystemTime) -> Environment<'static> {
    let mut env = Environment::new();
    env.set_syntax(syntax());
    env.set_fuel(Some(fuel));
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_formatter(format);
    env.set_unknown_method_callback(method);
    env.add_filter("tojson", tojson);
    env.add_function("raise_exception", raise_exception);
    env.add_function("namespace", lists::namespace);
    env.add_function("strftime_now", move |format: &str| {
        strftime(format, now).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidOperation,
                format!("strftime_now: unsupported format {format:?}"),
            )
        })
    });
    env
}

/// Prints `None`, `True` and `False` as Python does.
fn format(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    let text = match value.kind() {
        ValueKind::None => "None",
        ValueKind::Bool if value.is_true() => "True",
        ValueKind::Bool => "False",
        _ => return minijinja::escape_formatter(out, state, value),
    };
    out.write_str(text).map_err(Error::from)
}

fn raise_exception(message: &str) -> Result<Value, Error> {
    let raised = Raised(message.chars().take(2000).collect());
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(raised))
}

/// Implements `tojson` with `ensure_ascii`, `indent`, `separators` and `sort_keys`, without HTML
/// escapes. Defaults are those of `json.dumps`, except `ensure_ascii`.
fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let bad =
        |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, "tojson").with_source(e);
    let separators: Option<Vec<String>> = options.get("separators")?;
    let indent: Option<usize> = options.get("indent")?;
    let style = Style {
        ensure_ascii: options
            .get::<Option<bool>>("ensure_ascii")?
            .unwrap_or(false),
        indent: indent.map(|n| n.min(16)),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators: separators
            .and_then(|s| s.try_into().ok())
            .map(|[a, b]: [String; 2]| (a, b)),
    };
    options.assert_all_used()?;
    if value.is_undefined() {
        return Err(Error::new(
            ErrorKind::UndefinedError,
            "tojson of an undefined value",
        ));
    }
    // minijinja's own filter walks the value; only its layout and HTML escapes differ.
    let compact = minijinja::filters::tojson(
        value,
        None,
        Kwargs::from_iter(std::iter::empty::<(String, Value)>()),
    )?;
    let parsed: Json = serde_json::from_str(compact.as_str().unwrap_or_default()).map_err(bad)?;
    let mut out = String::new();
    json::write(&parsed, &style, 0, &mut out);
    Ok(out)
}

/// Implements string and dictionary methods of Python: those of minijinja-contrib and a few more.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        match name {
            "rsplit" => {
                let (separator, max): (Option<&str>, Option<i64>) = from_args(args)?;
                return Ok(rsplit(text, separator, max));
            }
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)));
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)));
            }
            "partition" | "rpartition" => {
                let (separator,): (&str,) = from_args(args)?;
                let parts = if name == "partition" {
                    text.split_once(separator)
                } else {
                    text.rsplit_once(separator)
                };
                return Ok(match parts {
                    Some((head, tail)) => list(&[head, separator, tail]),
                    None if name == "partition" => list(&[text, "", ""]),
                    None => list(&["", "", text]),
                });
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// Implements `str.rsplit`: at most `max` splits, counted from the right.
fn rsplit(text: &str, separator: Option<&str>, max: Option<i64>) -> Value {
    let limit = usize::try_from(max.unwrap_or(-1)).map_or(usize::MAX, |max| max.saturating_add(1));
    let mut parts: Vec<&str> = match separator {
        Some(separator) if !separator.is_empty() => text.rsplitn(limit, separator).collect(),
        _ => {
            let (mut parts, mut rest) = (Vec::new(), text.trim());
            while !rest.is_empty() {
                match rest.rsplit_once(char::is_whitespace) {
                    Some((head, tail)) if parts.len() + 1 < limit => {
                        parts.push(tail);
                        rest = head.trim_end();
                    }
                    _ => {
                        parts.push(rest);
                        rest = "";
                    }
                }
            }
            parts
        }
    };
    parts.reverse();
    list(&parts)
}

fn list(parts: &[&str]) -> Value {
    parts.iter().map(|&part| Value::from(part)).collect()
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// A day of the Gregorian calendar.
struct Date {
    year: i64,
    /// Month of the year, from 1 to 12.
    month: i64,
    /// Day of the month, from 1.
    day: i64,
    /// Day of the year, from 1.
    ordinal: i64,
}

impl Date {
    /// Returns the date this number of days after 1970-01-01.
    fn from_days(days: i64) -> Date {
        // Algorithm `civil_from_days` of H. Hinnant, "chrono-compatible low-level date algorithms",
        // with years that begin in March.
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
        let month = if shifted_month < 10 {
            shifted_month + 3
        } else {
            shifted_month - 9
        };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = i64::from(year % 4 == 0 && (year % 100 != 0 || year % 400 == 0));
        let ordinal = if month > 2 {
            day_of_year + 60 + leap
        } else {
            day_of_year - 305
        };
        Date {
            year,
            month,
            day,
            ordinal,
        }
    }
}

/// Formats a UTC time with the common directives of `strftime`; `None` for other directives.
pub fn strftime(format: &str, time: SystemTime) -> Option<String> {
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs() as i64;
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let Date {
        year,
        month,
        day,
        ordinal,
    } = Date::from_days(days);
    let (month_name, day_name) = (
        MONTHS[(month - 1) as usize],
        DAYS[(days + 4).rem_euclid(7) as usize],
    );
    let hour = second / 3600;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let (plain, directive) = match chars.next()? {
            '-' => (true, chars.next()?),
            directive => (false, directive),
        };
        let two = |n: i64| {
            if plain {
                n.to_string()
            } else {
                format!("{n:02}")
            }
        };
        let part = match directive {
            'Y' => year.to_string(),
            'y' => two(year.rem_euclid(100)),
            'm' => two(month),
            'd' => two(day),
            'e' => format!("{day:2}"),
            'H' => two(hour),
            'I' => two((hour + 11) % 12 + 1),
            'M' => two(second / 60 % 60),
            'S' => two(second % 60),
            'j' if plain => ordinal.to_string(),
            'j' => format!("{ordinal:03}"),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'B' => month_name.to_owned(),
            'b' => month_name[..3].to_owned(),
            'A' => day_name.to_owned(),
            'a' => day_name[..3].to_owned(),
            'F' => format!("{year}-{month:02}-{day:02}"),
            'T' => format!("{hour:02}:{:02}:{:02}", second / 60 % 60, second % 60),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        };
        out.push_str(&part);
    }
    Some(out)
}

/// Converts JSON to a minijinja value.
pub(super) fn to_value(value: &Json) -> Value {
    match value {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => Value::from(n),
            (_, Some(n)) => Value::from(n),
            _ => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text),
        Json::Array(items) => items.iter().map(to_value).collect(),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(key, item)| (key, to_value(item)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let all = "%Y-%m-%d %H:%M:%S %A %b %j %-d %I%p";
        // Expected values from Python: datetime.fromtimestamp(.., timezone.utc).strftime(..).
        assert_eq!(
            strftime(all, at(0)).unwrap(),
            "1970-01-01 00:00:00 Thursday Jan 001 1 12AM"
        );
        assert_eq!(
            strftime(all, at(1_709_210_096)).unwrap(),
            "2024-02-29 12:34:56 Thursday Feb 060 29 12PM"
        );
        assert_eq!(
            strftime("%d %B %Y %j", at(1_735_603_200)).unwrap(),
            "31 December 2024 366"
        );
        assert_eq!(strftime("%Q", at(0)), None);
        assert_eq!(strftime("%", at(0)), None);
    }

    #[test]
    fn rsplit_is_pythons() {
        let show = |v: Value| v.to_string();
        assert_eq!(
            show(rsplit("a,b,c", Some(","), Some(1))),
            show(list(&["a,b", "c"]))
        );
        assert_eq!(
            show(rsplit(" a  b c ", None, Some(1))),
            show(list(&["a  b", "c"]))
        );
        assert_eq!(show(rsplit("a b", None, None)), show(list(&["a", "b"])));
    }
}

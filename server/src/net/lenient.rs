//! Types of request fields that accept the spellings of other servers' clients.

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};
use serde_json::Value;
use std::fmt;

/// Deserialises null as the default value.
///
/// # Errors
/// When the value is neither null nor a `T`.
pub fn null_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Deserialises a present field, where null means the default value; for fields of which absence
/// is another matter, with `#[serde(default)]`.
///
/// # Errors
/// When the value is neither null nor a `T`.
pub fn null_is_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> Result<Option<T>, D::Error> {
    null_default(from).map(Some)
}

/// A whole number of JSON, also spelt with a fraction of zero (`16.0`) or as a string (`"16"`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Whole(pub i64);

/// A whole number of at least 0, also spelt with a fraction of zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Count(pub u64);

/// A number, also spelt as a string (`"0.7"`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Number(pub f64);

/// A switch, also spelt as a string (`"false"`), 0 or 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Switch(pub bool);

/// A seed: 64 bits, with or without a sign.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seed(pub i64);

/// Id of a token, also taken as a float without a fraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenId(pub u32);

/// The number 2^64; conversions of smaller floating-point numbers are exact.
const TWO_TO_64: f64 = 18_446_744_073_709_551_616.0;

/// Visits a whole number from −2^63 to 2^64.
struct WholeVisitor(&'static str);

impl Visitor<'_> for WholeVisitor {
    type Value = i128;
    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str(self.0)
    }
    fn visit_i64<E: Error>(self, value: i64) -> Result<i128, E> {
        Ok(value.into())
    }
    fn visit_u64<E: Error>(self, value: u64) -> Result<i128, E> {
        Ok(value.into())
    }
    fn visit_f64<E: Error>(self, value: f64) -> Result<i128, E> {
        let is_whole = value.fract() == 0.0 && (-TWO_TO_64 / 2.0..TWO_TO_64).contains(&value);
        match is_whole {
            true => Ok(value as i128),
            false => Err(E::invalid_type(Unexpected::Float(value), &self)),
        }
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<i128, E> {
        // Conversions to floating point would lose digits of large seeds.
        let whole = text.parse::<i64>().map(i128::from);
        let whole = whole.or_else(|_| text.parse::<u64>().map(i128::from));
        match (whole, text.parse::<f64>()) {
            (Ok(value), _) => Ok(value),
            (_, Ok(value)) if value.fract() == 0.0 => self.visit_f64(value),
            _ => Err(E::invalid_type(Unexpected::Str(text), &self)),
        }
    }
}

/// Deserialises a number within the range of `T`; `expected` is a key of `EXPECTED_TYPES`.
fn whole<'de, D: Deserializer<'de>, T: TryFrom<i128>>(
    from: D,
    expected: &'static str,
) -> Result<T, D::Error> {
    let value = from.deserialize_any(WholeVisitor(expected))?;
    T::try_from(value).map_err(|_| {
        let text = value.to_string();
        D::Error::invalid_value(
            Unexpected::Other(&format!("integer `{text}`")),
            &WholeVisitor(expected),
        )
    })
}

struct NumberVisitor;

impl Visitor<'_> for NumberVisitor {
    type Value = f64;
    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("f64")
    }
    fn visit_i64<E: Error>(self, value: i64) -> Result<f64, E> {
        Ok(value as f64)
    }
    fn visit_u64<E: Error>(self, value: u64) -> Result<f64, E> {
        Ok(value as f64)
    }
    fn visit_f64<E: Error>(self, value: f64) -> Result<f64, E> {
        Ok(value)
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<f64, E> {
        let number = text.parse().ok().filter(|number: &f64| number.is_finite());
        number.ok_or_else(|| E::invalid_type(Unexpected::Str(text), &self))
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Number, D::Error> {
        from.deserialize_any(NumberVisitor).map(Number)
    }
}

struct SwitchVisitor;

impl Visitor<'_> for SwitchVisitor {
    type Value = bool;
    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("a boolean")
    }
    fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
        Ok(value)
    }
    fn visit_u64<E: Error>(self, value: u64) -> Result<bool, E> {
        match value {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(E::invalid_type(Unexpected::Unsigned(value), &self)),
        }
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<bool, E> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err(E::invalid_type(Unexpected::Str(text), &self)),
        }
    }
}

impl<'de> Deserialize<'de> for Switch {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Switch, D::Error> {
        from.deserialize_any(SwitchVisitor).map(Switch)
    }
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Whole, D::Error> {
        // Larger numbers mean no limit.
        let value: i128 = whole(from, "i64")?;
        Ok(Whole(i64::try_from(value).unwrap_or(i64::MAX)))
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Count, D::Error> {
        Ok(Count(whole(from, "u64")?))
    }
}

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Seed, D::Error> {
        let value: i128 = whole(from, "i64")?;
        // The sampler reads the same bits without a sign.
        Ok(Seed(value as i64))
    }
}

impl<'de> Deserialize<'de> for TokenId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<TokenId, D::Error> {
        Ok(TokenId(whole(from, "u32")?))
    }
}

/// JSON as text, which some clients send as the value itself. Null is the empty text.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct JsonText(pub String);

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<JsonText, D::Error> {
        Ok(JsonText(match Value::deserialize(from)? {
            Value::String(text) => text,
            Value::Null => String::new(),
            value => value.to_string(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::from_str;

    #[test]
    fn whole_numbers_are_taken_as_clients_spell_them() {
        let whole = |text| from_str::<Whole>(text).ok().map(|whole| whole.0);
        for (text, value) in [
            ("16", Some(16)),
            ("16.0", Some(16)),
            ("-1.0", Some(-1)),
            ("1e3", Some(1000)),
            ("18446744073709551615", Some(i64::MAX)),
            ("16.5", None),
            ("1e30", None),
            ("\"16\"", Some(16)),
            ("\"16.0\"", Some(16)),
            ("\"16.5\"", None),
            ("\"NaN\"", None),
            ("\"\"", None),
            ("true", None),
        ] {
            assert_eq!(whole(text), value, "{text}");
        }
        let count = |text| from_str::<Count>(text).ok().map(|count| count.0);
        assert_eq!(count("40.0"), Some(40));
        assert_eq!(count("-5"), None);
        let seed = |text| from_str::<Seed>(text).ok().map(|seed| seed.0 as u64);
        assert_eq!(seed("18446744073709551615"), Some(u64::MAX));
        assert_eq!(seed("-1"), Some(u64::MAX));
        assert_eq!(seed("\"18446744073709551615\""), Some(u64::MAX));
        assert_eq!(from_str::<TokenId>("7.0").ok(), Some(TokenId(7)));
        assert!(from_str::<TokenId>("4294967296").is_err());
    }

    #[test]
    fn numbers_and_switches_are_taken_from_strings() {
        let number = |text| from_str::<Number>(text).ok().map(|number| number.0);
        for (text, value) in [
            ("0.5", Some(0.5)),
            ("1", Some(1.0)),
            ("\"0.5\"", Some(0.5)),
            ("\"inf\"", None),
            ("\"hot\"", None),
            ("true", None),
        ] {
            assert_eq!(number(text), value, "{text}");
        }
        let switch = |text| from_str::<Switch>(text).ok().map(|switch| switch.0);
        for (text, value) in [
            ("true", Some(true)),
            ("\"False\"", Some(false)),
            ("1", Some(true)),
            ("0", Some(false)),
            ("2", None),
            ("\"yes\"", None),
        ] {
            assert_eq!(switch(text), value, "{text}");
        }
    }

    #[test]
    fn json_is_taken_as_text_and_as_a_value() {
        for (text, read) in [
            (r#""{\"a\":1}""#, r#"{"a":1}"#),
            (r#"{"a":1}"#, r#"{"a":1}"#),
            ("null", ""),
            ("[1]", "[1]"),
        ] {
            assert_eq!(from_str::<JsonText>(text).unwrap().0, read);
        }
    }
}

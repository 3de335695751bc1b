//! Sets of measured costs: rounded, range-checked, with a text form for storage and display.

/// Maximum length of the text form, bytes.
pub const MAX_TEXT_BYTES: usize = 512;

/// A cost of a set `C`: its text form, plausible range and field.
pub struct Quantity<C> {
    /// One word, unique in the set.
    pub name: &'static str,
    /// Unit of the text form.
    pub unit: &'static str,
    /// One unit in bytes per second, seconds, or operations per second.
    pub scale: f64,
    /// Smallest and largest plausible value, in the unit: 100 times below the slowest and above
    /// the fastest current machine.
    pub bounds: [f64; 2],
    /// The cost in its set.
    pub field: fn(&mut C) -> &mut Option<f64>,
}

/// A set of costs that a short microbenchmark measures; a field is `None` if the measurement failed
/// or was implausible.
pub trait Measured: Copy + PartialEq + Default + 'static {
    /// Version of the measurement and what it measures; part of the key of stored costs.
    const VERSION: &'static str;
    /// All costs of the set.
    const QUANTITIES: &'static [Quantity<Self>];

    /// Rounds to two significant digits, so that repeated measurements mostly agree,
    /// and drops implausible values.
    #[must_use]
    fn rounded(mut self) -> Self {
        for quantity in Self::QUANTITIES {
            let field = (quantity.field)(&mut self);
            *field = field.and_then(|value| quantity.believed(value / quantity.scale));
        }
        self
    }

    /// Formats as `bandwidth 4600 GB/s, launch 1.4 us`; empty if nothing was measured.
    fn text(mut self) -> String {
        let of = |quantity: &Quantity<Self>| {
            let value = (*(quantity.field)(&mut self))? / quantity.scale;
            Some(format!(
                "{} {} {}",
                quantity.name,
                two_digits(value),
                quantity.unit
            ))
        };
        Self::QUANTITIES
            .iter()
            .filter_map(of)
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Parses the output of [`Measured::text`] for rounded costs; rejects anything else.
    fn parse(text: &str) -> Option<Self> {
        let mut costs = Self::default();
        if text.len() > MAX_TEXT_BYTES {
            return None;
        }
        for part in text.split(", ") {
            let mut words = part.split(' ');
            let (name, value, unit) = (words.next()?, words.next()?, words.next()?);
            let quantity = Self::QUANTITIES
                .iter()
                .find(|quantity| quantity.name == name && quantity.unit == unit)?;
            let value = quantity.believed(value.parse().ok()?)?;
            if words.next().is_some() || (quantity.field)(&mut costs).replace(value).is_some() {
                return None;
            }
        }
        Some(costs)
    }
}

impl<C> Quantity<C> {
    /// Rounds a value in its unit and converts it; `None` if it is implausible.
    fn believed(&self, value: f64) -> Option<f64> {
        let [least, most] = self.bounds;
        let value: f64 = two_digits(value).parse().ok()?;
        (least..=most)
            .contains(&value)
            .then_some(value * self.scale)
    }
}

/// Formats with two significant digits, as a decimal without an exponent.
fn two_digits(value: f64) -> String {
    // Converts through decimal text, so that equal digits give equal values.
    format!("{value:.1e}")
        .parse::<f64>()
        .map_or_else(|_| String::new(), |value| value.to_string())
}

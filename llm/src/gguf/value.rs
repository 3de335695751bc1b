//! Metadata values as stored in the file.

/// Array of byte strings in one allocation; vocabularies have some 10⁵ short entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strings {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Strings {
    /// Returns the number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }
    /// Returns true if there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
    /// Returns the bytes of string `i`, not necessarily UTF-8.
    pub fn get(&self, i: usize) -> Option<&[u8]> {
        let end = *self.ends.get(i)?;
        let start = i.checked_sub(1).map_or(0, |p| self.ends[p]);
        self.bytes.get(start..end)
    }
    /// Iterates over all strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|i| self.get(i).unwrap_or_default())
    }
    /// Appends a string to the array.
    pub fn push(&mut self, text: impl AsRef<[u8]>) {
        self.bytes.extend_from_slice(text.as_ref());
        self.ends.push(self.bytes.len());
    }
    /// Reserves memory for `strings` more strings of `bytes` bytes together. Returns
    /// false if that fails.
    pub(super) fn try_reserve(&mut self, strings: usize, bytes: usize) -> bool {
        self.ends.try_reserve(strings).is_ok() && self.bytes.try_reserve(bytes).is_ok()
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for Strings {
    fn from_iter<I: IntoIterator<Item = T>>(iter: I) -> Self {
        let mut strings = Self::default();
        iter.into_iter().for_each(|s| strings.push(s));
        strings
    }
}

pub(super) const BOOL: i32 = 7;
pub(super) const STRING: i32 = 8;
pub(super) const ARRAY: i32 = 9;

/// Passes the table of fixed-width types to the macro `$list`.
macro_rules! with_numbers {
    ($list:ident) => {
        $list! {
            ints { 0 U8 u8; 1 I8 i8; 2 U16 u16; 3 I16 i16; 4 U32 u32; 5 I32 i32; 10 U64 u64; 11 I64 i64; }
            floats { 6 F32 f32; 12 F64 f64; }
        }
    };
}
pub(super) use with_numbers;

macro_rules! values {
    (ints { $($ii:literal $I:ident $it:ident;)* } floats { $($fi:literal $F:ident $ft:ident;)* }) => {
        /// A typed metadata value.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "the variants are the types")]
        pub enum Value { $($I($it),)* $($F($ft),)* Bool(bool), Str(Vec<u8>), Array(Array) }

        /// A metadata array; all elements have one type.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "the variants are the element types")]
        pub enum Array { $($I(Vec<$it>),)* $($F(Vec<$ft>),)* Bool(Vec<bool>), Str(Strings) }

        impl Value {
            /// Returns the value of an integer of any width.
            pub fn as_int(&self) -> Option<i128> {
                match self { $(Value::$I(v) => Some(i128::from(*v)),)* _ => None }
            }
            /// Returns the value of a float of either width.
            pub fn as_float(&self) -> Option<f64> {
                match self { $(Value::$F(v) => Some(f64::from(*v)),)* _ => None }
            }
            /// Returns the type name for messages: `u32`, `array of string`.
            pub fn type_name(&self) -> String {
                match self {
                    $(Value::$I(_) => stringify!($it).into(),)* $(Value::$F(_) => stringify!($ft).into(),)*
                    Value::Bool(_) => "bool".into(),
                    Value::Str(_) => "string".into(),
                    Value::Array(a) => format!("array of {}", a.element_name()),
                }
            }
            pub(super) fn type_id(&self) -> i32 {
                match self {
                    $(Value::$I(_) => $ii,)* $(Value::$F(_) => $fi,)*
                    Value::Bool(_) => BOOL, Value::Str(_) => STRING, Value::Array(_) => ARRAY,
                }
            }
        }

        impl Array {
            /// Returns the number of elements.
            pub fn len(&self) -> usize {
                match self {
                    $(Array::$I(v) => v.len(),)* $(Array::$F(v) => v.len(),)*
                    Array::Bool(v) => v.len(), Array::Str(v) => v.len(),
                }
            }
            /// Returns the integers of an array of any integer type.
            pub fn as_ints(&self) -> Option<Box<dyn ExactSizeIterator<Item = i128> + '_>> {
                match self { $(Array::$I(v) => Some(Box::new(v.iter().map(|&x| i128::from(x)))),)* _ => None }
            }
            /// Returns the floats of an array of either float type.
            pub fn as_floats(&self) -> Option<Box<dyn ExactSizeIterator<Item = f64> + '_>> {
                match self { $(Array::$F(v) => Some(Box::new(v.iter().map(|&x| f64::from(x)))),)* _ => None }
            }
            /// Returns the element type's name for messages.
            pub fn element_name(&self) -> &'static str {
                match self {
                    $(Array::$I(_) => stringify!($it),)* $(Array::$F(_) => stringify!($ft),)*
                    Array::Bool(_) => "bool", Array::Str(_) => "string",
                }
            }
            pub(super) fn element_id(&self) -> i32 {
                match self {
                    $(Array::$I(_) => $ii,)* $(Array::$F(_) => $fi,)* Array::Bool(_) => BOOL, Array::Str(_) => STRING,
                }
            }
        }

        $(impl From<$it> for Value { fn from(v: $it) -> Self { Value::$I(v) } }
          impl From<Vec<$it>> for Value { fn from(v: Vec<$it>) -> Self { Value::Array(Array::$I(v)) } })*
        $(impl From<$ft> for Value { fn from(v: $ft) -> Self { Value::$F(v) } }
          impl From<Vec<$ft>> for Value { fn from(v: Vec<$ft>) -> Self { Value::Array(Array::$F(v)) } })*
    };
}
with_numbers!(values);

impl Array {
    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<bool> for Value {
    fn from(v: bool) -> Self {
        Value::Bool(v)
    }
}
impl From<&str> for Value {
    fn from(v: &str) -> Self {
        Value::Str(v.into())
    }
}
impl From<String> for Value {
    fn from(v: String) -> Self {
        Value::Str(v.into_bytes())
    }
}
impl From<Strings> for Value {
    fn from(v: Strings) -> Self {
        Value::Array(Array::Str(v))
    }
}

/// One line for `inspect`; long strings and arrays are truncated.
impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const MAX_SHOWN: usize = 120;
        fn text(bytes: &[u8]) -> String {
            let cut = &bytes[..bytes.len().min(MAX_SHOWN)];
            let more = if cut.len() < bytes.len() {
                format!("… ({} bytes)", bytes.len())
            } else {
                String::new()
            };
            format!("{:?}{more}", String::from_utf8_lossy(cut))
        }
        match self {
            Value::Bool(v) => write!(f, "{v}"),
            Value::F32(v) => write!(f, "{v}"),
            Value::Str(v) => f.write_str(&text(v)),
            Value::Array(a) => {
                let shown: Vec<String> = match a {
                    Array::Str(v) => v.iter().take(6).map(text).collect(),
                    Array::Bool(v) => v.iter().take(6).map(bool::to_string).collect(),
                    Array::F32(v) => v.iter().take(6).map(f32::to_string).collect(),
                    _ => {
                        let ints = a
                            .as_ints()
                            .map(|v| v.take(6).map(|i| i.to_string()).collect());
                        let floats = || {
                            a.as_floats()
                                .map(|v| v.take(6).map(|x| x.to_string()).collect())
                        };
                        ints.or_else(floats).unwrap_or_default()
                    }
                };
                let more = if a.len() > shown.len() { ", …" } else { "" };
                write!(
                    f,
                    "[{}{more}] ({} × {})",
                    shown.join(", "),
                    a.len(),
                    a.element_name()
                )
            }
            _ => match (self.as_int(), self.as_float()) {
                (Some(i), _) => write!(f, "{i}"),
                (_, Some(x)) => write!(f, "{x}"),
                _ => Ok(()),
            },
        }
    }
}

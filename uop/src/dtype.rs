//! Element types. A value has `lanes` lanes of one scalar type; more than one only
//! at the linear level.

use std::fmt;

macro_rules! scalars { ($($id:ident $name:literal $bytes:literal $class:ident;)*) => {
    /// A scalar element type.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
    #[expect(missing_docs, reason = "the names say it")]
    pub enum Scalar { $($id),* }

    impl Scalar {
        /// All scalar types, in declaration order.
        pub const ALL: &[Scalar] = &[$(Scalar::$id),*];
        /// Lower-case name, as in the text form.
        pub fn name(self) -> &'static str { match self { $(Scalar::$id => $name),* } }
        /// Size of one element in memory, bytes.
        pub fn bytes(self) -> usize { match self { $(Scalar::$id => $bytes),* } }
        fn class(self) -> Class { match self { $(Scalar::$id => Class::$class),* } }
    }
} }

#[derive(Clone, Copy, PartialEq)]
enum Class {
    Bool,
    Signed,
    Unsigned,
    Float,
}

scalars! {
    Bool "bool" 1 Bool;
    I8 "i8" 1 Signed; U8 "u8" 1 Unsigned; I16 "i16" 2 Signed; U16 "u16" 2 Unsigned;
    I32 "i32" 4 Signed; U32 "u32" 4 Unsigned; I64 "i64" 8 Signed;
    F16 "f16" 2 Float; BF16 "bf16" 2 Float; F32 "f32" 4 Float; F64 "f64" 8 Float;
}

impl Scalar {
    /// Returns whether it is a floating-point type.
    pub fn is_float(self) -> bool {
        self.class() == Class::Float
    }
    /// Returns whether it is a two-byte float (f16 or bf16).
    pub fn is_half(self) -> bool {
        matches!(self, Scalar::F16 | Scalar::BF16)
    }
    /// Returns whether it is an integer type, excluding booleans.
    pub fn is_int(self) -> bool {
        matches!(self.class(), Class::Signed | Class::Unsigned)
    }
    /// Smallest and largest value of an integer or boolean; `None` for floats.
    pub fn range(self) -> Option<(i64, i64)> {
        let bits = 8 * self.bytes() as u32;
        match self.class() {
            Class::Bool => Some((0, 1)),
            Class::Unsigned => Some((0, (1i64 << bits) - 1)),
            Class::Signed => Some((i64::MIN >> (64 - bits), i64::MAX >> (64 - bits))),
            Class::Float => None,
        }
    }
    /// Looks up a type by name.
    pub fn by_name(name: &str) -> Option<Scalar> {
        Self::ALL.iter().copied().find(|s| s.name() == name)
    }
    /// Returns the one-lane type.
    pub const fn one(self) -> DType {
        DType {
            scalar: self,
            lanes: 1,
        }
    }
}

/// A scalar type and a number of lanes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DType {
    /// Scalar type of each lane.
    pub scalar: Scalar,
    /// Number of lanes; 1 for a scalar.
    pub lanes: u16,
}

impl DType {
    /// Returns the same scalar type with `lanes` lanes.
    pub fn with_lanes(self, lanes: u16) -> DType {
        DType { lanes, ..self }
    }
}

impl From<Scalar> for DType {
    fn from(s: Scalar) -> DType {
        s.one()
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lanes == 1 {
            f.write_str(self.scalar.name())
        } else {
            write!(f, "{}x{}", self.scalar.name(), self.lanes)
        }
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for DType {
    type Err = ();
    fn from_str(s: &str) -> Result<DType, ()> {
        if let Some(scalar) = Scalar::by_name(s) {
            return Ok(scalar.one());
        }
        let (name, lanes) = s.rsplit_once('x').ok_or(())?;
        Ok(DType {
            scalar: Scalar::by_name(name).ok_or(())?,
            lanes: lanes.parse().map_err(|_| ())?,
        })
    }
}

//! Host values of tensors: element types, arrays and vectors.

use gristmill_uop::Scalar;

/// A Rust type that a tensor's elements can have on the host.
pub trait Element: Copy + 'static {
    /// The corresponding element type on a device.
    const SCALAR: Scalar;
    /// Appends the value's bytes, little-endian.
    fn put(self, bytes: &mut Vec<u8>);
    /// Reads a value from exactly [`Scalar::bytes`] bytes, little-endian.
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! elements { ($($type:ident $scalar:ident;)*) => { $(
    impl Element for $type {
        const SCALAR: Scalar = Scalar::$scalar;
        fn put(self, bytes: &mut Vec<u8>) { bytes.extend(self.to_le_bytes()) }
        fn get(bytes: &[u8]) -> $type { $type::from_le_bytes(bytes.try_into().expect("an element's bytes")) }
    }
)* } }
elements! { f32 F32; i8 I8; u8 U8; i16 I16; u16 U16; i32 I32; u32 U32; i64 I64; }

impl Element for bool {
    const SCALAR: Scalar = Scalar::Bool;
    fn put(self, bytes: &mut Vec<u8>) {
        bytes.push(self.into());
    }
    fn get(bytes: &[u8]) -> bool {
        bytes[0] != 0
    }
}

/// Shaped host values: a number, an array or vector of numbers, or nested arrays.
pub trait Values {
    /// The type of the individual numbers.
    type Element: Element;
    /// Appends the length of each axis, outermost first.
    fn dims(&self, dims: &mut Vec<usize>);
    /// Appends the bytes of all elements, row-major.
    fn put(&self, bytes: &mut Vec<u8>);
}

impl<T: Element> Values for T {
    type Element = T;
    fn dims(&self, _: &mut Vec<usize>) {}
    fn put(&self, bytes: &mut Vec<u8>) {
        Element::put(*self, bytes);
    }
}

impl<V: Values, const N: usize> Values for [V; N] {
    type Element = V::Element;
    fn dims(&self, dims: &mut Vec<usize>) {
        dims.push(N);
        self.iter().take(1).for_each(|v| v.dims(dims));
    }
    fn put(&self, bytes: &mut Vec<u8>) {
        self.iter().for_each(|v| v.put(bytes));
    }
}

impl<T: Element> Values for Vec<T> {
    type Element = T;
    fn dims(&self, dims: &mut Vec<usize>) {
        dims.push(self.len());
    }
    fn put(&self, bytes: &mut Vec<u8>) {
        self.iter().for_each(|&v| Element::put(v, bytes));
    }
}

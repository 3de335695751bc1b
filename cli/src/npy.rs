//! NumPy's file format, version 1: float32 matrices in row-major order.

use std::io::{self, Write};

/// Writes the header of a float32 matrix.
pub fn header(out: &mut dyn Write, rows: usize, columns: usize) -> io::Result<()> {
    let mut text =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    // The header is padded to a multiple of 64 bytes and ends with a line feed.
    let length = (10 + text.len() + 1).next_multiple_of(64) - 10;
    text.extend(std::iter::repeat_n(' ', length - 1 - text.len()));
    text.push('\n');
    out.write_all(b"\x93NUMPY\x01\x00")?;
    out.write_all(&(length as u16).to_le_bytes())?;
    out.write_all(text.as_bytes())
}

/// Writes numbers after the header, little-endian.
pub fn numbers(out: &mut dyn Write, values: &[f32]) -> io::Result<()> {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    out.write_all(&bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn headers_are_aligned() {
        for shape in [(1, 1), (96, 2048), (123_456, 154_880)] {
            let mut out = Vec::new();
            super::header(&mut out, shape.0, shape.1).unwrap();
            assert_eq!(out.len() % 64, 0);
            assert_eq!(
                u16::from_le_bytes([out[8], out[9]]) as usize,
                out.len() - 10
            );
            assert!(out.ends_with(b"\n"));
        }
    }
}

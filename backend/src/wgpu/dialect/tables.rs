//! Constant tables: words before the kernel, in which narrow entries lie side by side. Few words are a vector; more are a variable, as an array that is a
//! constant would be copied wherever it is read.

use gristmill_uop::Scalar;
use std::fmt::Write;
use std::sync::Arc;

/// The tables of a kernel.
#[derive(Default)]
pub struct Tables(Vec<Arc<[i32]>>);

impl Tables {
    /// The entry of a table at an index, as a value of that type.
    pub fn look_up(&mut self, table: &Arc<[i32]>, index: &str, scalar: Scalar) -> String {
        let number = self.0.iter().position(|t| t == table).unwrap_or_else(|| {
            self.0.push(table.clone());
            self.0.len() - 1
        });
        let bits = bits(table);
        let entry = match bits {
            32 => format!("i32(table{number}[{index}])"),
            _ => {
                let each = 32 / bits;
                format!(
                    "extractBits(i32(table{number}[u32({index}) / {each}u]), u32({index}) % {each}u * {bits}u, {bits}u)"
                )
            }
        };
        match scalar {
            Scalar::I32 => entry,
            Scalar::I64 => format!("i64({entry})"),
            scalar if scalar.is_float() => format!("f32({entry})"),
            _ => format!("u32({entry})"),
        }
    }
    /// Their definitions.
    pub fn definitions(&self) -> String {
        const OF_A_VECTOR: usize = 4;
        let mut out = String::new();
        for (number, table) in self.0.iter().enumerate() {
            let bits = bits(table);
            let mask = u32::MAX >> (32 - bits);
            let word =
                |entries: &[i32]| entries.iter().rev().fold(0u64, |w, &e| w << bits | u64::from(e as u32 & mask));
            let mut words: Vec<String> = table.chunks(32 / bits).map(|e| format!("{}u", word(e) as u32)).collect();
            if words.len() <= OF_A_VECTOR {
                words.resize(OF_A_VECTOR, "0u".into());
                let _ = writeln!(out, "const table{number} = vec4<u32>({});", words.join(", "));
            } else {
                let (t, words) = (format!("array<u32, {}>", words.len()), words.join(", "));
                let _ = writeln!(out, "var<private> table{number}: {t} = {t}({words});");
            }
        }
        out
    }
}

/// Bits of an entry, signed.
fn bits(table: &[i32]) -> usize {
    let fits = |bits: usize| table.iter().all(|&v| (-(1i64 << (bits - 1))..1i64 << (bits - 1)).contains(&v.into()));
    match () {
        () if fits(8) => 8,
        () if fits(16) => 16,
        () => 32,
    }
}

//! Random valid blocks of any encoding, as a function of seed and block number.

use super::{Error, TensorPlan};
use crate::gguf::types::{self, Fill, Scale};
use half::{bf16, f16};

/// Size of the table of normal deviates.
const NORMALS: usize = 4096;
/// Minimum bytes for which several threads are used.
const PARALLEL: usize = 4 << 20;
/// Variants of a scale: both signs, eight magnitudes around the nominal one.
const VARIANTS: usize = 16;

/// Returns word `k` of the stream of `seed`: SplitMix64 (Steele, Lea, Flood
/// 2014) with random access.
pub(super) fn word(seed: u64, k: u64) -> u64 {
    let mut z = seed.wrapping_add(k.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns the seed of the tensor with that name.
pub(super) fn seed(name: &str) -> u64 {
    name.bytes()
        .fold(0, |hash, byte| word(hash, u64::from(byte)))
}

/// Returns an approximately normal number with mean 0, variance 1 and |z| < 3.5: the sum of four
/// uniform 16-bit numbers, centred and scaled.
fn normal(bits: u64) -> f32 {
    const STD: f32 = 65536.0 * 0.577_350_3;
    let sum: u64 = (0..4).map(|i| bits >> (16 * i) & 0xFFFF).sum();
    (sum as f32 - 131_070.0) / STD
}

/// Returns a table of normal deviates with mean 0 and mean square 1. A lookup is four times as
/// fast as the sum.
fn normals() -> [f32; NORMALS] {
    let half: Vec<f32> = (0..NORMALS as u64 / 2)
        .map(|k| normal(word(0, k)))
        .collect();
    let rms = (half.iter().map(|z| z * z).sum::<f32>() / half.len() as f32).sqrt();
    std::array::from_fn(|i| {
        if i.is_multiple_of(2) {
            half[i / 2] / rms
        } else {
            -half[i / 2] / rms
        }
    })
}

/// Fills `out` with the data of `tensor` starting at block `start`. Large requests use all cores.
///
/// # Errors
/// Returns [`Error::Range`] if `out` is not whole blocks inside the tensor.
pub fn fill(tensor: &TensorPlan, start: u64, out: &mut [u8]) -> Result<(), Error> {
    let block = tensor.encoding.bytes;
    let end = start.checked_add((out.len() / block) as u64);
    if !out.len().is_multiple_of(block) || end.is_none_or(|end| end > tensor.bytes / block as u64) {
        return Err(Error::Range {
            tensor: tensor.name.clone(),
            start,
            bytes: out.len() as u64,
        });
    }
    let maker = Maker::new(tensor);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    if out.len() < PARALLEL || threads == 1 {
        maker.blocks(start, out);
        return Ok(());
    }
    let part = (out.len() / block).div_ceil(threads);
    std::thread::scope(|scope| {
        for (i, out) in out.chunks_mut(part * block).enumerate() {
            let maker = &maker;
            scope.spawn(move || maker.blocks(start + (i * part) as u64, out));
        }
    });
    Ok(())
}

/// Constants of one tensor.
struct Maker {
    seed: u64,
    mean: f32,
    sigma: f32,
    block: usize,
    fill: Fill,
    scales: Vec<Field>,
    /// Elements of a row, and the factor of each row; no factors without a skew.
    row: u64,
    factors: Vec<f32>,
}

/// A scale field of a block.
struct Field {
    /// Offset in the block and width, in bytes.
    at: usize,
    width: usize,
    /// Mask of the bits in its bytes that belong to other data.
    kept: u8,
    /// Bytes of the field in each variant.
    variants: [[u8; 2]; VARIANTS],
}

/// Returns the factor of each row of a skewed tensor; ranks are in the order of random words.
fn factors(tensor: &TensorPlan) -> Vec<f32> {
    if tensor.skew == 0.0 {
        return Vec::new();
    }
    let rows: u64 = tensor.dims.iter().skip(1).product();
    let mut order: Vec<u64> = (0..rows).collect();
    order.sort_by_key(|&row| word(!tensor.seed, row));
    let mut factors = vec![1.0; rows as usize];
    for (rank, row) in order.into_iter().enumerate() {
        factors[row as usize] = ((rank + 1) as f32).powf(-tensor.skew);
    }
    factors
}

impl Maker {
    fn new(tensor: &TensorPlan) -> Self {
        let fill = types::fill(tensor.encoding);
        let scales = match fill {
            Fill::Scales(scales) => scales.iter().map(|s| variants(*s, tensor.sigma)).collect(),
            _ => Vec::new(),
        };
        let (seed, mean, sigma, block) = (
            tensor.seed,
            tensor.mean,
            tensor.sigma,
            tensor.encoding.bytes,
        );
        Self {
            seed,
            mean,
            sigma,
            block,
            fill,
            scales,
            row: tensor.dims.first().copied().unwrap_or(1).max(1),
            factors: factors(tensor),
        }
    }

    fn blocks(&self, start: u64, out: &mut [u8]) {
        match self.fill {
            Fill::F32 if !self.factors.is_empty() => {
                self.floats(start, out, f32::to_le_bytes);
                for (element, at) in out.as_chunks_mut::<4>().0.iter_mut().zip(start..) {
                    let factor = self.factors[(at / self.row) as usize];
                    *element = (f32::from_le_bytes(*element) * factor).to_le_bytes();
                }
            }
            Fill::F32 => self.floats(start, out, f32::to_le_bytes),
            Fill::F16 => self.floats(start, out, |x| f16::from_f32(x).to_le_bytes()),
            Fill::BF16 => self.floats(start, out, |x| bf16::from_f32(x).to_le_bytes()),
            Fill::Scales(_) | Fill::None => self.scaled(start, out),
        }
    }

    fn floats<const N: usize>(&self, start: u64, out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
        let table = normals().map(|z| bytes(self.mean + self.sigma * z));
        // Four elements per word; both ends of the range may be inside a word.
        let put = |out: &mut [[u8; N]], k: u64| {
            let mut bits = word(self.seed, k / 4) >> (k % 4 * 16);
            for out in out {
                *out = table[bits as usize % NORMALS];
                bits >>= 16;
            }
        };
        let out = out.as_chunks_mut::<N>().0;
        let (head, rest) = out.split_at_mut(out.len().min((start.wrapping_neg() % 4) as usize));
        put(head, start);
        let start = start + head.len() as u64;
        for (out, k) in rest.chunks_mut(4).zip((start..).step_by(4)) {
            put(out, k);
        }
    }

    fn scaled(&self, start: u64, out: &mut [u8]) {
        for (out, index) in out.chunks_exact_mut(self.block).zip(start..) {
            // One SplitMix64 word per block, extended by xorshift (Marsaglia 2003): half the cost
            // of a SplitMix64 word for every eight bytes.
            let mut bits = word(self.seed, index) | 1;
            let choice = (bits >> 60) as usize % VARIANTS;
            let mut next = || {
                bits ^= bits << 13;
                bits ^= bits >> 7;
                bits ^= bits << 17;
                bits.to_le_bytes()
            };
            let (whole, tail) = out.as_chunks_mut::<8>();
            whole.iter_mut().for_each(|out| *out = next());
            if !tail.is_empty() {
                tail.copy_from_slice(&next()[..tail.len()]);
            }
            for field in &self.scales {
                for (out, own) in out[field.at..]
                    .iter_mut()
                    .zip(&field.variants[choice][..field.width])
                {
                    *out = *out & field.kept | own;
                }
            }
        }
    }
}

/// Returns the bytes of a scale field for each variant.
///
/// Fields of one block use the same variant, so a minimum keeps its proportion to the scale. Signs
/// alternate, so that codes with more negative than positive values are centred on zero.
fn variants(scale: Scale, sigma: f32) -> Field {
    // Mean square 1 over the eight magnitudes.
    let magnitude = |i: usize| (0.75 + 0.5 * (i / 2) as f32 / 7.0) / 1.0135;
    let sign = |i: usize| if i.is_multiple_of(2) { 1.0 } else { -1.0 };
    let half = |factor: f32, i| f16::from_f32(sigma * factor * magnitude(i) * sign(i)).to_bits();
    let field = |at, width, kept, variants| Field {
        at,
        width,
        kept,
        variants,
    };
    match scale {
        Scale::Half(at, factor) => field(
            at,
            2,
            0,
            std::array::from_fn(|i| half(factor, i).to_le_bytes()),
        ),
        Scale::Exponent(at, factor) => {
            let e = (128.0 + (sigma * factor).log2().round()).clamp(1.0, 254.0);
            field(at, 1, 0, [[e as u8, 0]; VARIANTS])
        }
        Scale::Float8(at, factor) => field(
            at,
            1,
            0,
            std::array::from_fn(|i| [e4m3(sigma * factor * magnitude(i)), 0]),
        ),
        Scale::Part(at, part, factor) => {
            let bits = |i| (half(factor, i) >> (4 * part) & 15) as u8;
            field(at, 1, 15, std::array::from_fn(|i| [bits(i) << 4, 0]))
        }
    }
}

/// Returns the e4m3 nearest to a positive number; its maximum is below 480.
fn e4m3(x: f32) -> u8 {
    // Divided by 2^8, a binary16 has the exponent field of e4m3, and seven more mantissa bits.
    let bits = f16::from_f32(x / 256.0).to_bits();
    (((bits + 64) >> 7) as u8).min(0x7e)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(encoding: &'static str, rows: u64) -> TensorPlan {
        let encoding = gristmill_encodings::by_name(encoding).unwrap();
        let row = 2 * encoding.elements as u64;
        let bytes = 2 * rows * encoding.bytes as u64;
        TensorPlan {
            name: "t".into(),
            dims: vec![row, rows],
            encoding,
            bytes,
            mean: 0.0,
            sigma: 0.02,
            seed: 7,
            skew: 0.0,
        }
    }

    #[test]
    fn any_part_made_alone_is_the_same() {
        for e in gristmill_encodings::TABLE {
            let t = tensor(e.name, 500);
            let mut whole = vec![0; t.bytes as usize];
            fill(&t, 0, &mut whole).unwrap();
            let mut part = vec![0; 37 * e.bytes];
            fill(&t, 411, &mut part).unwrap();
            assert_eq!(part, whole[411 * e.bytes..448 * e.bytes], "{e:?}");
        }
    }

    #[test]
    fn threads_do_not_change_the_data() {
        let e = gristmill_encodings::TABLE
            .iter()
            .max_by_key(|e| e.bytes)
            .unwrap();
        let t = tensor(e.name, (PARALLEL / e.bytes) as u64);
        let mut whole = vec![0; t.bytes as usize];
        fill(&t, 0, &mut whole).unwrap();
        let mut one = vec![0; whole.len()];
        Maker::new(&t).blocks(0, &mut one);
        assert!(whole == one);
    }

    #[test]
    fn rows_of_skewed_tensors_have_ranks() {
        let plain = tensor("f32", 8);
        let skewed = TensorPlan {
            skew: 1.0,
            ..plain.clone()
        };
        let data = |t: &TensorPlan| {
            let mut data = vec![0; t.bytes as usize];
            fill(t, 0, &mut data).unwrap();
            let numbers = data.as_chunks::<4>().0.iter();
            numbers
                .map(|&b| f32::from_le_bytes(b))
                .collect::<Vec<f32>>()
        };
        let (plain, all) = (data(&plain), data(&skewed));
        let row = plain.len() / 8;
        let mut ranks: Vec<u32> = (0..8)
            .map(|r| (plain[r * row] / all[r * row]).round() as u32)
            .collect();
        ranks.sort_unstable();
        assert_eq!(ranks, (1..=8).collect::<Vec<u32>>());
        let mut part = vec![0; 4 * row];
        fill(&skewed, 3 * row as u64, &mut part).unwrap();
        let part = part.as_chunks::<4>().0.iter();
        assert!(
            part.map(|&b| f32::from_le_bytes(b))
                .eq(all[3 * row..4 * row].iter().copied())
        );
    }

    #[test]
    fn ranges_outside_the_tensor_are_errors() {
        let t = tensor("q8_0", 4);
        let block = t.encoding.bytes;
        assert!(fill(&t, 0, &mut vec![0; 8 * block]).is_ok());
        assert!(matches!(
            fill(&t, 0, &mut vec![0; 9 * block]),
            Err(Error::Range { .. })
        ));
        assert!(matches!(
            fill(&t, 0, &mut vec![0; block - 1]),
            Err(Error::Range { .. })
        ));
        assert!(matches!(
            fill(&t, u64::MAX, &mut vec![0; block]),
            Err(Error::Range { .. })
        ));
    }

    #[test]
    fn floats_have_the_mean_and_deviation_asked_for() {
        let t = TensorPlan {
            mean: 1.0,
            sigma: 0.05,
            ..tensor("f32", 50_000)
        };
        let mut data = vec![0; t.bytes as usize];
        fill(&t, 0, &mut data).unwrap();
        let x: Vec<f64> = data
            .as_chunks::<4>()
            .0
            .iter()
            .map(|&b| f64::from(f32::from_le_bytes(b)))
            .collect();
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let var = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
        assert!((mean - 1.0).abs() < 1e-3, "{mean}");
        assert!((var.sqrt() / 0.05 - 1.0).abs() < 0.02, "{var}");
    }
}

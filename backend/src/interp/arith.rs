//! Elementwise instructions over lanes, with the semantics of `uop::fold`.

use super::code::{Bank, Instr, InstrKind};
use super::fault::Fault;
use super::lanes::{File, Lane};
use gristmill_uop::dtype::Scalar;
use gristmill_uop::fold;
use gristmill_uop::op::{Op, ReduceOp};
use half::{bf16, f16};

/// Runs an instruction without memory access on the first `n` lanes.
pub(super) fn run(file: &mut File, i: &Instr, n: usize) -> Result<(), Fault> {
    match &i.kind {
        InstrKind::Apply(op, Bank::Int) => int(file, i, *op, n)?,
        InstrKind::Apply(op, Bank::F32) => float::<f32>(file, i, *op, n)?,
        InstrKind::Apply(op, Bank::F64) => float::<f64>(file, i, *op, n)?,
        InstrKind::Cast(from) => cast(file, i, *from, n),
        InstrKind::Bitcast(from) => {
            for lane in 0..n {
                let bits = bits_of(file, i.src[0], *from, lane);
                set_bits(file, i.out, i.dtype, lane, bits);
            }
        }
        InstrKind::Table(table) => {
            if let Some(&value) = file
                .get::<i64>(i.src[0], n)
                .iter()
                .find(|&&v| v < 0 || v as usize >= table.len())
            {
                return Err(Fault::Operand { op: "Table", value });
            }
            file.map1(i.out, i.src[0], n, |v: i64| table[v as usize] as i64);
        }
        InstrKind::Table4(table) => file.map1(i.out, i.src[0], n, |v: i64| {
            (0..4).fold(0, |w, c| {
                w | (table[(v >> (8 * c)) as usize & 15] as i64) << (8 * c)
            })
        }),
        InstrKind::Start(how) => start(file, i, *how, n),
        InstrKind::Accumulate(how) => accumulate(file, i, *how, n),
        InstrKind::Load(_) | InstrKind::Store(_) | InstrKind::Add(_) => {}
    }
    Ok(())
}

fn no_meaning(op: Op, s: Scalar) -> Fault {
    Fault::Graph(format!("{op:?} to {}", s.name()))
}

fn check(file: &File, i: &Instr, op: Op, n: usize, ok: impl Fn(i64) -> bool) -> Result<(), Fault> {
    if i.safe {
        return Ok(());
    }
    match file.get::<i64>(i.src[1], n).iter().find(|&&v| !ok(v)) {
        Some(&value) => Err(Fault::Operand {
            op: op.name(),
            value,
        }),
        None => Ok(()),
    }
}

fn int(file: &mut File, i: &Instr, op: Op, n: usize) -> Result<(), Fault> {
    let (out, [a, b, c]) = (i.out, i.src);
    match op {
        Op::Add => file.map2(out, a, b, n, i64::wrapping_add),
        Op::Sub => file.map2(out, a, b, n, i64::wrapping_sub),
        Op::Mul => file.map2(out, a, b, n, i64::wrapping_mul),
        Op::Neg => file.map1(out, a, n, i64::wrapping_neg),
        Op::Max => file.map2(out, a, b, n, |x: i64, y| x.max(y)),
        Op::Min => file.map2(out, a, b, n, |x: i64, y| x.min(y)),
        Op::And => file.map2(out, a, b, n, |x: i64, y| x & y),
        Op::Or => file.map2(out, a, b, n, |x: i64, y| x | y),
        Op::Xor => file.map2(out, a, b, n, |x: i64, y| x ^ y),
        Op::Lt => file.map2(out, a, b, n, |x: i64, y| (x < y) as i64),
        Op::Eq => file.map2(out, a, b, n, |x: i64, y| (x == y) as i64),
        Op::Where => file.map3(
            out,
            [a, b, c],
            n,
            |x: i64, y: i64, z| if x != 0 { y } else { z },
        ),
        Op::Dot4 => file.map3(out, [a, b, c], n, fold::dot4),
        Op::SignedDot4 => file.map3(out, [a, b, c], n, fold::signed_dot4),
        Op::Dot2 => file.map3(out, [a, b, c], n, fold::dot2),
        Op::Halves => file.map2(out, a, b, n, fold::halves),
        Op::IDiv | Op::Mod => {
            check(file, i, op, n, |v| v > 0)?;
            match op {
                Op::IDiv => file.map2(out, a, b, n, i64::div_euclid),
                _ => file.map2(out, a, b, n, i64::rem_euclid),
            }
        }
        Op::Shl | Op::Shr => {
            check(file, i, op, n, |v| (0..64).contains(&v))?;
            match op {
                Op::Shl => file.map2(out, a, b, n, |x: i64, y| x.wrapping_shl(y as u32)),
                _ => file.map2(out, a, b, n, |x: i64, y| x.wrapping_shr(y as u32)),
            }
        }
        _ => return Err(no_meaning(op, i.dtype)),
    }
    if !i.safe
        && matches!(
            op,
            Op::Add
                | Op::Sub
                | Op::Mul
                | Op::Neg
                | Op::Shl
                | Op::Dot4
                | Op::SignedDot4
                | Op::Halves
        )
    {
        wrap(file, i, n);
    }
    Ok(())
}

/// Wraps an integer register into the range of its type.
fn wrap(file: &mut File, i: &Instr, n: usize) {
    match i.dtype {
        Scalar::Bool => file.update(i.out, n, |v: i64| (v != 0) as i64),
        Scalar::I8 => file.update(i.out, n, |v: i64| v as i8 as i64),
        Scalar::U8 => file.update(i.out, n, |v: i64| v as u8 as i64),
        Scalar::I16 => file.update(i.out, n, |v: i64| v as i16 as i64),
        Scalar::U16 => file.update(i.out, n, |v: i64| v as u16 as i64),
        Scalar::I32 => file.update(i.out, n, |v: i64| v as i32 as i64),
        Scalar::U32 => file.update(i.out, n, |v: i64| v as u32 as i64),
        _ => {}
    }
}

/// Operations that both float banks share.
trait Real: Lane + PartialOrd + std::ops::Neg<Output = Self> + std::ops::Sub<Output = Self> {
    fn binary(op: Op) -> Option<fn(Self, Self) -> Self>;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn unary(op: Op) -> Option<fn(Self) -> Self>;
    fn fma(self, b: Self, c: Self) -> Self;
}

macro_rules! real { ($($t:ident)*) => { $(
    impl Real for $t {
        fn binary(op: Op) -> Option<fn($t, $t) -> $t> {
            Some(match op {
                Op::Div => |a, b| a / b,
                Op::Min => $t::min,
                _ => return None,
            })
        }
        fn add(self, other: $t) -> $t { self + other }
        fn mul(self, other: $t) -> $t { self * other }
        fn max(self, other: $t) -> $t { $t::max(self, other) }
        // Exponentials and log are computed in f64 and rounded once, within half a unit
        // of the last place.
        fn unary(op: Op) -> Option<fn($t) -> $t> {
            Some(match op {
                Op::Exp => |a| (a as f64).exp() as $t,
                Op::Exp2 => |a| (a as f64).exp2() as $t,
                Op::Log => |a| (a as f64).ln() as $t,
                Op::Sqrt => $t::sqrt,
                Op::Recip => |a| 1.0 / a,
                Op::Round => $t::round_ties_even,
                _ => return None,
            })
        }
        fn fma(self, b: $t, c: $t) -> $t { self.mul_add(b, c) }
    }
)* } }
real! { f32 f64 }

fn float<T: Real>(file: &mut File, i: &Instr, op: Op, n: usize) -> Result<(), Fault> {
    let (out, [a, b, c]) = (i.out, i.src);
    match op {
        Op::Add => file.map2(out, a, b, n, T::add),
        Op::Sub => file.map2(out, a, b, n, |x: T, y| x - y),
        Op::Mul => file.map2(out, a, b, n, T::mul),
        Op::Max => file.map2(out, a, b, n, T::max),
        Op::Neg => file.map1(out, a, n, |x: T| -x),
        Op::Fma => file.map3(out, [a, b, c], n, |x: T, y: T, z| x.fma(y, z)),
        Op::Lt => file.map2(out, a, b, n, |x: T, y| (x < y) as i64),
        Op::Eq => file.map2(out, a, b, n, |x: T, y| (x == y) as i64),
        Op::Where => file.map3(
            out,
            [a, b, c],
            n,
            |x: i64, y: T, z| if x != 0 { y } else { z },
        ),
        _ => match (T::binary(op), T::unary(op)) {
            (Some(f), _) => file.map2(out, a, b, n, f),
            (_, Some(f)) => file.map1(out, a, n, f),
            _ => return Err(no_meaning(op, i.dtype)),
        },
    }
    // Rounds results of f16 and bf16. f32 has more than twice their digits, so
    // double rounding is exact.
    match i.dtype {
        Scalar::F16 => file.update(i.out, n, |v: f32| f16::from_f32(v).to_f32()),
        Scalar::BF16 => file.update(i.out, n, |v: f32| bf16::from_f32(v).to_f32()),
        _ => {}
    }
    Ok(())
}

fn cast(file: &mut File, i: &Instr, from: Scalar, n: usize) {
    let (out, a) = (i.out, i.src[0]);
    let (lo, hi) = i.dtype.range().unwrap_or((0, 0));
    let truth = i.dtype == Scalar::Bool;
    match (Bank::from_scalar(from), Bank::from_scalar(i.dtype)) {
        (Bank::Int, Bank::Int) => {
            file.map1(out, a, n, |v: i64| v);
            wrap(file, i, n);
        }
        (Bank::Int, Bank::F64) => file.map1(out, a, n, |v: i64| v as f64),
        (Bank::F32, Bank::F64) => file.map1(out, a, n, |v: f32| v as f64),
        (Bank::F64, Bank::F64) => file.map1(out, a, n, |v: f64| v),
        (Bank::F32, Bank::Int) if truth => file.map1(out, a, n, |v: f32| (v != 0.0) as i64),
        (Bank::F64, Bank::Int) if truth => file.map1(out, a, n, |v: f64| (v != 0.0) as i64),
        (Bank::F32, Bank::Int) => file.map1(out, a, n, |v: f32| (v as i64).clamp(lo, hi)),
        (Bank::F64, Bank::Int) => file.map1(out, a, n, |v: f64| (v as i64).clamp(lo, hi)),
        (from, Bank::F32) => match (from, i.dtype) {
            (Bank::Int, Scalar::F16) => file.map1(out, a, n, |v: i64| {
                f16::from_f32(fold::rounded_to_odd(v as f64)).to_f32()
            }),
            (Bank::Int, Scalar::BF16) => file.map1(out, a, n, |v: i64| {
                bf16::from_f32(fold::rounded_to_odd(v as f64)).to_f32()
            }),
            // Integers of at most 32 bits are exact in f64, so this rounds once.
            (Bank::Int, _) => file.map1(out, a, n, |v: i64| v as f64 as f32),
            (Bank::F32, Scalar::F16) => file.map1(out, a, n, |v: f32| f16::from_f32(v).to_f32()),
            (Bank::F32, Scalar::BF16) => file.map1(out, a, n, |v: f32| bf16::from_f32(v).to_f32()),
            (Bank::F32, _) => file.map1(out, a, n, |v: f32| v),
            (Bank::F64, Scalar::F16) => file.map1(out, a, n, |v: f64| {
                f16::from_f32(fold::rounded_to_odd(v)).to_f32()
            }),
            (Bank::F64, Scalar::BF16) => file.map1(out, a, n, |v: f64| {
                bf16::from_f32(fold::rounded_to_odd(v)).to_f32()
            }),
            (Bank::F64, _) => file.map1(out, a, n, |v: f64| v as f32),
        },
    }
}

fn bits_of(file: &File, reg: u32, from: Scalar, lane: usize) -> u64 {
    let narrow = || file.get::<f32>(reg, lane + 1)[lane];
    match from {
        Scalar::F64 => file.get::<f64>(reg, lane + 1)[lane].to_bits(),
        Scalar::F32 => narrow().to_bits().into(),
        Scalar::F16 => f16::from_f32(narrow()).to_bits().into(),
        Scalar::BF16 => bf16::from_f32(narrow()).to_bits().into(),
        _ => file.get::<i64>(reg, lane + 1)[lane] as u64,
    }
}

fn set_bits(file: &mut File, reg: u32, to: Scalar, lane: usize, bits: u64) {
    let value = match to {
        Scalar::F64 => return file.get_mut::<f64>(reg, lane + 1)[lane] = f64::from_bits(bits),
        Scalar::F32 => f32::from_bits(bits as u32),
        Scalar::F16 => f16::from_bits(bits as u16).to_f32(),
        Scalar::BF16 => bf16::from_bits(bits as u16).to_f32(),
        Scalar::Bool => return file.get_mut(reg, lane + 1)[lane] = (bits & 0xff != 0) as i64,
        _ => {
            let unused = 64 - 8 * to.bytes() as u32;
            let signed = to.range().is_some_and(|r| r.0 < 0);
            let value = if signed {
                ((bits << unused) as i64) >> unused
            } else {
                (bits << unused >> unused) as i64
            };
            return file.get_mut(reg, lane + 1)[lane] = value;
        }
    };
    file.get_mut(reg, lane + 1)[lane] = value;
}

fn start(file: &mut File, i: &Instr, how: ReduceOp, n: usize) {
    let max = how == ReduceOp::Max;
    match Bank::from_scalar(i.dtype) {
        Bank::Int => file.get_mut(i.out, n).fill(if max {
            i.dtype.range().map_or(i64::MIN, |r| r.0)
        } else {
            0
        }),
        Bank::F32 => file
            .get_mut(i.out, n)
            .fill(if max { f32::NEG_INFINITY } else { 0.0 }),
        Bank::F64 => file
            .get_mut(i.out, n)
            .fill(if max { f64::NEG_INFINITY } else { 0.0 }),
    }
}

fn accumulate(file: &mut File, i: &Instr, how: ReduceOp, n: usize) {
    // In the order of the ranges; each step is rounded to the type of the reduction.
    fn fold<T: Lane>(file: &mut File, i: &Instr, n: usize, f: impl Fn(T, T) -> T) {
        let first = file.get::<T>(i.out, 1)[0];
        let total = file
            .get::<T>(i.src[0], n)
            .iter()
            .fold(first, |acc, &v| f(acc, v));
        file.get_mut(i.out, 1)[0] = total;
    }
    let max = how == ReduceOp::Max;
    match i.dtype {
        Scalar::F64 if max => fold(file, i, n, f64::max),
        Scalar::F64 => fold(file, i, n, |a: f64, b| a + b),
        Scalar::F32 | Scalar::F16 | Scalar::BF16 if max => fold(file, i, n, f32::max),
        Scalar::F32 => fold(file, i, n, |a: f32, b| a + b),
        Scalar::F16 => fold(file, i, n, |a: f32, b| f16::from_f32(a + b).to_f32()),
        Scalar::BF16 => fold(file, i, n, |a: f32, b| bf16::from_f32(a + b).to_f32()),
        _ if max => fold(file, i, n, |a: i64, b: i64| a.max(b)),
        _ => {
            // Wrapping after each addition or once at the end gives the same result.
            fold(file, i, n, i64::wrapping_add);
            wrap(file, i, 1);
        }
    }
}

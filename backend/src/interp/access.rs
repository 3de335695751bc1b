//! Loads and stores with bounds checks.

use super::code::{BufferSlot, Instr};
use super::fault::Fault;
use super::lanes::{File, Lane};
use gristmill_uop::dtype::Scalar;
use half::{bf16, f16};

/// A buffer bound for one launch.
#[derive(Clone, Copy)]
pub(super) struct BoundBuffer {
    pub start: *mut u8,
    pub len: usize,
}

/// Checks that accesses of `size` bytes at these offsets lie in the buffer.
fn check(
    view: BoundBuffer,
    place: BufferSlot,
    offsets: &[i64],
    size: usize,
    what: &'static str,
) -> Result<(), Fault> {
    let (mut lo, mut hi) = (i64::MAX, i64::MIN);
    for &o in offsets {
        (lo, hi) = (lo.min(o), hi.max(o));
    }
    let last = view
        .len
        .checked_sub(size)
        .map_or(-1, |room| (room / place.unit) as i64);
    if lo >= 0 && hi <= last {
        return Ok(());
    }
    let bad = offsets
        .iter()
        .copied()
        .find(|&o| o < 0 || o > last)
        .unwrap_or(lo);
    let at = bad as i128 * place.unit as i128;
    Err(Fault::OutOfBounds {
        what,
        size,
        at,
        buffer: place.buffer as usize,
        len: view.len,
    })
}

/// Runs a load on the first `n` lanes.
pub(super) fn load(
    file: &mut File,
    i: &Instr,
    place: BufferSlot,
    views: &[BoundBuffer],
    n: usize,
) -> Result<(), Fault> {
    let view = views[place.buffer as usize];
    check(view, place, file.get(i.src[0], n), i.dtype.bytes(), "load")?;
    fn read<T: Lane, const S: usize>(
        file: &mut File,
        i: &Instr,
        v: BoundBuffer,
        unit: usize,
        n: usize,
        f: fn([u8; S]) -> T,
    ) {
        // SAFETY: `check` has shown that these bytes lie in the buffer.
        file.map1(i.out, i.src[0], n, |o: i64| {
            f(unsafe { v.start.add(o as usize * unit).cast::<[u8; S]>().read() })
        });
    }
    let unit = place.unit;
    match i.dtype {
        Scalar::Bool => read(file, i, view, unit, n, |b: [u8; 1]| (b[0] != 0) as i64),
        Scalar::U8 => read(file, i, view, unit, n, |b: [u8; 1]| b[0] as i64),
        Scalar::I8 => read(file, i, view, unit, n, |b: [u8; 1]| b[0] as i8 as i64),
        Scalar::U16 => read(file, i, view, unit, n, |b| u16::from_le_bytes(b) as i64),
        Scalar::I16 => read(file, i, view, unit, n, |b| i16::from_le_bytes(b) as i64),
        Scalar::U32 => read(file, i, view, unit, n, |b| u32::from_le_bytes(b) as i64),
        Scalar::I32 => read(file, i, view, unit, n, |b| i32::from_le_bytes(b) as i64),
        Scalar::I64 => read(file, i, view, unit, n, i64::from_le_bytes),
        Scalar::F16 => read(file, i, view, unit, n, |b| f16::from_le_bytes(b).to_f32()),
        Scalar::BF16 => read(file, i, view, unit, n, |b| bf16::from_le_bytes(b).to_f32()),
        Scalar::F32 => read(file, i, view, unit, n, f32::from_le_bytes),
        Scalar::F64 => read(file, i, view, unit, n, f64::from_le_bytes),
    }
    Ok(())
}

/// Adds the first `n` lanes to memory, in order.
pub(super) fn add(
    file: &File,
    i: &Instr,
    place: BufferSlot,
    views: &[BoundBuffer],
    n: usize,
) -> Result<(), Fault> {
    let view = views[place.buffer as usize];
    let offsets = file.get::<i64>(i.src[0], n);
    check(view, place, offsets, i.dtype.bytes(), "store")?;
    fn each<T: Copy, const S: usize>(
        at: &[*mut u8],
        values: &[T],
        sum: impl Fn([u8; S], T) -> [u8; S],
    ) {
        for (at, &x) in at.iter().zip(values) {
            // SAFETY: `check` has shown that these bytes lie in the buffer.
            unsafe {
                at.cast::<[u8; S]>()
                    .write(sum(at.cast::<[u8; S]>().read(), x))
            };
        }
    }
    // SAFETY: as above.
    let at: Vec<*mut u8> = offsets
        .iter()
        .map(|&o| unsafe { view.start.add(o as usize * place.unit) })
        .collect();
    match i.dtype {
        Scalar::F32 => each(&at, file.get::<f32>(i.src[1], n), |b, x| {
            (f32::from_le_bytes(b) + x).to_le_bytes()
        }),
        Scalar::F16 => {
            let sum = |b, x| f16::from_f32(f16::from_le_bytes(b).to_f32() + x).to_le_bytes();
            each(&at, file.get::<f32>(i.src[1], n), sum);
        }
        Scalar::I32 => {
            let sum = |b, x| i32::from_le_bytes(b).wrapping_add(x as i32).to_le_bytes();
            each(&at, file.get::<i64>(i.src[1], n), sum);
        }
        s => return Err(Fault::Graph(format!("nothing adds {} to memory", s.name()))),
    }
    Ok(())
}

/// Runs a store of the first `n` lanes, in order.
pub(super) fn store(
    file: &File,
    i: &Instr,
    place: BufferSlot,
    views: &[BoundBuffer],
    n: usize,
) -> Result<(), Fault> {
    let view = views[place.buffer as usize];
    let offsets = file.get::<i64>(i.src[0], n);
    check(view, place, offsets, i.dtype.bytes(), "store")?;
    let write = |o: i64, bytes: &[u8]| {
        // SAFETY: `check` has shown that these bytes lie in the buffer.
        unsafe {
            view.start
                .add(o as usize * place.unit)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        }
    };
    let floats = || offsets.iter().zip(file.get::<f32>(i.src[1], n));
    match i.dtype {
        Scalar::F64 => offsets
            .iter()
            .zip(file.get::<f64>(i.src[1], n))
            .for_each(|(&o, v)| write(o, &v.to_le_bytes())),
        Scalar::F32 => floats().for_each(|(&o, v)| write(o, &v.to_le_bytes())),
        // The value has been rounded to the type already.
        Scalar::F16 => floats().for_each(|(&o, &v)| write(o, &f16::from_f32(v).to_le_bytes())),
        Scalar::BF16 => floats().for_each(|(&o, &v)| write(o, &bf16::from_f32(v).to_le_bytes())),
        s => {
            let values = file.get::<i64>(i.src[1], n);
            offsets
                .iter()
                .zip(values)
                .for_each(|(&o, v)| write(o, &v.to_le_bytes()[..s.bytes()]));
        }
    }
    Ok(())
}

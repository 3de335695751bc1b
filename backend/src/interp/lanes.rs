//! Register file of the interpreter: each register is a strip of lanes, so that one dispatch
//! processes many elements.

use super::code::{Bank, Reg};

/// Lanes of a register: 512 bytes, so that the registers of an inner loop stay in the L1 cache.
pub(super) const LANES: usize = 64;

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Slot([u64; LANES]);

/// A number type that a register can hold.
///
/// # Safety
/// All bit patterns are valid values of the type, and it has at most 8 bytes.
pub(super) unsafe trait Lane: Copy + Default {}
// SAFETY: plain numbers of 4 and 8 bytes.
unsafe impl Lane for i64 {}
unsafe impl Lane for f32 {}
unsafe impl Lane for f64 {}

#[derive(Default)]
pub(super) struct File {
    slots: Vec<Slot>,
}

impl File {
    /// Grows the file to that many registers.
    pub(super) fn reserve(&mut self, registers: u32) {
        let wanted = self.slots.len().max(registers as usize);
        self.slots.resize(wanted, Slot([0; LANES]));
    }

    /// Returns the first `n` lanes.
    pub(super) fn get<T: Lane>(&self, reg: Reg, n: usize) -> &[T] {
        assert!(n <= LANES && (reg as usize) < self.slots.len());
        // SAFETY: checked above; writes need a mutable borrow.
        unsafe { lanes(self.slots.as_ptr(), reg, n) }
    }

    /// Returns the first `n` lanes for writing.
    pub(super) fn get_mut<T: Lane>(&mut self, reg: Reg, n: usize) -> &mut [T] {
        let start = self.separate_output(reg, &[], n);
        // SAFETY: checked above; the borrow is exclusive.
        unsafe { set(start, reg, n) }
    }

    /// Returns the start of the registers after checking that `out` exists and is none of `src`.
    fn separate_output(&mut self, out: Reg, src: &[Reg], n: usize) -> *mut Slot {
        let known = |r: &Reg| (*r as usize) < self.slots.len();
        assert!(
            n <= LANES && known(&out) && src.iter().all(|s| known(s) && *s != out),
            "a register set from itself"
        );
        self.slots.as_mut_ptr()
    }

    /// Computes `out = f(a)`, lane by lane.
    pub(super) fn map1<A: Lane, T: Lane>(
        &mut self,
        out: Reg,
        a: Reg,
        n: usize,
        f: impl Fn(A) -> T,
    ) {
        let start = self.separate_output(out, &[a], n);
        // SAFETY: these registers exist, and `out` is not `a`.
        unsafe { each1(set(start, out, n), lanes(start, a, n), f) }
    }
    /// Computes `out = f(a, b)`, lane by lane.
    pub(super) fn map2<A: Lane, T: Lane>(
        &mut self,
        out: Reg,
        a: Reg,
        b: Reg,
        n: usize,
        f: impl Fn(A, A) -> T,
    ) {
        let start = self.separate_output(out, &[a, b], n);
        // SAFETY: as in `map1`.
        unsafe {
            each2(
                set(start, out, n),
                lanes(start, a, n),
                lanes(start, b, n),
                f,
            )
        }
    }
    /// Computes `out = f(a, b, c)`, lane by lane.
    pub(super) fn map3<A: Lane, T: Lane>(
        &mut self,
        out: Reg,
        src: [Reg; 3],
        n: usize,
        f: impl Fn(A, T, T) -> T,
    ) {
        let start = self.separate_output(out, &src, n);
        let [a, b, c] = src;
        // SAFETY: as in `map1`.
        unsafe {
            each3(
                set(start, out, n),
                lanes(start, a, n),
                lanes(start, b, n),
                lanes(start, c, n),
                f,
            )
        }
    }
    /// Computes `out = f(out)`, lane by lane.
    pub(super) fn update<T: Lane>(&mut self, out: Reg, n: usize, f: impl Fn(T) -> T) {
        for o in self.get_mut(out, n) {
            *o = f(*o);
        }
    }
    /// Copies lane 0 to the first `n` lanes.
    pub(super) fn splat(&mut self, reg: Reg, bank: Bank, n: usize) {
        fn fill<T: Lane>(lanes: &mut [T]) {
            let Some(&first) = lanes.first() else { return };
            lanes.fill(first);
        }
        match bank {
            Bank::Int => fill::<i64>(self.get_mut(reg, n)),
            Bank::F32 => fill::<f32>(self.get_mut(reg, n)),
            Bank::F64 => fill::<f64>(self.get_mut(reg, n)),
        }
    }
}

/// Returns the first `n` lanes of a register.
///
/// # Safety
/// `start` is that of a file with that register, n <= LANES, and the register is not written while
/// the slice is in use.
unsafe fn lanes<'a, T: Lane>(start: *const Slot, reg: Reg, n: usize) -> &'a [T] {
    // SAFETY: a slot holds LANES numbers of 8 bytes, aligned; all bit patterns are valid.
    unsafe { std::slice::from_raw_parts(start.add(reg as usize).cast(), n) }
}

/// Returns the first `n` lanes of a register for writing.
///
/// # Safety
/// As for `lanes`, and the register is not read meanwhile.
unsafe fn set<'a, T: Lane>(start: *mut Slot, reg: Reg, n: usize) -> &'a mut [T] {
    // SAFETY: as in `lanes`.
    unsafe { std::slice::from_raw_parts_mut(start.add(reg as usize).cast(), n) }
}

// Separate functions, so that the compiler infers from the references that lanes do not overlap.
#[inline]
fn each1<A: Lane, T: Lane>(o: &mut [T], a: &[A], f: impl Fn(A) -> T) {
    for (o, &a) in o.iter_mut().zip(a) {
        *o = f(a);
    }
}
#[inline]
fn each2<A: Lane, T: Lane>(o: &mut [T], a: &[A], b: &[A], f: impl Fn(A, A) -> T) {
    for ((o, &a), &b) in o.iter_mut().zip(a).zip(b) {
        *o = f(a, b);
    }
}
#[inline]
fn each3<A: Lane, T: Lane>(o: &mut [T], a: &[A], b: &[T], c: &[T], f: impl Fn(A, T, T) -> T) {
    for (((o, &a), &b), &c) in o.iter_mut().zip(a).zip(b).zip(c) {
        *o = f(a, b, c);
    }
}

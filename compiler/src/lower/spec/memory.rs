//! Checks accesses to memory and stages: a nest writes its own buffer, wide accesses are aligned,
//! and copies, ring buffers, carried loads and prefetches are well formed.

use super::error::Checked;
use super::{COPIES, Checker, Scope, nodes};
use crate::lower::legalise::loads::{is_multiple, offset};
use crate::lower::linear_ir::{Addition, Prefetch, SpanPrefetch, Update};
use crate::lower::sync::shared_memory_reduce::is_meeting;
use gristmill_uop::fragment::Fragment;
use gristmill_uop::{Arg, Id, Op, RangeKind, Scalar};

/// Bytes of wide loads.
const WIDE_LOADS: [usize; 2] = [8, 16];
/// Bytes of wide writes; narrow values may also fill a 32-bit register.
const WIDE_WRITES: [usize; 3] = [4, 8, 16];
/// Bytes of a register; each part of a wide load is within one.
const BYTES_OF_WORD: usize = 4;

impl Checker<'_> {
    /// Checks the destination of a write in a nest.
    fn place(&mut self, buffer: Id, at: Id) -> Checked {
        let own = self.nest.as_ref().is_some_and(|n| n.buffer == buffer);
        // Also allowed: stages in a shared loop, and stages of cross-thread reductions.
        let filled = self.g[buffer].op == Op::Local && self.shared_loop().is_some();
        self.hold(
            own || filled || is_meeting(self.g, buffer),
            "a nest writes its own buffer",
            buffer,
        )?;
        self.hold(
            nodes::is_offset(self.g, at),
            "an offset is an i64 or i32",
            at,
        )?;
        if own && let Some(nest) = &mut self.nest {
            nest.written = true;
        } else {
            self.filled.insert(buffer);
        }
        self.value(at, buffer)
    }
    pub(super) fn write(&mut self, buffer: Id, at: Id, value: Id) -> Checked {
        self.place(buffer, at)?;
        let g = self.g;
        let fits = matches!(g[buffer].arg, Arg::Packed(..)) || g.scalar(value) == g.scalar(buffer);
        let fits = fits || self.is_word(value, buffer) && self.aligned(buffer, at, BYTES_OF_WORD);
        let lanes = self.threads.is_empty() || g[value].dtype.lanes == 1;
        self.hold(
            fits && lanes,
            "a written value has the buffer's type or is a word of its elements",
            value,
        )?;
        self.value(value, buffer)
    }
    pub(super) fn add(&mut self, a: &Addition) -> Checked {
        self.place(a.buffer, a.at)?;
        let (g, of) = (self.g, self.g.scalar(a.buffer));
        let memory = g[a.buffer].op == Op::Param && !matches!(g[a.buffer].arg, Arg::Packed(..));
        let number = matches!(of, Scalar::F32 | Scalar::F16 | Scalar::I32);
        self.hold(
            memory && number,
            "the target of an addition is f32, f16 or i32 in memory",
            a.buffer,
        )?;
        let pair = || of == Scalar::F16 && a.atomic && self.aligned(a.buffer, a.at, BYTES_OF_WORD);
        let fits = a.values.len() == 1 || a.values.len() == 2 && pair();
        self.hold(
            fits,
            "an addition has one value, or the two f16 values of a word",
            a.at,
        )?;
        for &value in &a.values {
            let alone = a.values.len() == 1 && self.threads.is_empty() || g[value].dtype.lanes == 1;
            self.hold(
                alone && g.scalar(value) == of,
                "an added value has the buffer's type",
                value,
            )?;
            self.value(value, a.buffer)?;
        }
        if let Some(when) = a.when {
            self.hold(
                g[when].dtype == Scalar::Bool.one(),
                "the condition of an addition is a boolean",
                when,
            )?;
            self.value(when, a.buffer)?;
        }
        self.hold(
            a.atomic || self.in_a_loop(),
            "an addition outside a reduction loop is atomic",
            a.at,
        )
    }
    pub(super) fn update(&mut self, u: &Update) -> Checked {
        self.place(u.buffer, u.at)?;
        let (g, n) = (self.g, &self.g[u.old]);
        let word = n.op == Op::Load
            && n.src[..] == [u.buffer, u.at]
            && n.dtype.scalar.bytes() == BYTES_OF_WORD;
        let word = word && n.dtype.lanes == 1 && self.aligned(u.buffer, u.at, BYTES_OF_WORD);
        self.hold(
            word,
            "an update has a load of the aligned word that it replaces",
            u.old,
        )?;
        if let Some(rule) = nodes::broken(g, n, &self.threads) {
            return Err(self.error(rule, u.old));
        }
        if let Some(when) = u.when {
            self.hold(
                g[when].dtype == Scalar::Bool.one(),
                "the condition of an update is a boolean",
                when,
            )?;
            self.value(when, u.buffer)?;
        }
        self.scopes.push(Scope::default());
        self.defined(u.old)?;
        u.values.iter().try_for_each(|&value| self.define(value))?;
        self.scopes.pop();
        let kept = u.result() != u.old && g[u.result()].dtype == n.dtype;
        self.hold(
            kept,
            "the result of an update is a new value of the word's type",
            u.result(),
        )?;
        self.hold(
            u.atomic || self.in_a_loop(),
            "an update outside a reduction loop is atomic",
            u.at,
        )
    }
    /// Returns whether the statement is in a reduction loop, where one thread's
    /// iterations run in order.
    fn in_a_loop(&self) -> bool {
        self.scopes
            .iter()
            .filter_map(|s| s.range)
            .any(|r| self.g.range_kind(r) == Some(RangeKind::Reduce))
    }
    /// Returns whether a value is a word of several narrow elements of a buffer, or half of
    /// a 64-bit one.
    fn is_word(&self, value: Id, buffer: Id) -> bool {
        let bytes = self.g.scalar(buffer).bytes();
        self.g[value].dtype == Scalar::U32.one()
            && (bytes < BYTES_OF_WORD || bytes == 2 * BYTES_OF_WORD)
    }
    pub(super) fn write_tile(&mut self, buffer: Id, at: Id, stride: i64, value: Id) -> Checked {
        self.place(buffer, at)?;
        let of =
            Fragment::of_sums(self.g[value].dtype).filter(|of| of.sum == self.g.scalar(buffer));
        self.hold(
            of.is_some_and(|of| stride >= of.columns),
            "a written tile has the buffer's type and rows that do not overlap",
            value,
        )?;
        self.value(value, buffer)
    }
    /// Returns whether the address is a multiple of `bytes` for all values of its indices.
    fn aligned(&self, buffer: Id, at: Id, bytes: usize) -> bool {
        is_multiple(self.g, at, self.g.unit_bytes(buffer), bytes as i64)
    }
    pub(super) fn wide(
        &mut self,
        buffer: Id,
        at: Id,
        bytes: usize,
        parts: &[(Id, usize)],
    ) -> Checked {
        let g = self.g;
        let aligned = WIDE_LOADS.contains(&bytes) && self.aligned(buffer, at, bytes);
        self.hold(
            aligned,
            "a wide load has 8 or 16 bytes and is aligned to its size",
            at,
        )?;
        self.value(at, buffer)?;
        let (base, unit) = (offset(g, at), g.unit_bytes(buffer));
        for &(load, byte) in parts {
            let n = &g[load];
            let here = n.op == Op::Load && n.src[0] == buffer && {
                let own = offset(g, n.src[1]);
                own.terms == base.terms && (own.constant - base.constant) * unit == byte as i64
            };
            self.hold(
                here,
                "a part of a wide load loads from its buffer at its byte",
                load,
            )?;
            let size = n.dtype.scalar.bytes();
            let inside = n.dtype.lanes == 1
                && byte + size <= bytes
                && byte % BYTES_OF_WORD + size <= BYTES_OF_WORD;
            self.hold(
                inside,
                "a part of a wide load lies within one of its words",
                load,
            )?;
            if let Some(rule) = nodes::broken(g, n, &self.threads) {
                return Err(self.error(rule, load));
            }
            self.readable(buffer, load)?;
            self.defined(load)?;
        }
        Ok(())
    }
    pub(super) fn async_copy(
        &mut self,
        [to, at]: [Id; 2],
        [from, offset]: [Id; 2],
        bytes: usize,
        when: Option<Id>,
    ) -> Checked {
        let of = self.g[to].op == Op::Local && self.g[from].op == Op::Param;
        self.hold(of, "an asynchronous copy goes from memory to a stage", to)?;
        if self.is_ring(to) {
            self.value(at, to)?;
        } else {
            self.place(to, at)?;
        }
        self.filled.insert(to);
        self.value(offset, from)?;
        for n in when
            .map(|when| self.g.toposort(&[when]))
            .unwrap_or_default()
        {
            let known = self.g[n].op != Op::Range || self.is_open(n);
            let read = matches!(self.g[n].op, Op::Load | Op::Reduce | Op::Fold | Op::Acc);
            self.hold(
                known && !read,
                "the condition of a copy is known at the copy",
                n,
            )?;
        }
        let aligned =
            bytes == COPIES && self.aligned(to, at, bytes) && self.aligned(from, offset, bytes);
        self.hold(
            aligned,
            "an asynchronous copy has 16 bytes and is aligned to its size",
            to,
        )
    }
    /// Returns whether a buffer of the body is filled by copies alone.
    fn is_ring(&self, buffer: Id) -> bool {
        self.code.locals.contains(&buffer) && self.nest.as_ref().is_some_and(|n| n.buffer != buffer)
    }
    pub(super) fn copied(
        &mut self,
        ring: Id,
        at: Id,
        bytes: usize,
        parts: &[(Id, usize)],
    ) -> Checked {
        let g = self.g;
        self.hold(
            self.is_ring(ring),
            "copied data is read from a ring buffer",
            ring,
        )?;
        self.value(at, ring)?;
        let aligned = bytes == COPIES && self.aligned(ring, at, bytes);
        self.hold(
            aligned,
            "copied data is read in aligned units of 16 bytes",
            at,
        )?;
        for &(load, byte) in parts {
            let n = &g[load];
            let far = n.op == Op::Load && g[n.src[0]].op == Op::Param && n.dtype.lanes == 1;
            let inside =
                byte % BYTES_OF_WORD + n.dtype.scalar.bytes() <= BYTES_OF_WORD && byte < bytes;
            self.hold(
                far && inside,
                "a part of a copy is a load from memory within one word",
                load,
            )?;
            self.defined(load)?;
        }
        Ok(())
    }
    pub(super) fn carried(&mut self, load: Id, first: Id) -> Checked {
        self.value(first, load)?;
        let fits = self.g[load].dtype == self.g[first].dtype;
        self.hold(fits, "a loop-carried value has its load's type", load)?;
        self.carried.insert(load);
        self.defined(load)
    }
    pub(super) fn carry(&mut self, load: Id, next: Id) -> Checked {
        self.value(next, load)?;
        let fits = self.carried.contains(&load) && self.g[load].dtype == self.g[next].dtype;
        self.hold(fits, "a loop-carried value has its load's type", load)
    }
    /// Checks an index expression of workgroup indices and `others` that no statement defines.
    fn expression(&self, id: Id, others: &[Id], loads: bool) -> Checked {
        let g = self.g;
        let known = g
            .free_ranges(id)
            .iter()
            .all(|r| self.code.globals.contains(r) || others.contains(r));
        self.hold(
            known,
            "the address of a prefetch is known at the prefetch",
            id,
        )?;
        for n in g.toposort(&[id]) {
            match g[n].op {
                Op::Load if loads && g[g[n].src[0]].op == Op::Local => {
                    self.readable(g[n].src[0], n)?
                }
                Op::Load | Op::Reduce | Op::Fold | Op::Acc => {
                    return Err(self.error("the address of a prefetch is known at the prefetch", n));
                }
                _ => {}
            }
        }
        Ok(())
    }
    pub(super) fn span(&self, span: &SpanPrefetch) -> Checked {
        self.hold(
            self.nest.is_none(),
            "a span is prefetched outside nests",
            span.buffer,
        )?;
        let memory = self.g[span.buffer].op == Op::Param && span.bytes > 0;
        self.hold(memory, "the source of a prefetch is memory", span.buffer)?;
        span.terms
            .iter()
            .try_for_each(|t| self.expression(t.0, &span.loops, true))
    }
    pub(super) fn prefetch(&mut self, p: &Prefetch) -> Checked {
        match p {
            Prefetch::Line {
                at: [buffer, at], ..
            } => {
                self.hold(
                    self.g[*buffer].op == Op::Param,
                    "the source of a prefetch is memory",
                    *buffer,
                )?;
                self.value(*at, *buffer)
            }
            Prefetch::Tile(tile) => {
                let memory = self.g[tile.buffer].op == Op::Param && tile.line * tile.lines > 0;
                self.hold(memory, "the source of a prefetch is memory", tile.buffer)?;
                for &r in &tile.turn {
                    self.hold(self.is_open(r), "a range is open where it is used", r)?;
                }
                tile.terms
                    .iter()
                    .try_for_each(|t| self.expression(t.0, &[], false))
            }
            Prefetch::Span(span) => self.span(span),
        }
    }
    pub(super) fn wide_write(
        &mut self,
        buffer: Id,
        at: Id,
        bytes: usize,
        values: &[Id],
    ) -> Checked {
        let g = self.g;
        self.place(buffer, at)?;
        let aligned = WIDE_WRITES.contains(&bytes) && self.aligned(buffer, at, bytes);
        self.hold(
            aligned,
            "a wide write has 4, 8 or 16 bytes and is aligned to its size",
            at,
        )?;
        let fill = values.iter().map(|&v| g.scalar(v).bytes()).sum::<usize>() == bytes;
        self.hold(fill, "the values of a wide write fill it", buffer)?;
        for &value in values {
            let fits = g[value].dtype == g.scalar(buffer).one() || self.is_word(value, buffer);
            self.hold(
                fits,
                "a wide write's value has the buffer's type or is a word of its elements",
                value,
            )?;
            self.value(value, buffer)?;
        }
        Ok(())
    }
}

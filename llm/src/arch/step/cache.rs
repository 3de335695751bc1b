//! Token positions and the KV cache within a step. Only this module distinguishes tokens of one
//! sequence from tokens of several, and contiguous from paged caches. RoPE, cache writes and
//! attention follow from that.
//!
//! A contiguous step reads a sequence whose pages are adjacent in the pool, without a block table;
//! the variable `first_page` is the first of them. Rows after the last token are read with weight
//! 0, so the runtime clears pages that may hold NaN or infinity before such a step.
//!
//! Any other step reads pages through a block table. Masked positions after a token are mapped to
//! the token's own row, so that no row of another sequence is multiplied, not even by 0.
//!
//! Sliding-window layers have a page pool and a block table of their own ([`super::super::Pools`]).
//! A contiguous step reads that pool as one ring buffer whose blocks are shifted by `window_shift`.
//! In other steps positions before a window are mapped to its first row.

use super::super::cache::{CacheType, Component};
use super::super::plan::{Bind, Options, StepKind};
use super::StepFunction;
use super::attention_mask::AttentionMask;
use super::views::Views;
use gristmill_tensor::dims;
use gristmill_tensor::tensor::{Dim, PagedRows, Tensor};
use gristmill_uop::Id;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::rows::group_of;
use std::cell::Cell;

/// One cache buffer of a layer.
struct CacheRows<'n> {
    bind: Bind,
    name: &'n str,
    width: usize,
    scalar: Scalar,
    window: Option<usize>,
}

/// Rank of keys and values with a single axis of positions: position, head, depth.
const FLAT_RANK: usize = 3;

impl StepFunction<'_> {
    /// Returns the cosines and sines `[n, dims/2, 2]` of the tokens from RoPE table `table`. Call
    /// at most once per table.
    pub fn rope(&self, table: usize, dims: usize) -> Tensor<'_> {
        let name = if table == 0 {
            "rope".to_string()
        } else {
            format!("rope{table}")
        };
        let all = self.input(
            &name,
            Bind::Rope(table),
            dims![self.options.rows, dims / 2, 2],
            Scalar::F32,
        );
        if self.is_ahead {
            let before = match self.is_batch() {
                true => self.each_position().cast(Scalar::I64),
                false => self.positions(),
            };
            return all.gather((before + 1).clamp_index(self.options.rows - 1));
        }
        match self.options.tokens {
            StepKind::BatchedDecode { .. } => all.gather(self.paged_rows(None).positions()),
            StepKind::Mixed { .. } => {
                all.gather(self.each_position().clamp_index(self.options.rows - 1))
            }
            StepKind::Train { packed: true, .. } => {
                all.gather(self.each_position().clamp_index(self.options.rows - 1))
            }
            StepKind::Train {
                sequences, length, ..
            } => {
                let each = dims![sequences, length, dims / 2, 2];
                all.unsqueeze(0)
                    .expand(each)
                    .reshape(dims![sequences * length, dims / 2, 2])
            }
            _ => all.slice(0, self.position(), self.tokens()),
        }
    }
    /// Returns the mean row `[1, dims/2, 2]` of RoPE table `table`. Call at most once per function.
    pub fn mean_rope(&self, table: usize, dims: usize) -> Tensor<'_> {
        let dims = dims![1, dims / 2, 2];
        self.input("mean_rope", Bind::RopeMean(table), dims, Scalar::F32)
    }
    /// Returns the cached rows visible to the tokens of a full-attention layer, as
    /// [`StepFunction::cached`] returned them. `[positions, ..]` for one sequence,
    /// `[pages, page, ..]` for a pool.
    pub fn visible<'g>(&'g self, cache: Views<Tensor<'g>>) -> Views<Tensor<'g>> {
        Views {
            piece: cache
                .piece
                .map(|rows| rows.slice(0, 0, self.position() + self.chunk_tokens())),
            pool: cache.pool.map(|rows| self.paged_rows(None).in_pages(rows)),
        }
    }
    /// Computes attention of queries `[n, heads, d]`, given as the parts `q` along `d`, to the
    /// cached keys and values `[rows, kv heads, ..]`, or to the rows of [`StepFunction::visible`].
    ///
    /// In a mixed batch the chunk's last token is also attended to with the decode tokens, so that
    /// the paged part is never empty; that result is discarded.
    pub fn attention<'g>(
        &'g self,
        q: &[Tensor<'g>],
        [k, v]: [Views<Tensor<'g>>; 2],
        of: AttentionMask<'g>,
    ) -> Tensor<'g> {
        let both = k.zip(v);
        let n = self.chunk_tokens();
        // Each part is sliced and rounded before the concatenation, so that the compiler sees f16
        // operands.
        let queries = |cut: &dyn Fn(Tensor<'g>) -> Tensor<'g>| {
            let parts = q
                .iter()
                .map(|&q| self.round_to_cache(if self.is_mixed() { cut(q) } else { q }));
            Tensor::cat(&parts.collect::<Vec<_>>(), 2)
        };
        if let (StepKind::Train { .. }, Some(rows)) = (self.options.tokens, both.piece) {
            return self.training_attention(queries(&|q| q), rows.into(), of);
        }
        let of_piece = both.piece.map(|(k, v)| {
            let (q, pos) = (queries(&|q| q.slice(0, 0, n)), self.position());
            q.attention_within([k, v], [pos, pos + n], of.scores, of.window, of.sinks)
        });
        let of_others = both.pool.map(|(k, v)| {
            let (q, at) = (
                queries(&|q| self.gather_last(q)),
                self.paged_rows(of.window),
            );
            let in_pages = |x: Tensor<'g>| {
                if x.rank() > FLAT_RANK {
                    x
                } else {
                    at.in_pages(x)
                }
            };
            q.paged_attention([k, v].map(in_pages), &at, of.scores, of.window, of.sinks)
        });
        match (of_piece, of_others) {
            (Some(piece), Some(others)) => self.join_rows(piece, others),
            (one, other) => one.or(other).expect("tokens see the cache in some way"),
        }
    }
    /// Joins rows `[n, ..]` of the chunk and of the decode tokens. The first row of `others`
    /// repeats the chunk's last and is dropped.
    fn join_rows<'g>(&'g self, piece: Tensor<'g>, others: Tensor<'g>) -> Tensor<'g> {
        let (n, first) = (self.tokens(), self.chunk_tokens());
        // Uses two gathers and a select, because a part of a concatenation could be empty.
        let row = self.capture.iota(dims![n], 0).cast(Scalar::I64);
        let of_piece = piece.gather(row.minimum(first - 1));
        let of_others = others.gather((row - first + 1).maximum(0));
        let mut dims: Vec<Dim> = vec![Dim::from(n)];
        dims.resize(piece.rank(), Dim::Size(1));
        row.lt(first).reshape(&dims).select(of_piece, of_others)
    }
    /// Writes `row [n, width]` into the cache component whose first buffer has index `plane`,
    /// at the tokens' positions.
    ///
    /// Returns the updated cache in f32, `[rows, width]`: the sequence's rows, the whole pool for
    /// several sequences, or both. Also returns the buffer index of the next component.
    pub fn cached<'g>(
        &'g self,
        layer: usize,
        plane: usize,
        c: Component,
        row: Tensor<'g>,
    ) -> (Views<Tensor<'g>>, usize) {
        if self.is_training() {
            let own = Views {
                piece: Some(row),
                pool: None,
            };
            return (own, plane + 1);
        }
        let cache = self.options.cache;
        let cache = cache.stored_for(&c);
        let (stored, _) = cache.stored();
        let values = match cache {
            CacheType::F32 | CacheType::F16 => vec![row.cast(stored)],
            CacheType::Fp8 => vec![row.encode_e4m3()],
            CacheType::Int8 | CacheType::Int4 => {
                let (codes, scales) = match cache {
                    CacheType::Int4 => row.encode_rows4(group_of(c.width)),
                    _ => row.encode_rows(group_of(c.width)),
                };
                vec![codes.cast(stored), scales.cast(Scalar::F16)]
            }
        };
        self.component(layer, plane, c, &values)
    }
    /// Returns the current rows of a component of an earlier layer's cache, like
    /// [`StepFunction::cached`] without a write.
    pub fn cache(&self, layer: usize, plane: usize, c: Component) -> (Views<Tensor<'_>>, usize) {
        self.component(layer, plane, c, &[])
    }
    /// Rounds `x` to f16 and back to f32 if the cache is f16. The relative error, at most 2⁻¹¹, is
    /// that of cached rows.
    pub(super) fn round_to_cache<'g>(&'g self, x: Tensor<'g>) -> Tensor<'g> {
        if self.options.cache == CacheType::F16 {
            x.cast(Scalar::F16).cast(Scalar::F32)
        } else {
            x
        }
    }

    /// Returns a cache component after `values`, if any, are written into its buffers.
    fn component<'g>(
        &'g self,
        layer: usize,
        plane: usize,
        c: Component,
        values: &[Tensor<'g>],
    ) -> (Views<Tensor<'g>>, usize) {
        let (cache, group) = (self.options.cache.stored_for(&c), group_of(c.width));
        let (scalar, packed) = cache.stored();
        let window = c.window;
        let numbers = CacheRows {
            bind: Bind::State(layer, plane),
            name: c.name,
            width: c.width / packed,
            scalar,
            window,
        };
        let numbers = self.write_rows(numbers, values.first().copied());
        if !cache.has_scales() {
            let decoded = |rows: Tensor<'g>| match cache {
                CacheType::Fp8 => rows.decode_e4m3(),
                _ => rows.cast(Scalar::F32),
            };
            return (numbers.map(decoded), plane + 1);
        }
        let (bind, width) = (Bind::State(layer, plane + 1), c.width / group);
        let scales = CacheRows {
            bind,
            name: "scales",
            width,
            scalar: Scalar::F16,
            window,
        };
        let scales = self.write_rows(scales, values.get(1).copied());
        (
            numbers.zip(scales).map(|(rows, scales)| match cache {
                CacheType::Int4 => rows.decode_rows4(scales, group),
                _ => rows.decode_rows(scales, group),
            }),
            plane + 2,
        )
    }
    /// Returns the rows of a buffer, `[rows, width]`, after `value` is written to it.
    fn write_rows<'g>(&'g self, of: CacheRows, value: Option<Tensor<'g>>) -> Views<Tensor<'g>> {
        let rows = self.pool_rows(of.window);
        let mut state = self.bound(
            of.bind,
            self.capture
                .state(of.name, dims![rows, of.width], of.scalar),
        );
        let (contiguous, windowed) = (self.options.contiguous, self.windowed(of.window));
        if let Some(value) = value {
            state = match (contiguous, windowed) {
                (false, _) => state.scatter(value, self.slots(of.window)),
                (true, true) => state.scatter(value, self.ring_rows(self.positions())),
                (true, false) => state.assign(value, self.first_row() + self.position()),
            };
            self.capture.output_state(state);
        }
        let of_piece = || match (contiguous, windowed) {
            (false, _) => state.gather(self.slots_before(of.window)),
            (true, true) => state.gather(self.ring_rows(self.all_positions())),
            (true, false) => state.slice(0, self.first_row(), self.options.rows),
        };
        let several = self.is_batch() || self.is_mixed();
        Views {
            piece: (!self.is_batch()).then(of_piece),
            pool: several.then_some(state),
        }
    }
    /// Returns the row of the sequence's first position in contiguous pages: the variable
    /// `first_page`.
    fn first_row(&self) -> Tensor<'_> {
        let most = self.options.pools.pages - self.blocks();
        self.variable("first_page", most) * Options::PAGE as i64
    }
    /// Returns the rows of positions in the pool of sliding-window pages, read as one ring buffer:
    /// the block of a position, shifted by the variable `window_shift`, modulo the pool's pages.
    fn ring_rows<'g>(&'g self, positions: Tensor<'g>) -> Tensor<'g> {
        let pages = self
            .options
            .pools
            .windows
            .expect("a windowed layer has a pool of its own");
        let shift = self.variable("window_shift", pages - 1) * Options::PAGE as i64;
        (positions + shift) % (pages * Options::PAGE) as i64
    }
    /// Returns a variable between 0 and `most`, or the constant 0 if `most` is 0.
    pub(super) fn variable(&self, name: &str, most: usize) -> Tensor<'_> {
        match most {
            0 => self.capture.int(0),
            most => self.capture.var(name, 0, most),
        }
    }
    /// Returns the position of each token of a single sequence.
    fn positions(&self) -> Tensor<'_> {
        self.capture.iota(dims![self.tokens()], 0).cast(Scalar::I64) + self.position()
    }
    /// Returns all positions that a sequence may have.
    fn all_positions(&self) -> Tensor<'_> {
        self.capture
            .iota(dims![self.options.rows], 0)
            .cast(Scalar::I64)
    }
    /// Returns the pool row of each token, in layers with that window.
    fn slots(&self, window: Option<usize>) -> Tensor<'_> {
        if self.is_mixed() {
            assert!(
                !self.windowed(window),
                "a step of a piece and tokens of others has rows of one pool alone"
            );
            let n = self.tokens();
            let slots = self.once(&self.slots, || {
                self.input("slots", Bind::Slots, dims![n], Scalar::I32)
            });
            return slots
                .clamp_index(self.pool_rows(window) - 1)
                .cast(Scalar::I64);
        }
        match self.is_batch() {
            true => self.paged_rows(window).slots(self.pages(window)),
            false => self.slots_at(self.positions(), window),
        }
    }
    /// Returns the pool row of every position of the sequence. Positions after the last token map
    /// to its row. With a window pool, positions before the first token's window map to the
    /// window's first row.
    fn slots_before(&self, window: Option<usize>) -> Tensor<'_> {
        let seen = self
            .all_positions()
            .minimum(self.position() + self.chunk_tokens() - 1);
        let first = window
            .filter(|_| self.windowed(window))
            .map(|window| self.position() + 1 - window as i64);
        self.slots_at(first.map_or(seen, |first| seen.maximum(first)), window)
    }
    fn slots_at<'g>(&'g self, positions: Tensor<'g>, window: Option<usize>) -> Tensor<'g> {
        let (name, bind, of) = match self.windowed(window) {
            false => ("pages", Bind::Pages, &self.own[0]),
            true => ("window_pages", Bind::WindowPages, &self.own[1]),
        };
        let table = self.once(of, || {
            self.input(name, bind, dims![self.blocks()], Scalar::I32)
        });
        table.slots_of(positions, [self.pages(window), Options::PAGE])
    }
    /// Returns true if layers with that window have a page pool of their own.
    fn windowed(&self, window: Option<usize>) -> bool {
        window.is_some() && self.options.pools.windows.is_some()
    }
    fn pages(&self, window: Option<usize>) -> usize {
        self.options.pools.pages_of(window)
    }
    fn pool_rows(&self, window: Option<usize>) -> usize {
        self.options.pool_rows(window)
    }
    /// Returns the position of each token in steps with several sequences.
    pub(super) fn each_position(&self) -> Tensor<'_> {
        let n = self.tokens();
        self.once(&self.positions, || {
            self.input("positions", Bind::Positions, dims![n], Scalar::I32)
        })
    }
    /// Returns positions and block tables of the last token of each sequence, in
    /// layers with that window.
    fn paged_rows(&self, window: Option<usize>) -> PagedRows<'_> {
        let (n, each) = (self.logit_rows(), self.each_position());
        let positions = if self.is_mixed() {
            self.gather_last(each)
        } else {
            each
        };
        let (name, bind, of) = match self.windowed(window) {
            false => ("table", Bind::Table, &self.tables[0]),
            true => ("window_table", Bind::WindowTable, &self.tables[1]),
        };
        let table = self.once(of, || {
            self.input(name, bind, dims![n, self.blocks()], Scalar::I32)
        });
        PagedRows {
            positions,
            length: self.capture.var("length", 1, self.options.rows),
            table,
            page: Options::PAGE,
        }
    }
    /// Returns the length of a block table in pages.
    fn blocks(&self) -> usize {
        self.options.blocks()
    }
    /// Returns the tensor cached in `made`, created by `make` on the first call.
    pub(super) fn once<'g>(
        &'g self,
        made: &Cell<Option<Id>>,
        make: impl FnOnce() -> Tensor<'g>,
    ) -> Tensor<'g> {
        let id = made.get().unwrap_or_else(|| make().id());
        made.set(Some(id));
        self.capture.tensor(id)
    }
}

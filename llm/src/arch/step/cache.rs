//! Where the tokens of a step stand: the one place that knows whether they are neighbours in one sequence or of several, and whether the cache is one sequence's or a
//! pool of pages. Rotations, what is written into the cache, and attention to it follow from that.
//!
//! A contiguous step reads a sequence whose pages are neighbours in the pool without a block table: `first_page` says where they begin. Rows behind the last token are read
//! with weight 0, so the runtime clears pages that may hold NaN or infinity before such a step.
//!
//! Any other step reads a sequence's pages by its block table. Positions behind the last token are read from its own row, so that no other sequence's row is multiplied, not even by 0.
//!
//! Sliding-window layers have a page pool of their own ([`super::super::Pools`]) with a block table of its own. A contiguous step reads that pool as one ring buffer whose blocks are
//! shifted by `window_shift`. In other steps positions before a window are read from its first row.

use super::super::cache::Component;
use super::super::plan::{Bind, Options, TokenClass};
use super::Step;
use super::sight::Sight;
use super::views::Views;
use gristmill_tensor::dims;
use gristmill_tensor::tensor::{Dim, PagedRows, Tensor};
use gristmill_uop::Id;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::rows::group_of;
use std::cell::Cell;

/// A buffer of a cache, for one layer.
struct Rows<'n> {
    bind: Bind,
    name: &'n str,
    width: usize,
    scalar: Scalar,
    window: Option<usize>,
}

/// Axes of keys and values whose positions are one axis: position, head, depth.
const ROWS_OF_HEADS: usize = 3;

impl Step<'_> {
    /// The rotations of these tokens, `[n, dims/2, 2]`, of the model's table of that number. At most one call for each.
    pub fn rope(&self, table: usize, dims: usize) -> Tensor<'_> {
        let name = if table == 0 { "rope".to_string() } else { format!("rope{table}") };
        let all = self.input(&name, Bind::Rope(table), dims![self.options.rows, dims / 2, 2], Scalar::F32);
        match self.options.tokens {
            TokenClass::Batch { .. } => all.gather(self.of_sequences(None).positions()),
            TokenClass::Mixed { .. } => all.gather(self.each_position().clamp_index(self.options.rows - 1)),
            _ => all.slice(0, self.position(), self.tokens()),
        }
    }
    /// What the cache of a layer without a window holds, as [`Step::cached`] has it, at the positions that these tokens may see: `[positions, ..]` of one sequence, of a pool by its pages `[pages, page, ..]`.
    pub fn seen<'g>(&'g self, cache: Views<Tensor<'g>>) -> Views<Tensor<'g>> {
        Views {
            piece: cache.piece.map(|rows| rows.slice(0, 0, self.position() + self.piece())),
            pool: cache.pool.map(|rows| self.of_sequences(None).in_pages(rows)),
        }
    }
    /// Attention of queries `[n, heads, d]`, which are these parts beside one another, to keys and values `[rows, kv heads, ..]`, as the cache holds them, or as [`Step::seen`] has its rows.
    ///
    /// Beside a piece of one sequence other sequences have a token each, and the piece's last is attended to with them once more, so that there is always one: what it comes to that way is read by nobody.
    pub fn attention<'g>(&'g self, q: &[Tensor<'g>], [k, v]: [Views<Tensor<'g>>; 2], of: Sight<'g>) -> Tensor<'g> {
        let both = k.zip(v);
        let n = self.piece();
        // Parts are cut and rounded before they are joined, so that halves are seen to be halves.
        let queries = |cut: &dyn Fn(Tensor<'g>) -> Tensor<'g>| {
            let parts = q.iter().map(|&q| self.as_cached(if self.is_mixed() { cut(q) } else { q }));
            Tensor::cat(&parts.collect::<Vec<_>>(), 2)
        };
        let of_piece = both.piece.map(|(k, v)| {
            let (q, pos) = (queries(&|q| q.slice(0, 0, n)), self.position());
            q.attention_within([k, v], [pos, pos + n], of.scores, of.window, of.sinks)
        });
        let of_others = both.pool.map(|(k, v)| {
            let (q, at) = (queries(&|q| self.of_ends(q)), self.of_sequences(of.window));
            let in_pages = |x: Tensor<'g>| if x.rank() > ROWS_OF_HEADS { x } else { at.in_pages(x) };
            q.paged_attention([k, v].map(in_pages), &at, of.scores, of.window, of.sinks)
        });
        match (of_piece, of_others) {
            (Some(piece), Some(others)) => self.joined(piece, others),
            (one, other) => one.or(other).expect("tokens see the cache in some way"),
        }
    }
    /// Rows `[n, ..]`: those of a piece, and behind them those of the others, of which the first is the piece's last once more.
    fn joined<'g>(&'g self, piece: Tensor<'g>, others: Tensor<'g>) -> Tensor<'g> {
        let (n, first) = (self.tokens(), self.piece());
        // Neither is ever of no rows, as a part of what is joined might be.
        let row = self.capture.iota(dims![n], 0).cast(Scalar::I64);
        let of_piece = piece.gather(row.minimum(first - 1));
        let of_others = others.gather((row - first + 1).maximum(0));
        let mut dims: Vec<Dim> = vec![Dim::from(n)];
        dims.resize(piece.rank(), Dim::Size(1));
        row.lt(first).reshape(&dims).select(of_piece, of_others)
    }
    /// Writes `row [n, width]` into a component of a layer's cache whose buffers begin with number `plane`, at the positions of these tokens. Returns what the cache
    /// then holds, in f32: `[rows, width]`, all of the pool for tokens of several sequences, those of one for its own; and the number of the next component's first buffer.
    pub fn cached<'g>(
        &'g self,
        layer: usize,
        plane: usize,
        c: Component,
        row: Tensor<'g>,
    ) -> (Views<Tensor<'g>>, usize) {
        let cache = self.options.cache;
        let values = match cache.is_float() {
            true => vec![row.cast(cache)],
            false => {
                let (bytes, scales) = row.encode_rows(group_of(c.width));
                vec![bytes.cast(cache), scales.cast(Scalar::F16)]
            }
        };
        self.component(layer, plane, c, &values)
    }
    /// What a component of a layer's cache holds by now, as [`Step::cached`] returns it: for whoever reads another layer's. `layer` comes before it.
    pub fn cache(&self, layer: usize, plane: usize, c: Component) -> (Views<Tensor<'_>>, usize) {
        self.component(layer, plane, c, &[])
    }
    /// What meets a cache of halves, rounded to halves, in f32: 2⁻¹² of a value, as much as the cache's rows were rounded by.
    fn as_cached<'g>(&'g self, x: Tensor<'g>) -> Tensor<'g> {
        if self.options.cache == Scalar::F16 { x.cast(Scalar::F16).cast(Scalar::F32) } else { x }
    }

    /// A component of a layer's cache, once these `values` are written into its buffers, if there are any.
    fn component<'g>(
        &'g self,
        layer: usize,
        plane: usize,
        c: Component,
        values: &[Tensor<'g>],
    ) -> (Views<Tensor<'g>>, usize) {
        let (cache, group) = (self.options.cache, group_of(c.width));
        let window = c.window;
        let numbers = Rows { bind: Bind::State(layer, plane), name: c.name, width: c.width, scalar: cache, window };
        let numbers = self.rows_of(numbers, values.first().copied());
        if cache.is_float() {
            return (numbers.map(|rows| rows.cast(Scalar::F32)), plane + 1);
        }
        let (bind, width) = (Bind::State(layer, plane + 1), c.width / group);
        let scales = Rows { bind, name: "scales", width, scalar: Scalar::F16, window };
        let scales = self.rows_of(scales, values.get(1).copied());
        (numbers.zip(scales).map(|(rows, scales)| rows.decode_rows(scales, group)), plane + 2)
    }
    /// The rows of a buffer, `[rows, width]`, once `value` is written there.
    fn rows_of<'g>(&'g self, of: Rows, value: Option<Tensor<'g>>) -> Views<Tensor<'g>> {
        let rows = self.pool_rows(of.window);
        let mut state = self.bound(of.bind, self.capture.state(of.name, dims![rows, of.width], of.scalar));
        let (contiguous, windowed) = (self.options.contiguous, self.windowed(of.window));
        if let Some(value) = value {
            state = match (contiguous, windowed) {
                (false, _) => state.scatter(value, self.slots(of.window)),
                (true, true) => state.scatter(value, self.in_ring(self.positions())),
                (true, false) => state.assign(value, self.first_row() + self.position()),
            };
            self.capture.output_state(state);
        }
        let of_piece = || match (contiguous, windowed) {
            (false, _) => state.gather(self.slots_before(of.window)),
            (true, true) => state.gather(self.in_ring(self.all_positions())),
            (true, false) => state.slice(0, self.first_row(), self.options.rows),
        };
        let several = self.is_batch() || self.is_mixed();
        Views { piece: (!self.is_batch()).then(of_piece), pool: several.then_some(state) }
    }
    /// The row of the sequence's first position in contiguous pages: the variable `first_page`.
    fn first_row(&self) -> Tensor<'_> {
        let most = self.options.pools.pages - self.blocks();
        self.variable("first_page", most) * Options::PAGE as i64
    }
    /// Rows of positions in the pool of sliding-window pages, read as one ring buffer: the block of
    /// a position, shifted by the variable `window_shift`, modulo the pool's pages.
    fn in_ring<'g>(&'g self, positions: Tensor<'g>) -> Tensor<'g> {
        let pages = self.options.pools.windows.expect("a windowed layer has a pool of its own");
        let shift = self.variable("window_shift", pages - 1) * Options::PAGE as i64;
        (positions + shift) % (pages * Options::PAGE) as i64
    }
    /// A variable of contiguous steps between 0 and `most`; the constant where there is one value.
    pub(super) fn variable(&self, name: &str, most: usize) -> Tensor<'_> {
        match most {
            0 => self.capture.int(0),
            most => self.capture.var(name, 0, most),
        }
    }
    /// The position of each of these tokens, which are of one sequence.
    fn positions(&self) -> Tensor<'_> {
        self.capture.iota(dims![self.tokens()], 0).cast(Scalar::I64) + self.position()
    }
    /// Every position that the sequence may have.
    fn all_positions(&self) -> Tensor<'_> {
        self.capture.iota(dims![self.options.rows], 0).cast(Scalar::I64)
    }
    /// The row of the pool for each of these tokens, in layers of that window.
    fn slots(&self, window: Option<usize>) -> Tensor<'_> {
        if self.is_mixed() {
            assert!(!self.windowed(window), "a step of a piece and tokens of others has rows of one pool alone");
            let n = self.tokens();
            let slots = self.once(&self.slots, || self.input("slots", Bind::Slots, dims![n], Scalar::I32));
            return slots.clamp_index(self.pool_rows(window) - 1).cast(Scalar::I64);
        }
        match self.is_batch() {
            true => self.of_sequences(window).slots(self.pages(window)),
            false => self.slots_at(self.positions(), window),
        }
    }
    /// The row of the pool for each position that the sequence may have, of those behind the last token that of the last token, and of those before the first token's
    /// window, where that has a pool of its own, the first of these.
    fn slots_before(&self, window: Option<usize>) -> Tensor<'_> {
        let seen = self.all_positions().minimum(self.position() + self.piece() - 1);
        let first = window.filter(|_| self.windowed(window)).map(|window| self.position() + 1 - window as i64);
        self.slots_at(first.map_or(seen, |first| seen.maximum(first)), window)
    }
    fn slots_at<'g>(&'g self, positions: Tensor<'g>, window: Option<usize>) -> Tensor<'g> {
        let (name, bind, of) = match self.windowed(window) {
            false => ("pages", Bind::Pages, &self.own[0]),
            true => ("window_pages", Bind::WindowPages, &self.own[1]),
        };
        let table = self.once(of, || self.input(name, bind, dims![self.blocks()], Scalar::I32));
        table.slots_of(positions, [self.pages(window), Options::PAGE])
    }
    /// Do layers of that window have a page pool of their own?
    fn windowed(&self, window: Option<usize>) -> bool {
        window.is_some() && self.options.pools.windows.is_some()
    }
    fn pages(&self, window: Option<usize>) -> usize {
        self.options.pools.pages_of(window)
    }
    fn pool_rows(&self, window: Option<usize>) -> usize {
        self.options.pool_rows(window)
    }
    /// The position of each token, where not all are of one sequence.
    pub(super) fn each_position(&self) -> Tensor<'_> {
        let n = self.tokens();
        self.once(&self.positions, || self.input("positions", Bind::Positions, dims![n], Scalar::I32))
    }
    /// Where the last tokens of several sequences stand in layers of that window.
    fn of_sequences(&self, window: Option<usize>) -> PagedRows<'_> {
        let (n, each) = (self.ends(), self.each_position());
        let positions = if self.is_mixed() { self.of_ends(each) } else { each };
        let (name, bind, of) = match self.windowed(window) {
            false => ("table", Bind::Table, &self.tables[0]),
            true => ("window_table", Bind::WindowTable, &self.tables[1]),
        };
        let table = self.once(of, || self.input(name, bind, dims![n, self.blocks()], Scalar::I32));
        PagedRows { positions, length: self.capture.var("length", 1, self.options.rows), table, page: Options::PAGE }
    }
    /// Pages that a sequence may have.
    fn blocks(&self) -> usize {
        self.options.blocks()
    }
    /// The tensor that `make` makes, the first time.
    pub(super) fn once<'g>(&'g self, made: &Cell<Option<Id>>, make: impl FnOnce() -> Tensor<'g>) -> Tensor<'g> {
        let id = made.get().unwrap_or_else(|| make().id());
        made.set(Some(id));
        self.capture.tensor(id)
    }
}

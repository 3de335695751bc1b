//! Which cached rows a sequence may reuse, and the block size of bit-exact rows.
//!
//! KV rows of one token may differ in their last bits by the kind of step that computed them. Rows
//! of a prompt's whole blocks always use one kind of step, so they depend on the tokens alone: they
//! are *exact*, and reusing them changes no result. Rows of an answer are not exact.

/// Tokens of a block of exact rows.
pub const BLOCK: usize = 32;

/// Which rows of earlier sequences a sequence may reuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reuse {
    /// Only rows that are bit-identical to recomputed ones.
    Exact,
    /// All rows of the prefix cache.
    #[default]
    Any,
}

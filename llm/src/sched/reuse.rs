//! Which cached rows a sequence may reuse, and the block size of rows that are the same to the bit.
//!
//! Rows of one token may differ in their last bits by the kind of step that computed them. Rows of a prompt's whole blocks go through one kind of step, so they depend on the tokens
//! alone: they are *exact*, and reusing them changes nothing. Rows of an answer are not.

/// Tokens of a block of exact rows.
pub const BLOCK: usize = 32;

/// Which rows of earlier sequences a sequence may reuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reuse {
    /// Only rows that equal recomputed ones to the bit.
    Exact,
    /// All rows.
    #[default]
    Any,
}

//! Pieces of prompts of which every token counts.

/// Rows of logits held at a time are at most this many bytes.
const ROWS_BYTES: usize = 16 << 20;

/// Tokens of a piece, in steps of `chunk` at most, whose logits over that vocabulary are held at a time.
pub fn rows_at_a_time(vocabulary: usize, chunk: usize) -> usize {
    (ROWS_BYTES / (4 * vocabulary)).clamp(1, chunk)
}

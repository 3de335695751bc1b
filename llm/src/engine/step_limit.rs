//! Limits the tokens of a step so that partial results of attention fit in memory.

use super::graph_key::{FEW_TOKENS, GraphKey, StepLimits};
use gristmill_uop::target::Target;
use rustc_hash::FxHashMap;

/// Minimum tokens of a step, even if its partial results exceed the memory limit.
const MIN_STEP_TOKENS: usize = 8;

pub(super) struct StepLimit {
    pub limits: StepLimits,
    /// Number of elements of a partial attention result of one token and one chunk of the context,
    /// by token bucket.
    pub partials: FxHashMap<usize, usize>,
    /// Maximum bytes of partial attention results in one step.
    pub attention_bytes: usize,
    /// Positions of the KV cache.
    pub rows: usize,
}

impl StepLimit {
    /// Returns the token bucket of a step of one sequence.
    pub fn bucket(&self, tokens: usize) -> usize {
        let StepLimits { chunk, long } = self.limits;
        match tokens {
            1 => 1,
            _ if tokens <= FEW_TOKENS => FEW_TOKENS.min(chunk),
            _ if tokens <= chunk => chunk,
            _ => long,
        }
    }
    /// Returns the maximum tokens of a step at that position. `exact` steps all
    /// use the chunk bucket.
    pub fn tokens(&self, position: usize, exact: bool, target: &Target) -> usize {
        let limit = |most: usize| {
            let row = self
                .partials
                .get(&self.bucket(most))
                .map_or(0, |numbers| numbers * size_of::<f32>());
            let chunk =
                gristmill_compiler::chunk_positions(most as i64, self.rows as i64, target) as usize;
            let chunks = (position + most).div_ceil(chunk).max(1);
            (self.attention_bytes / (chunks * row).max(1))
                .max(MIN_STEP_TOKENS)
                .min(most)
        };
        let StepLimits { chunk, long } = self.limits;
        let (few, of_chunk) = (FEW_TOKENS.min(chunk), limit(chunk));
        if exact {
            return of_chunk;
        }
        match limit(long) {
            of_long if of_long > chunk => of_long,
            _ if of_chunk > few => of_chunk,
            _ => limit(few),
        }
    }
    /// Returns the largest partial result of each token bucket.
    pub fn partials<'a>(
        graphs: impl Iterator<Item = (&'a GraphKey, usize)>,
    ) -> FxHashMap<usize, usize> {
        let mut partials: FxHashMap<usize, usize> = FxHashMap::default();
        for (graph, numbers) in graphs {
            let most = partials.entry(graph.tokens).or_default();
            *most = numbers.max(*most);
        }
        partials
    }
}

//! Rows and columns of attention heads, in the order that kernels expect.

use super::checkpoint::Source;
use super::config::CheckpointConfig;
use super::error::ConvertError;
use super::tensor::{Matrix, Picks};
use crate::module_names::{Direction, is_permuted, permutation};

type Result<T = ()> = std::result::Result<T, ConvertError>;

/// Name, sizes and matrices of a tensor of latent attention.
type LatentTensor = (&'static str, Vec<u64>, Vec<Matrix>);

/// Numbers and widths of heads, as far as conversions depend on them.
pub(super) struct Heads {
    /// Heads of queries and of keys, where the halves of a head's rows are put in turn.
    permuted: Option<[usize; 2]>,
    /// Latent attention: heads, and elements of keys and of values.
    latent: Option<[usize; 3]>,
    linear: Option<LinearHeads>,
}

/// Heads of linear attention: value heads are grouped by key head in checkpoints, and repeat the
/// key heads' order in GGUF files.
struct LinearHeads {
    keys: usize,
    values: usize,
    key_width: usize,
    value_width: usize,
}

impl Heads {
    pub fn new(config: &CheckpointConfig, architecture: &str) -> Result<Heads> {
        let count = |name: &str| config.need(&[name]).map(|n| n as usize);
        let permuted = match is_permuted(architecture) {
            true => {
                let queries = count("num_attention_heads")?;
                let keys = config.count(&["num_key_value_heads"])?;
                Some([queries, keys.map_or(queries, |n| n as usize)])
            }
            false => None,
        };
        let latent = match architecture {
            "deepseek2" => Some([
                count("num_attention_heads")?,
                count("qk_nope_head_dim")?,
                count("v_head_dim")?,
            ]),
            _ => None,
        };
        let linear = match architecture {
            "qwen35" | "qwen35moe" => Some(LinearHeads {
                keys: count("linear_num_key_heads")?,
                values: count("linear_num_value_heads")?,
                key_width: count("linear_key_head_dim")?,
                value_width: count("linear_value_head_dim")?,
            }),
            _ => None,
        };
        Ok(Heads {
            permuted,
            latent,
            linear,
        })
    }
    /// Order of the rows of a tensor, or of the columns of one with a single row and of `ssm_out`;
    /// `None` if it stays.
    pub fn order(&self, to: &str, source: &Source) -> Result<Option<Picks>> {
        let failed = |problem: String| ConvertError::tensor(&source.name, problem);
        let count = match source.rows {
            1 => source.columns,
            rows => rows,
        };
        if let Some([queries, keys]) = self.permuted {
            let heads = match to {
                "attn_q.weight" | "attn_q.bias" => queries,
                "attn_k.weight" | "attn_k.bias" => keys,
                _ => return Ok(None),
            };
            let rows = permutation(count, heads, Direction::ToGguf).map_err(failed)?;
            return Ok(Some(Picks::List(rows.map(|row| row as u32).collect())));
        }
        let Some(linear) = self.linear.as_ref().filter(|of| of.keys != of.values) else {
            return Ok(None);
        };
        let keys = linear.keys.saturating_mul(linear.key_width);
        let (kept, width, count) = match to {
            "attn_qkv.weight" | "ssm_conv1d.weight" => {
                (keys.saturating_mul(2), linear.value_width, count)
            }
            "attn_gate.weight" => (0, linear.value_width, count),
            "ssm_alpha.weight" | "ssm_beta.weight" | "ssm_a" | "ssm_dt.bias" => (0, 1, count),
            "ssm_out.weight" => (0, linear.value_width, source.columns),
            _ => return Ok(None),
        };
        let order = linear.order(kept, width, count).map_err(failed)?;
        Ok(Some(Picks::List(order.into())))
    }
    /// Keys and values of latent attention: names, sizes, and one matrix for each head. Keys are
    /// transposed.
    pub fn latent(&self, whole: &Matrix) -> Result<[LatentTensor; 2]> {
        let Source { rows, columns, .. } = whole.source;
        let fits = self.latent.filter(|[heads, keys, values]| {
            let height = keys.checked_add(*values);
            height.and_then(|height| height.checked_mul(*heads)) == Some(rows)
        });
        let Some([heads, keys, values]) = fits else {
            let problem = format!("{rows} rows are not those of config.json's heads");
            return Err(ConvertError::tensor(&whole.source.name, problem));
        };
        let of = |head: usize, begin: usize, count: usize, transposed| {
            let begin = head * (keys + values) + begin;
            Matrix {
                rows: Picks::range(begin..begin + count),
                transposed,
                ..whole.clone()
            }
        };
        let all = |begin, count, transposed| {
            let matrices = (0..heads).map(|head| of(head, begin, count, transposed));
            matrices.collect::<Vec<_>>()
        };
        let sizes = |width: usize, height: usize| [width, height, heads].map(|n| n as u64).into();
        Ok([
            ("attn_k_b.weight", sizes(keys, columns), all(0, keys, true)),
            (
                "attn_v_b.weight",
                sizes(columns, values),
                all(keys, values, false),
            ),
        ])
    }
}

impl LinearHeads {
    /// Order of `count` rows, of which the first `kept` stay and the rest are value heads of
    /// `width` rows.
    fn order(
        &self,
        kept: usize,
        width: usize,
        count: usize,
    ) -> std::result::Result<Vec<u32>, String> {
        let values = self
            .values
            .checked_mul(width)
            .and_then(|n| n.checked_add(kept));
        if values != Some(count) || self.keys == 0 || !self.values.is_multiple_of(self.keys) {
            let (keys, values) = (self.keys, self.values);
            return Err(format!(
                "{count} rows are not those of {keys} and {values} heads"
            ));
        }
        let group = self.values / self.keys;
        let of_head = |head: usize| {
            let from = head % self.keys * group + head / self.keys;
            let begin = kept + from * width;
            (begin..begin + width).map(|row| row as u32)
        };
        let kept = (0..kept as u32).collect::<Vec<_>>();
        Ok(kept
            .into_iter()
            .chain((0..self.values).flat_map(of_head))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_heads_repeat_the_order_of_key_heads() {
        let heads = LinearHeads {
            keys: 2,
            values: 6,
            key_width: 1,
            value_width: 2,
        };
        let order = heads.order(4, 2, 16).unwrap();
        assert_eq!(
            order,
            [0, 1, 2, 3, 4, 5, 10, 11, 6, 7, 12, 13, 8, 9, 14, 15]
        );
        assert!(heads.order(4, 2, 15).is_err());
    }
}

//! Accesses are as wide as a machine's least type: what legalising leaves. Narrower writes are left where the machine writes parts of words. Where it computes with words alone values are words, but for halves on their
//! way to an array of them.

use super::error::{Checked, LinearError};
use crate::lower::legalise::loads;
use crate::lower::linear_ir::{KernelCode, Statement};
use gristmill_uop::machine::Machine;
use gristmill_uop::text::print_node;
use gristmill_uop::{Graph, Id, Op, Scalar};

/// Is it of a type in which a machine computes that has words alone, or of what its subgroups multiply?
fn is_word(g: &Graph, id: Id) -> bool {
    let word = matches!(g.scalar(id), Scalar::Bool | Scalar::I32 | Scalar::U32 | Scalar::F32 | Scalar::I64);
    word || g[id].dtype.lanes > 1 || g[id].op == Op::Cast && g.scalar(id) == Scalar::F16
}

/// Are all loads and writes as wide as the machine's least type, but for parts of words that it can write? The first that is not.
///
/// # Errors
/// Which, and the node that shows it.
pub fn check_widths(g: &Graph, kernel: &KernelCode, machine: &Machine) -> Checked {
    let least = machine.least_bytes;
    if least == 1 {
        return Ok(());
    }
    for code in &kernel.bodies {
        for (statement, s) in code.statements.iter().enumerate() {
            let defined = match s {
                Statement::Define(id) | Statement::Accumulator(id) => std::slice::from_ref(id),
                Statement::Update(update) => &update.values,
                _ => &[],
            };
            let other = defined.iter().find(|&&id| machine.words_alone && !is_word(g, id));
            if let Some(&id) = other {
                return Err(LinearError { rule: "a value is a word, or an i64", statement, node: print_node(g, id) });
            }
            let narrow = match s {
                Statement::Define(id) if g[*id].op == Op::Load => {
                    let n = &g[*id];
                    (!loads::is_whole(g, n.src[0], n.src[1], n.dtype.scalar, least as i64)).then_some(*id)
                }
                Statement::Write(_, _, value) if !machine.part_writes => {
                    (g.scalar(*value).bytes() < least).then_some(*value)
                }
                Statement::Add(addition) if !machine.part_writes => {
                    addition.values.iter().copied().find(|&v| g.scalar(v).bytes() < least)
                }
                _ => None,
            };
            if let Some(id) = narrow {
                let rule = "a load or a write is as wide as the machine's least type, and aligned";
                return Err(LinearError { rule, statement, node: print_node(g, id) });
            }
        }
    }
    Ok(())
}

//! Checks the widths of accesses, and the types of values, in legalised code. Accesses are at least
//! as wide as the machine's narrowest type, and values are words if the machine has no others.
//!
//! Exceptions: narrower writes on machines that write parts of words, and 16-bit floats as operands
//! of a conversion for 16-bit arrays.

use super::error::{Checked, LinearError};
use crate::lower::legalise::loads;
use crate::lower::linear_ir::{KernelCode, Statement};
use gristmill_uop::machine::Machine;
use gristmill_uop::text::print_node;
use gristmill_uop::{Graph, Id, Op, Scalar};

/// Returns whether the type exists on a machine with 32-bit words only, or is an MMA operand.
fn is_word(g: &Graph, id: Id) -> bool {
    let word = matches!(
        g.scalar(id),
        Scalar::Bool | Scalar::I32 | Scalar::U32 | Scalar::F32 | Scalar::I64
    );
    word || g[id].dtype.lanes > 1 || g[id].op == Op::Cast && g.scalar(id) == Scalar::F16
}

/// Checks that all loads and writes are at least as wide as the machine's narrowest type. Partial
/// word writes are allowed if the machine supports them.
///
/// # Errors
/// The first violation, with its node.
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
            let other = defined
                .iter()
                .find(|&&id| machine.words_alone && !is_word(g, id));
            if let Some(&id) = other {
                return Err(LinearError {
                    rule: "a value is a word, or an i64",
                    statement,
                    node: print_node(g, id),
                });
            }
            let narrow = match s {
                Statement::Define(id) if g[*id].op == Op::Load => {
                    let n = &g[*id];
                    (!loads::is_whole(g, n.src[0], n.src[1], n.dtype.scalar, least as i64))
                        .then_some(*id)
                }
                Statement::Write(_, _, value) if !machine.part_writes => {
                    (g.scalar(*value).bytes() < least).then_some(*value)
                }
                Statement::Add(addition) if !machine.part_writes => addition
                    .values
                    .iter()
                    .copied()
                    .find(|&v| g.scalar(v).bytes() < least),
                _ => None,
            };
            if let Some(id) = narrow {
                let rule = "a load or a write is as wide as the machine's least type, and aligned";
                return Err(LinearError {
                    rule,
                    statement,
                    node: print_node(g, id),
                });
            }
        }
    }
    Ok(())
}

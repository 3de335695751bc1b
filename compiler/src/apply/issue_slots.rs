//! Issue slots of instructions: cycles of a scheduler that an instruction of a warp takes.
//!
//! From published tables of instruction throughput: a scheduler of recent GPUs has 32 lanes for
//! f32, 16 for integers and conversions, and 4 for roots and exponentials.

use gristmill_uop::fragment::Fragment;
use gristmill_uop::machine::Machine;
use gristmill_uop::{Node, Op, Scalar};

/// Part of a slot for a step of an address, of which the device's compiler folds most into loads.
const OF_ADDRESS: f64 = 0.5;

/// Slots of an instruction that is neither a load nor a matrix product.
pub fn issue_slots(node: &Node) -> f64 {
    match node.op {
        Op::Exp | Op::Exp2 | Op::Log | Op::Sqrt | Op::Recip | Op::Div => 8.0,
        Op::IDiv | Op::Mod => 3.0,
        Op::Table4 => 20.0,
        Op::ScaledPair => 5.0,
        Op::Bitcast | Op::Half => 1.0,
        Op::Pack | Op::Splat | Op::Lanes => 0.0,
        _ => match node.dtype.scalar {
            Scalar::I64 => OF_ADDRESS,
            Scalar::F32 => 1.0,
            _ => 2.0,
        },
    }
}

/// Slots of a matrix product: its operations at the rate of the machine's fragment.
pub fn matrix_slots(node: &Node, machine: &Machine) -> f64 {
    let Some(of) = Fragment::of_product(node) else {
        return 0.0;
    };
    let known = machine.fragments.iter().find(|row| row.name == of.name);
    let rate = known.map_or(machine.rate, |row| row.rate);
    let mut work = (2 * of.rows * of.columns * of.terms) as f64;
    if of.is_of_group() {
        // Four warps execute it together.
        work /= 4.0;
    }
    machine.schedulers as f64 * work / rate
}

//! Checks whether subgroup lanes are numbered like the workgroup's threads.
//!
//! Subgroup reductions rely on it, and no API guarantees it, so a kernel tests it.

use super::dialect::subgroup_order::text;
use gristmill_runtime::{Device, Error, Launch, Memory};
use gristmill_uop::Graph;
use gristmill_uop::program::{Access, Extent, Param, Program};
use std::sync::Arc;

/// Returns whether the order holds at all distances within the narrowest subgroup.
pub fn subgroups_in_order(device: &dyn Device) -> Result<bool, Error> {
    let (threads, narrowest) = (device.target().threads, device.target().machine.subgroup);
    let mut graph = Graph::new();
    let one = graph.int(1);
    let bytes = 4 * threads;
    let program = Program {
        source: text(threads, narrowest),
        params: vec![Param {
            slot: 0,
            access: Access::Write,
            extent: Extent::Fixed(bytes),
        }],
        vars: vec![],
        threads,
        ..Program::new("order", Arc::new(graph), one, one)
    };
    let kernel = device.load(&[program], &|_, _| ())?.remove(0);
    let buffer = device.alloc(bytes, Memory::Scratch)?;
    device
        .capture(vec![Launch {
            kernel,
            buffers: vec![buffer.clone()],
            level: 0,
        }])?
        .replay(&[])?;
    let mut found = vec![0; bytes];
    device.read(&buffer, 0, &mut found)?;
    Ok(found.chunks(4).all(|word| word == 1u32.to_le_bytes()))
}

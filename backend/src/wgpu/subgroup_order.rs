//! Are the threads of a subgroup numbered as they follow one another in their workgroup? Folds rely on it, and no interface promises it: a kernel looks.

use super::dialect::subgroup_order::text;
use gristmill_runtime::{Device, Error, Launch, Memory};
use gristmill_uop::Graph;
use gristmill_uop::program::{Access, Extent, Param, Program};
use std::sync::Arc;

/// Are the threads of the device's workgroups in order, so far as its narrowest subgroup goes?
pub fn in_order(device: &dyn Device) -> Result<bool, Error> {
    let (threads, narrowest) = (device.target().threads, device.target().machine.subgroup);
    let mut graph = Graph::new();
    let one = graph.int(1);
    let bytes = 4 * threads;
    let program = Program {
        source: text(threads, narrowest),
        params: vec![Param { slot: 0, access: Access::Write, extent: Extent::Fixed(bytes) }],
        vars: vec![],
        threads,
        ..Program::new("order", Arc::new(graph), one, one)
    };
    let kernel = device.load(&[program], &|_, _| ())?.remove(0);
    let buffer = device.alloc(bytes, Memory::Scratch)?;
    device.capture(vec![Launch { kernel, buffers: vec![buffer.clone()], level: 0 }])?.replay(&[])?;
    let mut found = vec![0; bytes];
    device.read(&buffer, 0, &mut found)?;
    Ok(found.chunks(4).all(|word| word == 1u32.to_le_bytes()))
}

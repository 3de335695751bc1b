//! Writes WebAssembly modules: a function for each kernel, on the memory of the engine.

mod access;
mod locals;
mod math;
mod node;
mod scalar;
mod statements;
mod tables;
mod vector;
mod writer;

use super::engine::Features;
use gristmill_compiler::lower::lower_program;
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use std::borrow::Cow;
pub(super) use tables::Tables;
use wasm_encoder::{
    CodeSection, EntityType, ExportKind, ExportSection, Function, FunctionSection, ImportSection,
    Instruction, MemoryType, Module, TypeSection, ValType,
};
use writer::FunctionWriter;

/// Name of the memory that a module imports, and of the module that it is imported from.
pub const MEMORY: (&str, &str) = ("gristmill", "memory");

/// Name of a module's function number `i`.
pub fn function_name(i: usize) -> String {
    format!("k{i}")
}

/// A function, and the bytes of scratch memory that it needs.
pub(super) struct KernelFunction {
    function: Function,
    pub scratch: usize,
}

/// Writes the function of a program.
pub(super) fn function(
    program: &Program,
    target: &Target,
    features: Features,
    tables: &Tables,
) -> KernelFunction {
    let (graph, code) = lower_program(program, target);
    let slots: Vec<u32> = program.params.iter().map(|p| p.slot).collect();
    let parameters = statements::PARAMETERS.len() as u32;
    let mut writer = FunctionWriter::new(&graph, parameters, features, tables);
    writer.prologue(&slots, &program.vars);
    for body in &code.bodies {
        writer.body(body);
    }
    let mut function = Function::new(writer.b.runs());
    for instruction in &writer.b.code {
        function.instruction(instruction);
    }
    function.instruction(&Instruction::End);
    KernelFunction {
        function,
        scratch: statements::scratch_bytes(&graph, &code.bodies),
    }
}

/// Writes a module of functions.
pub(super) fn module(functions: &[KernelFunction]) -> Vec<u8> {
    let mut types = TypeSection::new();
    let parameters = [ValType::I32; statements::PARAMETERS.len()];
    types.ty().function(parameters, []);
    let mut imports = ImportSection::new();
    let memory = MemoryType {
        minimum: 1,
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    };
    imports.import(MEMORY.0, MEMORY.1, EntityType::Memory(memory));
    let (mut declared, mut exports) = (FunctionSection::new(), ExportSection::new());
    let mut bodies = CodeSection::new();
    for (i, kernel) in functions.iter().enumerate() {
        declared.function(0);
        let name: Cow<str> = function_name(i).into();
        exports.export(&name, ExportKind::Func, i as u32);
        bodies.function(&kernel.function);
    }
    let mut module = Module::new();
    module
        .section(&types)
        .section(&imports)
        .section(&declared)
        .section(&exports)
        .section(&bodies);
    module.finish()
}

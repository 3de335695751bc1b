//! Compiled kernels and the layouts of their buffer bindings.

use super::context::WgpuContext;
use super::dialect::{module, multiplies, words_of_tables};
use super::pipeline_cache::CachedPipelines;
use crate::text::KernelText;
use gristmill_runtime::Error;
use gristmill_uop::program::{Access, Param, Program};
use gristmill_uop::{Arg, Op};
use std::borrow::Cow;
use wgpu::{
    BindGroupLayout, BindGroupLayoutDescriptor, BindGroupLayoutEntry, BindingType, Buffer,
    BufferBindingType, BufferDescriptor, BufferUsages, ComputePipeline, ComputePipelineDescriptor,
    Features, PipelineCompilationOptions, PipelineLayoutDescriptor, ShaderModuleDescriptor,
    ShaderRuntimeChecks, ShaderSource, ShaderStages,
};

/// A kernel compiled by the driver.
pub struct Pipeline {
    pub pipeline: ComputePipeline,
    /// Bindings: buffers, the uniform buffer of variables if any, further pieces
    /// of long buffers, tables.
    pub layout: BindGroupLayout,
    /// Number of pieces of each buffer.
    pub pieces: Vec<usize>,
    /// Size of a piece in bytes.
    pub piece: usize,
    /// Buffer of the constant tables, if the kernel has any.
    pub tables: Option<Buffer>,
}

/// Arguments shared by all pipelines of a device.
pub struct PipelineBuilder<'a> {
    pub context: &'a WgpuContext,
    /// Bytes of a piece of a long buffer.
    pub piece: usize,
    /// Cache of pipelines compiled earlier.
    pub kept: &'a CachedPipelines,
}

/// Returns whether a parameter is a weight, which the dialect declares as read-only.
fn is_weight(program: &Program, slot: u32, access: Access) -> bool {
    let packed = |arg: &Arg| matches!(arg, Arg::Packed(s, _) if *s == slot);
    let g = &program.graph;
    access == Access::Read && g.any(program.root, |_, n| n.op == Op::Param && packed(&n.arg))
}

/// Checks a program with that number of bindings against the adapter's limits.
fn check(context: &WgpuContext, program: &Program, buffers: usize) -> Result<(), Error> {
    let limits = &context.limits;
    let lacking = |message: String| {
        let hint = "`gristmill devices` lists others; `--device cpu` has no such limits".into();
        Err(Error::Lacking {
            device: "wgpu".into(),
            message,
            hint,
        })
    };
    let most = limits.max_storage_buffers_per_shader_stage as usize;
    if buffers > most {
        return lacking(format!(
            "{} binds {most} buffers, and {} has {buffers}",
            context.title, program.name
        ));
    }
    let most = limits.max_compute_invocations_per_workgroup as usize;
    if program.threads == 0 || program.threads > most {
        let threads = program.threads;
        return lacking(format!(
            "{} runs {most} threads together, and {} has {threads}",
            context.title, program.name
        ));
    }
    let (shared, most) = (
        program.scratch,
        limits.max_compute_workgroup_storage_size as usize,
    );
    if shared > most {
        return lacking(format!(
            "{} has {most} shared bytes, and {} wants {shared}",
            context.title, program.name
        ));
    }
    if program.source.contains("i64") && !context.features.contains(Features::SHADER_INT64) {
        let title = &program.title;
        return lacking(format!(
            "{} has no integers of 64 bits, and {title} computes with them",
            context.title
        ));
    }
    Ok(())
}

impl Pipeline {
    /// Compiles a kernel's text.
    pub fn new(
        maker: &PipelineBuilder,
        text: &KernelText,
        program: &Program,
    ) -> Result<Pipeline, Error> {
        let &PipelineBuilder {
            context,
            piece,
            kept,
        } = maker;
        let pieces: Vec<usize> = program.params.iter().map(|p| p.pieces(piece)).collect();
        let tables = words_of_tables(&text.source);
        check(
            context,
            program,
            pieces.iter().sum::<usize>() + usize::from(tables.is_some()),
        )?;
        let tables = tables
            .map(|words| constant(context, &program.name, &words))
            .transpose()?;
        let source = module(&text.source);
        let module = context.scoped(&program.name, || {
            let source = ShaderSource::Wgsl(Cow::Borrowed(&source));
            let descriptor = ShaderModuleDescriptor {
                label: Some(&text.symbol),
                source,
            };
            // SAFETY: a launch checks that buffers are as long as the program states, and kernels
            // stay within that; divisors are positive and loops end. Debug builds keep the module's
            // own checks, except with cooperative matrices: a check would cover one element only,
            // and all threads must reach the load.
            let checks = match cfg!(debug_assertions) && !multiplies(&text.source) {
                true => ShaderRuntimeChecks {
                    force_loop_bounding: false,
                    ..ShaderRuntimeChecks::checked()
                },
                false => ShaderRuntimeChecks::unchecked(),
            };
            unsafe {
                context
                    .device
                    .create_shader_module_trusted(descriptor, checks)
            }
        });
        let module = module.map_err(|error| compile_error(text, error))?;
        let layout = layout(context, program, &pieces, tables.is_some())?;
        let pipeline = context.scoped(&program.name, || {
            let descriptor = PipelineLayoutDescriptor {
                bind_group_layouts: &[Some(&layout)],
                ..PipelineLayoutDescriptor::default()
            };
            let layout = context.device.create_pipeline_layout(&descriptor);
            context
                .device
                .create_compute_pipeline(&ComputePipelineDescriptor {
                    label: Some(&text.symbol),
                    layout: Some(&layout),
                    module: &module,
                    entry_point: Some(&text.symbol),
                    compilation_options: PipelineCompilationOptions {
                        zero_initialize_workgroup_memory: false,
                        ..PipelineCompilationOptions::default()
                    },
                    cache: kept.cache(),
                })
        });
        let pipeline = pipeline.map_err(|error| compile_error(text, error))?;
        Ok(Pipeline {
            pipeline,
            layout,
            pieces,
            piece,
            tables,
        })
    }
}

/// Converts an error of naga or the driver about a kernel, which is a bug of ours.
fn compile_error(text: &KernelText, error: Error) -> Error {
    match error {
        Error::Driver { message, .. } => text.with_name(Error::Compile {
            kernel: text.name.clone(),
            message,
        }),
        other => other,
    }
}

/// Creates a read-only buffer of words.
fn constant(context: &WgpuContext, name: &str, words: &[u32]) -> Result<Buffer, Error> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let (size, usage) = (
        bytes.len() as u64,
        BufferUsages::STORAGE | BufferUsages::COPY_DST,
    );
    let descriptor = BufferDescriptor {
        label: None,
        size,
        usage,
        mapped_at_creation: false,
    };
    context.scoped(name, || {
        let buffer = context.device.create_buffer(&descriptor);
        context.queue.write_buffer(&buffer, 0, &bytes);
        buffer
    })
}

/// Creates the layout: a storage buffer for each parameter, the uniform buffer of variables,
/// further pieces in the order of the parameters, and tables.
fn layout(
    context: &WgpuContext,
    program: &Program,
    pieces: &[usize],
    tables: bool,
) -> Result<BindGroupLayout, Error> {
    let entry = |binding: usize, ty: BufferBindingType| BindGroupLayoutEntry {
        binding: binding as u32,
        visibility: ShaderStages::COMPUTE,
        ty: BindingType::Buffer {
            ty,
            has_dynamic_offset: false,
            min_binding_size: None,
        },
        count: None,
    };
    let storage = |p: &Param| BufferBindingType::Storage {
        read_only: is_weight(program, p.slot, p.access),
    };
    let uniform = (!program.vars.is_empty()).then_some(BufferBindingType::Uniform);
    let further = program
        .params
        .iter()
        .zip(pieces)
        .flat_map(|(p, &n)| std::iter::repeat_n(storage(p), n - 1));
    let tables = tables.then_some(BufferBindingType::Storage { read_only: true });
    let types = program
        .params
        .iter()
        .map(storage)
        .chain(uniform)
        .chain(further)
        .chain(tables);
    let entries: Vec<BindGroupLayoutEntry> =
        types.enumerate().map(|(i, ty)| entry(i, ty)).collect();
    let descriptor = BindGroupLayoutDescriptor {
        label: None,
        entries: &entries,
    };
    context.scoped(&program.name, || {
        context.device.create_bind_group_layout(&descriptor)
    })
}

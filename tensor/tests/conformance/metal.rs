//! Runs kernels translated for Metal on the CPU: naga's MSL, compiled as C++ with `metal.h`.
//!
//! This finds translations that a compiler rejects, and errors in barriers, SIMD-group exchanges
//! and threadgroup memory.

use crate::simulated::Language;
use gristmill_backend::KernelText;
use gristmill_backend::wgpu::dialect::{module, words_of_tables};
use gristmill_runtime::Error;
use gristmill_uop::adapter::{Adapter, AdapterKind};
use gristmill_uop::target::Target;
use naga::back::msl;
use naga::valid::{Capabilities, ValidationFlags, Validator};
use std::fmt::Write;

/// An Apple GPU, with workgroups small enough to run quickly on a CPU.
pub fn target() -> Target {
    let adapter = Adapter {
        name: "Apple M3 Max".into(),
        kind: AdapterKind::Integrated,
        subgroup: Some(32),
        widest: 32,
        cooperative: Some(8),
        vector_parts: false,
        threads: 1024,
        shared: 26 << 10,
        largest_binding: i32::MAX as usize,
        bindings: Adapter::MAX_BINDINGS,
        alignment: 256,
        measured: Default::default(),
    };
    Target {
        threads: 64,
        ..Target::new(adapter.machine())
    }
}

/// MSL as a language of the simulated device.
pub fn language() -> Language {
    let prelude = format!(
        "{}typedef int64_t i64;\n{}",
        include_str!("coroutines.h"),
        include_str!("metal.h")
    );
    // Metal's floating-point literals are f32.
    Language {
        prelude,
        arguments: &["-fsingle-precision-constant"],
        kernel,
    }
}

/// Translates a text by naga, with wgpu's options.
fn written(text: &KernelText) -> Result<String, String> {
    let source = module(&text.source);
    let parsed =
        naga::front::wgsl::parse_str(&source).map_err(|error| error.emit_to_string(&source))?;
    let has = Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | Capabilities::SUBGROUP
        | Capabilities::SHADER_INT64
        | Capabilities::SHADER_FLOAT16
        | Capabilities::COOPERATIVE_MATRIX;
    let info = Validator::new(ValidationFlags::all(), has).validate(&parsed);
    let info = info.map_err(|error| error.emit_to_string(&source))?;
    let options = msl::Options {
        lang_version: (2, 4),
        fake_missing_bindings: true,
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: false,
        ..msl::Options::default()
    };
    let (text, _) = msl::write_string(&parsed, &info, &options, &msl::PipelineOptions::default())
        .map_err(|error| error.to_string())?;
    Ok(text)
}

/// Wraps a kernel as C++: in its own namespace, called with each parameter by its kind.
fn kernel(text: &KernelText) -> Result<String, Error> {
    let failed = |message: String| Error::Compile {
        kernel: text.name.clone(),
        message,
    };
    let msl = written(text).map_err(failed)?;
    let symbol = &text.symbol;
    let (_, signature) = msl
        .split_once("kernel void ")
        .ok_or_else(|| failed("no kernel".into()))?;
    let (name, signature) = signature
        .split_once('(')
        .ok_or_else(|| failed("no parameters".into()))?;
    let (signature, _) = signature
        .split_once("\n) {")
        .ok_or_else(|| failed("no body".into()))?;
    let tables = words_of_tables(&text.source);
    let buffers = text.source.matches("var<storage").count() - usize::from(tables.is_some());
    let words: Vec<String> = tables
        .unwrap_or_default()
        .iter()
        .map(|word| format!("{word}u"))
        .collect();
    let variables = msl
        .split_once("struct Variables {")
        .and_then(|(_, rest)| rest.split_once('}'));
    let variables = variables.map_or(0, |(fields, _)| fields.matches(';').count());
    let (mut arguments, mut shared) = (Vec::new(), Vec::new());
    for parameter in signature.lines().filter(|line| !line.trim().is_empty()) {
        let declared = parameter
            .trim_start_matches([',', ' '])
            .split(" [[")
            .next()
            .unwrap_or_default();
        let (of, named) = declared
            .rsplit_once(' ')
            .ok_or_else(|| failed(format!("a parameter {declared}")))?;
        let number = named
            .strip_prefix('p')
            .and_then(|rest| rest.trim_end_matches('_').parse::<usize>().ok());
        arguments.push(match (named, number, of.strip_prefix("threadgroup ")) {
            (_, Some(number), None) => format!("Buffer{{b[{number}]}}"),
            (_, _, Some(of)) => {
                let at = shared
                    .iter()
                    .fold(String::from("0"), |sum, of| format!("{sum} + room<{of}>()"));
                shared.push(format!("n_{symbol}::{}", of.trim_end_matches('&')));
                format!("Buffer{{sim::scratch + {at}}}")
            }
            ("group", ..) => {
                "metal::uint3{(unsigned)sim::group % 32768, (unsigned)sim::group / 32768, 0}".into()
            }
            ("variables", ..) => "Buffer{values}".into(),
            ("tables", ..) => "Buffer{(void *)tables}".into(),
            _ if named.starts_with("thread") => "(unsigned)sim::current".into(),
            _ => "Buffer{nullptr}".into(),
        });
    }
    // Functions that differ only in an address space are duplicates in C++.
    let of_space = |space: &str| format!("NagaCooperativeLoad(const {space} half* ptr");
    let twice = |block: &&str| {
        msl.contains(&of_space("device")) && block.contains(&of_space("threadgroup"))
    };
    let msl = msl
        .split("\n\n")
        .filter(|block| !twice(block))
        .collect::<Vec<_>>()
        .join("\n\n");
    // Runtime-sized arrays are declared with one element.
    let msl = msl
        .lines()
        .filter(|line| !line.starts_with("#include"))
        .fold(String::new(), |mut out, line| {
            let _ = match line
                .strip_suffix("[1];")
                .filter(|line| line.starts_with("typedef "))
            {
                Some(start) => writeln!(out, "{start}[1 << 26];"),
                None => writeln!(out, "{line}"),
            };
            out
        });
    let bytes = shared
        .iter()
        .fold(String::from("0"), |sum, of| format!("{sum} + room<{of}>()"));
    let (arguments, words) = (arguments.join(", "), words.join(", "));
    Ok(format!(
        "namespace {{ namespace n_{symbol} {{\n{msl}}} }}\n\
         extern \"C\" int run_{symbol}(void **of, int threads, i64 groups, size_t) {{\n\
         static void **b; static int values[{variables} + 1]; static const unsigned tables[] = {{{words}}}; b = of;\n\
         for (int i = 0; i < {variables}; i++) values[i] = (int)((i64 *)of[{buffers}])[i];\n\
         return sim::run([](void *) {{ sim::waited[sim::current] = true; n_{symbol}::{name}({arguments}); }}, of, threads, groups, {bytes});\n}}\n"
    ))
}

//! Custom kernels within a graph: fusion around them, and ordering of shared memory accesses.

use crate::harness::{Case, Within};
use gristmill_backend::cpu::{Isa, dialect::C};
use gristmill_backend::cuda::{Nvrtc, dialect::Cuda, dialect::prelude};
use gristmill_backend::wgpu::dialect::Wgsl;
use gristmill_compiler::custom::is_custom;
use gristmill_compiler::{Cheapest, Dialect, compile, record};
use gristmill_encodings::{Q4_K, Q8_0};
use gristmill_tensor::tensor::Tensor;
use gristmill_tensor::{dims, nn};
use gristmill_uop::adapter::Adapter;
use gristmill_uop::custom::{CustomKernel, CustomRef};
use gristmill_uop::target::Target;
use gristmill_uop::{EncodingRef, Scalar};

/// `gate / (1 + |gate|) · up`, over rows of `width` columns.
static GATED: CustomKernel = CustomKernel {
    name: "gated",
    texts: &[
        (
            "c",
            "for (i64 row = first; row < end; row++)
                for (i64 i = row * 96; i < row * 96 + 96; i++)
                    y[i] = gate[i] / (1.0f + (gate[i] < 0 ? -gate[i] : gate[i])) * up[i];",
        ),
        (
            "cuda",
            "for (i64 i = w * 96 + thread; i < w * 96 + 96; i += threads)
                y[i] = gate[i] / (1.0f + (gate[i] < 0 ? -gate[i] : gate[i])) * up[i];",
        ),
    ],
    output: "y",
    arguments: &["gate", "up"],
    accessors: &[],
    operations: 4,
};

/// `factor · x` in one workgroup, where `factor` is a variable of the step.
static SCALED: CustomKernel = CustomKernel {
    name: "scaled",
    texts: &[
        (
            "c",
            "for (i64 i = 0; i < 6 * 40; i++) y[i] = x[i] * (f32)factor;",
        ),
        (
            "cuda",
            "for (i64 i = thread; i < 6 * 40; i += threads) y[i] = x[i] * (f32)factor;",
        ),
    ],
    output: "y",
    arguments: &["x", "factor"],
    accessors: &[],
    operations: 1,
};

/// [`GATED`] with accessor functions.
static GATED_BY_FUNCTIONS: CustomKernel = CustomKernel {
    name: "gated by functions",
    texts: &[
        (
            "c",
            "for (i64 i = first * 96; i < end * 96; i++) {
                f32 x = gate(i);
                y(i, x / (1.0f + (x < 0 ? -x : x)) * up(i));
            }",
        ),
        (
            "cuda",
            "for (i64 i = w * 96 + thread; i < w * 96 + 96; i += threads) {
                f32 x = gate(i);
                y(i, x / (1.0f + (x < 0 ? -x : x)) * up(i));
            }",
        ),
        (
            "wgsl",
            "for (var i = w * 96 + thread; i < w * 96 + 96; i += threads) {
                let x = gate(i);
                y(i, x / (1.0f + abs(x)) * up(i));
            }",
        ),
    ],
    output: "y",
    arguments: &["gate", "up"],
    accessors: &[("gate", 1), ("up", 1), ("y", 1)],
    operations: 4,
};

/// [`SCALED`] with accessor functions.
static SCALED_BY_FUNCTIONS: CustomKernel = CustomKernel {
    name: "scaled by functions",
    texts: &[
        (
            "c",
            "for (i64 i = 0; i < 6 * 40; i++) y(i, x(i) * (f32)factor);",
        ),
        (
            "cuda",
            "for (i64 i = thread; i < 6 * 40; i += threads) y(i, x(i) * (f32)factor);",
        ),
        (
            "wgsl",
            "for (var i = thread; i < 6 * 40; i += threads) { y(i, x(i) * f32(factor)); }",
        ),
    ],
    accessors: &[("x", 1), ("y", 1)],
    ..SCALED
};

/// Product of a matrix `[40, 256]`, in any packed format, with a vector; five workgroups.
pub static PRODUCT: CustomKernel = CustomKernel {
    name: "product by functions",
    texts: &[
        (
            "c",
            "for (i64 row = first * 8; row < end * 8; row++) {
                f32 sum = 0;
                for (i64 i = 0; i < 256; i++) sum += matrix(row * 256 + i) * x(i);
                y(row, sum);
            }",
        ),
        (
            "cuda",
            "for (i64 row = w * 8 + thread; row < w * 8 + 8; row += threads) {
                f32 sum = 0;
                for (i64 i = 0; i < 256; i++) sum += matrix(row * 256 + i) * x(i);
                y(row, sum);
            }",
        ),
        (
            "wgsl",
            "for (var row = w * 8 + thread; row < w * 8 + 8; row += threads) {
                var sum = 0.0f;
                for (var i = 0; i < 256; i++) { sum += matrix(row * 256 + i) * x(i); }
                y(row, sum);
            }",
        ),
    ],
    output: "y",
    arguments: &["matrix", "x"],
    accessors: &[("matrix", 1), ("x", 40), ("y", 1)],
    operations: 512,
};

/// [`PRODUCT`] with an access count of the vector that makes recomputation too expensive.
pub static PRODUCT_OF_MANY: CustomKernel = CustomKernel {
    accessors: &[("matrix", 1), ("x", 100_000_000), ("y", 1)],
    ..PRODUCT
};

/// A kernel without a text for the tested devices.
static FOREIGN: CustomKernel = CustomKernel {
    name: "foreign",
    texts: &[("metal", "")],
    output: "y",
    arguments: &["x"],
    accessors: &[],
    operations: 1,
};

fn gated<'g>(gate: Tensor<'g>, up: Tensor<'g>, groups: Tensor<'g>) -> Tensor<'g> {
    let reference = gate / (gate.maximum(-gate) + 1.0) * up;
    reference.computed_by(&GATED, groups, &[gate, up])
}

/// Multiplies each row of `x` by an input matrix `name` of dims `[rows, columns]`.
fn product<'g>(x: Tensor<'g>, name: &str, [rows, columns]: [usize; 2]) -> Tensor<'g> {
    let w = x
        .capture()
        .input(name, dims![1, rows, columns], Scalar::F32);
    (x.reshape(dims![x.dim(0), 1, columns]) * w).sum(&[2])
}

fn scaled<'g>(x: Tensor<'g>, by: Tensor<'g>) -> Tensor<'g> {
    (x * by.cast(Scalar::F32)).computed_by(&SCALED, x.capture().int(1), &[x, by])
}

/// A feed-forward block: norm and products, a custom kernel, then a product and the residual.
pub fn feed_forward(most: usize) -> Case {
    let case = Case::new(format!("a feed-forward, {most} tokens"), |c| {
        let n = if most == 1 {
            c.int(1)
        } else {
            c.var("n", 1, most)
        };
        let x = c.input("x", dims![n, 32], Scalar::F32);
        let normed = nn::rms_norm(x, c.input("norm", dims![32], Scalar::F32), 1e-5);
        let (gate, up) = (
            product(normed, "gate", [96, 32]),
            product(normed, "up", [96, 32]),
        );
        let middle = gated(gate, up, n);
        c.output("y", product(middle, "down", [32, 96]) + x);
    });
    if most == 1 {
        case
    } else {
        case.vars(&[&[("n", 1)], &[("n", 3)], &[("n", most as i64)]])
    }
    .within(Within::Scale(1e-5))
}

/// A custom kernel between elementwise chains; the second uses a value of the first.
pub fn amid_elementwise() -> Case {
    Case::new("amid elementwise ops", |c| {
        let [x, y] = ["x", "y"].map(|name| c.input(name, dims![6, 40], Scalar::F32));
        let before = (x * y + 1.0).silu() - y * 2.0;
        let own = scaled(before.maximum(x), c.var("factor", 0, 9));
        c.output("out", ((own + before) * x).sigmoid() - own);
    })
    .vars(&[&[("factor", 3)], &[("factor", 0)]])
}

fn gated_by_functions<'g>(gate: Tensor<'g>, up: Tensor<'g>, groups: Tensor<'g>) -> Tensor<'g> {
    let reference = gate / (gate.maximum(-gate) + 1.0) * up;
    reference.computed_by(&GATED_BY_FUNCTIONS, groups, &[gate, up])
}

fn scaled_by_functions<'g>(x: Tensor<'g>, by: Tensor<'g>) -> Tensor<'g> {
    (x * by.cast(Scalar::F32)).computed_by(&SCALED_BY_FUNCTIONS, x.capture().int(1), &[x, by])
}

/// Elementwise chains fused through the accessors of a custom kernel.
///
/// They broadcast, use a variable, share a row and read halves.
pub fn within_elementwise() -> Case {
    Case::new("within elementwise ops", |c| {
        let n = c.var("n", 1, 5);
        let [x, y] = ["x", "y"].map(|name| c.input(name, dims![n, 96], Scalar::F32));
        let halves = c.input("halves", dims![n, 4, 24], Scalar::F16);
        let row = c
            .input("row", dims![1, 96], Scalar::F32)
            .expand(dims![n, 96]);
        let gate = (x * row + n.cast(Scalar::F32)).silu();
        let up = halves.cast(Scalar::F32).reshape(dims![n, 96]) * y;
        let own = gated_by_functions(gate, up, n).reshape(dims![n, 8, 12]) * 2.0;
        c.output("out", own.reshape(dims![n, 96]).sigmoid() + x * row);
    })
    .vars(&[&[("n", 5)], &[("n", 1)], &[("n", 3)]])
}

/// A custom product of a packed matrix and a computed vector; its result is added to others.
pub fn own_product(e: EncodingRef, kernel: CustomRef) -> Case {
    Case::new(format!("a product of one's own, {}", e.name), |c| {
        let [x, scale] = ["x", "scale"].map(|name| c.input(name, dims![256], Scalar::F32));
        let (matrix, x) = (c.weight("matrix", &[40, 256], e), x * scale);
        let reference = (matrix * x.reshape(dims![1, 256]).expand(dims![40, 256])).sum(&[1]);
        let own = reference.computed_by(kernel, c.int(5), &[matrix, x]);
        c.output(
            "y",
            own.maximum(own * 0.1) + c.input("residual", dims![40], Scalar::F32),
        );
    })
    .within(Within::Scale(1e-5))
}

/// Neighbours that cannot be fused into accessors, or can be fused into only one of two kernels.
fn beside_functions() -> Vec<Case> {
    let factors: &[&[(&str, i64)]] = &[&[("factor", 3)], &[("factor", 0)]];
    let sums = Case::new("sums before and behind functions", |c| {
        let n = c.var("n", 1, 5);
        let x = c.input("x", dims![n, 32], Scalar::F32);
        let normed = nn::rms_norm(x, c.input("norm", dims![32], Scalar::F32), 1e-5);
        let (gate, up) = (
            product(normed, "gate", [96, 32]) + 1.0,
            product(normed, "up", [96, 32]),
        );
        let middle = gated_by_functions(gate, up, n) * gate;
        c.output("y", product(middle, "down", [32, 96]) + x);
    });
    let rows = Case::new("functions into rows of a state", |c| {
        let state = c.state("state", dims![20, 40], Scalar::F32);
        let x = c.input("x", dims![6, 40], Scalar::F32);
        let (factor, pos) = (c.var("factor", 0, 9), c.var("pos", 0, 14));
        let own = scaled_by_functions(state.slice(0, pos, 6) + x, factor);
        c.output_state(state.assign(own + 1.0, pos));
    });
    let added = Case::new("functions into a state by itself", |c| {
        let state = c.state("state", dims![6, 40], Scalar::F32);
        let x = c.input("x", dims![6, 40], Scalar::F32);
        let own = scaled_by_functions(x.exp() - x, c.var("factor", 0, 9));
        c.output_state(state.assign(own * 0.5, c.int(0)));
    });
    let chained = Case::new("one text's functions behind another's", |c| {
        let x = c.input("x", dims![6, 40], Scalar::F32);
        let factor = c.var("factor", 0, 9);
        let first = scaled_by_functions(x + 1.0, factor);
        let second = scaled_by_functions(first * x, factor);
        c.output("y", second - first);
        c.output("z", first.exp() * x);
        c.output("sum", (second * 2.0).sum(&[1]));
    });
    let moved = Case::new("functions, and elements in another order", |c| {
        let x = c.input("x", dims![40, 6], Scalar::F32);
        let own = scaled_by_functions(x.permute(&[1, 0]) * 2.0, c.var("factor", 0, 9));
        c.output("y", own.permute(&[1, 0]) + x);
    });
    let chosen = Case::new("functions, and rows that are chosen", |c| {
        let x = c.input("x", dims![6, 40], Scalar::F32);
        let [rows, last] =
            ["rows", "last"].map(|name| c.input(name, dims![6], Scalar::I32).clamp_index(5));
        let own = scaled_by_functions(x.gather(rows) + 1.0, c.var("factor", 0, 9));
        c.output("y", own.gather(last) + x);
    });
    let narrow = Case::new("functions of halves and bytes", |c| {
        let x = c.input("x", dims![6, 40], Scalar::F16);
        let factor = c.var("factor", 0, 9);
        let own = scaled_by_functions((x * x).cast(Scalar::F32), factor);
        c.output("y", own.cast(Scalar::F16) + x);
        let codes = c.input("codes", dims![6, 40], Scalar::I8).cast(Scalar::F32);
        c.output(
            "z",
            (scaled_by_functions(codes, factor) - 3.0).cast(Scalar::I8),
        );
    });
    vec![
        narrow.vars(factors).within(Within::Scale(1e-3)),
        sums.vars(&[&[("n", 5)], &[("n", 1)]])
            .within(Within::Scale(1e-5)),
        rows.vars(&[&[("factor", 3), ("pos", 7)], &[("factor", 1), ("pos", 0)]]),
        added.vars(factors),
        chained.vars(factors),
        moved.vars(factors),
        chosen.vars(factors),
    ]
}

pub fn cases() -> Vec<Case> {
    // Reads the old version of a state that another kernel writes; then its result is used twice.
    let state = Case::new("a state as it was", |c| {
        let state = c.state("state", dims![6, 40], Scalar::F32);
        let x = c.input("x", dims![6, 40], Scalar::F32);
        let factor = c.var("factor", 0, 9);
        let before = scaled(state, factor);
        c.output("before", before);
        c.output("again", scaled(before + x, factor) + before);
        c.output_state(state.assign(x, c.int(0)));
    });
    // The output becomes the state that was read.
    let own = Case::new("a state from itself by a user's kernel", |c| {
        let state = c.state("state", dims![6, 40], Scalar::F32);
        let factor = c.var("factor", 0, 9);
        c.output_state(state.assign(scaled(state, factor) + 1.0, c.int(0)));
    });
    let reference = Case::new("a kernel without a text", |c| {
        let x = c.input("x", dims![6, 40], Scalar::F32);
        let y = (x * x + 1.0).computed_by(&FOREIGN, c.int(6), &[x]);
        c.output("y", y.sum(&[1]));
    });
    let factors: &[&[(&str, i64)]] = &[&[("factor", 3)], &[("factor", 0)]];
    let others = beside_functions().into_iter().chain([within_elementwise()]);
    let products = [&Q8_0, &Q4_K].map(|e| own_product(e, &PRODUCT));
    let mut all = vec![
        feed_forward(1),
        feed_forward(5),
        amid_elementwise(),
        state.vars(factors),
        own.vars(factors),
        reference,
    ];
    all.extend(others.chain(products));
    all
}

/// A custom kernel is a separate launch, and its neighbours are fused as if it were absent.
///
/// Devices without a text compute its reference.
#[test]
fn a_custom_kernel_is_a_separate_launch() {
    let function = feed_forward(5).function;
    for (target, dialect) in [
        (Isa::Avx2.target(), &C as &dyn Dialect),
        (Target::named("h200"), &Cuda),
    ] {
        let compiled = compile(&function, &target, Some(dialect), &mut Cheapest);
        let custom: Vec<usize> = (0..compiled.programs.len())
            .filter(|&i| is_custom(&compiled.programs[i]))
            .collect();
        let [at] = custom[..] else {
            panic!("{custom:?} of {:?}", compiled.levels)
        };
        let program = &compiled.programs[at];
        assert_eq!(
            (
                program.params.len(),
                &program.vars[..],
                program.title.as_str()
            ),
            (3, &["n".into()][..], "gated")
        );
        assert!(program.source.contains("gate[i] / (1.0f") && program.seconds > 0.0);
        // Other launches precede and follow it, none has the same level.
        let level = compiled.levels[at];
        let beside = compiled.levels.iter().filter(|&&l| l == level).count();
        assert!(
            beside == 1
                && compiled.levels.iter().any(|&l| l < level)
                && compiled.levels.iter().any(|&l| l > level)
        );
        // Norm and both products are one launch, product and residual another.
        assert_eq!(
            compiled.programs.len(),
            3,
            "{:?}",
            compiled
                .programs
                .iter()
                .map(|p| &p.title)
                .collect::<Vec<_>>()
        );
        // The chain before it is one kernel, the chain after it another.
        let amid = compile(
            &amid_elementwise().function,
            &target,
            Some(dialect),
            &mut Cheapest,
        );
        let customs: Vec<bool> = amid.programs.iter().map(|p| is_custom(p)).collect();
        assert_eq!(customs, [false, true, false]);
        let alone = compile(&function, &target, None, &mut Cheapest);
        assert!(!alone.programs.iter().any(|p| is_custom(p)));
        let kept = record::read(&record::write(&compiled), &function);
        assert_eq!(kept.expect("a record").programs[at].source, program.source);
    }
}

/// Elementwise neighbours and dequantisation are fused into a custom kernel's accessors.
///
/// Values that it reads too often are materialised instead.
#[test]
fn a_users_kernel_takes_in_what_its_functions_compute() {
    let product = |kernel| own_product(&Q4_K, kernel).function;
    let cases = [
        (
            within_elementwise().function,
            vec![true],
            5,
            "gated by functions · sigmoid",
        ),
        (
            product(&PRODUCT),
            vec![true],
            5,
            "product by functions · matrix",
        ),
        (
            product(&PRODUCT_OF_MANY),
            vec![false, true],
            4,
            "product by functions · matrix",
        ),
    ];
    let of_wgpu = Target::new(Adapter::named("rx7900xtx").expect("a row").machine());
    let dialects: [(Target, &dyn Dialect, &str); 3] = [
        (Isa::Avx2.target(), &C, "__VA_ARGS__, p0, p1"),
        (Target::named("h200"), &Cuda, "__VA_ARGS__, p0, p1"),
        (of_wgpu, &Wgsl, "fn y("),
    ];
    for (target, dialect, function_of_text) in dialects {
        for (function, customs, params, title) in &cases {
            let compiled = compile(function, &target, Some(dialect), &mut Cheapest);
            let found: Vec<bool> = compiled.programs.iter().map(|p| is_custom(p)).collect();
            assert_eq!(found, *customs, "{}", function.name);
            let program = compiled.programs.last().expect("a program");
            assert_eq!(
                program.params.len(),
                *params,
                "{}:\n{}",
                function.name,
                program.source
            );
            assert!(program.title == *title && program.source.contains(function_of_text));
        }
    }
}

/// NVRTC compiles custom CUDA C texts, with accessors fused as costs suggest and unfused.
#[test]
fn users_kernels_compile_for_a_gpu() {
    let compiler = match Nvrtc::find() {
        Ok(compiler) => compiler,
        Err(error) => {
            let needed = std::env::var_os("GRISTMILL_REQUIRE_NVRTC").is_some();
            assert!(!needed, "GRISTMILL_REQUIRE_NVRTC is set, but {error}");
            eprintln!("skipped: {error}");
            return;
        }
    };
    let (mut text, mut functions) = (prelude(), 0);
    for case in cases() {
        for fusion in [true, false] {
            let target = Target {
                fusion,
                ..Target::named("h200")
            };
            let compiled = compile(
                &case.function,
                &target,
                Some(&Cuda as &dyn Dialect),
                &mut Cheapest,
            );
            for program in compiled.programs.iter().filter(|p| is_custom(p)) {
                if !text.contains(&program.name) {
                    functions += program.source.matches("#undef").count();
                    text += &program.source;
                }
            }
        }
    }
    assert!(functions > 20, "{functions}");
    for sm in [75, 90] {
        if let Err(error) = compiler.compile("of_users", &text, sm, &[]) {
            panic!("sm_{sm}: {error}");
        }
    }
}

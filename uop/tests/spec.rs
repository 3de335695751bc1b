//! Every row of the spec accepts valid graphs and rejects an invalid one.

use gristmill_uop::custom::CustomKernel;
use gristmill_uop::spec::{Level, ROWS, check};
use gristmill_uop::{
    Arg, Encoding, EncodingRef, Graph, Id, Node, Op, RangeKind, ReduceOp, Scalar, text,
};
use smallvec::smallvec;

static BYTES: Encoding = Encoding {
    name: "bytes",
    elements: 4,
    bytes: 6,
    value: |b| b.u8(b.k()) * b.f16(4),
};

fn encodings(name: &str) -> Option<EncodingRef> {
    (name == "bytes").then_some(&BYTES)
}

fn parse(t: &str) -> (Graph, Id) {
    let (g, roots) = text::parse(t, &encodings).unwrap_or_else(|e| panic!("{e}\n{t}"));
    (g, roots[0])
}

use Level::{Kernel as K, Tensor as T};

/// Texts with a last node that violates the named row.
const BAD: &[(Level, &str, &str)] = &[
    (
        T,
        "only sources, movement, elementwise and tensor ops",
        "%0 = Range i64 4:i64 range=0 kind=loop\nreturn %0",
    ),
    (
        K,
        "only scalars, elementwise ops, reductions and kernel ops",
        "%0 = Iota i64 4:i64 axes=[0]\nreturn %0",
    ),
    (T, "one lane", "%0 = Exp f32x4 1.0:f32x4\nreturn %0"),
    (
        T,
        "a constant is a number that its dtype holds",
        "return 256:u8",
    ),
    (
        T,
        "a constant is a number that its dtype holds",
        "return 1:f32",
    ),
    (
        T,
        "a variable is an i64 within an interval",
        "%0 = Var i32 var=n 0..4\nreturn %0",
    ),
    (
        T,
        "a parameter has a slot",
        "%0 = Param f32 4:i64\nreturn %0",
    ),
    (
        T,
        "dims are non-negative i64 scalars with a known maximum",
        "%0 = Param f32 -1:i64 slot=0\nreturn %0",
    ),
    (
        T,
        "dims are non-negative i64 scalars with a known maximum",
        "%0 = Param f32 4:i32 slot=0\nreturn %0",
    ),
    (
        T,
        "a packed row is a whole number of blocks",
        "%0 = Param u8 2:i64 6:i64 slot=0 enc=bytes\nreturn %0",
    ),
    (
        T,
        "one axis, within the rank; i64",
        "%0 = Iota i64 4:i64 axes=[1]\nreturn %0",
    ),
    (
        K,
        "operands are values, neither buffers nor effects",
        "%0 = Param f32 4:i64 slot=0\n%1 = Exp f32 %0\nreturn %1",
    ),
    (
        T,
        "operands have the dtype of the result",
        "%0 = Add f32 1.0:f32 1:i32\nreturn %0",
    ),
    (T, "floats", "%0 = Sub i32 1:i32 1:i32\nreturn %0"),
    (T, "integers", "%0 = Mod f32 1.0:f32 1.0:f32\nreturn %0"),
    (
        T,
        "the divisor is positive",
        "%0 = IDiv i64 1:i64 -4:i64\nreturn %0",
    ),
    (
        T,
        "integers or booleans",
        "%0 = And f32 1.0:f32 1.0:f32\nreturn %0",
    ),
    (
        T,
        "an integer of the result's dtype, shifted by an integer",
        "%0 = Shl i32 1:i32 1.0:f32\nreturn %0",
    ),
    (
        T,
        "operands of one dtype, a boolean result",
        "%0 = Lt i32 1:i32 2:i32\nreturn %0",
    ),
    (
        T,
        "operands of one dtype, a boolean result",
        "%0 = Eq bool 1:i32 2:i64\nreturn %0",
    ),
    (
        T,
        "the condition is boolean",
        "%0 = Where f32 1:i32 2.0:f32 3.0:f32\nreturn %0",
    ),
    (
        T,
        "both branches have the dtype of the result",
        "%0 = Where f32 1:bool 2.0:f32 3:i32\nreturn %0",
    ),
    (
        K,
        "a cast keeps the lanes",
        "%0 = Cast f32x2 1:i32\nreturn %0",
    ),
    (
        T,
        "a bitcast keeps the size",
        "%0 = Bitcast f32 1:i64\nreturn %0",
    ),
    (
        T,
        "an integer within a table of i32",
        "%0 = Table i32 3:i64 table=[1,2,3]\nreturn %0",
    ),
    (
        K,
        "two words and an i32 sum",
        "%0 = SignedDot4 i32 1:u32 2:u32 0:u32\nreturn %0",
    ),
    (
        K,
        "two words and an i32 sum, and the largest byte of the first",
        "%0 = Dot4 i32 1:i32 2:u32 0:i32 int=15\nreturn %0",
    ),
    (
        K,
        "two words and an i32 sum, and the largest byte of the first",
        "%0 = Dot4 i32 1:u32 2:u32 0:i32 int=256\nreturn %0",
    ),
    (
        K,
        "three words, and the largest byte of the first",
        "%0 = Dot2 u32 1:u32 2:u32 0:i32 int=15\nreturn %0",
    ),
    (
        K,
        "three words, and the largest byte of the first",
        "%0 = Dot2 u32 1:u32 2:u32 0:u32 int=256\nreturn %0",
    ),
    (
        K,
        "a word, converted to f32",
        "%0 = Half f32 1:i32\nreturn %0",
    ),
    (
        K,
        "a word and an i32 sum",
        "%0 = Halves i32 1:i32 0:i32\nreturn %0",
    ),
    (
        K,
        "a word and sixteen bytes",
        "%0 = Table4 u32 1:u32 table=[1,2,3]\nreturn %0",
    ),
    (
        K,
        "a word and sixteen bytes",
        "%0 = Table4 u32 1:u32 table=[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,256]\nreturn %0",
    ),
    (
        T,
        "operands are scalars or have the dims of the result",
        "%0 = Param f32 4:i64 slot=0\n%1 = Param f32 5:i64 slot=1\n%2 = Add f32 %0 %1\nreturn %2",
    ),
    (
        T,
        "moved elements keep their dtype",
        "%0 = Param f32 4:i64 slot=0\n%1 = Reshape i32 %0 4:i64\nreturn %1",
    ),
    (
        T,
        "new dims are non-negative i64 scalars with a known maximum",
        "%0 = Param f32 4:i64 slot=0\n%1 = Reshape f32 %0 4:i32\nreturn %1",
    ),
    (
        T,
        "the number of elements does not change",
        "%0 = Param f32 4:i64 slot=0\n%1 = Reshape f32 %0 5:i64\nreturn %1",
    ),
    (
        T,
        "the number of elements does not change",
        "%0 = Var i64 var=n 1..4\n%1 = Param f32 %0 4:i64 slot=0\n%2 = Reshape f32 %1 2:i64 %0\nreturn %2",
    ),
    (
        T,
        "every axis once",
        "%0 = Param f32 4:i64 4:i64 slot=0\n%1 = Permute f32 %0 axes=[1,1]\nreturn %1",
    ),
    (
        T,
        "only axes of length 1 expand",
        "%0 = Param f32 2:i64 slot=0\n%1 = Expand f32 %0 4:i64\nreturn %1",
    ),
    (
        T,
        "a begin and a length for each axis",
        "%0 = Param f32 2:i64 slot=0\n%1 = Shrink f32 %0 1:i64\nreturn %1",
    ),
    (
        T,
        "the window lies within the tensor",
        "%0 = Param f32 2:i64 slot=0\n%1 = Shrink f32 %0 1:i64 2:i64\nreturn %1",
    ),
    (
        T,
        "one axis, within the rank; the parts, then the joined dim",
        "%0 = Param f32 2:i64 slot=0\n%1 = Cat f32 %0 %0 4:i64 axes=[1]\nreturn %1",
    ),
    (
        T,
        "parts have equal dims except on the joined axis",
        "%0 = Param f32 2:i64 slot=0\n%1 = Cat f32 %0 %0 5:i64 axes=[0]\nreturn %1",
    ),
    (
        T,
        "distinct axes within the rank, and one source",
        "%0 = Param f32 2:i64 slot=0\n%1 = Reduce f32 %0 reduce=add axes=[1]\nreturn %1",
    ),
    (
        T,
        "a reduction keeps the dtype",
        "%0 = Param f32 2:i64 slot=0\n%1 = Reduce f64 %0 reduce=add axes=[0]\nreturn %1",
    ),
    (
        T,
        "rows are indexed by an integer",
        "%0 = Param f32 2:i64 slot=0\n%1 = Gather f32 %0 1.0:f32\nreturn %1",
    ),
    (
        T,
        "rows keep their dtype",
        "%0 = Param f32 2:i64 slot=0\n%1 = Gather f16 %0 1:i32\nreturn %1",
    ),
    (
        T,
        "f32 of a packed tensor",
        "%0 = Param u8 8:i64 slot=0\n%1 = Decode f32 %0\nreturn %1",
    ),
    (
        T,
        "state, value, and the first row or the index of each: rows of one dtype and equal dims",
        "%0 = Param f32 8:i64 4:i64 slot=0\n%1 = Param f32 1:i64 5:i64 slot=1\n%2 = Assign f32 %0 %1 0:i64\nreturn %2",
    ),
    (
        T,
        "a tensor, rows to add and the index of each: f32, f16 or i32 of one type and equal dims",
        "%0 = Param f32 8:i64 4:i64 slot=0\n%1 = Param f32 3:i64 4:i64 slot=1\n%2 = Param i32 2:i64 slot=2\n\
         %3 = ScatterAdd f32 %0 %1 %2\nreturn %3",
    ),
    (
        T,
        "a tensor and a number",
        "%0 = Param f32 8:i64 slot=0\n%1 = Copy f32 %0\nreturn %1",
    ),
    (
        T,
        "q, k, v of three matching axes, i64 positions, a constant window, a sink per head, a scale, a positive cap",
        "%0 = Param f32 1:i64 4:i64 8:i64 slot=0\n%1 = Param f32 9:i64 2:i64 8:i64 slot=1\n\
         %2 = Attention f32 %0 %1 %1 0:i64 1:i64 float=0.5 cap=-3.0\nreturn %2",
    ),
    (
        T,
        "q, k, v of three matching axes, i64 positions, a constant window, a sink per head, a scale, a positive cap",
        "%0 = Param f32 1:i64 4:i64 8:i64 slot=0\n%1 = Param f32 9:i64 3:i64 8:i64 slot=1\n\
         %2 = Attention f32 %0 %1 %1 0:i64 1:i64 float=0.5\nreturn %2",
    ),
    (
        T,
        "q of three axes, k and v of four matching axes, a position and a block table row of constant length for each row of q",
        "%0 = Param f32 3:i64 2:i64 8:i64 slot=0\n%1 = Param f32 5:i64 64:i64 1:i64 8:i64 slot=1\n\
         %2 = Param i32 2:i64 slot=2\n%3 = Param i32 3:i64 4:i64 slot=3\n\
         %4 = PagedAttention f32 %0 %1 %1 %2 9:i64 %3 float=0.5\nreturn %4",
    ),
    (
        T,
        "a state, queries, keys, values, gates and optional rates, floats of matching dims; arg 0 or 1",
        "%0 = Param f32 2:i64 4:i64 8:i64 slot=0\n%1 = Param f32 3:i64 2:i64 8:i64 slot=1\n\
         %2 = Param f32 3:i64 2:i64 slot=2\n%3 = Scan f32 %0 %1 %1 %1 %2 int=0\nreturn %3",
    ),
    (
        K,
        "a sum and its maximum",
        "%0 = Rescaled f32 1.0:f32 2:i32\nreturn %0",
    ),
    (
        K,
        "reduced over ranges",
        "%0 = Reduce f32 1.0:f32 2.0:f32 reduce=add\nreturn %0",
    ),
    (
        K,
        "no global range is reduced",
        "%0 = Range i64 4:i64 range=0 kind=global\n%1 = Reduce i64 %0 %0 reduce=add\nreturn %1",
    ),
    (
        K,
        "a nested reduction shares none of its ranges, except lanes of a group",
        "%0 = Range i64 4:i64 range=0 kind=reduce\n%1 = Reduce i64 %0 %0 reduce=max\n%2 = Add i64 %1 %0\n\
         %3 = Reduce i64 %2 %0 reduce=add\nreturn %3",
    ),
    (
        K,
        "an i64 with a number, a kind and an i64 bound",
        "%0 = Range i64 4:i32 range=0 kind=loop\nreturn %0",
    ),
    (
        K,
        "the buffer is a parameter or a local buffer",
        "%0 = Load f32 1.0:f32 0:i64\nreturn %0",
    ),
    (
        K,
        "the offset is an i64",
        "%0 = Param f32 4:i64 slot=0\n%1 = Load f32 %0 0:i32\nreturn %1",
    ),
    (
        K,
        "the buffer's dtype, unless packed, or a word of its bytes",
        "%0 = Param f32 4:i64 slot=0\n%1 = Load f16 %0 0:i64\nreturn %1",
    ),
    (
        K,
        "the buffer's dtype, unless packed, or a word of its bytes",
        "%0 = Param f16 4:i64 slot=0\n%1 = Load u32 %0 0:i64\nreturn %1",
    ),
    (
        K,
        "a value of the buffer's dtype, unless packed",
        "%0 = Param f32 4:i64 slot=0\n%1 = Store f16 %0 0:i64 1.0:f16\nreturn %1",
    ),
    (
        K,
        "closes ranges",
        "%0 = Param f32 4:i64 slot=0\n%1 = Store f32 %0 0:i64 1.0:f32 4:i64\nreturn %1",
    ),
    (
        K,
        "the offset or value depends on each closed global range",
        "%0 = Param f32 4:i64 slot=0\n%1 = Range i64 4:i64 range=0 kind=global\n\
         %2 = Store f32 %0 0:i64 1.0:f32 %1\nreturn %2",
    ),
    (
        K,
        "overwrites an element, or adds f32, f16 or i32 to an element of a parameter",
        "%0 = Param i8 slot=0\n%1 = Store i8 %0 0:i64 1:i8 reduce=add\nreturn %1",
    ),
    (
        K,
        "only an adding store has reduction ranges",
        "%0 = Param f32 slot=0\n%1 = Range i64 4:i64 range=1 kind=reduce\n%2 = Store f32 %0 %1 1.0:f32 %1\nreturn %2",
    ),
    (
        K,
        "a number and a positive constant size",
        "%0 = Local f32 0:i64 int=3\nreturn %0",
    ),
    (
        K,
        "the sources of a body are stores or bodies",
        "%0 = Body f32 1.0:f32\nreturn %0",
    ),
    (
        K,
        "the sources of a kernel are stores or bodies",
        "%0 = Kernel f32 1.0:f32\nreturn %0",
    ),
];

#[test]
fn every_row_can_fail() {
    for (level, row, t) in BAD {
        let (g, root) = parse(t);
        let error = check(&g, root, *level).expect_err(t);
        assert_eq!(error.row, *row, "{t}");
        assert_eq!(error.level, *level);
    }
    // Arity and lanes are checked by the parser, so these nodes are built directly.
    let mut g = Graph::new();
    let x = g.f32(1.0);
    let three = g.intern(Node {
        op: Op::Add,
        dtype: Scalar::F32.one(),
        src: smallvec![x, x, x],
        arg: Arg::None,
    });
    let none = g.intern(Node {
        op: Op::Exp,
        dtype: Scalar::F32.one().with_lanes(0),
        src: smallvec![x],
        arg: Arg::None,
    });
    // A kernel with one argument, called with none; kernels have no text form.
    static TWICE: CustomKernel = CustomKernel {
        name: "twice",
        texts: &[],
        output: "y",
        arguments: &["x"],
        accessors: &[],
        operations: 1,
    };
    let one = g.int(1);
    let call = Node {
        op: Op::Call,
        dtype: Scalar::F32.one(),
        src: smallvec![x, one],
        arg: Arg::Custom(&TWICE),
    };
    let call = g.intern(call);
    // An accessor function for a variable.
    static BY_FUNCTION: CustomKernel = CustomKernel {
        accessors: &[("x", 1)],
        ..TWICE
    };
    let n = g.var("n", 1, 4);
    let by_function = g.call(&BY_FUNCTION, x, one, &[n]);
    let direct = [
        (three, "the number of sources is that of the op table"),
        (none, "at least one lane"),
        (
            call,
            "the kernel's tensors and variables as arguments, and a number of workgroups",
        ),
        (by_function, "accessor functions are of tensors"),
    ];
    for (id, row) in direct {
        let error = check(&g, id, T).expect_err(row);
        assert_eq!(error.row, row);
    }
    for row in ROWS {
        let covered = BAD
            .iter()
            .any(|b| b.1 == row.name && row.level.is_none_or(|l| l == b.0));
        assert!(
            covered || direct.iter().any(|d| d.1 == row.name),
            "no case fails `{}`",
            row.name
        );
    }
}

#[test]
fn an_error_shows_the_node() {
    let (g, root) = parse("%0 = Add f32 1.0:f32 1:i32\nreturn %0");
    let message = check(&g, root, T).expect_err("bad").to_string();
    assert!(message.contains("Add f32 1.0:f32 1:i32"), "{message}");
}

#[test]
fn built_nodes_pass_the_spec() {
    let mut g = Graph::new();
    let n = g.var("n", 1, 4);
    let (pos, len) = (g.var("pos", 0, 60), g.var("len", 1, 64));
    let d: Vec<Id> = [8, 2, 4, 64].iter().map(|&d| g.int(d)).collect();
    let x = g.param(0, &[n, d[0]], Scalar::F32);
    let w = g.packed(1, &[8, 8], &BYTES);
    let w = g.decode(w);
    let w = g.broadcast_front(w, &[n]);
    let xs = g.reshape(x, &[n, d[0]]);
    let one = g.int(1);
    let xr = g.reshape(xs, &[n, one, d[0]]);
    let xr = g.expand(xr, &[n, d[0], d[0]]);
    let p = g.mul(w, xr);
    let y = g.sum(p, &[2]);
    let q = g.reshape(y, &[n, d[1], d[2]]);
    let cache = g.param(2, &[d[3], one, d[2]], Scalar::F32);
    let k = g.slice(y, 1, 0, 4);
    let k = g.reshape(k, &[n, one, d[2]]);
    let cache = g.assign(cache, k, pos);
    let a = g.attention(q, cache, cache, pos, len, 0.5);
    let a = g.permute(a, &[1, 0, 2]);
    let i = g.iota(&[d[1], n, d[2]], 2);
    let i = g.cast(i, Scalar::F32);
    let half = g.f32(0.5);
    let i = g.mul(i, half);
    let a = g.add(a, i);
    let a = g.cat(&[a, a], 1);
    let m = g.reduce(a, &[0, 2], ReduceOp::Max);
    check(&g, m, T).unwrap_or_else(|e| panic!("{e}"));

    let mut g = Graph::new();
    let (eight, four) = (g.int(8), g.int(4));
    let w = g.packed(0, &[8, 4], &BYTES);
    let x = g.param(1, &[four], Scalar::F32);
    let y = g.param(2, &[eight], Scalar::F32);
    let (r, k) = (
        g.range(eight, 0, RangeKind::Global),
        g.range(four, 1, RangeKind::Reduce),
    );
    let six = g.int(6);
    let base = g.mul(r, six);
    let v = BYTES.decode(&mut g, w, base, k);
    let xv = g.load(x, k, Scalar::F32);
    let p = g.mul(v, xv);
    let s = g.reduce_ranges(p, &[k], ReduceOp::Add);
    let st = g.store(y, r, s, &[r]);
    let body = g.build(Op::Body, Scalar::F32.one(), [st].as_slice(), Arg::None);
    let kernel = g.build(Op::Kernel, Scalar::F32.one(), [body].as_slice(), Arg::None);
    check(&g, kernel, K).unwrap_or_else(|e| panic!("{e}"));
}

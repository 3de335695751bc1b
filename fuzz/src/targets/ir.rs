//! Fuzz target for the text form of the IR.

use crate::Target;
use gristmill_uop::spec::{Level, check};
use gristmill_uop::text::{parse, print};

/// Input: UTF-8 text.
pub const TARGET: Target = Target {
    name: "ir",
    about: "the IR's text form: parsed, checked at both levels, printed, parsed again",
    run,
    seeds,
    words: &[
        "%0",
        "%1",
        "%2",
        " = ",
        "return ",
        "Const ",
        "Var ",
        "Param ",
        "Iota ",
        "Reshape ",
        "Permute ",
        "Expand ",
        "Shrink ",
        "Cat ",
        "Cast ",
        "Bitcast ",
        "Add ",
        "Mul ",
        "IDiv ",
        "Mod ",
        "Where ",
        "Table ",
        "Dot4 ",
        "Table4 ",
        "Reduce ",
        "Gather ",
        "Decode ",
        "Assign ",
        "Attention ",
        "Range ",
        "Load ",
        "Local ",
        "Store ",
        "Body ",
        "Kernel ",
        "Splat ",
        "Pack ",
        "Mma ",
        "f32 ",
        "i64 ",
        "u8 ",
        "bool ",
        "f16x4 ",
        "4:i64 ",
        "-1:i64 ",
        "0.5:f32 ",
        "NaN:f32 ",
        "bits(0x7ff8000000000001):f64 ",
        "9223372036854775807:i64 ",
        "axes=[0,1]",
        "reduce=add ",
        "reduce=max ",
        "range=0 ",
        "kind=loop",
        "kind=global",
        "var=n ",
        "0..4",
        "slot=0 ",
        "enc=f32",
        "table=[1,-2]",
        "int=7",
        "float=0.125",
        "\n",
    ],
    longest: 4 << 10,
    tries: 4000,
};

fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let find = |name: &str| {
        gristmill_encodings::TABLE
            .iter()
            .copied()
            .find(|e| e.name == name)
    };
    let Ok((graph, roots)) = parse(text, &find) else {
        return;
    };
    let printed = print(&graph, &roots);
    let (again, same) = parse(&printed, &find).unwrap_or_else(|error| panic!("{error}\n{printed}"));
    assert_eq!(print(&again, &same), printed);
    for (&root, &other) in roots.iter().zip(&same) {
        for level in [Level::Tensor, Level::Kernel] {
            let (one, two) = (check(&graph, root, level), check(&again, other, level));
            assert_eq!(one.is_ok(), two.is_ok(), "{printed}");
        }
    }
}

fn seeds() -> Vec<Vec<u8>> {
    const TEXTS: &[&str] = &[
        "%0 = Param u8 4:i64 64:i64 slot=2 enc=f32\n%1 = Var i64 var=pos 0..4095\n%2 = Param i32 %1 slot=1\n%3 = Gather u8 %0 %2\n%4 = Decode f32 %3\n\
         %5 = Reduce f32 %4 reduce=max axes=[0,1]\n%6 = Mul f32 %5 0.1:f32\nreturn %6\n",
        "%0 = Range i64 18:i64 range=3 kind=vector_reduce\n%1 = Reduce i64 %0 %0 reduce=add\n%2 = Local f32 64:i64 int=7\n%3 = Table i32 %1 table=[1,-2,3]\n\
         return %1 %2 %3 -inf:f32 NaN:f16 -0.0:f32 1e-5:f32 3:i64x4\n",
        "%0 = Param f32 8:i64 slot=0\n%1 = Range i64 8:i64 range=0 kind=global\n%2 = Load f32 %0 %1\n%3 = Param f32 8:i64 slot=1\n\
         %4 = Store f32 %3 %1 %2 %1\n%5 = Body f32 %4\n%6 = Kernel f32 %5\nreturn %6 # a kernel\n",
        "%0 = Param f32 4:i64 6:i64 slot=0\n%1 = Permute f32 %0 axes=[1,0]\n%2 = Reshape f32 %1 24:i64\n%3 = Shrink f32 %2 3:i64 4:i64\n\
         %4 = Cat f32 %3 %3 8:i64 axes=[0]\nreturn %4\n",
    ];
    TEXTS.iter().map(|text| text.as_bytes().to_vec()).collect()
}

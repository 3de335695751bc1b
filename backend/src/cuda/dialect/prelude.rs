//! Prelude of each translation unit: types, macros, conversions and helper functions.

use crate::names::warp_group_name;
use gristmill_uop::fragment::{OF_LINE, Shared, WARPS};
use std::collections::BTreeSet;

/// Scalar types: name, C type.
const SCALARS: &[(&str, &str)] = &[
    ("i8", "signed char"),
    ("u8", "unsigned char"),
    ("i16", "short"),
    ("u16", "unsigned short"),
    ("i32", "int"),
    ("u32", "unsigned int"),
    ("i64", "long long"),
    ("u64", "unsigned long long"),
    ("f32", "float"),
    ("f64", "double"),
];

/// Returns the prelude for CUDA.
pub fn prelude() -> String {
    // wgmma exists on sm_90 only; later architectures have other instructions.
    format!(
        "{DEVICE}#if __CUDA_ARCH__ == 900\n{}#endif\n{}",
        products_of_groups(),
        common()
    )
}

/// Returns functions for warp-group MMA: 64 rows in registers, 16 for each warp, and
/// columns in shared memory.
///
/// The layout is that of `Fragment::place`. Descriptors specify a 64-byte swizzle and count in
/// units of 16 bytes (PTX ISA, "Matrix descriptor", "Strides").
fn products_of_groups() -> String {
    let mut s = String::from(WGMMA);
    let groups = || WARPS.iter().filter(|of| of.is_of_group());
    for sums in groups()
        .map(|of| of.sums.registers())
        .collect::<BTreeSet<_>>()
    {
        s += &format!(
            "struct f32x{sums} {{ float at[{sums}]; }};\n\
             FN f32x{sums} operator*(f32x{sums} a, f32x{sums} b) {{\n\
             _Pragma(\"unroll\") for (int i = 0; i < {sums}; i++) a.at[i] *= b.at[i];\n\
             return a;\n}}\n"
        );
    }
    for of in groups() {
        let (columns, sums) = (of.columns, of.sums.registers());
        // Strides in units: from eight lines to the next, and from the first 32 columns of a
        // term to the next.
        let (name, next, apart) = (warp_group_name(of), of.place(16, 0)[0], OF_LINE * 8);
        let (across, transposed) = match of.shared {
            Shared::Columns => (1, 0),
            Shared::Transposed => (of.units(1), 1),
        };
        let list = |range: std::ops::Range<i64>| {
            range.map(|i| format!("%{i}")).collect::<Vec<_>>().join(",")
        };
        let product = |i: i64| {
            let words = list(sums + 4 * i..sums + 4 * i + 4);
            let of = format!("wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.f16.f16");
            format!(
                "{of} {{{}}}, {{{words}}}, %{}, 1, 1, 1, {transposed};",
                list(0..sums),
                sums + 8 + i
            )
        };
        let d = (0..sums)
            .map(|i| format!("\"+f\"(d.at[{i}])"))
            .collect::<Vec<_>>()
            .join(",");
        if of.shared == Shared::Columns {
            // Rows in shared memory have the layout of the columns of a product
            // with as many columns.
            let product = |of_row: i64| {
                let of = format!("wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.f16.f16");
                format!(
                    "{of} {{{}}}, %{}, %{}, 1, 1, 1, 0, 0;",
                    list(0..sums),
                    sums + of_row,
                    sums + of_row + 1
                )
            };
            s += &format!(
                "FN f32x{sums} {name}_of_stages(const void *rows, const void *columns, f32x{sums} d) {{\n\
                 const unsigned long long y = columns_at(rows, 1, {apart}), x = columns_at(columns, 1, {apart});\n\
                 asm volatile(\"wgmma.fence.sync.aligned; {} {} wgmma.commit_group.sync.aligned;\" : {d} : \"l\"(y), \"l\"(x), \"l\"(y + {next}), \"l\"(x + {next}) : \"memory\");\n\
                 return d;\n}}\n",
                product(0),
                product(2),
            );
        }
        let words = "abcefghi".chars();
        let (own, read): (Vec<_>, Vec<_>) = words
            .map(|w| (format!("unsigned int {w}"), format!("\"r\"({w})")))
            .unzip();
        s += &format!(
            "FN f32x{sums} {name}({}, const void *columns, f32x{sums} d) {{\n\
             const unsigned long long x = columns_at(columns, {across}, {apart});\n\
             asm volatile(\"wgmma.fence.sync.aligned; {} {} wgmma.commit_group.sync.aligned;\" : {d} : {}, \"l\"(x), \"l\"(x + {}) : \"memory\");\n\
             return d;\n}}\n",
            own.join(", "),
            product(0),
            product(1),
            read.join(", "),
            next,
        );
    }
    s
}

const WGMMA: &str = r#"
// What `cp.async` has written is there for these products when it has been waited for: it needs no fence of proxies, as what `st.shared` writes does, and that fence
// would wait for all copies under way (an H200's product of 2,048 rows and 512 columns: 76 us with it).
#define PRODUCTS_ENDED_BUT(but) asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(but) : "memory")
#define WRITES_SHOWN asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define PRODUCTS_ENDED asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory")
FN unsigned long long columns_at(const void *columns, int across, int apart) {
  const unsigned int at = (unsigned int)__cvta_generic_to_shared(columns);
  return (at & 0x3ffffu) >> 4 | (unsigned long long)across << 16 | (unsigned long long)apart << 32 | 2ull << 62;
}
"#;

/// Returns the part that does not depend on the execution of threads.
pub fn common() -> String {
    let mut s = String::new();
    for (name, c) in SCALARS {
        s += &format!("typedef {c} {name};\ntypedef {name} {name}_u;\n");
    }
    for t in ["i32", "u32", "i64", "f32"] {
        let max = if t == "f32" {
            "max_1(x, y)"
        } else {
            "x > y ? x : y"
        };
        for (how, combine) in [("add", "x + y"), ("max", max)] {
            s += &format!("FOLD(fold_{how}_{t}, {t}, {combine})\n");
        }
    }
    for (t, bits) in [
        ("u8", 8u32),
        ("i8", 7),
        ("u16", 16),
        ("i16", 15),
        ("u32", 32),
        ("i32", 31),
        ("i64", 63),
    ] {
        let signed = t.starts_with('i');
        let (lo, hi) = if signed {
            (-(2f64.powi(bits as i32)), 2f64.powi(bits as i32))
        } else {
            (0.0, 2f64.powi(bits as i32))
        };
        let (least, most) = match signed {
            true => (
                format!("(-{0}ll - 1ll)", (1u64 << bits) - 1),
                format!("{}ll", (1u64 << bits) - 1),
            ),
            false => ("0".into(), format!("{}ll", (1u64 << bits) - 1)),
        };
        let compared = format!(
            "FN {t} cvt_f32_{t}_1(f32 x) {{ return x >= {hi:e}f ? ({t}){most} : x > {lo:e}f ? ({t})x : x <= {lo:e}f ? ({t}){least} : ({t})0; }}\n"
        );
        // One saturating instruction for up to 32 bits, where the language has one.
        s += &match bits {
            0..=32 => {
                let ptx = if signed {
                    t.replace('i', "s")
                } else {
                    t.into()
                };
                format!("#ifdef SATURATED\nSATURATED({t}, {ptx})\n#else\n{compared}#endif\n")
            }
            _ => compared,
        };
    }
    s + COMMON
}

/// Prelude of the CUDA dialect.
///
/// `clock` is null, or the address where a launch records when its predecessors ended
/// (`clocks.rs`). Recording at the end of a workgroup would cost half a microsecond even
/// if it is null.
const DEVICE: &str = r#"
#define FN static __device__ __forceinline__
#define ENTRY(threads, beside, name) extern "C" __global__ void __launch_bounds__(threads, beside) name
#define TABLE static __device__ const
#define RESTRICT __restrict__
#define SHARED(name) extern __shared__ __align__(512) unsigned char name[]
#define THREAD_INDEX ((int)threadIdx.x)
#define THREADS ((int)blockDim.x)
#define GROUP_INDEX ((long long)blockIdx.x)
#define BARRIER __syncthreads()
#define PRAGMA(x) _Pragma(#x)
#define UNROLL(n) PRAGMA(unroll n)
#if __CUDA_ARCH__ >= 900
#define WAIT asm volatile("griddepcontrol.wait;" ::: "memory")
#define DEPENDENTS_MAY_START asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#else
#define WAIT
#define DEPENDENTS_MAY_START
#endif
#define CLOCK , unsigned long long *clock
#define PREDECESSORS_ENDED WAIT; if (clock && thread == 0) note_time(clock)
FN void note_time(unsigned long long *first) {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  asm volatile("red.global.min.u64 [%0], %1;" :: "l"(first), "l"(now) : "memory");
}
#if __CUDA_ARCH__ >= 900
#define ASK_FOR(p, bytes) if (thread == 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(p), "r"(bytes))
#elif __CUDA_ARCH__ >= 800
#define ASK_FOR(p, bytes) for (int i = 32 * thread; i < bytes; i += 32 * THREADS) asm volatile("prefetch.global.L2 [%0];" :: "l"((p) + i))
#else
#define ASK_FOR(p, bytes)
#endif
#if __CUDA_ARCH__ >= 800
#define COPY(to, from) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"((unsigned int)__cvta_generic_to_shared(to)), "l"(from) : "memory")
#define COPY_BEHIND(to, a, from, b) asm volatile("cp.async.cg.shared.global [%0+%2], [%1+%3], 16;" :: "r"((unsigned int)__cvta_generic_to_shared(to)), "l"(from), "n"(a), "n"(b) : "memory")
#define COPIES_ENDED asm volatile("cp.async.wait_all;" ::: "memory")
#define COPIES_MADE asm volatile("cp.async.commit_group;" ::: "memory")
#define COPIES_ENDED_BUT(groups) asm volatile("cp.async.wait_group %0;" :: "n"(groups) : "memory")
#else
#define COPY(to, from) *(u32x4 *)(to) = *(const u32x4 *)(from)
#define COPY_BEHIND(to, a, from, b) COPY((u8 *)(to) + a, (const u8 *)(from) + b)
#define COPIES_ENDED
#define COPIES_MADE
#define COPIES_ENDED_BUT(groups)
#endif
#define INFINITE __int_as_float(0x7f800000)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)
struct __align__(8) u32x2 { unsigned int x, y; };
struct __align__(16) u32x4 { unsigned int x, y, z, w; };
struct __align__(16) i32x4 { int x, y, z, w; };
struct __align__(16) f32x4 { float x, y, z, w; };
FN f32x4 operator*(f32x4 a, f32x4 b) { return f32x4{a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w}; }
template <class T, int N> struct Array { T at[N]; };
FN float bits_i32_f32(int x) { return __int_as_float(x); }
FN int bits_f32_i32(float x) { return __float_as_int(x); }
FN float bits_u32_f32(unsigned int x) { return __uint_as_float(x); }
FN unsigned int bits_f32_u32(float x) { return __float_as_uint(x); }
FN float cvt_f16_f32_1(unsigned short x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
FN unsigned short cvt_f32_f16_1(float x) { unsigned short y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
// Additions to memory that exclude one another. A half alone is one of a pair, beside which -0 is added: that changes nothing.
FN void add_i32(int *p, int x) { asm volatile("red.global.add.s32 [%0], %1;" :: "l"(p), "r"(x) : "memory"); }
FN void add_f32(float *p, float x) { asm volatile("red.global.add.f32 [%0], %1;" :: "l"(p), "f"(x) : "memory"); }
FN void add_f16_word(unsigned int *p, unsigned int x) { asm volatile("red.global.add.noftz.f16x2 [%0], %1;" :: "l"(p), "r"(x) : "memory"); }
FN void add_f16_pair(unsigned short *p, unsigned short x, unsigned short y) { add_f16_word((unsigned int *)p, x | (unsigned int)y << 16); }
FN void add_f16(unsigned short *p, unsigned short x) {
  const bool high = (unsigned long long)p & 2;
  add_f16_word((unsigned int *)(p - high), high ? 0x8000u | (unsigned int)x << 16 : 0x80000000u | x);
}
#define SATURATED(type, ptx) \
FN type cvt_f32_##type##_1(float x) { int y; asm("cvt.rzi." #ptx ".f32 %0, %1;" : "=r"(y) : "f"(x)); return (type)y; }
FN float exp_1(float x) { return expf(x); }
FN float exp2_1(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
FN float log_1(float x) { return logf(x); }
FN float sqrt_1(float x) { return sqrtf(x); }
FN float round_1(float x) { return rintf(x); }
FN float max_1(float a, float b) { return fmaxf(a, b); }
FN float min_1(float a, float b) { return fminf(a, b); }
FN float fma_1(float a, float b, float c) { return fmaf(a, b, c); }
FN int dot4_any_1(unsigned int a, unsigned int b, int c) { int d; asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c)); return d; }
FN int dot4_signed_1(unsigned int a, unsigned int b, int c) { int d; asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c)); return d; }
FN int dot4_small_1(unsigned int a, unsigned int b, int c) { return dot4_any_1(a, b, c); }
FN unsigned int permuted(unsigned int a, unsigned int b, unsigned int by) { return __byte_perm(a, b, by); }
// Bytes of ones where a byte's highest bit is set (PTX ISA, prmt: the highest bit of a selector).
FN unsigned int sign_bytes(unsigned int x) {
  unsigned int y;
  asm("prmt.b32 %0, %1, 0, 0xba98;" : "=r"(y) : "r"(x));
  return y;
}
template <class T> FN T shuffled(T x, int by) { return __shfl_xor_sync(0xffffffffu, x, by); }
#if __CUDA_ARCH__ >= 750
FN f32x4 mma_halves_8(unsigned int a, unsigned int b, unsigned int x, f32x4 d) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(d.x), "+f"(d.y), "+f"(d.z), "+f"(d.w) : "r"(a), "r"(b), "r"(x));
  return d;
}
#endif
#if __CUDA_ARCH__ < 800
template <bool SIGNED, int N> FN i32x4 mma(const unsigned int (&own)[N]) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, halves = N / 3;
  int sums[4];
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++) {
      int sum = 0;
      for (int h = 0; h < halves; h++)
        for (int k = 0; k < 4; k++) {
          const unsigned int a = __shfl_sync(0xffffffffu, own[2 * h + i], g * 4 + k);
          const unsigned int b = __shfl_sync(0xffffffffu, own[2 * halves + h], (2 * t + j) * 4 + k);
          sum = SIGNED ? dot4_signed_1(a, b, sum) : dot4_any_1(a, b, sum);
        }
      sums[2 * i + j] = sum;
    }
  return {sums[0], sums[1], sums[2], sums[3]};
}
FN i32x4 mma_16(unsigned int a, unsigned int b, unsigned int x) { const unsigned int own[] = {a, b, x}; return mma<false>(own); }
FN i32x4 mma_signed_16(unsigned int a, unsigned int b, unsigned int x) { const unsigned int own[] = {a, b, x}; return mma<true>(own); }
#define MMA_32(name, SIGNED, type) \
FN i32x4 name(unsigned int a, unsigned int b, unsigned int c, unsigned int e, unsigned int x, unsigned int y) { \
  const unsigned int own[] = {a, b, c, e, x, y}; \
  return mma<SIGNED>(own); \
}
FN float dot_halves(unsigned int a, unsigned int b, float c) {
  c = fmaf(cvt_f16_f32_1((unsigned short)a), cvt_f16_f32_1((unsigned short)b), c);
  return fmaf(cvt_f16_f32_1((unsigned short)(a >> 16)), cvt_f16_f32_1((unsigned short)(b >> 16)), c);
}
static __device__ __noinline__ f32x4 mma_halves(unsigned int a, unsigned int b, unsigned int c, unsigned int e, unsigned int x, unsigned int y, f32x4 d) {
  const unsigned int rows[] = {a, b, c, e}, columns[] = {x, y};
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float sums[] = {d.x, d.y, d.z, d.w};
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++)
      for (int h = 0; h < 2; h++)
        for (int k = 0; k < 4; k++) {
          const unsigned int row = __shfl_sync(0xffffffffu, rows[2 * h + i], g * 4 + k);
          const unsigned int column = __shfl_sync(0xffffffffu, columns[h], (2 * t + j) * 4 + k);
          sums[2 * i + j] = dot_halves(row, column, sums[2 * i + j]);
        }
  return {sums[0], sums[1], sums[2], sums[3]};
}
#else
FN f32x4 mma_halves(unsigned int a, unsigned int b, unsigned int c, unsigned int e, unsigned int x, unsigned int y, f32x4 d) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d.x), "+f"(d.y), "+f"(d.z), "+f"(d.w) : "r"(a), "r"(b), "r"(c), "r"(e), "r"(x), "r"(y));
  return d;
}
FN f32x4 mma_bf16(unsigned int a, unsigned int b, unsigned int c, unsigned int e, unsigned int x, unsigned int y, f32x4 d) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d.x), "+f"(d.y), "+f"(d.z), "+f"(d.w) : "r"(a), "r"(b), "r"(c), "r"(e), "r"(x), "r"(y));
  return d;
}
#define MMA_16(name, type) \
FN i32x4 name(unsigned int a, unsigned int b, unsigned int x) { \
  i32x4 d; \
  asm("mma.sync.aligned.m16n8k16.row.col.s32." type ".s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};" \
      : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w) : "r"(a), "r"(b), "r"(x), "r"(0)); \
  return d; \
}
MMA_16(mma_16, "u8")
MMA_16(mma_signed_16, "s8")
#define MMA_32(name, SIGNED, type) \
FN i32x4 name(unsigned int a, unsigned int b, unsigned int c, unsigned int e, unsigned int x, unsigned int y) { \
  i32x4 d; \
  asm("mma.sync.aligned.m16n8k32.row.col.s32." type ".s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};" \
      : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w) : "r"(a), "r"(b), "r"(c), "r"(e), "r"(x), "r"(y), "r"(0)); \
  return d; \
}
#endif
MMA_32(mma_32, false, "u8")
MMA_32(mma_signed_32, true, "s8")
FN unsigned int f16_twice(float x) {
  unsigned int h;
  asm("{ .reg .f16 a; cvt.rn.f16.f32 a, %1; mov.b32 %0, {a, a}; }" : "=r"(h) : "f"(x));
  return h;
}
// A constant that the assembler does not know, as workgroups have no third axis, and so keeps in a register: of one that it knows and the selection it moves one
// to a register anew for every pair, 59 of 546 instructions of an iteration.
#define UNKNOWN(x) ((x) + threadIdx.z)
// (1024 + c) - (1024 - zero) is exact.
FN unsigned int f16_whole(unsigned int word, unsigned int select, unsigned int zero) {
  unsigned int x = __byte_perm(word, UNKNOWN(0x64646464u), select);
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(x) : "r"(x), "r"(zero));
  return x;
}
FN unsigned int scaled_pair_f16(unsigned int word, float factor, unsigned int select, unsigned int zero) {
  unsigned int x = f16_whole(word, select, zero);
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(x) : "r"(x), "r"(f16_twice(factor)));
  return x;
}
FN unsigned int scaled_pair_and_f16(unsigned int word, float factor, float term, unsigned int select, unsigned int zero) {
  unsigned int x = f16_whole(word, select, zero);
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(x) : "r"(x), "r"(f16_twice(factor)), "r"(f16_twice(term)));
  return x;
}
FN unsigned int bf16_twice(float x) {
  unsigned int h;
  asm("cvt.rn.bf16x2.f32 %0, %1, %1;" : "=r"(h) : "f"(x));
  return h;
}
FN unsigned int bf16_fma(unsigned int x, unsigned int y, unsigned int z) {
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(x) : "r"(x), "r"(y), "r"(z));
  return x;
}
// Before sm_90 there is but this one op of bf16: times one, plus -0.
FN unsigned int scaled_pair_bf16(unsigned int word, float factor, unsigned int select, unsigned int zero) {
  return bf16_fma(bf16_fma(__byte_perm(word, UNKNOWN(0x43434343u), select), 0x3f803f80u, zero), bf16_twice(factor), 0x80008000u);
}
FN unsigned int scaled_pair_and_bf16(unsigned int word, float factor, float term, unsigned int select, unsigned int zero) {
  return bf16_fma(bf16_fma(__byte_perm(word, UNKNOWN(0x43434343u), select), 0x3f803f80u, zero), bf16_twice(factor), bf16_twice(term));
}
#define FOLD(name, T, COMBINE) \
FN T name(T x, int lanes, int stride) { \
  _Pragma("unroll") for (int m = stride; m < 32 && m < lanes * stride; m <<= 1) { T y = shuffled(x, m); x = COMBINE; } \
  if (lanes * stride > 32) { \
    __shared__ T parts[1024]; \
    const int thread = THREAD_INDEX, next = stride < 32 ? 32 : stride, count = lanes * stride / next; \
    BARRIER; parts[thread] = x; BARRIER; \
    const int first = thread - thread % (lanes * stride) + thread % next; \
    x = parts[first]; \
    _Pragma("unroll") for (int i = 1; i < count; i++) { T y = parts[first + i * next]; x = COMBINE; } \
  } \
  return x; \
}
"#;

/// Prelude in plain C++.
const COMMON: &str = r#"
FN f32 cvt_bf16_f32_1(u16 x) { return bits_u32_f32((u32)x << 16); }
FN u16 cvt_f32_bf16_1(f32 f) {
  u32 x = bits_f32_u32(f);
  if ((x & 0x7fffffffu) > 0x7f800000u) return (u16)((x >> 16) | 64);
  return (u16)((x + 0x7fffu + ((x >> 16) & 1)) >> 16);
}
FN u16 unaligned_u16(const void *p) { const u8 *b = (const u8 *)p; return (u16)(b[0] | b[1] << 8); }
FN u32 unaligned_u32(const void *p) { const u8 *b = (const u8 *)p; return (u32)b[0] | (u32)b[1] << 8 | (u32)b[2] << 16 | (u32)b[3] << 24; }
FN i16 unaligned_i16(const void *p) { return (i16)unaligned_u16(p); }
FN i32 unaligned_i32(const void *p) { return (i32)unaligned_u32(p); }
FN f32 unaligned_f32(const void *p) { return bits_u32_f32(unaligned_u32(p)); }
// Each of four bytes below 16 chooses an entry of a table of 16: its lowest three bits one in either half, the fourth the half.
FN u32 table4(u32 a, u32 b, u32 c, u32 d, u32 x) {
  const u32 low = x & 0x07070707u, by = permuted(low | low >> 4, 0u, 0x4420u), up = sign_bytes(x << 4);
  return (permuted(a, b, by) & ~up) | (permuted(c, d, by) & up);
}
"#;

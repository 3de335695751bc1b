//! AMX tiles: registers of 16 rows of 64 bytes, and their products.
//!
//! Values that are tiles live in numbered registers assigned by lowering; without AMX they are
//! arrays of the kernel.

use crate::render::Expressions;
use gristmill_compiler::lower::Statement;
use gristmill_uop::fragment::AMX_BF16;
use gristmill_uop::{Arg, Graph, Id, Op, Scalar};

/// Macros and functions for tiles.
///
/// The instructions are inline assembly with memory clobbers: the compilers' intrinsics declare no
/// memory effects (gcc 12), so that stores move past them.
pub(super) const FUNCTIONS: &str = r#"
#if defined(__AVX512BF16__)
typedef i16 i16x32 __attribute__((vector_size(64)));
FN u32x16 pair_bf16_16(f32x16 a, f32x16 b) {
  i16x32 p;
  __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(p) : "v"(a), "v"(b));
  return (u32x16)__builtin_shufflevector(p, p, 0,16,1,17,2,18,3,19,4,20,5,21,6,22,7,23,8,24,9,25,10,26,11,27,12,28,13,29,14,30,15,31);
}
#else
FN u32x16 rounded_bf16_16(f32x16 x) {
  u32x16 b = (u32x16)x;
  i32x16 nan = (i32x16)((b & 0x7fffffffu) > 0x7f800000u);
  return select_u32x16(nan, b >> 16 | 64, (b + 0x7fff + (b >> 16 & 1)) >> 16);
}
FN u32x16 pair_bf16_16(f32x16 a, f32x16 b) { return rounded_bf16_16(a) | rounded_bf16_16(b) << 16; }
#endif
#if defined(__AMX_BF16__)
typedef struct { u8 palette, start, reserved[14]; u16 bytes[16]; u8 rows[16]; } TileShapes;
#define TILES_BEGIN \
  u32 rows_of_tile[2][256] __attribute__((aligned(64))); i64 tile_turn = 0; \
  { TileShapes s = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}}; __asm__ volatile("ldtilecfg %0" : : "m"(s) : "memory"); }
#define TILES_END __asm__ volatile("tilerelease" : : : "memory")
#define TILE_ZERO(c) __asm__ volatile("tilezero %%tmm" #c : : : "memory")
#define TILE_LOAD(c, p, stride) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #c : : "r"(p), "r"((i64)(stride)) : "memory")
#define TILE_STORE(p, stride, c) __asm__ volatile("tilestored %%tmm" #c ", (%0,%1,1)" : : "r"(p), "r"((i64)(stride)) : "memory")
#define TILE_PRODUCT(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : : : "memory")
#else
#define TILES_BEGIN u32 rows_of_tile[2][256]; i64 tile_turn = 0; u32 tiles[8][256]
#define TILES_END
#define TILE_ZERO(c) for (i32 i = 0; i < 256; i++) tiles[c][i] = 0
#define TILE_LOAD(c, p, stride) \
  for (i32 i = 0; i < 16; i++) for (i32 j = 0; j < 16; j++) tiles[c][16 * i + j] = ((const u32_u *)((const u8 *)(p) + i * (i64)(stride)))[j]
#define TILE_STORE(p, stride, c) \
  for (i32 i = 0; i < 16; i++) for (i32 j = 0; j < 16; j++) ((u32_u *)((u8 *)(p) + i * (i64)(stride)))[j] = tiles[c][16 * i + j]
#define TILE_PRODUCT(c, a, b) tile_product(tiles[c], tiles[a], tiles[b])
static __attribute__((noinline, unused)) void tile_product(u32 *c, const u32 *a, const u32 *b) {
  for (i32 i = 0; i < 16; i++) for (i32 j = 0; j < 16; j++) {
    f32 s = bits_u32_f32(c[16 * i + j]);
    for (i32 k = 0; k < 16; k++) {
      u32 x = a[16 * i + k], y = b[16 * k + j];
      s = fma_1(bits_u32_f32(x << 16), bits_u32_f32(y << 16), s);
      s = fma_1(bits_u32_f32(x & 0xffff0000u), bits_u32_f32(y & 0xffff0000u), s);
    }
    c[16 * i + j] = bits_f32_u32(s);
  }
}
#endif
"#;

/// Returns the register number of a tile.
fn register(g: &Graph, id: Id) -> i32 {
    match &g[id].arg {
        Arg::Ints(numbers) => numbers[0],
        _ => unreachable!("a tile has a register: {:?}", g[id]),
    }
}

/// Renders a statement on tiles; None for other statements.
pub(super) fn statement(t: &Expressions, s: &Statement) -> Option<String> {
    let g = t.g;
    // The product that defines a sum has its register.
    let of_sum = |sum: Id| register(g, g[sum].src[0]);
    let is_tile = |id: Id| i64::from(g[id].dtype.lanes) == AMX_BF16.rows * AMX_BF16.columns;
    Some(match s {
        Statement::Define(id) if is_tile(*id) => match (&g[*id].op, &g[*id].arg) {
            (Op::TileLoad, Arg::Ints(numbers)) => {
                let (buffer, at) = (t.buffer(g[*id].src[0]), t.name(g[*id].src[1]));
                format!(
                    "TILE_LOAD({}, {buffer} + {at}, {});",
                    numbers[0],
                    2 * numbers[1]
                )
            }
            (Op::TileRows, _) => rows(t, *id),
            // The zero that sums start with needs no statement.
            (Op::Splat, _) => String::new(),
            _ => unreachable!("no value that is a tile: {:?}", g[*id]),
        },
        Statement::Accumulator(acc) if is_tile(*acc) => {
            format!("TILE_ZERO({});", of_sum(g[*acc].src[1]))
        }
        // Tiles of bytes are not generated yet and have no text.
        Statement::Accumulate(acc, product) if is_tile(*acc) && g.scalar(*acc) == Scalar::F32 => {
            let [a, b] = [0, 1].map(|i| register(g, g[*product].src[i]));
            format!("TILE_PRODUCT({}, {a}, {b});", register(g, *product))
        }
        Statement::WriteTile(buffer, at, stride, sum) => {
            let bytes = g.scalar(*buffer).bytes() as i64 * stride;
            format!(
                "TILE_STORE({} + {}, {bytes}, {});",
                t.buffer(*buffer),
                t.name(*at),
                of_sum(*sum)
            )
        }
        _ => return None,
    })
}

/// Renders a tile built of vectors, through memory. Two buffers alternate, so that one can be
/// written while the other is read.
fn rows(t: &Expressions, id: Id) -> String {
    let n = &t.g[id];
    let store = |(i, &row): (usize, &Id)| {
        format!(
            "*(u32x16 *)(rows_of_tile[tile_turn] + {}) = {};\n",
            16 * i,
            t.name(row)
        )
    };
    let stores: String = n.src.iter().enumerate().map(store).collect();
    format!(
        "{stores}TILE_LOAD({}, rows_of_tile[tile_turn], 64); tile_turn ^= 1;",
        register(t.g, id)
    )
}

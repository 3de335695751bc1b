// The words of the CUDA dialect (backend/src/cuda/dialect/prelude.rs) for one processor, on the workgroups of coroutines.h.
#define FN static inline
#define ENTRY(threads, beside, name) static void name
#define TABLE static const
#define RESTRICT
#define SHARED(name) unsigned char *const name = sim::scratch
#define THREAD_INDEX (sim::current)
#define THREADS (sim::threads)
#define GROUP_INDEX ((long long)sim::group)
#define BARRIER sim::barrier()
#define UNROLL(n)
#define PREDECESSORS_ENDED (sim::waited[sim::current] = true)
#define DEPENDENTS_MAY_START
#define CLOCK
#define ASK_FOR(p, bytes) (void)(p)
#define COPY(to, from) sim::copy(to, from)
#define COPY_BEHIND(to, a, from, b) sim::copy((unsigned char *)(to) + a, (const unsigned char *)(from) + b)
#define COPIES_ENDED sim::copies_ended(0)
#define COPIES_MADE sim::made[sim::current]++
#define PRODUCTS_ENDED
#define WRITES_SHOWN
#define PRODUCTS_ENDED_BUT(n)
#define COPIES_ENDED_BUT(n) sim::copies_ended(n)
#define INFINITE ((float)INFINITY)
#define NOT_A_NUMBER ((float)NAN)

struct alignas(8) u32x2 { unsigned int x, y; };
struct alignas(16) u32x4 { unsigned int x, y, z, w; };
struct alignas(16) i32x4 { int x, y, z, w; };
struct alignas(16) f32x4 { float x, y, z, w; };
FN f32x4 operator*(f32x4 a, f32x4 b) { return f32x4{a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w}; }
template <class T, int N> struct Array { T at[N]; };
FN float bits_i32_f32(int x) { return bits<int, float>(x); }
FN int bits_f32_i32(float x) { return bits<float, int>(x); }
FN float bits_u32_f32(unsigned int x) { return bits<unsigned int, float>(x); }
FN unsigned int bits_f32_u32(float x) { return bits<float, unsigned int>(x); }
FN void add_i32(int *p, int x) { *p = (int)((unsigned int)*p + (unsigned int)x); }
FN void add_f32(float *p, float x) { *p += x; }
FN void add_f16(unsigned short *p, unsigned short x) {
  *p = bits<_Float16, unsigned short>((_Float16)((float)bits<unsigned short, _Float16>(*p) + (float)bits<unsigned short, _Float16>(x)));
}
FN void add_f16_pair(unsigned short *p, unsigned short x, unsigned short y) {
  if ((uintptr_t)p % 4) abort();
  add_f16(p, x);
  add_f16(p + 1, y);
}
FN float cvt_f16_f32_1(unsigned short x) { return (float)bits<unsigned short, _Float16>(x); }
FN unsigned short cvt_f32_f16_1(float x) { return bits<_Float16, unsigned short>((_Float16)x); }
FN float exp_1(float x) { return expf(x); }
FN float exp2_1(float x) { return exp2f(x); }
FN float log_1(float x) { return logf(x); }
FN float sqrt_1(float x) { return sqrtf(x); }
FN float round_1(float x) { return rintf(x); }
FN float max_1(float a, float b) { return fmaxf(a, b); }
FN float min_1(float a, float b) { return fminf(a, b); }
FN float fma_1(float a, float b, float c) { return fmaf(a, b, c); }
FN int dot4_any_1(unsigned int a, unsigned int b, int c) {
  for (int i = 0; i < 4; i++) c += (int)(a >> 8 * i & 255) * (signed char)(b >> 8 * i);
  return c;
}
FN int dot4_signed_1(unsigned int a, unsigned int b, int c) {
  for (int i = 0; i < 4; i++) c += (int)(signed char)(a >> 8 * i) * (signed char)(b >> 8 * i);
  return c;
}
FN int dot4_small_1(unsigned int a, unsigned int b, int c) { return dot4_any_1(a, b, c); }
FN unsigned int sign_bytes(unsigned int x) { return (x >> 7 & 0x01010101u) * 255u; }
FN unsigned int permuted(unsigned int a, unsigned int b, unsigned int by) {
  uint64_t all = (uint64_t)b << 32 | a;
  unsigned int r = 0;
  for (int i = 0; i < 4; i++) r |= (unsigned int)(all >> 8 * (by >> 4 * i & 7) & 255) << 8 * i;
  return r;
}
// Words `n` of each lane of this warp: a[0..n/3*2] of rows, b[..] of tokens; as the instruction defines its fragments. As with `shuffled`, what is shown in one turn
// is read in the next.
static inline i32x4 mma(bool is_signed, int n, const unsigned int *own) {
  static unsigned int shown[2][1024][6];
  auto &words = shown[sim::turn & 1];
  memcpy(words[sim::current], own, n * sizeof *own);
  BARRIER;
  const int lane = sim::current % 32, first = sim::current - lane, g = lane / 4, t = lane % 4, halves = n / 3;
  int sums[4];
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++) {
      int sum = 0;
      for (int h = 0; h < halves; h++)
        for (int k = 0; k < 4; k++)
          sum = (is_signed ? dot4_signed_1 : dot4_any_1)(words[first + g * 4 + k][2 * h + i], words[first + (2 * t + j) * 4 + k][2 * halves + h], sum);
      sums[2 * i + j] = sum;
    }
  return {sums[0], sums[1], sums[2], sums[3]};
}
#define MMA(name, is_signed) \
FN i32x4 name##16(unsigned int a, unsigned int b, unsigned int x) { \
  const unsigned int own[] = {a, b, x}; \
  return mma(is_signed, 3, own); \
} \
FN i32x4 name##32(unsigned int a, unsigned int b, unsigned int c, unsigned int e, unsigned int x, unsigned int y) { \
  const unsigned int own[] = {a, b, c, e, x, y}; \
  return mma(is_signed, 6, own); \
}
MMA(mma_, false)
MMA(mma_signed_, true)
static inline float half_at(bool bf16, unsigned int word, int k) {
  const unsigned short bits_of = (unsigned short)(word >> k % 2 * 16);
  return bf16 ? bits<unsigned int, float>((unsigned int)bits_of << 16) : cvt_f16_f32_1(bits_of);
}
// The halves of these words as floats: a lane's are read by many others.
static inline void halves_of(bool bf16, int n, const unsigned int *words, float *to) {
  for (int k = 0; k < 2 * n; k++) to[k] = half_at(bf16, words[k / 2], k);
}
// `n` words of rows `g` and `g + 8` each, then `n` of columns, of two halves.
static inline f32x4 mma_of_halves(bool bf16, int n, const unsigned int *own, f32x4 d) {
  static float shown[2][1024][12];
  auto &values = shown[sim::turn & 1];
  halves_of(bf16, 3 * n, own, values[sim::current]);
  BARRIER;
  const int lane = sim::current % 32, first = sim::current - lane, g = lane / 4, t = lane % 4;
  float sums[] = {d.x, d.y, d.z, d.w};
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++)
      for (int h = 0; h < n; h++)
        for (int k = 0; k < 8; k++) {
          const float row = values[first + g * 4 + k / 2][2 * (2 * h + i) + k % 2], column = values[first + (2 * t + j) * 4 + k / 2][2 * (2 * n + h) + k % 2];
          const float product = row * column;
          sums[2 * i + j] += product;
        }
  return {sums[0], sums[1], sums[2], sums[3]};
}
FN f32x4 mma_halves(unsigned int a, unsigned int b, unsigned int c, unsigned int e, unsigned int x, unsigned int y, f32x4 d) {
  const unsigned int own[] = {a, b, c, e, x, y};
  return mma_of_halves(false, 2, own, d);
}
FN f32x4 mma_bf16(unsigned int a, unsigned int b, unsigned int c, unsigned int e, unsigned int x, unsigned int y, f32x4 d) {
  const unsigned int own[] = {a, b, c, e, x, y};
  return mma_of_halves(true, 2, own, d);
}
FN f32x4 mma_halves_8(unsigned int a, unsigned int b, unsigned int x, f32x4 d) {
  const unsigned int own[] = {a, b, x};
  return mma_of_halves(false, 1, own, d);
}
// Words of rows `g` and `g + 8` of this warp's 16, of 32 terms; columns in units of 8 terms, of all columns before the next, or of 8 columns, of all terms.
// How columns lie: `Shared` in `uop/src/fragment.rs`.
template <int COLUMNS, bool TRANSPOSED, class Sums> static inline Sums wgmma(const unsigned int *own, const void *columns, Sums d) {
  static float shown[2][1024][16];
  auto &values = shown[sim::turn & 1];
  halves_of(false, 8, own, values[sim::current]);
  BARRIER;
  const int lane = sim::current % 32, first = sim::current - lane, g = lane / 4, t = lane % 4;
  const unsigned short *halves = (const unsigned short *)columns;
  for (int n = 0; n < COLUMNS / 8; n++)
    for (int j = 0; j < 2; j++)
      for (int k = 0; k < 32; k++) {
        const int column = 8 * n + 2 * t + j;
        const int at = TRANSPOSED ? ((column / 32 * 32 + k) * 4 + (n % 4 ^ k / 2 % 4)) * 8 + 2 * t + j
                                  : (column * 4 + (k / 8 ^ column / 2 % 4)) * 8 + k % 8;
        const float value = half_at(false, halves[at], 0);
        for (int i = 0; i < 2; i++) {
          const float product = values[first + g * 4 + k % 8 / 2][2 * (2 * (k / 8) + i) + k % 2] * value;
          d.at[4 * n + 2 * i + j] += product;
        }
      }
  return d;
}
// The same of rows that stand in memory, as columns of a product of 64 do.
template <int COLUMNS, class Sums> static inline Sums wgmma_of_stages(const void *rows, const void *columns, Sums d) {
  const int lane = sim::current % 32, warp = sim::current / 32 % 4, g = lane / 4, t = lane % 4;
  unsigned int own[8];
  for (int i = 0; i < 8; i++) {
    const int row = 16 * warp + 8 * (i % 2) + g, term = 8 * (i / 2) + 2 * t;
    own[i] = *(const unsigned int *)((const unsigned short *)rows + (row * 4 + (term / 8 ^ row / 2 % 4)) * 8 + term % 8);
  }
  return wgmma<COLUMNS, false>(own, columns, d);
}
#define WGMMA_OF(columns, sums, name, transposed) \
FN f32x##sums name(unsigned int a, unsigned int b, unsigned int c, unsigned int e, unsigned int f, unsigned int g, unsigned int h, unsigned int i, const void *at, f32x##sums d) { \
  const unsigned int own[] = {a, b, c, e, f, g, h, i}; \
  return wgmma<columns, transposed>(own, at, d); \
}
#define WGMMA(columns, sums) \
struct f32x##sums { float at[sums]; }; \
FN f32x##sums operator*(f32x##sums a, f32x##sums b) { for (int i = 0; i < sums; i++) a.at[i] *= b.at[i]; return a; } \
WGMMA_OF(columns, sums, wgmma_##columns, false) \
FN f32x##sums wgmma_##columns##_of_stages(const void *rows, const void *at, f32x##sums d) { return wgmma_of_stages<columns>(rows, at, d); } \
WGMMA_OF(columns, sums, wgmma_##columns##_transposed, true)
WGMMA(16, 8)
WGMMA(32, 16)
WGMMA(64, 32)
WGMMA(128, 64)
WGMMA(256, 128)
static inline unsigned int pair_of(bool bf16, unsigned int word, float factor, float term, unsigned int select, unsigned int zero) {
  const auto half = [=](float x) {
    const unsigned int word = bits<float, unsigned int>(x);
    return bf16 ? (word + 0x7fff + (word >> 16 & 1)) >> 16 : (unsigned int)cvt_f32_f16_1(x);
  };
  const float by = half_at(bf16, half(factor), 0), plus = half_at(bf16, half(term), 0), least = half_at(bf16, zero, 0) + (bf16 ? 128 : 1024);
  unsigned int pair = 0;
  for (int i = 0; i < 2; i++) {
    const float whole = (float)(word >> 8 * (select >> 8 * i & 3) & 255) + least;
    pair |= half(whole * by + plus) << 16 * i;
  }
  return pair;
}
#define SCALED_PAIR(name, bf16) \
FN unsigned int scaled_pair_##name(unsigned int word, float factor, unsigned int select, unsigned int zero) { return pair_of(bf16, word, factor, 0, select, zero); } \
FN unsigned int scaled_pair_and_##name(unsigned int word, float factor, float term, unsigned int select, unsigned int zero) { \
  return pair_of(bf16, word, factor, term, select, zero); \
}
SCALED_PAIR(f16, false)
SCALED_PAIR(bf16, true)
#define FOLD(name, T, COMBINE) \
FN T name(T x, int lanes, int stride) { \
  for (int m = stride; m < lanes * stride; m <<= 1) { T y = shuffled(x, m); x = COMBINE; } \
  return x; \
}

// The words of Metal's language that naga writes (metal_stdlib) for one processor, on the workgroups of coroutines.h. Address spaces are written out and
// nothing more: a C++ compiler knows one.
namespace metal {
typedef unsigned int uint;
typedef unsigned long ulong;
struct uint3 { uint x, y, z; };
struct alignas(8) uint2 {
  uint x, y;
  uint2() = default;
  uint2(uint x, uint y) : x(x), y(y) {}
  uint operator[](uint i) const { if (i >= 2) __builtin_trap(); return i ? y : x; }
};
struct alignas(16) uint4 {
  uint x, y, z, w;
  uint4() = default;
  uint4(uint x, uint y, uint z, uint w) : x(x), y(y), z(z), w(w) {}
  uint operator[](uint i) const { if (i >= 4) __builtin_trap(); const uint all[] = {x, y, z, w}; return all[i]; }
};
struct alignas(16) float4 {
  float x, y, z, w;
  float4() = default;
  float4(float x, float y, float z, float w) : x(x), y(y), z(z), w(w) {}
};
static inline float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
struct half2;
struct float2 {
  float x, y;
  explicit float2(float both) : x(both), y(both) {}
  float2(float x, float y) : x(x), y(y) {}
  explicit inline float2(half2 of);
};
struct half2 {
  _Float16 x, y;
  half2() = default;
  explicit half2(float2 of) : x((_Float16)of.x), y((_Float16)of.y) {}
};
inline float2::float2(half2 of) : x((float)of.x), y((float)of.y) {}
static inline float2 operator-(float2 a, float2 b) { return {a.x - b.x, a.y - b.y}; }
static inline float2 operator*(float2 a, float b) { return {a.x * b, a.y * b}; }
static inline float2 operator+(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }
enum class mem_flags { mem_threadgroup, mem_device };
enum memory_order { memory_order_relaxed };
struct atomic_uint { uint value; };
static inline uint atomic_load_explicit(const atomic_uint *at, memory_order) { return at->value; }
static inline void atomic_store_explicit(atomic_uint *at, uint x, memory_order) { at->value = x; }
static inline uint atomic_fetch_or_explicit(atomic_uint *at, uint x, memory_order) { uint y = at->value; at->value |= x; return y; }
static inline uint atomic_fetch_and_explicit(atomic_uint *at, uint x, memory_order) { uint y = at->value; at->value &= x; return y; }
static inline void threadgroup_barrier(mem_flags) { sim::barrier(); }
// Lanes of a SIMD group, of which a threadgroup's threads are so many after so many.
template <class T> static inline T simd_shuffle_xor(T x, uint by) {
  if (by >= 32 || (sim::current ^ (int)by) >= sim::threads) __builtin_trap();
  return shuffled(x, (int)by);
}
static inline float4 simd_shuffle_xor(float4 x, uint by) {
  return {simd_shuffle_xor(x.x, by), simd_shuffle_xor(x.y, by), simd_shuffle_xor(x.z, by), simd_shuffle_xor(x.w, by)};
}
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline float4 max(float4 a, float4 b) { return {fmaxf(a.x, b.x), fmaxf(a.y, b.y), fmaxf(a.z, b.z), fmaxf(a.w, b.w)}; }
template <class T> static inline T clamp(T x, T low, T high) { return min(max(x, low), high); }
template <class T, class U> static inline T select(T no, U yes, bool which) { return which ? (T)yes : no; }
template <class T> static inline T extract_bits(T x, uint at, uint bits) {
  if (bits == 0) return 0;
  return (T)(x << (32 - at - bits)) >> (32 - bits);
}
// Matrices of a SIMD group, of which each thread has the whole here.
template <class T> struct simdgroup_8x8 {
  T at[8][8];
  simdgroup_8x8() = default;
  explicit simdgroup_8x8(float x) { for (auto &row : at) for (T &of : row) of = (T)x; }
};
typedef simdgroup_8x8<_Float16> simdgroup_half8x8;
typedef simdgroup_8x8<float> simdgroup_float8x8;
template <class T> static inline void simdgroup_load(simdgroup_8x8<T> &m, const T *from, uint apart, int, bool turned) {
  for (uint i = 0; i < 8; i++) for (uint j = 0; j < 8; j++) m.at[i][j] = turned ? from[j * apart + i] : from[i * apart + j];
}
template <class T> static inline void simdgroup_store(const simdgroup_8x8<T> &m, T *to, uint apart) {
  for (uint i = 0; i < 8; i++) for (uint j = 0; j < 8; j++) to[i * apart + j] = m.at[i][j];
}
template <class T, class U>
static inline void simdgroup_multiply_accumulate(simdgroup_8x8<T> &d, const simdgroup_8x8<U> &a, const simdgroup_8x8<U> &b, const simdgroup_8x8<T> &c) {
  for (int i = 0; i < 8; i++) for (int j = 0; j < 8; j++) {
    T sum = c.at[i][j];
    for (int k = 0; k < 8; k++) sum += (T)a.at[i][k] * (T)b.at[k][j];
    d.at[i][j] = sum;
  }
}
static inline float rint(float x) { return rintf(x); }
static inline float sqrt(float x) { return sqrtf(x); }
static inline float fma(float a, float b, float c) { return fmaf(a, b, c); }
}
using metal::ulong;
struct packed_char4 {
  signed char at[4];
  signed char operator[](int i) const { return at[i]; }
};
using metal::half2;
using metal::float2;
typedef _Float16 half;
template <class B, class A> static inline B as_type(A x) {
  static_assert(sizeof(A) == sizeof(B), "bits of another size");
  return bits<A, B>(x);
}
// A buffer, whatever its type is to a kernel.
struct Buffer {
  void *at;
  template <class T> operator T &() const { return *(T *)at; }
};
// Bytes of what a threadgroup shares of that type: the next begins at a cache line.
template <class T> static constexpr size_t room() { return (sizeof(T) + 63) / 64 * 64; }
#define kernel static
#define device
#define constant
#define thread
#define threadgroup

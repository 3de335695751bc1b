// The words of the CUDA dialect (backend/src/cuda/dialect/prelude.rs) for one processor: a workgroup's threads are coroutines that take turns at
// barriers, in an order that changes from turn to turn, so that a missing barrier shows.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <utility>

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
#define COPIES_ENDED_BUT(n) sim::copies_ended(n)
#define INFINITE ((float)INFINITY)
#define NOT_A_NUMBER ((float)NAN)

#if defined(__x86_64__)
// Coroutines without the system calls of <ucontext.h>: what a call preserves is on the stack, and the stack changes.
extern "C" __attribute__((visibility("hidden"))) void sim_switch(void **from, void *to);
asm(".text\n.globl sim_switch\n.hidden sim_switch\n.type sim_switch, @function\nsim_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
struct Context {
  void *at;
  void start(unsigned char *stack, size_t size, void (*f)()) {
    void **top = (void **)((uintptr_t)(stack + size) & ~(uintptr_t)63);
    *--top = nullptr; // where `f` would return to
    *--top = (void *)f;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    at = top;
  }
  void resume(Context &from) { sim_switch(&from.at, at); }
};
#else
struct Context {
  ucontext_t at;
  void start(unsigned char *stack, size_t size, void (*f)()) {
    getcontext(&at);
    at.uc_stack.ss_sp = stack;
    at.uc_stack.ss_size = size;
    makecontext(&at, f, 0);
  }
  void resume(Context &from) { swapcontext(&from.at, &at); }
};
#endif

namespace sim {
static int current, threads;
static long long group;
static unsigned char *scratch;
static Context scheduler, contexts[1024];
static bool done[1024], waited[1024];
static uint64_t exchange[1024];
static void (*body)(void *);
static void *argument;
// Copies of 16 bytes that a thread has begun: nobody sees them before it has waited for them.
static struct { void *to; const void *from; int group; } copies[1024][1024];
static int begun[1024], made[1024];
// Those of the last groups are left, so many; of none all end.
static void copies_ended(int but) {
  int left = 0;
  for (int i = 0; i < begun[current]; i++) {
    auto &c = copies[current][i];
    if (but && c.group >= made[current] - but) copies[current][left++] = c;
    else memcpy(c.to, c.from, 16);
  }
  begun[current] = left;
}
static void copy(void *to, const void *from) {
  if (begun[current] == 1024) copies_ended(0);
  copies[current][begun[current]++] = {to, from, made[current]};
}
static void barrier() { scheduler.resume(contexts[current]); }
static void start() {
  body(argument);
  done[current] = true;
  barrier();
}
// 0, or what went wrong: 1 threads part at a barrier, 2 a thread ended without having waited for its predecessors, 3 no memory.
static int run(void (*f)(void *), void *with, int n, long long groups, size_t shared) {
  const size_t STACK = 64 << 10, GUARD = 64;
  static unsigned char *stacks = (unsigned char *)malloc(1024 * STACK);
  unsigned char *memory = (unsigned char *)aligned_alloc(64, (shared + GUARD + 63) / 64 * 64);
  if (!stacks || !memory) return 3;
  body = f, argument = with, threads = n, scratch = memory;
  int wrong = 0;
  // One workgroup more than there are: the last must know by itself that it has nothing to do.
  for (group = 0; group <= groups && !wrong; group++) {
    memset(memory, 0xA5, (shared + GUARD + 63) / 64 * 64);
    for (int i = 0; i < n; i++) {
      done[i] = waited[i] = false;
      begun[i] = made[i] = 0;
      contexts[i].start(stacks + i * STACK, STACK, start);
    }
    for (int turn = 0, left = n; left && !wrong; turn++) {
      int ended = 0;
      for (int i = 0; i < n; i++) {
        current = (turn & 1 ? n - 1 - i : i) ^ (turn & 2 && n >= 64 ? 32 : 0);
        contexts[current].resume(scheduler);
        ended += done[current];
      }
      if (ended && ended < n) wrong = 1;
      if (ended) left = 0;
    }
    for (int i = 0; i < n && !wrong; i++) if (!waited[i]) wrong = 2;
  }
  for (size_t i = shared; i < shared + GUARD; i++) if (memory[i] != 0xA5) wrong = 4;
  free(memory);
  return wrong;
}
template <class... A, size_t... I> static void call(void (*f)(A...), void **b, std::index_sequence<I...>) { f((A)b[I]...); }
template <class... A> static void call(void (*f)(A...), void **b) { call(f, b, std::index_sequence_for<A...>()); }
}

struct alignas(8) u32x2 { unsigned int x, y; };
struct alignas(16) u32x4 { unsigned int x, y, z, w; };
struct alignas(16) i32x4 { int x, y, z, w; };
struct alignas(16) f32x4 { float x, y, z, w; };
template <class T, int N> struct Array { T at[N]; };
template <class A, class B> static inline B bits(A x) { B y; memcpy(&y, &x, sizeof y); return y; }
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
FN unsigned int permuted(unsigned int a, unsigned int b, unsigned int by) {
  uint64_t all = (uint64_t)b << 32 | a;
  unsigned int r = 0;
  for (int i = 0; i < 4; i++) r |= (unsigned int)(all >> 8 * (by >> 4 * i & 7) & 255) << 8 * i;
  return r;
}
template <class T> static inline T shuffled(T x, int by) {
  uint64_t word = 0;
  memcpy(&word, &x, sizeof x);
  BARRIER;
  sim::exchange[sim::current] = word;
  BARRIER;
  T y;
  memcpy(&y, &sim::exchange[sim::current ^ by], sizeof y);
  return y;
}
// Words `n` of each lane of this warp: a[0..n/3*2] of rows, b[..] of tokens; as the instruction defines its fragments.
static inline i32x4 mma(bool is_signed, int n, const unsigned int *own) {
  static unsigned int words[1024][6];
  BARRIER;
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
// `n` words of rows `g` and `g + 8` each, then `n` of columns, of two halves.
static inline f32x4 mma_of_halves(bool bf16, int n, const unsigned int *own, f32x4 d) {
  static unsigned int words[1024][6];
  BARRIER;
  memcpy(words[sim::current], own, 3 * n * sizeof *own);
  BARRIER;
  const int lane = sim::current % 32, first = sim::current - lane, g = lane / 4, t = lane % 4;
  float sums[] = {d.x, d.y, d.z, d.w};
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++)
      for (int h = 0; h < n; h++)
        for (int k = 0; k < 8; k++) {
          const unsigned int row = words[first + g * 4 + k / 2][2 * h + i], column = words[first + (2 * t + j) * 4 + k / 2][2 * n + h];
          const float product = half_at(bf16, row, k) * half_at(bf16, column, k);
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

// Workgroups on one processor: threads are coroutines that take turns at barriers, in an order that changes from turn to turn, so that a missing barrier shows.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <utility>

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

template <class A, class B> static inline B bits(A x) { B y; memcpy(&y, &x, sizeof y); return y; }
// What the thread has whose number differs in these bits.
template <class T> static inline T shuffled(T x, int by) {
  uint64_t word = 0;
  memcpy(&word, &x, sizeof x);
  sim::barrier();
  sim::exchange[sim::current] = word;
  sim::barrier();
  T y;
  memcpy(&y, &sim::exchange[sim::current ^ by], sizeof y);
  return y;
}

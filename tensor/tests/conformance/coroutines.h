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
    // A jump, not a return: most threads go on where the one before them does, which a processor foresees of jumps.
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\npop %rcx\njmp *%rcx\n");
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
// In each turn every thread has its place once.
static int current, threads, turn, place, ended;
static long long group;
static unsigned char *scratch;
static Context scheduler, contexts[1024];
static bool waited[1024];
// What threads show each other in this turn and in the next.
static uint64_t exchange[2][1024];
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
// The thread at a place of this turn: forwards and backwards, now with the first half and now with the second at first.
static int at(int place) { return (turn & 1 ? threads - 1 - place : place) ^ (turn & 2 && threads >= 64 ? 32 : 0); }
// The next thread goes on; behind the last of a turn the first of another, unless some have ended.
static void barrier() {
  Context &own = contexts[current];
  if (++place == threads) {
    if (ended) return scheduler.resume(own);
    place = 0, turn++;
  }
  current = at(place);
  if (&contexts[current] != &own) contexts[current].resume(own);
}
static void start() {
  body(argument);
  ended++;
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
    // No number in every type of floats, so that what is read before it is written shows.
    memset(memory, 0xFF, shared);
    memset(memory + shared, 0xA5, GUARD);
    for (int i = 0; i < n; i++) {
      waited[i] = false;
      begun[i] = made[i] = 0;
      contexts[i].start(stacks + i * STACK, STACK, start);
    }
    turn = place = ended = 0;
    current = at(0);
    contexts[current].resume(scheduler);
    if (ended < n) wrong = 1;
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
// What the thread has whose number differs in these bits. What is shown in one turn is read in the next, and written again in the one behind that.
template <class T> static inline T shuffled(T x, int by) {
  uint64_t *const shown = sim::exchange[sim::turn & 1];
  uint64_t word = 0;
  memcpy(&word, &x, sizeof x);
  shown[sim::current] = word;
  sim::barrier();
  T y;
  memcpy(&y, &shown[sim::current ^ by], sizeof y);
  return y;
}

// The far end of emulated.rs: a process of the emulated machine that holds buffers, loads libraries and calls kernels as it
// is told on its input. A message is three words, what they announce, and a reply of one word (and the bytes, for a read).
// All words are 64 bits in the machine's order, which is the host's.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef void (*kernel)(void *const *, const int64_t *, int64_t, int64_t, void *, _Bool);

static void in(void *to, size_t bytes) {
    if (fread(to, 1, bytes, stdin) != bytes) exit(0); // the host has closed the pipe
}

static void out(const void *from, size_t bytes) {
    if (fwrite(from, 1, bytes, stdout) != bytes) exit(1);
}

static void *room(size_t bytes) {
    void *p = mmap(NULL, bytes + !bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

// Function, then counts of buffers and variables, bytes of scratch, workers, workgroups; then addresses and values.
// The workers' intervals run one after the other. Scratch is NaN in every float type, so that what is read before it is
// written shows; past its end lies a mark.
static uint64_t call(const uint64_t *word) {
    kernel f = (kernel)word[0];
    size_t buffers = word[1], scratch = word[3];
    int64_t workers = word[4], groups = word[5], first = 0;
    const uint64_t mark = 0x0123456789abcdef;
    char *own = room(scratch + sizeof mark);
    if (!own) return 1;
    for (int64_t i = 0; i < workers; i++) {
        int64_t end = first + groups / workers + (i < groups % workers);
        memset(own, 0xff, scratch);
        memcpy(own + scratch, &mark, sizeof mark);
        if (end > first) f((void *const *)(word + 6), (const int64_t *)(word + 6 + buffers), first, end, own, 0);
        if (memcmp(own + scratch, &mark, sizeof mark)) return 2;
        first = end;
    }
    munmap(own, scratch + sizeof mark);
    return 0;
}

int main(void) {
    uint64_t m[3];
    for (;;) {
        in(m, sizeof m);
        uint64_t reply = 0;
        char *text;
        switch (m[0]) {
        case 'a': reply = (uint64_t)room(m[1]); break;
        case 'f': munmap((void *)m[1], m[2] + !m[2]); break;
        case 'w': in((void *)m[1], m[2]); break;
        case 'r': break;
        default: // one with a text or words
            text = calloc(m[2] + 1, 1);
            if (!text) return 1;
            in(text, m[2]);
            if (m[0] == 'l') {
                reply = (uint64_t)dlopen(text, RTLD_NOW | RTLD_LOCAL);
                if (!reply) fprintf(stderr, "emulated: %s\n", dlerror());
            }
            if (m[0] == 's') reply = (uint64_t)dlsym((void *)m[1], text);
            if (m[0] == 'c') reply = call((const uint64_t *)text);
            free(text);
        }
        out(&reply, sizeof reply);
        if (m[0] == 'r') out((void *)m[1], m[2]);
        fflush(stdout);
    }
}

// A CUDA driver without a GPU, for tests of what the backend does when a call fails. Device memory is the host's, and whatever is queued waits until
// a synchronising call needs it, each stream by itself: work on memory that was freed or changed too early, a missing fence, a use in the wrong
// context and an object that nobody destroys are noted in a report. A kernel of two buffers computes out[0] = in[0] * 3 + v[0].

#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201,
       INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, UNKNOWN = 999 };
enum { DEVICES = 2, ARGUMENTS = 16, NODES = 64, TEXT = 1 << 16 };

enum kind { CONTEXT, STREAM, EVENT, MEMORY, PINNED, MODULE, FUNCTION, GRAPH, NODE, EXEC };
static const char *const KINDS[] = {"context", "stream", "event", "memory", "pinned memory", "module", "function", "graph", "node",
                                    "executable graph"};

struct node {
    struct object *function;
    uint64_t arguments[ARGUMENTS];
    unsigned groups;
};

// A piece of work in a stream: a copy, a launch, or a wait for another stream.
struct work {
    enum { COPY, LAUNCH, AWAIT } what;
    uint64_t ticket;
    char *to;
    const char *from;    // null for a memset
    char *snapshot;      // what lay there when the copy from the host was queued
    size_t size;
    struct object *other; // the stream waited for, or the graph launched
    uint64_t until;
    struct node *nodes;
    int count;
    struct work *next;
};

struct object {
    enum kind kind;
    int alive;
    struct object *context, *next;
    char *bytes; // of memory, or the text of a module
    size_t size;
    int device, users, sticky;         // of a context
    struct work *queue;                // of a stream: what has not run
    uint64_t queued, done;             // of a stream: tickets
    struct object *stream;             // of an event: where it was recorded last
    uint64_t ticket;
    struct object *owner;              // a function's module, a node's or executable's graph
    int count;                         // arguments of a function, nodes of a graph, a node's index
    struct node nodes[NODES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread struct object *current;
static struct object *objects;
static char report[TEXT], names[TEXT], failed[64], refused[64];
static long calls, fail_at, refuse_after;
static int fail_code, fail_sticky, refuse_code, hangs, units;
static uint64_t now;
// How long kernels take whose text has this in it: nanoseconds, and more for each of their first variable.
static struct { char text[64]; uint64_t fixed, each; } times[8];
static int timed;

static void append(char *text, const char *format, ...) {
    size_t at = strlen(text);
    va_list values;
    va_start(values, format);
    vsnprintf(text + at, TEXT - at, format, values);
    va_end(values);
}
#define VIOLATION(...) append(report, __VA_ARGS__)

// ---- What tests say and ask.

// Everything is forgotten, and nothing fails.
void fake_reset(void) {
    pthread_mutex_lock(&lock);
    // The objects themselves are kept, for handles that are used too late.
    for (struct object *o = objects; o; o = o->next) o->alive = 0, free(o->bytes), o->bytes = NULL;
    current = objects = NULL;
    report[0] = names[0] = failed[0] = refused[0] = 0;
    calls = fail_at = hangs = timed = 0, units = 132;
    pthread_mutex_unlock(&lock);
}
// The call number `n` from now on, from 1, fails with this code; with `sticky` every later one in its context does, too.
void fake_fail(long n, int code, int sticky) {
    pthread_mutex_lock(&lock);
    calls = 0, fail_at = n, fail_code = code, fail_sticky = sticky, failed[0] = 0;
    pthread_mutex_unlock(&lock);
}
// Calls of that function fail after the next `after` of them.
void fake_refuse(const char *name, long after, int code) {
    pthread_mutex_lock(&lock);
    snprintf(refused, sizeof refused, "%s", name);
    refuse_after = after, refuse_code = code;
    pthread_mutex_unlock(&lock);
}
// Whether kernels never end.
void fake_hang(int yes) { hangs = yes; }
// How many multiprocessors devices have; with any number but 132 they are no known machine.
void fake_units(int count) { units = count; }
// Kernels whose text has this in it take so many nanoseconds, and so many more for each of their first variable; others take 1,000.
void fake_takes(const char *text, uint64_t fixed, uint64_t each) {
    pthread_mutex_lock(&lock);
    snprintf(times[timed].text, sizeof times[timed].text, "%s", text);
    times[timed].fixed = fixed, times[timed].each = each, timed++;
    pthread_mutex_unlock(&lock);
}
// The function that failed, or an empty text.
const char *fake_failed(void) { return failed; }
// A line for everything that no correct caller does.
const char *fake_report(void) { return report; }
// The functions called since this was asked last, in the buffer given.
void fake_names(char *out, size_t size) {
    pthread_mutex_lock(&lock);
    snprintf(out, size, "%s", names);
    names[0] = 0;
    pthread_mutex_unlock(&lock);
}
// The kinds of the objects that live, in the buffer given; functions and nodes go with what they belong to.
void fake_live(char *out, size_t size) {
    pthread_mutex_lock(&lock);
    out[0] = 0;
    for (struct object *o = objects; o; o = o->next)
        if (o->alive && o->kind != FUNCTION && o->kind != NODE) {
            size_t at = strlen(out);
            snprintf(out + at, size - at, "%s ", KINDS[o->kind]);
        }
    pthread_mutex_unlock(&lock);
}

// ---- Calls and objects.

static int begin(const char *name, int survives) {
    pthread_mutex_lock(&lock);
    append(names, "%s ", name);
    calls++;
    if (calls == fail_at) {
        snprintf(failed, sizeof failed, "%s", name);
        if (fail_sticky && current) current->sticky = fail_code;
        return fail_code;
    }
    if (strcmp(refused, name) == 0 && refuse_after-- <= 0) return refuse_code;
    return !survives && current ? current->sticky : SUCCESS;
}
static int end(int result) {
    pthread_mutex_unlock(&lock);
    return result;
}
// Every call begins so: it is counted, and may fail instead.
#define BEGIN do { int code_ = begin(__func__, 0); if (code_) return end(code_); } while (0)
// A call that asks nothing of the current context.
#define BEGIN_ANY do { int code_ = begin(__func__, 1); if (code_) return end(code_); } while (0)
// As the driver's, a call that destroys does so whatever it answers.
#define DESTROY(object, kind) \
    int code_ = begin(__func__, 0); \
    if (!usable(__func__, object, kind)) return end(INVALID_HANDLE); \
    idle(__func__, object); \
    (object)->alive = 0; \
    return end(code_)

static struct object *create(enum kind kind) {
    struct object *o = calloc(1, sizeof *o);
    if (kind != CONTEXT && !current) VIOLATION("a %s is made without a current context\n", KINDS[kind]);
    o->kind = kind, o->alive = 1, o->context = kind == CONTEXT ? o : current, o->next = objects;
    return objects = o;
}
static int usable(const char *name, struct object *o, enum kind kind) {
    if (!o || o->kind != kind) return VIOLATION("%s: not a %s\n", name, KINDS[kind]), 0;
    if (!o->alive) return VIOLATION("%s: the %s was destroyed\n", name, KINDS[kind]), 0;
    if (o->context != current) VIOLATION("%s: the %s is of another context\n", name, KINDS[kind]);
    return 1;
}
#define USE(object, kind) do { if (!usable(__func__, object, kind)) return end(INVALID_HANDLE); } while (0)

// The memory that these bytes lie in, if it lives.
static struct object *memory(const void *at, size_t size) {
    for (struct object *o = objects; o; o = o->next)
        if (o->alive && (o->kind == MEMORY || o->kind == PINNED) && o->bytes <= (char *)at && (char *)at + size <= o->bytes + o->size)
            return o;
    return NULL;
}
static int overlaps(struct object *o, const void *at, size_t size) {
    return o->bytes && (const char *)at < o->bytes + o->size && o->bytes < (const char *)at + size;
}
static int uses(struct work *w, struct object *o) {
    if (w->what == COPY) return overlaps(o, w->to, w->size) || (w->from && overlaps(o, w->from, w->size));
    if (w->what != LAUNCH) return 0;
    if (w->other == o) return 1;
    for (int i = 0; i < w->count; i++) {
        if (w->nodes[i].function->owner == o) return 1;
        for (int a = 0; a < w->nodes[i].function->count; a++)
            if (w->nodes[i].arguments[a] && overlaps(o, (void *)w->nodes[i].arguments[a], 1)) return 1;
    }
    return 0;
}
// Notes work that would still use this object, and lets it go.
static void idle(const char *name, struct object *o) {
    if (o->context->sticky) return; // nothing runs there any more
    if (o->kind == STREAM && o->queue) VIOLATION("%s: there is work in the stream\n", name);
    if (o->kind == STREAM || o->kind == EVENT) return;
    for (struct object *s = objects; s; s = s->next)
        for (struct work **w = &s->queue; s->kind == STREAM && s->alive && *w;)
            if (uses(*w, o)) {
                VIOLATION("%s: %s still uses the %s\n", name, (*w)->what == COPY ? "a copy" : "a kernel", KINDS[o->kind]);
                *w = (*w)->next;
            } else {
                w = &(*w)->next;
            }
}

// ---- Work.

static struct work *queue(struct object *stream, int what) {
    struct work *w = calloc(1, sizeof *w), **last = &stream->queue;
    while (*last) last = &(*last)->next;
    w->what = what, w->ticket = ++stream->queued;
    return *last = w;
}
static void copy(struct work *w) {
    if (!w->from) {
        memset(w->to, 0, w->size);
    } else {
        if (w->snapshot && memcmp(w->snapshot, w->from, w->size)) VIOLATION("the source of a copy was changed or freed before it was made\n");
        memcpy(w->to, w->from, w->size);
    }
    free(w->snapshot);
    w->snapshot = NULL;
}
static uint64_t takes(struct object *function, const int64_t *v) {
    for (int i = 0; i < timed; i++)
        if (strstr((char *)function->owner->owner, times[i].text)) return times[i].fixed + times[i].each * *v;
    return 1000;
}
static void launch(struct work *w) {
    for (int n = 0; n < w->count; n++) {
        struct node *node = &w->nodes[n];
        int count = node->function->count;
        for (int a = 0; a < count; a++)
            if (node->arguments[a] && !memory((void *)node->arguments[a], 8)) {
                VIOLATION("a kernel uses memory that was freed\n");
                return;
            }
        int64_t *out = (int64_t *)node->arguments[0], *in = (int64_t *)node->arguments[1], *v = (int64_t *)node->arguments[count - 2];
        uint64_t *clock = (uint64_t *)node->arguments[count - 1];
        if (count == 4) out[0] = in[0] * 3 + v[0];
        if (clock) *clock = now, now += takes(node->function, v);
    }
}
// Runs a stream up to that ticket. Does it get there?
static int run(struct object *stream, uint64_t until) {
    while (stream->queue && stream->queue->ticket <= until) {
        struct work *w = stream->queue;
        if (w->what == LAUNCH && hangs) return 0;
        if (w->what == AWAIT && !run(w->other, w->until)) return 0;
        if (w->what == COPY) copy(w);
        if (w->what == LAUNCH) launch(w);
        stream->queue = w->next;
    }
    stream->done = until;
    return 1;
}
static int synchronise(const char *name, struct object *stream, uint64_t until) {
    if (!stream || run(stream, until)) return SUCCESS;
    VIOLATION("%s would wait for ever\n", name);
    return UNKNOWN;
}
// What frees memory or a module waits for everything.
static void waits(const char *name) {
    for (struct object *s = objects; s; s = s->next)
        for (struct work *w = s->kind == STREAM && s->alive ? s->queue : NULL; w; w = w->next)
            if (hangs && w->what == LAUNCH) VIOLATION("%s would wait for ever\n", name);
}

// ---- The driver: devices and contexts.

static struct object *primary(int device) {
    for (struct object *o = objects; o; o = o->next)
        if (o->alive && o->kind == CONTEXT && o->device == device) return o;
    return NULL;
}
int cuGetErrorName(int code, const char **out) {
    *out = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_OF_THE_FAKE";
    return SUCCESS;
}
int cuGetErrorString(int code, const char **out) { return *out = "as the test wants it", code ? SUCCESS : INVALID_VALUE; }
int cuDriverGetVersion(int *out) { BEGIN_ANY; *out = 13000; return end(SUCCESS); }
int cuInit(unsigned flags) { (void)flags; BEGIN_ANY; return end(SUCCESS); }
int cuDeviceGetCount(int *out) { BEGIN_ANY; *out = DEVICES; return end(SUCCESS); }
int cuDeviceGet(int *out, int n) { BEGIN_ANY; *out = n; return end(n < DEVICES ? SUCCESS : INVALID_DEVICE); }
int cuDeviceGetName(char *out, int size, int device) { BEGIN_ANY; snprintf(out, size, "Fake %d", device); return end(SUCCESS); }
int cuDeviceGetAttribute(int *out, int attribute, int device) {
    (void)device;
    BEGIN_ANY;
    // As an H200's driver has them: warps, clock, multiprocessors, the memory's clock and bits, cache, threads, version, shared memory, registers.
    static const int facts[][2] = {{10, 32}, {13, 1980000}, {36, 3201000}, {37, 6016}, {38, 50 << 20}, {39, 2048}, {75, 9}, {76, 0},
                                   {81, 228 << 10}, {82, 65536}, {97, 227 << 10}};
    *out = attribute == 16 ? units : 1;
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        if (facts[i][0] == attribute) *out = facts[i][1];
    return end(SUCCESS);
}
int cuDevicePrimaryCtxRetain(struct object **out, int device) {
    BEGIN_ANY;
    struct object *context = primary(device);
    if (!context) context = create(CONTEXT), context->device = device;
    context->users++;
    return *out = context, end(SUCCESS);
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    int code = begin(__func__, 1);
    struct object *context = primary(device);
    if (!context) return VIOLATION("a context is released that nobody has\n"), end(INVALID_CONTEXT);
    if (--context->users == 0) {
        waits(__func__);
        for (struct object *o = objects; o; o = o->next) {
            if (o->context != context || !o->alive) continue;
            if (o != context && o->kind != FUNCTION && o->kind != NODE && !context->sticky) VIOLATION("a %s outlives its context\n", KINDS[o->kind]);
            o->alive = 0;
        }
    }
    return end(code);
}
int cuCtxGetCurrent(struct object **out) {
    BEGIN_ANY;
    return *out = current, end(SUCCESS);
}
int cuCtxSetCurrent(struct object *context) {
    BEGIN_ANY;
    if (context && !context->alive) return end(INVALID_CONTEXT);
    return current = context, end(SUCCESS);
}

// ---- Memory and copies.

int cuMemGetInfo_v2(size_t *free, size_t *total) { BEGIN; *free = (size_t)1 << 30, *total = (size_t)1 << 32; return end(SUCCESS); }
static struct object *allocate(enum kind kind, size_t size) {
    struct object *o = create(kind);
    o->size = size, o->bytes = calloc(1, size);
    // Not the whole of what is large: nobody looks at that.
    return kind == MEMORY ? memset(o->bytes, 0xa5, size < 1 << 20 ? size : 1 << 20) : NULL, o;
}
// Never given back to the system: no address means two allocations in one test.
static struct object *allocation(const void *at, enum kind kind) {
    for (struct object *o = objects; o; o = o->next)
        if (o->kind == kind && o->bytes == at) return o;
    return NULL;
}
int cuMemAlloc_v2(char **out, size_t size) {
    BEGIN;
    if (size > (size_t)1 << 30) return end(OUT_OF_MEMORY);
    return *out = allocate(MEMORY, size)->bytes, end(SUCCESS);
}
int cuMemFree_v2(char *at) {
    struct object *o = allocation(at, MEMORY);
    waits(__func__);
    DESTROY(o, MEMORY);
}
int cuMemHostAlloc(char **out, size_t size, unsigned flags) {
    (void)flags;
    BEGIN;
    return *out = allocate(PINNED, size)->bytes, end(SUCCESS);
}
int cuMemFreeHost(char *at) {
    struct object *o = allocation(at, PINNED);
    waits(__func__);
    DESTROY(o, PINNED);
}
int cuMemsetD8Async(char *to, unsigned char value, size_t size, struct object *stream) {
    BEGIN;
    USE(stream, STREAM);
    if (value || !memory(to, size)) return VIOLATION("a memset outside memory\n"), end(INVALID_VALUE);
    struct work *w = queue(stream, COPY);
    w->to = to, w->size = size;
    return end(SUCCESS);
}
int cuMemcpyHtoDAsync_v2(char *to, const char *from, size_t size, struct object *stream) {
    BEGIN;
    USE(stream, STREAM);
    if (!memory(to, size)) return VIOLATION("a copy to no memory\n"), end(INVALID_VALUE);
    struct work *w = queue(stream, COPY);
    w->to = to, w->from = from, w->size = size, w->snapshot = memcpy(malloc(size), from, size);
    return end(SUCCESS);
}
int cuMemcpyDtoHAsync_v2(char *to, const char *from, size_t size, struct object *stream) {
    BEGIN;
    USE(stream, STREAM);
    if (!memory(from, size)) return VIOLATION("a copy from no memory\n"), end(INVALID_VALUE);
    struct work *w = queue(stream, COPY);
    w->to = to, w->from = from, w->size = size;
    return end(SUCCESS);
}

// ---- Streams and events.

int cuStreamCreate(struct object **out, unsigned flags) { (void)flags; BEGIN; return *out = create(STREAM), end(SUCCESS); }
int cuStreamDestroy_v2(struct object *stream) { DESTROY(stream, STREAM); }
int cuStreamSynchronize(struct object *stream) {
    BEGIN;
    USE(stream, STREAM);
    return end(synchronise(__func__, stream, stream->queued));
}
int cuStreamQuery(struct object *stream) {
    BEGIN;
    USE(stream, STREAM);
    return end(run(stream, stream->queued) ? SUCCESS : NOT_READY);
}
int cuStreamWaitEvent(struct object *stream, struct object *event, unsigned flags) {
    (void)flags;
    BEGIN;
    USE(stream, STREAM);
    USE(event, EVENT);
    if (!event->stream) return end(SUCCESS);
    struct work *w = queue(stream, AWAIT);
    w->other = event->stream, w->until = event->ticket;
    return end(SUCCESS);
}
int cuEventCreate(struct object **out, unsigned flags) { (void)flags; BEGIN; return *out = create(EVENT), end(SUCCESS); }
int cuEventDestroy_v2(struct object *event) { DESTROY(event, EVENT); }
int cuEventRecord(struct object *event, struct object *stream) {
    BEGIN;
    USE(event, EVENT);
    USE(stream, STREAM);
    event->stream = stream, event->ticket = stream->queued;
    return end(SUCCESS);
}
int cuEventSynchronize(struct object *event) {
    BEGIN;
    USE(event, EVENT);
    return end(synchronise(__func__, event->stream, event->ticket));
}
int cuEventQuery(struct object *event) {
    BEGIN;
    USE(event, EVENT);
    return end(!event->stream || run(event->stream, event->ticket) ? SUCCESS : NOT_READY);
}

// ---- Modules and graphs.

int cuModuleLoadData(struct object **out, const char *image) {
    BEGIN;
    if (strncmp(image, "fake cubin", 10)) return end(INVALID_IMAGE);
    struct object *module = create(MODULE);
    module->bytes = NULL, module->owner = (struct object *)strdup(image);
    return *out = module, end(SUCCESS);
}
int cuModuleUnload(struct object *module) {
    waits(__func__);
    DESTROY(module, MODULE);
}
// Its parameters are counted in its text: those with commas between them, and the clock.
int cuModuleGetFunction(struct object **out, struct object *module, const char *name) {
    BEGIN;
    USE(module, MODULE);
    const char *found = NULL, *at = (const char *)module->owner;
    while ((at = strstr(at, name))) found = at++;
    if (!found) return end(NOT_FOUND);
    struct object *function = create(FUNCTION);
    function->owner = module, function->count = 2;
    for (at = strchr(found, '('); *at != '{'; at++) function->count += *at == ',';
    return *out = function, end(SUCCESS);
}
int cuFuncGetAttribute(int *out, int attribute, struct object *function) {
    BEGIN;
    USE(function, FUNCTION);
    return *out = attribute == 0 ? 1024 : 0, end(SUCCESS);
}
int cuFuncSetAttribute(struct object *function, int attribute, int value) {
    (void)attribute, (void)value;
    BEGIN;
    USE(function, FUNCTION);
    return end(SUCCESS);
}

struct parameters {
    struct object *function;
    unsigned groups, y, z, threads, threads_y, threads_z, shared;
    uint64_t **arguments;
};
static struct node node_of(const struct parameters *p) {
    struct node node = {.function = p->function, .groups = p->groups};
    for (int a = 0; a < p->function->count; a++) node.arguments[a] = *p->arguments[a];
    return node;
}
int cuGraphCreate(struct object **out, unsigned flags) { (void)flags; BEGIN; return *out = create(GRAPH), end(SUCCESS); }
int cuGraphDestroy(struct object *graph) { DESTROY(graph, GRAPH); }
int cuGraphAddKernelNode_v2(struct object **out, struct object *graph, struct object **after, size_t count, const struct parameters *p) {
    (void)after, (void)count;
    BEGIN;
    USE(graph, GRAPH);
    USE(p->function, FUNCTION);
    struct object *node = create(NODE);
    node->owner = graph, node->count = graph->count;
    graph->nodes[graph->count++] = node_of(p);
    return *out = node, end(SUCCESS);
}
int cuGraphAddDependencies_v2(struct object *graph, struct object **from, struct object **to, const void *edges, size_t count) {
    (void)from, (void)to, (void)edges, (void)count;
    BEGIN;
    USE(graph, GRAPH);
    return end(SUCCESS);
}
int cuGraphInstantiateWithFlags(struct object **out, struct object *graph, unsigned long long flags) {
    (void)flags;
    BEGIN;
    USE(graph, GRAPH);
    struct object *exec = create(EXEC);
    exec->owner = graph, exec->count = graph->count;
    memcpy(exec->nodes, graph->nodes, sizeof graph->nodes);
    return *out = exec, end(SUCCESS);
}
int cuGraphExecDestroy(struct object *exec) { DESTROY(exec, EXEC); }
int cuGraphExecKernelNodeSetParams_v2(struct object *exec, struct object *node, const struct parameters *p) {
    BEGIN;
    USE(exec, EXEC);
    exec->nodes[node->count] = node_of(p);
    return end(SUCCESS);
}
int cuGraphLaunch(struct object *exec, struct object *stream) {
    BEGIN;
    USE(exec, EXEC);
    USE(stream, STREAM);
    struct work *w = queue(stream, LAUNCH);
    w->other = exec, w->count = exec->count;
    w->nodes = memcpy(malloc(sizeof exec->nodes), exec->nodes, sizeof exec->nodes);
    return end(SUCCESS);
}

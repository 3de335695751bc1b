// An NVRTC that compiles nothing: its code is the text, for the fake driver beside this file. With OLD it is one from before architectures could be
// asked for.

#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, COMPILATION = 6, OTHER = 11 };
static long compilations, calls, fail_at;
static int architectures = 3;

// The call number `n` from now on, from 1, fails.
void fake_fail(long n) { calls = 0, fail_at = n; }
// How many texts were compiled.
long fake_compilations(void) { return compilations; }
// How many architectures it says it knows; below 0 asking for their number fails.
void fake_architectures(int count) { architectures = count; }

#define BEGIN do { if (__atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST) == fail_at) return OTHER; } while (0)

const char *nvrtcGetErrorString(int code) { return code == COMPILATION ? "it does not compile" : "as the test wants it"; }
int nvrtcVersion(int *major, int *minor) { BEGIN; *major = 13, *minor = 0; return SUCCESS; }
#ifndef OLD
int nvrtcGetNumSupportedArchs(int *count) {
    BEGIN;
    if (architectures < 0) return OTHER; // and `count` is as it was
    return *count = architectures, SUCCESS;
}
int nvrtcGetSupportedArchs(int *all) {
    BEGIN;
    if (architectures < 0) abort(); // there is nowhere to write them
    return memcpy(all, (int[]){75, 80, 90}, architectures * sizeof(int)), SUCCESS;
}
#endif
int nvrtcCreateProgram(char **program, const char *text, const char *name, int headers, const char *const *h, const char *const *n) {
    (void)name, (void)headers, (void)h, (void)n;
    BEGIN;
    *program = malloc(strlen(text) + 12);
    return strcat(strcpy(*program, "fake cubin\n"), text), SUCCESS;
}
int nvrtcDestroyProgram(char **program) { return free(*program), *program = NULL, SUCCESS; }
int nvrtcCompileProgram(char *program, int count, const char *const *options) {
    (void)count, (void)options;
    BEGIN;
    __atomic_add_fetch(&compilations, 1, __ATOMIC_SEQ_CST);
    return strstr(program, "does not compile") ? COMPILATION : SUCCESS;
}
int nvrtcGetProgramLogSize(char *program, size_t *size) { (void)program; BEGIN; return *size = 1, SUCCESS; }
int nvrtcGetProgramLog(char *program, char *log) { (void)program; BEGIN; return *log = 0, SUCCESS; }
int nvrtcGetCUBINSize(char *program, size_t *size) { BEGIN; return *size = strlen(program) + 1, SUCCESS; }
int nvrtcGetCUBIN(char *program, char *code) { BEGIN; return strcpy(code, program), SUCCESS; }

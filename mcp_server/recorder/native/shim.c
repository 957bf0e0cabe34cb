// The library that takes the place of a package's own, which lies beside it as NAME.orig: every exported
// symbol jumps there, and the two functions that run the model pass through the recorder.
// `symbols.h` is made for each package: JUMPS(X), COUNTED(X), and RUN_DEFAULT, RUN_SINGLE if exported.
#include "recorder.h"
#include "symbols.h"

enum {
#define X(name) INDEX_##name,
  JUMPS(X) COUNTED(X)
#undef X
  COUNT
};
__attribute__((visibility("hidden"))) void *recorder_jumps[COUNT + 1];
static const char *const NAMES[] = {
#define X(name) #name,
    JUMPS(X) COUNTED(X)
#undef X
    0};
#include "jumps.h"

static void *original;
static RunFunction run_default, run_single;
static Shim shim;
static Known known;

__attribute__((constructor)) static void load_original(void) {
  Dl_info about;
  char path[4096];
  if (!dladdr((void *)load_original, &about)) return;
  snprintf(path, sizeof path, "%s.orig", about.dli_fname);
  original = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!original) {
    fprintf(stderr, "aoti-debug recorder: %s\n", dlerror());
    return;
  }
  for (int i = 0; NAMES[i]; i++) recorder_jumps[i] = dlsym(original, NAMES[i]);
  run_default = (RunFunction)dlsym(original, "AOTInductorModelContainerRun");
  run_single = (RunFunction)dlsym(original, "AOTInductorModelContainerRunSingleThreaded");
  find_shim(&shim, original, dlsym);
  snprintf(known.path, sizeof known.path, "%s", path);
}

__attribute__((destructor)) static void unload_original(void) {
  if (!stop(&shim)) stay(); // somebody holds the address of our handler
  if (original && state != EXITS) dlclose(original); // at exit, other threads may be in it
}

#define EXPORTED __attribute__((visibility("default")))
#define PASSED Handle c, Handle *i, size_t n, Handle *o, size_t m, Handle s, Handle p
#define RUN(name, function)                                                                                    \
  EXPORTED Code name(PASSED) {                                                                                 \
    if (!complete(&shim)) return function(c, i, n, o, m, s, p);                                                \
    return recorded(&shim, &known, function, c, i, n, o, m, s, p);                                             \
  }
#ifdef RUN_DEFAULT
RUN(AOTInductorModelContainerRun, run_default)
#endif
#ifdef RUN_SINGLE
RUN(AOTInductorModelContainerRunSingleThreaded, run_single)
#endif

// Functions that replace weights have at most six integer arguments.
#define X(name)                                                                                                \
  EXPORTED Code name(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f) {                 \
    uint64_t given[] = {a, b, c, d, e, f};                                                                     \
    count_update(&shim, &known, #name, given);                                                                 \
    Code code = ((AnyFunction)recorder_jumps[INDEX_##name])(a, b, c, d, e, f);                                 \
    end_update(&known, #name);                                                                                        \
    return code;                                                                                               \
  }
COUNTED(X)
#undef X

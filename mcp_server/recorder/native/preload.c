// The recorder for packages that cannot be replaced: LD_PRELOAD of `dlsym`, through which every loader of
// AOTInductor, in C++ and in Python, finds the functions of a package.
#include "recorder.h"

#include <sys/uio.h>

#if defined(__x86_64__) && __has_include("sites.h") // where the host calls at::from_blob
#define MAKER "_ZN2at11TensorMaker11make_tensorEv" // its first member is the memory
enum { MADE = 1 << 14 };
static struct {
  uint64_t data;
  void *frames[1 + SITES]; // ours, return addresses, and the bytes of its block
} made[MADE];
static void *(*real)(void *, const char *);

static uint64_t place_of(uint64_t data) { return (data >> 3) % MADE; }
static void **made_at(uint64_t data) { return made[place_of(data)].data == data ? made[place_of(data)].frames + 1 : 0; }

// The bytes of the block of glibc's heap that starts at `data`; 0 if none does, by its header and the next one's.
static void *block_at(uint64_t data) {
  uint64_t head[2], next[2];
  struct iovec to = {head, sizeof head}, from = {(void *)(data - 16), sizeof head};
  if (data % 16 || process_vm_readv(getpid(), &to, 1, &from, 1, 0) != sizeof head) return 0;
  uint64_t size = head[1] & ~7ull;
  if (head[1] & 2) return data % 4096 == 16 && size && !(size % 4096) ? (void *)(size - 16) : 0; // mapped by itself
  to.iov_base = next, from.iov_base = (void *)(data - 16 + size);
  if (size < 32 || size % 16 || process_vm_readv(getpid(), &to, 1, &from, 1, 0) != sizeof next) return 0;
  return next[1] & 1 ? (void *)(size - 8) : 0;
}

__attribute__((visibility("default"))) void *make_tensor(void *result, uint64_t *maker) __asm__(MAKER);
void *make_tensor(void *result, uint64_t *maker) {
  static void *(*next)(void *, uint64_t *);
  if (!next) *(void **)&next = real(RTLD_NEXT, MAKER);
  if (!next) *(void **)&next = real(dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD), MAKER);
  made[place_of(*maker)].data = *maker;
  backtrace(made[place_of(*maker)].frames, SITES);
  made[place_of(*maker)].frames[SITES] = block_at(*maker);
  sites_of = made_at;
  return next(result, maker);
}
#endif

#if __has_include("keep.h") // for a diagnosis: what the host frees keeps its values
#include <malloc.h>
void __libc_free(void *);
enum { MOST_KEPT = 2047 << 20 };

__attribute__((visibility("default"))) void free(void *old) {
  static uint64_t kept;
  if (__atomic_add_fetch(&kept, malloc_usable_size(old), __ATOMIC_RELAXED) > MOST_KEPT) __libc_free(old);
}

__attribute__((visibility("default"))) void *realloc(void *old, size_t size) {
  size_t had = malloc_usable_size(old);
  void *made = malloc(size);
  if (made && had) memcpy(made, old, had < size ? had : size);
  return made;
}
#endif

enum { LIBRARIES = 32 };
typedef struct {
  Shim shim;
  Known known;
  RunFunction run;
} Wrapped;
typedef struct {
  AnyFunction function;
  const Shim *shim;
  Known *known;
  const char *name;
} Counted;

static Wrapped wrapped[LIBRARIES];
static Counted counted[LIBRARIES];
static int wrapped_count, counted_count;
static void *(*real)(void *, const char *);

#define RUN(k)                                                                                                 \
  static Code run##k(Handle c, Handle *i, size_t n, Handle *o, size_t m, Handle s, Handle p) {                 \
    return recorded(&wrapped[k].shim, &wrapped[k].known, wrapped[k].run, c, i, n, o, m, s, p);                 \
  }                                                                                                            \
  static Code count##k(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f) {               \
    uint64_t given[] = {a, b, c, d, e, f};                                                                     \
    count_update(counted[k].shim, counted[k].known, counted[k].name, given);                                   \
    Code code = counted[k].function(a, b, c, d, e, f);                                                         \
    end_update(counted[k].known, counted[k].name);                                                                              \
    return code;                                                                                               \
  }
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) X(17) \
  X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
EACH(RUN)
#define NAME(k) run##k,
static const RunFunction RUNS[LIBRARIES] = {EACH(NAME)};
#undef NAME
#define NAME(k) count##k,
static const AnyFunction COUNTS[LIBRARIES] = {EACH(NAME)};

__attribute__((constructor)) static void find_real(void) {
  const char *versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
  for (int i = 0; i < 3 && !real; i++) *(void **)&real = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
}

__attribute__((destructor)) static void end_of_process(void) {
  if (wrapped_count) stop(&wrapped[0].shim);
}

static void *find(void *library, const char *name) { return real(library, name); }

static const char *path_of(void *library) {
  struct link_map *map = 0;
  return dlinfo(library, RTLD_DI_LINKMAP, &map) || !map ? "?" : map->l_name;
}

static int new_entry(void *library, const char *path) {
  int k = __atomic_fetch_add(&wrapped_count, 1, __ATOMIC_SEQ_CST);
  if (k >= LIBRARIES) return LIBRARIES;
  find_shim(&wrapped[k].shim, library, find);
  snprintf(wrapped[k].known.path, sizeof wrapped[k].known.path, "%s", path);
  return k;
}

static int entry_of(void *library) {
  const char *path = path_of(library);
  for (int k = 0; k < wrapped_count && k < LIBRARIES; k++)
    if (!strcmp(wrapped[k].known.path, path)) return k;
  return new_entry(library, path);
}

static void *wrap_run(void *library, void *function) {
  int k = entry_of(library);
  if (k < LIBRARIES && wrapped[k].run && wrapped[k].run != (RunFunction)function) k = new_entry(library, path_of(library));
  if (k >= LIBRARIES || !complete(&wrapped[k].shim)) return function;
  wrapped[k].run = (RunFunction)function;
  return (void *)RUNS[k];
}

static void *wrap_update(void *library, void *function, const char *name) { // a loader may look these up before it looks up Run
  int of = entry_of(library), k = of < LIBRARIES ? __atomic_fetch_add(&counted_count, 1, __ATOMIC_SEQ_CST) : LIBRARIES;
  if (k >= LIBRARIES) return function;
  counted[k] = (Counted){(AnyFunction)function, &wrapped[of].shim, &wrapped[of].known, strdup(name)};
  return (void *)COUNTS[k];
}

__attribute__((visibility("default"))) void *dlsym(void *library, const char *name) {
  if (!real) find_real();
  // A plain tail call, since the answer to these depends on who asks.
  if (library == RTLD_NEXT || library == RTLD_DEFAULT || strncmp(name, "AOTInductorModelContainer", 25)) return real(library, name);
  void *function = real(library, name);
  const char *rest = name + 25;
  if (function && (!strcmp(rest, "Run") || !strcmp(rest, "RunSingleThreaded"))) return wrap_run(library, function);
  if (function && (!strncmp(rest, "Update", 6) || !strncmp(rest, "Swap", 4) || !strcmp(rest, "Delete"))) return wrap_update(library, function, name);
  return function;
}

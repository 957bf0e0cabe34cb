// Flight recorder of AOTInductor calls: the newest calls of each thread in a ring file, and the whole inputs
// of calls that fail in a crash file. It never blocks a call, and it never ends the host: whatever goes wrong
// with its own files switches it off. The layout of both files is read by recorder/ring.py.
#pragma once
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

typedef void *Handle;
typedef int32_t Code;
typedef Code (*RunFunction)(Handle, Handle *, size_t, Handle *, size_t, Handle, Handle);
typedef Code (*AnyFunction)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

// Functions of libtorch's C shim, found through the library of the package.
typedef struct {
  Code (*data)(Handle, void **), (*sizes)(Handle, int64_t **), (*strides)(Handle, int64_t **);
  Code (*dim)(Handle, int64_t *), (*dtype)(Handle, int32_t *);
  Code (*device_type)(Handle, int32_t *), (*device_index)(Handle, int32_t *);
  size_t (*element_size)(int32_t);
  Code (*new_handle)(Handle, Handle *), (*delete_handle)(Handle);
  // The CUDA driver; null in a host without it.
  int (*copy_to_host)(void *, uint64_t, size_t, void *), (*pin)(void *, size_t, unsigned), (*unpin)(void *);
  int (*is_capturing)(void *, int *);
} Shim;

enum { VERSION = 4, HEADER = 1 << 16, MODELS = 64, MOST_SLOTS = 64, MOST_HELD = 64, LINE = 64 };
enum { RECORD_MAGIC = 0xA0710CA2, ENTRY_MAGIC = 0xA0710CE2 };
enum { NOT_KEPT, WHOLE, ON_DEVICE = 3 }; // Input.kept; ON_DEVICE: copied when the stream came to it
enum { FATAL = 1, PAYLOAD, MAPS, STACK, FAILED, WEIGHTS, CHANGED }; // Entry.kind
enum { RUNNING, ENDED, EXITS }; // Header.ended; EXITS: its exit handlers run
enum { ADAPTIVE, INTEGERS, FULL, REDACTED }; // mode

typedef struct {
  uint32_t tid, pad; // the thread that took it last, which may have ended
  uint64_t at, sequence;
  char line[LINE - 24];
} Slot;

typedef struct {
  char path[512], build_id[64];
  uint32_t generation, begun; // updates of the weights that ended, and that began
  uint64_t calls, memory_before, memory_last; // resident bytes, at the first LOOK calls and at the last
  uint64_t deleted_ns; // when the host destroyed its loader; 0 if it did not
  uint32_t deleted_by; // the thread that did
  uint32_t side, swaps[4]; // the buffer of weights in use; the newest swaps, by their number
} Model;

typedef struct {
  char magic[8];
  uint32_t version, header, pid, slots;
  uint64_t slot_bytes, started_ns, missed;
  uint32_t models, ended, mode, failures;
  Slot slot[MOST_SLOTS];
  Model model[MODELS];
} Header;

typedef struct {
  uint32_t magic, length;
  uint64_t sequence, begin_ns, end_ns;
  uint32_t tid, model;
  int32_t code;
  uint32_t inputs, written; // all inputs of the call, and those that follow
  uint32_t generation, generation_after, check;
  uint64_t host_sp, stream; // host_sp: where the stack of the host's own functions ends
  uint32_t stack; // addresses: bytes from the start of the record
  uint16_t frames, sites; // how many return addresses, and after them SITES of each input
  uint64_t number; // among all calls of the model in this process
} Record;

typedef struct {
  uint8_t dim, kept;
  int16_t dtype, device_type, device_index;
  uint32_t name, payload; // bytes of the name, of a constant; payload: bytes from the start of the record
  uint64_t data, span;
  int64_t layout[]; // sizes, strides
} Input;

typedef struct {
  uint32_t magic, kind;
  uint64_t sequence, length, done; // bytes that follow, and those of them that could be written
  uint32_t slot, input, tid, signal;
  uint64_t address;
} Entry;

typedef struct {
  Record *record;
  uint64_t sequence;
  uint32_t epoch;
  int slot;
} Call;

static char *ring;
static size_t ring_bytes;
static uint32_t slot_count; // of ours: what the mapped header says may have been cut away
static uint64_t slot_bytes;
static int crash_file = -1, folder_file = -1, mode = ADAPTIVE, hold = 1, pinned, stacks;
static char ring_name[64], crash_name[64];
static uint32_t epoch = 1, active, next_slot, closing, removed, watching, state = RUNNING;
static uint64_t crash_at, crash_budget;
static double share = 0.007; // of a call's time that recording may take
static double mean_ns[MODELS], budget[MODELS];
static Record *volatile in_flight[MOST_SLOTS];
static struct sigaction before[65];
static __thread int my_slot = -1;
static __thread uint32_t my_epoch, my_tid;
static char *alternate_stacks;
static pthread_mutex_t weights_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t area_count; // of updates of the weights
enum { STACK_BYTES = 1 << 16, SMALL = 1 << 14 };

static inline Header *header(void) { return (Header *)ring; }

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static uint32_t thread_id(void) { return (uint32_t)syscall(SYS_gettid); }

static const char *setting(const char *name, const char *otherwise) {
  const char *found = getenv(name);
  return found && *found ? found : otherwise;
}

// --- the crash file -------------------------------------------------------------------------------------

// One entry, its payload straight from the host's memory: `write` answers EFAULT where that is gone.
static void leave(Entry entry, const void *bytes) {
  if (crash_file < 0) return;
  entry.magic = ENTRY_MAGIC;
  uint64_t whole = sizeof entry + ((entry.length + 7) & ~7ull);
  uint64_t at = __atomic_fetch_add(&crash_at, whole, __ATOMIC_RELAXED);
  if (at + whole > crash_budget) return;
  if (pwrite(crash_file, &entry, sizeof entry, at) != sizeof entry) return;
  while (entry.done < entry.length) {
    ssize_t n = pwrite(crash_file, (const char *)bytes + entry.done, entry.length - entry.done,
                       at + sizeof entry + entry.done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    entry.done += n;
  }
  if (pwrite(crash_file, &entry, sizeof entry, at) < 0) return;
}

static void leave_inputs(Record *record, int slot) {
  char *at = (char *)(record + 1);
  for (uint32_t i = 0; hold && i < record->written && i < MOST_HELD; i++) { // others may be freed by now
    Input *input = (Input *)at;
    if (input->device_type == 0 && input->data && input->span && input->kept != WHOLE)
      leave((Entry){.kind = PAYLOAD, .sequence = record->sequence, .length = input->span, .slot = slot,
                    .input = i, .tid = record->tid},
            (void *)input->data);
    at = (char *)(input->layout + 2 * input->dim);
  }
}

enum { MOST_FRAMES = 64 };

static void leave_maps(void) {
  char maps[4096]; // a thread of the host may have a small stack
  int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  for (ssize_t n; file >= 0 && (n = read(file, maps, sizeof maps)) > 0;)
    leave((Entry){.kind = MAPS, .length = n, .tid = thread_id()}, maps);
  if (file >= 0) close(file);
}

static void leave_frames(uint32_t slot, uint64_t sequence) {
  void *frames[MOST_FRAMES];
  int count = backtrace(frames, MOST_FRAMES);
  leave((Entry){.kind = STACK, .sequence = sequence, .length = count * sizeof *frames, .slot = slot,
                .tid = thread_id()}, frames);
}

static void leave_stack(uint32_t slot, uint64_t sequence) {
  leave_maps(); // first: what backtrace reads may be damaged
  leave_frames(slot, sequence);
}

static uint64_t stack_pointer(void *context) {
#ifdef __x86_64__
  return ((ucontext_t *)context)->uc_mcontext.gregs[REG_RSP];
#else
  return ((ucontext_t *)context)->uc_mcontext.sp;
#endif
}

// Makes the files again that `stop` removed: the slots in use, quickly, because the process exits meanwhile.
static void put_back(void) {
  int crash = openat(folder_file, crash_name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  for (off_t at = 0; crash >= 0 && at < (off_t)crash_at && sendfile(crash, crash_file, &at, crash_at - at) > 0;) {}
  crash_file = crash;
  int file = openat(folder_file, ring_name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  int whole = file >= 0 && !ftruncate(file, ring_bytes) && pwrite(file, ring, HEADER, 0) == HEADER;
  for (uint32_t i = 0; whole && i < slot_count; i++) {
    uint64_t at = HEADER + i * slot_bytes;
    whole = !header()->slot[i].sequence || pwrite(file, ring + at, slot_bytes, at) == (ssize_t)slot_bytes;
  }
  if (file >= 0) close(file);
}

// The slots, as bits, of other threads that have called the package and still live.
static uint64_t others_alive(void) {
  uint64_t found = 0;
  for (uint32_t i = 0; i < slot_count; i++) {
    uint32_t tid = header()->slot[i].tid;
    if (tid && tid != thread_id() && !syscall(SYS_tgkill, getpid(), tid, 0)) found |= 1ull << i;
  }
  return found;
}

static void on_fatal(int number, siginfo_t *about, void *context) {
  static int first, done;
  if (number == SIGBUS && ring && (char *)about->si_addr >= ring && (char *)about->si_addr < ring + ring_bytes) {
    // Somebody cut our own file short: the host reads and writes plain memory from now on.
    closing = 1;
    if (mmap(ring, ring_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == ring)
      return;
  }
  if (!__atomic_exchange_n(&first, 1, __ATOMIC_SEQ_CST)) {
    if (ring && (state == EXITS || header()->ended != ENDED)) {
      header()->failures++, header()->ended = state;
      if (removed) put_back();
      uint64_t alive = others_alive();
      leave((Entry){.kind = FATAL, .sequence = stack_pointer(context), .tid = thread_id(), .signal = number,
                    .slot = (uint32_t)alive, .input = alive >> 32,
                    .address = about->si_code > 0 ? (uint64_t)about->si_addr : UINT64_MAX}, 0);
      for (int pass = 0; pass < 2; pass++) // the thread that crashed first
        for (int slot = 0; slot < MOST_SLOTS; slot++) {
          Record *record = in_flight[slot];
          if (record && !record->end_ns && (record->tid == thread_id()) == !pass) leave_inputs(record, slot);
        }
      leave_stack(0, 0);
    }
    __atomic_store_n(&done, 1, __ATOMIC_SEQ_CST);
  } else {
    struct timespec wait = {0, 10000000};
    for (int i = 0; i < 200 && !__atomic_load_n(&done, __ATOMIC_SEQ_CST); i++) nanosleep(&wait, 0);
  }
  sigaction(number, &before[number], 0);
  if (number != SIGABRT && about->si_code > 0) return; // the instruction faults again, under the handler before
  syscall(SYS_tgkill, getpid(), thread_id(), number);
}

static const int FATAL_SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
enum { SIGNALS = sizeof FATAL_SIGNALS / sizeof *FATAL_SIGNALS };

static void watch_signals(void) {
  void *frame[1];
  backtrace(frame, 1); // loads libgcc now, not in the handler
  for (int i = 0; i < SIGNALS; i++) {
    struct sigaction ours = {.sa_sigaction = on_fatal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(FATAL_SIGNALS[i], &ours, &before[FATAL_SIGNALS[i]]);
  }
}

// The handlers before ours are put back. False where somebody chained to ours, so that it must stay mapped.
static int unwatch_signals(void) {
  int ours_alone = 1;
  for (int i = 0; i < SIGNALS; i++) {
    struct sigaction current;
    if (sigaction(FATAL_SIGNALS[i], 0, &current)) continue;
    if (current.sa_sigaction == on_fatal)
      sigaction(FATAL_SIGNALS[i], &before[FATAL_SIGNALS[i]], 0);
    else
      ours_alone = 0;
  }
  return ours_alone;
}

// --- the ring -------------------------------------------------------------------------------------------

static int open_folder(const char *path) {
  struct stat found;
  if (mkdir(path, 0700) && errno != EEXIST) return -1;
  int file = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (file >= 0 && (fstat(file, &found) || found.st_uid != geteuid() || (found.st_mode & 022))) {
    close(file); // a folder of somebody else, or one that others may write to
    return -1;
  }
  return file;
}

// Bytes of all recordings in the folder: the budget is for all of them.
static uint64_t folder_bytes(void) {
  uint64_t total = 0;
  int copy = dup(folder_file);
  DIR *folder = copy >= 0 ? fdopendir(copy) : 0;
  struct stat found;
  for (struct dirent *entry; folder && (entry = readdir(folder));)
    if (strstr(entry->d_name, ".ring") || strstr(entry->d_name, ".crash"))
      total += fstatat(folder_file, entry->d_name, &found, AT_SYMLINK_NOFOLLOW) ? 0 : (uint64_t)found.st_blocks * 512;
  if (folder) closedir(folder);
  return total;
}

static int reserve(int file) {
  for (slot_count = MOST_SLOTS; slot_count >= 4; slot_count /= 2)
    if (!posix_fallocate(file, 0, HEADER + slot_count * slot_bytes)) return 1; // a full tmpfs would be a SIGBUS later
  return 0;
}

static void in_child(void) { // a forked process opens a ring of its own at its first call
  epoch++;
  ring = 0, active = 0, pinned = 0, area_count = 0;
  weights_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  if (crash_file >= 0) close(crash_file);
  crash_file = -1;
  for (int i = 0; i < MOST_SLOTS; i++) in_flight[i] = 0;
}

static void open_ring(void) {
  const char *folder = setting("AOTI_RECORDER_DIR", RECORDER_DIR), *names[] = {"adaptive", "ints", "full", "redact"};
  const char *asked = setting("AOTI_RECORDER_MODE", RECORDER_MODE);
  if (!strcmp(setting("AOTI_RECORDER", "1"), "0")) return;
  for (int i = 0; i < 4; i++)
    if (!strcmp(asked, names[i])) mode = i;
  stacks = !strcmp(setting("AOTI_RECORDER_STACKS", "0"), "1");
  hold = mode != REDACTED && strcmp(setting("AOTI_RECORDER_HOLD", "1"), "0");
  slot_bytes = strtoull(setting("AOTI_RECORDER_SLOT_KB", RECORDER_SLOT_KB), 0, 10) * 1024;
  uint64_t most = strtoull(setting("AOTI_RECORDER_BUDGET_MB", RECORDER_BUDGET_MB), 0, 10) << 20;
  if (slot_bytes < 65536 || slot_bytes > (1ull << 32)) slot_bytes = 1 << 20;
  slot_bytes &= ~4095ull;
  if ((folder_file = open_folder(folder)) < 0) return;
  uint64_t others = folder_bytes() + HEADER + MOST_SLOTS * slot_bytes;
  if (others > most) return;
  crash_budget = most - others;
  int file = -1;
  uint64_t started = now_ns();
  for (int i = 0; i < 100 && file < 0; i++) {
    snprintf(ring_name, sizeof ring_name, "%d-%llu-%d.ring", getpid(), (unsigned long long)started / 1000000, i);
    file = openat(folder_file, ring_name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0 && errno != EEXIST) return;
  }
  if (file < 0) return;
  size_t bytes = reserve(file) ? HEADER + slot_count * slot_bytes : 0;
  char *mapped = bytes ? mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0) : MAP_FAILED;
  close(file);
  if (mapped == MAP_FAILED) {
    unlinkat(folder_file, ring_name, 0);
    return;
  }
  snprintf(crash_name, sizeof crash_name, "%.*s.crash", (int)(strlen(ring_name) - 5), ring_name);
  crash_file = openat(folder_file, crash_name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  Header *h = (Header *)mapped;
  memcpy(h->magic, "AOTIREC2", 8);
  h->version = VERSION, h->header = HEADER, h->pid = getpid(), h->slots = slot_count, h->slot_bytes = slot_bytes;
  h->started_ns = started, h->mode = mode, h->ended = state;
  for (int i = 0; i < MODELS; i++) mean_ns[i] = 0, budget[i] = 2048;
  crash_at = 0, ring_bytes = bytes;
  __atomic_store_n(&ring, mapped, __ATOMIC_RELEASE);
}

// Registered at the first call: it runs before the host's own static objects are destroyed.
static void note_exit(void) {
  state = EXITS;
  if (ring) header()->ended = EXITS;
}

static void start(void) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static int once;
  static uint32_t tried;
  pthread_mutex_lock(&lock);
  if (!once) {
    once = 1;
    pthread_atfork(0, 0, in_child);
    atexit(note_exit);
    alternate_stacks = malloc((size_t)MOST_SLOTS * STACK_BYTES);
  }
  if (tried != epoch) {
    tried = epoch;
    open_ring();
    if (ring && !watching++) watch_signals();
    if (ring && stacks) leave_maps();
  }
  pthread_mutex_unlock(&lock);
}

static int note_build_id(struct dl_phdr_info *about, size_t size, void *model) {
  (void)size;
  Model *found = model;
  if (strcmp(about->dlpi_name, found->path)) return 0;
  for (int i = 0; i < about->dlpi_phnum; i++) {
    if (about->dlpi_phdr[i].p_type != PT_NOTE) continue;
    const char *at = (const char *)about->dlpi_addr + about->dlpi_phdr[i].p_vaddr, *end = at + about->dlpi_phdr[i].p_memsz;
    while (at + 12 <= end) {
      const ElfW(Nhdr) *note = (const void *)at;
      const char *name = at + sizeof *note, *text = name + ((note->n_namesz + 3) & ~3u);
      if (note->n_type == 3 && note->n_namesz == 4 && !memcmp(name, "GNU", 4))
        for (uint32_t k = 0; k < note->n_descsz && k < 31; k++)
          snprintf(found->build_id + 2 * k, 3, "%02x", (unsigned char)text[k]);
      at = text + ((note->n_descsz + 3) & ~3u);
    }
  }
  return 1;
}

typedef struct {
  char path[512];
  uint32_t epoch, number, generation, begun, side; // side: the buffer of weights in use
} Known; // a loaded library, and its number in the ring of this process

static uint32_t number_of(Known *known) {
  if (known->epoch == epoch || !ring) return known->number;
  uint32_t number = __atomic_fetch_add(&header()->models, 1, __ATOMIC_SEQ_CST);
  if (number < MODELS) {
    Model *model = &header()->model[number];
    memcpy(model->path, known->path, sizeof model->path);
    model->generation = known->generation, model->begun = known->begun; // updates before the first call, or before the fork
    model->side = known->side;
    dl_iterate_phdr(note_build_id, model);
  }
  known->number = number < MODELS ? number : MODELS - 1, known->epoch = epoch;
  return known->number;
}

// A thread leaves its slot behind: a function that runs when it ends would be gone if the host has unloaded us.
static int take_slot(void) {
  Header *h = header();
  for (uint32_t i = 0; i < slot_count; i++) { // the one that was taken the longest ago
    uint32_t slot = __atomic_fetch_add(&next_slot, 1, __ATOMIC_RELAXED) % slot_count, owner = h->slot[slot].tid;
    if (owner && (!syscall(SYS_tgkill, getpid(), owner, 0) || errno != ESRCH)) continue;
    my_tid = thread_id();
    if (!__atomic_compare_exchange_n(&h->slot[slot].tid, &owner, my_tid, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) continue;
    my_slot = slot, my_epoch = epoch;
    stack_t current, own = {.ss_sp = alternate_stacks + (size_t)slot * STACK_BYTES, .ss_size = STACK_BYTES};
    if (alternate_stacks && !sigaltstack(0, &current) && (current.ss_flags & SS_DISABLE)) sigaltstack(&own, 0);
    return 1;
  }
  __atomic_fetch_add(&h->missed, 1, __ATOMIC_RELAXED);
  return 0;
}

static inline int is_integer(int dtype) { return dtype <= 4 || dtype == 11 || (dtype >= 27 && dtype <= 29); }

static size_t describe(const Shim *shim, Handle tensor, Input *input) {
  int64_t *sizes = 0, *strides = 0, dim = 0, span = 1;
  int32_t dtype = -1, type = -1, index = -1;
  void *data = 0;
  memset(input, 0, sizeof *input);
  if (tensor) {
    shim->dim(tensor, &dim), shim->sizes(tensor, &sizes), shim->strides(tensor, &strides);
    shim->dtype(tensor, &dtype), shim->device_type(tensor, &type), shim->device_index(tensor, &index);
    shim->data(tensor, &data);
  }
  dim = dim > 32 ? 32 : dim;
  for (int k = 0; k < dim; k++) {
    input->layout[k] = sizes[k], input->layout[dim + k] = strides[k];
    span = sizes[k] && span ? span + (sizes[k] - 1) * strides[k] : 0;
  }
  input->dim = dim, input->dtype = dtype, input->device_type = type, input->device_index = index;
  input->data = (uint64_t)data, input->span = tensor ? span * shim->element_size(dtype) : 0;
  return sizeof *input + 16 * dim;
}

enum { CUDA = 1, PATTERN = 0xA5, PORTABLE = 1 };

// Asks the stream to copy the input into the ring before the launches of the call: nothing waits for it.
static int copy_from_device(const Shim *shim, const Input *input, char *to, Handle stream) {
  int capturing = 1;
  if (!shim->copy_to_host || !shim->pin || pinned < 0) return 0;
  if (shim->is_capturing && (shim->is_capturing(stream, &capturing) || capturing)) return 0;
  if (!pinned) pinned = shim->pin(ring, ring_bytes, PORTABLE) ? -1 : 1; // from pageable memory a copy would wait
  if (pinned < 0) return 0;
  memset(to, PATTERN, input->span);
  return !shim->copy_to_host(to, input->data, input->span, stream);
}

static void keep(const Shim *shim, Record *record, Input *input, size_t *used, size_t room, double *left) {
  int integer = is_integer(input->dtype), device = input->device_type == CUDA;
  if (!input->data || !input->span || mode == REDACTED || (mode == INTEGERS && !integer)) return;
  if (input->device_type > CUDA || *used + input->span + 8 > room) return;
  // Small integers of a device are always copied: a crash leaves nothing of its memory, and the host does not wait.
  int always = device && integer && input->span <= SMALL;
  double cost = input->span;
  if (mode != FULL && !always && (cost > *left || device)) return;
  char *to = (char *)record + *used;
  if (device && !copy_from_device(shim, input, to, (Handle)record->stream)) return;
  if (!device) memcpy(to, (void *)input->data, input->span);
  input->kept = device ? ON_DEVICE : WHOLE, input->payload = *used;
  if (!device) *left -= cost;
  *used += (input->span + 7) & ~7ull;
}

static void keep_inputs(const Shim *shim, Record *record, size_t *used, size_t room, double left) {
  for (int integers = 1; integers >= 0; integers--) { // an index explains more faults than a float
    char *at = (char *)(record + 1);
    for (uint32_t i = 0; i < record->written; i++) {
      Input *input = (Input *)at;
      if (is_integer(input->dtype) == integers) {
        keep(shim, record, input, used, room, &left);
      }
      at = (char *)(input->layout + 2 * input->dim);
    }
  }
}

static inline uint32_t check_of(uint64_t sequence, size_t at) { return (uint32_t)(sequence * 2654435761u) ^ (uint32_t)at; }

enum { SITES = 4 };
static void **(*sites_of)(uint64_t data); // return addresses of at::from_blob, and last the bytes of the block

// The stack pointer of the host's innermost function.
static _Unwind_Reason_Code find_host(struct _Unwind_Context *frame, void *sp) {
  Dl_info about, ours;
  void *at = (void *)_Unwind_GetIP(frame);
  if (!dladdr((void *)find_host, &ours) || !dladdr(at, &about)) return _URC_END_OF_STACK;
  if (about.dli_fbase == ours.dli_fbase || strstr(about.dli_fname, "libtorch") || strstr(about.dli_fname, "libc10"))
    return _URC_NO_REASON;
  *(uint64_t *)sp = _Unwind_GetCFA(frame);
  return _URC_END_OF_STACK;
}

// For a diagnosis, since it takes microseconds.
static size_t keep_stack(Record *record, size_t used) {
  uint64_t *to = (uint64_t *)((char *)record + used);
  record->stack = used, record->frames = backtrace((void **)to, MOST_FRAMES);
  _Unwind_Backtrace(find_host, &record->host_sp);
  char *at = (char *)(record + 1);
  for (uint32_t i = 0; sites_of && i < record->written && i < MOST_FRAMES / SITES; i++) {
    Input *input = (Input *)at;
    void **sites = sites_of(input->data);
    for (int k = 0; k < SITES; k++) to[record->frames + record->sites++] = sites ? (uint64_t)sites[k] : 0;
    at = (char *)(input->layout + 2 * input->dim);
  }
  return used + (record->frames + record->sites) * sizeof *to;
}

enum { LOOK = 64 };

static void note_memory(Model *model) {
  char text[64] = {0};
  unsigned long pages = 0;
  int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file >= 0 && read(file, text, sizeof text - 1) > 0 && sscanf(text, "%*u %lu", &pages) == 1)
    model->memory_last = pages * (uint64_t)sysconf(_SC_PAGESIZE);
  if (file >= 0) close(file);
  if (!model->memory_before) model->memory_before = model->memory_last;
}

// --- memory that the host writes while a call reads it: not in production, since all is read once more ----

enum { MOST_MANAGED = 256, MOST_CHANGES = 16, PART = 4096 };
typedef struct {
  const Known *known;
  uint64_t data, span, sum;
  char name[128];
} Managed; // a constant that the package reads where the host keeps it
static Managed managed[MOST_MANAGED];
static uint32_t managed_count, change_count;

static int read_part(void *to, uint64_t from, size_t length) {
  struct iovec here = {to, length}, there = {(void *)from, length};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == (ssize_t)length;
}

// A sum of what is there, and the offset of the first byte that is not as in `before`: -1 if all are.
static uint64_t look(uint64_t data, uint64_t span, const char *before, int64_t *first) {
  uint64_t sum = 1, now[PART / 8] = {0};
  for (uint64_t at = 0; at < span; at += PART) {
    size_t n = span - at < PART ? span - at : PART;
    if (!read_part(now, data + at, n)) return 0;
    for (size_t k = 0; k < (n + 7) / 8; k++) sum = (sum ^ now[k]) * 0x100000001b3;
    for (size_t k = 0; before && *first < 0 && k < n; k++)
      if (((char *)now)[k] != before[at + k]) *first = at + k;
  }
  return sum;
}

static void leave_change(const Record *record, int slot, uint32_t input, int before, uint64_t at, uint64_t length, const void *bytes) {
  if (__atomic_fetch_add(&change_count, 1, __ATOMIC_RELAXED) >= MOST_CHANGES) return;
  Entry entry = {.kind = CHANGED, .sequence = record->sequence, .length = length, .slot = slot, .input = input,
                 .tid = record->tid, .signal = before, .address = at};
  leave(entry, bytes);
  entry.kind = FAILED, entry.length = record->length, entry.address = now_ns(); // the ring will lose the record
  leave(entry, record);
}

static void look_at_inputs(const Record *record, int slot) {
  const char *at = (const char *)(record + 1);
  for (uint32_t i = 0; i < record->written; i++) {
    const Input *input = (const Input *)at;
    int64_t first = -1;
    if (input->kept == WHOLE && look(input->data, input->span, (const char *)record + input->payload, &first) && first >= 0)
      leave_change(record, slot, i, 0, first, 0, 0);
    at = (const char *)(input->layout + 2 * input->dim);
  }
}

// `ends`: the call has ended. A change that is seen when one begins was made before it, or while another ran.
static void look_at_managed(const Known *known, const Record *record, int slot, int ends) {
  if (!managed_count) return;
  pthread_mutex_lock(&weights_lock);
  for (Managed *each = managed; each < managed + managed_count; each++) {
    uint64_t sum = each->known == known && each->sum ? look(each->data, each->span, 0, 0) : 0;
    if (sum && sum != each->sum)
      leave_change(record, slot, UINT32_MAX, !ends && __atomic_load_n(&active, __ATOMIC_SEQ_CST) < 2, 0, strlen(each->name), each->name);
    each->sum = sum ? sum : each->sum;
  }
  pthread_mutex_unlock(&weights_lock);
}

static Call begin(const Shim *shim, Known *known, Handle *inputs, size_t count, Handle stream) {
  Call call = {.epoch = epoch};
  __atomic_fetch_add(&active, 1, __ATOMIC_SEQ_CST); // before anything is read: `stop` unmaps what nobody uses
  if (!closing && !__atomic_load_n(&ring, __ATOMIC_ACQUIRE)) start();
  if (closing || !ring || ((my_slot < 0 || my_epoch != epoch) && !take_slot())) {
    __atomic_fetch_sub(&active, 1, __ATOMIC_SEQ_CST);
    return call;
  }
  Header *h = header();
  uint64_t begun = now_ns();
  Slot *slot = &h->slot[my_slot];
  char *base = ring + HEADER + my_slot * slot_bytes;
  size_t stack = stacks ? 2 * MOST_FRAMES * sizeof(void *) : 0;
  size_t most = sizeof(Record) + stack + count * (sizeof(Input) + 512), at = slot->at;
  size_t written = count;
  if (most > slot_bytes / 2) written = (slot_bytes / 2 - sizeof(Record)) / (sizeof(Input) + 512);
  most = sizeof(Record) + stack + written * (sizeof(Input) + 512);
  uint32_t model = number_of(known);
  double left = mode == FULL ? (double)slot_bytes : budget[model];
  size_t room = mode == FULL ? slot_bytes / 2 : (size_t)left + 2 * SMALL;
  if (at + most + room > slot_bytes) at = 0;
  Record *record = (Record *)(base + at);
  memset(record, 0, sizeof *record);
  record->sequence = ++slot->sequence, record->begin_ns = begun, record->tid = my_tid, record->model = model;
  record->inputs = count, record->written = written;
  record->stream = (uint64_t)stream, record->generation = h->model[model].generation;
  record->number = __atomic_add_fetch(&h->model[model].calls, 1, __ATOMIC_RELAXED);
  if (!(record->number % LOOK)) note_memory(&h->model[model]);
  size_t used = sizeof *record;
  for (size_t i = 0; i < written; i++) used += describe(shim, inputs[i], (Input *)((char *)record + used));
  if (stacks && used + stack < slot_bytes - at) used = keep_stack(record, used);
  keep_inputs(shim, record, &used, slot_bytes - at, left);
  record->length = used, record->check = check_of(record->sequence, at);
  slot->at = at + ((used + LINE - 1) & ~(size_t)(LINE - 1));
  if (slot->at + sizeof(Record) < slot_bytes) ((Record *)(base + slot->at))->magic = 0;
  __atomic_store_n(&record->magic, RECORD_MAGIC, __ATOMIC_RELEASE);
  in_flight[my_slot] = record;
  call.record = record, call.sequence = record->sequence, call.slot = my_slot;
  if (stacks || mode == FULL) look_at_managed(known, record, my_slot, 0);
  double cost = now_ns() - begun;
  if (mean_ns[model] > 0 && cost > (share * 1.15) * mean_ns[model]) budget[model] *= 0.9;
  else if (cost < share * 0.85 * mean_ns[model]) budget[model] = budget[model] * 1.02 + 8;
  if (budget[model] > slot_bytes / 4) budget[model] = slot_bytes / 4;
  return call;
}

enum { MOST_FAILURES = 16 };

static void end(const Known *known, Call call, Code code) {
  Record *record = call.record;
  if (!record || call.epoch != epoch) return;
  if (record->sequence == call.sequence) {
    if (stacks || mode == FULL) look_at_inputs(record, call.slot), look_at_managed(known, record, call.slot, 1);
    uint64_t took = now_ns() - record->begin_ns;
    uint32_t model = record->model;
    record->code = code, record->generation_after = header()->model[model].begun;
    mean_ns[model] = mean_ns[model] > 0 ? mean_ns[model] * 0.95 + took * 0.05 : took;
    if (code && __atomic_fetch_add(&header()->failures, 1, __ATOMIC_RELAXED) < MOST_FAILURES) {
      leave((Entry){.kind = FAILED, .sequence = call.sequence, .length = record->length, .slot = call.slot,
                    .tid = record->tid, .address = record->begin_ns + took}, record); // later calls overwrite the ring
      leave_inputs(record, call.slot);
      leave_stack(call.slot, call.sequence);
    }
    __atomic_store_n(&record->end_ns, record->begin_ns + took, __ATOMIC_RELEASE);
  }
  in_flight[call.slot] = 0;
  __atomic_fetch_sub(&active, 1, __ATOMIC_SEQ_CST);
}

// Runs the call with one more reference to each input, so that the handlers can still read it.
static Code recorded(const Shim *shim, Known *known, RunFunction run, Handle container, Handle *inputs, size_t count,
                     Handle *outputs, size_t results, Handle stream, Handle proxy) {
  Handle held[MOST_HELD];
  size_t holding = 0;
  Call call = begin(shim, known, inputs, count, stream);
  if (call.record && hold && crash_file >= 0)
    for (; holding < count && holding < MOST_HELD; holding++)
      if (!inputs[holding] || shim->new_handle(inputs[holding], &held[holding])) held[holding] = 0;
  Code code = run(container, inputs, count, outputs, results, stream, proxy);
  end(known, call, code);
  while (holding--)
    if (held[holding]) shim->delete_handle(held[holding]);
  return code;
}

static int complete(const Shim *shim) {
  return shim->data && shim->sizes && shim->strides && shim->dim && shim->dtype && shim->device_type &&
         shim->device_index && shim->element_size && shim->new_handle && shim->delete_handle;
}

// --- updates of the weights ------------------------------------------------------------------------------

// Where the values of an update are: an entry of the crash file, written again for later updates of the same
// constants. Two of them are kept, since a model has two buffers. The entry's `sequence` is the number of the
// update, and its `tid` the buffer.
typedef struct {
  Entry entry;
  uint64_t at, names;
} Area;
enum { UPDATE_FRAMES = 16 }; // return addresses after the constants: where the host updates
enum { MOST_AREAS = 64, MOST_CONSTANTS = 1 << 16, LONGEST_NAME = 4096, MOST_WEIGHTS = 16 << 20 };
static Area areas[MOST_AREAS];

typedef struct {
  const char *name;
  size_t length;
  Handle tensor;
} Constant;

// What an update gives: an array of pairs, or a std::unordered_map<std::string, Handle> of libstdc++.
static size_t constants_of(int pairs, uint64_t given, uint64_t count, Constant *found) {
  typedef struct {
    const char *name;
    Handle tensor;
  } Pair;
  typedef struct Node {
    struct Node *next;
    const char *name;
    size_t length;
    char inside[16];
    Handle tensor;
  } Node;
  size_t n = 0;
  if (pairs)
    for (Pair *pair = (Pair *)given; n < count && n < MOST_CONSTANTS; n++, pair++)
      found[n] = (Constant){pair->name, strlen(pair->name), pair->tensor};
  else
    for (Node *node = ((Node **)given)[2]; node && n < MOST_CONSTANTS && node->length < LONGEST_NAME; node = node->next)
      found[n++] = (Constant){node->name, node->length, node->tensor};
  return n;
}

// The area for an update of these names: of two that have them, the older one of the same buffer, else the
// older one; else a new one; null if there is no room.
static Area *area_for(uint32_t model, uint64_t names, uint64_t length, uint32_t side) {
  Area *older = 0;
  int same = 0;
  for (uint32_t i = 0; i < area_count; i++)
    if (areas[i].entry.slot == model && areas[i].names == names && areas[i].entry.length >= length) {
      int nearer = older ? (areas[i].entry.tid == side) - (older->entry.tid == side) : 1;
      same++;
      if (nearer > 0 || (!nearer && areas[i].entry.sequence < older->entry.sequence)) older = &areas[i];
    }
  if (same >= 2) return older;
  uint64_t whole = sizeof(Entry) + length, at = area_count < MOST_AREAS ? crash_at : crash_budget;
  if (at + whole > crash_budget) return older;
  Area *area = &areas[area_count++];
  *area = (Area){.at = __atomic_fetch_add(&crash_at, whole, __ATOMIC_RELAXED), .names = names};
  area->entry = (Entry){.magic = ENTRY_MAGIC, .kind = WEIGHTS, .length = length, .slot = model};
  return area;
}

static int put(uint64_t *at, const void *bytes, uint64_t length) {
  int whole = !length || pwrite(crash_file, bytes, length, *at) == (ssize_t)length;
  *at += (length + 7) & ~7ull;
  return whole;
}

// Keeps names, layouts and values of an update, and where the host makes it.
static void keep_weights(const Shim *shim, const Known *known, const Constant *all, size_t count, int inactive) {
  uint64_t most = mode == FULL ? crash_budget / 4 : MOST_WEIGHTS, length = UPDATE_FRAMES * sizeof(void *), values = 0, names = count;
  uint64_t space[(sizeof(Input) + 16 * 32) / 8];
  Input *input = (Input *)space;
  for (size_t i = 0; i < count; i++) {
    uint64_t described = describe(shim, all[i].tensor, input) + ((all[i].length + 7) & ~7ull);
    uint64_t bytes = input->device_type || mode == REDACTED || !hold ? 0 : (input->span + 7) & ~7ull;
    length += described, values += values + bytes <= most ? bytes : 0;
    for (size_t k = 0; k < all[i].length; k++) names = (names ^ (unsigned char)all[i].name[k]) * 0x100000001b3; // FNV-1a
  }
  uint32_t side = known->side ^ (inactive != 0);
  Area *area = area_for(known->number, names, length + values, side);
  if (!area) return;
  uint64_t at = area->at + sizeof(Entry), left = area->entry.length - length;
  area->entry.sequence = known->begun, area->entry.input = count, area->entry.done = 0;
  area->entry.signal = inactive, area->entry.tid = side;
  if (pwrite(crash_file, &area->entry, sizeof(Entry), area->at) != sizeof(Entry)) return;
  for (size_t i = 0; i < count; i++) {
    size_t described = describe(shim, all[i].tensor, input);
    uint64_t bytes = (input->span + 7) & ~7ull;
    int fits = !input->device_type && mode != REDACTED && hold && input->data && bytes <= left;
    input->kept = fits ? WHOLE : NOT_KEPT, input->name = all[i].length;
    if (!put(&at, space, described) || !put(&at, all[i].name, all[i].length)) return;
    if (fits && !put(&at, (void *)input->data, input->span)) return;
    if (fits) left -= bytes;
  }
  void *frames[UPDATE_FRAMES];
  if (!put(&at, frames, backtrace(frames, UPDATE_FRAMES) * sizeof *frames)) return;
  area->entry.done = at - area->at - sizeof(Entry);
  if (pwrite(crash_file, &area->entry, sizeof(Entry), area->at) < 0) return;
}

// Remembers which constants stay the host's own memory after this update.
static void note_managed(const Shim *shim, const Known *known, const Constant *all, size_t count, int stay_there) {
  uint64_t space[(sizeof(Input) + 16 * 32) / 8];
  Input *input = (Input *)space;
  for (size_t i = 0; i < count; i++) {
    uint32_t k = 0;
    for (; k < managed_count; k++)
      if (managed[k].known == known && !strncmp(managed[k].name, all[i].name, sizeof managed->name - 1)) break;
    if (k == MOST_MANAGED || (k == managed_count && !stay_there)) continue;
    describe(shim, all[i].tensor, input);
    managed[k] = (Managed){.known = known, .data = input->data, .span = input->span};
    managed[k].sum = stay_there && !input->device_type ? look(input->data, input->span, 0, 0) : 0;
    snprintf(managed[k].name, sizeof managed->name, "%.*s", (int)all[i].length, all[i].name);
    managed_count += k == managed_count;
  }
}

// The buffer that was not in use is now.
static void note_swap(Known *known, Model *model) {
  known->side ^= 1, model->side = known->side;
  for (int i = 3; i; i--) model->swaps[i] = model->swaps[i - 1];
  model->swaps[0] = known->begun;
}

// The host destroys the loader: a call that another thread makes now ends the process.
static void note_deletion(const Known *known) {
  if (!ring || known->epoch != epoch) return;
  Model *model = &header()->model[known->number];
  model->deleted_by = thread_id();
  leave_frames(MOST_SLOTS + known->number, 0);
  __atomic_store_n(&model->deleted_ns, now_ns(), __ATOMIC_RELEASE);
}

static int deletes(const char *name) { return strstr(name, "Delete") != 0; }

// Keeps our handlers mapped, before the loader closes a library under the call of another thread.
static void stay(void) {
  Dl_info about;
  if (dladdr((void *)stay, &about)) dlopen(about.dli_fname, RTLD_NOW | RTLD_NODELETE | RTLD_NOLOAD);
}

// Counts an update of the weights when it begins, and again when it ends: a call may see half of it.
static void count_update(const Shim *shim, Known *known, const char *name, const uint64_t *given) {
  int pairs = strstr(name, "Pairs") != 0, flag = 2 + pairs;
  __atomic_fetch_add(&active, 1, __ATOMIC_SEQ_CST);
  if (!deletes(name) && !closing && !__atomic_load_n(&ring, __ATOMIC_ACQUIRE)) start();
  pthread_mutex_lock(&weights_lock);
  if (deletes(name)) {
    note_deletion(known);
    if (__atomic_load_n(&active, __ATOMIC_SEQ_CST) > 1) stay(); // 1: this function
    pthread_mutex_unlock(&weights_lock);
    __atomic_fetch_sub(&active, 1, __ATOMIC_SEQ_CST);
    return;
  }
  known->begun++;
  uint32_t number = ring ? number_of(known) : 0;
  if (ring) header()->model[number].begun = known->begun;
  Constant *all = ring && crash_file >= 0 && complete(shim) ? malloc(MOST_CONSTANTS * sizeof *all) : 0;
  if (ring && strstr(name, "Swap")) note_swap(known, &header()->model[number]);
  else if (all && given[1]) {
    size_t count = constants_of(pairs, given[1], given[2], all);
    keep_weights(shim, known, all, count, strstr(name, "Inactive") || (given[flag] & 1));
    if (stacks || mode == FULL) note_managed(shim, known, all, count, strstr(name, "UserManaged") != 0);
  }
  free(all);
  pthread_mutex_unlock(&weights_lock);
  __atomic_fetch_sub(&active, 1, __ATOMIC_SEQ_CST);
}

static void end_update(Known *known, const char *name) {
  if (deletes(name)) return;
  Model *model = ring && known->epoch == epoch ? &header()->model[known->number] : 0;
  __atomic_fetch_add(&known->generation, 1, __ATOMIC_RELAXED);
  if (model) __atomic_fetch_add(&model->generation, 1, __ATOMIC_RELAXED);
}

// In the order of the members of Shim.
static const char *const SHIM[] = {
    "aoti_torch_get_data_ptr", "aoti_torch_get_sizes", "aoti_torch_get_strides", "aoti_torch_get_dim",
    "aoti_torch_get_dtype", "aoti_torch_get_device_type", "aoti_torch_get_device_index",
    "aoti_torch_dtype_element_size", "aoti_torch_new_tensor_handle", "aoti_torch_delete_tensor_object",
    "cuMemcpyDtoHAsync_v2", "cuMemHostRegister_v2", "cuMemHostUnregister", "cuStreamIsCapturing",
};

static void find_shim(Shim *shim, void *library, void *(*find)(void *, const char *)) {
  for (size_t i = 0; i < sizeof *shim / sizeof(void *); i++) ((void **)shim)[i] = find(library, SHIM[i]);
}

// What is left at a clean end is removed, unless a call failed: then somebody will look at it. At exit, the
// handlers and the ring stay: other threads may still serve, and die of what exit destroys.
static int stop(const Shim *shim) {
  int exits = state == EXITS, busy = ring && __atomic_load_n(&active, __ATOMIC_SEQ_CST);
  // Unloaded under a call: the host dies of that, and our handlers must still be there.
  if (busy && !exits) return 0;
  int alone = exits ? 0 : unwatch_signals();
  closing = !exits;
  if (!ring) return alone;
  header()->ended = busy ? EXITS : ENDED;
  if (!header()->failures && strcmp(setting("AOTI_RECORDER_KEEP", "0"), "1")) {
    unlinkat(folder_file, ring_name, 0);
    unlinkat(folder_file, crash_name, 0);
    removed = 1;
  }
  if (!exits && !__atomic_load_n(&active, __ATOMIC_SEQ_CST)) {
    if (pinned > 0 && shim->unpin) shim->unpin(ring);
    munmap(ring, ring_bytes);
    ring = 0;
  }
  return alone;
}

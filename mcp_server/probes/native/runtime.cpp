// The probe runtime: writes the journal, synchronises, stops, calls a subscriber.
//
// Compiled once, without torch headers, and linked into every rebuilt wrapper. All state has internal linkage:
// several instrumented libraries in one process must not share it (GNU unique symbols would).
#define AOTI_DEBUG_RUNTIME
#include "probes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

// The stable C shim of libtorch, present in torch 2.8-2.15 (the two weak ones are not in 2.8).
extern "C" {
std::int32_t aoti_torch_layout_strided();
__attribute__((weak)) int aoti_torch_is_defined(AtenTensorOpaque*, bool*);
__attribute__((weak)) int aoti_torch_get_layout(AtenTensorOpaque*, std::int32_t*);
int aoti_torch_new_uninitialized_tensor(AtenTensorOpaque**);
int aoti_torch_delete_tensor_object(AtenTensorOpaque*);
int aoti_torch_get_data_ptr(AtenTensorOpaque*, void**);
int aoti_torch_get_storage_size(AtenTensorOpaque*, std::int64_t*);
int aoti_torch_get_storage_offset(AtenTensorOpaque*, std::int64_t*);
int aoti_torch_get_dim(AtenTensorOpaque*, std::int64_t*);
int aoti_torch_get_sizes(AtenTensorOpaque*, std::int64_t**);
int aoti_torch_get_strides(AtenTensorOpaque*, std::int64_t**);
int aoti_torch_get_dtype(AtenTensorOpaque*, std::int32_t*);
int aoti_torch_get_device_type(AtenTensorOpaque*, std::int32_t*);
int aoti_torch_get_device_index(AtenTensorOpaque*, std::int32_t*);
#ifdef AOTI_DEBUG_CUDA
int cudaDeviceSynchronize();
int cudaStreamIsCapturing(void*, int*);
const char* cudaGetErrorName(int);
const char* cudaGetErrorString(int);
#endif
}

namespace {

using aoti_debug::Argument;
using aoti_debug::Event;

constexpr std::uint32_t kVersion = 2;
constexpr std::int64_t kNever = -1;

// What Python fills through ctypes. A subscriber that returns non-zero stops the run.
struct State {
  std::uint32_t version;
  int (*subscriber)(const Event*);
};
State state{kVersion, nullptr};

thread_local aoti_debug::Run* current = nullptr;
std::atomic<std::uint64_t> runs{0};

std::int64_t number_from(const char* variable, std::int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr && *text != '\0' ? std::strtoll(text, nullptr, 10) : otherwise;
}

struct Settings {
  int journal = -1;
  bool synchronise = false;
  std::int64_t stop_at = kNever;
  std::int64_t limit = 0;
  std::atomic<std::int64_t> written{0};
  std::string path;

  Settings() {
    synchronise = number_from("AOTI_DEBUG_SYNC", 0) != 0;
    stop_at = number_from("AOTI_DEBUG_STOP_AT", kNever);
    limit = number_from("AOTI_DEBUG_JOURNAL_LIMIT", std::int64_t{256} << 20);
    const char* name = std::getenv("AOTI_DEBUG_JOURNAL");
    if (name == nullptr || *name == '\0') return;
    path = name;
    journal = open();
    if (journal < 0) std::fprintf(stderr, "aoti-debug: cannot write the journal %s\n", name);
  }

  int open() const { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600); }

  // One write() a line: the line is in the page cache before the launch starts, whatever kills the process.
  void write(const std::string& line) {
    if (journal < 0) return;
    if (::write(journal, line.data(), line.size()) < 0) return;
    const auto size = static_cast<std::int64_t>(line.size());
    const std::int64_t before = written.fetch_add(size);
    if (before < limit && before + size >= limit) rotate();
  }

  // Keeps the newest lines: the full file becomes PATH.1, so the disk holds at most twice the limit.
  void rotate() {
    struct stat named {};
    struct stat opened {};
    if (::stat(path.c_str(), &named) == 0 && ::fstat(journal, &opened) == 0 && named.st_ino == opened.st_ino) {
      ::rename(path.c_str(), (path + ".1").c_str());
    }
    const int fresh = open();
    if (fresh < 0) return;
    ::dup3(fresh, journal, O_CLOEXEC);
    ::close(fresh);
    written = 0;
  }
};

Settings& settings() {
  static Settings instance;
  return instance;
}

std::int64_t now_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1000000000 + time.tv_nsec;
}

// Appends JSON to one buffer of the thread.
class Line {
 public:
  explicit Line(const char* event) {
    text_.assign("{\"event\":\"").append(event).append("\"");
    add("pid", ::getpid());
    add("thread", std::int64_t{::syscall(SYS_gettid)});
    add("ns", now_ns());
  }
  Line& key(const char* name) {
    text_.append(",\"").append(name).append("\":");
    return *this;
  }
  void add(const char* name, std::int64_t value) { key(name).integer(value); }
  void add(const char* name, const void* value) {
    add(name, static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(value)));
  }
  void add(const char* name, const char* value) {
    key(name);
    quoted(value);
  }
  void integer(std::int64_t value) { text_.append(std::to_string(value)); }
  void real(double value) {
    if (!std::isfinite(value)) return quoted(std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
    char digits[40];
    std::snprintf(digits, sizeof digits, "%.17g", value);
    text_.append(digits);
  }
  void quoted(const char* value) {
    text_.push_back('"');
    for (; *value != '\0'; ++value) {
      const char c = *value;
      if (c == '"' || c == '\\') text_.push_back('\\');
      text_.push_back(static_cast<unsigned char>(c) < 0x20 ? ' ' : c);
    }
    text_.push_back('"');
  }
  void list(const std::int64_t* values, std::int64_t count) {
    text_.push_back('[');
    for (std::int64_t i = 0; i < count; ++i) {
      if (i != 0) text_.push_back(',');
      integer(values[i]);
    }
    text_.push_back(']');
  }
  std::string& text() { return text_; }
  void write() {
    text_.append("}\n");
    settings().write(text_);
  }

 private:
  static thread_local std::string text_;
};
thread_local std::string Line::text_;

// The dtype code that this torch gives an undefined tensor: one more for each dtype that a release adds.
std::int32_t undefined_dtype() {
  std::int32_t dtype = -1;
  AtenTensorOpaque* nothing = nullptr;
  if (aoti_torch_new_uninitialized_tensor(&nothing) != 0) return dtype;
  aoti_torch_get_dtype(nothing, &dtype);
  aoti_torch_delete_tensor_object(nothing);
  return dtype;
}

// Asked first, since a shim that throws and catches prints a text that reads like the workload's (up to torch 2.12).
bool defined(AtenTensorOpaque* tensor) {
  if (aoti_torch_is_defined != nullptr) {
    bool answer = false;
    return aoti_torch_is_defined(tensor, &answer) == 0 && answer;
  }
  static const std::int32_t undefined = undefined_dtype();
  std::int32_t dtype = undefined;
  return aoti_torch_get_dtype(tensor, &dtype) == 0 && dtype != undefined;
}

bool strided(AtenTensorOpaque* tensor) {
  if (aoti_torch_get_layout == nullptr) return true;
  std::int32_t layout = -1;
  return aoti_torch_get_layout(tensor, &layout) == 0 && layout == aoti_torch_layout_strided();
}

AtenTensorOpaque* handle_of(const Argument& argument, int phase) {
  if (argument.result == nullptr) return argument.handle;
  return phase == aoti_debug::kAfter ? *argument.result : nullptr;
}

void describe_tensor(Line& line, AtenTensorOpaque* tensor) {
  void* data = nullptr;
  std::int64_t dim = 0, offset = 0, storage = 0;
  std::int64_t *sizes = nullptr, *strides = nullptr;
  std::int32_t dtype = -1, device = -1, index = -1;
  aoti_torch_get_dtype(tensor, &dtype);
  aoti_torch_get_device_type(tensor, &device);
  aoti_torch_get_device_index(tensor, &index);
  aoti_torch_get_dim(tensor, &dim);
  aoti_torch_get_sizes(tensor, &sizes);
  aoti_torch_get_strides(tensor, &strides);
  aoti_torch_get_storage_offset(tensor, &offset);
  aoti_torch_get_storage_size(tensor, &storage);
  aoti_torch_get_data_ptr(tensor, &data);
  line.add("pointer", data);
  line.add("dtype", std::int64_t{dtype});
  line.add("device_type", std::int64_t{device});
  line.add("device_index", std::int64_t{index});
  line.key("shape").list(sizes, dim);
  line.key("stride").list(strides, dim);
  line.add("storage_offset", offset);
  line.add("storage_bytes", storage);
}

void describe(Line& line, Argument& argument, int phase) {
  line.text().append("{\"name\":");
  line.quoted(argument.name);
  line.add("parameter", argument.parameter);
  line.add("role", std::int64_t{argument.role});
  if (argument.kind == aoti_debug::kInteger) line.add("value", argument.integer);
  if (argument.kind == aoti_debug::kReal) line.key("value").real(argument.real);
  AtenTensorOpaque* tensor = handle_of(argument, phase);
  if (argument.kind == aoti_debug::kTensor && tensor != nullptr && defined(tensor) && strided(tensor)) {
    argument.known = 1;
    describe_tensor(line, tensor);
  }
  line.text().push_back('}');
}

void describe_all(Line& line, Argument* arguments, std::uint32_t count, int phase) {
  line.key("arguments").text().push_back('[');
  bool first = true;
  for (std::uint32_t i = 0; i < count; ++i) {
    // After a launch only what did not exist before it is new; the rest was written by the line before.
    const bool known = arguments[i].kind != aoti_debug::kTensor || arguments[i].known != 0;
    if (phase == aoti_debug::kAfter && known) continue;
    if (!first) line.text().push_back(',');
    first = false;
    describe(line, arguments[i], phase);
  }
  line.text().push_back(']');
}

void write_run(const aoti_debug::Run& run, const char* phase) {
  if (settings().journal < 0) return;
  Line line("run");
  line.add("phase", phase);
  line.add("run", static_cast<std::int64_t>(run.number));
  line.add("function", run.function);
  line.add("runner", run.runner);
  line.write();
}

#ifdef AOTI_DEBUG_CUDA
bool capturing(void* stream) {
  int status = 0;
  return cudaStreamIsCapturing(stream, &status) != 0 || status != 0;
}

// A device fault is sticky: the first synchronise after the guilty launch reports it. Synchronising would break a
// stream capture, so it is left out there.
std::string device_fault(void* stream) {
  if (capturing(stream)) return "";
  const int error = cudaDeviceSynchronize();
  if (error == 0) return "";
  return std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
}
#else
std::string device_fault(void*) { return ""; }
#endif

} // namespace

// Each library has its own: found by dlsym on the library's handle.
extern "C" __attribute__((visibility("default"))) void* aoti_debug_probes() { return &state; }

namespace aoti_debug {

Run::Run(const void* runner, const char* function, void* stream)
    : runner(runner),
      stream(stream),
      function(function),
      number(runs.fetch_add(1)),
      exceptions(std::uncaught_exceptions()),
      outer(current) {
  current = this;
  write_run(*this, "begin");
}

Run::~Run() {
  current = outer;
  write_run(*this, std::uncaught_exceptions() > exceptions ? "threw" : "end");
}

Launch::Launch(std::uint32_t index, const char* kernel, std::size_t arguments)
    : index_(index),
      kernel_(kernel),
      run_(current),
      wanted_(settings().journal >= 0 || state.subscriber != nullptr),
      capacity_(static_cast<std::uint32_t>(arguments)) {
  if (run_ != nullptr) sequence_ = run_->launches++;
  if (wanted_ && arguments != 0) arguments_ = new Argument[arguments];
}

Launch::~Launch() { delete[] arguments_; }

void Launch::tensor(const char* name, const char* parameter, std::int32_t role, AtenTensorOpaque* handle) {
  if (wanted_ && count_ < capacity_) arguments_[count_++] = {name, parameter, handle, nullptr, kTensor, role, 0, 0.0, 0};
}

void Launch::result(const char* name, const char* parameter, std::int32_t role, AtenTensorOpaque** handle) {
  if (wanted_ && count_ < capacity_) arguments_[count_++] = {name, parameter, nullptr, handle, kTensor, role, 0, 0.0, 0};
}

void Launch::integer(const char* name, std::int64_t value) {
  if (wanted_ && count_ < capacity_) arguments_[count_++] = {name, name, nullptr, nullptr, kInteger, 1, value, 0.0, 0};
}

void Launch::real(const char* name, double value) {
  if (wanted_ && count_ < capacity_) arguments_[count_++] = {name, name, nullptr, nullptr, kReal, 1, 0, value, 0};
}

void Launch::write(Phase phase, const char* fault) {
  if (settings().journal < 0) return;
  Line line(fault != nullptr ? "fault" : "launch");
  line.add("phase", phase == kBefore ? "before" : "after");
  line.add("launch", std::int64_t{index_});
  line.add("sequence", static_cast<std::int64_t>(sequence_));
  line.add("run", run_ != nullptr ? static_cast<std::int64_t>(run_->number) : -1);
  line.add("runner", run_ != nullptr ? run_->runner : nullptr);
  line.add("kernel", kernel_);
  if (fault != nullptr) line.add("error", fault);
  if (fault == nullptr) describe_all(line, arguments_, count_, phase);
  line.write();
}

void Launch::call_subscriber(Phase phase) {
  if (state.subscriber == nullptr) return;
  const Event event{kVersion, phase, index_, count_, kernel_, run_ != nullptr ? run_->runner : nullptr,
                    run_ != nullptr ? run_->stream : nullptr, run_ != nullptr ? run_->number : 0,
                    sequence_, arguments_};
  if (state.subscriber(&event) != 0) {
    throw std::runtime_error("aoti-debug: a subscriber stopped the run at launch " + std::to_string(index_));
  }
}

void Launch::before() {
  write(kBefore, nullptr);
  call_subscriber(kBefore);
  if (settings().stop_at != kNever && settings().stop_at == std::int64_t{index_}) {
    throw std::runtime_error("aoti-debug: stopped before launch " + std::to_string(index_));
  }
}

void Launch::after() {
  if (settings().synchronise) {
    const std::string fault = device_fault(run_ != nullptr ? run_->stream : nullptr);
    if (!fault.empty()) {
      write(kAfter, fault.c_str());
      throw std::runtime_error("CUDA error: " + fault + " (after launch " + std::to_string(index_) + ", " +
                               kernel_ + ")");
    }
  }
  for (std::uint32_t i = 0; i < count_; ++i) arguments_[i].handle = handle_of(arguments_[i], kAfter);
  write(kAfter, nullptr);
  call_subscriber(kAfter);
}

} // namespace aoti_debug

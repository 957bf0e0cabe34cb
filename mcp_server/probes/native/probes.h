// Launch probes: what a rewritten wrapper calls around each launch.
//
// Force-included (-include) before the wrapper, so that the wrapper's own line numbers stay true. It needs no
// torch header: a tensor handle is an opaque pointer of the stable C shim (aoti_torch/c/shim.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>

#ifndef AOTI_DEBUG_RUNTIME
#include <regex>
#include <string>

// Defined in regex.cpp.
extern template class std::basic_regex<char>;
extern template bool std::regex_match(const std::string&, std::smatch&, const std::regex&,
                                      std::regex_constants::match_flag_type);
#endif

struct AtenTensorOpaque;
extern "C" std::int32_t aoti_torch_clone_preserve_strides(AtenTensorOpaque*, AtenTensorOpaque**);

namespace aoti_debug {

enum Phase : std::int32_t { kBefore = 0, kAfter = 1 };
enum Kind : std::int32_t { kNothing = 0, kTensor = 1, kInteger = 2, kReal = 3 };

// One argument of a launch: the variable's name in the wrapper, the parameter's in the kernel. `integer` and `real`
// hold a scalar; `role` is the bit set of rewrite.py.
struct Argument {
  const char* name;
  const char* parameter;
  AtenTensorOpaque* handle;
  AtenTensorOpaque** result; // where the launch will store a handle, or null
  std::int32_t kind;
  std::int32_t role;
  std::int64_t integer;
  double real;
  std::int64_t known; // the line before the launch described this tensor
};

// What a subscriber sees. `run` counts the calls of this library, `sequence` the launches within one call.
struct Event {
  std::uint32_t version;
  std::int32_t phase;
  std::uint32_t launch;
  std::uint32_t count;
  const char* kernel;
  const void* runner;
  void* stream;
  std::uint64_t run;
  std::uint64_t sequence;
  const Argument* arguments;
};

// The handle behind a tensor variable; null for a stack-allocated array, which has none.
template <typename T>
AtenTensorOpaque* handle(const T& variable) {
  if constexpr (std::is_convertible_v<const T&, AtenTensorOpaque*>) {
    return variable;
  } else {
    return nullptr;
  }
}

// A weight in an allocation of its own, so that AddressSanitizer sees an access beyond it: all weights of a model
// lie in one blob. Used instead of the constant itself where no launch writes it.
template <typename Owner, typename T>
Owner separate(const T& constant) {
  AtenTensorOpaque* copy = nullptr;
  if (aoti_torch_clone_preserve_strides(constant, &copy) != 0) throw std::bad_alloc();
  return Owner(copy);
}

// One call of run_impl, or of the constant folding function.
class Run {
 public:
  Run(const void* runner, const char* function, void* stream);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  const void* const runner;
  void* const stream;
  const char* const function;
  const std::uint64_t number;
  std::uint64_t launches = 0;
  const int exceptions;
  Run* const outer;
};

// One launch: collects the arguments, reports them before() and after().
class Launch {
 public:
  Launch(std::uint32_t index, const char* kernel, std::size_t arguments);
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  void tensor(const char* name, const char* parameter, std::int32_t role, AtenTensorOpaque* handle);
  void result(const char* name, const char* parameter, std::int32_t role, AtenTensorOpaque** handle);
  template <typename T>
  void scalar(const char* name, T value) {
    if constexpr (std::is_floating_point_v<T>) {
      real(name, static_cast<double>(value));
    } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
      integer(name, static_cast<std::int64_t>(value));
    } else if constexpr (std::is_pointer_v<T> && std::is_arithmetic_v<std::remove_pointer_t<T>>) {
      if (value != nullptr) scalar(name, *value);
    }
  }
  // Both may throw: a device fault in synchronous mode, a requested stop.
  void before();
  void after();

 private:
  void integer(const char* name, std::int64_t value);
  void real(const char* name, double value);
  void write(Phase phase, const char* fault);
  void call_subscriber(Phase phase);

  const std::uint32_t index_;
  const char* const kernel_;
  Run* const run_;
  std::uint64_t sequence_ = 0;
  bool wanted_;
  Argument* arguments_ = nullptr;
  std::uint32_t count_ = 0;
  std::uint32_t capacity_;
};

} // namespace aoti_debug

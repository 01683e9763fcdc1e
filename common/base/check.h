#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/base/attributes.h"
#include "absl/base/optimization.h"
#include "absl/strings/string_view.h"

// Invariants of our own code, checked in every build: what one class promises another. A broken one means
// that the program has a mistake, and that nothing it does from then on can be trusted. The process writes
// one line, with the expression, the place and the values of both sides, and aborts.
//
// That is safe by design. What a server has acknowledged lies in its push log and its snapshots, and the next
// process begins there; what a worker was computing is leased to another one. A state that is wrong would be
// acknowledged, written to a snapshot and handed to every worker.
//
// Never for input: bytes of the network, of files, of flags and of memory that another process can write to
// get an absl::Status. Never in a loop over parameters or bytes: a check costs a branch that is predicted.
//
//   RECON_CHECK(found != calls_.end());
//   RECON_CHECK_GE(bytes_, charge, "a request leaves the window");
//
// The message is optional and is evaluated only when the check fails; the operands are evaluated once.
// Integers of different signs are compared by their values. Usable on every thread, with any lock held.

#define RECON_CHECK(condition, ...)                                                                    \
  do {                                                                                                 \
    if (ABSL_PREDICT_FALSE(!(condition))) {                                                            \
      ::recon::check_internal::Fail(#condition, __FILE__, __LINE__, ::absl::string_view{__VA_ARGS__}); \
    }                                                                                                  \
  } while (false)

#define RECON_CHECK_EQ(a, b, ...) RECON_CHECK_COMPARED(Equal, ==, a, b, __VA_ARGS__)
#define RECON_CHECK_LT(a, b, ...) RECON_CHECK_COMPARED(Less, <, a, b, __VA_ARGS__)
#define RECON_CHECK_LE(a, b, ...) RECON_CHECK_COMPARED(LessOrEqual, <=, a, b, __VA_ARGS__)
#define RECON_CHECK_GT(a, b, ...) RECON_CHECK_COMPARED(Greater, >, a, b, __VA_ARGS__)
#define RECON_CHECK_GE(a, b, ...) RECON_CHECK_COMPARED(GreaterOrEqual, >=, a, b, __VA_ARGS__)

#define RECON_CHECK_COMPARED(compare, sign, a, b, ...)                                              \
  do {                                                                                              \
    const auto& recon_check_a = (a);                                                                \
    const auto& recon_check_b = (b);                                                                \
    if (ABSL_PREDICT_FALSE(!::recon::check_internal::compare(recon_check_a, recon_check_b))) {      \
      ::recon::check_internal::FailCompared(#a " " #sign " " #b, __FILE__, __LINE__, recon_check_a, \
                                            recon_check_b, ::absl::string_view{__VA_ARGS__});       \
    }                                                                                               \
  } while (false)

namespace recon::check_internal {

// One side of a comparison, as the line shows it.
std::string Show(int64_t value);
std::string Show(uint64_t value);
std::string Show(double value);
std::string Show(const void* value);
std::string Show(absl::string_view value);

// Write the line and abort. `a` and `b` are shown values.
[[noreturn]] ABSL_ATTRIBUTE_COLD void Fail(const char* condition, const char* file, int line,
                                           absl::string_view message);
[[noreturn]] ABSL_ATTRIBUTE_COLD void FailShown(const char* condition, const char* file, int line,
                                                const std::string& a, const std::string& b,
                                                absl::string_view message);

// Numbers, enumerators, pointers, strings, and ids (common/base/ids.h) by their values.
template <typename T>
std::string ShowAny(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return ShowAny(static_cast<std::underlying_type_t<T>>(value));
  } else if constexpr (std::is_floating_point_v<T>) {
    return Show(static_cast<double>(value));
  } else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
    return Show(static_cast<int64_t>(value));
  } else if constexpr (std::is_integral_v<T>) {
    return Show(static_cast<uint64_t>(value));
  } else if constexpr (std::is_pointer_v<T>) {
    return Show(static_cast<const void*>(value));
  } else if constexpr (std::is_convertible_v<const T&, absl::string_view>) {
    return Show(absl::string_view(value));
  } else {
    return ShowAny(value.value());
  }
}

template <typename A, typename B>
[[noreturn]] ABSL_ATTRIBUTE_COLD ABSL_ATTRIBUTE_NOINLINE void FailCompared(const char* condition,
                                                                           const char* file, int line,
                                                                           const A& a, const B& b,
                                                                           absl::string_view message) {
  FailShown(condition, file, line, ShowAny(a), ShowAny(b), message);
}

template <typename A, typename B>
constexpr bool Less(const A& a, const B& b) {
  constexpr bool kIntegers = std::is_integral_v<A> && std::is_integral_v<B>;
  if constexpr (kIntegers && std::is_signed_v<A> && std::is_unsigned_v<B>) {
    return a < 0 || static_cast<std::make_unsigned_t<A>>(a) < b;
  } else if constexpr (kIntegers && std::is_unsigned_v<A> && std::is_signed_v<B>) {
    return b >= 0 && a < static_cast<std::make_unsigned_t<B>>(b);
  } else {
    return a < b;
  }
}
template <typename A, typename B>
constexpr bool Equal(const A& a, const B& b) {
  constexpr bool kIntegers = std::is_integral_v<A> && std::is_integral_v<B>;
  if constexpr (kIntegers && std::is_signed_v<A> != std::is_signed_v<B>) {
    return !Less(a, b) && !Less(b, a);
  } else {
    return a == b;
  }
}
// What is not a number fails each of them.
template <typename A, typename B>
constexpr bool LessOrEqual(const A& a, const B& b) {
  return Less(a, b) || Equal(a, b);
}
template <typename A, typename B>
constexpr bool Greater(const A& a, const B& b) {
  return Less(b, a);
}
template <typename A, typename B>
constexpr bool GreaterOrEqual(const A& a, const B& b) {
  return LessOrEqual(b, a);
}

}  // namespace recon::check_internal

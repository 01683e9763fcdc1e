#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "fmt/core.h"

namespace recon {

// Log lines go to standard error: time, level, text. One line per change of state; metrics carry the
// rest. Thread-safe.
//
// `level` is one of debug, info, warn, error, critical, off. Returns false for any other word. Before it is
// called, lines of level info and above are written.
bool InitLog(absl::string_view level);

enum class LogLevel { kDebug, kInfo, kWarn, kError, kCritical };

// One line: `format` is libfmt's, its arguments are in `args`. The text is escaped (EscapeControls() in
// plain_text.h), so that one from elsewhere neither begins a line nor moves a terminal's cursor, and the log
// is UTF-8.
void WriteLog(LogLevel level, fmt::string_view format, fmt::format_args args);

// The last line of a process that is about to abort: critical, and flushed. Where the log is off, or does not
// go to standard error because InitLog() has not been called, it goes there itself.
void WriteLastLine(absl::string_view text);

namespace log_internal {

// What libfmt is given of an argument. It does not know a string_view of Abseil's own.
template <typename T>
const T& Argument(const T& value) {
  return value;
}
inline fmt::string_view Argument(const absl::string_view& text) { return {text.data(), text.size()}; }

template <typename... Args>
void Forward(LogLevel level, fmt::string_view format, const Args&... args) {
  WriteLog(level, format, fmt::make_format_args(args...));
}

}  // namespace log_internal

// LogInfo("worker {} joins as {}", name, id). These compile fast: everything that depends on a type is a
// reference to the argument.
template <typename... Args>
void LogDebug(fmt::string_view format, const Args&... args) {
  log_internal::Forward(LogLevel::kDebug, format, log_internal::Argument(args)...);
}
template <typename... Args>
void LogInfo(fmt::string_view format, const Args&... args) {
  log_internal::Forward(LogLevel::kInfo, format, log_internal::Argument(args)...);
}
template <typename... Args>
void LogWarn(fmt::string_view format, const Args&... args) {
  log_internal::Forward(LogLevel::kWarn, format, log_internal::Argument(args)...);
}
template <typename... Args>
void LogError(fmt::string_view format, const Args&... args) {
  log_internal::Forward(LogLevel::kError, format, log_internal::Argument(args)...);
}
template <typename... Args>
void LogCritical(fmt::string_view format, const Args&... args) {
  log_internal::Forward(LogLevel::kCritical, format, log_internal::Argument(args)...);
}

}  // namespace recon

#include "common/base/log.h"

#include <atomic>
#include <cstdio>

#include "common/base/plain_text.h"
#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/spdlog.h"

namespace recon {
namespace {

spdlog::level::level_enum LevelOf(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kCritical:
      break;
  }
  return spdlog::level::critical;
}

// InitLog() has been called: the log's lines go to standard error.
std::atomic<bool> to_stderr{false};

}  // namespace

bool InitLog(absl::string_view level) {
  const auto parsed = spdlog::level::from_str(std::string(level));
  if (parsed == spdlog::level::off && level != "off") return false;
  auto logger = spdlog::stderr_color_mt("recon");
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%-5l%$ %v");
  logger->set_level(parsed);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(logger);
  to_stderr.store(true);
  return true;
}

void WriteLog(LogLevel level, fmt::string_view format, fmt::format_args args) {
  spdlog::logger* const logger = spdlog::default_logger_raw();
  if (!logger->should_log(LevelOf(level))) return;
  logger->log(LevelOf(level), EscapeControls(fmt::vformat(format, args)));
}

void WriteLastLine(absl::string_view text) {
  spdlog::logger* const logger = spdlog::default_logger_raw();
  const std::string line = EscapeControls(text);
  const bool logged = logger->should_log(spdlog::level::critical);
  if (logged) {
    logger->log(spdlog::level::critical, line);
    logger->flush();
  }
  if (!logged || !to_stderr.load()) std::fprintf(stderr, "%s\n", line.c_str());
  std::fflush(stderr);
}

}  // namespace recon

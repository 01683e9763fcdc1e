#include "common/cli/flag_table.h"

#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"

namespace recon {

template <typename T>
FlagField::Add FlagField::AddOption(T* field, bool has_value) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!has_value) {
      return [field](CLI::App* app, const std::string& name, const std::string& help) {
        return app->add_flag(name, *field, help);
      };
    }
  }
  return [field](CLI::App* app, const std::string& name, const std::string& help) {
    return app->add_option(name, *field, help);
  };
}

template FlagField::Add FlagField::AddOption(bool*, bool);
template FlagField::Add FlagField::AddOption(int*, bool);
template FlagField::Add FlagField::AddOption(uint32_t*, bool);
template FlagField::Add FlagField::AddOption(uint64_t*, bool);
template FlagField::Add FlagField::AddOption(float*, bool);
template FlagField::Add FlagField::AddOption(double*, bool);
template FlagField::Add FlagField::AddOption(std::string*, bool);
template FlagField::Add FlagField::AddOption(std::vector<std::string>*, bool);

std::string EnvironmentName(const std::string& flag) {
  return absl::StrCat(
      "RECON_", absl::AsciiStrToUpper(absl::StrReplaceAll(absl::StripPrefix(flag, "--"), {{"-", "_"}})));
}

Flag LogLevelFlag(std::string* level) {
  return {"--log-level", level, "debug, info, warn or error",
          CLI::IsMember({"debug", "info", "warn", "error"})};
}

void FlagTable::AddTo(CLI::App* app, Environment environment) const {
  for (const FlagGroup& group : groups_) {
    app->option_defaults()->group(group.heading);
    for (const Flag& flag : group.flags) {
      CLI::Option* const option = flag.field.add_(app, flag.name, flag.help);
      if (flag.check) option->check(*flag.check);
      if (environment == Environment::kRead) {
        option->envname(flag.environment.empty() ? EnvironmentName(flag.name) : flag.environment);
      }
      if (flag.need == Flag::Need::kMustBeGiven) option->required();
      if (flag.need == Flag::Need::kMayBeGiven) option->capture_default_str();
    }
  }
}

absl::Status FlagTable::Take() const {
  for (const FlagGroup& group : groups_) {
    for (const Flag& flag : group.flags) {
      if (flag.field.take_) RECON_RETURN_IF_ERROR(flag.field.take_());
    }
  }
  return absl::OkStatus();
}

}  // namespace recon

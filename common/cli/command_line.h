#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"

namespace recon {

// What the command lines of all programs share: --version, --help in groups with defaults, a --config file in
// TOML whose errors name file and line, and one line for what is wrong, with the name that was perhaps meant.
//
//   CommandLine line("recon-worker", "leases data, computes gradients, pushes and pulls");
//   line.app()->add_option(...);
//   if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
//   ... checks of values that need more: return line.Refuse(status);
//
// One thread. What the options point to must outlive Parse().
class CommandLine {
 public:
  CommandLine(const std::string& program, const std::string& description);
  ~CommandLine();

  CLI::App* app() { return &app_; }

  // Adds --config FILE: settings with the names of the flags. Flags come first, then the file, then the
  // environment.
  void AddConfigFile();

  // Options that are added from now on are shown below this heading by --help.
  void BeginGroup(const std::string& heading) { app_.option_defaults()->group(heading); }

  // The exit code if the program should end: 0 after --help and --version, 2 after an error, which is on
  // standard error then.
  std::optional<int> Parse(int argc, char** argv);

  // The same without a word: InvalidArgument with the text, for what is wrong and for --help.
  absl::Status ParseQuietly(int argc, char** argv);

  // The flags below these headings and what they have: given, or the default.
  std::map<std::string, std::string> ValuesOf(const std::vector<std::string>& headings) const;

  // Gives flags below these headings values, where nobody else has said anything: neither the command line
  // nor the file nor the environment. Names are without dashes; one that comes again adds a value. After
  // Parse(). InvalidArgument for a name that is none of these flags, and for a value that the flag does not
  // take.
  absl::Status TakeDefaults(const std::vector<std::pair<std::string, std::string>>& values,
                            const std::vector<std::string>& headings);

  // Says on standard error what is wrong with a value: `status`, whose text may begin with the flag's name.
  // If the value came from the file or from the environment, the line says so. Returns 2.
  int Refuse(const absl::Status& status) const;

 private:
  class ConfigFile;

  // Where the value of a flag came from, if not from the command line: "job.toml:3: ", "RECON_BATCH: ".
  std::string SourceOf(const std::string& flag) const;
  // Names the flag, verb or argument that nobody knows, or the verb that is missing; empty if it is not that.
  std::string UnknownWord(const CLI::ParseError& error) const;
  std::string Explain(const CLI::ParseError& error) const;
  // The verb that was given, or the program.
  const CLI::App* Deepest() const;

  const std::string program_;
  CLI::App app_;
  std::shared_ptr<ConfigFile> config_;
  std::vector<std::string> arguments_;
};

}  // namespace recon

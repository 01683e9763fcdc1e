#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"

namespace recon {

// How --help looks: a heading for each group; a flag with what it takes, then its text, its default and its
// environment variable, in lines of 100 columns at most.
class HelpFormat : public CLI::Formatter {
 public:
  HelpFormat();

  std::string make_option(const CLI::Option* option, bool positional) const override;
  std::string make_group(std::string heading, bool positional,
                         std::vector<const CLI::Option*> options) const override;
  std::string make_positionals(const CLI::App* app) const override;
  std::string make_usage(const CLI::App* app, std::string name) const override;
  std::string make_subcommand(const CLI::App* verb) const override;
  std::string make_description(const CLI::App* app) const override;
};

}  // namespace recon

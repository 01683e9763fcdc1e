#pragma once

#include <functional>
#include <memory>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"

namespace recon {

// The verbs of reconctl as its command line has them: names, flags and help. What they do is in verbs.h.
//
// Each function adds verbs to `app`. Parsing puts what the verb that was given does into `*run`, which must
// outlive the parsing; `app` keeps the values of the flags, and must be there while it runs. One thread.
using Run = std::function<absl::Status()>;

// Verbs that ask a server, or read what it has left of a job: status, history, compare, trace, completions,
// drain, rollback, undo.
void AddJobVerbs(CLI::App* app, Run* run);
// snapshot ...: verbs on a directory of snapshots, and `take`, which asks the server for one.
void AddSnapshotVerbs(CLI::App* app, Run* run);
// policy set.
void AddPolicyVerbs(CLI::App* app, Run* run);

// How a verb reaches the server, and --json.
struct ServerTarget;
void AddServerFlags(CLI::App* verb, ServerTarget* target);

// A verb of `parent` that does `action(flags)`. Its flags are to be added to `app`, and their values go to
// `flags`, which lives as long as the verb.
template <typename Flags>
struct Verb {
  CLI::App* app;
  Flags* flags;
};
template <typename Flags, typename Action>
Verb<Flags> AddVerb(CLI::App* parent, const char* name, const char* help, Run* run, Action action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* const verb = parent->add_subcommand(name, help);
  verb->callback([flags, run, action] { *run = [flags, action] { return action(*flags); }; });
  return {verb, flags.get()};
}

}  // namespace recon

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/cli/flag_table.h"
#include "server/process/policy_flags.h"
#include "tools/reconctl/verb_flags.h"
#include "tools/reconctl/verbs.h"

namespace recon {
namespace {

void AddStatus(CLI::App* app, Run* run) {
  struct Flags {
    ServerTarget server;
    bool follow = false;
    double patience_seconds = 60;
  };
  const auto verb = AddVerb<Flags>(
      app, "status", "members, staleness, rates, progress and the last snapshot", run,
      [](const Flags& flags) {
        return Explained(flags.server, flags.follow ? FollowStatus(flags.server, flags.patience_seconds)
                                                    : ShowStatus(flags.server));
      });
  AddServerFlags(verb.app, &verb.flags->server);
  verb.app->add_flag("--follow", verb.flags->follow, "progress until the job is finished");
  verb.app
      ->add_option("--patience", verb.flags->patience_seconds,
                   "with --follow: seconds to wait for a server that does not answer")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
}

void AddHistory(CLI::App* app, Run* run) {
  const auto verb = AddVerb<HistoryTarget>(
      app, "history", "what a job has gone through, from its begin: curves, and what happened", run,
      [](const HistoryTarget& target) {
        const absl::Status shown = ShowHistory(target);
        return target.source.empty() ? Explained(target.server, shown) : shown;
      });
  verb.app->add_option("source", verb.flags->source,
                       "a server's data directory, whether it runs or not; default: the server of --server");
  AddServerFlags(verb.app, &verb.flags->server);
  verb.app->add_option("--worker", verb.flags->worker, "this worker's curves instead of the job's");
  verb.app->add_flag("--csv", verb.flags->csv, "all points as comma-separated values");
  verb.app->add_option("--tensorboard", verb.flags->tensorboard,
                       "write an event file for TensorBoard to this directory, and show nothing");
}

void AddCompare(CLI::App* app, Run* run) {
  const auto verb = AddVerb<CompareTarget>(
      app, "compare", "two jobs side by side: loss, time to it, rates, what they lost", run, CompareJobs);
  verb.app
      ->add_option("jobs", verb.flags->sources, "two of: a server's data directory, HOST:PORT of a server")
      ->required()
      ->expected(2);
  AddServerFlags(verb.app, &verb.flags->server);
  verb.app->add_option("--loss", verb.flags->loss,
                       "how long each took to come to it; default: what both have come to");
}

void AddTrace(CLI::App* app, Run* run) {
  const auto verb = AddVerb<TraceTarget>(
      app, "trace",
      "what head, servers and workers do for some seconds, on one clock, for Perfetto or Chrome", run,
      [](const TraceTarget& target) { return Explained(target.server, RecordTrace(target)); });
  AddServerFlags(verb.app, &verb.flags->server);
  verb.app->add_option("--seconds", verb.flags->seconds, "how long: 0.1 to 60")->capture_default_str();
  verb.app->add_option("-o,--output", verb.flags->output, "the file, JSON");
  verb.app->add_flag("--explain", verb.flags->explain, "say in three lines where a step's time goes");
}

// A verb that has no flags but the server's.
void AddPlain(CLI::App* app, const char* name, const char* help, Run* run,
              absl::Status (*action)(const ServerTarget&)) {
  const auto verb = AddVerb<ServerTarget>(app, name, help, run, [action](const ServerTarget& server) {
    return Explained(server, action(server));
  });
  AddServerFlags(verb.app, verb.flags);
}

absl::Status RollBack(const RollbackTarget& target) {
  return Explained(target.server, RollBackServer(target));
}

void AddDryRun(const Verb<RollbackTarget>& verb) {
  verb.app->add_flag("--dry-run", verb.flags->dry_run,
                     "only say what it would be, and how far back it can go");
}

void AddRollback(CLI::App* app, Run* run) {
  const auto verb = AddVerb<RollbackTarget>(
      app, "rollback", "take the running job back to a snapshot, or to the state after a logged push", run,
      RollBack);
  AddServerFlags(verb.app, &verb.flags->server);
  verb.app->add_option("generation", verb.flags->generation, "number of the snapshot")
      ->check(CLI::PositiveNumber);
  verb.app
      ->add_option("--to-sequence", verb.flags->sequence,
                   "instead: the state after this record of the push log, from the snapshot before it")
      ->check(CLI::PositiveNumber);
  verb.app->add_flag("--keep-samples", verb.flags->keep_samples,
                     "samples completed since stay completed; otherwise they are trained again");
  AddDryRun(verb);
}

void AddUndo(CLI::App* app, Run* run) {
  const auto verb = AddVerb<RollbackTarget>(
      app, "undo",
      "take pushes out of the running job, by applying all others again; their samples stay completed", run,
      RollBack);
  AddServerFlags(verb.app, &verb.flags->server);
  verb.app->add_option("pushes", verb.flags->pushes, "WORKER:STEP, one or more")->required();
  verb.app->add_option("--incarnation", verb.flags->incarnation,
                       "of the process that made them, where several of one name have");
  AddDryRun(verb);
}

struct PolicyFlags {
  ServerTarget server;
  PolicySettings settings;
  std::unique_ptr<FlagTable> table;  // The server's rows.
};

absl::Status SetPolicyOf(const PolicyFlags& flags) {
  RECON_RETURN_IF_ERROR(flags.table->Take());
  return Explained(flags.server, SetPolicy(flags.server, flags.settings));
}

}  // namespace

void AddServerFlags(CLI::App* verb, ServerTarget* target) {
  verb->option_defaults()->group("Server");
  verb->add_option("--server", target->address, "HOST:PORT of recon-server")
      ->envname("RECON_SERVER")
      ->capture_default_str();
  verb->add_option("--tls-cert", target->tls.cert, "PEM certificate of this client")
      ->envname("RECON_TLS_CERT");
  verb->add_option("--tls-key", target->tls.key, "PEM key of the certificate")->envname("RECON_TLS_KEY");
  verb->add_option("--tls-ca", target->tls.ca, "PEM certificate of the CA")->envname("RECON_TLS_CA");
  verb->add_option("--tls-crl", target->tls.crl,
                   "PEM file with the certificates that the CA has revoked: a server that shows one is not "
                   "trusted")
      ->envname("RECON_TLS_CRL");
  verb->add_flag("--insecure", target->tls.insecure, "plain text to an address other than loopback")
      ->envname("RECON_INSECURE");
  verb->add_option(
          "--token-file", target->tls.token_file,
          "file with a token of the role that the call needs; the environment may have the token itself "
          "(RECON_TOKEN), and the head's user needs neither on its machine")
      ->envname("RECON_TOKEN_FILE");
  verb->option_defaults()->group("Flags");
  verb->add_flag("--json", target->json, "one JSON value instead of a table");
}

void AddJobVerbs(CLI::App* app, Run* run) {
  AddStatus(app, run);
  AddHistory(app, run);
  AddCompare(app, run);
  AddTrace(app, run);
  AddPlain(app, "completions", "every completed split: what was processed, by whom, when", run,
           ShowCompletions);
  AddPlain(app, "sets", "sets of processes: members, who is lost, and which calls wait for whom", run,
           ShowSets);
  AddPlain(app, "drain", "end the server in good order, with a last snapshot", run, DrainServer);
  AddRollback(app, run);
  AddUndo(app, run);
}

void AddPolicyVerbs(CLI::App* app, Run* run) {
  CLI::App* const policy = app->add_subcommand("policy", "how the workers agree");
  policy->require_subcommand(1);
  const auto verb = AddVerb<PolicyFlags>(
      policy, "set", "change it while the job runs; flags as the server's, those not given their defaults",
      run, SetPolicyOf);
  AddServerFlags(verb.app, &verb.flags->server);
  std::vector<Flag> rows = PolicyFlagRows(&verb.flags->settings);
  for (Flag& row : rows) {
    if (row.name == "--sync") row.need = Flag::Need::kMustBeGiven;
  }
  verb.flags->table = std::make_unique<FlagTable>(std::vector<FlagGroup>{{"Flags", std::move(rows)}});
  verb.flags->table->AddTo(verb.app, FlagTable::Environment::kIgnored);
}

}  // namespace recon

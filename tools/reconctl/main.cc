#include <functional>
#include <iostream>
#include <optional>
#include <string>

#include "common/base/log.h"
#include "common/base/machine_limits.h"
#include "common/base/status_macros.h"
#include "common/cli/command_line.h"
#include "common/rpc/grpc_log.h"
#include "tools/reconctl/verbs.h"

namespace {

constexpr char kExitCodes[] =
    "Exit codes:\n"
    "  0  done\n"
    "  1  failed for another reason, as the message says\n"
    "  2  wrong flags or arguments, or certificates that do not fit the server's\n"
    "  3  the server cannot be reached or did not answer in time\n"
    "  4  a snapshot is damaged\n"
    "  5  there is no such snapshot or directory";

int ExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kInvalidArgument:
      return 2;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return 3;
    case absl::StatusCode::kDataLoss:
      return 4;
    case absl::StatusCode::kNotFound:
      return 5;
    default:
      return 1;
  }
}

void AddServerFlags(CLI::App* verb, recon::ServerTarget* target) {
  verb->option_defaults()->group("Server");
  verb->add_option("--server", target->address, "HOST:PORT of recon-server")
      ->envname("RECON_SERVER")
      ->capture_default_str();
  verb->add_option("--tls-cert", target->tls.cert, "PEM certificate of this client")
      ->envname("RECON_TLS_CERT");
  verb->add_option("--tls-key", target->tls.key, "PEM key of the certificate")->envname("RECON_TLS_KEY");
  verb->add_option("--tls-ca", target->tls.ca, "PEM certificate of the CA")->envname("RECON_TLS_CA");
  verb->add_flag("--insecure", target->tls.insecure, "plain text to an address other than loopback")
      ->envname("RECON_INSECURE");
  verb->add_option("--token-file", target->tls.token_file,
                   "file with a token of the role that the call needs; the head's own is found by its user")
      ->envname("RECON_TOKEN_FILE");
  verb->option_defaults()->group("Flags");
  verb->add_flag("--json", target->json, "one JSON value instead of a table");
}

void AddSnapshotFlags(CLI::App* verb, recon::SnapshotTarget* target, bool generation) {
  verb->add_option("directory", target->directory, "snapshot directory: <data>/snapshots of a server")
      ->required();
  if (generation)
    verb->add_option("generation", target->generation, "number of the snapshot; default see above");
  verb->add_flag("--json", target->json, "one JSON value instead of a table");
}

}  // namespace

int main(int argc, char** argv) {
  setenv("RECON_STORE_PATIENCE", "5s", /*overwrite=*/0);  // Somebody sits and waits.
  recon::RaiseLimits();
  recon::TakeGrpcLog(recon::GrpcLogUse::kClient);
  recon::InitLog("warn");  // To standard error: standard output is for what was asked for.
  recon::CommandLine line("reconctl", "shows a running job; lists, verifies, compares and exports snapshots");
  CLI::App& app = *line.app();
  app.footer(kExitCodes);
  app.require_subcommand(1);
  line.BeginGroup("Flags");
  recon::ServerTarget server;
  recon::SnapshotTarget snapshots;
  bool follow = false;
  double patience_seconds = 60;
  std::function<absl::Status()> run;

  CLI::App* status =
      app.add_subcommand("status", "members, staleness, rates, progress and the last snapshot");
  AddServerFlags(status, &server);
  status->add_flag("--follow", follow, "progress until the job is finished");
  status
      ->add_option("--patience", patience_seconds,
                   "with --follow: seconds to wait for a server that does not answer")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  status->callback([&] {
    run = [&] {
      return recon::Explained(
          server, follow ? recon::FollowStatus(server, patience_seconds) : recon::ShowStatus(server));
    };
  });

  recon::HistoryTarget history_target;
  CLI::App* history =
      app.add_subcommand("history", "what a job has gone through, from its begin: curves, and what happened");
  history->add_option("source", history_target.source,
                      "a server's data directory, whether it runs or not; default: the server of --server");
  AddServerFlags(history, &history_target.server);
  history->add_option("--worker", history_target.worker, "this worker's curves instead of the job's");
  history->add_flag("--csv", history_target.csv, "all points as comma-separated values");
  history->add_option("--tensorboard", history_target.tensorboard,
                      "write an event file for TensorBoard to this directory, and show nothing");
  history->callback([&] {
    run = [&] {
      const absl::Status shown = recon::ShowHistory(history_target);
      return history_target.source.empty() ? recon::Explained(history_target.server, shown) : shown;
    };
  });

  recon::CompareTarget compare_target;
  CLI::App* compare =
      app.add_subcommand("compare", "two jobs side by side: loss, time to it, rates, what they lost");
  compare
      ->add_option("jobs", compare_target.sources, "two of: a server's data directory, HOST:PORT of a server")
      ->required()
      ->expected(2);
  AddServerFlags(compare, &compare_target.server);
  compare->add_option("--loss", compare_target.loss,
                      "how long each took to come to it; default: what both have come to");
  compare->callback([&] { run = [&] { return recon::CompareJobs(compare_target); }; });

  recon::TraceTarget trace_target;
  CLI::App* trace = app.add_subcommand(
      "trace", "what head, servers and workers do for some seconds, on one clock, for Perfetto or Chrome");
  AddServerFlags(trace, &trace_target.server);
  trace->add_option("--seconds", trace_target.seconds, "how long: 0.1 to 60")->capture_default_str();
  trace->add_option("-o,--output", trace_target.output, "the file, JSON");
  trace->add_flag("--explain", trace_target.explain, "say in three lines where a step's time goes");
  trace->callback(
      [&] { run = [&] { return recon::Explained(trace_target.server, recon::RecordTrace(trace_target)); }; });

  CLI::App* completions =
      app.add_subcommand("completions", "every completed split: what was processed, by whom, when");
  AddServerFlags(completions, &server);
  completions->callback(
      [&] { run = [&] { return recon::Explained(server, recon::ShowCompletions(server)); }; });

  CLI::App* drain = app.add_subcommand("drain", "end the server in good order, with a last snapshot");
  AddServerFlags(drain, &server);
  drain->callback([&] { run = [&] { return recon::Explained(server, recon::DrainServer(server)); }; });

  recon::RollbackTarget rollback_target;
  CLI::App* rollback = app.add_subcommand(
      "rollback", "take the running job back to a snapshot, or to the state after a logged push");
  AddServerFlags(rollback, &rollback_target.server);
  rollback->add_option("generation", rollback_target.generation, "number of the snapshot")
      ->check(CLI::PositiveNumber);
  rollback
      ->add_option("--to-sequence", rollback_target.sequence,
                   "instead: the state after this record of the push log, from the snapshot before it")
      ->check(CLI::PositiveNumber);
  rollback->add_flag("--keep-samples", rollback_target.keep_samples,
                     "samples completed since stay completed; otherwise they are trained again");
  rollback->add_flag("--dry-run", rollback_target.dry_run,
                     "only say what it would be, and how far back it can go");
  CLI::App* undo = app.add_subcommand(
      "undo",
      "take pushes out of the running job, by applying all others again; their samples stay completed");
  AddServerFlags(undo, &rollback_target.server);
  undo->add_option("pushes", rollback_target.pushes, "WORKER:STEP, one or more")->required();
  undo->add_option("--incarnation", rollback_target.incarnation,
                   "of the process that made them, where several of one name have");
  undo->add_flag("--dry-run", rollback_target.dry_run,
                 "only say what it would be, and how far back it can go");
  for (CLI::App* verb : {rollback, undo}) {
    verb->callback([&] {
      run = [&] { return recon::Explained(rollback_target.server, recon::RollBackServer(rollback_target)); };
    });
  }

  CLI::App* snapshot =
      app.add_subcommand("snapshot", "list, show, verify, compare, export and take snapshots");
  snapshot->require_subcommand(1);
  CLI::App* list = snapshot->add_subcommand("list", "the snapshots of a directory, oldest first");
  AddSnapshotFlags(list, &snapshots, false);
  list->callback([&] { run = [&] { return recon::ListSnapshots(snapshots); }; });
  CLI::App* show = snapshot->add_subcommand("show", "one snapshot (default: the newest): tensors and shards");
  AddSnapshotFlags(show, &snapshots, true);
  show->callback([&] { run = [&] { return recon::ShowSnapshot(snapshots); }; });
  CLI::App* verify =
      snapshot->add_subcommand("verify", "read everything back and check it (default: all snapshots)");
  AddSnapshotFlags(verify, &snapshots, true);
  verify->callback([&] { run = [&] { return recon::VerifySnapshots(snapshots); }; });
  recon::DiffTarget diff_target;
  CLI::App* diff = snapshot->add_subcommand("diff", "what changed between two snapshots, tensor by tensor");
  diff->add_option("directory", diff_target.directory, "snapshot directory")->required();
  diff->add_option("before", diff_target.before, "number of a snapshot; 0 = the newest")->required();
  diff->add_option("after", diff_target.after, "number of another; 0 = the newest")->required();
  diff->add_option("--other", diff_target.other, "directory of the second snapshot; default: the first's");
  diff->add_flag("--json", diff_target.json, "one JSON value instead of a table");
  diff->callback([&] { run = [&] { return recon::DiffSnapshots(diff_target); }; });

  recon::ExportTarget export_target;
  CLI::App* exporting = snapshot->add_subcommand("export", "parameters as safetensors or for torch.load()");
  exporting->add_option("directory", export_target.directory, "snapshot directory")->required();
  exporting->add_option("generation", export_target.generation,
                        "number of the snapshot; default: the newest");
  exporting->add_option("--output", export_target.output, "file, or directory with --file-bytes")->required();
  exporting
      ->add_option("--file-bytes", export_target.file_bytes,
                   "several files of at most about so many bytes, and an index")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 50));
  std::string export_format = "safetensors";
  exporting->add_option("--format", export_format, "safetensors, or torch (what torch.load reads)")
      ->check(CLI::IsMember({"safetensors", "torch"}))
      ->capture_default_str();
  exporting->add_flag("--state", export_target.with_state,
                      "the optimizer's state, too: NAME.exp_avg and so on");
  exporting->callback([&] {
    export_target.torch = export_format == "torch";
    run = [&] { return recon::ExportSnapshot(export_target); };
  });

  recon::ImportTarget import_target;
  CLI::App* importing =
      snapshot->add_subcommand("import", "safetensors files as a snapshot, for --from-snapshot");
  importing
      ->add_option("files", import_target.files,
                   "*.safetensors, several of them, *.safetensors.index.json, or a directory of them")
      ->required();
  importing->add_option("--output", import_target.output, "directory for the snapshot, empty")->required();
  importing->add_option(
      "--model", import_target.model,
      "as the worker's --model: mlp:784-512-256-10, resnet50, synthetic:SHAPES_FILE; its tensors are "
      "found by name. Another text only names the model. Default: what the files say");
  // Each value is a flag of its own: what follows may be a file.
  const auto each = [&](const char* name, std::vector<std::string>* values, const char* what) {
    importing->add_option(name, *values, what)
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  each("--rename", &import_target.renames,
       "OLD=NEW: names in the files that match OLD become NEW; each * stands for any text, as in model.*=*");
  each("--skip", &import_target.skips, "PATTERN: tensors of the files that are left out");
  each("--carry", &import_target.carries,
       "PATTERN: tensors that are not trained and come along unchanged; those of other types do so by "
       "themselves");
  each("--alias", &import_target.aliases,
       "NAME=OTHER: NAME stands for tensor OTHER (tied weights), in the model or in what is exported");
  importing->callback([&] { run = [&] { return recon::ImportSnapshot(import_target); }; });

  std::string tensor;
  CLI::App* cat =
      snapshot->add_subcommand("cat", "one tensor's values to standard output, in NumPy's format");
  cat->add_option("directory", snapshots.directory, "snapshot directory")->required();
  cat->add_option("tensor", tensor, "its name")->required();
  cat->add_option("generation", snapshots.generation, "number of the snapshot; default: the newest");
  cat->callback([&] { run = [&] { return recon::CatTensor(snapshots, tensor); }; });

  recon::RestoreTarget restore_target;
  CLI::App* restore = snapshot->add_subcommand(
      "restore", "the state after a logged push, as a snapshot of another directory");
  restore->add_option("directory", restore_target.directory, "snapshot directory")->required();
  restore->add_option("--log", restore_target.log, "push log: <data>/log of the server")->required();
  restore->add_option("--to-sequence", restore_target.sequence, "last record to apply")->required();
  restore->add_option("--output", restore_target.output, "directory for the snapshot, empty")->required();
  restore->callback([&] { run = [&] { return recon::RestoreSnapshot(restore_target); }; });

  CLI::App* stats =
      snapshot->add_subcommand("stats", "what tensors and byte planes compress to (default: the newest)");
  AddSnapshotFlags(stats, &snapshots, true);
  stats->callback([&] { run = [&] { return recon::ShowSnapshotStats(snapshots); }; });
  bool unpin = false;
  CLI::App* pin = snapshot->add_subcommand("pin", "keep a snapshot, whatever the rules say");
  pin->add_option("directory", snapshots.directory, "snapshot directory")->required();
  pin->add_option("generation", snapshots.generation, "number of the snapshot")
      ->required()
      ->check(CLI::PositiveNumber);
  pin->add_flag("--remove", unpin, "the rules apply to it again");
  pin->add_flag("--json", snapshots.json, "one JSON value instead of a line");
  pin->callback([&] { run = [&] { return recon::PinSnapshot(snapshots, unpin); }; });
  recon::PruneTarget prune_target;
  CLI::App* prune =
      snapshot->add_subcommand("prune", "remove snapshots that no rule keeps; not while a server runs");
  prune->add_option("directory", prune_target.directory, "snapshot directory")->required();
  prune->add_option("--keep-last", prune_target.keep.last, "the newest, two at least")
      ->required()
      ->check(CLI::Range(2, 100000));
  prune
      ->add_option("--keep-hourly", prune_target.keep.hourly, "and the newest of each hour, of so many hours")
      ->check(CLI::Range(0, 100000));
  prune->add_option("--keep-daily", prune_target.keep.daily, "and the newest of each day, of so many days")
      ->check(CLI::Range(0, 100000));
  std::string keep_best;
  prune->add_option("--keep-best", keep_best, "accuracy or loss: and the one with the best evaluation");
  prune->add_flag("--dry-run", prune_target.dry_run, "only say which");
  prune->add_flag("--no-server", prune_target.no_server,
                  "no server runs on it: needed for s3:// and hdfs://, where no lock tells");
  prune->add_flag("--json", prune_target.json, "one JSON value");
  prune->callback([&] {
    run = [&]() -> absl::Status {
      RECON_ASSIGN_OR_RETURN(prune_target.keep.best, recon::ParseBestBy(keep_best));
      return recon::PruneSnapshots(prune_target);
    };
  });

  recon::PolicyTarget policy_target;
  CLI::App* policy = app.add_subcommand("policy", "how the workers agree");
  policy->require_subcommand(1);
  CLI::App* set_policy = policy->add_subcommand(
      "set", "change it while the job runs; flags as the server's, those not given their defaults");
  AddServerFlags(set_policy, &policy_target.server);
  set_policy->add_option("--sync", policy_target.sync, "asp, bsp, ssp:S, local:H, diloco:H or auto")
      ->required();
  set_policy->add_option("--local-steps", policy_target.local_steps,
                         "with asp, bsp or ssp: batches between two pushes; 0 = gradients are pushed");
  set_policy->add_option("--outer-optimizer", policy_target.outer_optimizer,
                         "with local steps, what the server does with pushes");
  CLI::Option* outer_rate =
      set_policy->add_option("--outer-learning-rate", policy_target.outer_learning_rate, "its rate");
  CLI::Option* outer_momentum =
      set_policy->add_option("--outer-momentum", policy_target.outer_momentum, "its momentum");
  set_policy->add_option("--staleness-correction", policy_target.correction,
                         "with asp and ssp: none, inverse, gap-aware[:VERSIONS] or dc-asgd[:VERSIONS]");
  set_policy
      ->add_option("--auto-bound-max", policy_target.auto_bound_max,
                   "with auto: workers are never more pushes apart; 0 is bsp, -1 no bound")
      ->check(CLI::Range(-1, 1000));
  set_policy->add_option("--auto-local-steps-max", policy_target.auto_local_steps_max,
                         "with auto: batches between two pushes, at most; 0 = gradients are pushed");
  set_policy->add_option("--fragments", policy_target.fragments,
                         "with local steps: so many parts of the parameters are pushed in turn");
  set_policy->add_flag("--local-steps-by-speed", policy_target.local_steps_by_speed,
                       "with local steps: slower workers take fewer");
  set_policy->add_option("--quorum", policy_target.quorum,
                         "with bsp, local:H and diloco:H: so many workers' pushes close a step; 0 = all");
  set_policy->add_option("--grace", policy_target.grace,
                         "with --quorum: how long it waits for the others, or auto");
  set_policy->add_option(
      "--step-samples", policy_target.step_samples,
      "with bsp: samples of a step whoever is there, or constant; 0 = a batch of each worker");
  set_policy->add_option("--sync-period", policy_target.sync_periods,
                         "GROUP=N: gradients of that group are in each N-th push only");
  set_policy->callback([&] {
    policy_target.has_outer_learning_rate = outer_rate->count() > 0;
    policy_target.has_outer_momentum = outer_momentum->count() > 0;
    run = [&] { return recon::Explained(policy_target.server, recon::SetPolicy(policy_target)); };
  });

  CLI::App* take = snapshot->add_subcommand("take", "ask the server for a snapshot now");
  AddServerFlags(take, &server);
  take->callback([&] { run = [&] { return recon::Explained(server, recon::TakeSnapshot(server)); }; });

  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  const absl::Status result = run();
  if (!result.ok()) std::cerr << "reconctl: " << result.message() << "\n";
  return ExitCode(result);
}

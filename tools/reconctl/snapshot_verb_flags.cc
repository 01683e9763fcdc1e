#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "tools/reconctl/verb_flags.h"
#include "tools/reconctl/verbs.h"

namespace recon {
namespace {

constexpr char kOneValue[] = "one JSON value instead of a table";

void AddSnapshotFlags(const Verb<SnapshotTarget>& verb, bool generation) {
  verb.app->add_option("directory", verb.flags->directory, "snapshot directory: <data>/snapshots of a server")
      ->required();
  if (generation)
    verb.app->add_option("generation", verb.flags->generation, "number of the snapshot; default see above");
  verb.app->add_flag("--json", verb.flags->json, kOneValue);
}

// Those that read snapshots.
void AddReaders(CLI::App* snapshot, Run* run) {
  AddSnapshotFlags(AddVerb<SnapshotTarget>(snapshot, "list", "the snapshots of a directory, oldest first",
                                           run, ListSnapshots),
                   false);
  AddSnapshotFlags(
      AddVerb<SnapshotTarget>(snapshot, "show", "one snapshot (default: the newest): tensors and shards", run,
                              ShowSnapshot),
      true);
  AddSnapshotFlags(AddVerb<SnapshotTarget>(snapshot, "verify",
                                           "read everything back and check it (default: all snapshots)", run,
                                           VerifySnapshots),
                   true);
}

void AddDiff(CLI::App* snapshot, Run* run) {
  const auto verb = AddVerb<DiffTarget>(
      snapshot, "diff", "what changed between two snapshots, tensor by tensor", run, DiffSnapshots);
  verb.app->add_option("directory", verb.flags->directory, "snapshot directory")->required();
  verb.app->add_option("before", verb.flags->before, "number of a snapshot; 0 = the newest")->required();
  verb.app->add_option("after", verb.flags->after, "number of another; 0 = the newest")->required();
  verb.app->add_option("--other", verb.flags->other,
                       "directory of the second snapshot; default: the first's");
  verb.app->add_flag("--json", verb.flags->json, kOneValue);
}

// By the flag, or by the ending of the file's name, which must not say something else: programs go by it,
// too.
absl::StatusOr<bool> IsForTorch(const ExportTarget& target, const std::string& format) {
  if (target.file_bytes > 0) return format == "torch";  // To a directory.
  const std::string ending = std::filesystem::path(target.output).extension();
  const bool of_torch = ending == ".pt" || ending == ".pth" || ending == ".bin" || ending == ".ckpt";
  const bool of_others = ending == ".safetensors";
  if ((format == "torch" && of_others) || (format == "safetensors" && of_torch)) {
    return absl::InvalidArgumentError(absl::StrCat("--output ", target.output, ": what ends in ", ending,
                                                   " is read as ", of_torch ? "torch's" : "safetensors",
                                                   ", but --format is ", format,
                                                   ": leave the flag out, or choose another name"));
  }
  return format == "torch" || of_torch;
}

void AddExport(CLI::App* snapshot, Run* run) {
  struct Flags {
    ExportTarget target;
    std::string format;
  };
  const auto verb =
      AddVerb<Flags>(snapshot, "export", "parameters as safetensors or for torch.load()", run,
                     [](Flags& flags) -> absl::Status {
                       RECON_ASSIGN_OR_RETURN(flags.target.torch, IsForTorch(flags.target, flags.format));
                       return ExportSnapshot(flags.target);
                     });
  ExportTarget* const target = &verb.flags->target;
  verb.app->add_option("directory", target->directory, "snapshot directory")->required();
  verb.app->add_option("generation", target->generation, "number of the snapshot; default: the newest");
  verb.app->add_option("--output", target->output, "file, or directory with --file-bytes")->required();
  verb.app
      ->add_option("--file-bytes", target->file_bytes,
                   "several files of at most about so many bytes, and an index")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 50));
  verb.app
      ->add_option("--format", verb.flags->format,
                   "safetensors, or torch (what torch.load reads); default: by --output's ending")
      ->check(CLI::IsMember({"safetensors", "torch"}));
  verb.app->add_flag("--state", target->with_state, "the optimizer's state, too: NAME.exp_avg and so on");
}

void AddImport(CLI::App* snapshot, Run* run) {
  const auto verb = AddVerb<ImportTarget>(
      snapshot, "import", "safetensors files as a snapshot, for --from-snapshot", run, ImportSnapshot);
  verb.app
      ->add_option("files", verb.flags->files,
                   "*.safetensors, several of them, *.safetensors.index.json, or a directory of them")
      ->required();
  verb.app->add_option("--output", verb.flags->output, "directory for the snapshot, empty")->required();
  verb.app->add_option(
      "--model", verb.flags->model,
      "as the worker's --model: mlp:784-512-256-10, resnet50, synthetic:SHAPES_FILE; its tensors are "
      "found by name. Another text only names the model. Default: what the files say");
  // Each value is a flag of its own: what follows may be a file.
  const auto each = [&verb](const char* name, std::vector<std::string>* values, const char* what) {
    verb.app->add_option(name, *values, what)
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  each("--rename", &verb.flags->renames,
       "OLD=NEW: names in the files that match OLD become NEW; each * stands for any text, as in model.*=*");
  each("--skip", &verb.flags->skips, "PATTERN: tensors of the files that are left out");
  each("--carry", &verb.flags->carries,
       "PATTERN: tensors that are not trained and come along unchanged; those of other types do so by "
       "themselves");
  each("--alias", &verb.flags->aliases,
       "NAME=OTHER: NAME stands for tensor OTHER (tied weights), in the model or in what is exported");
}

void AddCat(CLI::App* snapshot, Run* run) {
  struct Flags {
    SnapshotTarget target;
    std::string tensor;
  };
  const auto verb =
      AddVerb<Flags>(snapshot, "cat", "one tensor's values to standard output, in NumPy's format", run,
                     [](const Flags& flags) { return CatTensor(flags.target, flags.tensor); });
  verb.app->add_option("directory", verb.flags->target.directory, "snapshot directory")->required();
  verb.app->add_option("tensor", verb.flags->tensor, "its name")->required();
  verb.app->add_option("generation", verb.flags->target.generation,
                       "number of the snapshot; default: the newest");
}

void AddRestore(CLI::App* snapshot, Run* run) {
  const auto verb = AddVerb<RestoreTarget>(
      snapshot, "restore", "the state after a logged push, as a snapshot of another directory", run,
      RestoreSnapshot);
  verb.app->add_option("directory", verb.flags->directory, "snapshot directory")->required();
  verb.app->add_option("--log", verb.flags->log, "push log: <data>/log of the server")->required();
  verb.app->add_option("--to-sequence", verb.flags->sequence, "last record to apply")->required();
  verb.app->add_option("--output", verb.flags->output, "directory for the snapshot, empty")->required();
}

void AddPin(CLI::App* snapshot, Run* run) {
  struct Flags {
    SnapshotTarget target;
    bool remove = false;
  };
  const auto verb =
      AddVerb<Flags>(snapshot, "pin", "keep a snapshot, whatever the rules say", run,
                     [](const Flags& flags) { return PinSnapshot(flags.target, flags.remove); });
  verb.app->add_option("directory", verb.flags->target.directory, "snapshot directory")->required();
  verb.app->add_option("generation", verb.flags->target.generation, "number of the snapshot")
      ->required()
      ->check(CLI::PositiveNumber);
  verb.app->add_flag("--remove", verb.flags->remove, "the rules apply to it again");
  verb.app->add_flag("--json", verb.flags->target.json, "one JSON value instead of a line");
}

void AddPrune(CLI::App* snapshot, Run* run) {
  struct Flags {
    PruneTarget target;
    std::string keep_best;
  };
  const auto verb =
      AddVerb<Flags>(snapshot, "prune", "remove snapshots that no rule keeps; not while a server runs", run,
                     [](Flags& flags) -> absl::Status {
                       RECON_ASSIGN_OR_RETURN(flags.target.keep.best, ParseBestBy(flags.keep_best));
                       return PruneSnapshots(flags.target);
                     });
  PruneTarget* const target = &verb.flags->target;
  verb.app->add_option("directory", target->directory, "snapshot directory")->required();
  verb.app->add_option("--keep-last", target->keep.last, "the newest, two at least")
      ->required()
      ->check(CLI::Range(2, 100000));
  verb.app->add_option("--keep-hourly", target->keep.hourly, "and the newest of each hour, of so many hours")
      ->check(CLI::Range(0, 100000));
  verb.app->add_option("--keep-daily", target->keep.daily, "and the newest of each day, of so many days")
      ->check(CLI::Range(0, 100000));
  verb.app->add_option("--keep-best", verb.flags->keep_best,
                       "accuracy or loss: and the one with the best evaluation");
  verb.app->add_flag("--dry-run", target->dry_run, "only say which");
  verb.app->add_flag("--no-server", target->no_server,
                     "no server runs on it: needed for s3:// and hdfs://, where no lock tells");
  verb.app->add_flag("--json", target->json, "one JSON value");
}

}  // namespace

void AddSnapshotVerbs(CLI::App* app, Run* run) {
  CLI::App* const snapshot =
      app->add_subcommand("snapshot", "list, show, verify, compare, export and take snapshots");
  snapshot->require_subcommand(1);
  AddReaders(snapshot, run);
  AddDiff(snapshot, run);
  AddExport(snapshot, run);
  AddImport(snapshot, run);
  AddCat(snapshot, run);
  AddRestore(snapshot, run);
  AddSnapshotFlags(AddVerb<SnapshotTarget>(snapshot, "stats",
                                           "what tensors and byte planes compress to (default: the newest)",
                                           run, ShowSnapshotStats),
                   true);
  AddPin(snapshot, run);
  AddPrune(snapshot, run);
  const auto take = AddVerb<ServerTarget>(
      snapshot, "take", "ask the server for a snapshot now", run,
      [](const ServerTarget& server) { return Explained(server, TakeSnapshot(server)); });
  AddServerFlags(take.app, take.flags);
}

}  // namespace recon

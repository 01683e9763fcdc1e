#include "tools/bench/durability.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/process.h"
#include "common/base/sleep.h"
#include "common/base/status_macros.h"
#include "common/codec/codec.h"
#include "common/snapshot/manifest.h"
#include "common/storage/file_system.h"
#include "common/storage/local_store.h"
#include "server/data_plane/param_server.h"
#include "server/durability/push_log.h"
#include "server/recovery/log_replay.h"
#include "server/recovery/snapshot_service.h"
#include "tools/bench/bench_process.h"
#include "tools/bench/median.h"
#include "tools/bench/push_gaps.h"
#include "tools/bench/push_load.h"
#include "tools/bench/shell.h"
#include "tools/source_paths.h"

namespace recon {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kThreads = 2;
constexpr int kPlanes = 2;  // Adam's.
// After a gigabyte has been written or removed: the machine below may still be busy with it.
constexpr absl::Duration kDiskRest = absl::Seconds(2);
// The default of --replay-target.
constexpr absl::Duration kReplayTarget = absl::Seconds(5);
constexpr uint64_t kRecordBytes = uint64_t{1} << 20;
constexpr uint64_t kLogBytes = uint64_t{1} << 30;
constexpr uint64_t kSyncedBytes = uint64_t{128} << 20;

void RestDisk() {
  sync();
  Sleep(kDiskRest);
}

double Seconds(const std::function<void()>& work) {
  const absl::Time start = Now();
  work();
  return absl::ToDoubleSeconds(Now() - start);
}

// What the script prints; see tools/bench/torch_state.py.
absl::StatusOr<std::string> Torch(const std::string& arguments) {
  const std::string command =
      absl::StrCat("/usr/bin/python3 ", Quoted(InSources("tools/bench/torch_state.py")), " ", arguments);
  absl::StatusOr<std::string> out = OutputOf(command);
  if (out.ok()) return out;
  return absl::FailedPreconditionError(
      absl::StrCat(out.status().message(), "; it needs PyTorch: tools/setup.sh --bench"));
}

absl::StatusOr<double> TorchSeconds(const std::string& arguments) {
  RECON_ASSIGN_OR_RETURN(const std::string out, Torch(arguments));
  return ParseSeconds(out);
}

// Parameters and both moments, of one group: the flat space of the layout is that of the file.
struct State {
  ModelSpec model;
  std::unique_ptr<ParamLayout> layout;
  std::vector<ShardCut> shards;
};

absl::StatusOr<State> LoadState(const std::string& directory) {
  State state;
  state.model.set_name("resnet50");
  std::ifstream shapes(directory + "/shapes");
  for (std::string line; std::getline(shapes, line);) {
    std::istringstream fields(line);
    TensorSpec* tensor = state.model.add_tensors();
    fields >> *tensor->mutable_name();
    for (uint64_t dim = 0; fields >> dim;) tensor->add_shape(dim);
    if (tensor->shape_size() == 0) tensor->add_shape(1);
  }
  RECON_ASSIGN_OR_RETURN(ParamLayout layout, ParamLayout::Create(state.model));
  state.layout = std::make_unique<ParamLayout>(std::move(layout));
  std::ifstream values(directory + "/state.bin", std::ios::binary);
  state.shards.resize(state.layout->shard_count());
  for (int role = 0; role <= kPlanes; ++role) {
    for (uint32_t i = 0; i < state.layout->shard_count(); ++i) {
      const ShardPlacement& shard = state.layout->shards()[i];
      state.shards[i].version = 1;
      state.shards[i].pages.resize(kPlanes + 1);
      for (uint32_t page = 0; page < shard.pages(); ++page) {
        state.shards[i].pages[role].push_back(PageRef::Zeroed());
        bool cloned;
        values.read(reinterpret_cast<char*>(state.shards[i].pages[role].back().Writable(&cloned)),
                    static_cast<std::streamsize>(shard.PageSize(page) * sizeof(float)));
      }
    }
  }
  if (!values) return absl::DataLossError(directory + "/state.bin is too short; delete the directory");
  return state;
}

absl::StatusOr<Manifest> Save(const State& state, const std::string& directory) {
  RECON_ASSIGN_OR_RETURN(const auto store, LocalStore::Open(directory, /*writer=*/true));
  SnapshotWriter::Description description;
  description.optimizer = OptimizerName(OptimizerKind::kAdam);
  description.state_planes = kPlanes;
  description.created_unix_ms = absl::ToUnixMillis(Now());
  description.reason = "bench";
  return SnapshotWriter(store.get(), {}).Write(*state.layout, state.shards, description);
}

// A verb of this program in a process of its own; it prints seconds.
absl::StatusOr<double> OwnSeconds(const std::string& arguments) {
  RECON_ASSIGN_OR_RETURN(
      const std::string out,
      OutputOf(absl::StrCat(Quoted(std::filesystem::read_symlink("/proc/self/exe")), " ", arguments)));
  return ParseSeconds(out);
}

// Loading takes memory, and a virtual machine may have to ask its host for some that nobody used for a while.
absl::StatusOr<double> BetterOfTwo(const std::function<absl::StatusOr<double>()>& measure) {
  RECON_ASSIGN_OR_RETURN(const double first, measure());
  RECON_ASSIGN_OR_RETURN(const double second, measure());
  return std::min(first, second);
}

absl::Status MeasureSnapshots(const DurabilityOptions& options, const State& state, const std::string& work,
                              Json* json, Json* ratios) {
  std::vector<double> save, torch_save, restore, torch_load;
  const std::string torch_file = work + "/torch.pt";
  const std::string directory = work + "/snapshots";
  Manifest manifest;
  const auto ours = [&]() -> absl::Status {
    const absl::Time start = Now();
    RECON_ASSIGN_OR_RETURN(manifest, Save(state, directory));
    save.push_back(absl::ToDoubleSeconds(Now() - start));
    RestDisk();
    RECON_ASSIGN_OR_RETURN(const double restored, BetterOfTwo([&] {
                             return OwnSeconds("durability-restore " + Quoted(directory));
                           }));
    restore.push_back(restored);
    return absl::OkStatus();
  };
  const auto torchs = [&]() -> absl::Status {
    RECON_ASSIGN_OR_RETURN(const double saved, TorchSeconds(absl::StrCat("save ", Quoted(options.state), " ",
                                                                         Quoted(torch_file))));
    torch_save.push_back(saved);
    RestDisk();
    RECON_ASSIGN_OR_RETURN(const double loaded,
                           BetterOfTwo([&] { return TorchSeconds("load " + Quoted(torch_file)); }));
    torch_load.push_back(loaded);
    return absl::OkStatus();
  };
  for (int round = 0; round < options.rounds; ++round) {
    std::filesystem::remove_all(directory);
    std::filesystem::remove(torch_file);
    // Each is saved to and loaded from a disk that is at rest; in turn, each is the first.
    for (const bool first : {true, false}) {
      RestDisk();
      RECON_RETURN_IF_ERROR(first == (round % 2 == 0) ? ours() : torchs());
    }
  }
  const SnapshotSizes sizes = SizesOf(manifest);
  uint64_t weights_raw = 0, weights_stored = 0;
  for (const ChunkEntry& chunk : manifest.chunks()) {
    if (chunk.role() != 0) continue;
    weights_raw += chunk.raw_bytes();
    for (const uint32_t bytes : chunk.stored_bytes()) weights_stored += bytes;
  }
  (*json)["snapshot"] = {{"raw_bytes", sizes.raw},
                         {"stored_bytes", sizes.stored},
                         {"save_s", Median(save)},
                         {"torch_save_fsync_s", Median(torch_save)},
                         {"restore_cold_verified_s", Median(restore)},
                         {"torch_load_cold_s", Median(torch_load)},
                         {"rounds",
                          {{"save_s", save},
                           {"torch_save_fsync_s", torch_save},
                           {"restore_cold_verified_s", restore},
                           {"torch_load_cold_s", torch_load}}}};
  (*ratios)["save_vs_torch"] = Median(save) / Median(torch_save);
  (*ratios)["compression"] = static_cast<double>(weights_raw) / static_cast<double>(weights_stored);
  (*ratios)["compression_with_state"] = static_cast<double>(sizes.raw) / static_cast<double>(sizes.stored);
  (*ratios)["restore_vs_torch_cold"] = Median(restore) / Median(torch_load);
  return absl::OkStatus();
}

// Bytes per second, records of 1 MiB one after the other.
absl::StatusOr<double> PlainAppend(const std::string& directory, const ByteChain& record, uint64_t bytes,
                                   bool sync) {
  const std::string path = directory + "/plain";
  const std::string content = record.ToString();
  RECON_ASSIGN_OR_RETURN(const auto file, FileSystem::Local()->Create(path));
  absl::Status status;
  const double seconds = Seconds([&] {
    for (uint64_t at = 0; at < bytes && status.ok(); at += content.size()) {
      status = file->Append({content});
      if (sync && status.ok()) status = file->Sync();
    }
  });
  RECON_RETURN_IF_ERROR(status);
  RECON_RETURN_IF_ERROR(FileSystem::Local()->Remove(path));
  return static_cast<double>(bytes) / seconds;
}

absl::StatusOr<double> LogAppend(const std::string& directory, const ByteChain& record, uint64_t bytes,
                                 bool sync) {
  PushLog::Options log_options;
  log_options.directory = directory + "/log";
  log_options.sync = sync;
  RECON_ASSIGN_OR_RETURN(auto log, PushLog::Open(log_options, FileSystem::Local(), ApplyRules(), 1));
  absl::Status status;
  Mutex mu;
  const double seconds = Seconds([&] {
    for (uint64_t at = 0; at < bytes; at += record.size()) {
      const bool last = at + record.size() >= bytes;
      // Synced ones wait for each other, as the plain ones do.
      if (!sync && !last) {
        log->Append(LogRecordKind::kFrame, record, [](const absl::Status&) {});
        continue;
      }
      Notification written;
      log->Append(LogRecordKind::kFrame, record, [&](const absl::Status& done) {
        status.Update(done);
        written.Notify();
      });
      written.WaitForNotification();
    }
  });
  RECON_RETURN_IF_ERROR(status);
  log.reset();
  std::filesystem::remove_all(log_options.directory);
  return static_cast<double>(bytes) / seconds;
}

absl::Status MeasureLog(const DurabilityOptions& options, const std::string& work, Json* json, Json* ratios) {
  std::string content(kRecordBytes, '\0');
  uint64_t seed = 1;
  for (char& byte : content)
    byte = static_cast<char>((seed = seed * 6364136223846793005 + 1442695040888963407) >> 56);
  const ByteChain record = ByteChain::FromString(std::move(content));
  for (const bool sync : {false, true}) {
    std::vector<double> plain, log;
    // They are short, and of two kinds where a virtual machine's free memory goes back to its host: with
    // memory that it still has, and with memory that it has to get first.
    for (int round = 0; round < 3 * options.rounds; ++round) {
      const uint64_t bytes = sync ? kSyncedBytes : kLogBytes;
      RECON_ASSIGN_OR_RETURN(const double appended, PlainAppend(work, record, bytes, sync));
      RECON_ASSIGN_OR_RETURN(const double logged, LogAppend(work, record, bytes, sync));
      plain.push_back(appended);
      log.push_back(logged);
    }
    const std::string name = sync ? "log_sync" : "log";
    (*json)[name] = {{"append_GBps", Median(plain) / 1e9},
                     {"log_GBps", Median(log) / 1e9},
                     {"rounds", {{"append_bytes_per_s", plain}, {"log_bytes_per_s", log}}}};
    (*ratios)[name + "_of_append"] = Median(log) / Median(plain);
  }
  return absl::OkStatus();
}

ParamServer::Options AdamServer() {
  ParamServer::Options options;
  options.rules.optimizer.kind = OptimizerKind::kAdam;
  options.rules.optimizer.learning_rate = 1e-6;
  options.apply_threads = kThreads;
  return options;
}

absl::StatusOr<Manifest> RestoreNewest(ObjectStore* store, ParamServer* params) {
  const SnapshotReader reader(store);
  RECON_ASSIGN_OR_RETURN(const std::vector<Generation> generations, reader.List());
  if (generations.empty()) return absl::NotFoundError(store->Describe() + " holds no snapshot");
  RECON_ASSIGN_OR_RETURN(const Manifest manifest, reader.ReadManifest(generations.back()));
  RECON_RETURN_IF_ERROR(params->DefineModel(manifest.model()));
  RECON_RETURN_IF_ERROR(params->Restore(reader, manifest));
  return manifest;
}

absl::Status MeasurePushes(const DurabilityOptions& options, const std::string& directory, Json* json,
                           Json* ratios) {
  Metrics metrics;
  ParamServer params(AdamServer(), &metrics);
  RECON_ASSIGN_OR_RETURN(const auto store, LocalStore::Open(directory, /*writer=*/true));
  RECON_RETURN_IF_ERROR(RestoreNewest(store.get(), &params).status());
  SnapshotService::Options service_options;
  service_options.writer.keep.last = 2;
  service_options.optimizer = OptimizerName(OptimizerKind::kAdam);
  SnapshotService service(service_options, &params, store.get(), &metrics);
  std::vector<double> without, during, slow_without, slow, snapshot;
  PushGaps gaps_without, gaps;
  {
    PushLoad load(&params, 1);
    Sleep(absl::Seconds(1));
    for (int round = 0; round < options.rounds; ++round) {
      load.Take();
      Notification done;
      absl::Status status;
      const absl::Time start = Now();
      service.Take(
          "bench",
          [&](const absl::StatusOr<SnapshotReply>& reply) {
            status = reply.status();
            done.Notify();
          },
          SnapshotWriter::Pace::kBackground);
      done.WaitForNotification();
      const absl::Duration took = Now() - start;
      const PushLoad::Taken busy = load.Take();
      Sleep(took);
      const PushLoad::Taken quiet = load.Take();
      const double seconds = absl::ToDoubleSeconds(took);
      RECON_RETURN_IF_ERROR(status);
      RECON_RETURN_IF_ERROR(load.status());
      without.push_back(static_cast<double>(quiet.frames) / seconds);
      during.push_back(static_cast<double>(busy.frames) / seconds);
      gaps_without.Add(quiet.longest_gaps);
      gaps.Add(busy.longest_gaps);
      slow_without.push_back(1e3 * quiet.slowest);
      slow.push_back(1e3 * busy.slowest);
      snapshot.push_back(seconds);
    }
  }
  service.Flush();
  (*json)["pushes_during_snapshot"] = {{"frames", "fp16, of a worker's size, no log"},
                                       {"without_frames_per_s", Median(without)},
                                       {"during_frames_per_s", Median(during)},
                                       {"snapshot_s", Median(snapshot)},
                                       {"longest_gap_without_ms", gaps_without.LongestMs()},
                                       {"longest_gap_during_ms", gaps.LongestMs()},
                                       {"usual_gap_without_ms", gaps_without.UsualMs()},
                                       {"usual_gap_during_ms", gaps.UsualMs()},
                                       {"usual_gap_at_begin_ms", gaps.BeginMs()},
                                       {"usual_gap_at_end_ms", gaps.EndMs()},
                                       {"least_longest_gap_without_ms", gaps_without.LeastLongestMs()},
                                       {"least_longest_gap_during_ms", gaps.LeastLongestMs()},
                                       {"slowest_push_without_ms", Median(slow_without)},
                                       {"slowest_push_during_ms", Median(slow)}};
  (*ratios)["push_rate_during_snapshot"] = Median(during) / Median(without);
  (*ratios)["longest_push_stall_ms"] = StallMs(gaps, gaps_without);
  return absl::OkStatus();
}

// A server's death with a log as long as --replay-target lets it become: the state of `directory` and that
// log in `work`/log, of dense FP16 pushes.
absl::Status FillLog(const std::string& directory, const std::string& work) {
  Metrics metrics;
  ParamServer params(AdamServer(), &metrics);
  RECON_ASSIGN_OR_RETURN(const auto store, LocalStore::Open(directory, /*writer=*/false));
  RECON_ASSIGN_OR_RETURN(const Manifest manifest, RestoreNewest(store.get(), &params));
  PushLog::Options log_options;
  log_options.directory = work + "/log";
  ApplyRules rules = AdamServer().rules;
  rules.cluster_epoch = 1;
  RECON_ASSIGN_OR_RETURN(
      auto log, PushLog::Open(log_options, FileSystem::Local(), rules, params.position().sequence + 1));
  params.log()->Set(std::move(log));
  params.log()->NoteSnapshot(FirstRecordFor(manifest));
  const double target = absl::ToDoubleSeconds(kReplayTarget);
  PushLoad load(&params, 1);
  while (params.position().replay_seconds < target && load.status().ok()) Sleep(absl::Milliseconds(20));
  return load.status();
}

absl::Status MeasureRecovery(const DurabilityOptions& options, const std::string& work, Json* json) {
  const std::string directory = work + "/snapshots";
  RECON_RETURN_IF_ERROR(FillLog(directory, work));
  sync();
  std::vector<double> recover;
  for (int round = 0; round < options.rounds; ++round) {
    RECON_ASSIGN_OR_RETURN(
        const double seconds,
        OwnSeconds(absl::StrCat("durability-restore ", Quoted(directory), " ", Quoted(work + "/log"))));
    recover.push_back(seconds);
  }
  uint64_t log_bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(work + "/log")) log_bytes += entry.file_size();
  (*json)["server_recover"] = {{"server_recover_s", Median(recover)},
                               {"replay_target_s", absl::ToDoubleSeconds(kReplayTarget)},
                               {"log_bytes", log_bytes}};
  return absl::OkStatus();
}

// Over a limited link, by processes: see join.py.
absl::Status MeasureJoin(Json* json, Json* ratios) {
  if (geteuid() != 0) {
    (*json)["join"] = "not measured: network namespaces need root";
    return absl::OkStatus();
  }
  const std::string script = InSources("tools/bench/join.py");
  const std::string binaries = ProgramDirectory();
  RECON_ASSIGN_OR_RETURN(
      const std::string out,
      OutputOf(absl::StrCat("python3 ", Quoted(script), " --bin ", Quoted(binaries), " --json | tail -n 1")));
  const Json join = Json::parse(out, nullptr, /*allow_exceptions=*/false);
  if (!join.contains("ratios")) return absl::InternalError("join.py: " + out);
  (*json)["join"] = join;
  (*ratios)["join_of_link"] = join["ratios"]["join_of_link"];
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Json> RunDurability(const DurabilityOptions& options) {
  const BenchDirectory directory(options.work);
  const std::string& work = directory.path();
  Json json = {{"bench", "durability"}, {"rounds", options.rounds}};
  Json ratios;
  const bool all = options.part == "all";
  if (options.part != "log") {
    if (!std::filesystem::exists(options.state + "/state.bin")) {
      fprintf(stderr, "recon-bench: training ResNet-50 for %s; this takes minutes, once\n",
              options.state.c_str());
      RECON_RETURN_IF_ERROR(Torch(absl::StrCat("make ", Quoted(options.state), " ", options.bytes)).status());
    }
    json["state"] = "ResNet-50 and Adam, trained";
    RECON_ASSIGN_OR_RETURN(const State state, LoadState(options.state));
    if (options.part == "pushes") {
      RECON_RETURN_IF_ERROR(Save(state, work + "/snapshots").status());
    } else {
      RECON_RETURN_IF_ERROR(MeasureSnapshots(options, state, work, &json, &ratios));
      std::filesystem::remove(work + "/torch.pt");
    }
  }
  if (all || options.part == "pushes") {
    RECON_RETURN_IF_ERROR(MeasurePushes(options, work + "/snapshots", &json, &ratios));
  }
  if (all) {
    RECON_RETURN_IF_ERROR(MeasureRecovery(options, work, &json));
    std::filesystem::remove_all(work + "/log");
  }
  if (all || options.part == "log") RECON_RETURN_IF_ERROR(MeasureLog(options, work, &json, &ratios));
  if (all) RECON_RETURN_IF_ERROR(MeasureJoin(&json, &ratios));
  json["ratios"] = ratios;
  return json;
}

absl::StatusOr<Json> RunRestore(const std::string& directory, const std::string& log) {
  for (const std::string& below : {directory, log}) {
    if (below.empty()) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(below)) {
      const int fd = open(entry.path().c_str(), O_RDONLY);
      if (fd < 0) continue;
      (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      close(fd);
    }
  }
  RECON_ASSIGN_OR_RETURN(const auto store, LocalStore::Open(directory, /*writer=*/false));
  Metrics metrics;
  ParamServer params(AdamServer(), &metrics);
  const absl::Time start = Now();
  RECON_ASSIGN_OR_RETURN(const Manifest manifest, RestoreNewest(store.get(), &params));
  if (!log.empty()) {
    ControlState control;
    RECON_ASSIGN_OR_RETURN(const LogEnd end,
                           ReplayLog(FileSystem::Local(), log, manifest, &params, &control));
    if (end.records == 0) return absl::NotFoundError(log + " has nothing to replay");
  }
  return Json(absl::ToDoubleSeconds(Now() - start));
}

}  // namespace recon

#include "tools/bench/durability.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/codec/codec.h"
#include "common/snapshot/manifest.h"
#include "common/storage/file_system.h"
#include "common/storage/local_store.h"
#include "server/durability/push_log.h"
#include "server/param_server.h"
#include "server/snapshot_service.h"
#include "tools/bench/bench_process.h"
#include "tools/bench/median.h"

namespace recon {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kThreads = 2;
constexpr int kPlanes = 2;  // Adam's.
constexpr uint64_t kRecordBytes = uint64_t{1} << 20;
constexpr uint64_t kLogBytes = uint64_t{1} << 30;
constexpr uint64_t kSyncedBytes = uint64_t{128} << 20;

double Seconds(const std::function<void()>& work) {
  const absl::Time start = Now();
  work();
  return absl::ToDoubleSeconds(Now() - start);
}

// One word for a shell, whatever is in it.
std::string Quoted(const std::string& word) {
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

// What the script prints; see tools/bench/torch_state.py.
absl::StatusOr<std::string> Torch(const std::string& arguments) {
  const std::string command = absl::StrCat(
      "/usr/bin/python3 ", Quoted(RECON_SOURCE_DIR "/tools/bench/torch_state.py"), " ", arguments);
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return absl::InternalError("popen failed");
  std::string out;
  char piece[256];
  for (size_t got; (got = fread(piece, 1, sizeof(piece), pipe)) > 0;) out.append(piece, got);
  if (pclose(pipe) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", command, "' failed; it needs PyTorch: tools/setup.sh --bench"));
  }
  return out;
}

absl::StatusOr<double> TorchSeconds(const std::string& arguments) {
  RECON_ASSIGN_OR_RETURN(const std::string out, Torch(arguments));
  double seconds = 0;
  if (!absl::SimpleAtod(absl::StripSuffix(out, "\n"), &seconds))
    return absl::InternalError("no number: " + out);
  return seconds;
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

// In a process of its own.
absl::StatusOr<double> RestoreSeconds(const std::string& directory) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command = absl::StrCat(Quoted(self), " durability-restore ", Quoted(directory));
  FILE* pipe = popen(command.c_str(), "r");
  double seconds = 0;
  if (pipe == nullptr || fscanf(pipe, "%lf", &seconds) != 1 || pclose(pipe) != 0) {
    return absl::InternalError(command + " failed");
  }
  return seconds;
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
  Manifest manifest;
  for (int round = 0; round < options.rounds; ++round) {
    const std::string directory = absl::StrCat(work, "/snapshots");
    std::filesystem::remove_all(directory);
    sync();
    const absl::Time start = Now();
    RECON_ASSIGN_OR_RETURN(manifest, Save(state, directory));
    save.push_back(absl::ToDoubleSeconds(Now() - start));
    // Each begins with a quiet disk, and is loaded right behind its own saving: the disk has as much of the
    // other to do.
    RECON_ASSIGN_OR_RETURN(const double restored, BetterOfTwo([&] { return RestoreSeconds(directory); }));
    restore.push_back(restored);
    std::filesystem::remove(torch_file);
    sync();
    RECON_ASSIGN_OR_RETURN(const double saved, TorchSeconds(absl::StrCat("save ", Quoted(options.state), " ",
                                                                         Quoted(torch_file))));
    torch_save.push_back(saved);
    RECON_ASSIGN_OR_RETURN(const double loaded,
                           BetterOfTwo([&] { return TorchSeconds("load " + Quoted(torch_file)); }));
    torch_load.push_back(loaded);
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
                         {"torch_load_cold_s", Median(torch_load)}};
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
    for (int round = 0; round < options.rounds; ++round) {
      const uint64_t bytes = sync ? kSyncedBytes : kLogBytes;
      RECON_ASSIGN_OR_RETURN(const double appended, PlainAppend(work, record, bytes, sync));
      RECON_ASSIGN_OR_RETURN(const double logged, LogAppend(work, record, bytes, sync));
      plain.push_back(appended);
      log.push_back(logged);
    }
    const std::string name = sync ? "log_sync" : "log";
    (*json)[name] = {{"append_GBps", Median(plain) / 1e9}, {"log_GBps", Median(log) / 1e9}};
    (*ratios)[name + "_of_append"] = Median(log) / Median(plain);
  }
  return absl::OkStatus();
}

// Pushes FP16 gradients, one shard a frame, as fast as the server takes them, some frames in flight.
class Load {
 public:
  Load(ParamServer* params, uint32_t worker) : params_(params), worker_(worker) {
    params_->Admit(WorkerId(worker), Incarnation(worker), 0);
    params_->Activate(WorkerId(worker), 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~Load() {
    stop_ = true;
    thread_.join();
  }

  // Frames acknowledged, and the longest time without one, since the last call.
  struct Taken {
    uint64_t frames = 0;
    double longest_gap = 0;
    double slowest = 0;
  };
  Taken Take() {
    MutexLock lock(&mu_);
    last_ = Now();
    return std::exchange(taken_, {});
  }

 private:
  void Run() {
    constexpr int kInFlight = 4;
    const auto layout = params_->layout();
    std::vector<ByteChain> payloads;
    for (const ShardPlacement& shard : layout->shards()) {
      const std::vector<float> gradient(shard.size, 1e-3f);
      std::string bytes(EncodedBytes(CodecId::kFp16, shard.size), '\0');
      Encode(CodecId::kFp16, gradient.data(), shard.size, reinterpret_cast<uint8_t*>(bytes.data()));
      payloads.push_back(ByteChain::FromString(std::move(bytes)));
    }
    for (uint64_t step = 0; !stop_; ++step) {
      for (uint32_t i = 0; i < layout->shard_count() && !stop_; ++i) {
        {
          MutexLock lock(&mu_);
          mu_.Await([this] { return in_flight_ < kInFlight; });
          ++in_flight_;
        }
        Frame frame;
        frame.header.kind = static_cast<uint8_t>(FrameKind::kPush);
        frame.header.worker = worker_;
        frame.header.incarnation = worker_;
        frame.header.cluster_epoch = 1;
        frame.header.step = step;
        frame.header.samples = 1;
        frame.header.push_parts = layout->shard_count();
        PartHeader part;
        part.shard = i;
        part.count = layout->shards()[i].size;
        part.codec = static_cast<uint8_t>(CodecId::kFp16);
        part.version = 0;
        frame.parts.push_back(part);
        frame.payloads.push_back(payloads[i]);
        const absl::Time sent = Now();
        params_->Handle(FrameKind::kPush, EncodeFrame(std::move(frame)), sent,
                        [this, sent](const absl::StatusOr<ByteChain>& reply) {
                          const absl::Time now = Now();
                          MutexLock lock(&mu_);
                          --in_flight_;
                          if (!reply.ok()) return;
                          ++taken_.frames;
                          taken_.longest_gap =
                              std::max(taken_.longest_gap, absl::ToDoubleSeconds(now - last_));
                          taken_.slowest = std::max(taken_.slowest, absl::ToDoubleSeconds(now - sent));
                          last_ = now;
                        });
      }
    }
    MutexLock lock(&mu_);
    mu_.Await([this] { return in_flight_ == 0; });
  }

  ParamServer* const params_;
  const uint32_t worker_;
  std::atomic<bool> stop_{false};
  Mutex mu_;
  int in_flight_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time last_ ABSL_GUARDED_BY(mu_) = Now();
  Taken taken_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

absl::Status MeasurePushes(const DurabilityOptions& options, const std::string& directory, Json* json,
                           Json* ratios) {
  constexpr absl::Duration kWithout = absl::Seconds(4);
  Metrics metrics;
  ParamServer::Options server_options;
  server_options.rules.optimizer.kind = OptimizerKind::kAdam;
  server_options.rules.optimizer.learning_rate = 1e-6;
  server_options.lanes = kThreads;
  ParamServer params(server_options, &metrics);
  RECON_ASSIGN_OR_RETURN(const auto store, LocalStore::Open(directory, /*writer=*/true));
  const SnapshotReader reader(store.get());
  RECON_ASSIGN_OR_RETURN(const std::vector<Generation> generations, reader.List());
  RECON_ASSIGN_OR_RETURN(const Manifest manifest, reader.ReadManifest(generations.back()));
  RECON_RETURN_IF_ERROR(params.DefineModel(manifest.model()));
  RECON_RETURN_IF_ERROR(params.Restore(reader, manifest, /*parameters_only=*/false));
  SnapshotService::Options service_options;
  service_options.writer.keep.last = 2;
  service_options.optimizer = OptimizerName(OptimizerKind::kAdam);
  SnapshotService service(service_options, &params, store.get(), &metrics);
  std::vector<double> without, during, gap_without, gap, slow_without, slow, snapshot;
  {
    Load load(&params, 1);
    absl::SleepFor(absl::Seconds(1));
    for (int round = 0; round < options.rounds; ++round) {
      load.Take();
      absl::SleepFor(kWithout);
      const Load::Taken quiet = load.Take();
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
      const double seconds = absl::ToDoubleSeconds(Now() - start);
      const Load::Taken busy = load.Take();
      RECON_RETURN_IF_ERROR(status);
      without.push_back(static_cast<double>(quiet.frames) / absl::ToDoubleSeconds(kWithout));
      during.push_back(static_cast<double>(busy.frames) / seconds);
      gap_without.push_back(1e3 * quiet.longest_gap);
      gap.push_back(1e3 * busy.longest_gap);
      slow_without.push_back(1e3 * quiet.slowest);
      slow.push_back(1e3 * busy.slowest);
      snapshot.push_back(seconds);
    }
  }
  service.Flush();
  (*json)["pushes_during_snapshot"] = {
      {"frames", "fp16, one shard each, no log"},        {"without_frames_per_s", Median(without)},
      {"during_frames_per_s", Median(during)},           {"snapshot_s", Median(snapshot)},
      {"longest_gap_without_ms", Median(gap_without)},   {"longest_gap_during_ms", Median(gap)},
      {"slowest_push_without_ms", Median(slow_without)}, {"slowest_push_during_ms", Median(slow)}};
  (*ratios)["push_rate_during_snapshot"] = Median(during) / Median(without);
  // What the snapshot adds to the longest time without an acknowledgement.
  std::vector<double> stall;
  for (size_t i = 0; i < gap.size(); ++i) stall.push_back(std::max(0.0, gap[i] - gap_without[i]));
  (*ratios)["longest_push_stall_ms"] = Median(stall);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Json> RunDurability(const DurabilityOptions& options) {
  if (!std::filesystem::exists(options.state + "/state.bin")) {
    fprintf(stderr, "recon-bench: training ResNet-50 for %s; this takes minutes, once\n",
            options.state.c_str());
    RECON_RETURN_IF_ERROR(Torch(absl::StrCat("make ", Quoted(options.state), " ", options.bytes)).status());
  }
  const BenchDirectory directory(options.work);
  const std::string& work = directory.path();
  Json json = {{"bench", "durability"}, {"rounds", options.rounds}, {"state", "ResNet-50 and Adam, trained"}};
  Json ratios;
  {
    RECON_ASSIGN_OR_RETURN(const State state, LoadState(options.state));
    RECON_RETURN_IF_ERROR(MeasureSnapshots(options, state, work, &json, &ratios));
  }
  std::filesystem::remove(work + "/torch.pt");
  RECON_RETURN_IF_ERROR(MeasurePushes(options, work + "/snapshots", &json, &ratios));
  RECON_RETURN_IF_ERROR(MeasureLog(options, work, &json, &ratios));
  json["ratios"] = ratios;
  return json;
}

absl::StatusOr<Json> RunRestore(const std::string& directory) {
  RECON_ASSIGN_OR_RETURN(const auto store, LocalStore::Open(directory, /*writer=*/false));
  RECON_ASSIGN_OR_RETURN(const std::vector<std::string> names, store->List(""));
  for (const std::string& name : names) {
    const int fd = open(absl::StrCat(directory, "/", name).c_str(), O_RDONLY);
    if (fd >= 0) {
      (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      close(fd);
    }
  }
  Metrics metrics;
  ParamServer::Options options;
  options.rules.optimizer.kind = OptimizerKind::kAdam;
  options.lanes = kThreads;
  ParamServer params(options, &metrics);
  const absl::Time start = Now();
  const SnapshotReader reader(store.get());
  RECON_ASSIGN_OR_RETURN(const std::vector<Generation> generations, reader.List());
  if (generations.empty()) return absl::NotFoundError(directory + " holds no snapshot");
  RECON_ASSIGN_OR_RETURN(const Manifest manifest, reader.ReadManifest(generations.back()));
  RECON_RETURN_IF_ERROR(params.DefineModel(manifest.model()));
  RECON_RETURN_IF_ERROR(params.Restore(reader, manifest, /*parameters_only=*/false));
  return Json(absl::ToDoubleSeconds(Now() - start));
}

}  // namespace recon

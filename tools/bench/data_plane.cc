#include "tools/bench/data_plane.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/sleep.h"
#include "common/base/status_macros.h"
#include "common/codec/codec.h"
#include "common/optim/optimizer_kernels.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/control_client.h"
#include "common/tensor/page.h"
#include "common/ucx/ucx_transport.h"
#include "server/store/gradient.h"
#include "tools/bench/bench_process.h"
#include "tools/bench/median.h"

namespace recon {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::Duration kPoll = absl::Milliseconds(20);
constexpr absl::Duration kStartTimeout = absl::Minutes(1);
// Pushes that a worker has under way, as recon-worker's default --depth has it.
constexpr int kDepth = 2;
constexpr uint64_t kFixedServerBytes = uint64_t{150} << 20;
// Momentum SGD: a parameter and its momentum.
constexpr double kStateBytesPerParam = 8;
// Of one update: an FP16 gradient read, both of them read and written.
constexpr double kApplyBytesPerParam = 2 + 2 * kStateBytesPerParam;
// Each takes some ten milliseconds.
constexpr int kKernelRuns = 7;
constexpr size_t kApplyParams = size_t{24} << 20;

// It decides what loopback gives: bbr paces packets with timers, the others do not.
std::string CongestionControl() {
  std::string name = "unknown";
  std::ifstream("/proc/sys/net/ipv4/tcp_congestion_control") >> name;
  return name;
}

double PerSecond(double amount, absl::Time start) { return amount / absl::ToDoubleSeconds(Now() - start); }

// Medians of everything that is measured, by name.
class Figures {
 public:
  void Add(const std::string& name, double value) { values_[name].push_back(value); }
  double Of(const std::string& name) const { return Median(values_.at(name)); }
  Json All() const {
    Json json;
    for (const auto& [name, values] : values_) json[name] = Median(values);
    return json;
  }

 private:
  std::map<std::string, std::vector<double>> values_;
};

// What moving bytes costs without us.
class Baselines {
 public:
  static absl::StatusOr<std::unique_ptr<Baselines>> Start() {
    auto baselines = std::make_unique<Baselines>();
    RECON_RETURN_IF_ERROR(StartPair("tcp", &baselines->tcp_));
    RECON_RETURN_IF_ERROR(StartPair("grpc", &baselines->grpc_));
    return baselines;
  }

  struct Result {
    double bytes_per_second = 0;
    double cpu_seconds_per_byte = 0;  // Both ends, and the kernel.
  };
  absl::StatusOr<Result> Tcp(double seconds, int connections) {
    return Measure(&tcp_, absl::StrCat(seconds, " ", connections), seconds);
  }
  absl::StatusOr<Result> Grpc(double seconds, int connections) {
    return Measure(&grpc_, absl::StrCat(seconds, " ", connections), seconds);
  }

 private:
  struct Pair {
    std::unique_ptr<BenchPeer> sink, source;
  };

  static absl::Status StartPair(const std::string& kind, Pair* pair) {
    pair->sink =
        std::make_unique<BenchPeer>(std::vector<std::string>{"data-plane-peer", absl::StrCat(kind, "-sink")});
    RECON_ASSIGN_OR_RETURN(const std::string port, pair->sink->Hear());
    pair->source = std::make_unique<BenchPeer>(
        std::vector<std::string>{"data-plane-peer", absl::StrCat(kind, "-source"), "--port", port});
    return pair->source->Hear().status();
  }

  static absl::StatusOr<Result> Measure(Pair* pair, const std::string& order, double seconds) {
    const double cpu = MachineCpuSeconds();
    pair->source->Say(order);
    RECON_ASSIGN_OR_RETURN(const std::string answer, pair->source->Hear());
    double bytes = 0;
    if (!absl::SimpleAtod(answer, &bytes) || bytes <= 0) return absl::InternalError("no bytes were moved");
    return Result{bytes / seconds, (MachineCpuSeconds() - cpu) / bytes};
  }

  Pair tcp_, grpc_;
};

// The update kernel alone, on memory of its own, and an in-place loop over as much.
class Kernel {
 public:
  Kernel() : params_(NewArray(0.1f)), momentum_(NewArray(0.01f)) {
    std::string bytes(EncodedBytes(CodecId::kFp16, kApplyParams), '\0');
    const std::vector<float> values(kApplyParams, 1e-3f);
    Encode(CodecId::kFp16, values.data(), values.size(), reinterpret_cast<uint8_t*>(bytes.data()));
    gradient_ = ByteChain::FromString(std::move(bytes));
  }

  ~Kernel() {
    std::free(params_);
    std::free(momentum_);
  }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  // Parameters per second.
  double Apply(int threads) {
    OptimizerConfig config;
    config.kind = OptimizerKind::kMomentum;
    const UpdateCoefficients c = CoefficientsFor(config, GroupPolicy(), 0, 1);
    return InParallel(threads, [&](size_t begin, size_t end) {
      const EncodedGradient gradient{CodecId::kFp16, static_cast<uint32_t>(end - begin),
                                     gradient_.Range(2 * begin, 2 * (end - begin))};
      ForEachRun(gradient, [&](size_t offset, const uint8_t* values, size_t count) {
        ApplyEncodedUpdate(c, CodecId::kFp16, values, count, params_ + begin + offset,
                           momentum_ + begin + offset, nullptr);
      });
    });
  }

  // Bytes per second that are read and written in place, over the same memory.
  double Stream(int threads) {
    return 16 * InParallel(threads, [&](size_t begin, size_t end) {
             for (size_t i = begin; i < end; ++i) {
               params_[i] *= 0.999f;
               momentum_[i] *= 0.999f;
             }
           });
  }

 private:
  double InParallel(int threads, const std::function<void(size_t, size_t)>& work) {
    const absl::Time start = Now();
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) {
      others.emplace_back(
          [&, i] { work(kApplyParams * i / threads / 64 * 64, kApplyParams * (i + 1) / threads / 64 * 64); });
    }
    work(0, kApplyParams / threads / 64 * 64);
    for (std::thread& other : others) other.join();
    return PerSecond(kApplyParams, start);
  }

  // Aligned as the server's pages are.
  static float* NewArray(float value) {
    auto* values = static_cast<float*>(std::aligned_alloc(kPageBytes, kApplyParams * sizeof(float)));
    std::fill_n(values, kApplyParams, value);
    return values;
  }

  float* const params_;
  float* const momentum_;
  ByteChain gradient_;
};

// A recon-server and workers that push to it.
class Job {
 public:
  explicit Job(const std::string& shapes) : shapes_(shapes) {}

  // `transport` is "grpc", "shm" or "ucx".
  absl::Status Start(int workers, const std::string& transport) {
    std::vector<std::string> server = {"recon-server",
                                       "--data",
                                       directory_.path() + "/data",
                                       "--listen",
                                       "127.0.0.1:0",
                                       "--optimizer",
                                       "momentum",
                                       "--learning-rate",
                                       "0.001",
                                       "--durability",
                                       "snapshot",
                                       "--snapshot-interval",
                                       "10h",
                                       "--evict-after",
                                       "5h",
                                       "--suspect-after",
                                       "4h"};
    if (transport == "ucx") server.insert(server.end(), {"--ucx-listen", "127.0.0.1:0", "--insecure"});
    server_ = std::make_unique<BenchProcess>(server, directory_.path() + "/server.log");
    const absl::Time give_up = Now() + kStartTimeout;
    while (!(std::ifstream(directory_.path() + "/data/ADDRESS") >> address_)) {
      if (Now() > give_up) return absl::DeadlineExceededError("recon-server did not start");
      Sleep(kPoll);
    }
    for (int i = 0; i < workers; ++i) {
      workers_.push_back(std::make_unique<BenchPeer>(
          std::vector<std::string>{"data-plane-peer", "push-worker", "--server", address_, "--shapes",
                                   shapes_, "--name", absl::StrCat("w", i), "--transport", transport}));
      RECON_RETURN_IF_ERROR(workers_.back()->Hear().status());
    }
    // The first snapshot is written before anything is measured.
    while (true) {
      RECON_ASSIGN_OR_RETURN(const StatusReply status, Status());
      params_ = status.parameters();
      if (status.snapshot().generation() > 0) return absl::OkStatus();
      if (Now() > give_up) return absl::DeadlineExceededError("no snapshot was taken");
      Sleep(kPoll);
    }
  }

  uint64_t params() const { return params_; }
  uint64_t server_bytes() const { return ResidentBytesOf(server_->pid()); }

  absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect() { return ConnectTo(address_, {}); }

  absl::StatusOr<StatusReply> Status() {
    RECON_ASSIGN_OR_RETURN(const auto channel, Connect());
    return ControlClient(channel).Status();
  }

  struct Result {
    double params_per_second = 0;
    double cpu_seconds = 0;
    double params = 0;
    double pushes = 0;
    std::vector<double> milliseconds;
  };
  // All workers at once.
  absl::StatusOr<Result> Run(const std::string& verb, double seconds, int depth, double pause_ms,
                             size_t workers) {
    Result result;
    const double cpu = MachineCpuSeconds();
    for (size_t i = 0; i < workers; ++i) {
      workers_[i]->Say(absl::StrCat(verb, " ", seconds, " ", depth, " ", pause_ms));
    }
    for (size_t i = 0; i < workers; ++i) {
      RECON_ASSIGN_OR_RETURN(const std::string line, workers_[i]->Hear());
      const Json answer = Json::parse(line);
      if (answer.contains("error")) return absl::InternalError(answer["error"].get<std::string>());
      result.params += answer["params"].get<double>();
      result.pushes += answer["pushes"].get<double>();
      result.params_per_second += answer["params"].get<double>() / answer["seconds"].get<double>();
      for (const Json& ms : answer["ms"]) result.milliseconds.push_back(ms);
    }
    result.cpu_seconds = MachineCpuSeconds() - cpu;
    return result;
  }

 private:
  const std::string shapes_;
  const BenchDirectory directory_;
  std::string address_;
  std::unique_ptr<BenchProcess> server_;
  std::vector<std::unique_ptr<BenchPeer>> workers_;
  uint64_t params_ = 0;
};

// Asks a job for its status again and again on one connection, as heartbeats do, on a thread of its own.
class ControlProbe {
 public:
  explicit ControlProbe(const std::shared_ptr<grpc::Channel>& channel)
      : control_(channel), thread_([this] { Run(); }) {}

  ~ControlProbe() { Stop(); }

  // The milliseconds each answer took.
  std::vector<double> Stop() {
    stopping_.store(true);
    if (thread_.joinable()) thread_.join();
    return milliseconds_;
  }

 private:
  void Run() {
    while (!stopping_.load()) {
      const absl::Time start = Now();
      if (control_.Status().ok()) milliseconds_.push_back(absl::ToDoubleMilliseconds(Now() - start));
      Sleep(kPoll);
    }
  }

  ControlClient control_;
  std::atomic<bool> stopping_{false};
  std::vector<double> milliseconds_;
  std::thread thread_;
};

class Bench {
 public:
  explicit Bench(const DataPlaneOptions& options)
      : options_(options), cores_(static_cast<int>(std::thread::hardware_concurrency())) {}

  absl::StatusOr<Json> Run() {
    RECON_ASSIGN_OR_RETURN(baselines_, Baselines::Start());
    Json shapes;
    Figures ratios;
    for (const std::string& name : options_.shapes) {
      for (const int workers : options_.workers) {
        RECON_ASSIGN_OR_RETURN(shapes[name][absl::StrCat(workers, "_workers")],
                               RunShape(name, workers, &ratios));
      }
    }
    Json json = {{"bench", "data-plane"},
                 {"cores", cores_},
                 {"rounds", options_.rounds},
                 {"network", "loopback"},
                 {"tcp_congestion_control", CongestionControl()},
                 {"gradients", "fp16, made before; momentum SGD is applied; no push log"}};
    json.update(general_.All());
    json["shapes"] = shapes;
    json["ratios"] = ratios.All();
    return json;
  }

 private:
  // What the parts cost alone, now: in CPU seconds.
  struct Parts {
    double grpc_per_byte = 0;
    double apply_per_param = 0;
  };
  absl::StatusOr<Parts> MeasureParts(Figures* ratios) {
    Parts parts;
    double best = 0, best_tcp = 0;
    for (const int connections : {1, 2}) {
      RECON_ASSIGN_OR_RETURN(const auto tcp, baselines_->Tcp(options_.seconds / 2, connections));
      best_tcp = std::max(best_tcp, tcp.bytes_per_second);
      RECON_ASSIGN_OR_RETURN(const auto grpc, baselines_->Grpc(options_.seconds / 2, connections));
      best = std::max(best, grpc.bytes_per_second);
      if (parts.grpc_per_byte == 0 || grpc.cpu_seconds_per_byte < parts.grpc_per_byte) {
        parts.grpc_per_byte = grpc.cpu_seconds_per_byte;
      }
    }
    general_.Add("iperf_like_GBps", best_tcp / 1e9);
    general_.Add("raw_grpc_GBps", best / 1e9);
    general_.Add("raw_grpc_cpu_seconds_per_GB", parts.grpc_per_byte * 1e9);
    std::vector<double> applied, streamed;
    for (int i = 0; i < kKernelRuns; ++i) {
      applied.push_back(kernel_.Apply(cores_));
      streamed.push_back(kernel_.Stream(cores_));
    }
    const double apply = Median(applied), stream = Median(streamed);
    // All cores are busy with it, and share the memory, as they do in a push.
    parts.apply_per_param = cores_ / apply;
    general_.Add("apply_GBps", apply * kApplyBytesPerParam / 1e9);
    general_.Add("stream_GBps", stream / 1e9);
    ratios->Add("raw_grpc_of_tcp", best / best_tcp);
    ratios->Add("apply_of_stream", apply * kApplyBytesPerParam / stream);
    return parts;
  }

  absl::StatusOr<Json> RunShape(const std::string& name, int workers, Figures* ratios) {
    Job job(name);
    RECON_RETURN_IF_ERROR(job.Start(workers, "grpc"));
    // The same work another way.
    std::map<std::string, std::unique_ptr<Job>> others;
    for (const char* transport : {"shm", "ucx"}) {
      if (transport == std::string("ucx") && !HaveUcx()) continue;
      others[transport] = std::make_unique<Job>(name);
      RECON_RETURN_IF_ERROR(others[transport]->Start(workers, transport));
    }
    const auto all = static_cast<size_t>(workers);
    Figures figures;
    std::map<std::string, Figures> other_figures;
    std::vector<double> idle, loaded, control;
    for (int round = -1; round < options_.rounds; ++round) {  // The first one warms up.
      std::cerr << name << ", " << workers << " workers, round " << round << "\n";
      RECON_ASSIGN_OR_RETURN(const Parts parts, MeasureParts(ratios));
      RECON_ASSIGN_OR_RETURN(const Job::Result push, job.Run("push", options_.seconds, kDepth, 0, all));
      RECON_ASSIGN_OR_RETURN(const Job::Result pull, job.Run("pull", options_.seconds, kDepth, 0, all));
      RECON_ASSIGN_OR_RETURN(const auto channel, job.Connect());
      ControlProbe probe_control(channel);
      RECON_ASSIGN_OR_RETURN(const Job::Result both, job.Run("pushpull", options_.seconds, kDepth, 0, all));
      const std::vector<double> answered = probe_control.Stop();
      RECON_ASSIGN_OR_RETURN(const Job::Result probe, job.Run("push", options_.seconds / 2, 1, 20, 1));
      for (const auto& [transport, other] : others) {
        RECON_ASSIGN_OR_RETURN(const Job::Result other_push,
                               other->Run("push", options_.seconds, kDepth, 0, all));
        RECON_ASSIGN_OR_RETURN(const Job::Result other_pull,
                               other->Run("pull", options_.seconds, kDepth, 0, all));
        RECON_ASSIGN_OR_RETURN(const Job::Result other_both,
                               other->Run("pushpull", options_.seconds, kDepth, 0, all));
        if (round < 0) continue;
        AddRates(other_push, other_pull, other_both, &other_figures[transport]);
        figures.Add(transport + "_vs_grpc_pushpull", other_both.params_per_second / both.params_per_second);
      }
      if (round < 0) continue;
      AddRates(push, pull, both, &figures);
      figures.Add("push_of_parts_bound",
                  push.params_per_second * (2 * parts.grpc_per_byte + parts.apply_per_param) / cores_);
      figures.Add("pushpull_of_parts_bound",
                  both.params_per_second * (4 * parts.grpc_per_byte + parts.apply_per_param) / cores_);
      idle.insert(idle.end(), probe.milliseconds.begin(), probe.milliseconds.end());
      loaded.insert(loaded.end(), both.milliseconds.begin(), both.milliseconds.end());
      control.insert(control.end(), answered.begin(), answered.end());
    }
    Json json = figures.All();
    json["shared_memory"] = other_figures["shm"].All();
    if (HaveUcx()) json["ucx"] = other_figures["ucx"].All();
    json["push_ms"] = {{"idle", {{"p50", Percentile(idle, 0.5)}, {"p99", Percentile(idle, 0.99)}}},
                       {"under_load", {{"p50", Percentile(loaded, 0.5)}, {"p99", Percentile(loaded, 0.99)}}}};
    json["control_ms_under_load"] = {{"p50", Percentile(control, 0.5)}, {"p99", Percentile(control, 0.99)}};
    RECON_RETURN_IF_ERROR(AddServer(&job, &json));
    for (const char* ratio : {"push_of_parts_bound", "pushpull_of_parts_bound", "shm_vs_grpc_pushpull"}) {
      ratios->Add(ratio, figures.Of(ratio));
    }
    ratios->Add("rss_over_state", json["rss_over_state"]);
    ratios->Add("copied_bytes_per_push", json["copied_bytes_per_push"]);
    return json;
  }

  static void AddRates(const Job::Result& push, const Job::Result& pull, const Job::Result& both,
                       Figures* figures) {
    figures->Add("push_GBps", 2e-9 * push.params_per_second);
    figures->Add("push_params_per_s", push.params_per_second);
    figures->Add("pull_GBps", 2e-9 * pull.params_per_second);
    figures->Add("pushpull_params_per_s", both.params_per_second);
    figures->Add("push_cpu_seconds_per_GB", push.cpu_seconds / (2e-9 * push.params));
    figures->Add("pushpull_cpu_seconds_per_GB", both.cpu_seconds / (4e-9 * both.params));
  }

  // What the server says of itself, and its memory.
  static absl::Status AddServer(Job* job, Json* json) {
    const double state = kStateBytesPerParam * static_cast<double>(job->params());
    const auto resident = static_cast<double>(job->server_bytes());
    (*json)["parameters"] = job->params();
    (*json)["state_bytes"] = state;
    (*json)["server_rss_bytes"] = resident;
    (*json)["rss_over_state"] = (resident - static_cast<double>(kFixedServerBytes)) / state;
    RECON_ASSIGN_OR_RETURN(const StatusReply status, job->Status());
    const auto pushes = static_cast<double>(status.pushes());
    for (const CopiedBytesStatus& copied : status.copied_bytes()) {
      (*json)[absl::StrCat(copied.why(), "_bytes_per_push")] = static_cast<double>(copied.bytes()) / pushes;
    }
    // Headers are made, not moved.
    (*json)["copied_bytes_per_push"] = (*json)["straddling_bytes_per_push"];
    return absl::OkStatus();
  }

  const DataPlaneOptions options_;
  const int cores_;
  std::unique_ptr<Baselines> baselines_;
  Kernel kernel_;
  Figures general_;
};

}  // namespace

absl::StatusOr<Json> RunDataPlane(const DataPlaneOptions& options) { return Bench(options).Run(); }

}  // namespace recon

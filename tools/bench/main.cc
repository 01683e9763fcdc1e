#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/cli/command_line.h"
#include "nlohmann/json.hpp"
#include "tools/bench/codecs.h"
#include "tools/bench/codecs_gpu.h"
#include "tools/bench/data_plane.h"
#include "tools/bench/data_plane_peers.h"
#include "tools/bench/durability.h"
#include "tools/bench/goodput.h"
#include "tools/bench/step_load.h"
#include "tools/bench/straggler.h"
#include "tools/bench/trace_cost.h"
#include "tools/source_paths.h"

namespace recon {
namespace {

using Result = absl::StatusOr<nlohmann::ordered_json>;
// What the verb that was given does: the exit code.
using Run = std::function<int()>;

// A verb of recon-bench: its options go to `options`, which lives as long as the verb.
template <typename Options>
struct Verb {
  CLI::App* app;
  Options* options;
};

int Show(const Result& result, bool json) {
  if (!result.ok()) {
    std::cerr << "recon-bench: " << result.status().message() << "\n";
    return 1;
  }
  std::cout << (json ? result->dump() : result->dump(2)) << "\n";
  return 0;
}

// A verb that measures, and shows `measure(options)`. --json is still to be added.
template <typename Options, typename Measure>
Verb<Options> AddMeasurement(CLI::App* app, const char* name, const char* help, Run* run, bool* json,
                             Measure measure) {
  const auto options = std::make_shared<Options>();
  CLI::App* const verb = app->add_subcommand(name, help);
  verb->callback([=] { *run = [=] { return Show(measure(*options), *json); }; });
  return {verb, options.get()};
}

// One part of a measurement, in a process of its own: --help of the program does not show it. `part(options)`
// is a status.
template <typename Options, typename Part>
Verb<Options> AddPart(CLI::App* app, const char* name, const char* help, Run* run, Part part) {
  const auto options = std::make_shared<Options>();
  CLI::App* const verb = app->add_subcommand(name, help)->group("");
  verb->callback([=] {
    *run = [=] {
      const absl::Status status = part(*options);
      if (!status.ok()) std::cerr << "recon-bench " << status.message() << "\n";
      return status.ok() ? 0 : 1;
    };
  });
  return {verb, options.get()};
}

void AddRounds(CLI::App* verb, int* rounds) {
  verb->add_option("--rounds", *rounds, "medians are over these")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
}

void AddJson(CLI::App* verb, bool* json) { verb->add_flag("--json", *json, "one JSON object"); }

void AddStraggler(CLI::App* app, Run* run, bool* json) {
  const auto [verb, options] = AddMeasurement<StragglerOptions>(
      app, "straggler", "throughput with one slow worker more (simulated computing)", run, json,
      RunStraggler);
  verb->add_option("--workers", options->workers, "of ordinary speed")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  verb->add_option("--slow-factor", options->slow_factor, "of the slow one")
      ->check(CLI::Range(1.0, 1e3))
      ->capture_default_str();
  verb->add_option("--step-ms", options->step_ms, "simulated computing time of a step")
      ->check(CLI::Range(1.0, 1e4))
      ->capture_default_str();
  AddRounds(verb, &options->rounds);
  verb->add_option("--seconds", options->seconds, "measured in each run")
      ->check(CLI::Range(0.5, 600.0))
      ->capture_default_str();
  AddJson(verb, json);
}

void AddCodecs(CLI::App* app, Run* run, bool* json) {
  struct Options {
    CodecsOptions codecs;
    int device = -1;
  };
  const auto [verb, options] = AddMeasurement<Options>(
      app, "codecs", "encode and decode rates beside the memory's", run, json, [](const Options& given) {
        return given.device >= 0 ? RunCodecsOnGpu(given.codecs, given.device) : RunCodecs(given.codecs);
      });
  verb->add_option("--values", options->codecs.values, "FP32 values of the gradient")
      ->check(CLI::Range(uint64_t{1} << 20, uint64_t{1} << 30))
      ->capture_default_str();
  verb->add_option("--ratio", options->codecs.ratio, "of topk and randomk")
      ->check(CLI::Range(1e-5, 1.0))
      ->capture_default_str();
  AddRounds(verb, &options->codecs.rounds);
  AddJson(verb, json);
  verb->add_option("--cuda", options->device, "measure this CUDA device instead of the CPU")
      ->check(CLI::Range(0, 64));
}

void AddDurability(CLI::App* app, Run* run, bool* json) {
  const auto [verb, options] = AddMeasurement<DurabilityOptions>(
      app, "durability", "snapshots and the push log beside PyTorch's and plain appends", run, json,
      RunDurability);
  options->state = InSources("build/durability_state");
  AddRounds(verb, &options->rounds);
  verb->add_option("--bytes", options->bytes, "of state, when it is made")
      ->check(CLI::Range(uint64_t{1} << 20, uint64_t{1} << 40))
      ->capture_default_str();
  verb->add_option("--state", options->state, "directory that keeps the state of real training")
      ->capture_default_str();
  verb->add_option("--work", options->work, "directory on the disk to measure")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
  verb->add_option("--part", options->part,
                   "all, snapshots (saving and restoring), pushes (beside a snapshot) or log (appends)")
      ->check(CLI::IsMember({"all", "snapshots", "pushes", "log"}))
      ->capture_default_str();
  AddJson(verb, json);
}

void AddDataPlane(CLI::App* app, Run* run, bool* json) {
  const auto [verb, options] = AddMeasurement<DataPlaneOptions>(
      app, "data-plane", "pushes and pulls beside plain TCP, bare gRPC and the bare kernel", run, json,
      RunDataPlane);
  AddRounds(verb, &options->rounds);
  verb->add_option("--seconds", options->seconds, "of each measurement of a round")
      ->check(CLI::Range(0.1, 600.0))
      ->capture_default_str();
  verb->add_option("--shapes", options->shapes, "models, by name or as files; see recon-worker --model")
      ->capture_default_str();
  verb->add_option("--workers", options->workers, "numbers of workers")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  AddJson(verb, json);
}

struct PeerOptions {
  std::string role;
  int port = 0;
  PushWorkerOptions push_worker;
};

absl::Status Prefixed(const std::string& name, const absl::Status& status) {
  return {status.code(), absl::StrCat(name, ": ", status.message())};
}

absl::Status RunPeer(const PeerOptions& options) {
  const std::string& role = options.role;
  return Prefixed(role, role == "tcp-sink"      ? RunTcpSink()
                        : role == "tcp-source"  ? RunTcpSource(options.port)
                        : role == "grpc-sink"   ? RunGrpcSink()
                        : role == "grpc-source" ? RunGrpcSource(options.port)
                                                : RunPushWorker(options.push_worker));
}

void AddPeer(CLI::App* app, Run* run) {
  const auto [verb, options] = AddPart<PeerOptions>(
      app, "data-plane-peer", "one part of data-plane, in its own process", run, RunPeer);
  verb->add_option("role", options->role)->required();
  verb->add_option("--port", options->port);
  verb->add_option("--server", options->push_worker.server);
  verb->add_option("--shapes", options->push_worker.shapes);
  verb->add_option("--name", options->push_worker.name);
  verb->add_option("--transport", options->push_worker.transport);
}

void AddStepLoad(CLI::App* app, Run* run) {
  const auto [verb, options] = AddPart<StepLoadOptions>(
      app, "step-load", "one worker of scale_out.py", run,
      [](const StepLoadOptions& given) { return Prefixed("step-load", RunStepLoad(given)); });
  verb->add_option("--server", options->server)->required();
  verb->add_option("--name", options->name)->required();
  verb->add_option("--parameters", options->parameters)->check(CLI::Range(uint64_t{1}, uint64_t{1} << 32));
  verb->add_option("--connections", options->connections)->check(CLI::Range(1, limits::kDataConnectionsMax));
  verb->add_option("--steps", options->steps)->check(CLI::Range(1, 100000));
}

void AddGoodput(CLI::App* app, Run* run, bool* json) {
  const auto [verb, options] = AddMeasurement<GoodputOptions>(
      app, "goodput",
      "simulated clusters: computing that counts, with failures, beside all-reduce with restarts", run, json,
      RunGoodput);
  verb->add_option("--seconds", options->seconds, "of simulated time with 16 workers; fewer with more")
      ->check(CLI::Range(10.0, 1e6))
      ->capture_default_str();
  verb->add_option("--seeds", options->seeds, "the mean is over these")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  verb->add_option("--workers-max", options->workers_max, "leaves out larger clusters")
      ->check(CLI::Range(16, 4096))
      ->capture_default_str();
  AddJson(verb, json);
}

void AddTraceCost(CLI::App* app, Run* run, bool* json) {
  const auto [verb, options] = AddMeasurement<TraceCostOptions>(
      app, "trace", "what spans cost, recorded and not", run, json, RunTraceCost);
  AddRounds(verb, &options->rounds);
  verb->add_option("--seconds", options->seconds, "of each measurement of a round")
      ->check(CLI::Range(0.1, 600.0))
      ->capture_default_str();
  AddJson(verb, json);
}

void AddRestore(CLI::App* app, Run* run, bool* json) {
  struct Options {
    std::string directory, log;
  };
  const auto [verb, options] = AddMeasurement<Options>(
      app, "durability-restore", "one part of durability, in a process of its own", run, json,
      [](const Options& given) { return RunRestore(given.directory, given.log); });
  verb->group("");
  verb->add_option("directory", options->directory)->required();
  verb->add_option("log", options->log);
}

int Main(int argc, char** argv) {
  CommandLine line("recon-bench", "measurements; each is a ratio against a baseline in the same run");
  CLI::App* const app = line.app();
  app->require_subcommand(1);
  line.BeginGroup("Flags");
  bool json = false;
  Run run;
  AddStraggler(app, &run, &json);
  AddCodecs(app, &run, &json);
  AddDurability(app, &run, &json);
  AddDataPlane(app, &run, &json);
  AddPeer(app, &run);
  AddStepLoad(app, &run);
  AddGoodput(app, &run, &json);
  AddTraceCost(app, &run, &json);
  AddRestore(app, &run, &json);
  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  InitLog("warn");
  return run();
}

}  // namespace
}  // namespace recon

// Exit codes: 0 measured, 1 failed, 2 wrong flags.
int main(int argc, char** argv) { return recon::Main(argc, argv); }

#include <iostream>
#include <optional>

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

// Exit codes: 0 measured, 1 failed, 2 wrong flags.
int main(int argc, char** argv) {
  recon::CommandLine line("recon-bench", "measurements; each is a ratio against a baseline in the same run");
  CLI::App& app = *line.app();
  app.require_subcommand(1);
  line.BeginGroup("Flags");
  bool json = false;
  recon::StragglerOptions straggler;
  CLI::App* verb =
      app.add_subcommand("straggler", "throughput with one slow worker more (simulated computing)");
  verb->add_option("--workers", straggler.workers, "of ordinary speed")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  verb->add_option("--slow-factor", straggler.slow_factor, "of the slow one")
      ->check(CLI::Range(1.0, 1e3))
      ->capture_default_str();
  verb->add_option("--step-ms", straggler.step_ms, "simulated computing time of a step")
      ->check(CLI::Range(1.0, 1e4))
      ->capture_default_str();
  verb->add_option("--rounds", straggler.rounds, "medians are over these")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  verb->add_option("--seconds", straggler.seconds, "measured in each run")
      ->check(CLI::Range(0.5, 600.0))
      ->capture_default_str();
  verb->add_flag("--json", json, "one JSON object");
  recon::CodecsOptions codecs;
  CLI::App* codecs_verb = app.add_subcommand("codecs", "encode and decode rates beside the memory's");
  codecs_verb->add_option("--values", codecs.values, "FP32 values of the gradient")
      ->check(CLI::Range(uint64_t{1} << 20, uint64_t{1} << 30))
      ->capture_default_str();
  codecs_verb->add_option("--ratio", codecs.ratio, "of topk and randomk")
      ->check(CLI::Range(1e-5, 1.0))
      ->capture_default_str();
  codecs_verb->add_option("--rounds", codecs.rounds, "medians are over these")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  codecs_verb->add_flag("--json", json, "one JSON object");
  int device = -1;
  codecs_verb->add_option("--cuda", device, "measure this CUDA device instead of the CPU")
      ->check(CLI::Range(0, 64));
  recon::DurabilityOptions durability;
  durability.state = recon::InSources("build/durability_state");
  CLI::App* durability_verb =
      app.add_subcommand("durability", "snapshots and the push log beside PyTorch's and plain appends");
  durability_verb->add_option("--rounds", durability.rounds, "medians are over these")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  durability_verb->add_option("--bytes", durability.bytes, "of state, when it is made")
      ->check(CLI::Range(uint64_t{1} << 20, uint64_t{1} << 40))
      ->capture_default_str();
  durability_verb->add_option("--state", durability.state, "directory that keeps the state of real training")
      ->capture_default_str();
  durability_verb->add_option("--work", durability.work, "directory on the disk to measure")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
  durability_verb
      ->add_option("--part", durability.part,
                   "all, snapshots (saving and restoring), pushes (beside a snapshot) or log (appends)")
      ->check(CLI::IsMember({"all", "snapshots", "pushes", "log"}))
      ->capture_default_str();
  durability_verb->add_flag("--json", json, "one JSON object");
  recon::DataPlaneOptions data_plane;
  CLI::App* data_plane_verb =
      app.add_subcommand("data-plane", "pushes and pulls beside plain TCP, bare gRPC and the bare kernel");
  data_plane_verb->add_option("--rounds", data_plane.rounds, "medians are over these")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  data_plane_verb->add_option("--seconds", data_plane.seconds, "of each measurement of a round")
      ->check(CLI::Range(0.1, 600.0))
      ->capture_default_str();
  data_plane_verb
      ->add_option("--shapes", data_plane.shapes, "models, by name or as files; see recon-worker --model")
      ->capture_default_str();
  data_plane_verb->add_option("--workers", data_plane.workers, "numbers of workers")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  data_plane_verb->add_flag("--json", json, "one JSON object");
  std::string peer_role;
  int peer_port = 0;
  recon::PushWorkerOptions push_worker;
  CLI::App* peer_verb = app.add_subcommand("data-plane-peer", "one part of data-plane, in its own process");
  peer_verb->group("")->add_option("role", peer_role)->required();
  peer_verb->add_option("--port", peer_port);
  peer_verb->add_option("--server", push_worker.server);
  peer_verb->add_option("--shapes", push_worker.shapes);
  peer_verb->add_option("--name", push_worker.name);
  peer_verb->add_option("--transport", push_worker.transport);
  recon::StepLoadOptions step_load;
  CLI::App* step_load_verb = app.add_subcommand("step-load", "one worker of scale_out.py");
  step_load_verb->group("");
  step_load_verb->add_option("--server", step_load.server)->required();
  step_load_verb->add_option("--name", step_load.name)->required();
  step_load_verb->add_option("--parameters", step_load.parameters)
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 32));
  step_load_verb->add_option("--connections", step_load.connections)
      ->check(CLI::Range(1, recon::limits::kDataConnectionsMax));
  step_load_verb->add_option("--steps", step_load.steps)->check(CLI::Range(1, 100000));
  recon::GoodputOptions goodput;
  CLI::App* goodput_verb = app.add_subcommand(
      "goodput", "simulated clusters: computing that counts, with failures, beside all-reduce with restarts");
  goodput_verb->add_option("--seconds", goodput.seconds, "of simulated time with 16 workers; fewer with more")
      ->check(CLI::Range(10.0, 1e6))
      ->capture_default_str();
  goodput_verb->add_option("--seeds", goodput.seeds, "the mean is over these")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  goodput_verb->add_option("--workers-max", goodput.workers_max, "leaves out larger clusters")
      ->check(CLI::Range(16, 4096))
      ->capture_default_str();
  goodput_verb->add_flag("--json", json, "one JSON object");
  recon::TraceCostOptions trace_cost;
  CLI::App* trace_verb = app.add_subcommand("trace", "what spans cost, recorded and not");
  trace_verb->add_option("--rounds", trace_cost.rounds, "medians are over these")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  trace_verb->add_option("--seconds", trace_cost.seconds, "of each measurement of a round")
      ->check(CLI::Range(0.1, 600.0))
      ->capture_default_str();
  trace_verb->add_flag("--json", json, "one JSON object");
  std::string restore_directory, restore_log;
  CLI::App* restore_verb =
      app.add_subcommand("durability-restore", "one part of durability, in a process of its own");
  restore_verb->group("")->add_option("directory", restore_directory)->required();
  restore_verb->add_option("log", restore_log);
  if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
  recon::InitLog("warn");
  if (peer_verb->parsed()) {
    const absl::Status status = peer_role == "tcp-sink"      ? recon::RunTcpSink()
                                : peer_role == "tcp-source"  ? recon::RunTcpSource(peer_port)
                                : peer_role == "grpc-sink"   ? recon::RunGrpcSink()
                                : peer_role == "grpc-source" ? recon::RunGrpcSource(peer_port)
                                                             : recon::RunPushWorker(push_worker);
    if (!status.ok()) std::cerr << "recon-bench " << peer_role << ": " << status.message() << "\n";
    return status.ok() ? 0 : 1;
  }
  if (step_load_verb->parsed()) {
    const absl::Status status = recon::RunStepLoad(step_load);
    if (!status.ok()) std::cerr << "recon-bench step-load: " << status.message() << "\n";
    return status.ok() ? 0 : 1;
  }
  const auto result = restore_verb->parsed()      ? recon::RunRestore(restore_directory, restore_log)
                      : data_plane_verb->parsed() ? recon::RunDataPlane(data_plane)
                      : durability_verb->parsed() ? recon::RunDurability(durability)
                      : goodput_verb->parsed()    ? recon::RunGoodput(goodput)
                      : trace_verb->parsed()      ? recon::RunTraceCost(trace_cost)
                      : !codecs_verb->parsed()    ? recon::RunStraggler(straggler)
                      : device >= 0               ? recon::RunCodecsOnGpu(codecs, device)
                                                  : recon::RunCodecs(codecs);
  if (!result.ok()) {
    std::cerr << "recon-bench: " << result.status().message() << "\n";
    return 1;
  }
  std::cout << (json ? result->dump() : result->dump(2)) << "\n";
  return 0;
}

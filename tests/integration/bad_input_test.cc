#include <sys/mount.h>
#include <sys/stat.h>

#include <filesystem>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "catch2/catch.hpp"
#include "common/base/mutex.h"
#include "common/cli/version.h"
#include "common/metrics/metrics.h"
#include "common/rpc/grpc_transport.h"
#include "common/transport/envelope.h"
#include "grpcpp/generic/generic_stub.h"
#include "tests/integration/process_job.h"
#include "tests/support/listening_socket.h"
#include "tools/source_paths.h"

namespace recon {
namespace {

struct Outcome {
  int code;
  std::string output;
};

Outcome Run(const std::vector<std::string>& arguments) {
  Outcome outcome;
  outcome.code = RunProgram(arguments, &outcome.output);
  return outcome;
}

void Refused(const std::vector<std::string>& arguments, int code, const std::string& word) {
  const Outcome outcome = Run(arguments);
  INFO(outcome.output);
  CHECK(outcome.code == code);
  CHECK(absl::StrContains(outcome.output, word));
}

}  // namespace

TEST_CASE("wrong flags end each program with code 2 and the flag's name", "[bad_input]") {
  const TempDir directory;
  const std::string data = directory / "data";
  const auto server = [&](std::vector<std::string> more, const std::string& word) {
    std::vector<std::string> arguments = {"recon-server", "--data", data};
    arguments.insert(arguments.end(), more.begin(), more.end());
    Refused(arguments, 2, word);
  };
  Refused({"recon-server"}, 2, "--data");
  server({"--nonsense"}, "--nonsense");
  server({"--batch", "0"}, "--batch");
  server({"--data-epochs", "1000000"}, "--data-epochs");
  server({"--idle-timeout", "500ms"}, "--idle-timeout");
  server({"--batch", "many"}, "--batch");
  server({"--sync", "ssp"}, "--sync ssp");
  server({"--sync", "ssp:0"}, "--sync ssp:0");
  server({"--sync", "local"}, "--sync local");
  server({"--sync", "local:0"}, "--sync local:0");
  server({"--sync", "diloco:x"}, "--sync diloco:x");
  server({"--sync", "local:8", "--local-steps", "4"}, "--local-steps: --sync has said it already");
  server({"--sync", "local:8", "--outer-optimizer", "lion"}, "--outer-optimizer lion is unknown");
  server({"--sync", "local:8", "--batch", "64", "--split-samples", "500"},
         "--split-samples 500: 8 local steps");
  server({"--sync", "bsp", "--outer-momentum", "0.5"}, "--outer-optimizer and its companions");
  server({"--sync", "local:8", "--fragments", "3"}, "--fragments 3: 8 local steps");
  server({"--sync", "asp", "--fragments", "2"}, "--fragments 2 is for local steps");
  server({"--sync", "local:8", "--sync-period", "conv=4"}, "--sync-period is for gradients");
  server({"--sync-period", "conv"}, "--sync-period conv: expected GROUP=N");
  server({"--sync-period", "conv=0"}, "--sync-period conv=0");
  server({"--sync-period", "conv=2", "--sync-period", "conv=3"}, "group conv twice");
  server({"--sync", "bsp", "--staleness-correction", "inverse"}, "no gradient is stale");
  server({"--staleness-correction", "half"}, "--staleness-correction half");
  server({"--sync", "auto", "--local-steps", "4"}, "--sync auto chooses them");
  server({"--sync", "auto", "--servers", "2"}, "cannot be changed live");
  server({"--after-lost-disk", "oldest"}, "--after-lost-disk");
  server({"--sync", "asp", "--auto-bound-max", "4"}, "are for --sync auto");
  server({"--sync", "auto", "--auto-local-steps-max", "8", "--batch", "64", "--split-samples", "500"},
         "--split-samples 500: 8 local steps");
  server({"--optimizer", "lion"}, "--optimizer lion");
  server({"--learning-rate", "-1"}, "--learning-rate");
  server({"--schedule", "cosine"}, "--schedule cosine");
  server({"--snapshot-interval", "soon"}, "--snapshot-interval soon");
  server({"--evict-after", "100ms"}, "--evict-after");
  server({"--group", "g:lr=1"}, "--group g:lr=1");
  server({"--listen", "nowhere"}, "--listen nowhere");
  server({"--listen", "0.0.0.0:0"}, "is not loopback");
  server({"--tls-cert", "x.pem"}, "--tls-cert, --tls-key and --tls-ca go together");
  server({"--tls-crl", "x.pem"}, "--tls-crl is for certificates");
  server({"--names-by-certificate"}, "--names-by-certificate is for certificates");
  server({"--open", "--tokens", "x"}, "--open lets everybody in, --tokens does not: give one of them");
  server({"--open", "--token-file", "x"}, "--open lets everybody in, --token-file does not");
  server({"--token-file", "x", "--tokens", "y"}, "this one has --tokens");
  server({"--open", "--join", "127.0.0.1:1"}, "--open is the head's to say");
  server({"--token-file", directory / "absent"}, "--token-file: open ");
  server({"--config", directory / "absent.toml"}, "absent.toml");
  WriteWholeFile(directory / "bad.toml", "batch = \"many\"\n");
  server({"--config", directory / "bad.toml"}, "bad.toml:1: --batch many: expected a number from 1");
  WriteWholeFile(directory / "unknown.toml", "bacth = 4\n");
  server({"--config", directory / "unknown.toml"},
         "unknown.toml:1: bacth is no setting: did you mean batch?");

  Refused({"recon-worker", "--codec", "fp8"}, 2, "codec fp8 is unknown");
  Refused({"recon-worker", "--server", "somewhere"}, 2, "--server somewhere");
  Refused({"recon-worker", "--depth", "99"}, 2, "--depth");
  Refused({"recon-worker", "--connections", "0"}, 2, "--connections");
  Refused({"recon-worker", "--transport", "pigeon"}, 2, "--transport");
  Refused({"recon-worker", "--data", "idx:/nonexistent"}, 2, "/nonexistent/train-images-idx3-ubyte");
  Refused({"recon-worker", "--data", "clusters:5"}, 2, "clusters:5");
  Refused({"recon-worker", "--tensor-group", "conv"}, 2, "--tensor-group conv: expected PATTERN=GROUP");
  Refused({"recon-worker", "--data", "clusters:50,5", "--model", "mlp:32-4", "--tensor-group", "conv*=slow"},
          2, "--tensor-group conv*=slow: no tensor");
  Refused({"recon-worker", "--data", "clusters:50,5", "--model", "cnn"}, 2, "--model cnn");
  Refused({"recon-worker", "--data", "clusters:50,5", "--model", "mlp:3-4"}, 2, "takes 3 features");
  Refused({"recon-worker", "--data", "clusters:50,5", "--model", "mlp:32-4", "--device", "tpu"}, 2,
          "--device tpu");

  Refused({"recon-worker", "--precision", "fp8"}, 2, "--precision fp8: expected fp32, bf16 or fp16");
  Refused({"recon-worker", "--loss-scale", "1000", "--precision", "fp16"}, 2,
          "--loss-scale 1000: expected a power of two");
  Refused({"recon-worker", "--loss-scale", "1024"}, 2, "--loss-scale needs --precision fp16");
  Refused({"recon-worker", "--data", "clusters:50,5", "--model", "resnet50", "--precision", "bf16"}, 2,
          "--precision bf16: --model resnet50 simulates its computing");
  Refused({"recon-worker", "--batch", "128"}, 2, "--batch 128: expected job or auto");
  Refused({"recon-worker", "--batch-max", "128"}, 2, "--batch-min and --batch-max need --batch auto");
  Refused({"recon-worker", "--batch", "auto", "--batch-min", "64", "--batch-max", "8"}, 2,
          "--batch-min 64 is more than --batch-max 8");
  Refused({"recon-worker", "--batch", "auto", "--accumulate", "4"}, 2, "not with --accumulate 4");
  Refused({"recon-worker", "--micro-batch", "0"}, 2,
          "--micro-batch 0: expected a number of samples, auto or off");

  Refused({"reconctl"}, 2, "expected a verb: status, ");
  Refused({"reconctl", "status", "--server", "x"}, 2, "--server x");
  Refused({"reconctl", "snapshot", "list"}, 2, "directory");
  Refused({"reconctl", "snapshot", "list", directory / "absent"}, 5, "absent");
  Refused({"reconctl", "snapshot", "verify", directory.path()}, 5, "no snapshot");
  Refused({"reconctl", "snapshot", "show", directory.path(), "7"}, 5, "MANIFEST-0000000000000007");
  Refused({"reconctl", "status", "--server", "127.0.0.1:1"}, 3,
          "reconctl: 127.0.0.1:1: Connection refused\n");
  Refused({"reconctl", "policy", "set"}, 2, "--sync");
  // The server's own rows: no server is asked.
  Refused({"reconctl", "policy", "set", "--server", "127.0.0.1:1", "--sync", "bsp", "--quorum", "5000"}, 2,
          "reconctl: --quorum 5000: expected a number from 0 to 4096\n");
  Refused({"reconctl", "policy", "set", "--server", "127.0.0.1:1", "--sync", "bsp", "--grace", "never"}, 2,
          "reconctl: --grace never: expected auto or a duration of 0s to 1h\n");
}

TEST_CASE("a name that nobody knows is named in one line, with the one that is nearest", "[bad_input]") {
  const TempDir directory;
  const auto line = [](const std::vector<std::string>& arguments, const std::string& text) {
    const Outcome outcome = Run(arguments);
    CHECK(outcome.code == 2);
    CHECK(outcome.output == arguments[0] + ": " + text + "\n");
  };
  // An unknown flag comes before what follows from it: --data is missing here, too.
  line({"recon-server", "--learnin-rate", "0.1"},
       "unknown flag --learnin-rate: did you mean --learning-rate?");
  line({"recon-server", "--dta=x"}, "unknown flag --dta: did you mean --data?");
  line({"recon-server", "--zzzzzz"}, "unknown flag --zzzzzz");
  line({"recon-server", "data"}, "unexpected argument data: did you mean --data?");
  line({"recon-worker", "--codek", "fp16"}, "unknown flag --codek: did you mean --codec?");
  line({"reconctl", "statsu"}, "unknown verb statsu: did you mean status?");
  line({"reconctl", "snapshot", "lst", "x"}, "snapshot: unknown verb lst: did you mean list?");
  line({"reconctl", "status", "--jsn"}, "status: unknown flag --jsn: did you mean --json?");
  line({"reconctl", "snapshot", "show", "a", "1", "2"}, "snapshot: show: unexpected argument 2");
  line({"reconctl", "policy"}, "policy: expected a verb: set");
  line({"recon-worker", "--depth"}, "--depth has no value");
  line({"recon-worker", "a\nb"}, "unexpected argument a\\nb");
}

TEST_CASE("an error of a file of settings names file and line, one of the environment its variable",
          "[bad_input]") {
  const TempDir directory;
  const std::string file = directory / "job.toml";
  const auto refused = [&](const std::string& program, const std::string& text, const std::string& error) {
    WriteWholeFile(file, text);
    std::vector<std::string> arguments = {program, "--config", file};
    if (program == "recon-server") arguments.insert(arguments.end(), {"--data", directory / "data"});
    const Outcome outcome = Run(arguments);
    CHECK(outcome.code == 2);
    CHECK(outcome.output == absl::StrCat(program, ": ", file, ":", error, "\n"));
  };
  refused("recon-server", "batch = 3\n\nbacth = 4\n", "3: bacth is no setting: did you mean batch?");
  refused("recon-server", "version = true\n", "1: version is no setting");
  refused("recon-server", "seed = \"x\"\n", "1: --seed x: expected a whole number");
  refused("recon-server", "learning-rate = \"x\"\n", "1: --learning-rate x: expected a number");
  refused("recon-server", "insecure = \"x\"\n", "1: --insecure x: expected true or false");
  refused("recon-server", "batch = 0\n", "1: --batch 0: expected a number from 1 to 1048576");
  refused("recon-server", "batch = 1\nsync = asp\n",
          "2: sync = asp: expected a number, true or false; text has quotes: \"asp\"");
  // What only the program itself can tell.
  refused("recon-server", "\nsnapshot-interval = \"soon\"\n",
          "2: --snapshot-interval soon: expected a duration of 10ms to 720h, such as 300ms, 30s or 5m");
  refused("recon-worker", "reconnect-for = \"soon\"\n",
          "1: --reconnect-for soon: expected a duration such as 10m");
  // A flag of the same name is what counts, and what is named.
  WriteWholeFile(file, "batch = \"many\"\n");
  Refused({"recon-server", "--config", file, "--data", directory / "data", "--batch", "x"}, 2,
          "recon-server: --batch x: expected");
  Process server({"recon-server", "--data", directory / "data"}, directory / "log", {"RECON_BATCH=many"});
  CHECK(server.Wait(absl::Seconds(30)) == 2);
  CHECK(server.output() == "recon-server: RECON_BATCH: --batch many: expected a number from 1 to 1048576\n");
  CHECK(access((directory / "data").c_str(), F_OK) != 0);
}

TEST_CASE("a worker's data, or a store, is no directory for a server", "[bad_input]") {
  const TempDir directory;
  for (const std::string data : {"idx:DIGITS", "cifar10:/data/cifar", "clusters:60000,1000,64,4"}) {
    Refused({"recon-server", "--data", data}, 2,
            "recon-server: --data " + data + " is training data, which workers read");
    CHECK(access(data.c_str(), F_OK) != 0);
  }
  Refused({"recon-server", "--data", "s3://bucket/job"}, 2, "--snapshot-dir may be one");
  CHECK(access("s3:", F_OK) != 0);
  CHECK(access("idx:", F_OK) != 0);
}

TEST_CASE("metrics are on loopback, or on a network that the process was told of", "[bad_input]") {
  const std::string flag = "--metrics-address";
  CHECK(*MetricsAddress(flag, "9464", false) == "127.0.0.1:9464");
  CHECK(*MetricsAddress(flag, "127.0.0.1:9464", false) == "127.0.0.1:9464");
  CHECK(*MetricsAddress(flag, "0.0.0.0:9464", true) == "0.0.0.0:9464");
  for (const char* wrong : {"", "host", "70000", ":9464", "0.0.0.0:x"}) {
    CHECK(absl::IsInvalidArgument(MetricsAddress(flag, wrong, true).status()));
  }
  const TempDir directory;
  Refused({"recon-server", "--data", directory / "data", flag, "0.0.0.0:9464"}, 2,
          "--metrics-address 0.0.0.0:9464 is not loopback");
  Refused({"recon-worker", "--name", "w\x1b[31m"}, 2, "--name \"w\\x1b[31m\" has \\x1b as byte 2");
  Refused({"recon-worker", flag, "0.0.0.0:9464"}, 2, "--metrics-address 0.0.0.0:9464 is not loopback");
  // What a port alone opens is loopback, and nothing else.
  const ListeningSocket free;
  const std::string port = free.address().substr(free.address().rfind(':') + 1);
  Refused({"recon-server", "--data", directory / "data", "--listen", "127.0.0.1:0", flag, port}, 1,
          absl::StrCat("--metrics-address 127.0.0.1:", port));
}

TEST_CASE("help of the scripts needs no build", "[bad_input]") {
  const TempDir directory;
  // A copy without anything but the two files: it could neither install nor build.
  const std::string copy = directory / "tools";
  REQUIRE(Run({"/usr/bin/mkdir", copy}).code == 0);
  REQUIRE(Run({"/usr/bin/cp", InSources("tools/demo.sh"), InSources("tools/demo.py"), copy}).code == 0);
  const Outcome help = Run({copy + "/demo.sh", "--help"});
  INFO(help.output);
  CHECK(help.code == 0);
  CHECK(absl::StrContains(help.output, "--scenario"));
  CHECK(Run({copy + "/demo.sh", "--scenario", "none"}).code != 0);
  // Nor does that of the other scripts that install and build.
  for (const char* script : {"setup.sh", "test.sh"}) {
    const Outcome other = Run({InSources(absl::StrCat("tools/", script)), "--help"});
    CHECK(other.code == 0);
    CHECK(absl::StartsWith(other.output, "Installs what "));
    CHECK_FALSE(absl::StrContains(other.output, "everything is installed"));
    CHECK(Run({InSources(absl::StrCat("tools/", script)), "--nope"}).code == 2);
  }
}

TEST_CASE("each program says its version, and its help has groups and defaults", "[bad_input]") {
  const auto help = [](const std::vector<std::string>& arguments, const std::vector<std::string>& parts) {
    const Outcome outcome = Run(arguments);
    INFO(outcome.output);
    CHECK(outcome.code == 0);
    for (const std::string& part : parts) CHECK(absl::StrContains(outcome.output, part));
    // No line is longer than a terminal's, and all flags have a group.
    for (const absl::string_view line : absl::StrSplit(outcome.output, '\n')) CHECK(line.size() <= 100);
    CHECK_FALSE(absl::StrContains(outcome.output, "\nOptions:"));
  };
  for (const char* program : {"recon-server", "recon-worker", "reconctl"}) {
    const Outcome version = Run({program, "--version"});
    CHECK(version.code == 0);
    CHECK(version.output == absl::StrCat(program, " ", Version(), "\n"));
  }
  help({"recon-server", "--help"}, {"\nOptimizer:\n", "\nSnapshots:\n", "\nSecurity:\n", "[default 30s]",
                                    "samples per step of a worker [default 64]", "(RECON_BATCH)"});
  help({"recon-worker", "--help"}, {"\nModel, data and device:\n", "\nSecurity:\n", "[default fp16]"});
  help({"reconctl", "--help"}, {"status", "Exit codes:"});
  help({"reconctl", "status", "--help"}, {"\nServer:\n", "--patience", "[default 60]"});
}

TEST_CASE("settings come from file and environment, flags first", "[bad_input]") {
  const TempDir directory;
  WriteWholeFile(directory / "job.toml", "batch = 7\ndata-epochs = 3\nsync = \"ssp:4\"\n");
  Process server({"recon-server", "--data", directory / "data", "--listen", "127.0.0.1:0", "--config",
                  directory / "job.toml", "--data-epochs", "5"},
                 directory / "log", {"RECON_BATCH=9", "RECON_SEED=77"});
  REQUIRE(Eventually([&] { return !ReadWholeFile(directory / "data/ADDRESS").empty(); }));
  const std::string address(absl::StripSuffix(ReadWholeFile(directory / "data/ADDRESS"), "\n"));
  const JobConfig job = ControlClient(*ConnectTo(address, {})).Status()->job();
  CHECK(job.data_epochs() == 5);
  CHECK(job.bound() == 4);
  CHECK(job.seed() == 77);
  CHECK((job.batch_samples() == 7 || job.batch_samples() == 9));
}

TEST_CASE("a data directory in use and a port that is taken are named", "[bad_input]") {
  ProcessJob job({});
  REQUIRE(job.StartServer());
  Refused({"recon-server", "--data", job.data(), "--listen", "127.0.0.1:0"}, 1,
          absl::StrCat("in use by process ", job.server().pid()));
  const TempDir other;
  Refused({"recon-server", "--data", other / "data", "--listen", job.address()}, 1, job.address());
  const ListeningSocket taken;
  Refused({"recon-server", "--data", other / "data", "--listen", "127.0.0.1:0", "--metrics-address",
           taken.address()},
          1, "--metrics-address " + taken.address());
  CHECK(job.Status().ok());
}

TEST_CASE("a server writes neither its lock nor its address through a link", "[bad_input]") {
  for (const std::string name : {"LOCK", "ADDRESS"}) {
    INFO(name);
    const TempDir directory;
    const std::string data = directory / "data";
    std::filesystem::create_directories(data);
    WriteWholeFile(directory / "others", "untouched");
    std::filesystem::create_symlink(directory / "others", data + "/" + name);
    std::string output;
    CHECK(RunProgram({"recon-server", "--data", data, "--listen", "127.0.0.1:0"}, &output) == 1);
    CHECK(absl::StrContains(output, data + "/" + name));
    CHECK(ReadWholeFile(directory / "others") == "untouched");
  }
}

TEST_CASE("reconctl shows a job, takes snapshots and drains, for people and for programs", "[bad_input]") {
  ProcessJob job({"--data-epochs", "1000", "--split-samples", "200"});
  REQUIRE(job.StartServer());
  Refused({"reconctl", "snapshot", "take", "--server", job.address()}, 1, "no parameters yet");
  auto worker = job.StartWorker("one");
  REQUIRE(job.SamplesReach(400));
  const Outcome status = Run({"reconctl", "status", "--server", job.address()});
  CHECK(status.code == 0);
  for (const char* word : {"mlp:16-24-4", "running", "data epochs", "one", "active"}) {
    CHECK(absl::StrContains(status.output, word));
  }
  const Outcome json = Run({"reconctl", "status", "--server", job.address(), "--json"});
  CHECK(json.code == 0);
  CHECK(absl::StrContains(json.output, "\"phase\":\"PHASE_RUNNING\""));
  CHECK(Run({"reconctl", "completions", "--server", job.address()}).code == 0);
  CHECK(Run({"reconctl", "snapshot", "take", "--server", job.address()}).code == 0);
  for (const char* verb : {"list", "show", "verify"}) {
    CHECK(Run({"reconctl", "snapshot", verb, job.snapshots()}).code == 0);
    CHECK(Run({"reconctl", "snapshot", verb, job.snapshots(), "--json"}).code == 0);
  }
  CHECK(Run({"reconctl", "drain", "--server", job.address()}).code == 0);
  CHECK(job.server().Wait(absl::Seconds(30)) == 0);
  // A flipped byte in a pack: verify names it, with the code for damage.
  const Outcome list = Run({"/usr/bin/find", job.snapshots() + "/packs", "-type", "f"});
  const std::string pack = list.output.substr(0, list.output.find('\n'));
  std::string bytes = ReadWholeFile(pack);
  bytes[100] = static_cast<char>(bytes[100] ^ 1);
  WriteWholeFile(pack, bytes);
  Refused({"reconctl", "snapshot", "verify", job.snapshots()}, 4, "PACK-");
}

TEST_CASE("no bytes on the wire end the server", "[bad_input]") {
  // Open, so that bytes come further than to a denial.
  ProcessJob job({"--data-epochs", "1000", "--split-samples", "200", "--open"});
  REQUIRE(job.StartServer());
  auto worker = job.StartWorker("one");
  REQUIRE(job.SamplesReach(400));
  grpc::GenericStub stub(*ConnectTo(job.address(), {}));
  std::mt19937 random(1);
  const auto send = [&](const std::string& method, const std::string& bytes) {
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer reply;
    grpc::ClientContext context;
    Notification answered;
    grpc::Status status;
    stub.UnaryCall(&context, method, grpc::StubOptions(), &request, &reply, [&](const grpc::Status& result) {
      status = result;
      answered.Notify();
    });
    answered.WaitForNotification();
    return status;
  };
  for (const char* rpc : {"/recon.Param/Nonsense", "/recon.Control/Register", "/recon.Control/Heartbeat",
                          "/recon.Control/Acquire", "/recon.Control/Complete", "/recon.Control/Leave",
                          "/recon.Control/Nonsense", "/recon.Trace/Clock", "/recon.Trace/Deliver"}) {
    for (int i = 0; i < 40; ++i) {
      std::string bytes(random() % 300, '\0');
      for (char& byte : bytes) byte = static_cast<char>(random());
      CHECK_FALSE(send(rpc, bytes).ok());
    }
  }
  for (size_t size = 0; size < kEnvelopeBytes; ++size) {
    CHECK(send("/recon.Param/Exchange", std::string(size, 'x')).error_code() ==
          grpc::StatusCode::INVALID_ARGUMENT);
  }
  // Requests with an envelope get their answer; what has none ends the stream, and the next one is as good.
  GrpcTransport transport({*ConnectTo(job.address(), {})}, std::make_shared<SendWindow>(1, 1));
  const auto call = [&](size_t size) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    Notification answered;
    absl::Status status;
    transport.Call(ByteChain::FromString(bytes), [&](const absl::StatusOr<ByteChain>& reply) {
      status = reply.status();
      answered.Notify();
    });
    answered.WaitForNotification();
    return status;
  };
  for (size_t i = 0; i < 200; ++i) {
    const absl::Status status = call(random() % 300);
    INFO("request " << i << ": " << status);
    CHECK(absl::IsInvalidArgument(status));
  }
  const uint64_t samples = job.Status()->samples_completed();
  // Whoever is not of the job and sends so much is answered, or hung up on before.
  const absl::Status large = call(size_t{9} << 20);
  INFO(large);
  CHECK((absl::IsInvalidArgument(large) || absl::IsUnavailable(large)));
  CHECK(job.SamplesReach(samples + 400));
  CHECK(worker->running());
}

TEST_CASE("a model larger than any machine is refused, and the server goes on", "[bad_input]") {
  ProcessJob job({});
  REQUIRE(job.StartServer());
  WriteWholeFile(job.directory() / "shapes", "w 65536 1048576\n");
  auto worker =
      job.StartWorker("one", {"--model", "synthetic:" + (job.directory() / "shapes"), "--step-ms", "50"});
  CHECK(worker->Wait(absl::Seconds(30)) == 1);
  CHECK(absl::StrContains(worker->output(), "bytes with its optimizer state, the server has"));
  CHECK(job.Status().ok());
}

TEST_CASE("two jobs cannot share a snapshot directory", "[bad_input]") {
  ProcessJob job({});
  REQUIRE(job.StartServer());
  const TempDir other;
  Refused({"recon-server", "--data", other / "data", "--listen", "127.0.0.1:0", "--snapshot-dir",
           job.snapshots()},
          1, absl::StrCat("in use by process ", job.server().pid()));
}

TEST_CASE("a full disk fails the snapshot, says so, and training goes on", "[bad_input]") {
  const TempDir mount_point;
  if (mount("tmpfs", mount_point.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
    WARN("SKIP: a small file system cannot be mounted here (needs root)");
    return;
  }
  {
    ProcessJob job({"--data-epochs", "1000", "--split-samples", "200", "--snapshot-dir",
                    mount_point / "snapshots", "--snapshot-interval", "50ms", "--snapshot-keep", "1000"});
    REQUIRE(job.StartServer());
    auto worker = job.StartWorker("one");
    REQUIRE(Eventually([&] {
      const auto status = job.Status();
      return status.ok() && status->snapshot().failed() >= 2;
    }));
    const StatusReply status = *job.Status();
    CHECK(absl::StrContains(status.snapshot().last_error(), "No space left on device"));
    CHECK(status.snapshot().generation() > 0);
    CHECK(job.SamplesReach(status.samples_completed() + 1000));
    CHECK(Run({"reconctl", "snapshot", "verify", mount_point / "snapshots"}).code == 0);
    Refused({"reconctl", "snapshot", "take", "--server", job.address()}, 1, "No space left on device");
  }
  umount2(mount_point.path().c_str(), MNT_DETACH);
}

}  // namespace recon

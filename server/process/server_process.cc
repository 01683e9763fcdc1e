#include "server/process/server_process.h"

#include <utility>

#include "common/base/away_words.h"
#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "common/base/private_file.h"
#include "common/base/status_macros.h"
#include "common/rpc/credentials.h"
#include "common/storage/store_url.h"
#include "common/web/metrics_server.h"
#include "server/durability/log_budget.h"
#include "server/recovery/snapshot_memory.h"

namespace recon {

ServerProcess::ServerProcess(const ServerFlags& flags) : flags_(flags), tls_(flags.tls) {}

absl::Status ServerProcess::LockData() {
  // Flags first: a wrong one must not touch the data directory.
  RECON_RETURN_IF_ERROR(CheckAddress("--listen", flags_.listen));
  RECON_RETURN_IF_ERROR(ServerCredentialsFor(flags_.listen, tls_, RevokedClients::kRefused).status());
  RECON_RETURN_IF_ERROR(MakePrivateDirectory(flags_.data));
  return Lock(flags_.data);
}

absl::Status ServerProcess::Lock(const std::string& directory) {
  RECON_ASSIGN_OR_RETURN(DataLock held, DataLock::Acquire(directory));
  locks_.push_back(std::move(held));
  return absl::OkStatus();
}

absl::Status ServerProcess::OpenControlDb() {
  RECON_ASSIGN_OR_RETURN(db_, ControlDb::Open(flags_.data + "/control"));
  return absl::OkStatus();
}

absl::Status ServerProcess::OpenStore(const std::string& url, bool writer) {
  RECON_ASSIGN_OR_RETURN(store_, recon::OpenStore(url, writer));
  return absl::OkStatus();
}

void ServerProcess::MakeParams(ParamServer::Options options) {
  options.apply_threads = flags_.apply_threads;
  options.memory_bytes = ServerMemory();
  params_ = std::make_unique<ParamServer>(std::move(options), &metrics_);
}

absl::StatusOr<PushLog::Options> ServerProcess::MakeLogOptions(bool sync, uint64_t segment_bytes) const {
  PushLog::Options options;
  options.directory = log_directory();
  options.sync = sync;
  RECON_RETURN_IF_ERROR(SetLogBudget(FileSystem::Local(), flags_.log.bytes_max, segment_bytes, &options));
  return options;
}

absl::Status ServerProcess::StartLog(const PushLog::Options& options, const ApplyRules& rules) {
  RECON_ASSIGN_OR_RETURN(
      auto log, PushLog::Open(options, FileSystem::Local(), rules, params_->position().sequence + 1));
  params_->log()->Set(std::move(log));
  return absl::OkStatus();
}

absl::Status ServerProcess::StartListeners(uint64_t id, ConnectedProcesses* connected,
                                           const KnownWorkers* known) {
  if (!flags_.metrics_address.empty()) {
    RECON_ASSIGN_OR_RETURN(metrics_server_, ServeMetrics(flags_.metrics_address, &metrics_));
  }
  const RequestHandler handler = [this](const ByteChain& request, TakenCallback taken, Transport::Done done,
                                        RequestContext context) {
    ParamServer* const params = accepting();
    if (params == nullptr) return done(NoPlaceError());
    params->Handle(request, Now(), std::move(taken), std::move(done), std::move(context));
  };
  RECON_RETURN_IF_ERROR(frames_.Start(flags_.frames, tls_, id, handler, connected));
  param_service_ =
      std::make_unique<ParamService>(handler, connected, &connections_, [this, known](Incarnation sender) {
        ParamServer* const params = accepting();
        return (params != nullptr && params->members()->Knows(sender)) ||
               (known != nullptr && known->Has(sender));
      });
  return absl::OkStatus();
}

absl::Status ServerProcess::StartRpc(std::vector<grpc::Service*> services,
                                     CollectiveService::Options collective, RevokedClients revoked) {
  collective.connections = &connections_;
  collective_service_ = std::make_unique<CollectiveService>(collective);
  services.push_back(param_service_.get());
  services.push_back(collective_service_.get());
  RECON_ASSIGN_OR_RETURN(
      rpc_, RpcServer::Start("--listen", flags_.listen, tls_, services, &connections_, revoked,
                             [this](const std::string& address) { return WriteAddress(address); }));
  return absl::OkStatus();
}

absl::Status ServerProcess::WriteAddress(const std::string& address) const {
  return WriteOwnFile(flags_.data + "/ADDRESS", address + "\n");
}

void ServerProcess::StopServing(absl::Duration timeout) {
  frames_.Stop();
  if (param_service_ != nullptr) param_service_->Close();
  if (collective_service_ != nullptr) collective_service_->Close();
  if (rpc_ != nullptr) rpc_->Shutdown(timeout);
  // The server first: it refers to the services.
  rpc_ = nullptr;
  collective_service_ = nullptr;
  param_service_ = nullptr;
}

RecoveryTarget TargetOf(ServerProcess* process) {
  return {process->params(), process->store().get(), FileSystem::Local(), process->log_directory(),
          process->metrics()};
}

}  // namespace recon

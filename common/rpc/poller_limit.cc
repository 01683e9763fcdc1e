#include "common/rpc/poller_limit.h"

#include "common/base/machine_limits.h"
#include "common/base/mutex.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/channel_arguments.h"
#include "grpcpp/version_info.h"

namespace recon {
namespace {

// Measured with two.
constexpr unsigned kCoresMax = 2;
// Of this version it is known that another thread goes on.
constexpr bool kKnownVersion = GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR == 51;

std::shared_ptr<grpc::Channel> ChannelToNowhere() {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel("127.0.0.1:1", grpc::InsecureChannelCredentials(), args);
}

}  // namespace

// A call that is cancelled before it begins, and whose callback sleeps.
class PollerLimit::SleepingCall : public grpc::ClientUnaryReactor {
 public:
  SleepingCall() : stub_(ChannelToNowhere()) {
    const grpc::Slice nothing;
    request_ = grpc::ByteBuffer(&nothing, 1);
    context_.TryCancel();
    stub_.PrepareUnaryCall(&context_, "/recon.None/None", grpc::StubOptions(), &request_, &response_, this);
    StartCall();
  }
  ~SleepingCall() override {
    wake_.Notify();
    awake_.WaitForNotification();
  }

  bool asleep() { return asleep_.HasBeenNotified(); }

  void OnDone(const grpc::Status& /*status*/) override {
    asleep_.Notify();
    wake_.WaitForNotification();
    awake_.Notify();
  }

 private:
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer request_, response_;
  Notification asleep_, wake_, awake_;
};

PollerLimit::PollerLimit() : PollerLimit(static_cast<unsigned>(UsableCores())) {}

PollerLimit::PollerLimit(unsigned cores) {
  if (kKnownVersion && cores <= kCoresMax) call_ = std::make_unique<SleepingCall>();
}

PollerLimit::~PollerLimit() = default;

bool PollerLimit::HoldsThread() const { return call_ != nullptr && call_->asleep(); }

}  // namespace recon

// The Python module's part for collectives: members of sets, and calls that are under way. Waiting is done
// without the interpreter's lock and looks for signals meanwhile.

#include "worker/python/collective.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/plain_text.h"
#include "common/rpc/sets_client.h"
#include "worker/collective/group.h"

namespace nb = nanobind;

namespace recon {
namespace {

constexpr absl::Duration kSignalPoll = absl::Milliseconds(50);

// Exceptions of the package; recon/collective.py says what they mean.
PyObject* recon_error = nullptr;
PyObject* refused_error = nullptr;
PyObject* lost_error = nullptr;
PyObject* member_lost_error = nullptr;
PyObject* set_changed_error = nullptr;

void Check(const absl::Status& status) {
  if (status.ok()) return;
  PyObject* type = recon_error;
  if (absl::IsAborted(status)) type = member_lost_error;
  if (absl::IsFailedPrecondition(status)) type = set_changed_error;
  if (absl::IsInvalidArgument(status)) type = refused_error;
  if (absl::IsUnavailable(status)) type = lost_error;
  PyErr_SetString(type, EscapeLines(status.message()).c_str());
  throw nb::python_error();
}
template <typename T>
T Check(absl::StatusOr<T> result) {
  Check(result.status());
  return *std::move(result);
}

// Whether `await`, which waits for at most so long, says yes within `seconds`.
template <typename Await>
bool AwaitWithSignals(double seconds, const Await& await) {
  const absl::Time end = Now() + absl::Seconds(seconds);
  while (true) {
    {
      nb::gil_scoped_release release;
      const absl::Duration left = std::max(absl::ZeroDuration(), end - Now());
      if (await(std::min(left, kSignalPoll))) return true;
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (Now() >= end) return false;
  }
}

class PyCall {
 public:
  explicit PyCall(std::shared_ptr<PendingCollective> call) : call_(std::move(call)) {}
  bool Await(double seconds) {
    return AwaitWithSignals(seconds, [this](absl::Duration d) { return call_->AwaitFor(d); });
  }
  bool done() { return call_->done(); }
  // Of a call that is done: its error, or how many members count.
  uint32_t Result() {
    Check(call_->status());
    return call_->members();
  }

 private:
  const std::shared_ptr<PendingCollective> call_;
};

class PyGroup {
 public:
  // Certificate, key, CA, insecure, file with a token, list of revoked certificates.
  using Tls = std::tuple<std::string, std::string, std::string, bool, std::string, std::string>;
  static TlsFlags FlagsOf(const Tls& tls) {
    const auto& [cert, key, ca, insecure, token_file, crl] = tls;
    return {cert, key, ca, insecure, token_file, crl};
  }
  PyGroup(const std::string& server, const Tls& tls, const std::string& set, const std::string& member,
          bool elastic, uint32_t rank, uint32_t size, bool shrink, double patience) {
    Group::Options options;
    options.server = server;
    options.tls = FlagsOf(tls);
    options.set = set;
    options.member = member;
    options.elastic = elastic;
    options.rank = rank;
    options.size = size;
    options.shrink = shrink;
    options.patience = absl::Seconds(patience);
    group_ = Check(Group::Join(options));
  }
  ~PyGroup() { Close(); }
  PyGroup(const PyGroup&) = delete;
  PyGroup& operator=(const PyGroup&) = delete;

  bool AwaitBegun(double seconds) {
    const bool begun =
        AwaitWithSignals(seconds, [this](absl::Duration d) { return group()->AwaitBegunFor(d); });
    if (begun) Check(group()->status());
    return begun;
  }
  // Epoch, this member's place, and rank and name of each by place.
  std::tuple<uint64_t, uint32_t, std::vector<std::tuple<uint32_t, std::string>>> Acknowledge() {
    const SetEpoch epoch = Check(group()->Acknowledge());
    std::vector<std::tuple<uint32_t, std::string>> members;
    for (const SetMember& member : epoch.members()) members.emplace_back(member.rank(), member.name());
    return {epoch.epoch(), epoch.place(), members};
  }
  // Whether nobody can be in it without a secret, as its server says.
  bool WantsSecret() {
    const std::optional<SetEpoch> epoch = group()->epoch();
    return epoch.has_value() && epoch->wants_secret();
  }
  bool changed() { return group()->changed(); }
  std::vector<uint32_t> lost() { return group()->lost(); }
  bool alive() { return group_ != nullptr && getpid() == process_ && group_->status().ok(); }

  std::unique_ptr<PyCall> Start(uint8_t kind, const std::string& op, const std::string& dtype,
                                const std::string& wire, const std::string& name, bool by_name,
                                const std::string& order, const std::string& shape, uintptr_t in,
                                uintptr_t out, uint64_t count, std::vector<uint64_t> in_counts,
                                std::vector<uint64_t> out_counts, uint32_t peer, uint32_t tag) {
    CallSpec spec;
    spec.kind = static_cast<CallKind>(kind);
    spec.op = Check(ParseReduceOp(op));
    spec.dtype = Check(ParseDType(dtype));
    spec.wire = Check(ParseWire(wire));
    spec.name = name;
    spec.by_name = by_name;
    spec.order = order;
    spec.shape = shape;
    spec.in = reinterpret_cast<const uint8_t*>(in);
    spec.out = reinterpret_cast<uint8_t*>(out);
    spec.count = count;
    spec.in_counts = std::move(in_counts);
    spec.out_counts = std::move(out_counts);
    spec.peer = peer;
    spec.tag = tag;
    absl::StatusOr<std::shared_ptr<PendingCollective>> started;
    {
      nb::gil_scoped_release release;
      started = group()->Start(spec);
    }
    return std::make_unique<PyCall>(Check(std::move(started)));
  }
  std::string WhoIsMissing() {
    nb::gil_scoped_release release;
    return EscapeControls(group()->WhoIsMissing());
  }
  void Leave(const std::string& why) {
    nb::gil_scoped_release release;
    if (group_ != nullptr) group_->Leave(why);
  }
  // Leaves, and returns when nothing refers to the memory of its calls.
  void Close() {
    if (getpid() != process_) return (void)group_.release();  // A fork has none of the threads that end it.
    nb::gil_scoped_release release;
    group_ = nullptr;
  }

 private:
  Group* group() const {
    if (group_ == nullptr || getpid() != process_) {
      nb::gil_scoped_acquire acquire;
      Check(absl::UnavailableError(group_ == nullptr ? "this process has left the set"
                                                     : "a fork of the set's member is no member"));
    }
    return group_.get();
  }
  const pid_t process_ = getpid();
  std::unique_ptr<Group> group_;
};

nb::list Sets(const std::string& server, const PyGroup::Tls& tls) {
  absl::StatusOr<SetsReply> reply;
  {
    nb::gil_scoped_release release;
    reply = AskForSets(server, PyGroup::FlagsOf(tls));
  }
  Check(reply.status());
  nb::list sets;
  for (const SetStatus& set : reply->sets()) {
    nb::dict said;
    said["name"] = set.name();
    said["epoch"] = set.epoch();
    said["elastic"] = set.elastic();
    said["on_loss"] = set.shrink() ? "shrink" : "raise";
    nb::list members, lost, waiting, calls;
    std::vector<bool> is_lost(static_cast<size_t>(set.members_size()));
    for (const Departure& went : set.lost()) {
      lost.append(nb::make_tuple(went.rank(), went.name(), went.why()));
      if (went.place() < is_lost.size()) is_lost[went.place()] = true;
    }
    for (size_t place = 0; place < is_lost.size(); ++place) {
      const SetMember& member = set.members(static_cast<int>(place));
      if (!is_lost[place]) members.append(nb::make_tuple(member.rank(), member.name()));
    }
    for (const SetMember& member : set.waiting())
      waiting.append(nb::make_tuple(member.rank(), member.name()));
    for (const PendingCall& call : set.calls()) {
      nb::dict one;
      one["what"] = call.what();
      one["sequence"] = call.sequence();
      one["waiting_seconds"] = call.waiting_seconds();
      one["here"] = std::vector<std::string>(call.here().begin(), call.here().end());
      one["missing"] = std::vector<std::string>(call.missing().begin(), call.missing().end());
      calls.append(one);
    }
    said["members"] = members;
    said["lost"] = lost;
    said["waiting"] = waiting;
    said["calls"] = calls;
    sets.append(said);
  }
  return sets;
}

}  // namespace

void DefineCollectives(nb::module_& module) {
  recon_error = nb::object(module.attr("ReconError")).release().ptr();
  refused_error = nb::object(module.attr("Refused")).release().ptr();
  lost_error = nb::object(module.attr("JobLost")).release().ptr();
  member_lost_error = PyErr_NewException("recon.collective.MemberLost", recon_error, nullptr);
  set_changed_error = PyErr_NewException("recon.collective.SetChanged", recon_error, nullptr);
  module.attr("MemberLost") = nb::handle(member_lost_error);
  module.attr("SetChanged") = nb::handle(set_changed_error);
  module.def("sets", &Sets, nb::arg("server"), nb::arg("tls"));
  nb::class_<PyCall>(module, "Call")
      .def("wait", &PyCall::Await, nb::arg("seconds"))
      .def_prop_ro("done", &PyCall::done)
      .def("result", &PyCall::Result);
  nb::class_<PyGroup>(module, "Group")
      .def(nb::init<const std::string&, const PyGroup::Tls&, const std::string&, const std::string&, bool,
                    uint32_t, uint32_t, bool, double>(),
           nb::arg("server"), nb::arg("tls"), nb::arg("set"), nb::arg("member"), nb::arg("elastic"),
           nb::arg("rank"), nb::arg("size"), nb::arg("shrink"), nb::arg("patience"))
      .def("await_begun", &PyGroup::AwaitBegun, nb::arg("seconds"))
      .def("acknowledge", &PyGroup::Acknowledge)
      .def_prop_ro("wants_secret", &PyGroup::WantsSecret)
      .def_prop_ro("changed", &PyGroup::changed)
      .def_prop_ro("lost", &PyGroup::lost)
      .def_prop_ro("alive", &PyGroup::alive)
      .def("start", &PyGroup::Start, nb::arg("kind"), nb::arg("op"), nb::arg("dtype"), nb::arg("wire"),
           nb::arg("name"), nb::arg("by_name"), nb::arg("order"), nb::arg("shape"), nb::arg("in_"),
           nb::arg("out"), nb::arg("count"), nb::arg("in_counts"), nb::arg("out_counts"), nb::arg("peer"),
           nb::arg("tag"))
      .def("who_is_missing", &PyGroup::WhoIsMissing)
      .def("leave", &PyGroup::Leave, nb::arg("why"))
      .def("close", &PyGroup::Close);
}

}  // namespace recon

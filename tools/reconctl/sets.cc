#include <algorithm>
#include <iostream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/host_port.h"
#include "common/base/status_macros.h"
#include "common/json/escape_texts.h"
#include "common/json/message_json.h"
#include "common/rpc/sets_client.h"
#include "tools/reconctl/render.h"
#include "tools/reconctl/verbs.h"

namespace recon {
namespace {

// "w0 (0), w1 (1)".
template <typename Members>
std::string Named(const Members& members) {
  return absl::StrJoin(members, ", ", [](std::string* out, const auto& member) {
    absl::StrAppend(out, member.name(), " (", member.rank(), ")");
  });
}

std::string KindOf(const SetStatus& set) {
  return absl::StrCat(set.elastic() ? "elastic" : "fixed", set.shrink() ? ", shrinks" : "");
}

std::vector<SetMember> MembersThere(const SetStatus& set) {
  std::vector<SetMember> there;
  for (const SetMember& member : set.members()) {
    const auto is_it = [&](const Departure& lost) { return lost.rank() == member.rank(); };
    if (std::none_of(set.lost().begin(), set.lost().end(), is_it)) there.push_back(member);
  }
  return there;
}

void PrintSet(const SetStatus& set) {
  std::cout << set.name() << ": " << Named(MembersThere(set)) << "\n";
  if (set.waiting_size() > 0) {
    std::cout << "  wait for " << set.size() << " members: " << Named(set.waiting()) << "\n";
  }
  for (const Departure& lost : set.lost()) {
    std::cout << "  lost: " << lost.name() << " (" << lost.rank() << "): " << lost.why() << "\n";
  }
  for (const PendingCall& call : set.calls()) {
    std::cout << "  call " << call.sequence() << ", " << call.what() << ", waits since "
              << HumanSeconds(call.waiting_seconds()) << " for " << absl::StrJoin(call.missing(), ", ")
              << "\n";
  }
}

}  // namespace

absl::Status ShowSets(const ServerTarget& target) {
  RECON_RETURN_IF_ERROR(CheckAddress("--server", target.address));
  RECON_ASSIGN_OR_RETURN(SetsReply reply, AskForSets(target.address, target.tls));
  if (target.json) {
    std::cout << ToJson(reply) << "\n";
    return absl::OkStatus();
  }
  EscapeTexts(&reply);
  if (reply.sets().empty()) {
    std::cout << "there are no sets\n";
    return absl::OkStatus();
  }
  std::vector<std::vector<std::string>> rows = {{"SET", "KIND", "EPOCH", "MEMBERS", "WAIT", "LOST", "CALLS"}};
  for (const SetStatus& set : reply.sets()) {
    rows.push_back({set.name(), KindOf(set), absl::StrCat(set.epoch()),
                    absl::StrCat(MembersThere(set).size()), absl::StrCat(set.waiting_size()),
                    absl::StrCat(set.lost_size()), absl::StrCat(set.calls_size())});
  }
  std::cout << Table(rows);
  for (const SetStatus& set : reply.sets()) PrintSet(set);
  return absl::OkStatus();
}

}  // namespace recon

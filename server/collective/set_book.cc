#include "server/collective/set_book.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/plain_text.h"
#include "common/base/status_macros.h"
#include "common/collective/call_frame.h"

namespace recon {
namespace {

std::string Described(bool elastic, uint32_t size, bool shrink) {
  return absl::StrCat(elastic ? "an elastic set of at least " : "a set of ", size, " members, on_loss ",
                      shrink ? "shrink" : "raise");
}

}  // namespace

absl::Status SetBook::Check(const JoinRequest& request) const {
  const auto wrong = [&](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("set \"", request.set(), "\": ", what...));
  };
  if (request.set().empty() || request.set().size() > limits::kNameBytesMax) {
    return wrong("a set's name has 1 to ", limits::kNameBytesMax, " bytes");
  }
  if (request.member().empty() || request.member().size() > limits::kNameBytesMax) {
    return wrong("a member's name has 1 to ", limits::kNameBytesMax, " bytes");
  }
  RECON_RETURN_IF_ERROR(CheckPlain("a set's name", request.set()));
  RECON_RETURN_IF_ERROR(CheckPlain("a member's name", request.member()));
  if (request.size() == 0 || request.size() > limits::kCollectiveMembersMax) {
    return wrong("size ", request.size(), ", expected 1 to ", limits::kCollectiveMembersMax);
  }
  if (!request.elastic() && request.rank() >= request.size()) {
    return wrong("rank ", request.rank(), " of ", request.size(), " members");
  }
  const auto found = sets_.find(request.set());
  if (found == sets_.end()) {
    if (sets_.size() < limits::kCollectiveSetsMax) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", sets_.size(), " sets, and may not be more"));
  }
  const Set& set = found->second;
  if (set.elastic != request.elastic() || set.size != request.size() || set.shrink != request.shrink()) {
    return wrong("member \"", request.member(), "\" joins ",
                 Described(request.elastic(), request.size(), request.shrink()), ", it is ",
                 Described(set.elastic, set.size, set.shrink));
  }
  if (set.members.size() + set.waiting.size() >= limits::kCollectiveMembersMax) {
    return absl::ResourceExhaustedError(absl::StrCat("set \"", request.set(), "\" has ",
                                                     limits::kCollectiveMembersMax, " members: that is all"));
  }
  return absl::OkStatus();
}

absl::Status SetBook::Join(uint64_t stream, const JoinRequest& request, absl::Time now, Changes* changes) {
  if (set_of_.count(stream) != 0) return absl::InvalidArgumentError("a connection joins one set, once");
  RECON_RETURN_IF_ERROR(Check(request));
  if (!request.elastic()) {
    const auto found = sets_.find(request.set());
    if (found != sets_.end()) Replace(request.member(), &found->second, request.rank(), changes);
  }
  Set& set = sets_[request.set()];
  if (set.id == 0) {
    set.id = next_set_++;
    set.elastic = request.elastic();
    set.shrink = request.shrink();
    set.size = request.size();
  }
  const absl::Duration patience =
      request.patience_ms() == 0 ? options_.patience : absl::Milliseconds(request.patience_ms());
  set.waiting.push_back({stream, request.rank(), request.member(), patience, now});
  set_of_[stream] = request.set();
  BeginIfComplete(&set, changes);
  return absl::OkStatus();
}

// Of two processes that have one rank the newer one stays.
void SetBook::Replace(const std::string& name, Set* set, uint32_t rank, Changes* changes) {
  const std::string why = absl::StrCat("\"", name, "\" has taken its rank ", rank);
  for (size_t i = 0; i < set->waiting.size(); ++i) {
    if (set->waiting[i].rank != rank) continue;
    changes->sent_away.emplace_back(set->waiting[i].stream, absl::AbortedError(why));
    const size_t erased = set_of_.erase(set->waiting[i].stream);
    RECON_CHECK_EQ(erased, 1);
    set->waiting.erase(set->waiting.begin() + static_cast<ptrdiff_t>(i));
    return;
  }
  for (size_t place = 0; place < set->members.size(); ++place) {
    if (set->members[place].rank != rank || set->members[place].stream == 0) continue;
    changes->sent_away.emplace_back(set->members[place].stream, absl::AbortedError(why));
    const size_t erased = set_of_.erase(set->members[place].stream);
    RECON_CHECK_EQ(erased, 1);
    return Lose(set, place, why, changes);
  }
}

size_t SetBook::Here(const Set& set) {
  return static_cast<size_t>(
      std::count_if(set.members.begin(), set.members.end(), [](const Member& m) { return m.stream != 0; }));
}

void SetBook::Leave(uint64_t stream, const std::string& why, Changes* changes) {
  const auto found = set_of_.find(stream);
  if (found == set_of_.end()) return;
  const std::string name = found->second;
  set_of_.erase(found);
  RECON_CHECK(sets_.count(name) == 1, "a stream is in a set that is not there");
  Set& set = sets_[name];
  const auto is_it = [stream](const Member& member) { return member.stream == stream; };
  set.waiting.erase(std::remove_if(set.waiting.begin(), set.waiting.end(), is_it), set.waiting.end());
  const auto member = std::find_if(set.members.begin(), set.members.end(), is_it);
  if (member != set.members.end()) {
    Lose(&set, static_cast<size_t>(member - set.members.begin()), why, changes);
  }
  if (Here(set) == 0 && set.waiting.empty()) sets_.erase(name);
}

void SetBook::Lose(Set* set, size_t place, const std::string& why, Changes* changes) {
  RECON_CHECK_LT(place, set->members.size());
  RECON_CHECK(set->members[place].stream != 0, "who is lost already is lost");
  Departure went;
  went.set_rank(set->members[place].rank);
  went.set_name(set->members[place].name);
  went.set_why(why);
  went.set_place(static_cast<uint32_t>(place));
  set->went.push_back(went);
  set->members[place].stream = 0;
  changes->over.push_back({set->id, set->epoch, static_cast<uint32_t>(place), why});
  const uint64_t epoch = set->epoch;
  BeginIfComplete(set, changes);
  if (set->epoch != epoch) return;
  MembersLost lost;
  lost.set_set(set->id);
  lost.set_epoch(set->epoch);
  *lost.add_went() = went;
  for (const Member& member : set->members) {
    if (member.stream != 0) changes->losses.emplace_back(member.stream, lost);
  }
}

// Whether those who are here can work, and are others than those of the epoch: then it is a new one.
void SetBook::BeginIfComplete(Set* set, Changes* changes) {
  const size_t here = Here(*set);
  const bool lost = here < set->members.size();
  const bool goes_on_with_fewer = set->elastic || (set->shrink && set->epoch > 0);
  if (set->waiting.empty() && (!lost || !goes_on_with_fewer)) return;
  const size_t needed = goes_on_with_fewer && !set->elastic ? 1 : set->size;
  if (here + set->waiting.size() < needed) return;
  if (here == 0 && set->waiting.empty()) return;
  if (set->epoch > 0) {
    std::string why = "the set has changed";
    for (const Departure& went : set->went)
      absl::StrAppend(&why, "; \"", went.name(), "\" went: ", went.why());
    for (const Member& came : set->waiting) absl::StrAppend(&why, "; \"", came.name, "\" came");
    changes->over.push_back({set->id, set->epoch, kEverybody, why});
  }
  std::vector<SetMember> came;
  std::vector<Member> members;
  for (const Member& member : set->members) {
    if (member.stream != 0) members.push_back(member);
  }
  for (const Member& member : set->waiting) {
    members.push_back(member);
    SetMember* newcomer = &came.emplace_back();
    newcomer->set_name(member.name);
  }
  if (set->elastic) {
    for (size_t i = 0; i < members.size(); ++i) members[i].rank = static_cast<uint32_t>(i);
  } else {
    std::sort(members.begin(), members.end(),
              [](const Member& a, const Member& b) { return a.rank < b.rank; });
  }
  for (SetMember& newcomer : came) {
    const auto is_it = [&](const Member& member) { return member.name == newcomer.name(); };
    newcomer.set_rank(std::find_if(members.begin(), members.end(), is_it)->rank);
  }
  set->members = std::move(members);
  set->waiting.clear();
  ++set->epoch;
  Tell(*set, came, changes);
  set->went.clear();
}

void SetBook::Tell(const Set& set, const std::vector<SetMember>& came, Changes* changes) const {
  SetEpoch epoch;
  epoch.set_wants_secret(options_.wants_secret);
  epoch.set_set(set.id);
  epoch.set_epoch(set.epoch);
  for (const Member& member : set.members) {
    SetMember* said = epoch.add_members();
    said->set_rank(member.rank);
    said->set_name(member.name);
  }
  for (const SetMember& newcomer : came) *epoch.add_came() = newcomer;
  for (const Departure& went : set.went) *epoch.add_went() = went;
  for (size_t place = 0; place < set.members.size(); ++place) {
    epoch.set_place(static_cast<uint32_t>(place));
    changes->epochs.emplace_back(set.members[place].stream, epoch);
  }
}

void SetBook::Heard(uint64_t stream, absl::Time now) {
  const auto found = set_of_.find(stream);
  if (found == set_of_.end()) return;
  RECON_CHECK(sets_.count(found->second) == 1);
  Set& set = sets_[found->second];
  for (std::vector<Member>* list : {&set.members, &set.waiting}) {
    for (Member& member : *list) {
      if (member.stream == stream) member.heard = now;
    }
  }
}

void SetBook::Forgive(absl::Time now) {
  for (const auto& [stream, name] : set_of_) Heard(stream, now);
}

void SetBook::Evict(absl::Time now, Changes* changes) {
  std::vector<std::pair<uint64_t, absl::Duration>> silent;
  for (const auto& [name, set] : sets_) {
    for (const std::vector<Member>* list : {&set.members, &set.waiting}) {
      for (const Member& member : *list) {
        if (member.stream == 0 || now - member.heard <= member.patience) continue;
        silent.emplace_back(member.stream, now - member.heard);
      }
    }
  }
  for (const auto& [stream, since] : silent) {
    const std::string why =
        absl::StrCat("silent for ", absl::FormatDuration(absl::Trunc(since, absl::Milliseconds(1))));
    changes->sent_away.emplace_back(stream, absl::AbortedError(absl::StrCat("evicted: ", why)));
    Leave(stream, why, changes);
  }
}

SetsReply SetBook::Sets() const {
  SetsReply reply;
  for (const auto& [name, set] : sets_) {
    SetStatus* status = reply.add_sets();
    status->set_name(name);
    status->set_set(set.id);
    status->set_epoch(set.epoch);
    status->set_elastic(set.elastic);
    status->set_shrink(set.shrink);
    status->set_size(set.size);
    const auto say = [](const Member& member, SetMember* to) {
      to->set_rank(member.rank);
      to->set_name(member.name);
    };
    for (const Member& member : set.members) say(member, status->add_members());
    for (const Member& member : set.waiting) say(member, status->add_waiting());
    for (const Departure& went : set.went) *status->add_lost() = went;
  }
  return reply;
}

}  // namespace recon

#include "server/collective/chunk_book.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

// A frame of a chunk that waits, and the chunk.
constexpr uint64_t kFrameOverhead = 512;

bool SameChunk(const CallHeader& a, const CallHeader& b) {
  const auto fields = [](const CallHeader& it) {
    return std::tuple(it.combine, it.op, it.dtype, it.wire, it.pair, it.source, it.receiver, it.bytes,
                      it.total);
  };
  return fields(a) == fields(b);
}

uint32_t PartsOf(const CallHeader& chunk, uint32_t members) {
  if (chunk.pair == 0) return members;
  return chunk.source == chunk.receiver ? 1 : 2;
}

std::string SideOf(uint32_t rank, const std::string& text, const CallHeader& header) {
  return absl::StrCat("rank ", rank, " calls ", text, " (", header.total, " bytes)");
}

}  // namespace

absl::StatusOr<ChunkBook::Epoch*> ChunkBook::Speak(uint64_t stream, const CallHeader& frame) {
  const EpochKey key{frame.set, frame.epoch};
  const auto spoken = spoken_.find(stream);
  const auto is_full = [&] {
    return spoken != spoken_.end() && spoken->second.size() >= kEpochsOfStreamMax &&
           spoken->second.count(key) == 0;
  };
  // A set whose members come and go has many, of which but one is not over.
  if (is_full()) ForgetOver(stream, [](const EpochKey&) { return true; });
  if (is_full()) {
    return absl::ResourceExhaustedError(absl::StrCat("a connection speaks in ", spoken->second.size(),
                                                     " epochs of sets, at most ", kEpochsOfStreamMax));
  }
  Epoch& epoch = epochs_[key];
  if (epoch.streams.empty() && epoch.members == 0) epoch.members = frame.members;
  if (epoch.members != frame.members) {
    return absl::InvalidArgumentError(absl::StrCat("epoch ", frame.epoch, " of a set has ", epoch.members,
                                                   " members, a frame says ", frame.members));
  }
  const auto [mine, added] = epoch.streams.emplace(stream, frame.place);
  if (added) {
    spoken_[stream].insert(key);
    for (const auto& [other, place] : epoch.streams) {
      if (other != stream && place == frame.place) {
        return absl::InvalidArgumentError(
            absl::StrCat("two connections speak for place ", place, " of a set"));
      }
    }
  }
  if (mine->second != frame.place) {
    return absl::InvalidArgumentError(
        absl::StrCat("a connection of place ", mine->second, " speaks for place ", frame.place));
  }
  return &epoch;
}

bool ChunkBook::SpeaksIn(uint64_t stream, const CallHeader& frame) const {
  const auto found = spoken_.find(stream);
  return found != spoken_.end() && found->second.count({frame.set, frame.epoch}) != 0;
}

uint64_t ChunkBook::Charge(const Pending& pending, const ByteChain& payload) {
  return payload.size() + pending.text.size() + kFrameOverhead;
}

absl::Status ChunkBook::Enter(uint64_t stream, const CallHeader& frame) {
  return Speak(stream, frame).status();
}

void ChunkBook::ForgetOver(uint64_t stream, absl::FunctionRef<bool(const EpochKey&)> which) {
  std::set<EpochKey>& spoken = spoken_[stream];
  for (auto it = spoken.begin(); it != spoken.end();) {
    const auto found = epochs_.find(*it);
    const bool over = which(*it) && (found == epochs_.end() || found->second.lost.count(kEverybody) != 0);
    if (!over) {
      ++it;
      continue;
    }
    if (found != epochs_.end()) {
      found->second.streams.erase(stream);
      RECON_CHECK(found->second.chunks.empty(), "a chunk waits in an epoch that is over");
      if (found->second.streams.empty()) epochs_.erase(found);
    }
    it = spoken.erase(it);
  }
}

std::optional<std::pair<absl::Status, uint32_t>> ChunkBook::WhyNot(const Epoch& epoch,
                                                                   const CallHeader& chunk,
                                                                   const Pending* pending) const {
  const auto failed = epoch.failed.find({chunk.channel, chunk.sequence});
  if (failed != epoch.failed.end()) return failed->second;
  const auto everybody = epoch.lost.find(kEverybody);
  if (everybody != epoch.lost.end()) return std::pair(absl::AbortedError(everybody->second), kEverybody);
  for (const auto& [place, why] : epoch.lost) {
    if (!TakesPart(chunk, place) || (pending != nullptr && pending->frames.count(place) != 0)) continue;
    return std::pair(absl::AbortedError(why), place);
  }
  return std::nullopt;
}

absl::Status ChunkBook::Add(uint64_t stream, CallFrame frame, absl::Time now, Decided* decided) {
  const CallHeader& header = frame.header;
  RECON_ASSIGN_OR_RETURN(Epoch* const epoch, Speak(stream, header));
  // Who speaks in an epoch sends nothing of an earlier one any more.
  if (spoken_[stream].size() > 1) {
    ForgetOver(stream, [&header](const EpochKey& key) {
      return key.first == header.set && key.second < header.epoch;
    });
  }
  const ChunkKey key{header.channel, header.sequence, header.chunk};
  auto found = epoch->chunks.find(key);
  if (found != epoch->chunks.end() && found->second.frames.count(header.place) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("place ", header.place, " sent chunk ", header.chunk,
                                                   " of call ", header.sequence, " twice"));
  }
  if (const auto why = WhyNot(*epoch, header, found == epoch->chunks.end() ? nullptr : &found->second)) {
    decided->failed.push_back({stream, FailedOutcome(header, why->first, why->second)});
    // Others of the call that wait have no hope either.
    Fail(epoch, {header.channel, header.sequence}, why->first, why->second, decided);
    return absl::OkStatus();
  }
  if (found == epoch->chunks.end()) {
    found = epoch->chunks.emplace(key, Pending{header, frame.text, now, {}}).first;
  }
  Pending& pending = found->second;
  const bool same = SameChunk(pending.header, header) && pending.text == frame.text;
  bytes_ += Charge(pending, frame.payload);
  pending.frames[header.place] = {stream, std::move(frame.payload)};
  if (!same) {
    const std::string text =
        absl::StrCat("different calls meet: ", SideOf(pending.header.rank, pending.text, pending.header),
                     ", ", SideOf(header.rank, frame.text, header));
    Fail(epoch, {header.channel, header.sequence}, absl::InvalidArgumentError(text), kNobody, decided);
    return absl::OkStatus();
  }
  FinishIfAllHere(epoch, key, decided);
  return absl::OkStatus();
}

void ChunkBook::FinishIfAllHere(Epoch* epoch, const ChunkKey& key, Decided* decided) {
  const auto found = epoch->chunks.find(key);
  RECON_CHECK(found != epoch->chunks.end());
  Pending& pending = found->second;
  RECON_CHECK_LE(pending.frames.size(), PartsOf(pending.header, epoch->members));
  if (pending.frames.size() < PartsOf(pending.header, epoch->members)) return;
  Ready ready{pending.header, std::vector<ByteChain>(epoch->members),
              std::vector<uint64_t>(epoch->members, 0), pending.since};
  for (auto& [place, sent] : pending.frames) {
    RECON_CHECK_GE(bytes_, Charge(pending, sent.second));
    RECON_CHECK_LT(place, epoch->members);
    bytes_ -= Charge(pending, sent.second);
    ready.streams[place] = sent.first;
    ready.contributions[place] = std::move(sent.second);
  }
  decided->ready.push_back(std::move(ready));
  epoch->chunks.erase(found);
}

void ChunkBook::Fail(Epoch* epoch, const CallKey& call, const absl::Status& why, uint32_t lost,
                     Decided* decided) {
  const bool too_many =
      epoch->failed.size() >= limits::kCollectiveFailedCallsMax && epoch->lost.count(kEverybody) == 0;
  if (too_many) {
    epoch->lost[kEverybody] =
        absl::StrCat(epoch->failed.size(), " calls of this epoch have failed: the set has to begin anew");
  }
  if (epoch->lost.count(kEverybody) == 0) epoch->failed.emplace(call, std::pair(why, lost));
  auto it = epoch->chunks.lower_bound({call.first, call.second, 0});
  while (it != epoch->chunks.end() && std::get<0>(it->first) == call.first &&
         std::get<1>(it->first) == call.second) {
    Pending& pending = it->second;
    for (const auto& [place, sent] : pending.frames) {
      CallHeader chunk = pending.header;
      chunk.place = place;
      decided->failed.push_back({sent.first, FailedOutcome(chunk, why, lost)});
      RECON_CHECK_GE(bytes_, Charge(pending, sent.second));
      bytes_ -= Charge(pending, sent.second);
    }
    it = epoch->chunks.erase(it);
  }
  if (too_many) FailHopeless(epoch, decided);  // The epoch is over for the other calls, too.
}

absl::Status ChunkBook::FailCall(uint64_t stream, const CallHeader& call, const absl::Status& why,
                                 Decided* decided) {
  RECON_ASSIGN_OR_RETURN(Epoch* const epoch, Speak(stream, call));
  if (epoch->failed.count({call.channel, call.sequence}) != 0) return absl::OkStatus();
  Fail(epoch, {call.channel, call.sequence}, why, call.lost, decided);
  return absl::OkStatus();
}

void ChunkBook::Lose(uint64_t set, uint64_t epoch, uint32_t place, const std::string& why, Decided* decided) {
  const auto found = epochs_.find({set, epoch});
  if (found == epochs_.end()) return;
  if (!found->second.lost.emplace(place, why).second) return;
  FailHopeless(&found->second, decided);
}

// The calls that wait for who is lost.
void ChunkBook::FailHopeless(Epoch* epoch, Decided* decided) {
  std::vector<std::pair<CallKey, std::pair<absl::Status, uint32_t>>> hopeless;
  for (const auto& [key, pending] : epoch->chunks) {
    const auto why = WhyNot(*epoch, pending.header, &pending);
    if (why) hopeless.push_back({{std::get<0>(key), std::get<1>(key)}, *why});
  }
  for (const auto& [call, why] : hopeless) Fail(epoch, call, why.first, why.second, decided);
}

void ChunkBook::End(uint64_t stream, const std::string& why, Decided* decided) {
  const auto spoken = spoken_.find(stream);
  if (spoken == spoken_.end()) return;
  for (const EpochKey& key : spoken->second) {
    const auto found = epochs_.find(key);
    if (found == epochs_.end()) continue;
    Epoch& epoch = found->second;
    const uint32_t place = epoch.streams[stream];
    epoch.streams.erase(stream);
    // Nobody is there who could wait, and what it has sent counts for nobody.
    if (epoch.streams.empty()) {
      for (const auto& [chunk, pending] : epoch.chunks) {
        for (const auto& [from, sent] : pending.frames) {
          RECON_CHECK_GE(bytes_, Charge(pending, sent.second));
          bytes_ -= Charge(pending, sent.second);
        }
      }
      epochs_.erase(found);
      continue;
    }
    epoch.lost.emplace(place, why);
    FailHopeless(&epoch, decided);
  }
  spoken_.erase(spoken);
  RECON_CHECK(!epochs_.empty() || bytes_ == 0, "no epoch is left, and frames wait");
}

std::vector<ChunkBook::Waiting> ChunkBook::waiting() const {
  std::vector<Waiting> all;
  for (const auto& [key, epoch] : epochs_) {
    for (const auto& [chunk, pending] : epoch.chunks) {
      // A call's first chunk tells of all.
      if (std::get<2>(chunk) != 0) continue;
      Waiting call{pending.text, key.first, key.second, std::get<1>(chunk), pending.since, {}, {}};
      for (uint32_t place = 0; place < epoch.members; ++place) {
        if (!TakesPart(pending.header, place)) continue;
        (pending.frames.count(place) != 0 ? call.here : call.missing).push_back(place);
      }
      all.push_back(std::move(call));
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Waiting& a, const Waiting& b) { return a.since < b.since; });
  return all;
}

}  // namespace recon

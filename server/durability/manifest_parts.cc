#include "server/durability/manifest_parts.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace recon {

uint32_t LedgerTable::Add(const Ledger& ledger) {
  const auto number = static_cast<uint32_t>(manifest_->ledgers_size());
  const auto [it, added] = numbers_.try_emplace(ledger.SerializeAsString(), number);
  if (added) *manifest_->add_ledgers() = ledger;
  return it->second;
}

absl::StatusOr<Manifest> JoinParts(const ParamLayout& layout, std::vector<Manifest> parts) {
  if (parts.size() == 1) return std::move(parts.front());
  Manifest joined;
  std::map<uint32_t, ShardEntry*> shards;
  std::map<std::pair<uint32_t, uint32_t>, ChunkEntry*> chunks;
  std::map<std::string, uint32_t> packs;
  LedgerTable ledgers(&joined);
  for (Manifest& part : parts) {
    std::vector<uint32_t> ledger_of;
    for (const Ledger& ledger : part.ledgers()) ledger_of.push_back(ledgers.Add(ledger));
    for (ShardEntry& shard : *part.mutable_shards()) {
      if (shard.shard() >= layout.shard_count() || !shards.emplace(shard.shard(), &shard).second) {
        return absl::InternalError(
            absl::StrCat("shard ", shard.shard(), " is in two servers' parts, or is none"));
      }
      if (shard.ledger() >= ledger_of.size()) {
        return absl::InternalError("a server's part names a ledger that it does not list");
      }
      shard.set_ledger(ledger_of[shard.ledger()]);
    }
    std::vector<uint32_t> pack_of;
    for (const PackEntry& pack : part.packs()) {
      const auto [it, added] = packs.try_emplace(pack.name(), static_cast<uint32_t>(joined.packs_size()));
      if (added) *joined.add_packs() = pack;
      pack_of.push_back(it->second);
    }
    if (part.has_carried()) {
      if (part.carried().pack() >= pack_of.size()) {
        return absl::InternalError("a server's part names a pack that it does not list");
      }
      part.mutable_carried()->set_pack(pack_of[part.carried().pack()]);
      *joined.mutable_carried() = part.carried();
    }
    for (ChunkEntry& chunk : *part.mutable_chunks()) {
      for (uint32_t& pack : *chunk.mutable_pack()) {
        if (pack >= pack_of.size())
          return absl::InternalError("a server's part names a pack that it does not list");
        pack = pack_of[pack];
      }
      chunks.emplace(std::make_pair(chunk.shard(), chunk.role()), &chunk);
    }
  }
  if (shards.size() != layout.shard_count()) {
    return absl::InternalError(
        absl::StrCat("the servers' parts have ", shards.size(), " of ", layout.shard_count(), " shards"));
  }
  for (const auto& [number, shard] : shards) *joined.add_shards() = std::move(*shard);
  for (const auto& [place, chunk] : chunks) *joined.add_chunks() = std::move(*chunk);
  return joined;
}

}  // namespace recon

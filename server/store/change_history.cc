#include "server/store/change_history.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/codec/sparse_codec.h"
#include "common/tensor/page.h"

namespace recon {
namespace {

// A page's memory for indices of 2 bytes: an eighth of its values' 4 bytes.
constexpr size_t kRememberedShare = 4;
// What a change costs beside its indices, in indices.
constexpr size_t kChangeCost = 40;

}  // namespace

ChangeHistory::ChangeHistory(uint32_t values) : pages_(PagesOf(values)) {
  for (size_t page = 0; page < pages_.size(); ++page) {
    pages_[page].remembered_max =
        std::min<size_t>(kPageParams, values - page * kPageParams) / kRememberedShare;
  }
}

bool ChangeHistory::AllChangedSince(uint64_t base) const {
  return std::all_of(pages_.begin(), pages_.end(), [base](const Page& page) { return base < page.horizon; });
}

void ChangeHistory::NoteAll(uint64_t version) {
  for (uint32_t page = 0; page < pages_.size(); ++page) NoteWholePage(version, page);
}

void ChangeHistory::NoteWholePage(uint64_t version, uint32_t number) {
  RECON_CHECK_LT(number, pages_.size());
  Page& page = pages_[number];
  page.horizon = version;
  page.changes.clear();
  page.remembered = 0;
}

void ChangeHistory::NotePage(uint64_t version, uint32_t number, absl::Span<const uint16_t> indices) {
  RECON_CHECK_LT(number, pages_.size());
  Page& page = pages_[number];
  RECON_CHECK_GT(version, page.changes.empty() ? page.horizon : page.changes.back().version,
                 "versions ascend");
  page.changes.push_back({version, {indices.begin(), indices.end()}});
  page.remembered += indices.size() + kChangeCost;
  while (page.remembered > page.remembered_max) {
    RECON_CHECK(!page.changes.empty(), "changes are remembered that are not there");
    page.horizon = page.changes.front().version;
    const size_t cost = page.changes.front().indices.size() + kChangeCost;
    RECON_CHECK_GE(page.remembered, cost);
    page.remembered -= cost;
    page.changes.pop_front();
  }
}

ChangeHistory::Extent ChangeHistory::Since(uint64_t base, uint32_t number,
                                           std::vector<uint16_t>* indices) const {
  const Page& page = pages_[number];
  if (base < page.horizon) return Extent::kAll;
  if (page.changes.empty() || page.changes.back().version <= base) return Extent::kNothing;
  uint64_t changed[kPageParams / 64] = {};
  for (auto change = page.changes.rbegin(); change != page.changes.rend(); ++change) {
    if (change->version <= base) break;
    for (const uint16_t index : change->indices) changed[index / 64] |= uint64_t{1} << index % 64;
  }
  indices->clear();
  for (size_t word = 0; word < kPageParams / 64; ++word) {
    for (uint64_t bits = changed[word]; bits != 0; bits &= bits - 1) {
      indices->push_back(static_cast<uint16_t>(word * 64 + static_cast<size_t>(__builtin_ctzll(bits))));
    }
  }
  return Extent::kSome;
}

}  // namespace recon

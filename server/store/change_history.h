#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/types/span.h"

namespace recon {

// Which values of a shard the last updates changed, so that a worker that has a recent version is sent only
// those. Lane only.
//
// Memory: less than an eighth of a page's values; older changes become "everything".
class ChangeHistory {
 public:
  // Knows that nothing has changed since version 0 of `values` values.
  explicit ChangeHistory(uint32_t values);

  // The update that made `version` changed every value, every value of one page, or these of one page
  // (ascending). Versions ascend.
  void NoteAll(uint64_t version);
  void NoteWholePage(uint64_t version, uint32_t page);
  void NotePage(uint64_t version, uint32_t page, absl::Span<const uint16_t> indices);

  // Whether every page has to be sent whole to a reader of version `base`.
  bool AllChangedSince(uint64_t base) const;

  enum class Extent { kNothing, kSome, kAll };
  // What changed in a page after version `base`. kSome: `indices` has it, ascending.
  Extent Since(uint64_t base, uint32_t page, std::vector<uint16_t>* indices) const;

 private:
  struct Change {
    uint64_t version = 0;
    std::vector<uint16_t> indices;
  };
  struct Page {
    // Changes up to this version are not known one by one.
    uint64_t horizon = 0;
    std::deque<Change> changes;
    size_t remembered = 0;  // Indices, and as many as a change's own memory is worth.
    size_t remembered_max = 0;
  };

  std::vector<Page> pages_;
};

}  // namespace recon

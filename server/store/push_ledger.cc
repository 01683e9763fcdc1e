#include "server/store/push_ledger.h"

#include "common/base/check.h"

namespace recon {

namespace {

constexpr uint64_t kWindow = 64;

}  // namespace

bool PushLedger::Taken(WorkerId worker, Incarnation incarnation, uint64_t step) const {
  const auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.incarnation != incarnation) return false;
  const Record& record = found->second;
  if (step > record.last_step) return false;
  const uint64_t back = record.last_step - step;
  return back >= kWindow || (record.window >> back & 1) != 0;
}

bool PushLedger::Forgotten(WorkerId worker, Incarnation incarnation, uint64_t step) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && found->second.incarnation == incarnation &&
         step < found->second.last_step && found->second.last_step - step >= kWindow;
}

bool PushLedger::Take(WorkerId worker, Incarnation incarnation, uint64_t step) {
  if (Taken(worker, incarnation, step)) return false;
  Record& record = workers_[worker];
  if (record.window == 0 || record.incarnation != incarnation) {
    record = {incarnation, step, 1};
    return true;
  }
  if (step < record.last_step) {
    // Taken() says of a step that is further back that it was taken.
    RECON_CHECK_LT(record.last_step - step, kWindow);
    record.window |= uint64_t{1} << (record.last_step - step);
    return true;
  }
  const uint64_t advance = step - record.last_step;
  record.window = advance >= kWindow ? 1 : (record.window << advance) | 1;
  record.last_step = step;
  return true;
}

std::vector<LedgerEntry> PushLedger::Entries() const {
  std::vector<LedgerEntry> entries;
  for (const auto& [worker, record] : workers_) {
    LedgerEntry entry;
    entry.set_worker(worker.value());
    entry.set_incarnation(record.incarnation.value());
    entry.set_last_step(record.last_step);
    entry.set_window(record.window);
    entries.push_back(entry);
  }
  return entries;
}

void PushLedger::Restore(const std::vector<LedgerEntry>& entries) {
  workers_.clear();
  for (const LedgerEntry& entry : entries) {
    workers_[WorkerId(entry.worker())] = {Incarnation(entry.incarnation()), entry.last_step(),
                                          entry.window()};
  }
}

}  // namespace recon

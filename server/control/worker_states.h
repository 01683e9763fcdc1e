#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "proto/control.pb.h"

namespace recon {

// Where the state of a job is whose workers have the optimizer (`mean`): which of those that live have it,
// which of them is asked to upload it and when, how far it has been uploaded and saved in a snapshot, and who
// may take what the server has because nobody else has newer.
//
// Steps are those of the job; a state "before step s" has taken all steps before it. An upload has a number
// that no other one of the job has: servers that begin anew know by it whether they have the same state.
// Pure: `now` is an argument; not thread-safe.
class WorkerStates {
 public:
  // Whether a worker's state may be what it says. FailedPrecondition if others go on from another one by now,
  // which was the servers' while this worker was not heard of.
  absl::Status Check(const WorkerStateReport& report) const;
  // What a worker says of itself, with whatever call.
  void Report(WorkerId worker, const WorkerStateReport& report);
  // It is gone, or another process goes on under its number.
  void Forget(WorkerId worker);

  // Numbers are of that epoch from now on, and of no other. What was asked for before is not waited for: some
  // server may not have heard of it.
  void BeginEpoch(uint64_t cluster_epoch);
  uint64_t NewUpload() { return ++last_upload_; }

  // Whom to ask for an upload now, if one is due: somebody waits for it, or it has been long. The next is
  // chosen when it has come, or the worker that was asked is gone or does not bring it. `frontier`: first
  // step that is not closed.
  std::optional<WorkerId> Ask(uint64_t frontier, absl::Time now);
  // The number of the upload that was asked for last.
  uint64_t upload() const { return upload_; }
  // All that a server has of an upload is staged there. Returns the step before which the state is, once that
  // is so of all `holders`, those that have some of it.
  std::optional<uint64_t> OnStaged(uint32_t server, uint64_t upload, uint64_t step,
                                   const std::set<uint32_t>& holders);
  // The asked worker's state before `step` is what the servers have.
  void OnUploaded(uint64_t step, absl::Time now);
  // The servers have gone back to the state that a snapshot has: no upload is there any more.
  void OnRestored();
  // A snapshot that was begun after that is published.
  void OnSaved(uint64_t step) { saved_ = std::max(saved_, step); }
  uint64_t uploaded() const { return uploaded_; }

  // Work of that pass is granted. `begun`: some of the pass is done, by an earlier process of the server;
  // otherwise the pass begins at `frontier`, as no step is open then.
  void NotePass(uint32_t data_epoch, bool begun, uint64_t frontier);
  // A lease of so many batches is the worker's. What it reports next has them in.
  void NoteGranted(WorkerId worker, uint64_t batches);
  // The worker asks for work of that pass, and all of it is given out: where loops end that read batches
  // ahead, if that is decided now. It is the same step for all workers.
  void NoteNothingLeft(WorkerId worker, uint32_t data_epoch);
  // What the worker is told. `may_take`: whoever has the state has had the time to say so.
  // `data_epoch`: the pass that the job is in. `all_given`: all of its work is some worker's.
  WorkerStateReply Answer(WorkerId worker, uint64_t frontier, uint32_t data_epoch, bool may_take,
                          bool all_given);

 private:
  struct Worker {
    bool holds = false;
    bool takes = false;  // It was told to take the servers' state, and has not said that it has.
    uint64_t next = 0;   // It holds the state before that step.
    std::optional<uint64_t> waits_for;
    bool uncovered = false;
    // These three are what its reports say (WorkerStateReport).
    uint64_t at = 0;
    uint64_t through = 0;
    bool asks_end = false;
  };
  bool Due(uint64_t frontier, absl::Time now) const;

  std::map<WorkerId, Worker> workers_;
  uint64_t line_ = 0;  // A number of NewUpload(), or one that a worker has brought; 0: nobody has said any.
  std::optional<WorkerId> asked_;
  uint64_t upload_ = 0;  // Of the last question.
  uint64_t last_upload_ = 0;
  std::map<uint32_t, uint64_t> staged_;  // Servers that have their parts of it, and its step.
  absl::Time asked_at_ = absl::InfinitePast();
  absl::Time uploaded_at_ = absl::InfinitePast();
  absl::Duration took_;  // From the question to the last upload's end.
  // The pass that work was granted of last, and the first step that may be of it.
  std::optional<uint32_t> pass_;
  uint64_t pass_begins_ = 0;
  // The pass of which it was said last where its loops end.
  std::optional<uint32_t> ended_pass_;
  uint64_t ends_at_ = 0;
  uint64_t uploaded_ = 0;
  uint64_t saved_ = 0;
};

}  // namespace recon

#include "server/process/part_writer.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/trace/recorder.h"
#include "common/trace/span_names.h"
#include "server/recovery/snapshot_memory.h"

namespace recon {

PartWriter::~PartWriter() {
  writer_->Hurry(1);
  // Cuts before this one have come to their lane then.
  Notification cut;
  params_->Cut([&cut](const StateCut&) { cut.Notify(); });
  cut.WaitForNotification();
  lane_.RunAndWait([] {});
}

void PartWriter::Cut(const CutCommand& command) {
  params_->Cut([this, command](StateCut cut) {
    lane_.Post([this, command, cut = std::move(cut)]() mutable { Write(command, std::move(cut)); });
  });
}

void PartWriter::NotePublished(uint64_t attempt) {
  lane_.Post([this, attempt] {
    if (!last_part_ || last_part_->attempt() != attempt) return;
    replay_seconds_before_ = last_part_replay_seconds_;
    writer_->NotePublished(last_part_->part());
    params_->log()->NoteSnapshot(last_part_->server().log_from());
  });
}

void PartWriter::Write(const CutCommand& command, StateCut cut) {
  const uint64_t generation = command.generation();
  const trace::Span span(trace::kSnapshot);
  SnapshotPart part;
  part.set_generation(generation);
  part.set_attempt(command.attempt());
  const double replay_seconds = cut.replay_seconds;
  part.mutable_server()->set_sequence(cut.sequence);
  part.mutable_server()->set_log_from(cut.log_from);
  const SnapshotMemory bound(memory_, cut);
  absl::StatusOr<Manifest> written = writer_->WritePart(
      *params_->layout(), std::move(cut.shards), Generation(generation), params_->options().server,
      command.background() ? SnapshotWriter::Pace::kBackground : SnapshotWriter::Pace::kNow);
  if (written.ok()) {
    *part.mutable_part() = *std::move(written);
    last_part_ = part;
    last_part_replay_seconds_ = replay_seconds;
  } else {
    LogError("part of snapshot {}: {}", generation, written.status().message());
    part.set_error(std::string(written.status().message()));
  }
  ServerReport report;
  *report.mutable_part() = std::move(part);
  // A message that is too long would end the connection, again and again.
  if (const size_t bytes = report.ByteSizeLong(); bytes > limits::kControlMessageBytesMax) {
    last_part_.reset();
    report.mutable_part()->clear_part();
    report.mutable_part()->set_error(absl::StrCat(
        "its part of the manifest has ", bytes, " bytes, allowed are ", limits::kControlMessageBytesMax,
        ": use more servers, or workers with names that come again"));
    LogError("part of snapshot {}: {}", generation, report.part().error());
  }
  report_(std::move(report));
}

}  // namespace recon

#include "server/durability/push_log.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/mutex.h"
#include "server/durability/log_budget.h"
#include "server/durability/log_reader.h"
#include "tests/support/faulty_file_system.h"

namespace recon {
namespace {

constexpr char kDirectory[] = "/log";

ApplyRules RulesOf(uint64_t cluster_epoch, double rate = 0.5) {
  ApplyRules rules;
  rules.optimizer.kind = OptimizerKind::kMomentum;
  rules.optimizer.learning_rate = rate;
  rules.groups["no_decay"].weight_decay_scale = 0;
  rules.bound = 0;
  rules.cluster_epoch = cluster_epoch;
  return rules;
}

std::string PayloadOf(uint64_t sequence) {
  return absl::StrCat("record ", sequence, std::string(sequence % 11 * 40, 'x'));
}

// What a log came to: its acknowledged records are those below `acknowledged`.
struct Written {
  uint64_t acknowledged = 0;
  absl::Status status;
};

// Appends records [first, end), each after the one before is acknowledged or, by `together`, at once.
Written WriteRecords(FileSystem* files, uint64_t first, uint64_t end, bool sync, uint64_t segment_bytes = 400,
                     bool together = false, const ApplyRules& rules = RulesOf(1)) {
  Written written;
  written.acknowledged = first;
  PushLog::Options options;
  options.directory = kDirectory;
  options.sync = sync;
  options.segment_bytes = segment_bytes;
  auto log = PushLog::Open(options, files, rules, first);
  written.status = log.status();
  if (!log.ok()) return written;
  std::vector<std::unique_ptr<Notification>> done;
  for (uint64_t sequence = first; sequence < end; ++sequence) {
    done.push_back(std::make_unique<Notification>());
    (*log)->Append(sequence % 5 == 0 ? LogRecordKind::kClosing : LogRecordKind::kFrame,
                   ByteChain::FromString(PayloadOf(sequence)),
                   [&written, sequence, event = done.back().get()](const absl::Status& status) {
                     if (status.ok() && written.acknowledged == sequence) written.acknowledged = sequence + 1;
                     event->Notify();
                   });
    if (!together) done.back()->WaitForNotification();
  }
  for (const auto& event : done) event->WaitForNotification();
  written.status = (*log)->status();
  return written;
}

class Recorder : public LogVisitor {
 public:
  absl::Status OnRules(const ApplyRules& told) override {
    rules.push_back(told);
    return absl::OkStatus();
  }
  absl::Status OnRecord(LogRecordKind kind, uint64_t sequence, const ByteChain& payload) override {
    sequences.push_back(sequence);
    right &= payload.ToString() == PayloadOf(sequence) &&
             kind == (sequence % 5 == 0 ? LogRecordKind::kClosing : LogRecordKind::kFrame);
    return absl::OkStatus();
  }

  std::vector<ApplyRules> rules;
  std::vector<uint64_t> sequences;
  bool right = true;
};

std::vector<std::string> SegmentNames(FileSystem* files) { return files->List(kDirectory).value(); }

// Records [first, end) and no others.
void CheckReads(FileSystem* files, uint64_t first, uint64_t end) {
  Recorder recorder;
  const auto log_end = ReadLog(files, kDirectory, first, &recorder);
  REQUIRE(log_end.ok());
  CHECK(log_end->next_sequence == end);
  CHECK(log_end->records == end - first);
  CHECK(log_end->records_lost == 0);
  CHECK(recorder.right);
  REQUIRE(recorder.sequences.size() == end - first);
  for (uint64_t i = 0; i < recorder.sequences.size(); ++i) CHECK(recorder.sequences[i] == first + i);
}

}  // namespace

TEST_CASE("what was appended is read back, from any record on, with its rules", "[push_log]") {
  for (const bool together : {false, true}) {
    FaultyFileSystem files;
    REQUIRE(WriteRecords(&files, 1, 30, false, 400, together).acknowledged == 30);
    REQUIRE(WriteRecords(&files, 30, 50, true, 400, together, RulesOf(2, 0.25)).acknowledged == 50);
    if (!together) CHECK(SegmentNames(&files).size() > 5);  // A batch stays in one.
    for (const uint64_t first : {1, 2, 29, 30, 31, 49, 50, 70}) {
      CheckReads(&files, first, std::max<uint64_t>(first, 50));
    }
    Recorder recorder;
    REQUIRE(ReadLog(&files, kDirectory, 1, &recorder).ok());
    CHECK(recorder.rules.front().optimizer.learning_rate == 0.5);
    CHECK(recorder.rules.front().optimizer.kind == OptimizerKind::kMomentum);
    CHECK(recorder.rules.front().PolicyOf("no_decay").weight_decay_scale == 0);
    CHECK(recorder.rules.front().bound == 0);
    CHECK(recorder.rules.back().optimizer.learning_rate == 0.25);
    CHECK(recorder.rules.back().cluster_epoch == 2);
    CHECK(*CountLoggedPushes(&files, kDirectory) == 49);
  }
}

TEST_CASE("a log that is not there, or begins too late, hands out nothing", "[push_log]") {
  FaultyFileSystem files;
  CheckReads(&files, 7, 7);
  REQUIRE(WriteRecords(&files, 10, 15, false).acknowledged == 15);
  Recorder recorder;
  const LogEnd end = *ReadLog(&files, kDirectory, 5, &recorder);
  CHECK(end.records == 0);
  CHECK(end.next_sequence == 5);
  CHECK(end.records_lost == 5);
  CHECK(absl::StrContains(end.trailing, "begins with record 10, needed is 5"));
  CHECK_FALSE(end.unread_segments.empty());
  REQUIRE(SetAside(&files, kDirectory, end).ok());
  CheckReads(&files, 5, 5);
}

TEST_CASE("a barrier comes after what was appended before it", "[push_log]") {
  FaultyFileSystem files;
  PushLog::Options options;
  options.directory = kDirectory;
  auto log = *PushLog::Open(options, &files, RulesOf(1), 1);
  std::vector<int> order;
  Notification done;
  for (int i = 0; i < 20; ++i) {
    log->Append(LogRecordKind::kFrame, ByteChain::FromString("r"),
                [&, i](const absl::Status&) { order.push_back(i); });
  }
  log->Barrier([&](const absl::Status& status) {
    CHECK(status.ok());
    order.push_back(20);
    done.Notify();
  });
  done.WaitForNotification();
  REQUIRE(order.size() == 21);
  for (int i = 0; i <= 20; ++i) CHECK(order[i] == i);
}

TEST_CASE("every byte flipped and every length: never a wrong record, and the place is named", "[push_log]") {
  FaultyFileSystem files;
  REQUIRE(WriteRecords(&files, 1, 9, false, 4096).acknowledged == 9);
  const std::string path = absl::StrCat(kDirectory, "/", SegmentName(1));
  const std::string content = files.Content(path);
  const size_t used = content.find_last_not_of('\0') + 1;
  for (size_t at = 0; at < used; ++at) {
    std::string damaged = content;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    files.SetContent(path, damaged);
    Recorder recorder;
    const LogEnd end = *ReadLog(&files, kDirectory, 1, &recorder);
    CAPTURE(at, end.trailing);
    REQUIRE(recorder.right);
    // Padding is not covered by a checksum, nor needed.
    const bool padding = end.records == 8;
    if (padding) continue;
    REQUIRE(absl::StrContains(end.trailing, path));
    REQUIRE(end.records + end.records_lost <= 8);
    if (end.records < 7 && at > 200) REQUIRE(end.records_lost > 0);
  }
  for (size_t length = 0; length < used; ++length) {
    files.SetContent(path, content.substr(0, length));
    Recorder recorder;
    const LogEnd end = *ReadLog(&files, kDirectory, 1, &recorder);
    REQUIRE(recorder.right);
    REQUIRE(end.records < 9);
    REQUIRE(end.records_lost == 0);
    // A new process goes on behind it.
    if (length % 7 != 0) continue;
    REQUIRE(WriteRecords(&files, end.next_sequence, 12, false, 4096, false, RulesOf(2)).acknowledged == 12);
    CheckReads(&files, 1, 12);
    for (const std::string& name : SegmentNames(&files)) {
      REQUIRE(files.Remove(absl::StrCat(kDirectory, "/", name)).ok());
    }
  }
}

TEST_CASE("a damaged record in the middle: what follows is set aside, and a new log goes on", "[push_log]") {
  FaultyFileSystem files;
  REQUIRE(WriteRecords(&files, 1, 30, false).acknowledged == 30);
  const std::string victim = absl::StrCat(kDirectory, "/", SegmentNames(&files)[2]);
  std::string content = files.Content(victim);
  content[content.find("record ") + 2] = '!';
  files.SetContent(victim, content);
  Recorder recorder;
  const LogEnd end = *ReadLog(&files, kDirectory, 1, &recorder);
  CHECK(end.records >= 3);
  CHECK(end.records + 1 + end.records_lost == 29);
  CHECK(absl::StrContains(end.trailing, victim));
  REQUIRE(SetAside(&files, kDirectory, end).ok());
  REQUIRE(WriteRecords(&files, end.next_sequence, 40, false).acknowledged == 40);
  CheckReads(&files, 1, 40);
}

TEST_CASE("a damaged record keeps the whole segment under another name, and none is overwritten",
          "[push_log]") {
  FaultyFileSystem files;
  REQUIRE(WriteRecords(&files, 1, 21, false, 1 << 16).acknowledged == 21);
  const std::string path = absl::StrCat(kDirectory, "/", SegmentName(1));
  std::string content = files.Content(path);
  content[content.find("record 12")] = '!';
  files.SetContent(path, content);
  Recorder recorder;
  const LogEnd end = *ReadLog(&files, kDirectory, 1, &recorder);
  CHECK(end.next_sequence == 12);
  CHECK(end.records_lost == 8);
  CHECK(end.damaged_segments == std::vector<std::string>{SegmentName(1)});
  REQUIRE(SetAside(&files, kDirectory, end).ok());
  CHECK(files.Content(path + ".damaged") == content);
  REQUIRE(SetAside(&files, kDirectory, end).ok());
  CHECK(files.Content(path + ".damaged-2") == content);
  REQUIRE(WriteRecords(&files, 12, 25, false).acknowledged == 25);
  CheckReads(&files, 1, 25);
}

TEST_CASE("megabytes of zeros between a record and what follows are passed over at once", "[push_log]") {
  FaultyFileSystem files;
  REQUIRE(WriteRecords(&files, 1, 9, false, 24 << 20).acknowledged == 9);
  const std::string path = absl::StrCat(kDirectory, "/", SegmentName(1));
  std::string content = files.Content(path);
  content[content.find("record 5")] = '!';
  content.back() = 'x';
  files.SetContent(path, content);
  Recorder recorder;
  const LogEnd end = *ReadLog(&files, kDirectory, 1, &recorder);
  CHECK(end.records == 4);
  CHECK(end.records_lost == 3);
  CHECK(*CountLoggedPushes(&files, kDirectory) == 7);
}

TEST_CASE("damage before what is needed does not matter", "[push_log]") {
  FaultyFileSystem files;
  REQUIRE(WriteRecords(&files, 1, 30, false, 1 << 16).acknowledged == 30);
  const std::string path = absl::StrCat(kDirectory, "/", SegmentName(1));
  std::string content = files.Content(path);
  content[content.find("record 7")] = '!';
  files.SetContent(path, content);
  CheckReads(&files, 8, 30);
  CheckReads(&files, 20, 30);
  Recorder recorder;
  CHECK(ReadLog(&files, kDirectory, 7, &recorder)->records_lost == 22);
}

TEST_CASE("synced records survive any power failure", "[push_log]") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    FaultyFileSystem files;
    // The last ones together, so that some of a batch may be there and some not.
    Written written = WriteRecords(&files, 1, 6 + seed % 9, true);
    REQUIRE(written.acknowledged == 6 + seed % 9);
    files.FailCall(3, FaultyFileSystem::Fault::kIoError, /*for_good=*/true);
    const uint64_t acknowledged = written.acknowledged;
    written = WriteRecords(&files, acknowledged, acknowledged + 6, true, 400, /*together=*/true, RulesOf(2));
    const auto after = files.AfterPowerFailure(seed, seed % 2 == 0 ? 512 : 4096);
    Recorder recorder;
    const auto end = ReadLog(after.get(), kDirectory, 1, &recorder);
    REQUIRE(end.ok());
    CHECK(recorder.right);
    CHECK(end->next_sequence >= acknowledged);
    CHECK(end->next_sequence >= written.acknowledged);
  }
}

TEST_CASE("an error of any call: nothing acknowledged is lost, and nothing more is acknowledged",
          "[push_log]") {
  FaultyFileSystem clean;
  REQUIRE(WriteRecords(&clean, 1, 25, true).acknowledged == 25);
  const int calls = clean.calls();
  REQUIRE(calls > 50);
  for (const auto fault : {FaultyFileSystem::Fault::kIoError, FaultyFileSystem::Fault::kFull,
                           FaultyFileSystem::Fault::kShortWriteThenFull}) {
    for (int call = 1; call <= calls; ++call) {
      for (const bool for_good : {false, true}) {
        CAPTURE(static_cast<int>(fault), call, for_good);
        FaultyFileSystem files;
        files.FailCall(call, fault, for_good);
        const Written written = WriteRecords(&files, 1, 25, true);
        // Even where only one call fails: a failed write or sync is not tried again.
        CHECK_FALSE(written.status.ok());
        CHECK(written.acknowledged < 25);
        const auto after = files.AfterPowerFailure(static_cast<uint64_t>(call), 512);
        Recorder recorder;
        const auto end = ReadLog(after.get(), kDirectory, 1, &recorder);
        REQUIRE(end.ok());
        CHECK(recorder.right);
        CHECK(end->next_sequence >= written.acknowledged);
        // Restarted, it goes on.
        REQUIRE(
            WriteRecords(after.get(), end->next_sequence, 40, true, 400, false, RulesOf(2)).acknowledged ==
            40);
        CheckReads(after.get(), 1, 40);
      }
    }
  }
}

TEST_CASE("trimming removes what is not needed, and nothing else", "[push_log]") {
  FaultyFileSystem files;
  PushLog::Options options;
  options.directory = kDirectory;
  options.segment_bytes = 400;
  REQUIRE(WriteRecords(&files, 1, 30, false).acknowledged == 30);
  const auto log = *PushLog::Open(options, &files, RulesOf(2), 30);
  const size_t before = SegmentNames(&files).size();
  for (const uint64_t needed : {1, 2, 11, 20, 30, 31}) {
    CAPTURE(needed);
    REQUIRE(log->Trim(needed).ok());
    CheckReads(&files, std::min<uint64_t>(needed, 30), 30);
  }
  CHECK(SegmentNames(&files).size() == 1);
  CHECK(before > 5);
}

TEST_CASE("a log that has used its budget but for an eighth is full until it is trimmed", "[push_log]") {
  FaultyFileSystem files;
  PushLog::Options options;
  options.directory = kDirectory;
  options.segment_bytes = 1 << 18;
  options.budget_bytes = 1 << 20;
  const auto log = *PushLog::Open(options, &files, RulesOf(1), 1);
  uint64_t records = 0;
  while (!log->full()) {
    REQUIRE(records < 100);
    Notification written;
    absl::Status status;
    log->Append(LogRecordKind::kFrame, ByteChain::FromString(std::string(100'000, 'x')),
                [&](const absl::Status& done) {
                  status = done;
                  written.Notify();
                });
    written.WaitForNotification();
    REQUIRE(status.ok());
    ++records;
  }
  CHECK(log->disk_bytes() > options.budget_bytes / 8 * 7);
  CHECK(log->disk_bytes() <= options.budget_bytes + options.segment_bytes);
  CHECK(log->disk_bytes() == *BytesBelow(&files, kDirectory));
  REQUIRE(log->Trim(records + 1).ok());
  CHECK_FALSE(log->full());
  CHECK(log->disk_bytes() <= options.segment_bytes);
  CHECK(log->disk_bytes() == *BytesBelow(&files, kDirectory));
}

TEST_CASE("a log on a disk that is nearly full says so while what is under way still fits", "[push_log]") {
  FaultyFileSystem files;
  PushLog::Options options;
  options.directory = kDirectory;
  const auto log = *PushLog::Open(options, &files, RulesOf(1), 1);
  CHECK_FALSE(log->full());
  files.SetFreeBytes(1000);
  log->LookForRoom();
  CHECK(log->full());
  Notification written;
  absl::Status status = absl::UnknownError("");
  log->Append(LogRecordKind::kFrame, ByteChain::FromString("fits"), [&](const absl::Status& done) {
    status = done;
    written.Notify();
  });
  written.WaitForNotification();
  CHECK(status.ok());
  files.SetFreeBytes(uint64_t{1} << 40);
  log->LookForRoom();
  CHECK_FALSE(log->full());
}

TEST_CASE("the budget is half of what is free, and segments are small where it is", "[push_log]") {
  FaultyFileSystem files;
  PushLog::Options options;
  options.directory = kDirectory;
  files.SetFreeBytes(uint64_t{300} << 20);
  REQUIRE(SetLogBudget(&files, 0, limits::kLogSegmentBytes, &options).ok());
  CHECK(options.budget_bytes == uint64_t{150} << 20);
  CHECK(options.segment_bytes == options.budget_bytes / 8);
  REQUIRE(SetLogBudget(&files, uint64_t{4} << 30, limits::kLogSegmentBytes, &options).ok());
  CHECK(options.budget_bytes == uint64_t{4} << 30);
  CHECK(options.segment_bytes == limits::kLogSegmentBytes);
  CHECK(absl::IsInvalidArgument(SetLogBudget(&files, 1000, limits::kLogSegmentBytes, &options)));
}

TEST_CASE("closings and names are what they were, or refused", "[push_log]") {
  StepClosing closing;
  closing.step = 77;
  closing.shards = {0, 3, 4};
  closing.contributors = {
      {WorkerId(1), Incarnation(5)}, {WorkerId(1), Incarnation(6)}, {WorkerId(4), Incarnation(2)}};
  const std::string bytes = EncodeClosing(closing);
  const StepClosing read = *DecodeClosing(bytes);
  CHECK(read.step == 77);
  CHECK(read.shards == closing.shards);
  CHECK(read.contributors == closing.contributors);
  for (size_t length = 0; length < bytes.size(); ++length) {
    CHECK(absl::IsDataLoss(DecodeClosing(absl::string_view(bytes).substr(0, length)).status()));
  }
  std::swap(closing.shards[0], closing.shards[2]);
  CHECK(absl::IsDataLoss(DecodeClosing(EncodeClosing(closing)).status()));
  std::swap(closing.shards[0], closing.shards[2]);
  std::swap(closing.contributors[0], closing.contributors[2]);
  CHECK(absl::IsDataLoss(DecodeClosing(EncodeClosing(closing)).status()));
  CHECK(*FirstSequenceOf(SegmentName(0xABCDEF)) == 0xABCDEF);
  for (const char* name :
       {"", "LOG-", "LOG-12", "LOG-00000000000000FF", "LOG-0000000000000001.damaged", "x"}) {
    CHECK_FALSE(FirstSequenceOf(name).ok());
  }
}

}  // namespace recon

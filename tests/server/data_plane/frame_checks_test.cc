#include "server/data_plane/frame_checks.h"

#include <cmath>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/limits.h"
#include "server/data_plane/memory_budget.h"

namespace recon {
namespace {

// Two servers; the model has shards of 65,536 values and one of 10.
ShardMap MapOf(uint32_t server) {
  ModelSpec model;
  model.set_name("two");
  for (const uint32_t size : {3 * 65536, 10}) {
    auto* tensor = model.add_tensors();
    tensor->set_name("t" + std::to_string(size));
    tensor->add_shape(size);
  }
  auto layout = ParamLayout::Create(model);
  REQUIRE(layout.ok());
  return ShardMap(std::make_shared<const ParamLayout>(*std::move(layout)), server, 2);
}

OperationPtr PushOf(const ShardMap& map, const std::vector<uint32_t>& shards) {
  auto op = std::make_shared<Operation>();
  op->kind = FrameKind::kPush;
  op->frame.header.kind = static_cast<uint8_t>(FrameKind::kPush);
  op->frame.header.samples = 1;
  op->frame.header.push_parts = map.size();
  for (const uint32_t shard : shards) {
    PartHeader part;
    part.shard = shard;
    part.count = shard < map.size() ? map.params_of(shard) : 1;
    part.version = 0;
    part.payload_bytes = 4 * part.count;
    op->frame.parts.push_back(part);
    op->frame.payloads.emplace_back();
  }
  return op;
}

void CheckRefused(const absl::Status& status, const std::string& words) {
  INFO(status.message());
  CHECK(absl::IsInvalidArgument(status));
  CHECK(absl::StrContains(status.message(), words));
}

}  // namespace

TEST_CASE("every shard is one server's, and each knows its own", "[frame_checks]") {
  const ShardMap first = MapOf(0), second = MapOf(1);
  CHECK(first.size() == second.size());
  CHECK(first.owned().size() + second.owned().size() == first.size());
  uint64_t pages = 0;
  for (uint32_t shard = 0; shard < first.size(); ++shard) {
    CHECK(first.has(shard) != second.has(shard));
    pages += first.layout()->shards()[shard].pages();
  }
  CHECK(first.owned_pages() + second.owned_pages() == pages);
  CHECK(first.of(1) == second.owned());
  CHECK(ShardMap().size() == 0);
}

TEST_CASE("parts that are no shards of this server are named", "[frame_checks]") {
  const ShardMap map = MapOf(0);
  REQUIRE(map.owned().size() >= 2);
  const uint32_t a = map.owned()[0], b = map.owned()[1], other = map.of(1).front();
  CHECK(CheckParts(*PushOf(map, {a, b}), map).ok());
  CheckRefused(CheckParts(*PushOf(map, {b, a}), map), "they must ascend");
  CheckRefused(CheckParts(*PushOf(map, {a, a}), map), "they must ascend");
  CheckRefused(CheckParts(*PushOf(map, {other}), map), "is not on server 0");
  CheckRefused(CheckParts(*PushOf(map, {map.size()}), map), "the model has");
  CheckRefused(CheckParts(*PushOf(map, {0}), ShardMap()), "the model has 0");
  const OperationPtr short_part = PushOf(map, {a});
  --short_part->frame.parts[0].count;
  CheckRefused(CheckParts(*short_part, map), "values, shard");
  const OperationPtr empty = PushOf(map, {a});
  empty->frame.parts[0].payload_bytes = 0;
  CheckRefused(CheckParts(*empty, map), "0 bytes of payload");
  empty->kind = FrameKind::kPull;
  CHECK(CheckParts(*empty, map).ok());
}

TEST_CASE("headers of pushes that cannot be are named", "[frame_checks]") {
  const ShardMap map = MapOf(0);
  const OperationPtr good = PushOf(map, map.owned());
  CHECK(CheckPushHeader(*good, map).ok());
  CHECK(PartsHere(good->frame.header, map) == map.owned().size());
  const auto refused = [&](auto change, const std::string& words) {
    const OperationPtr op = PushOf(map, map.owned());
    change(&op->frame);
    CheckRefused(CheckPushHeader(*op, map), words);
  };
  refused([&](Frame* frame) { frame->header.push_parts = map.size() + 1; }, "the model");
  refused([&](Frame* frame) { frame->header.push_parts = 1; }, "this frame");
  refused([&](Frame* frame) { frame->header.server_parts = map.size(); }, "on this server");
  refused([](Frame* frame) { frame->header.server_parts = 1; }, "on this server");
  refused([](Frame* frame) { frame->header.gradient_norm = std::nanf(""); }, "gradient norm");
  refused([](Frame* frame) { frame->header.gradient_norm = -1; }, "gradient norm is -1");
  refused([](Frame* frame) { frame->header.samples = 0; }, "0 samples");
  refused([](Frame* frame) { frame->parts[0].version = kNoVersion; }, "must name the version");
}

TEST_CASE("half of the memory for frames is whoever's comes first, of the rest each worker has a share",
          "[memory_budget]") {
  const uint64_t most = 8 * limits::kStreamBytesInFlightMax;
  MemoryBudget budget(most, UINT64_MAX);
  const WorkerId fast(1), slow(2);
  budget.Admit(fast, false);
  budget.Admit(slow, false);
  const uint64_t frame = most / 64;
  uint64_t frames = 0;
  while (budget.CheckFrame(fast, frame, true).ok()) {
    REQUIRE(budget.Hold(fast, frame) != 0);
    ++frames;
  }
  CHECK(frames == 33);  // The last is one too many, and is held until it is told so.
  const uint64_t account = budget.Hold(slow, frame);
  CHECK(budget.CheckFrame(slow, frame, true).ok());
  budget.Release(slow, account, frame);
  CHECK(budget.held() == 33 * frame);
  const absl::Status refused = budget.CheckFrame(fast, frame, true);
  CHECK(absl::IsResourceExhausted(refused));
  CHECK(absl::StrContains(refused.message(), "keeps the pushes of all workers"));
}

TEST_CASE("what a process held before another took its name is not the other's", "[memory_budget]") {
  MemoryBudget budget(UINT64_MAX, UINT64_MAX);
  const WorkerId worker(1);
  CHECK(budget.Hold(worker, 5) == 0);  // Of nobody.
  budget.Admit(worker, true);
  const uint64_t first = budget.Hold(worker, 10);
  budget.Admit(worker, true);
  const uint64_t second = budget.Hold(worker, 20);
  CHECK(first != second);
  budget.Release(worker, first, 10);
  budget.Release(worker, 0, 5);
  CHECK(budget.held() == 20);
  budget.Release(worker, second, 20);
  CHECK(budget.held() == 0);
}

TEST_CASE("state and replies leave less for frames, never less than one worker may send", "[memory_budget]") {
  MemoryBudget budget(UINT64_MAX, uint64_t{1} << 30);
  CHECK(budget.left() == uint64_t{1} << 30);
  CHECK(budget.CheckState("net", uint64_t{1} << 30, 0).ok());
  const absl::Status large = budget.CheckState("net", (uint64_t{1} << 30) + 1, 4);
  CHECK(absl::IsResourceExhausted(large));
  CHECK(absl::StrContains(large.message(), "the 4 versions that --staleness-correction keeps"));
  budget.SetState(uint64_t{1} << 30);
  budget.Admit(WorkerId(1), false);
  CHECK(budget.left() == 0);
  budget.Hold(WorkerId(1), limits::kStreamBytesInFlightMax);
  CHECK(budget.CheckFrame(WorkerId(1), limits::kStreamBytesInFlightMax, false).ok());
  budget.Hold(WorkerId(1), 1);
  CHECK_FALSE(budget.CheckFrame(WorkerId(1), 1, false).ok());
}

}  // namespace recon

// Where a ParamServer puts the replies to pushes.

#include "server/data_plane/reply_buffer.h"

#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/codec/sparse_codec.h"
#include "common/tensor/page.h"
#include "tests/server/data_plane/push_frames.h"

namespace recon {
namespace {

ModelSpec OneTensor(int64_t parameters) {
  ModelSpec model;
  model.set_name("one tensor");
  TensorSpec* tensor = model.add_tensors();
  tensor->set_name("w");
  tensor->add_shape(parameters);
  return model;
}

Frame Answer(const std::shared_ptr<ParamServerHarness::Pending>& pending) {
  pending->done.WaitForNotification();
  REQUIRE(pending->reply.ok());
  return *DecodeFrame(*pending->reply);
}

}  // namespace

TEST_CASE("a reply with all parameters in 16 bits is encoded into the transport's memory", "[reply_buffer]") {
  ParamServerHarness f(/*bound=*/-1);
  f.Define(OneTensor(2 * kPageParams + 101), std::vector<float>(2 * kPageParams + 101, 3));
  f.Join(1);
  REQUIRE(f.server().layout()->shard_count() == 3);
  std::shared_ptr<uint8_t[]> memory;
  size_t asked = 0;
  const auto push = [&](const Frame& frame) {
    return Answer(f.Send(frame, {Incarnation(), [&](size_t bytes) {
                                   asked += bytes;
                                   return memory = std::shared_ptr<uint8_t[]>(new uint8_t[bytes]);
                                 }}));
  };
  const auto value = [](const Frame& reply, size_t part) {
    CHECK(static_cast<CodecId>(reply.parts[part].codec) == CodecId::kFp16);
    const std::string bytes = reply.payloads[part].ToString();
    std::vector<float> values(bytes.size() / 2);
    Decode(CodecId::kFp16, reinterpret_cast<const uint8_t*>(bytes.data()), values.size(), values.data());
    CHECK(values == std::vector<float>(values.size(), values[0]));
    return values[0];
  };

  Frame frame = f.PushFrame(1, 0, 1);
  frame.header.reply_codec = static_cast<uint8_t>(CodecId::kFp16);
  const Frame reply = push(frame);
  CHECK(asked == (2 * kPageParams + 101) * 2);
  size_t at = 0;
  for (size_t i = 0; i < 3; ++i) {
    CHECK(value(reply, i) == 2);
    REQUIRE(reply.payloads[i].pieces().size() == 1);
    CHECK(reply.payloads[i].pieces()[0].data == memory.get() + at);
    at += reply.payloads[i].size();
  }
  // The second time nothing is applied, nor encoded.
  asked = 0;
  const Frame again = push(frame);
  for (size_t i = 0; i < 3; ++i) CHECK(value(again, i) == 2);
  CHECK(asked == 0);

  // A sparse part has a reply of what has changed; the others have memory of their own then.
  frame.header.step = 1;
  SparseWriter writer(CodecId::kSparseFp32);
  const std::vector<float> ones(kPageParams, 1);
  writer.AddWholePage(kPageParams, ones.data());
  frame.parts[0].codec = static_cast<uint8_t>(CodecId::kSparseFp32);
  frame.payloads[0] = ByteChain::FromString(writer.Finish());
  asked = 0;
  const Frame mixed = push(frame);
  CHECK(asked == 0);
  for (size_t i = 1; i < 3; ++i) CHECK(value(mixed, i) == 1);
}

TEST_CASE("a reply is written over the request where the transport allows it and it has as many bytes",
          "[reply_buffer]") {
  ParamServerHarness f(/*bound=*/-1);
  f.Define(OneTensor(kPageParams + 101), std::vector<float>(kPageParams + 101, 3));
  f.Join(1);
  uint64_t step = 0;
  // The first part's gradients in `codec`, the second's in fp16; all are 1.
  const auto push = [&](CodecId codec, bool over_request) {
    Frame frame = f.PushFrame(1, step++, 1);
    frame.header.reply_codec = static_cast<uint8_t>(CodecId::kFp16);
    if (codec != CodecId::kFp32) f.EncodePart(&frame, 0, codec);
    f.EncodePart(&frame, 1, CodecId::kFp16);
    const Frame answer = Answer(f.Send(frame, {Incarnation(), nullptr, over_request}));
    std::vector<bool> over(2);
    for (size_t i = 0; i < 2; ++i) {
      const std::string bytes = answer.payloads[i].ToString();
      std::vector<float> values(bytes.size() / 2);
      Decode(CodecId::kFp16, reinterpret_cast<const uint8_t*>(bytes.data()), values.size(), values.data());
      CHECK(values == std::vector<float>(frame.parts[i].count, 3 - static_cast<float>(step)));
      over[i] = answer.payloads[i].pieces().front().data == frame.payloads[i].pieces().front().data;
    }
    return over;
  };
  CHECK(push(CodecId::kFp16, true) == std::vector<bool>{true, true});
  CHECK(push(CodecId::kFp16, false) == std::vector<bool>{false, false});
  CHECK(push(CodecId::kBf16, true) == std::vector<bool>{true, true});
  CHECK(push(CodecId::kFp32, true) == std::vector<bool>{false, true});
}

}  // namespace recon

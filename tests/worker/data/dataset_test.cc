#include "worker/data/dataset.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <set>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "tests/support/temp_dir.h"
#include "worker/data/cifar_dataset.h"
#include "worker/data/idx_dataset.h"

namespace recon {
namespace {

std::string BigEndian(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

// `count` images of 2 x 3 pixels; pixel j of image i is 10 i + j.
std::string Images(uint32_t count) {
  std::string bytes = BigEndian(0x803) + BigEndian(count) + BigEndian(2) + BigEndian(3);
  for (uint32_t i = 0; i < count * 6; ++i) bytes += static_cast<char>(10 * (i / 6) + i % 6);
  return bytes;
}

std::string Labels(uint32_t count) {
  std::string bytes = BigEndian(0x801) + BigEndian(count);
  for (uint32_t i = 0; i < count; ++i) bytes += static_cast<char>(i % 3);
  return bytes;
}

void WriteGz(const std::string& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
}

void WriteIdx(const TempDir& directory) {
  WriteGz(directory / "train-images-idx3-ubyte.gz", Images(5));
  WriteWholeFile(directory / "train-labels-idx1-ubyte", Labels(5));
  WriteWholeFile(directory / "t10k-images-idx3-ubyte", Images(3));
  WriteGz(directory / "t10k-labels-idx1-ubyte.gz", Labels(3));
}

}  // namespace

TEST_CASE("data sets are told apart by some of their samples", "[data]") {
  const auto of = [](const std::string& name) { return Fingerprint(*OpenDataset(name)->train); };
  const std::string one = of("clusters:1000,10,4,3");
  CHECK(one.size() == 16);
  CHECK(one == of("clusters:1000,20,4,3"));
  CHECK(one != of("clusters:1001,10,4,3"));
  CHECK(one != of("clusters:1000,10,4,2"));
  CHECK(of("clusters:1,1,1,1").size() == 16);
}

TEST_CASE("a data file that is a pipe or a device is refused by name, and not waited for", "[data]") {
  const TempDir directory;
  WriteIdx(directory);
  const std::string labels = directory / "train-labels-idx1-ubyte";
  REQUIRE(unlink(labels.c_str()) == 0);
  REQUIRE(mkfifo(labels.c_str(), 0600) == 0);
  CHECK(OpenDataset("idx:" + directory.path()).status() ==
        absl::InvalidArgumentError(labels + " is a pipe, no regular file"));
  REQUIRE(unlink(labels.c_str()) == 0);
  REQUIRE(symlink("/dev/zero", labels.c_str()) == 0);
  CHECK(OpenDataset("idx:" + directory.path()).status() ==
        absl::InvalidArgumentError(labels + " is a device, no regular file"));
  const std::string batch = directory / "data_batch_1.bin";
  REQUIRE(mkfifo(batch.c_str(), 0600) == 0);
  CHECK(OpenDataset("cifar10:" + directory.path()).status() ==
        absl::InvalidArgumentError(batch + " is a pipe, no regular file"));
}

TEST_CASE("what is no directory in place of the data files' is named with its kind", "[data]") {
  const TempDir directory;
  WriteWholeFile(directory / "file", "text");
  REQUIRE(mkfifo((directory / "pipe").c_str(), 0600) == 0);
  REQUIRE(symlink("pipe", (directory / "link").c_str()) == 0);
  const auto says = [](const std::string& data, const std::string& text) {
    const absl::Status status = OpenDataset(data).status();
    CHECK(absl::IsInvalidArgument(status));
    CHECK(status.message() == text);
  };
  for (const std::string kind : {"idx:", "cifar10:"}) {
    for (const char* name : {"pipe", "link"})
      says(kind + (directory / name), directory / name + " is a pipe, no directory");
    says(kind + (directory / "file"), directory / "file is a file, no directory");
    says(kind + "/dev/null", "/dev/null is a device, no directory");
    CHECK(absl::IsNotFound(OpenDataset(kind + (directory / "absent")).status()));
  }
  const std::string inner = directory / "cifar-10-batches-bin";
  REQUIRE(mkfifo(inner.c_str(), 0600) == 0);
  says("cifar10:" + directory.path(), inner + " is a pipe, no directory");
}

TEST_CASE("IDX files are read, gz or not, and scaled by the training set", "[data]") {
  const TempDir directory;
  WriteIdx(directory);
  const auto data = OpenDataset("idx:" + directory.path());
  REQUIRE(data.ok());
  CHECK(data->train->size() == 5);
  CHECK(data->test->size() == 3);
  CHECK(data->train->features() == 6);
  CHECK(data->train->classes() == 3);
  Batch batch;
  data->train->Read({0, 1, 2, 3, 4}, &batch);
  CHECK(batch.labels == std::vector<uint32_t>{0, 1, 2, 0, 1});
  double sum = 0;
  double squares = 0;
  for (const float value : batch.features) {
    sum += value;
    squares += value * value;
  }
  CHECK(sum / 30 == Approx(0).margin(1e-5));
  CHECK(squares / 30 == Approx(1).margin(1e-4));
  Batch test;
  data->test->Read({2}, &test);
  CHECK(test.features == std::vector<float>(batch.features.begin() + 12, batch.features.begin() + 18));
}

TEST_CASE("damaged IDX files are refused by name and numbers", "[data]") {
  CHECK(DecodeIdx("x", Images(4), Labels(4)).ok());
  const std::string images = Images(4);
  const std::string labels = Labels(4);
  for (size_t size = 0; size < images.size(); ++size) {
    CHECK(absl::IsDataLoss(DecodeIdx("x", images.substr(0, size), labels).status()));
  }
  for (size_t size = 0; size < labels.size(); ++size) {
    CHECK(absl::IsDataLoss(DecodeIdx("x", images, labels.substr(0, size)).status()));
  }
  CHECK(absl::IsDataLoss(DecodeIdx("x", images + "y", labels).status()));
  CHECK(absl::IsDataLoss(DecodeIdx("x", images, Labels(5)).status()));
  CHECK(absl::IsDataLoss(DecodeIdx("x", labels, labels).status()));
  std::string huge = images;
  for (size_t at = 4; at < 16; ++at) huge[at] = '\x7f';
  const absl::Status status = DecodeIdx("file", huge, labels).status();
  CHECK(absl::IsDataLoss(status));
  CHECK(absl::StrContains(status.message(), "file: "));
}

TEST_CASE("absent and truncated files are errors that name the file", "[data]") {
  const TempDir directory;
  absl::Status status = OpenDataset("idx:" + directory.path()).status();
  CHECK(absl::IsNotFound(status));
  CHECK(absl::StrContains(status.message(), "train-images-idx3-ubyte"));
  WriteIdx(directory);
  const std::string gz = ReadWholeFile(directory / "train-images-idx3-ubyte.gz");
  WriteWholeFile(directory / "train-images-idx3-ubyte.gz", gz.substr(0, gz.size() / 2));
  status = OpenDataset("idx:" + directory.path()).status();
  CHECK(absl::IsDataLoss(status));
  CHECK(absl::StrContains(status.message(), "train-images-idx3-ubyte.gz"));
}

TEST_CASE("CIFAR-10 records are read; wrong lengths and labels are refused", "[data]") {
  const std::string record = std::string(1, '\x07') + std::string(3072, '\x40');
  const auto data = DecodeCifar10("x", {record + record, record});
  REQUIRE(data.ok());
  CHECK((*data)->size() == 3);
  CHECK((*data)->features() == 3072);
  CHECK((*data)->classes() == 10);
  CHECK(absl::IsDataLoss(DecodeCifar10("x", {""}).status()));
  CHECK(absl::IsDataLoss(DecodeCifar10("x", {record.substr(1)}).status()));
  std::string wrong = record;
  wrong[0] = 10;
  CHECK(absl::IsDataLoss(DecodeCifar10("x", {wrong}).status()));
}

TEST_CASE("clusters are the same everywhere, and training and test sets differ", "[data]") {
  const TrainAndTest a = *OpenDataset("clusters:100,20,8,3");
  const TrainAndTest b = *OpenDataset("clusters:100,20,8,3");
  CHECK(a.train->size() == 100);
  CHECK(a.test->size() == 20);
  Batch x;
  Batch y;
  a.train->Read({3, 99}, &x);
  b.train->Read({3, 99}, &y);
  CHECK(x.features == y.features);
  CHECK(x.labels == y.labels);
  a.test->Read({3}, &y);
  CHECK(std::vector<float>(x.features.begin(), x.features.begin() + 8) != y.features);
}

TEST_CASE("an order is a permutation that depends on seed and data epoch alone", "[data]") {
  const std::vector<uint32_t> order = ShuffledOrder(1000, 1, 0);
  CHECK(std::set<uint32_t>(order.begin(), order.end()).size() == 1000);
  CHECK(*std::max_element(order.begin(), order.end()) == 999);
  CHECK(order == ShuffledOrder(1000, 1, 0));
  CHECK(order != ShuffledOrder(1000, 1, 1));
  CHECK(order != ShuffledOrder(1000, 2, 0));
}

TEST_CASE("malformed data names are refused", "[data]") {
  for (const char* name :
       {"", "mnist", "idx:", "cifar10:", "clusters:", "clusters:1", "clusters:0,1", "clusters:1,1,1",
        "clusters:a,b", "clusters:1,1,1,1,1", "clusters:999999999999,1"}) {
    INFO(name);
    CHECK(absl::IsInvalidArgument(OpenDataset(name).status()));
  }
}

}  // namespace recon

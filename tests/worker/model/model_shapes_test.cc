#include "worker/model/model_shapes.h"

#include <sys/stat.h>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/tensor/param_layout.h"
#include "tests/support/temp_dir.h"
#include "worker/model/model_backend.h"
#include "worker/model/model_spec.h"

namespace recon {
namespace {

uint64_t Params(const std::string& name) { return ParamLayout::Create(*ShapesOf(name))->params(); }

}  // namespace

TEST_CASE("the well-known models have their published numbers of parameters", "[shapes]") {
  CHECK(Params("resnet50") == 25'557'032);
  CHECK(Params("vgg16") == 138'357'544);
  CHECK(Params("bert-base") == 109'482'240);
}

TEST_CASE("a well-known model is one model, with the prefix and without", "[shapes]") {
  for (const std::string name : {"resnet50", "vgg16", "bert-base"}) {
    ModelOptions options;
    options.device = "cpu";
    for (const std::string& spelling : {name, "synthetic:" + name}) {
      INFO(spelling);
      CHECK(NamesModel(spelling));
      CHECK(ModelSpecOf(spelling)->name() == "synthetic:" + name);
      options.model = spelling;
      CHECK((*MakeBackend(options))->spec().name() == "synthetic:" + name);
    }
  }
  CHECK(ModelSpecOf("mlp:8-4-2")->name() == "mlp:8-4-2");
  for (const char* wrong : {"resnet", "synthetic:", "mlp", "", "synthetic", "mlp:8"}) {
    INFO(wrong);
    CHECK(absl::IsInvalidArgument(ModelSpecOf(wrong).status()));
  }
  CHECK_FALSE(NamesModel("resnet51"));
}

TEST_CASE("a shapes file is read, and its mistakes are named by line", "[shapes]") {
  const TempDir directory;
  WriteWholeFile(directory / "good", "# a comment\nw 3 4  # trailing\n\nb 3\nscale\n");
  const auto spec = ShapesOf(directory / "good");
  REQUIRE(spec.ok());
  CHECK(ParamLayout::Create(*spec)->params() == 16);
  WriteWholeFile(directory / "bad", "w 3 4\nb 0\n");
  CHECK(absl::StrContains(ShapesOf(directory / "bad").status().message(), "bad:2: '0'"));
  WriteWholeFile(directory / "empty", "# nothing\n");
  CHECK(absl::IsInvalidArgument(ShapesOf(directory / "empty").status()));
  CHECK(absl::IsNotFound(ShapesOf(directory / "absent").status()));
}

TEST_CASE("a shapes file that is a pipe or a device is refused by name, and not waited for", "[shapes]") {
  const TempDir directory;
  const std::string pipe = directory / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(ShapesOf(pipe).status() ==
        absl::InvalidArgumentError("--model synthetic:" + pipe + " is a pipe, no regular file"));
  CHECK(ShapesOf("/dev/zero").status() ==
        absl::InvalidArgumentError("--model synthetic:/dev/zero is a device, no regular file"));
  CHECK(absl::IsInvalidArgument(ShapesOf(directory.path()).status()));
}

}  // namespace recon

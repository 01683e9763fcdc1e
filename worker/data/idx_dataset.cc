#include "worker/data/idx_dataset.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/limits.h"
#include "common/base/regular_file.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

constexpr uint32_t kImagesMagic = 0x00000803;  // Unsigned bytes, three dimensions.
constexpr uint32_t kLabelsMagic = 0x00000801;  // Unsigned bytes, one dimension.
constexpr size_t kImagesHeader = 16;
constexpr size_t kLabelsHeader = 8;

uint32_t BigEndian(absl::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

absl::Status CheckMagic(const std::string& name, absl::string_view bytes, size_t header, uint32_t magic) {
  if (bytes.size() < header) {
    return absl::DataLossError(absl::StrCat(name, ": ", bytes.size(), " bytes, the header has ", header));
  }
  if (BigEndian(bytes, 0) != magic) {
    return absl::DataLossError(
        absl::StrFormat("%s: magic is %#010x, expected %#010x", name, BigEndian(bytes, 0), magic));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ByteImages>> OpenPair(const std::string& directory, const std::string& stem) {
  const std::string images_path = absl::StrCat(directory, "/", stem, "-images-idx3-ubyte");
  RECON_ASSIGN_OR_RETURN(const std::string images, ReadFileOrGz(images_path));
  RECON_ASSIGN_OR_RETURN(const std::string labels,
                         ReadFileOrGz(absl::StrCat(directory, "/", stem, "-labels-idx1-ubyte")));
  return DecodeIdx(images_path, images, labels);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ByteImages>> DecodeIdx(const std::string& name, absl::string_view images,
                                                      absl::string_view labels) {
  RECON_RETURN_IF_ERROR(CheckMagic(name, images, kImagesHeader, kImagesMagic));
  RECON_RETURN_IF_ERROR(CheckMagic(name + " (labels)", labels, kLabelsHeader, kLabelsMagic));
  const uint64_t samples = BigEndian(images, 4);
  const uint64_t rows = BigEndian(images, 8);
  const uint64_t columns = BigEndian(images, 12);
  if (samples == 0 || rows == 0 || columns == 0 || rows > 65536 || columns > 65536 ||
      rows * columns > limits::kDatasetBytesMax / samples ||
      images.size() - kImagesHeader != samples * rows * columns) {
    return absl::DataLossError(absl::StrCat(name, ": ", images.size() - kImagesHeader,
                                            " bytes of pixels for ", samples, " images of ", rows, " x ",
                                            columns));
  }
  if (BigEndian(labels, 4) != samples || labels.size() - kLabelsHeader != samples) {
    return absl::DataLossError(absl::StrCat(name, " (labels): ", labels.size() - kLabelsHeader,
                                            " labels, header says ", BigEndian(labels, 4), ", there are ",
                                            samples, " images"));
  }
  std::vector<uint8_t> pixels(images.begin() + kImagesHeader, images.end());
  std::vector<uint8_t> classes(labels.begin() + kLabelsHeader, labels.end());
  const uint32_t highest = *std::max_element(classes.begin(), classes.end());
  return std::make_unique<ByteImages>(std::move(pixels), std::move(classes),
                                      static_cast<uint32_t>(rows * columns), highest + 1);
}

absl::StatusOr<TrainAndTest> OpenIdx(const std::string& directory) {
  // Where there is none, the file that was looked for says more.
  if (const absl::Status found = CheckDirectory(directory); !absl::IsNotFound(found))
    RECON_RETURN_IF_ERROR(found);
  RECON_ASSIGN_OR_RETURN(auto train, OpenPair(directory, "train"));
  RECON_ASSIGN_OR_RETURN(auto test, OpenPair(directory, "t10k"));
  if (train->features() != test->features() || test->classes() > train->classes()) {
    return absl::DataLossError(absl::StrCat(directory, ": test images of ", test->features(), " pixels and ",
                                            test->classes(), " classes, training images of ",
                                            train->features(), " and ", train->classes()));
  }
  return WithTrainingScale(std::move(train), std::move(test));
}

}  // namespace recon
